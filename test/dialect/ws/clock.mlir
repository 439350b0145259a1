// RUN: attn-opt %s | attn-opt | FileCheck %s
// RUN: attn-opt --cse %s | FileCheck %s --check-prefix=CSE

// Two readings of the cycle counter are not one.

// CHECK-LABEL: func.func @times
// CHECK: %[[BEGIN:.*]] = "ws.clock"() : () -> i32
// CHECK: %[[END:.*]] = "ws.clock"() : () -> i32
// CHECK: "ws.store_entry"(%[[BEGIN]], %{{.*}}, %{{.*}}, %{{.*}}) {{.*}} : (i32, memref<?x3xi32>, i32, i32) -> ()
// CSE-COUNT-2: "ws.clock"
func.func @times(%clocks: memref<?x3xi32>, %i: i32) {
  %begin = "ws.clock"() : () -> i32
  %end = "ws.clock"() : () -> i32
  "ws.store_entry"(%begin, %clocks, %i, %i) {operandSegmentSizes = array<i32: 1, 1, 2>}
    : (i32, memref<?x3xi32>, i32, i32) -> ()
  func.return
}
