// RUN: attn-opt --split-input-file --verify-diagnostics %s

func.func @f(%q: tensor<1x8x4x64xbf16>, %k: tensor<1x8x2x64xbf16>, %r: tensor<1x4x8xf32>, %s: f32) {
  // expected-error @below {{'attn.kv_gradients' op expects lse to be a tensor [batch, heads, sq], got f32}}
  %dk, %dv = "attn.kv_gradients"(%q, %k, %k, %q, %s, %r, %s) ({}) {mask = #attn.causal}
    : (tensor<1x8x4x64xbf16>, tensor<1x8x2x64xbf16>, tensor<1x8x2x64xbf16>, tensor<1x8x4x64xbf16>, f32,
       tensor<1x4x8xf32>, f32) -> (tensor<1x8x2x64xbf16>, tensor<1x8x2x64xbf16>)
  func.return
}

// -----

func.func @f(%q: tensor<1x8x4x64xf32>, %k: tensor<1x8x2x64xf32>, %r: tensor<1x4x8xf32>, %s: f32) {
  // expected-error @below {{'attn.kv_gradients' op expects q elements of type bf16, f16, got f32}}
  %dk, %dv = "attn.kv_gradients"(%q, %k, %k, %q, %r, %r, %s) ({}) {mask = #attn.causal}
    : (tensor<1x8x4x64xf32>, tensor<1x8x2x64xf32>, tensor<1x8x2x64xf32>, tensor<1x8x4x64xf32>,
       tensor<1x4x8xf32>, tensor<1x4x8xf32>, f32) -> (tensor<1x8x2x64xf32>, tensor<1x8x2x64xf32>)
  func.return
}

// -----

func.func @f(%q: tensor<1x8x4x64xbf16>, %k: tensor<1x8x2x64xbf16>, %o: tensor<1x8x4x64xf16>,
    %r: tensor<1x4x8xf32>, %s: f32) {
  // expected-error @below {{'attn.kv_gradients' op expects do elements of q's type bf16, got f16}}
  %dk, %dv = "attn.kv_gradients"(%q, %k, %k, %o, %r, %r, %s) ({}) {mask = #attn.causal}
    : (tensor<1x8x4x64xbf16>, tensor<1x8x2x64xbf16>, tensor<1x8x2x64xbf16>, tensor<1x8x4x64xf16>,
       tensor<1x4x8xf32>, tensor<1x4x8xf32>, f32) -> (tensor<1x8x2x64xbf16>, tensor<1x8x2x64xbf16>)
  func.return
}

// -----

func.func @f(%q: tensor<1x8x4x64xbf16>, %k: tensor<1x8x2x64xbf16>, %r: tensor<1x4x8xbf16>, %s: f32) {
  // expected-error @below {{'attn.kv_gradients' op expects lse elements of type f32, got bf16}}
  %dk, %dv = "attn.kv_gradients"(%q, %k, %k, %q, %r, %r, %s) ({}) {mask = #attn.causal}
    : (tensor<1x8x4x64xbf16>, tensor<1x8x2x64xbf16>, tensor<1x8x2x64xbf16>, tensor<1x8x4x64xbf16>,
       tensor<1x4x8xbf16>, tensor<1x4x8xbf16>, f32) -> (tensor<1x8x2x64xbf16>, tensor<1x8x2x64xbf16>)
  func.return
}

// -----

func.func @f(%q: tensor<1x8x4x64xbf16>, %k: tensor<1x8x2x64xbf16>, %r: tensor<1x4x8xf32>, %s: bf16) {
  // expected-error @below {{'attn.kv_gradients' op expects scale of type f32, got bf16}}
  %dk, %dv = "attn.kv_gradients"(%q, %k, %k, %q, %r, %r, %s) ({}) {mask = #attn.causal}
    : (tensor<1x8x4x64xbf16>, tensor<1x8x2x64xbf16>, tensor<1x8x2x64xbf16>, tensor<1x8x4x64xbf16>,
       tensor<1x4x8xf32>, tensor<1x4x8xf32>, bf16) -> (tensor<1x8x2x64xbf16>, tensor<1x8x2x64xbf16>)
  func.return
}

// -----

func.func @f(%q: tensor<1x8x4x64xbf16>, %k: tensor<1x8x2x64xbf16>, %r: tensor<1x4x9xf32>, %s: f32) {
  // expected-error @below {{'attn.kv_gradients' op expects sq of lse to be 8 as in q, got 9}}
  %dk, %dv = "attn.kv_gradients"(%q, %k, %k, %q, %r, %r, %s) ({}) {mask = #attn.causal}
    : (tensor<1x8x4x64xbf16>, tensor<1x8x2x64xbf16>, tensor<1x8x2x64xbf16>, tensor<1x8x4x64xbf16>,
       tensor<1x4x9xf32>, tensor<1x4x9xf32>, f32) -> (tensor<1x8x2x64xbf16>, tensor<1x8x2x64xbf16>)
  func.return
}

// -----

func.func @f(%q: tensor<1x8x4x64xbf16>, %k: tensor<1x8x3x64xbf16>, %r: tensor<1x4x8xf32>, %s: f32) {
  // expected-error @below {{'attn.kv_gradients' op expects heads to be a multiple of kv_heads, got 4 and 3}}
  %dk, %dv = "attn.kv_gradients"(%q, %k, %k, %q, %r, %r, %s) ({}) {mask = #attn.causal}
    : (tensor<1x8x4x64xbf16>, tensor<1x8x3x64xbf16>, tensor<1x8x3x64xbf16>, tensor<1x8x4x64xbf16>,
       tensor<1x4x8xf32>, tensor<1x4x8xf32>, f32) -> (tensor<1x8x3x64xbf16>, tensor<1x8x3x64xbf16>)
  func.return
}

// -----

func.func @f(%q: tensor<1x8x4x64xbf16>, %k: tensor<1x8x2x64xbf16>, %r: tensor<1x4x8xf32>, %s: f32) {
  // expected-error @below {{'attn.kv_gradients' op expects}}
  %dk, %dv = "attn.kv_gradients"(%q, %k, %k, %q, %r, %r, %s) ({}) {mask = 1 : i32}
    : (tensor<1x8x4x64xbf16>, tensor<1x8x2x64xbf16>, tensor<1x8x2x64xbf16>, tensor<1x8x4x64xbf16>,
       tensor<1x4x8xf32>, tensor<1x4x8xf32>, f32) -> (tensor<1x8x2x64xbf16>, tensor<1x8x2x64xbf16>)
  func.return
}

// -----

func.func @f(%q: tensor<1x8x4x64xbf16>, %k: tensor<1x8x2x64xbf16>, %r: tensor<1x4x8xf32>, %s: f32) {
  // expected-error @below {{'attn.q_gradients' op expects head_dim of dq to be 64 as in q, got 32}}
  %dq = "attn.q_gradients"(%q, %k, %k, %q, %r, %r, %s) ({}) {mask = #attn.causal}
    : (tensor<1x8x4x64xbf16>, tensor<1x8x2x64xbf16>, tensor<1x8x2x64xbf16>, tensor<1x8x4x64xbf16>,
       tensor<1x4x8xf32>, tensor<1x4x8xf32>, f32) -> tensor<1x8x4x32xbf16>
  func.return
}

// -----

func.func @modifier_of_integers(%q: tensor<?x?x4x64xbf16>, %r: tensor<?x4x?xf32>, %s: f32) -> tensor<?x?x4x64xbf16> {
  // expected-error @below {{'attn.q_gradients' op expects score_mod to yield f32, got i32}}
  %dq = "attn.q_gradients"(%q, %q, %q, %q, %r, %r, %s) ({
  ^bb0(%score: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%b) : (i32) -> ()
  }) {mask = #attn.causal}
    : (tensor<?x?x4x64xbf16>, tensor<?x?x4x64xbf16>, tensor<?x?x4x64xbf16>, tensor<?x?x4x64xbf16>,
       tensor<?x4x?xf32>, tensor<?x4x?xf32>, f32) -> tensor<?x?x4x64xbf16>
  func.return %dq : tensor<?x?x4x64xbf16>
}

// -----

func.func @sink_in_a_modifier(%q: tensor<?x?x4x64xbf16>, %r: tensor<?x4x?xf32>, %s: f32) -> tensor<?x?x4x64xbf16> {
  // expected-error @below {{'attn.q_gradients' op expects no 'attn.sink' in score_mod}}
  %dq = "attn.q_gradients"(%q, %q, %q, %q, %r, %r, %s) ({
  ^bb0(%score: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.sink"(%score) : (f32) -> ()
    "attn.yield"(%score) : (f32) -> ()
  }) {mask = #attn.causal}
    : (tensor<?x?x4x64xbf16>, tensor<?x?x4x64xbf16>, tensor<?x?x4x64xbf16>, tensor<?x?x4x64xbf16>,
       tensor<?x4x?xf32>, tensor<?x4x?xf32>, f32) -> tensor<?x?x4x64xbf16>
  func.return %dq : tensor<?x?x4x64xbf16>
}

// -----

func.func @two_slopes(%q: tensor<?x?x4x64xbf16>, %r: tensor<?x4x?xf32>, %s: f32) -> tensor<?x?x4x64xbf16> {
  // expected-error @below {{'attn.q_gradients' op expects at most one 'attn.slope' in score_mod, got 2}}
  %dq = "attn.q_gradients"(%q, %q, %q, %q, %r, %r, %s) ({
  ^bb0(%score: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.slope"(%score) : (f32) -> ()
    "attn.slope"(%score) : (f32) -> ()
    "attn.yield"(%score) : (f32) -> ()
  }) {mask = #attn.causal}
    : (tensor<?x?x4x64xbf16>, tensor<?x?x4x64xbf16>, tensor<?x?x4x64xbf16>, tensor<?x?x4x64xbf16>,
       tensor<?x4x?xf32>, tensor<?x4x?xf32>, f32) -> tensor<?x?x4x64xbf16>
  func.return %dq : tensor<?x?x4x64xbf16>
}
