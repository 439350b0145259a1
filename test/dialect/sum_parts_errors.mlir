// RUN: attn-opt --split-input-file --verify-diagnostics %s

func.func @f(%parts: tensor<?x?x4xf32>) {
  // expected-error @below {{'attn.sum_parts' op expects parts to be a tensor [parts, elements], got tensor<?x?x4xf32>}}
  %sums = "attn.sum_parts"(%parts) : (tensor<?x?x4xf32>) -> tensor<?xf32>
  func.return
}

// -----

func.func @f(%parts: tensor<?x?xbf16>) {
  // expected-error @below {{'attn.sum_parts' op expects parts elements of type f32, got bf16}}
  %sums = "attn.sum_parts"(%parts) : (tensor<?x?xbf16>) -> tensor<?xf32>
  func.return
}

// -----

func.func @f(%parts: tensor<?x?xf32>) {
  // expected-error @below {{'attn.sum_parts' op expects sums of type f32, bf16, f16, got f64}}
  %sums = "attn.sum_parts"(%parts) : (tensor<?x?xf32>) -> tensor<?xf64>
  func.return
}
