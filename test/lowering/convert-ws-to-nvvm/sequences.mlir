// RUN: attn-opt %s --split-input-file --attn-to-ws --ws-plan-memory --convert-ws-to-nvvm --canonicalize --cse | FileCheck %s

// What lengths and parts of the keys become: tensor maps that begin a box in front of the tensor, and coordinates that
// let only the rows of the sequence be inside.

// CHECK-COUNT-3: first
// CHECK-LABEL: llvm.func @ragged
// CHECK: %[[COUNT:.*]] = arith.minsi %{{.*}}, %c64_i32 : i32
// CHECK-NEXT: %[[IN_BOX:.*]] = arith.subi %c64_i32, %[[COUNT]] : i32
// CHECK-NEXT: %[[BEHIND:.*]] = arith.addi %{{.*}}, %[[COUNT]] : i32
// CHECK: %[[X:.*]] = arith.index_cast %[[IN_BOX]] : i32 to index
// CHECK: %[[Y:.*]] = arith.index_cast %[[BEHIND]] : i32 to index
// CHECK-NEXT: nvgpu.tma.async.store %{{.*}} to %{{.*}}[%c0, %c0, %[[X]], %{{.*}}, %[[Y]]]
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

// The kernel that combines parts has no product, and one store for each tile of O.

// CHECK-LABEL: llvm.func @combine
// CHECK-NOT: tcgen05
// CHECK: nvgpu.tma.async.store
// CHECK-NOT: nvgpu.tma.async.store
// CHECK: nvgpu.tma.async.load
// CHECK-NOT: tcgen05
func.func @combine(%parts: tensor<?x?x?x4x64xf32>, %lses: tensor<?x?x4x?xf32>, %sinks: tensor<4xbf16>)
    -> tensor<?x?x4x64xf16> {
  %o, %lse = "attn.combine"(%parts, %lses, %sinks) {operandSegmentSizes = array<i32: 1, 1, 1>}
    : (tensor<?x?x?x4x64xf32>, tensor<?x?x4x?xf32>, tensor<4xbf16>)
      -> (tensor<?x?x4x64xf16>, tensor<?x4x?xf32>)
  func.return %o : tensor<?x?x4x64xf16>
}
