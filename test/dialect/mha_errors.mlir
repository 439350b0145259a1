// RUN: attn-opt --split-input-file --verify-diagnostics %s

// Ranks.

func.func @f(%q: tensor<?x4x64xbf16>, %k: tensor<?x?x2x64xbf16>, %v: tensor<?x?x2x64xbf16>, %scale: f32) {
  // expected-error @below {{'attn.mha' op expects q to be a tensor [batch, sq, heads, head_dim], got tensor<?x4x64xbf16>}}
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.null}
    : (tensor<?x4x64xbf16>, tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, f32)
      -> (tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>)
  func.return
}

// -----

func.func @f(%q: tensor<?x?x4x64xbf16>, %k: f32, %v: tensor<?x?x2x64xbf16>, %scale: f32) {
  // expected-error @below {{'attn.mha' op expects k to be a tensor [batch, sk, kv_heads, head_dim], got f32}}
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.null}
    : (tensor<?x?x4x64xbf16>, f32, tensor<?x?x2x64xbf16>, f32)
      -> (tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>)
  func.return
}

// -----

func.func @f(%q: tensor<?x?x4x64xbf16>, %k: tensor<?x?x2x64xbf16>, %v: tensor<*xbf16>, %scale: f32) {
  // expected-error @below {{'attn.mha' op expects v to be a tensor [batch, sk, kv_heads, v_head_dim], got tensor<*xbf16>}}
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.null}
    : (tensor<?x?x4x64xbf16>, tensor<?x?x2x64xbf16>, tensor<*xbf16>, f32)
      -> (tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>)
  func.return
}

// -----

func.func @f(%q: tensor<?x?x4x64xbf16>, %k: tensor<?x?x2x64xbf16>, %v: tensor<?x?x2x64xbf16>, %scale: f32) {
  // expected-error @below {{'attn.mha' op expects o to be a tensor [batch, sq, heads, v_head_dim], got tensor<?x?x4x64x1xbf16>}}
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.null}
    : (tensor<?x?x4x64xbf16>, tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, f32)
      -> (tensor<?x?x4x64x1xbf16>, tensor<?x4x?xf32>)
  func.return
}

// -----

func.func @f(%q: tensor<?x?x4x64xbf16>, %k: tensor<?x?x2x64xbf16>, %v: tensor<?x?x2x64xbf16>, %scale: f32) {
  // expected-error @below {{'attn.mha' op expects lse to be a tensor [batch, heads, sq], got tensor<?x?x4x1xf32>}}
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.null}
    : (tensor<?x?x4x64xbf16>, tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, f32)
      -> (tensor<?x?x4x64xbf16>, tensor<?x?x4x1xf32>)
  func.return
}

// -----

// Element types.

func.func @f(%q: tensor<?x?x4x64xf64>, %k: tensor<?x?x2x64xbf16>, %v: tensor<?x?x2x64xbf16>, %scale: f32) {
  // expected-error @below {{'attn.mha' op expects q elements of type bf16, f16, f32, f8E4M3FN, f8E5M2, got f64}}
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.null}
    : (tensor<?x?x4x64xf64>, tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, f32)
      -> (tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>)
  func.return
}

// -----

func.func @f(%q: tensor<?x?x4x64xbf16>, %k: tensor<?x?x2x64xf16>, %v: tensor<?x?x2x64xbf16>, %scale: f32) {
  // expected-error @below {{'attn.mha' op expects k elements of q's type bf16 or of 8 bits, got f16}}
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.null}
    : (tensor<?x?x4x64xbf16>, tensor<?x?x2x64xf16>, tensor<?x?x2x64xbf16>, f32)
      -> (tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>)
  func.return
}

// -----

func.func @f(%q: tensor<?x?x4x64xbf16>, %k: tensor<?x?x2x64xbf16>, %v: tensor<?x?x2x64xf16>, %scale: f32) {
  // expected-error @below {{'attn.mha' op expects v elements of k's type bf16, got f16}}
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.null}
    : (tensor<?x?x4x64xbf16>, tensor<?x?x2x64xbf16>, tensor<?x?x2x64xf16>, f32)
      -> (tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>)
  func.return
}

// -----

func.func @f(%q: tensor<?x?x4x64xbf16>, %k: tensor<?x?x2x64xbf16>, %v: tensor<?x?x2x64xbf16>, %scale: f32) {
  // expected-error @below {{'attn.mha' op expects o elements of type bf16, f16, f32, got f64}}
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.null}
    : (tensor<?x?x4x64xbf16>, tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, f32)
      -> (tensor<?x?x4x64xf64>, tensor<?x4x?xf32>)
  func.return
}

// -----

func.func @f(%q: tensor<?x?x4x64xbf16>, %k: tensor<?x?x2x64xbf16>, %v: tensor<?x?x2x64xbf16>, %scale: f32) {
  // expected-error @below {{'attn.mha' op expects lse elements of type f32, got bf16}}
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.null}
    : (tensor<?x?x4x64xbf16>, tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, f32)
      -> (tensor<?x?x4x64xbf16>, tensor<?x4x?xbf16>)
  func.return
}

// -----

func.func @f(%q: tensor<?x?x4x64xbf16>, %k: tensor<?x?x2x64xbf16>, %v: tensor<?x?x2x64xbf16>, %scale: f64) {
  // expected-error @below {{'attn.mha' op expects scale of type f32, got f64}}
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.null}
    : (tensor<?x?x4x64xbf16>, tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, f64)
      -> (tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>)
  func.return
}

// -----

// Shapes.

func.func @f(%q: tensor<?x?x?x64xbf16>, %k: tensor<?x?x2x64xbf16>, %v: tensor<?x?x2x64xbf16>, %scale: f32) {
  // expected-error @below {{'attn.mha' op expects heads of q to be static, got tensor<?x?x?x64xbf16>}}
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.null}
    : (tensor<?x?x?x64xbf16>, tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, f32)
      -> (tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>)
  func.return
}

// -----

func.func @f(%q: tensor<?x?x4x?xbf16>, %k: tensor<?x?x2x64xbf16>, %v: tensor<?x?x2x64xbf16>, %scale: f32) {
  // expected-error @below {{'attn.mha' op expects head_dim of q to be static, got tensor<?x?x4x?xbf16>}}
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.null}
    : (tensor<?x?x4x?xbf16>, tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, f32)
      -> (tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>)
  func.return
}

// -----

func.func @f(%q: tensor<?x?x4x64xbf16>, %k: tensor<?x?x?x64xbf16>, %v: tensor<?x?x2x64xbf16>, %scale: f32) {
  // expected-error @below {{'attn.mha' op expects kv_heads of k to be static, got tensor<?x?x?x64xbf16>}}
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.null}
    : (tensor<?x?x4x64xbf16>, tensor<?x?x?x64xbf16>, tensor<?x?x2x64xbf16>, f32)
      -> (tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>)
  func.return
}

// -----

func.func @f(%q: tensor<?x?x4x64xbf16>, %k: tensor<?x?x2x64xbf16>, %v: tensor<?x?x2x?xbf16>, %scale: f32) {
  // expected-error @below {{'attn.mha' op expects v_head_dim of v to be static, got tensor<?x?x2x?xbf16>}}
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.null}
    : (tensor<?x?x4x64xbf16>, tensor<?x?x2x64xbf16>, tensor<?x?x2x?xbf16>, f32)
      -> (tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>)
  func.return
}

// -----

func.func @f(%q: tensor<?x?x0x64xbf16>, %k: tensor<?x?x2x64xbf16>, %v: tensor<?x?x2x64xbf16>, %scale: f32) {
  // expected-error @below {{'attn.mha' op expects heads of q to be at least 1, got 0}}
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.null}
    : (tensor<?x?x0x64xbf16>, tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, f32)
      -> (tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>)
  func.return
}

// -----

func.func @f(%q: tensor<?x?x4x64xbf16>, %k: tensor<?x?x0x64xbf16>, %v: tensor<?x?x2x64xbf16>, %scale: f32) {
  // expected-error @below {{'attn.mha' op expects kv_heads of k to be at least 1, got 0}}
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.null}
    : (tensor<?x?x4x64xbf16>, tensor<?x?x0x64xbf16>, tensor<?x?x2x64xbf16>, f32)
      -> (tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>)
  func.return
}

// -----

func.func @f(%q: tensor<?x?x4x64xbf16>, %k: tensor<?x?x2x128xbf16>, %v: tensor<?x?x2x64xbf16>, %scale: f32) {
  // expected-error @below {{'attn.mha' op expects head_dim of k to be 64 as in q, got 128}}
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.null}
    : (tensor<?x?x4x64xbf16>, tensor<?x?x2x128xbf16>, tensor<?x?x2x64xbf16>, f32)
      -> (tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>)
  func.return
}

// -----

func.func @f(%q: tensor<?x?x4x64xbf16>, %k: tensor<?x?x2x64xbf16>, %v: tensor<?x?x4x64xbf16>, %scale: f32) {
  // expected-error @below {{'attn.mha' op expects kv_heads of v to be 2 as in k, got 4}}
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.null}
    : (tensor<?x?x4x64xbf16>, tensor<?x?x2x64xbf16>, tensor<?x?x4x64xbf16>, f32)
      -> (tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>)
  func.return
}

// -----

func.func @f(%q: tensor<?x?x4x64xbf16>, %k: tensor<?x?x2x64xbf16>, %v: tensor<?x?x2x32xbf16>, %scale: f32) {
  // expected-error @below {{'attn.mha' op expects v_head_dim of o to be 32 as in v, got 64}}
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.null}
    : (tensor<?x?x4x64xbf16>, tensor<?x?x2x64xbf16>, tensor<?x?x2x32xbf16>, f32)
      -> (tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>)
  func.return
}

// -----

func.func @f(%q: tensor<?x?x4x64xbf16>, %k: tensor<?x?x2x64xbf16>, %v: tensor<?x?x2x64xbf16>, %scale: f32) {
  // expected-error @below {{'attn.mha' op expects heads of lse to be 4 as in q, got 8}}
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.null}
    : (tensor<?x?x4x64xbf16>, tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, f32)
      -> (tensor<?x?x4x64xbf16>, tensor<?x8x?xf32>)
  func.return
}

// -----

func.func @f(%q: tensor<?x?x4x64xbf16>, %k: tensor<3x?x2x64xbf16>, %v: tensor<2x?x2x64xbf16>, %scale: f32) {
  // expected-error @below {{'attn.mha' op expects batch of v to be 3 as in k, got 2}}
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.null}
    : (tensor<?x?x4x64xbf16>, tensor<3x?x2x64xbf16>, tensor<2x?x2x64xbf16>, f32)
      -> (tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>)
  func.return
}

// -----

func.func @f(%q: tensor<?x?x4x64xbf16>, %k: tensor<?x7x2x64xbf16>, %v: tensor<?x8x2x64xbf16>, %scale: f32) {
  // expected-error @below {{'attn.mha' op expects sk of v to be 7 as in k, got 8}}
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.null}
    : (tensor<?x?x4x64xbf16>, tensor<?x7x2x64xbf16>, tensor<?x8x2x64xbf16>, f32)
      -> (tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>)
  func.return
}

// -----

func.func @f(%q: tensor<?x5x4x64xbf16>, %k: tensor<?x?x2x64xbf16>, %v: tensor<?x?x2x64xbf16>, %scale: f32) {
  // expected-error @below {{'attn.mha' op expects sq of lse to be 5 as in q, got 6}}
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.null}
    : (tensor<?x5x4x64xbf16>, tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, f32)
      -> (tensor<?x?x4x64xbf16>, tensor<?x4x6xf32>)
  func.return
}

// -----

func.func @f(%q: tensor<?x?x4x64xbf16>, %k: tensor<?x?x3x64xbf16>, %v: tensor<?x?x3x64xbf16>, %scale: f32) {
  // expected-error @below {{'attn.mha' op expects heads to be a multiple of kv_heads, got 4 and 3}}
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.null}
    : (tensor<?x?x4x64xbf16>, tensor<?x?x3x64xbf16>, tensor<?x?x3x64xbf16>, f32)
      -> (tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>)
  func.return
}

// -----

// Mask.

func.func @f(%q: tensor<?x?x4x64xbf16>, %k: tensor<?x?x2x64xbf16>, %v: tensor<?x?x2x64xbf16>, %scale: f32) {
  // expected-error @below {{'attn.mha' op expects mask to be one of #attn.null, #attn.causal, #attn.window, #attn.chunked, #attn.prefix, #attn.and, #attn.or, #attn.not, got "causal"}}
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = "causal"}
    : (tensor<?x?x4x64xbf16>, tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, f32)
      -> (tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>)
  func.return
}

// -----

func.func @f(%q: tensor<?x?x4x64xbf16>, %k: tensor<?x?x2x64xbf16>, %v: tensor<?x?x2x64xbf16>, %scale: f32) {
  // expected-error @below {{'attn.mha' op expects masks within its mask, got 3 : i64}}
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.and<#attn.causal, 3>}
    : (tensor<?x?x4x64xbf16>, tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, f32)
      -> (tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>)
  func.return
}

// -----

func.func @f(%q: tensor<?x?x4x64xbf16>, %k: tensor<?x?x2x64xbf16>, %v: tensor<?x?x2x64xbf16>, %scale: f32) {
  // expected-error @below {{'attn.mha' op expects a mask that exists: chunk size must be an integer from 1 to 1073741824, got 0}}
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.not<#attn.chunked<0>>}
    : (tensor<?x?x4x64xbf16>, tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, f32)
      -> (tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>)
  func.return
}

// -----

func.func @f(%q: tensor<?x?x4x64xbf16>, %k: tensor<?x?x2x64xbf16>, %v: tensor<?x?x2x64xbf16>, %scale: f32) {
  // expected-error @below {{'attn.mha' op expects attribute 'mask'}}
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%s) : (f32) -> ()
  }) {}
    : (tensor<?x?x4x64xbf16>, tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, f32)
      -> (tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>)
  func.return
}

// -----

// Score modifier.

func.func @f(%q: tensor<?x?x4x64xbf16>, %k: tensor<?x?x2x64xbf16>, %v: tensor<?x?x2x64xbf16>, %scale: f32) {
  // expected-error @below {{'attn.mha' op expects score_mod to have one block, got 0}}
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({}) {mask = #attn.null}
    : (tensor<?x?x4x64xbf16>, tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, f32)
      -> (tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>)
  func.return
}

// -----

func.func @f(%q: tensor<?x?x4x64xbf16>, %k: tensor<?x?x2x64xbf16>, %v: tensor<?x?x2x64xbf16>, %scale: f32) {
  // expected-error @below {{'attn.mha' op expects score_mod to have one block, got 2}}
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    cf.br ^bb1
  ^bb1:
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.null}
    : (tensor<?x?x4x64xbf16>, tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, f32)
      -> (tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>)
  func.return
}

// -----

func.func @f(%q: tensor<?x?x4x64xbf16>, %k: tensor<?x?x2x64xbf16>, %v: tensor<?x?x2x64xbf16>, %scale: f32) {
  // expected-error @below {{'attn.mha' op expects score_mod arguments (f32, i32, i32, i32, i32), got (f32, i32)}}
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%s: f32, %b: i32):
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.null}
    : (tensor<?x?x4x64xbf16>, tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, f32)
      -> (tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>)
  func.return
}

// -----

func.func @f(%q: tensor<?x?x4x64xbf16>, %k: tensor<?x?x2x64xbf16>, %v: tensor<?x?x2x64xbf16>, %scale: f32) {
  // expected-error @below {{'attn.mha' op expects score_mod arguments (f32, i32, i32, i32, i32), got (f32, i32, i32, i32, index)}}
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: index):
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.null}
    : (tensor<?x?x4x64xbf16>, tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, f32)
      -> (tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>)
  func.return
}

// -----

func.func @f(%q: tensor<?x?x4x64xbf16>, %k: tensor<?x?x2x64xbf16>, %v: tensor<?x?x2x64xbf16>, %scale: f32) {
  // expected-error @below {{'attn.mha' op expects score_mod to end with 'attn.yield', got 'llvm.unreachable'}}
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    llvm.unreachable
  }) {mask = #attn.null}
    : (tensor<?x?x4x64xbf16>, tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, f32)
      -> (tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>)
  func.return
}

// -----

func.func @f(%q: tensor<?x?x4x64xbf16>, %k: tensor<?x?x2x64xbf16>, %v: tensor<?x?x2x64xbf16>, %scale: f32) {
  // expected-error @below {{'attn.mha' op expects score_mod to yield f32, got i32}}
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%b) : (i32) -> ()
  }) {mask = #attn.null}
    : (tensor<?x?x4x64xbf16>, tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, f32)
      -> (tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>)
  func.return
}

// -----

// What the fields declare.

func.func @f(%x: f32) {
  // expected-error @below {{op expects exactly 4 operands, but got 1}}
  %o, %lse = "attn.mha"(%x) ({}) {mask = #attn.null} : (f32) -> (f32, f32)
  func.return
}

// -----

// `attn.yield` on its own.

func.func @f(%s: f32) {
  // expected-error @below {{'attn.yield' op expects to be inside an attn operation, is inside 'func.func'}}
  "attn.yield"(%s) : (f32) -> ()
}
