// RUN: %roundtrip | FileCheck %s

// Rings that borrow a place: slots beside one another and over one another, in a cluster, and vectors in
// shared memory.

// CHECK: %[[S:.*]] = "ws.alloc_ring"() {known_empty, label_name = "s"}
// CHECK: %{{.*}} = "ws.alloc_inside"(%[[S]]) {full_at = [array<i32: 0>, array<i32: 0>], known_empty, label_name = "p", producers = ["threads", "threads"]} : (!ws.ring<!ws.tile<vector<128x64xf32>, "tensor">, 1 : i64, 2 : i64>) -> !ws.ring<!ws.tile<vector<128x64xbf16>, "tensor">, 1 : i64, 2 : i64>
// CHECK: "ws.alloc_inside"(%[[S]]) {label_name = "r", offset = 32 : i64}
// CHECK: "ws.alloc_inside"(%[[S]]) {label_name = "t", offset = 16 : i64}
// CHECK: %[[Q:.*]] = "ws.alloc_ring"() {label_name = "q"}
// CHECK: "ws.alloc_inside"(%[[Q]]) {label_name = "v", offset = 7936 : i64}
!ss = !ws.ring<!ws.tile<vector<128x64xf32>, "tensor">, 1, 2>
!ps = !ws.ring<!ws.tile<vector<128x64xbf16>, "tensor">, 1, 2>
!qs = !ws.ring<!ws.tile<vector<128x64xbf16>, "shared">, 1, 2>
!vs = !ws.ring<!ws.tile<vector<64xf32>, "shared">, 2, 2>
"ws.kernel"() ({
^bb0:
  %s = "ws.alloc_ring"() {known_empty, label_name = "s"} : () -> !ss
  %p = "ws.alloc_inside"(%s) {known_empty, label_name = "p", producers = ["threads", "threads"], full_at = [array<i32: 0>, array<i32: 0>]} : (!ss) -> !ps
  %r = "ws.alloc_inside"(%s) {label_name = "r", offset = 32 : i64} : (!ss) -> !ps
  %t = "ws.alloc_inside"(%s) {label_name = "t", offset = 16 : i64} : (!ss) -> !ps
  %q = "ws.alloc_ring"() {label_name = "q"} : () -> !qs
  %v = "ws.alloc_inside"(%q) {label_name = "v", offset = 7936 : i64} : (!qs) -> !vs
}) {sym_name = "k", arg_names = [], arg_roles = [], arg_dims = [], cluster = 2 : i64} : () -> ()
