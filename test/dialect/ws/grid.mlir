// RUN: attn-opt %s | attn-opt | FileCheck %s

// What CTAs owe one another, and fragments from tensors that other CTAs have written.

// CHECK-LABEL: func.func @last
// CHECK: %[[LAST:.*]] = "ws.arrive_last"(%{{.*}}, %{{.*}}, %{{.*}}) {{.*}} : (memref<?xi32>, i32, i32) -> i1
// CHECK: scf.if %[[LAST]]
// CHECK: "ws.load_global"(%{{.*}}, %{{.*}}, %{{.*}}, %{{.*}}) {dims = array<i32: 1, 2>
func.func @last(%counter: memref<?xi32>, %sums: memref<?x?x?xf32>, %tile: i32, %parts: i32) {
  %last = "ws.arrive_last"(%counter, %tile, %parts) {operandSegmentSizes = array<i32: 1, 1, 1>}
    : (memref<?xi32>, i32, i32) -> i1
  scf.if %last {
    %part = "ws.load_global"(%sums, %tile, %tile, %tile)
      {dims = array<i32: 1, 2>, operandSegmentSizes = array<i32: 1, 3>}
      : (memref<?x?x?xf32>, i32, i32, i32) -> !ws.frag<vector<16x64xf32>>
  }
  func.return
}

// CHECK-LABEL: func.func @overlap
// CHECK: "ws.grid_dependency_wait"() : () -> ()
// CHECK-NEXT: "ws.launch_dependents"() : () -> ()
func.func @overlap() {
  "ws.grid_dependency_wait"() : () -> ()
  "ws.launch_dependents"() : () -> ()
  func.return
}

// CHECK-LABEL: func.func @add
// CHECK: "ws.reduce_out"(%{{.*}}, %{{.*}}, %{{.*}}, %{{.*}}) {dims = array<i32: 0, 1>, kind = "add"
func.func @add(%tile: !ws.tile<vector<128x32xf32>, "shared">, %sums: memref<?x?xf32>, %row: i32) {
  "ws.reduce_out"(%tile, %sums, %row, %row)
    {dims = array<i32: 0, 1>, kind = "add", operandSegmentSizes = array<i32: 1, 1, 2>}
    : (!ws.tile<vector<128x32xf32>, "shared">, memref<?x?xf32>, i32, i32) -> ()
  func.return
}

// CHECK-LABEL: func.func @turns
// CHECK: "ws.await_turn"(%{{.*}}, %{{.*}}, %{{.*}}, %[[BLOCK:.*]]) {{.*}} : (memref<?x?xi32>, i32, i32, i32) -> ()
// CHECK: %[[NEXT:.*]] = arith.addi %[[BLOCK]], %{{.*}}
// CHECK: "ws.set_turn"(%{{.*}}, %{{.*}}, %{{.*}}, %[[NEXT]]) {{.*}} : (memref<?x?xi32>, i32, i32, i32) -> ()
func.func @turns(%turns: memref<?x?xi32>, %tile: i32, %block: i32, %one: i32) {
  "ws.await_turn"(%turns, %tile, %tile, %block) {operandSegmentSizes = array<i32: 1, 2, 1>}
    : (memref<?x?xi32>, i32, i32, i32) -> ()
  %next = arith.addi %block, %one : i32
  "ws.set_turn"(%turns, %tile, %tile, %next) {operandSegmentSizes = array<i32: 1, 2, 1>}
    : (memref<?x?xi32>, i32, i32, i32) -> ()
  func.return
}
