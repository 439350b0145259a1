// RUN: attn-opt --split-input-file --verify-diagnostics %s

func.func @f(%rows: tensor<?x?x4xf32>) {
  // expected-error @below {{'attn.sum_rows' op expects rows to be a tensor [batch, sq, heads, 1], got tensor<?x?x4xf32>}}
  %sums = "attn.sum_rows"(%rows) : (tensor<?x?x4xf32>) -> tensor<?x4xf32>
  func.return
}

// -----

func.func @f(%rows: tensor<?x?x4x1xbf16>) {
  // expected-error @below {{'attn.sum_rows' op expects rows elements of type f32, got bf16}}
  %sums = "attn.sum_rows"(%rows) : (tensor<?x?x4x1xbf16>) -> tensor<?x4xf32>
  func.return
}

// -----

func.func @f(%rows: tensor<?x?x4x1xf32>) {
  // expected-error @below {{'attn.sum_rows' op expects sums elements of type f32, got f64}}
  %sums = "attn.sum_rows"(%rows) : (tensor<?x?x4x1xf32>) -> tensor<?x4xf64>
  func.return
}

// -----

func.func @f(%rows: tensor<?x?x4x2xf32>) {
  // expected-error @below {{'attn.sum_rows' op expects rows of static heads with one column, got tensor<?x?x4x2xf32>}}
  %sums = "attn.sum_rows"(%rows) : (tensor<?x?x4x2xf32>) -> tensor<?x4xf32>
  func.return
}

// -----

func.func @f(%rows: tensor<?x?x4x1xf32>) {
  // expected-error @below {{'attn.sum_rows' op expects heads of sums as in rows, got}}
  %sums = "attn.sum_rows"(%rows) : (tensor<?x?x4x1xf32>) -> tensor<?x3xf32>
  func.return
}
