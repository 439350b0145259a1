// RUN: attn-opt --cse %s | attn-opt | FileCheck %s

// What is asked of the L2 cache ahead: hints stay, and the number of a CTA is computed once.

// CHECK-LABEL: func.func @ahead
// CHECK: %[[CTA:.*]] = "ws.cta"() : () -> i32
// CHECK-NOT: ws.cta
// CHECK: "ws.prefetch_line"(%{{.*}}, %[[CTA]], %{{.*}}, %{{.*}}) {{.*}} : (memref<?x?xi32>, i32, i32, i32) -> ()
// CHECK: "ws.prefetch_line"
// CHECK: "ws.prefetch_box"(%{{.*}}, %[[CTA]], %{{.*}}, %{{.*}}, %{{.*}}) {dims = array<i32: 1, 3>
// CHECK-SAME: tile = !ws.tile<vector<128x64xbf16>, "shared">
func.func @ahead(%table: memref<?x?xi32>, %k: memref<?x?x4x64xbf16>, %zero: i32, %columns: i32) {
  %cta = "ws.cta"() : () -> i32
  %same = "ws.cta"() : () -> i32
  "ws.prefetch_line"(%table, %cta, %zero, %columns) {operandSegmentSizes = array<i32: 1, 2, 1>}
    : (memref<?x?xi32>, i32, i32, i32) -> ()
  "ws.prefetch_line"(%table, %same, %zero, %columns) {operandSegmentSizes = array<i32: 1, 2, 1>}
    : (memref<?x?xi32>, i32, i32, i32) -> ()
  "ws.prefetch_box"(%k, %same, %zero, %zero, %zero)
    {dims = array<i32: 1, 3>, operandSegmentSizes = array<i32: 1, 4>,
     tile = !ws.tile<vector<128x64xbf16>, "shared">}
    : (memref<?x?x4x64xbf16>, i32, i32, i32, i32) -> ()
  func.return
}
