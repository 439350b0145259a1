// RUN: attn-opt %s --split-input-file --attn-configure --convert-attn-to-ws --ws-verify-rings | FileCheck %s

// Ragged queries and keys: lengths and rows come from the offsets, moved into the tensor. Tiles past
// the end of a sequence do nothing. Loads of Q are whole, K and V and O end with the sequence.

// CHECK-LABEL: "ws.kernel"
// CHECK-SAME: ({
// CHECK-NEXT: ^bb0(%[[Q:[^:]+]]: memref<?x4x64xbf16>, %[[K:[^:]+]]: memref<?x2x64xbf16>, %[[V:[^:]+]]: memref<?x2x64xbf16>, %[[O:[^:]+]]: memref<?x4x64xbf16>, %[[LSE:[^:]+]]: memref<4x?xf32>, %{{.*}}: f32, %[[ENDS:[^:]+]]: memref<?xi32>, %[[MOST:[^:]+]]: i32):

// The softmax role: the tile space goes by the longest sequence and the number of offsets, the CTAs by what there is.
// CHECK: arith.ceildivsi %[[MOST]],
// CHECK: %[[N:.*]] = "ws.extent"(%[[ENDS]]) {dim = 0 : i64}
// CHECK: arith.subi %[[N]],
// CHECK: %[[ROWS:.*]] = "ws.extent"(%[[Q]]) {dim = 0 : i64}
// CHECK: "ws.tiles"(%{{.*}}, %{{.*}}, %{{.*}}, %[[ENDS]], %{{.*}}, %[[ROWS]], %{{.*}}) ({
// CHECK: "ws.element"(%[[ENDS]],
// CHECK: "ws.element"(%[[ENDS]],
// CHECK: arith.cmpi sgt
// CHECK: scf.if
// CHECK: %[[HEADS:.*]] = "ws.expand"(%[[LSE]])
// CHECK: "ws.limit"(%[[HEADS]], %{{.*}}) {dim = 2 : i64}
// CHECK: "ws.store_global"
// CHECK: operandSegmentSizes = array<i32: 3, 1, 3>, order = "ragged"
// CHECK: label_name = "softmax"

// The epilogue: nothing is stored for a query tile past the end.
// CHECK: "ws.wait"
// CHECK: arith.cmpi sgt
// CHECK: scf.if
// CHECK: "ws.limit"(%{{.*}}, %{{.*}}) {dim = 0 : i64} : (memref<?x2x2x64xbf16>, i32)
// CHECK: "ws.copy_out"
// CHECK: label_name = "epilogue"

// CHECK: %[[KEYS:.*]] = "ws.limit"(%[[K]], %{{.*}}) {dim = 0 : i64}
// CHECK: "ws.copy_in"(%[[KEYS]],
// CHECK-NOT: "ws.limit"
// CHECK: "ws.expand"(%[[Q]])
// CHECK-NOT: "ws.limit"
// CHECK: "ws.copy_in"
// CHECK: %[[VALUES:.*]] = "ws.limit"(%[[V]], %{{.*}}) {dim = 0 : i64}
// CHECK: "ws.copy_in"(%[[VALUES]],
// CHECK: label_name = "load"
// CHECK: arg_dims = {{\[\[}}"total_q", "", ""], ["total_k", "", ""], ["total_k", "", ""], ["total_q", "", ""], ["", "total_q"],
func.func @ragged(%q: tensor<?x4x64xbf16>, %k: tensor<?x2x64xbf16>, %v: tensor<?x2x64xbf16>, %scale: f32,
                  %ends: tensor<?xi32>, %most: i32) -> (tensor<?x4x64xbf16>, tensor<4x?xf32>) {
  %queries = "attn.ragged"(%q, %ends, %most) : (tensor<?x4x64xbf16>, tensor<?xi32>, i32) -> !attn.view<tensor<?x?x4x64xbf16>, tensor<?x4x64xbf16>>
  %keys = "attn.ragged"(%k, %ends, %most) : (tensor<?x2x64xbf16>, tensor<?xi32>, i32) -> !attn.view<tensor<?x?x2x64xbf16>, tensor<?x2x64xbf16>>
  %values = "attn.ragged"(%v, %ends, %most) : (tensor<?x2x64xbf16>, tensor<?xi32>, i32) -> !attn.view<tensor<?x?x2x64xbf16>, tensor<?x2x64xbf16>>
  %o, %lse = "attn.mha"(%queries, %keys, %values, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.causal}
    : (!attn.view<tensor<?x?x4x64xbf16>, tensor<?x4x64xbf16>>, !attn.view<tensor<?x?x2x64xbf16>, tensor<?x2x64xbf16>>, !attn.view<tensor<?x?x2x64xbf16>, tensor<?x2x64xbf16>>, f32) -> (tensor<?x4x64xbf16>, tensor<4x?xf32>)
  func.return %o, %lse : tensor<?x4x64xbf16>, tensor<4x?xf32>
}

// -----

// Padded queries leave no dimension for packed heads; the lengths of a cached prefix are added to
// those of the queries.

// CHECK-LABEL: "ws.kernel"
// CHECK: ^bb0({{.*}}, %[[USED:[^:]+]]: memref<?xi32>, %[[CACHED:[^:]+]]: memref<?xi32>):
// CHECK-NOT: "ws.expand"
// CHECK: %[[NEW:.*]] = "ws.element"(%[[USED]],
// CHECK: %[[OLD:.*]] = "ws.element"(%[[CACHED]],
// CHECK: arith.addi %[[OLD]],
// CHECK: "ws.limit"(%{{.*}}, %{{.*}}) {dim = 1 : i64} : (memref<?x?x4x64xbf16>, i32)
// CHECK: "ws.limit"(%{{.*}}, %{{.*}}) {dim = 1 : i64} : (memref<?x?x2x64xbf16>, i32)
func.func @cached(%q: tensor<?x?x4x64xbf16>, %k: tensor<?x?x2x64xbf16>, %v: tensor<?x?x2x64xbf16>, %scale: f32,
                  %used: tensor<?xi32>, %cached: tensor<?xi32>) -> (tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>) {
  %queries = "attn.limited"(%q, %used) {counted = "all"} : (tensor<?x?x4x64xbf16>, tensor<?xi32>) -> !attn.view<tensor<?x?x4x64xbf16>, tensor<?x?x4x64xbf16>>
  %keys = "attn.limited"(%k, %cached) {counted = "cached"} : (tensor<?x?x2x64xbf16>, tensor<?xi32>) -> !attn.view<tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>>
  %values = "attn.limited"(%v, %cached) {counted = "cached"} : (tensor<?x?x2x64xbf16>, tensor<?xi32>) -> !attn.view<tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>>
  %o, %lse = "attn.mha"(%queries, %keys, %values, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.causal}
    : (!attn.view<tensor<?x?x4x64xbf16>, tensor<?x?x4x64xbf16>>, !attn.view<tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>>, !attn.view<tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>>, f32) -> (tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>
}
