// RUN: %roundtrip | FileCheck %s

// A cluster of two pairs: what each CTA does for others is listed by rank.

// CHECK: "ws.alloc_ring"() {empty_at = [array<i32: 0, 1>, array<i32>, array<i32: 2, 3>, array<i32>], full_at = [array<i32: 0>, array<i32: 0>, array<i32: 2>, array<i32: 2>], label_name = "a"}
// CHECK: %[[RANK:.*]] = "ws.rank"() : () -> i32
// CHECK: "ws.copy_in"(%{{.*}}, %{{.*}}, %[[RANK]], %[[RANK]]) {dims = array<i32: 0, 1>, operandSegmentSizes = array<i32: 1, 1, 2>, receivers = [array<i32: 0, 2>, array<i32: 1, 3>, array<i32: 0, 2>, array<i32: 1, 3>]}
// CHECK: "ws.copy_across"(%{{.*}}, %{{.*}}) {receivers = [array<i32: 1>, array<i32>, array<i32: 3>, array<i32>]}
// CHECK: label_name = "load"
// CHECK-NOT: ranks
// CHECK: "ws.mma"(%{{.*}}) {b_layout = "nk", ctas = 2 : i64}
// CHECK: label_name = "multiply", lanes = 1 : i64, ranks = array<i32: 0, 2>
// CHECK: cluster = 4 : i64

!t = !ws.tile<vector<128x64xbf16>, "shared">
!half = !ws.tile<vector<64x64xbf16>, "shared">
!sum = !ws.tile<vector<128x128xf32>, "tensor">
!ring = !ws.ring<!t, 2, 1>
!halves = !ws.buffer<!half, 1>
!sums = !ws.buffer<!sum, 1>
"ws.kernel"() ({
^bb0(%x: memref<?x?xbf16>):
  %ring = "ws.alloc_ring"() {label_name = "a",
    full_at = [array<i32: 0>, array<i32: 0>, array<i32: 2>, array<i32: 2>],
    empty_at = [array<i32: 0, 1>, array<i32>, array<i32: 2, 3>, array<i32>]} : () -> !ring
  %halves = "ws.alloc_buffer"() {label_name = "b"} : () -> !halves
  %sums = "ws.alloc_buffer"() {label_name = "sums"} : () -> !sums
  "ws.role"() ({
  ^bb0(%g: i32):
    %rank = "ws.rank"() : () -> i32
    %s = "ws.acquire"(%ring, %g) : (!ring, i32) -> !t
    "ws.copy_in"(%x, %s, %rank, %rank) {dims = array<i32: 0, 1>,
      receivers = [array<i32: 0, 2>, array<i32: 1, 3>, array<i32: 0, 2>, array<i32: 1, 3>],
      operandSegmentSizes = array<i32: 1, 1, 2>} : (memref<?x?xbf16>, !t, i32, i32) -> ()
    "ws.copy_across"(%s, %s) {receivers = [array<i32: 1>, array<i32>, array<i32: 3>, array<i32>]} : (!t, !t) -> ()
    "ws.commit"(%s) {by = "copy_engine"} : (!t) -> ()
  }) {label_name = "load", warps = array<i32: 0, 1>, groups = 1 : i64, lanes = 1 : i64, registers = 0 : i64} : () -> ()
  "ws.role"() ({
  ^bb0(%g: i32):
    %s = "ws.wait"(%ring, %g) : (!ring, i32) -> !t
    %b = "ws.at"(%halves, %g) : (!halves, i32) -> !half
    %d = "ws.at"(%sums, %g) : (!sums, i32) -> !sum
    %yes = arith.constant true
    "ws.mma"(%d, %s, %b, %yes) {b_layout = "nk", ctas = 2 : i64} : (!sum, !t, !half, i1) -> ()
    "ws.release"(%s) {by = "tensor_core"} : (!t) -> ()
  }) {label_name = "multiply", warps = array<i32: 1, 1>, groups = 1 : i64, lanes = 1 : i64, registers = 0 : i64, ranks = array<i32: 0, 2>} : () -> ()
}) {sym_name = "k", arg_names = ["x"], arg_roles = ["in"], arg_dims = [["m", "n"]], cluster = 4 : i64} : () -> ()
