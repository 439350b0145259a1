// RUN: attn-opt --ws-plan-memory --convert-ws-to-nvvm %s | FileCheck %s

// Claimed work tiles: two groups of 128 threads and the thread that claims release an answer; a turn
// begins with the coordinates of a CTA, the first counted down, and ends with the next answer.

// CHECK-LABEL: llvm.func @claims
// CHECK: %[[THREADS:.*]] = arith.constant 257 : index
// CHECK: nvgpu.mbarrier.init %{{.*}}[%{{.*}}], %[[THREADS]]
// CHECK: %[[X:.*]] = nvvm.read.ptx.sreg.ctaid.x
// CHECK: %[[Y:.*]] = nvvm.read.ptx.sreg.ctaid.y
// CHECK: scf.while (%[[I:.*]] = %[[X]], %[[J:.*]] = %[[Y]])
// CHECK: %[[LAST:.*]] = arith.subi
// CHECK: %[[FIRST:.*]] = arith.subi %[[LAST]], %[[I]]
// CHECK: arith.addi %[[FIRST]], %[[J]]
// CHECK: nvvm.mbarrier.try_wait.parity
// CHECK: %[[ANSWER:.*]] = llvm.load %{{.*}} : !llvm.ptr<3> -> i128
// CHECK-NOT: nvvm.fence.proxy
// CHECK: nvvm.clusterlaunchcontrol.query.cancel query = is_canceled, %[[ANSWER]]
// CHECK: nvvm.clusterlaunchcontrol.query.cancel query = get_first_cta_id_x, %[[ANSWER]]
// CHECK: nvvm.shfl.sync idx
// CHECK: nvvm.fence.proxy
// CHECK: nvgpu.mbarrier.arrive
// CHECK: scf.condition

// The thread that claims: the answer's bytes complete the phase that it arms.
// CHECK: scf.while
// CHECK: %[[BYTES:.*]] = arith.constant 16 : index
// CHECK: nvgpu.mbarrier.arrive.expect_tx %{{.*}}[%{{.*}}], %[[BYTES]]
// CHECK: nvvm.clusterlaunchcontrol.try.cancel
// CHECK: nvvm.mbarrier.try_wait.parity
// CHECK-NOT: nvvm.shfl.sync
// CHECK: scf.condition

!answer = !ws.tile<vector<4xi32>, "shared">
!answers = !ws.ring<!answer, 2, 1>
"ws.kernel"() ({
^bb0(%x: memref<?x?xf32>):
  %answers = "ws.alloc_ring"() {label_name = "answers"} : () -> !answers
  "ws.role"() ({
  ^bb0(%g: i32):
    %zero = arith.constant 0 : i32
    %m = "ws.extent"(%x) {dim = 0 : i64} : (memref<?x?xf32>) -> i32
    %n = "ws.extent"(%x) {dim = 1 : i64} : (memref<?x?xf32>) -> i32
    "ws.tiles"(%m, %n) ({
    ^bb0(%i: i32, %j: i32):
      %used = arith.addi %i, %j : i32
      %slot = "ws.wait"(%answers, %zero) : (!answers, i32) -> !answer
      "ws.next_tile"(%slot) : (!answer) -> ()
      "ws.release"(%slot) {by = "threads"} : (!answer) -> ()
    }) {order = "clc", operandSegmentSizes = array<i32: 2, 0, 0>} : (i32, i32) -> ()
  }) {label_name = "rows", warps = array<i32: 0, 8>, groups = 2 : i64, lanes = 32 : i64, registers = 0 : i64} : () -> ()
  "ws.role"() ({
  ^bb0(%g: i32):
    %zero = arith.constant 0 : i32
    %m = "ws.extent"(%x) {dim = 0 : i64} : (memref<?x?xf32>) -> i32
    %n = "ws.extent"(%x) {dim = 1 : i64} : (memref<?x?xf32>) -> i32
    "ws.tiles"(%m, %n) ({
    ^bb0(%i: i32, %j: i32):
      %ask = "ws.acquire"(%answers, %zero) : (!answers, i32) -> !answer
      "ws.claim"(%ask) : (!answer) -> ()
      "ws.commit"(%ask) {by = "copy_engine"} : (!answer) -> ()
      %slot = "ws.wait"(%answers, %zero) : (!answers, i32) -> !answer
      "ws.next_tile"(%slot) : (!answer) -> ()
      "ws.release"(%slot) {by = "threads"} : (!answer) -> ()
    }) {order = "clc", operandSegmentSizes = array<i32: 2, 0, 0>} : (i32, i32) -> ()
  }) {label_name = "claim", warps = array<i32: 8, 1>, groups = 1 : i64, lanes = 1 : i64, registers = 0 : i64} : () -> ()
}) {sym_name = "claims", arg_names = ["x"], arg_roles = ["in"], arg_dims = [["m", "n"]]} : () -> ()
