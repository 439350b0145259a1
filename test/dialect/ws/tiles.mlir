// RUN: %roundtrip | FileCheck %s
// RUN: attn-opt --attn-check-stage=stage=ws --ws-verify-rings %s | FileCheck %s

// Work tiles that are claimed: each role reads the answers, one asks for them.

// CHECK-LABEL: "ws.kernel"
// CHECK: %[[RING:.*]] = "ws.alloc_ring"() {label_name = "answers"} : () -> !ws.ring<!ws.tile<vector<4xi32>, "shared">, 2 : i64, 1 : i64>
// CHECK: "ws.tiles"
// CHECK: %[[NEXT:.*]] = "ws.wait"(%[[RING]], %{{.*}})
// CHECK: "ws.next_tile"(%[[NEXT]]) : (!ws.tile<vector<4xi32>, "shared">) -> ()
// CHECK: "ws.release"(%[[NEXT]]) {by = "threads"}
// CHECK: order = "clc"
// CHECK: %[[SLOT:.*]] = "ws.acquire"(%[[RING]], %{{.*}})
// CHECK: "ws.claim"(%[[SLOT]]) : (!ws.tile<vector<4xi32>, "shared">) -> ()
// CHECK: "ws.commit"(%[[SLOT]]) {by = "copy_engine"}

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
