// RUN: %roundtrip | FileCheck %s
// RUN: attn-opt --cse %s | FileCheck %s --check-prefix=CSE

// Scales of ragged queries and of dense keys; two views of the same are one.

// CHECK-LABEL: func.func @scaled
// CHECK: %[[ROWS:.*]] = "attn.ragged"
// CHECK: %[[Q:.*]] = "attn.scaled"(%[[ROWS]], %{{.*}}) {block = array<i32: 0, 64>} : (!attn.view<tensor<?x?x4x64xf8E4M3FN>, tensor<?x4x64xf8E4M3FN>>, tensor<?x?xf32>) -> !attn.view<tensor<?x?x4x64xf8E4M3FN>, tensor<?x4x64xf8E4M3FN>>
// CHECK: %[[K:.*]] = "attn.scaled"(%{{.*}}, %{{.*}}) {block = array<i32: 0, 64>} : (tensor<?x?x2x64xf8E4M3FN>, tensor<?x?xf32>) -> !attn.view<tensor<?x?x2x64xf8E4M3FN>, tensor<?x?x2x64xf8E4M3FN>>
// CHECK: "attn.mha"(%[[Q]], %[[K]],

// CSE-LABEL: func.func @scaled
// CSE-COUNT-2: "attn.scaled"
// CSE-NOT: "attn.scaled"
// CSE: return
func.func @scaled(%q: tensor<?x4x64xf8E4M3FN>, %k: tensor<?x?x2x64xf8E4M3FN>, %offsets: tensor<?xi32>,
                  %longest: i32, %scales: tensor<?x?xf32>, %scale: f32)
    -> (tensor<?x4x64xbf16>, tensor<4x?xf32>) {
  %rows = "attn.ragged"(%q, %offsets, %longest) : (tensor<?x4x64xf8E4M3FN>, tensor<?xi32>, i32)
    -> !attn.view<tensor<?x?x4x64xf8E4M3FN>, tensor<?x4x64xf8E4M3FN>>
  %queries = "attn.scaled"(%rows, %scales) {block = array<i32: 0, 64>}
    : (!attn.view<tensor<?x?x4x64xf8E4M3FN>, tensor<?x4x64xf8E4M3FN>>, tensor<?x?xf32>)
      -> !attn.view<tensor<?x?x4x64xf8E4M3FN>, tensor<?x4x64xf8E4M3FN>>
  %keys = "attn.scaled"(%k, %scales) {block = array<i32: 0, 64>} : (tensor<?x?x2x64xf8E4M3FN>, tensor<?x?xf32>)
    -> !attn.view<tensor<?x?x2x64xf8E4M3FN>, tensor<?x?x2x64xf8E4M3FN>>
  %values = "attn.scaled"(%k, %scales) {block = array<i32: 0, 64>} : (tensor<?x?x2x64xf8E4M3FN>, tensor<?x?xf32>)
    -> !attn.view<tensor<?x?x2x64xf8E4M3FN>, tensor<?x?x2x64xf8E4M3FN>>
  %o, %lse = "attn.mha"(%queries, %keys, %values, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.causal}
    : (!attn.view<tensor<?x?x4x64xf8E4M3FN>, tensor<?x4x64xf8E4M3FN>>,
       !attn.view<tensor<?x?x2x64xf8E4M3FN>, tensor<?x?x2x64xf8E4M3FN>>,
       !attn.view<tensor<?x?x2x64xf8E4M3FN>, tensor<?x?x2x64xf8E4M3FN>>, f32)
      -> (tensor<?x4x64xbf16>, tensor<4x?xf32>)
  func.return %o, %lse : tensor<?x4x64xbf16>, tensor<4x?xf32>
}

// Scales of positions, in pages of their own.

// CHECK-LABEL: func.func @positions
// CHECK: %[[F:.*]] = "attn.paged"(%{{.*}}, %{{.*}}) : (tensor<?x16x2x4xf16>, tensor<?x?xi32>) -> !attn.view<tensor<?x?x2x4xf16>, tensor<?x16x2x4xf16>>
// CHECK: "attn.scaled"(%{{.*}}, %[[F]]) {block = array<i32: 1, 32>}
func.func @positions(%pool: tensor<?x16x2x128xf8E4M3FN>, %table: tensor<?x?xi32>, %scales: tensor<?x16x2x4xf16>,
                     %scale_table: tensor<?x?xi32>) {
  %k = "attn.paged"(%pool, %table) : (tensor<?x16x2x128xf8E4M3FN>, tensor<?x?xi32>)
    -> !attn.view<tensor<?x?x2x128xf8E4M3FN>, tensor<?x16x2x128xf8E4M3FN>>
  %f = "attn.paged"(%scales, %scale_table) : (tensor<?x16x2x4xf16>, tensor<?x?xi32>)
    -> !attn.view<tensor<?x?x2x4xf16>, tensor<?x16x2x4xf16>>
  %keys = "attn.scaled"(%k, %f) {block = array<i32: 1, 32>}
    : (!attn.view<tensor<?x?x2x128xf8E4M3FN>, tensor<?x16x2x128xf8E4M3FN>>,
       !attn.view<tensor<?x?x2x4xf16>, tensor<?x16x2x4xf16>>)
      -> !attn.view<tensor<?x?x2x128xf8E4M3FN>, tensor<?x16x2x128xf8E4M3FN>>
  func.return
}

// Scales of blocks of 64 positions and 128 columns, and of 32 positions of a column.

// CHECK-LABEL: func.func @blocks
// CHECK: "attn.scaled"(%{{.*}}, %{{.*}}) {block = array<i32: 64, 128>}
// CHECK: "attn.scaled"(%{{.*}}, %{{.*}}) {block = array<i32: 32, 1>}
func.func @blocks(%k: tensor<?x200x2x256xf8E4M3FN>, %f: tensor<?x4x1x2xf32>, %g: tensor<?x7x2x256xf32>) {
  %keys = "attn.scaled"(%k, %f) {block = array<i32: 64, 128>}
    : (tensor<?x200x2x256xf8E4M3FN>, tensor<?x4x1x2xf32>)
      -> !attn.view<tensor<?x200x2x256xf8E4M3FN>, tensor<?x200x2x256xf8E4M3FN>>
  %values = "attn.scaled"(%k, %g) {block = array<i32: 32, 1>}
    : (tensor<?x200x2x256xf8E4M3FN>, tensor<?x7x2x256xf32>)
      -> !attn.view<tensor<?x200x2x256xf8E4M3FN>, tensor<?x200x2x256xf8E4M3FN>>
  func.return
}
