// RUN: attn-opt --split-input-file --ws-plan-memory --convert-ws-to-nvvm %s | FileCheck %s

// Registers and tiles.

// Tensor memory by 32 columns, all of it waited for at once; row 32 (w mod 4) + t in lane bits
// 16..22. Reading back what the same thread has stored waits for the stores first; other columns
// do not.
// CHECK-LABEL: llvm.func @tensor
// CHECK: %[[LANES:.*]] = arith.constant 2097152 : i32
// CHECK-NEXT: arith.muli %{{.*}}, %[[LANES]]
// CHECK: arith.constant 1000
// CHECK: nvvm.tcgen05.ld %{{.*}} : vector<32xi32>
// CHECK: nvvm.tcgen05.ld %{{.*}} : vector<8xi32>
// CHECK: llvm.inline_asm has_side_effects "tcgen05.wait::ld.sync.aligned;"
// CHECK: vector.bitcast %{{.*}} : vector<32xi32> to vector<32xf32>
// CHECK: vector.bitcast %{{.*}} : vector<8xi32> to vector<8xf32>
// CHECK: arith.constant 1001
// CHECK: nvvm.tcgen05.st %{{.*}}, %{{.*}} : vector<32xi32>
// CHECK: nvvm.tcgen05.st %{{.*}}, %{{.*}} : vector<8xi32>
// CHECK: arith.constant 1002
// CHECK-NOT: tcgen05.wait <store>
// CHECK: nvvm.tcgen05.ld
// CHECK: arith.constant 1003
// CHECK: nvvm.tcgen05.wait <store>
// CHECK: nvvm.tcgen05.ld
// CHECK: arith.constant 1004
// CHECK-NOT: tcgen05.wait <store>
// CHECK: nvvm.tcgen05.ld
// CHECK: arith.constant 1005
// CHECK: nvvm.tcgen05.st
// CHECK: nvvm.tcgen05.wait <store>
// CHECK: nvvm.tcgen05.ld
// CHECK: arith.constant 1006
// CHECK: scf.for
// CHECK-NOT: tcgen05.wait <store>
// CHECK: nvvm.tcgen05.ld
// CHECK: nvvm.tcgen05.st
// CHECK: nvvm.tcgen05.wait <store>
// CHECK-NEXT: }
// CHECK: arith.constant 1007
// CHECK: scf.if
// CHECK: nvvm.tcgen05.st
// CHECK-NOT: tcgen05.wait <store>
// CHECK: }
// CHECK: nvvm.tcgen05.wait <store>
// CHECK: nvvm.tcgen05.ld
// CHECK: arith.constant 1008
// CHECK: nvvm.tcgen05.st
// CHECK: nvvm.tcgen05.wait <store>
// CHECK: nvvm.tcgen05.dealloc
!t = !ws.tile<vector<128x40xf32>, "tensor">
!p = !ws.tile<vector<128x8xf32>, "tensor">
!b = !ws.buffer<!t, 2>
!f = !ws.frag<vector<128x40xf32>>
!g = !ws.frag<vector<128x8xf32>>
"ws.kernel"() ({
^bb0:
  %b = "ws.alloc_buffer"() {label_name = "b"} : () -> !b
  %other = "ws.alloc_buffer"() {label_name = "other"} : () -> !b
  "ws.role"() ({
  ^bb0(%g: i32):
    %zero = arith.constant 0 : i32
    %one = arith.constant 1 : i32
    %yes = arith.constant true
    %t = "ws.at"(%b, %zero) : (!b, i32) -> !t
    %left = "ws.columns"(%t) {first = 0 : i64} : (!t) -> !p
    %right = "ws.columns"(%t) {first = 8 : i64} : (!t) -> !p
    %m0 = arith.constant 1000 : i32
    %f = "ws.load"(%t) : (!t) -> !f
    %g0 = "ws.load"(%left) : (!p) -> !g
    %m1 = arith.constant 1001 : i32
    "ws.store"(%f, %t) : (!f, !t) -> ()
    %m2 = arith.constant 1002 : i32
    %u = "ws.at"(%other, %zero) : (!b, i32) -> !t
    %f1 = "ws.load"(%u) : (!t) -> !f
    %m3 = arith.constant 1003 : i32
    %g1 = "ws.load"(%right) : (!p) -> !g
    %m4 = arith.constant 1004 : i32
    "ws.store"(%g0, %left) : (!g, !p) -> ()
    %g2 = "ws.load"(%right) : (!p) -> !g
    %m5 = arith.constant 1005 : i32
    %instance = "ws.at"(%b, %g) : (!b, i32) -> !t
    "ws.store"(%f, %instance) : (!f, !t) -> ()
    %g3 = "ws.load"(%left) : (!p) -> !g
    %m6 = arith.constant 1006 : i32
    scf.for %i = %zero to %one step %one : i32 {
      %g4 = "ws.load"(%left) : (!p) -> !g
      "ws.store"(%g4, %left) : (!g, !p) -> ()
    }
    %m7 = arith.constant 1007 : i32
    scf.if %yes {
      "ws.store"(%g0, %left) : (!g, !p) -> ()
    }
    %g5 = "ws.load"(%left) : (!p) -> !g
    %m8 = arith.constant 1008 : i32
    "ws.store"(%g0, %left) : (!g, !p) -> ()
  }) {label_name = "rows", warps = array<i32: 0, 4>, groups = 1 : i64, lanes = 32 : i64, registers = 0 : i64} : () -> ()
}) {sym_name = "tensor", arg_names = [], arg_roles = [], arg_dims = []} : () -> ()

// -----

// 16-bit columns in pairs: rounded two at a time into a register, stored by units of 16 bytes with
// the unit's number XOR the row mod 8. Rows of a shared vector: one element per thread.
// CHECK-LABEL: llvm.func @shared
// CHECK: arith.constant 1000
// CHECK: arith.truncf %{{.*}} : vector<2xf32> to vector<2xbf16>
// CHECK: arith.constant 1001
// CHECK: %[[LINE:.*]] = arith.constant 128 : i32
// CHECK: arith.muli %{{.*}}, %[[LINE]]
// CHECK: %[[SEVEN:.*]] = arith.constant 7 : i32
// CHECK: %[[TURN:.*]] = arith.andi %{{.*}}, %[[SEVEN]]
// CHECK: arith.muli %[[TURN]]
// CHECK: arith.xori
// CHECK: llvm.store %{{.*}} {alignment = 16 : i64} : vector<4xi32>, !llvm.ptr<3>
// CHECK: arith.xori
// CHECK: llvm.store %{{.*}} {alignment = 16 : i64} : vector<4xi32>, !llvm.ptr<3>
// CHECK: arith.constant 1002
// CHECK: llvm.store %{{.*}} : f32, !llvm.ptr<3>
// CHECK: llvm.load %{{.*}} : !llvm.ptr<3> -> f32
// CHECK: arith.constant 1003
// CHECK: nvvm.vote.sync
// CHECK: arith.constant 1004
// CHECK: vector.reduction <maxnumf>
// CHECK: arith.constant 1005
// CHECK: arith.addf %{{.*}} : vector<8xf32>
// CHECK: arith.addf %{{.*}} : vector<4xf32>
// CHECK: arith.addf %{{.*}} : vector<2xf32>
// CHECK: arith.constant 1006
// CHECK: math.exp2 %{{.*}} fastmath<afn> : vector<14xf32>
// CHECK: nvvm.inline_ptx "add.rm.ftz.f32x2
// CHECK: arith.constant 1007
// CHECK: arith.cmpi slt
// CHECK: scf.if
// CHECK: llvm.store %{{.*}} : f32, !llvm.ptr<1>
// CHECK: arith.constant 1008
!t = !ws.tile<vector<128x16xbf16>, "shared">
!v = !ws.tile<vector<128xf32>, "shared">
!full = !ws.frag<vector<128x16xf32>>
!half = !ws.frag<vector<128x16xbf16>>
!row = !ws.frag<vector<128xf32>>
"ws.kernel"() ({
^bb0(%x: f32, %z: memref<?xf32>):
  %b = "ws.alloc_buffer"() {label_name = "b"} : () -> !ws.buffer<!t, 1>
  %c = "ws.alloc_buffer"() {label_name = "c"} : () -> !ws.buffer<!v, 1>
  "ws.role"() ({
  ^bb0(%g: i32):
    %zero = arith.constant 0 : i32
    %t = "ws.at"(%b, %zero) : (!ws.buffer<!t, 1>, i32) -> !t
    %v = "ws.at"(%c, %zero) : (!ws.buffer<!v, 1>, i32) -> !v
    %f = "ws.fill"(%x) : (f32) -> !full
    %r = "ws.fill"(%x) : (f32) -> !row
    %m0 = arith.constant 1000 : i32
    %h = "ws.map"(%f) ({
    ^bb0(%e: f32, %i: i32, %j: i32):
      %n = arith.truncf %e : f32 to bf16
      "ws.yield"(%n) : (bf16) -> ()
    }) {operandSegmentSizes = array<i32: 1>} : (!full) -> !half
    %m1 = arith.constant 1001 : i32
    "ws.store"(%h, %t) : (!half, !t) -> ()
    %m2 = arith.constant 1002 : i32
    "ws.store"(%r, %v) : (!row, !v) -> ()
    %back = "ws.load"(%v) : (!v) -> !row
    %low = "ws.map"(%back) ({
    ^bb0(%e: f32, %i: i32):
      %n = arith.cmpf olt, %e, %x : f32
      "ws.yield"(%n) : (i1) -> ()
    }) {operandSegmentSizes = array<i32: 1>} : (!row) -> !ws.frag<vector<128xi1>>
    %m3 = arith.constant 1003 : i32
    %any = "ws.any"(%low) : (!ws.frag<vector<128xi1>>) -> i1
    %m4 = arith.constant 1004 : i32
    %max = "ws.reduce"(%f, %back) {kind = "max"} : (!full, !row) -> !row
    %m5 = arith.constant 1005 : i32
    %sum = "ws.reduce"(%f, %back) {kind = "add"} : (!full, !row) -> !row
    %m6 = arith.constant 1006 : i32
    %p = "ws.exp2"(%f) {fma_period = 8 : i64, fma_count = 2 : i64, fma_begin = 8 : i64, fma_end = 16 : i64} : (!full) -> !full
    %m7 = arith.constant 1007 : i32
    "ws.store_global"(%sum, %z, %zero)
      {dims = array<i32: 0>, operandSegmentSizes = array<i32: 1, 1, 1>} : (!row, memref<?xf32>, i32) -> ()
    %m8 = arith.constant 1008 : i32
  }) {label_name = "rows", warps = array<i32: 0, 4>, groups = 1 : i64, lanes = 32 : i64, registers = 0 : i64} : () -> ()
}) {sym_name = "shared", arg_names = ["x", "z"], arg_roles = ["scalar", "out"], arg_dims = [[], ["m"]]} : () -> ()
