// RUN: attn-opt %s --split-input-file --convert-attn-to-ws --ws-verify-rings | FileCheck %s

// Slots lie in registers before anything is read; a slot below 0 is neither read nor written for. K and V
// are read before either is written, by one role.

// CHECK-LABEL: "ws.kernel"
// CHECK: ^bb0(%[[K:[^:]+]]: memref<?x16x2x64xbf16>, %[[V:[^:]+]]: memref<?x16x2x64xbf16>, %[[KN:[^:]+]]: memref<?x2x64xbf16>, %[[VN:[^:]+]]: memref<?x2x64xbf16>, %[[SLOTS:[^:]+]]: memref<?xi32>):
// CHECK: "ws.tiles"
// CHECK: %[[TO:.*]] = "ws.map"() ({
// CHECK: "ws.element"(%[[SLOTS]],
// CHECK: %[[FROM:.*]] = "ws.map"(%[[TO]], %[[TO]]) ({
// CHECK: arith.select
// CHECK: %[[KEYS:.*]] = "ws.load_rows"(%[[KN]], %[[FROM]],
// CHECK: %[[VALUES:.*]] = "ws.load_rows"(%[[VN]], %[[FROM]],
// CHECK: "ws.store_rows"(%[[KEYS]], %[[TO]], %[[K]], {{.*}}dims = array<i32: 0, 1, 3>
// CHECK: "ws.store_rows"(%[[VALUES]], %[[TO]], %[[V]], {{.*}}dims = array<i32: 0, 1, 3>
// CHECK: order = "single"
// CHECK: arg_dims = {{\[\[}}"pages", "", "", ""], ["pages", "", "", ""], ["tokens", "", ""], ["tokens", "", ""], ["tokens"]]
// CHECK-SAME: arg_roles = ["inout", "inout", "in", "in", "in"]
func.func @slots(%k: tensor<?x16x2x64xbf16>, %v: tensor<?x16x2x64xbf16>, %kn: tensor<?x2x64xbf16>,
                 %vn: tensor<?x2x64xbf16>, %slots: tensor<?xi32>) {
  "attn.append"(%k, %v, %kn, %vn, %slots) {operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 0, 0, 0, 0>}
    : (tensor<?x16x2x64xbf16>, tensor<?x16x2x64xbf16>, tensor<?x2x64xbf16>, tensor<?x2x64xbf16>, tensor<?xi32>) -> ()
  func.return
}

// -----

// Offsets of sequences are the order of tiles: a tile has tokens of one of them.

// CHECK-LABEL: "ws.kernel"
// CHECK: ^bb0(%{{[^:]+}}: memref<?x?x2x64xbf16>, {{.*}}, %[[OFFSETS:[^:]+]]: memref<?xi32>):
// CHECK: "ws.tiles"(%{{.*}}, %{{.*}}, %{{.*}}, %[[OFFSETS]],
// CHECK: order = "ragged"
// CHECK: arg_dims = {{\[\[}}"rows", "sk", "", ""], ["rows", "sk", "", ""], ["tokens", "", ""], ["tokens", "", ""], ["capture4_0"]]
func.func @offsets(%k: tensor<?x?x2x64xbf16>, %v: tensor<?x?x2x64xbf16>, %kn: tensor<?x2x64xbf16>,
                   %vn: tensor<?x2x64xbf16>, %offsets: tensor<?xi32>) {
  "attn.append"(%k, %v, %kn, %vn, %offsets) {operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0, 0, 1, 0>}
    : (tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, tensor<?x2x64xbf16>, tensor<?x2x64xbf16>, tensor<?xi32>) -> ()
  func.return
}

// -----

// Halves that are rotated are pairs of fragments, angles rows of tensors; 8 bits are divided and rounded last.

// CHECK-LABEL: "ws.kernel"
// CHECK: ^bb0(%{{.*}}, %[[COS:[^:]+]]: memref<?x32xf32>, %[[SIN:[^:]+]]: memref<?x32xf32>, %[[SCALES:[^:]+]]: memref<?x?xf32>):
// CHECK-COUNT-2: "ws.load_rows"(%[[COS]]
// CHECK-NOT: "ws.load_rows"(%[[COS]]
// CHECK-COUNT-2: "ws.load_rows"(%[[SIN]]
// CHECK: math.fma
// CHECK: "ws.element"(%[[SCALES]],
// CHECK: arith.divf
// CHECK: arith.truncf %{{.*}} : f32 to f8E4M3FN
// CHECK: "ws.store_rows"
func.func @rotated(%k: tensor<?x16x2x80xf8E4M3FN>, %v: tensor<?x16x2x80xf8E4M3FN>, %kn: tensor<?x?x2x80xbf16>,
                   %vn: tensor<?x?x2x80xbf16>, %positions: tensor<?x?xi32>, %table: tensor<?x?xi32>,
                   %cos: tensor<?x32xf32>, %sin: tensor<?x32xf32>, %scales: tensor<?x?xf32>) {
  %k0 = "attn.paged"(%k, %table) : (tensor<?x16x2x80xf8E4M3FN>, tensor<?x?xi32>)
    -> !attn.view<tensor<?x?x2x80xf8E4M3FN>, tensor<?x16x2x80xf8E4M3FN>>
  %v0 = "attn.paged"(%v, %table) : (tensor<?x16x2x80xf8E4M3FN>, tensor<?x?xi32>)
    -> !attn.view<tensor<?x?x2x80xf8E4M3FN>, tensor<?x16x2x80xf8E4M3FN>>
  %k1 = "attn.scaled"(%k0, %scales) {block = array<i32: 0, 80>} : (!attn.view<tensor<?x?x2x80xf8E4M3FN>, tensor<?x16x2x80xf8E4M3FN>>, tensor<?x?xf32>)
    -> !attn.view<tensor<?x?x2x80xf8E4M3FN>, tensor<?x16x2x80xf8E4M3FN>>
  "attn.append"(%k1, %v0, %kn, %vn, %positions, %cos, %sin)
    {operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 1, 0, 0, 2>}
    : (!attn.view<tensor<?x?x2x80xf8E4M3FN>, tensor<?x16x2x80xf8E4M3FN>>,
       !attn.view<tensor<?x?x2x80xf8E4M3FN>, tensor<?x16x2x80xf8E4M3FN>>, tensor<?x?x2x80xbf16>, tensor<?x?x2x80xbf16>,
       tensor<?x?xi32>, tensor<?x32xf32>, tensor<?x32xf32>) -> ()
  func.return
}
