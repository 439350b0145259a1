// RUN: %roundtrip | FileCheck %s
// RUN: attn-opt --split-input-file --cse %s | FileCheck %s --check-prefix=CSE

// CHECK-LABEL: func.func @delta
// CHECK: "attn.delta"(%{{.*}}, %{{.*}}, %{{.*}}) {operandSegmentSizes = array<i32: 1, 1, 1, 0>}
// CSE-LABEL: func.func @delta
// CSE-COUNT-1: "attn.delta"
// CSE-NOT: "attn.delta"
func.func @delta(%o: tensor<?x?x4x64xbf16>, %lse: tensor<?x4x?xf32>)
    -> (tensor<?x4x?xf32>, tensor<?x4x?xf32>) {
  %one = "attn.delta"(%o, %o, %lse) {operandSegmentSizes = array<i32: 1, 1, 1, 0>}
    : (tensor<?x?x4x64xbf16>, tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>) -> tensor<?x4x?xf32>
  %other = "attn.delta"(%o, %o, %lse) {operandSegmentSizes = array<i32: 1, 1, 1, 0>}
    : (tensor<?x?x4x64xbf16>, tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>) -> tensor<?x4x?xf32>
  func.return %one, %other : tensor<?x4x?xf32>, tensor<?x4x?xf32>
}

// -----

// CHECK-LABEL: func.func @with_a_gradient_of_the_lse
// CSE-LABEL: func.func @with_a_gradient_of_the_lse
// CHECK: "attn.delta"(%{{.*}}, %{{.*}}, %{{.*}}, %{{.*}}) {operandSegmentSizes = array<i32: 1, 1, 1, 1>}
func.func @with_a_gradient_of_the_lse(%o: tensor<?x?x4x64xf16>, %lse: tensor<?x4x?xf32>)
    -> tensor<?x4x?xf32> {
  %delta = "attn.delta"(%o, %o, %lse, %lse) {operandSegmentSizes = array<i32: 1, 1, 1, 1>}
    : (tensor<?x?x4x64xf16>, tensor<?x?x4x64xf16>, tensor<?x4x?xf32>, tensor<?x4x?xf32>)
      -> tensor<?x4x?xf32>
  func.return %delta : tensor<?x4x?xf32>
}

// -----

// CHECK-LABEL: func.func @with_sinks
// CSE-LABEL: func.func @with_sinks
// CHECK: "attn.sink_delta"(%{{.*}}, %{{.*}}, %{{.*}}, %{{.*}}) {operandSegmentSizes = array<i32: 1, 1, 1, 1, 0>}
// CHECK: "attn.sum_rows"(%{{.*}}) : (tensor<?x?x4x1xf32>) -> tensor<?x4xf32>
// CSE-COUNT-1: "attn.sum_rows"
// CSE-NOT: "attn.sum_rows"
func.func @with_sinks(%o: tensor<?x?x4x64xbf16>, %lse: tensor<?x4x?xf32>, %sinks: tensor<4xbf16>)
    -> (tensor<?x4x?xf32>, tensor<?x4x?xf32>, tensor<?x4xf32>, tensor<?x4xf32>) {
  %delta, %weight, %parts = "attn.sink_delta"(%o, %o, %lse, %sinks)
      {operandSegmentSizes = array<i32: 1, 1, 1, 1, 0>}
    : (tensor<?x?x4x64xbf16>, tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>, tensor<4xbf16>)
      -> (tensor<?x4x?xf32>, tensor<?x4x?xf32>, tensor<?x?x4x1xf32>)
  %one = "attn.sum_rows"(%parts) : (tensor<?x?x4x1xf32>) -> tensor<?x4xf32>
  %other = "attn.sum_rows"(%parts) : (tensor<?x?x4x1xf32>) -> tensor<?x4xf32>
  func.return %delta, %weight, %one, %other
    : tensor<?x4x?xf32>, tensor<?x4x?xf32>, tensor<?x4xf32>, tensor<?x4xf32>
}
