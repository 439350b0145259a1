// RUN: attn-opt --split-input-file --verify-diagnostics %s

func.func @f() {
  // expected-error @below {{'attn.zero_rows' op expects accum elements of type f32, got bf16}}
  %accum = "attn.zero_rows"() : () -> tensor<?x?x4x64xbf16>
  func.return
}

// -----

func.func @f() {
  // expected-error @below {{'attn.zero_rows' op expects accum to be a tensor [batch, sq, heads, head_dim], got tensor<?x4x64xf32>}}
  %accum = "attn.zero_rows"() : () -> tensor<?x4x64xf32>
  func.return
}

// -----

func.func @f(%accum: tensor<?x?x4x64xf32>, %scale: f32) {
  // expected-error @below {{'attn.round_rows' op expects rounded elements of type bf16, f16, got f32}}
  %dq = "attn.round_rows"(%accum, %scale) : (tensor<?x?x4x64xf32>, f32) -> tensor<?x?x4x64xf32>
  func.return
}

// -----

func.func @f(%accum: tensor<?x?x4x64xf32>, %scale: f32) {
  // expected-error @below {{'attn.round_rows' op expects head_dim}}
  %dq = "attn.round_rows"(%accum, %scale) : (tensor<?x?x4x64xf32>, f32) -> tensor<?x?x4x32xbf16>
  func.return
}

// -----

func.func @f(%q: tensor<?x?x4x64xbf16>, %k: tensor<?x?x2x64xbf16>, %rows: tensor<?x4x?xf32>,
    %scale: f32, %accum: tensor<?x?x4x64xbf16>) {
  // expected-error @below {{'attn.gradients' op expects dq_accum elements of type f32, got bf16}}
  %dk, %dv = "attn.gradients"(%q, %k, %k, %q, %rows, %rows, %scale, %accum) ({}) {mask = #attn.causal}
    : (tensor<?x?x4x64xbf16>, tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, tensor<?x?x4x64xbf16>,
       tensor<?x4x?xf32>, tensor<?x4x?xf32>, f32, tensor<?x?x4x64xbf16>)
      -> (tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>)
  func.return
}

// -----

// What scores pass on to captured tensors is written by kernels with the same bits every time.

func.func @f(%q: tensor<?x?x4x64xbf16>, %k: tensor<?x?x2x64xbf16>, %rows: tensor<?x4x?xf32>,
    %scale: f32, %accum: tensor<?x?x4x64xf32>, %memory: tensor<4xf32>) {
  // expected-error @below {{'attn.gradients' op expects no 'attn.adjoint' in score_mod}}
  %dk, %dv = "attn.gradients"(%q, %k, %k, %q, %rows, %rows, %scale, %accum) ({
  ^bb0(%score: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.adjoint"(%score, %memory, %h)
      {mode = "store", operandSegmentSizes = array<i32: 1, 1, 1>, per = "row"} : (f32, tensor<4xf32>, i32) -> ()
    "attn.yield"(%score) : (f32) -> ()
  }) {mask = #attn.causal}
    : (tensor<?x?x4x64xbf16>, tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, tensor<?x?x4x64xbf16>,
       tensor<?x4x?xf32>, tensor<?x4x?xf32>, f32, tensor<?x?x4x64xf32>)
      -> (tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>)
  func.return
}
