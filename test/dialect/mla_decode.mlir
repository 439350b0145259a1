// RUN: %roundtrip | FileCheck %s
// RUN: attn-opt --split-input-file --cse %s | FileCheck %s --check-prefix=CSE

// Latent attention after absorption: of rows of sequences, and of rows that lists name.

// CHECK-LABEL: func.func @dense
// CHECK: "attn.mla_decode"(%{{.*}}, %{{.*}}, %{{.*}}) {mask = #attn.causal, operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0, 0, 0, 0>}
// CSE-LABEL: func.func @dense
// CSE-COUNT-1: "attn.mla_decode"
// CSE-NOT: "attn.mla_decode"
func.func @dense(%q: tensor<?x?x64x576xbf16>, %kv: tensor<?x?x1x576xbf16>, %scale: f32)
    -> (tensor<?x?x64x512xbf16>, tensor<?x64x?xf32>) {
  %o, %lse = "attn.mla_decode"(%q, %kv, %scale)
    {mask = #attn.causal, operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0, 0, 0, 0>}
    : (tensor<?x?x64x576xbf16>, tensor<?x?x1x576xbf16>, f32)
      -> (tensor<?x?x64x512xbf16>, tensor<?x64x?xf32>)
  %again, %lse2 = "attn.mla_decode"(%q, %kv, %scale)
    {mask = #attn.causal, operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0, 0, 0, 0>}
    : (tensor<?x?x64x576xbf16>, tensor<?x?x1x576xbf16>, f32)
      -> (tensor<?x?x64x512xbf16>, tensor<?x64x?xf32>)
  func.return %again, %lse : tensor<?x?x64x512xbf16>, tensor<?x64x?xf32>
}

// -----

// CHECK-LABEL: func.func @listed
// CSE-LABEL: func.func @listed
// CHECK: "attn.mla_decode"{{.*}} {mask = #attn.null, operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 1, 0, 0, 0>}
func.func @listed(%q: tensor<?x?x64x576xbf16>, %kv: tensor<?x576xbf16>, %scale: f32, %indices: tensor<?x?x?xi32>, %topk_length: tensor<?x?xi32>, %sinks: tensor<64xf32>)
    -> (tensor<?x?x64x512xbf16>, tensor<?x64x?xf32>) {
  %o, %lse = "attn.mla_decode"(%q, %kv, %scale, %indices, %topk_length, %sinks)
    {mask = #attn.null, operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 1, 0, 0, 0>}
    : (tensor<?x?x64x576xbf16>, tensor<?x576xbf16>, f32, tensor<?x?x?xi32>, tensor<?x?xi32>, tensor<64xf32>)
      -> (tensor<?x?x64x512xbf16>, tensor<?x64x?xf32>)
  func.return %o, %lse : tensor<?x?x64x512xbf16>, tensor<?x64x?xf32>
}

// -----

// CHECK-LABEL: func.func @parts
// CSE-LABEL: func.func @parts
// CHECK: "attn.mla_decode"{{.*}} {attn.partial, mask = #attn.null
func.func @parts(%q: tensor<?x?x64x576xbf16>, %kv: tensor<?x?x1x576xbf16>, %scale: f32)
    -> (tensor<?x?x64x512xf32>, tensor<2x?x64x?xf32>) {
  %o, %lse = "attn.mla_decode"(%q, %kv, %scale)
    {attn.partial, mask = #attn.null, operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0, 0, 0, 0>}
    : (tensor<?x?x64x576xbf16>, tensor<?x?x1x576xbf16>, f32)
      -> (tensor<?x?x64x512xf32>, tensor<2x?x64x?xf32>)
  func.return %o, %lse : tensor<?x?x64x512xf32>, tensor<2x?x64x?xf32>
}

// -----

// CHECK-LABEL: func.func @joined
// CSE-LABEL: func.func @joined
// CHECK: "attn.mla_decode"{{.*}} {mask = #attn.null, operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 1, 1, 1, 1>}
func.func @joined(%q: tensor<?x?x64x512xf16>, %kv: tensor<?x?x1x512xf16>, %scale: f32, %sinks: tensor<64xf32>, %sums: tensor<?x?x16x16x32xf32>, %extremes: tensor<2x?x?x4x16xf32>, %arrived: tensor<?x4xi32>)
    -> (tensor<?x?x64x512xf16>, tensor<?x64x?xf32>) {
  %o, %lse = "attn.mla_decode"(%q, %kv, %scale, %sinks, %sums, %extremes, %arrived)
    {mask = #attn.null, operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 1, 1, 1, 1>}
    : (tensor<?x?x64x512xf16>, tensor<?x?x1x512xf16>, f32, tensor<64xf32>, tensor<?x?x16x16x32xf32>, tensor<2x?x?x4x16xf32>, tensor<?x4xi32>)
      -> (tensor<?x?x64x512xf16>, tensor<?x64x?xf32>)
  func.return %o, %lse : tensor<?x?x64x512xf16>, tensor<?x64x?xf32>
}
