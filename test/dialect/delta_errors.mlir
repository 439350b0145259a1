// RUN: attn-opt --split-input-file --verify-diagnostics %s

func.func @f(%o: tensor<1x8x4x64xbf16>, %lse: tensor<1x4x8xf32>) {
  // expected-error @below {{'attn.delta' op expects at most one tensor as dlse, got 2}}
  %delta = "attn.delta"(%o, %o, %lse, %lse, %lse) {operandSegmentSizes = array<i32: 1, 1, 1, 2>}
    : (tensor<1x8x4x64xbf16>, tensor<1x8x4x64xbf16>, tensor<1x4x8xf32>, tensor<1x4x8xf32>,
       tensor<1x4x8xf32>) -> tensor<1x4x8xf32>
  func.return
}

// -----

func.func @f(%o: tensor<1x8x4x64xbf16>, %lse: tensor<4x8xf32>) {
  // expected-error @below {{'attn.delta' op expects lse to be a tensor [batch, heads, sq], got tensor<4x8xf32>}}
  %delta = "attn.delta"(%o, %o, %lse) {operandSegmentSizes = array<i32: 1, 1, 1, 0>}
    : (tensor<1x8x4x64xbf16>, tensor<1x8x4x64xbf16>, tensor<4x8xf32>) -> tensor<1x4x8xf32>
  func.return
}

// -----

func.func @f(%o: tensor<1x8x4x64xf32>, %lse: tensor<1x4x8xf32>) {
  // expected-error @below {{'attn.delta' op expects o elements of type bf16, f16, got f32}}
  %delta = "attn.delta"(%o, %o, %lse) {operandSegmentSizes = array<i32: 1, 1, 1, 0>}
    : (tensor<1x8x4x64xf32>, tensor<1x8x4x64xf32>, tensor<1x4x8xf32>) -> tensor<1x4x8xf32>
  func.return
}

// -----

func.func @f(%o: tensor<1x8x4x64xbf16>, %do: tensor<1x8x4x64xf16>, %lse: tensor<1x4x8xf32>) {
  // expected-error @below {{'attn.delta' op expects do elements of type bf16, got f16}}
  %delta = "attn.delta"(%o, %do, %lse) {operandSegmentSizes = array<i32: 1, 1, 1, 0>}
    : (tensor<1x8x4x64xbf16>, tensor<1x8x4x64xf16>, tensor<1x4x8xf32>) -> tensor<1x4x8xf32>
  func.return
}

// -----

func.func @f(%o: tensor<1x8x4x64xbf16>, %lse: tensor<1x4x9xf32>) {
  // expected-error @below {{'attn.delta' op expects sq of lse to be 8 as in o, got 9}}
  %delta = "attn.delta"(%o, %o, %lse) {operandSegmentSizes = array<i32: 1, 1, 1, 0>}
    : (tensor<1x8x4x64xbf16>, tensor<1x8x4x64xbf16>, tensor<1x4x9xf32>) -> tensor<1x4x8xf32>
  func.return
}

// -----

func.func @f(%o: tensor<1x8x4x?xbf16>, %lse: tensor<1x4x8xf32>) {
  // expected-error @below {{'attn.delta' op expects v_head_dim of o to be static, got tensor<1x8x4x?xbf16>}}
  %delta = "attn.delta"(%o, %o, %lse) {operandSegmentSizes = array<i32: 1, 1, 1, 0>}
    : (tensor<1x8x4x?xbf16>, tensor<1x8x4x?xbf16>, tensor<1x4x8xf32>) -> tensor<1x4x8xf32>
  func.return
}

// -----

func.func @f(%o: tensor<1x8x4x64xbf16>, %lse: tensor<1x4x8xf32>, %sinks: tensor<3xf32>) {
  // expected-error @below {{'attn.sink_delta' op expects heads of sinks to be 4 as in o, got 3}}
  %delta, %weight, %parts = "attn.sink_delta"(%o, %o, %lse, %sinks)
      {operandSegmentSizes = array<i32: 1, 1, 1, 1, 0>}
    : (tensor<1x8x4x64xbf16>, tensor<1x8x4x64xbf16>, tensor<1x4x8xf32>, tensor<3xf32>)
      -> (tensor<1x4x8xf32>, tensor<1x4x8xf32>, tensor<1x8x4x1xf32>)
  func.return
}

// -----

func.func @f(%o: tensor<1x8x4x64xbf16>, %lse: tensor<1x4x8xf32>, %sinks: tensor<4xf64>) {
  // expected-error @below {{'attn.sink_delta' op expects sinks elements of type f32, bf16, f16, got f64}}
  %delta, %weight, %parts = "attn.sink_delta"(%o, %o, %lse, %sinks)
      {operandSegmentSizes = array<i32: 1, 1, 1, 1, 0>}
    : (tensor<1x8x4x64xbf16>, tensor<1x8x4x64xbf16>, tensor<1x4x8xf32>, tensor<4xf64>)
      -> (tensor<1x4x8xf32>, tensor<1x4x8xf32>, tensor<1x8x4x1xf32>)
  func.return
}
