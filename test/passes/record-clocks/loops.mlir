// RUN: attn-opt --ws-record-clocks=role=turns %s | FileCheck %s

// A role that has nothing outside of its loop: nothing is written within it, and the last times stand at the end.

// CHECK: ws.tiles
// CHECK-COUNT-3: ws.clock
// CHECK: scf.for
// CHECK-NOT: ws.clock
// CHECK: ws.barrier
// CHECK-NOT: ws.clock
// CHECK: }
// CHECK: ws.clock
// CHECK: arith.subi
// CHECK-COUNT-2: ws.clock
// CHECK-NOT: ws.clock

"ws.kernel"() ({
^bb0(%x: memref<?x64xbf16>):
  "ws.role"() ({
  ^bb0(%group: i32):
    %c0 = arith.constant 0 : i32
    %c1 = arith.constant 1 : i32
    %blocks = "ws.extent"(%x) {dim = 0 : i64} : (memref<?x64xbf16>) -> i32
    "ws.tiles"(%blocks) ({
    ^bb0(%block: i32):
      scf.for %i = %c0 to %blocks step %c1 : i32 {
        "ws.barrier"() : () -> ()
      }
    }) {order = "single", operandSegmentSizes = array<i32: 1, 0, 0>} : (i32) -> ()
  })
    {label_name = "turns", warps = array<i32: 0, 1>, groups = 1 : i64, lanes = 32 : i64, registers = 0 : i64}
    : () -> ()
}) {sym_name = "k", arg_names = ["x"], arg_roles = ["in"], arg_dims = [["m", ""]]} : () -> ()
