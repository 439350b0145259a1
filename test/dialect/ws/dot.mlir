// RUN: attn-opt --cse %s | attn-opt | FileCheck %s

// A product of fragments is a function of its operands: it is computed once.

// CHECK-LABEL: func.func @once
// CHECK: %[[D:.*]] = "ws.dot"(%{{.*}}, %{{.*}}, %{{.*}}) {b_layout = "nk"}
// CHECK-NOT: ws.dot
// CHECK: return %[[D]], %[[D]]
!d = !ws.frag<vector<16x64xf32>>
!a = !ws.frag<vector<16x32xbf16>>
!b = !ws.frag<vector<64x32xbf16>>
func.func @once(%d: !d, %a: !a, %b: !b) -> (!d, !d) {
  %0 = "ws.dot"(%d, %a, %b) {b_layout = "nk"} : (!d, !a, !b) -> !d
  %1 = "ws.dot"(%d, %a, %b) {b_layout = "nk"} : (!d, !a, !b) -> !d
  return %0, %1 : !d, !d
}
