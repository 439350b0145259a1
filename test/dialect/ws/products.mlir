// RUN: attn-opt --verify-roundtrip %s | FileCheck %s

// Two products in flight: the first is settled while the second may still run.

// CHECK-LABEL: func.func @f
func.func @f(%s: !ws.frag<vector<64x32xf32>>, %p: !ws.frag<vector<64x16xbf16>>, %a: !ws.tile<vector<64x16xbf16>, "shared">, %b: !ws.tile<vector<32x16xbf16>, "shared">, %more: i1) -> (!ws.frag<vector<64x32xf32>>, !ws.frag<vector<64x32xf32>>) {
  %zero = arith.constant 0.0 : f32
  %zeros = "ws.fill"(%zero) : (f32) -> !ws.frag<vector<64x32xf32>>
  // CHECK: "ws.product"({{.*}}) {b_layout = "nk"} : {{.*}} -> !ws.pending<!ws.frag<vector<64x32xf32>>>
  %1 = "ws.product"(%zeros, %a, %b, %more) {b_layout = "nk"} : (!ws.frag<vector<64x32xf32>>, !ws.tile<vector<64x16xbf16>, "shared">, !ws.tile<vector<32x16xbf16>, "shared">, i1) -> !ws.pending<!ws.frag<vector<64x32xf32>>>
  %2 = "ws.product"(%s, %p, %b, %more) {b_layout = "nk"} : (!ws.frag<vector<64x32xf32>>, !ws.frag<vector<64x16xbf16>>, !ws.tile<vector<32x16xbf16>, "shared">, i1) -> !ws.pending<!ws.frag<vector<64x32xf32>>>
  // CHECK: "ws.settle"({{.*}}) {newest = 1 : i64}
  %f = "ws.settle"(%1) {newest = 1 : i64} : (!ws.pending<!ws.frag<vector<64x32xf32>>>) -> !ws.frag<vector<64x32xf32>>
  %g = "ws.settle"(%2) {newest = 0 : i64} : (!ws.pending<!ws.frag<vector<64x32xf32>>>) -> !ws.frag<vector<64x32xf32>>
  func.return %f, %g : !ws.frag<vector<64x32xf32>>, !ws.frag<vector<64x32xf32>>
}

// A product that goes on with the sums of one that is pending, and takes its place in the order of issue.

// CHECK-LABEL: func.func @continued
func.func @continued(%s: !ws.frag<vector<64x32xf32>>, %a: !ws.tile<vector<64x16xbf16>, "shared">, %b: !ws.tile<vector<32x16xbf16>, "shared">, %more: i1) -> (!ws.frag<vector<64x32xf32>>, !ws.frag<vector<64x32xf32>>) {
  %1 = "ws.product"(%s, %a, %b, %more) {b_layout = "nk"} : (!ws.frag<vector<64x32xf32>>, !ws.tile<vector<64x16xbf16>, "shared">, !ws.tile<vector<32x16xbf16>, "shared">, i1) -> !ws.pending<!ws.frag<vector<64x32xf32>>>
  %2 = "ws.product"(%s, %a, %b, %more) {b_layout = "nk"} : (!ws.frag<vector<64x32xf32>>, !ws.tile<vector<64x16xbf16>, "shared">, !ws.tile<vector<32x16xbf16>, "shared">, i1) -> !ws.pending<!ws.frag<vector<64x32xf32>>>
  // CHECK: "ws.product"({{.*}}) {b_layout = "nk"} : (!ws.pending<!ws.frag<vector<64x32xf32>>>,
  %3 = "ws.product"(%1, %a, %b, %more) {b_layout = "nk"} : (!ws.pending<!ws.frag<vector<64x32xf32>>>, !ws.tile<vector<64x16xbf16>, "shared">, !ws.tile<vector<32x16xbf16>, "shared">, i1) -> !ws.pending<!ws.frag<vector<64x32xf32>>>
  %f = "ws.settle"(%2) {newest = 1 : i64} : (!ws.pending<!ws.frag<vector<64x32xf32>>>) -> !ws.frag<vector<64x32xf32>>
  %g = "ws.settle"(%3) {newest = 0 : i64} : (!ws.pending<!ws.frag<vector<64x32xf32>>>) -> !ws.frag<vector<64x32xf32>>
  func.return %f, %g : !ws.frag<vector<64x32xf32>>, !ws.frag<vector<64x32xf32>>
}
