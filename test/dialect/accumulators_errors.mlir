// RUN: attn-opt --split-input-file --verify-diagnostics %s

func.func @f() {
  // expected-error @below {{'attn.zero_rows' op expects sums elements of type f32, got bf16}}
  %sums = "attn.zero_rows"() : () -> tensor<?x?x4x64xbf16>
  func.return
}

// -----

func.func @f() {
  // expected-error @below {{'attn.zero_rows' op expects sums to be a tensor [batch, sq, heads, head_dim], got tensor<?x4x64xf32>}}
  %sums = "attn.zero_rows"() : () -> tensor<?x4x64xf32>
  func.return
}

// -----

func.func @f(%sums: tensor<?x?x4x64xf32>, %scale: f32) {
  // expected-error @below {{'attn.round_rows' op expects rounded elements of type bf16, f16, got f32}}
  %dq = "attn.round_rows"(%sums, %scale) : (tensor<?x?x4x64xf32>, f32) -> tensor<?x?x4x64xf32>
  func.return
}

// -----

func.func @f(%sums: tensor<?x?x4x64xf32>, %scale: f32) {
  // expected-error @below {{'attn.round_rows' op expects head_dim}}
  %dq = "attn.round_rows"(%sums, %scale) : (tensor<?x?x4x64xf32>, f32) -> tensor<?x?x4x32xbf16>
  func.return
}

// -----

func.func @f(%q: tensor<?x?x4x64xbf16>, %k: tensor<?x?x2x64xbf16>, %rows: tensor<?x4x?xf32>,
    %scale: f32, %sums: tensor<?x?x4x64xbf16>) {
  // expected-error @below {{'attn.gradients' op expects dq_sums elements of type f32, got bf16}}
  %dk, %dv = "attn.gradients"(%q, %k, %k, %q, %rows, %rows, %scale, %sums) ({}) {mask = #attn.causal}
    : (tensor<?x?x4x64xbf16>, tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, tensor<?x?x4x64xbf16>,
       tensor<?x4x?xf32>, tensor<?x4x?xf32>, f32, tensor<?x?x4x64xbf16>)
      -> (tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>)
  func.return
}
