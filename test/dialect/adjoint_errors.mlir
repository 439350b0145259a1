// RUN: attn-opt --split-input-file --verify-diagnostics %s

func.func @f(%value: f32, %rows: tensor<?x?x4x1xf32>) {
  // expected-error @below {{'attn.adjoint' op expects to be inside an attn operation, is inside 'func.func'}}
  "attn.adjoint"(%value, %rows) : (f32, tensor<?x?x4x1xf32>) -> ()
  func.return
}

// -----

func.func @f(%value: i32, %rows: tensor<?x?x4x1xf32>) {
  // expected-error @below {{'attn.adjoint' op expects a value of type f32, got i32}}
  "attn.adjoint"(%value, %rows) : (i32, tensor<?x?x4x1xf32>) -> ()
  func.return
}

// -----

func.func @f(%value: f32, %rows: tensor<?x4xf32>) {
  // expected-error @below {{'attn.adjoint' op expects rows to be a tensor [batch, sq, heads, 1] or [total, heads, 1] of f32, got tensor<?x4xf32>}}
  "attn.adjoint"(%value, %rows) : (f32, tensor<?x4xf32>) -> ()
  func.return
}
