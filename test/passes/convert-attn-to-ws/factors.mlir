// RUN: attn-opt %s --split-input-file --attn-configure --convert-attn-to-ws --cse | FileCheck %s

// Scales are read once per work tile, in front of the loop over key tiles.

// CHECK: ^bb0(%{{.*}}: memref<?x?x4x64xf8E5M2>, %{{.*}}: memref<?x?x2x64xf8E5M2>, %{{.*}}: memref<?x?x2x64xf8E5M2>, %{{.*}}: memref<?x?x4x64xbf16>, %[[SCALE:.*]]: f32, %[[QF:.*]]: memref<?x?xf32>, %[[KF:.*]]: memref<?x?xf32>, %[[VF:.*]]: memref<?x?xf32>):
// CHECK: %[[Q:.*]] = "ws.element"(%[[QF]], %[[B:.*]], %[[H:.*]])
// CHECK: %[[SQ:.*]] = arith.mulf %[[SCALE]], %[[Q]] : f32
// CHECK: %[[K:.*]] = "ws.element"(%[[KF]], %[[B]], %[[H]])
// CHECK: arith.mulf %[[SQ]], %[[K]] : f32
// CHECK: scf.for
// CHECK-NOT: "ws.element"
// CHECK: scf.yield
// CHECK: %[[V:.*]] = "ws.element"(%[[VF]], %[[B]], %[[H]])
// CHECK: arith.divf %[[V]], %{{.*}} : f32
// CHECK: label_name = "softmax"
func.func @scales(%q: tensor<?x?x4x64xf8E5M2>, %k: tensor<?x?x2x64xf8E5M2>, %v: tensor<?x?x2x64xf8E5M2>, %scale: f32,
                   %qf: tensor<?x?xf32>, %kf: tensor<?x?xf32>, %vf: tensor<?x?xf32>) -> tensor<?x?x4x64xbf16> {
  %queries = "attn.scaled"(%q, %qf) {block = array<i32: 0, 64>} : (tensor<?x?x4x64xf8E5M2>, tensor<?x?xf32>)
    -> !attn.view<tensor<?x?x4x64xf8E5M2>, tensor<?x?x4x64xf8E5M2>>
  %keys = "attn.scaled"(%k, %kf) {block = array<i32: 0, 64>} : (tensor<?x?x2x64xf8E5M2>, tensor<?x?xf32>)
    -> !attn.view<tensor<?x?x2x64xf8E5M2>, tensor<?x?x2x64xf8E5M2>>
  %values = "attn.scaled"(%v, %vf) {block = array<i32: 0, 64>} : (tensor<?x?x2x64xf8E5M2>, tensor<?x?xf32>)
    -> !attn.view<tensor<?x?x2x64xf8E5M2>, tensor<?x?x2x64xf8E5M2>>
  %o, %lse = "attn.mha"(%queries, %keys, %values, %scale) ({
  ^bb0(%score: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%score) : (f32) -> ()
  }) {mask = #attn.null}
    : (!attn.view<tensor<?x?x4x64xf8E5M2>, tensor<?x?x4x64xf8E5M2>>,
       !attn.view<tensor<?x?x2x64xf8E5M2>, tensor<?x?x2x64xf8E5M2>>,
       !attn.view<tensor<?x?x2x64xf8E5M2>, tensor<?x?x2x64xf8E5M2>>, f32)
      -> (tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>)
  func.return %o : tensor<?x?x4x64xbf16>
}
