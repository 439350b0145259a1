// RUN: attn-opt --ws-plan-memory --convert-ws-to-nvvm %s | FileCheck %s

// Work tiles of a ragged batch: the CTA's number, counted from the last one, leads to its sequence by bisection.

// CHECK-LABEL: llvm.func @ragged
// CHECK: %[[X:.*]] = nvvm.read.ptx.sreg.ctaid.x
// CHECK: %[[Y:.*]] = nvvm.read.ptx.sreg.ctaid.y
// CHECK: %[[Z:.*]] = nvvm.read.ptx.sreg.ctaid.z
// CHECK: arith.divui %[[ROWS:.*]], %[[SIZE:.*]] :
// CHECK: %[[NUMBER:.*]] = arith.subi %{{.*}}, %[[X]]
// CHECK: %[[FOUND:.*]]:2 = scf.while (%[[LOW:.*]] = %{{.*}}, %[[HIGH:.*]] = %{{.*}})
// CHECK: arith.cmpi sgt
// CHECK: scf.condition

// An end is moved into the tensor, and so is its place in the list.
// CHECK: %[[MIDDLE:.*]] = arith.shrui
// CHECK: arith.minsi %[[MIDDLE]],
// CHECK: %[[END:.*]] = llvm.load %{{.*}} invariant
// CHECK: arith.maxsi %[[END]],
// CHECK: arith.minsi %{{.*}}, %[[ROWS]]
// CHECK: arith.divui %{{.*}}, %[[SIZE]]
// CHECK: %[[BEFORE:.*]] = arith.cmpi sle, %{{.*}}, %[[NUMBER]]
// CHECK: arith.select %[[BEFORE]], %[[MIDDLE]], %{{.*}}
// CHECK: arith.select %[[BEFORE]], %{{.*}}, %[[MIDDLE]]

// The block within the sequence, for rows in front of the first one a block past the end; parts of the keys have the last coordinate's upper digits.
// CHECK: llvm.load
// CHECK: %[[BLOCK:.*]] = arith.subi %[[NUMBER]],
// CHECK: %[[FRONT:.*]] = arith.cmpi slt, %[[BLOCK]],
// CHECK: arith.select %[[FRONT]], %{{.*}}, %[[BLOCK]]
// CHECK: %[[PART:.*]] = arith.muli %[[Z]],
// CHECK: arith.addi %[[PART]], %[[FOUND]]#0
"ws.kernel"() ({
^bb0(%x: memref<?x64xf32>, %ends: memref<?xi32>, %y: memref<?x?x?xf32>):
  "ws.role"() ({
  ^bb0(%g: i32):
    %size = arith.constant 128 : i32
    %one = arith.constant 1 : i32
    %rows = "ws.extent"(%x) {dim = 0 : i64} : (memref<?x64xf32>) -> i32
    %n = "ws.extent"(%ends) {dim = 0 : i64} : (memref<?xi32>) -> i32
    %count = arith.subi %n, %one : i32
    "ws.tiles"(%rows, %size, %count, %ends, %count, %rows, %size) ({
    ^bb0(%block: i32, %head: i32, %sequence: i32):
      %zero = arith.constant 0.0 : f32
      %row = "ws.fill"(%zero) : (f32) -> !ws.frag<vector<128xf32>>
      "ws.store_global"(%row, %y, %sequence, %head, %block) {dims = array<i32: 2>, operandSegmentSizes = array<i32: 1, 1, 3>}
        : (!ws.frag<vector<128xf32>>, memref<?x?x?xf32>, i32, i32, i32) -> ()
    }) {order = "ragged", operandSegmentSizes = array<i32: 3, 1, 3>} : (i32, i32, i32, memref<?xi32>, i32, i32, i32) -> ()
  }) {label_name = "rows", warps = array<i32: 0, 4>, groups = 1 : i64, lanes = 32 : i64, registers = 0 : i64} : () -> ()
}) {sym_name = "ragged", arg_names = ["x", "ends", "y"], arg_roles = ["in", "in", "out"], arg_dims = [["total", ""], ["ends"], ["a", "b", "c"]]} : () -> ()
