// RUN: %roundtrip | FileCheck %s

// A ring that borrows its place: slots of half the size at the front of the lender's.

// CHECK: %[[S:.*]] = "ws.alloc_ring"() {label_name = "s"}
// CHECK: %{{.*}} = "ws.alloc_inside"(%[[S]]) {label_name = "p", producers = ["threads", "threads"]} : (!ws.ring<!ws.tile<vector<128x64xf32>, "tensor">, 1 : i64, 2 : i64>) -> !ws.ring<!ws.tile<vector<128x64xbf16>, "tensor">, 1 : i64, 2 : i64>
!ss = !ws.ring<!ws.tile<vector<128x64xf32>, "tensor">, 1, 2>
!ps = !ws.ring<!ws.tile<vector<128x64xbf16>, "tensor">, 1, 2>
"ws.kernel"() ({
^bb0:
  %s = "ws.alloc_ring"() {label_name = "s"} : () -> !ss
  %p = "ws.alloc_inside"(%s) {label_name = "p", producers = ["threads", "threads"]} : (!ss) -> !ps
}) {sym_name = "k", arg_names = [], arg_roles = [], arg_dims = []} : () -> ()
