// RUN: attn-opt --split-input-file --verify-diagnostics %s

func.func @f(%turns: tensor<?x4x?xi32>) {
  // expected-error @below {{'attn.turns' op expects to be inside an attn operation, is inside 'func.func'}}
  "attn.turns"(%turns) : (tensor<?x4x?xi32>) -> ()
  func.return
}

// -----

func.func @f(%turns: tensor<?x4x?xi64>) {
  // expected-error @below {{'attn.turns' op expects turns to be a tensor [batch, heads, tiles] of i32, got tensor<?x4x?xi64>}}
  "attn.turns"(%turns) : (tensor<?x4x?xi64>) -> ()
  func.return
}

// -----

func.func @f(%turns: tensor<4x?xi32>) {
  // expected-error @below {{'attn.turns' op expects turns to be a tensor [batch, heads, tiles] of i32, got tensor<4x?xi32>}}
  "attn.turns"(%turns) : (tensor<4x?xi32>) -> ()
  func.return
}

// -----

func.func @f(%q: tensor<?x?x4x64xbf16>, %rows: tensor<?x4x?xf32>, %scale: f32, %turns: tensor<?x4x?xi32>) {
  // expected-error @below {{'attn.q_gradients' op expects no 'attn.turns' in score_mod}}
  %dq = "attn.q_gradients"(%q, %q, %q, %q, %rows, %rows, %scale) ({
  ^bb0(%score: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.turns"(%turns) : (tensor<?x4x?xi32>) -> ()
    "attn.yield"(%score) : (f32) -> ()
  }) {mask = #attn.null}
    : (tensor<?x?x4x64xbf16>, tensor<?x?x4x64xbf16>, tensor<?x?x4x64xbf16>, tensor<?x?x4x64xbf16>,
       tensor<?x4x?xf32>, tensor<?x4x?xf32>, f32) -> tensor<?x?x4x64xbf16>
  func.return
}

// -----

func.func @f(%q: tensor<?x?x4x64xbf16>, %rows: tensor<?x4x?xf32>, %scale: f32, %sums: tensor<?x?x4x64xf32>,
    %turns: tensor<?x4x?xi32>) {
  // expected-error @below {{'attn.gradients' op expects at most one 'attn.turns' in score_mod, got 2}}
  %dk, %dv = "attn.gradients"(%q, %q, %q, %q, %rows, %rows, %scale, %sums) ({
  ^bb0(%score: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.turns"(%turns) : (tensor<?x4x?xi32>) -> ()
    "attn.turns"(%turns) : (tensor<?x4x?xi32>) -> ()
    "attn.yield"(%score) : (f32) -> ()
  }) {mask = #attn.null}
    : (tensor<?x?x4x64xbf16>, tensor<?x?x4x64xbf16>, tensor<?x?x4x64xbf16>, tensor<?x?x4x64xbf16>,
       tensor<?x4x?xf32>, tensor<?x4x?xf32>, f32, tensor<?x?x4x64xf32>)
      -> (tensor<?x?x4x64xbf16>, tensor<?x?x4x64xbf16>)
  func.return
}
