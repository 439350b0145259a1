// RUN: %roundtrip | FileCheck %s
// RUN: attn-opt --split-input-file --cse %s | FileCheck %s --check-prefix=CSE

// Results for parts of the keys, and what puts them together.

// CHECK-LABEL: func.func @parts
// CHECK: "attn.mha"
// CHECK: {attn.partial, mask = #attn.causal}
// CHECK: -> (tensor<8x?x4x64xf32>, tensor<2x8x4x?xf32>)
func.func @parts(%q: tensor<2x?x4x64xbf16>, %k: tensor<2x?x2x64xbf16>, %scale: f32)
    -> (tensor<8x?x4x64xf32>, tensor<2x8x4x?xf32>) {
  %o, %lse = "attn.mha"(%q, %k, %k, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.causal, attn.partial}
    : (tensor<2x?x4x64xbf16>, tensor<2x?x2x64xbf16>, tensor<2x?x2x64xbf16>, f32)
      -> (tensor<8x?x4x64xf32>, tensor<2x8x4x?xf32>)
  func.return %o, %lse : tensor<8x?x4x64xf32>, tensor<2x8x4x?xf32>
}

// -----

// CHECK-LABEL: func.func @combine
// CHECK: "attn.combine"(%{{.*}}, %{{.*}}, %{{.*}}) {operandSegmentSizes = array<i32: 1, 1, 1>}
// CSE-LABEL: func.func @combine
// CSE-COUNT-1: "attn.combine"
// CSE-NOT: "attn.combine"
func.func @combine(%parts: tensor<?x?x?x4x64xf32>, %lses: tensor<?x?x4x?xf32>, %sinks: tensor<4xbf16>)
    -> (tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>) {
  %o, %first = "attn.combine"(%parts, %lses, %sinks) {operandSegmentSizes = array<i32: 1, 1, 1>}
    : (tensor<?x?x?x4x64xf32>, tensor<?x?x4x?xf32>, tensor<4xbf16>)
      -> (tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>)
  %second, %lse = "attn.combine"(%parts, %lses, %sinks) {operandSegmentSizes = array<i32: 1, 1, 1>}
    : (tensor<?x?x?x4x64xf32>, tensor<?x?x4x?xf32>, tensor<4xbf16>)
      -> (tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>
}

// -----

// LSEs that are sums of two numbers.

// CHECK-LABEL: func.func @sums
// CSE-LABEL: func.func @sums
// CHECK: "attn.combine"(%{{.*}}, %{{.*}}) {operandSegmentSizes = array<i32: 1, 1, 0>}
func.func @sums(%parts: tensor<?x?x?x4x64xf32>, %lses: tensor<2x?x?x4x?xf32>)
    -> (tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>) {
  %o, %lse = "attn.combine"(%parts, %lses) {operandSegmentSizes = array<i32: 1, 1, 0>}
    : (tensor<?x?x?x4x64xf32>, tensor<2x?x?x4x?xf32>) -> (tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>
}
