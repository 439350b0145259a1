// RUN: not attn-opt --ws-record-clocks %s 2>&1 | FileCheck %s --check-prefix=NONE
// RUN: not attn-opt --ws-record-clocks=role=idle %s 2>&1 | FileCheck %s --check-prefix=IDLE
// RUN: not attn-opt --ws-record-clocks=role=turns %s 2>&1 | FileCheck %s --check-prefix=TURNS

// What has no times that could be told.

// NONE: error: 'builtin.module' op holds no kernel with a role attend
// IDLE: error: 'ws.role' op expects a loop over work tiles, whose times are recorded
// TURNS: error: 'ws.tiles' op expects a loop in a role whose times are recorded

"ws.kernel"() ({
^bb0(%x: memref<?x64xbf16>):
  "ws.role"() ({
  ^bb0(%group: i32):
    "ws.barrier"() : () -> ()
  })
    {label_name = "idle", warps = array<i32: 0, 1>, groups = 1 : i64, lanes = 32 : i64, registers = 0 : i64}
    : () -> ()
  "ws.role"() ({
  ^bb0(%group: i32):
    %blocks = "ws.extent"(%x) {dim = 0 : i64} : (memref<?x64xbf16>) -> i32
    "ws.tiles"(%blocks) ({
    ^bb0(%block: i32):
      "ws.barrier"() : () -> ()
    }) {order = "single", operandSegmentSizes = array<i32: 1, 0, 0>} : (i32) -> ()
  })
    {label_name = "turns", warps = array<i32: 1, 1>, groups = 1 : i64, lanes = 32 : i64, registers = 0 : i64}
    : () -> ()
}) {sym_name = "k", arg_names = ["x"], arg_roles = ["in"], arg_dims = [["m", ""]]} : () -> ()
