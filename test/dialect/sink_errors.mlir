// RUN: attn-opt --split-input-file --verify-diagnostics %s

func.func @f(%x: f32) {
  // expected-error @below {{'attn.sink' op expects to be inside an attn operation, is inside 'func.func'}}
  "attn.sink"(%x) : (f32) -> ()
  func.return
}

// -----

func.func @f(%x: bf16) {
  // expected-error @below {{'attn.sink' op expects a logit of type f32, got bf16}}
  "attn.sink"(%x) : (bf16) -> ()
  func.return
}

// -----

func.func @f(%q: tensor<?x?x4x64xbf16>, %scale: f32) {
  // expected-error @below {{'attn.mha' op expects at most one 'attn.sink' in score_mod, got 2}}
  %o, %lse = "attn.mha"(%q, %q, %q, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.sink"(%scale) : (f32) -> ()
    "attn.sink"(%scale) : (f32) -> ()
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.null}
    : (tensor<?x?x4x64xbf16>, tensor<?x?x4x64xbf16>, tensor<?x?x4x64xbf16>, f32)
      -> (tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>)
  func.return
}
