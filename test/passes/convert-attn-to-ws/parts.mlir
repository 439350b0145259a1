// RUN: attn-opt %s --split-input-file --attn-configure --convert-attn-to-ws --ws-verify-rings | FileCheck %s

// Parts of the keys lie behind one another in the batch of O and LSE; each has work tiles of its own,
// and all roles take its tiles from the same formula.

// CHECK: "ws.role"
// CHECK: %[[SUMS:.*]] = "ws.extent"(%{{.*}}) {dim = 0 : i64} : (memref<?x?x4x64xf32>) -> i32
// CHECK: arith.floordivsi %[[SUMS]]
// CHECK-COUNT-4: label_name =
// CHECK: arg_dims = {{.*}}["parts", "sq", "", ""], ["", "parts", "", "sq"]
// CHECK-SAME: arg_names = ["q", "k", "v", "o", "lse", "scale"]
// CHECK-SAME: sym_name = "parts"
func.func @parts(%q: tensor<?x?x4x64xbf16>, %k: tensor<?x?x2x64xbf16>, %v: tensor<?x?x2x64xbf16>, %scale: f32)
    -> (tensor<?x?x4x64xf32>, tensor<2x?x4x?xf32>) {
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.causal, attn.partial}
    : (tensor<?x?x4x64xbf16>, tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, f32)
      -> (tensor<?x?x4x64xf32>, tensor<2x?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x64xf32>, tensor<2x?x4x?xf32>
}

// -----

// One role loads the parts in turn, one weighs them, one stores the sum.

// CHECK: %[[PARTS:.*]] = "ws.alloc_ring"() {label_name = "parts"} : () -> !ws.ring<!ws.tile<vector<128x64xf32>, "shared">, 3 : i64, 1 : i64>
// CHECK: %[[OUT:.*]] = "ws.alloc_ring"() {label_name = "out"} : () -> !ws.ring<!ws.tile<vector<128x64xf16>, "shared">, 1 : i64, 1 : i64>
// CHECK: "ws.element"
// CHECK: "ws.wait"(%[[PARTS]]
// CHECK: "ws.acquire"(%[[OUT]]
// CHECK-NOT: "ws.store_global"
// CHECK: label_name = "combine"
// CHECK: "ws.copy_out"
// CHECK: label_name = "store"
// CHECK: "ws.copy_in"
// CHECK: label_name = "load"
// CHECK: arg_names = ["parts", "lses", "sinks", "o"]
// CHECK-SAME: sym_name = "combine"
func.func @combine(%parts: tensor<?x?x?x4x64xf32>, %lses: tensor<?x?x4x?xf32>, %sinks: tensor<4xbf16>)
    -> tensor<?x?x4x64xf16> {
  %o, %lse = "attn.combine"(%parts, %lses, %sinks) {operandSegmentSizes = array<i32: 1, 1, 1>}
    : (tensor<?x?x?x4x64xf32>, tensor<?x?x4x?xf32>, tensor<4xbf16>)
      -> (tensor<?x?x4x64xf16>, tensor<?x4x?xf32>)
  func.return %o : tensor<?x?x4x64xf16>
}
