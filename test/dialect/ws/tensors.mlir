// RUN: %roundtrip | FileCheck %s

// A tensor with its heads seen as groups, and one element of it; its sequences walked as one.

// CHECK-LABEL: "ws.kernel"
// CHECK: %[[VIEW:.*]] = "ws.expand"(%{{.*}}) {dim = 2 : i64, factor = 4 : i64} : (memref<?x?x16x64xbf16>) -> memref<?x?x4x4x64xbf16>
// CHECK: "ws.limit"(%[[VIEW]], %{{.*}}) {dim = 1 : i64} : (memref<?x?x4x4x64xbf16>, i32) -> memref<?x?x4x4x64xbf16>
// CHECK: "ws.collapse"(%{{.*}}) {dim = 0 : i64} : (memref<?x?x16x64xbf16>) -> memref<?x16x64xbf16>
// CHECK: "ws.pitch"(%{{.*}}) {dim = 0 : i64} : (memref<?x?x16x64xbf16>) -> i32
// CHECK: "ws.element"(%[[VIEW]], %{{.*}}) {{.*}} -> bf16
"ws.kernel"() ({
^bb0(%q: memref<?x?x16x64xbf16>):
  "ws.role"() ({
  ^bb0(%g: i32):
    %view = "ws.expand"(%q) {dim = 2 : i64, factor = 4 : i64} : (memref<?x?x16x64xbf16>) -> memref<?x?x4x4x64xbf16>
    %first = "ws.limit"(%view, %g) {dim = 1 : i64} : (memref<?x?x4x4x64xbf16>, i32) -> memref<?x?x4x4x64xbf16>
    %rows = "ws.collapse"(%q) {dim = 0 : i64} : (memref<?x?x16x64xbf16>) -> memref<?x16x64xbf16>
    %pitch = "ws.pitch"(%q) {dim = 0 : i64} : (memref<?x?x16x64xbf16>) -> i32
    %x = "ws.element"(%view, %g, %g, %g, %g, %g) {operandSegmentSizes = array<i32: 1, 5>} : (memref<?x?x4x4x64xbf16>, i32, i32, i32, i32, i32) -> bf16
    %w = "ws.fill"(%x) : (bf16) -> !ws.frag<vector<128xbf16>>
  }) {groups = 1 : i64, label_name = "r", lanes = 32 : i64, registers = 0 : i64, warps = array<i32: 0, 4>} : () -> ()
}) {arg_dims = [["b", "s", "", ""]], arg_names = ["q"], arg_roles = ["in"], sym_name = "k"} : () -> ()
