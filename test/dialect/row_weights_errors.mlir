// RUN: attn-opt --split-input-file --verify-diagnostics %s

func.func @f(%weights: tensor<?x4x?xf32>) {
  // expected-error @below {{'attn.row_weights' op expects to be inside an attn operation, is inside 'func.func'}}
  "attn.row_weights"(%weights) : (tensor<?x4x?xf32>) -> ()
  func.return
}

// -----

func.func @f(%weights: tensor<?x4x?xbf16>) {
  // expected-error @below {{'attn.row_weights' op expects weights to be a tensor [batch, heads, sq] or [heads, total] of f32, got tensor<?x4x?xbf16>}}
  "attn.row_weights"(%weights) : (tensor<?x4x?xbf16>) -> ()
  func.return
}
