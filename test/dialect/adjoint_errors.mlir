// RUN: attn-opt --split-input-file --verify-diagnostics %s

func.func @f(%value: f32, %sums: tensor<?x4xf32>, %i: i32) {
  // expected-error @below {{'attn.adjoint' op expects to be inside an attn operation, is inside 'func.func'}}
  "attn.adjoint"(%value, %sums, %i, %i)
    {mode = "store", operandSegmentSizes = array<i32: 1, 1, 2>, per = "row"}
    : (f32, tensor<?x4xf32>, i32, i32) -> ()
  func.return
}

// -----

func.func @f(%value: i32, %sums: tensor<4xf32>, %i: i32) {
  // expected-error @below {{'attn.adjoint' op expects a value of type f32, got i32}}
  "attn.adjoint"(%value, %sums, %i)
    {mode = "store", operandSegmentSizes = array<i32: 1, 1, 1>, per = "row"} : (i32, tensor<4xf32>, i32) -> ()
  func.return
}

// -----

func.func @f(%value: f32, %sums: tensor<4xbf16>, %i: i32) {
  // expected-error @below {{'attn.adjoint' op expects target to be a tensor of f32 with dimensions, got tensor<4xbf16>}}
  "attn.adjoint"(%value, %sums, %i)
    {mode = "store", operandSegmentSizes = array<i32: 1, 1, 1>, per = "row"} : (f32, tensor<4xbf16>, i32) -> ()
  func.return
}

// -----

func.func @f(%value: f32, %sums: tensor<?x4xf32>, %i: i32) {
  // expected-error @below {{'attn.adjoint' op expects 2 coordinates, got 1}}
  "attn.adjoint"(%value, %sums, %i)
    {mode = "store", operandSegmentSizes = array<i32: 1, 1, 1>, per = "row"} : (f32, tensor<?x4xf32>, i32) -> ()
  func.return
}

// -----

func.func @f(%value: f32, %sums: tensor<4xf32>, %i: i32) {
  // expected-error @below {{'attn.adjoint' op expects per of row or score, got column}}
  "attn.adjoint"(%value, %sums, %i)
    {mode = "store", operandSegmentSizes = array<i32: 1, 1, 1>, per = "column"} : (f32, tensor<4xf32>, i32) -> ()
  func.return
}

// -----

func.func @f(%value: f32, %sums: tensor<4xf32>, %i: i32) {
  // expected-error @below {{'attn.adjoint' op expects mode of store or add, got max}}
  "attn.adjoint"(%value, %sums, %i)
    {mode = "max", operandSegmentSizes = array<i32: 1, 1, 1>, per = "score"} : (f32, tensor<4xf32>, i32) -> ()
  func.return
}
