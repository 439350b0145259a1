// RUN: %roundtrip | FileCheck %s
// RUN: attn-opt --split-input-file --cse %s | FileCheck %s --check-prefix=CSE

// Latent attention over listed rows of a cache.

// CHECK-LABEL: func.func @sparse
// CHECK: "attn.sparse_mla"(%{{.*}}, %{{.*}}, %{{.*}}, %{{.*}}, %{{.*}}, %{{.*}}) {operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 1, 0, 0>}
// CSE-LABEL: func.func @sparse
// CSE-COUNT-1: "attn.sparse_mla"
// CSE-NOT: "attn.sparse_mla"
func.func @sparse(%q: tensor<?x64x576xbf16>, %kv: tensor<?x576xbf16>, %indices: tensor<?x?xi32>, %scale: f32,
                  %lengths: tensor<?xi32>, %sinks: tensor<64xf32>)
    -> (tensor<?x64x512xbf16>, tensor<?x64xf32>) {
  %o, %lse, %max = "attn.sparse_mla"(%q, %kv, %indices, %scale, %lengths, %sinks)
    {operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 1, 0, 0>}
    : (tensor<?x64x576xbf16>, tensor<?x576xbf16>, tensor<?x?xi32>, f32, tensor<?xi32>, tensor<64xf32>)
      -> (tensor<?x64x512xbf16>, tensor<?x64xf32>, tensor<?x64xf32>)
  %again, %lse2, %max2 = "attn.sparse_mla"(%q, %kv, %indices, %scale, %lengths, %sinks)
    {operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 1, 0, 0>}
    : (tensor<?x64x576xbf16>, tensor<?x576xbf16>, tensor<?x?xi32>, f32, tensor<?xi32>, tensor<64xf32>)
      -> (tensor<?x64x512xbf16>, tensor<?x64xf32>, tensor<?x64xf32>)
  func.return %again, %lse : tensor<?x64x512xbf16>, tensor<?x64xf32>
}

// -----

// CHECK-LABEL: func.func @paged
// CSE-LABEL: func.func @paged
// CHECK: "attn.sparse_mla"{{.*}} {attn.page_size = 61 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0, 1, 1>}
func.func @paged(%q: tensor<?x8x512xbf16>, %kv: tensor<?x512xbf16>, %indices: tensor<?x?xi32>, %scale: f32,
                 %table: tensor<?x?xi32>, %sequences: tensor<?xi32>) -> tensor<?x8x512xbf16> {
  %o, %lse, %max = "attn.sparse_mla"(%q, %kv, %indices, %scale, %table, %sequences)
    {attn.page_size = 61 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0, 1, 1>}
    : (tensor<?x8x512xbf16>, tensor<?x512xbf16>, tensor<?x?xi32>, f32, tensor<?x?xi32>, tensor<?xi32>)
      -> (tensor<?x8x512xbf16>, tensor<?x8xf32>, tensor<?x8xf32>)
  func.return %o : tensor<?x8x512xbf16>
}
