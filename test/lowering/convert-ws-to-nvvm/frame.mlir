// RUN: attn-opt --split-input-file --ws-plan-memory --convert-ws-to-nvvm --convert-ws-to-nvvm %s | FileCheck %s

// The frame of a kernel: parameters, prologue, dispatch of warps, epilogue. A second application
// finds nothing to convert.

// Tensor maps first, then pointers, strides of all but the last axis, sizes, scalars.
// CHECK-LABEL: gpu.module @full_module
// CHECK-SAME: chip = "sm_100a"
// CHECK: llvm.mlir.global external @dynamic_smem() {addr_space = 3 : i32, alignment = 1024 : i64}
// CHECK: llvm.func @full(%{{.*}}: !llvm.ptr {llvm.align = 64 : i64, llvm.byval = !llvm.array<128 x i8>, nvvm.grid_constant}, %{{.*}}: !llvm.ptr<1>, %{{.*}}: i64, %[[M:.*]]: i32, %{{.*}}: f32)
// CHECK-SAME: gpu.kernel
// CHECK-SAME: nvvm.kernel
// CHECK-SAME: nvvm.minctasm = 1 : i32
// CHECK-SAME: nvvm.reqntid = array<i32: 512, 1, 1>

// The CTA's last warp takes tensor memory; warp 0 prepares barriers and maps; all meet.
// CHECK: %[[TID:.*]] = nvvm.read.ptx.sreg.tid.x
// CHECK: %[[WARP:.*]] = nvvm.shfl.sync idx
// CHECK: %[[LAST:.*]] = arith.constant 15 : i32
// CHECK: arith.cmpi eq, %[[WARP]], %[[LAST]]
// CHECK: %[[COLS:.*]] = arith.constant 64 : i32
// CHECK-NEXT: nvvm.tcgen05.alloc %{{.*}}, %[[COLS]]
// CHECK-NEXT: nvvm.tcgen05.relinquish_alloc_permit
// CHECK-NEXT: nvvm.tcgen05.fence <before>
// CHECK: nvvm.elect.sync
// CHECK: nvgpu.mbarrier.init
// CHECK: nvvm.fence.mbarrier.init
// CHECK: nvgpu.tma.prefetch.descriptor
// CHECK: nvvm.bar.warp.sync
// CHECK: nvvm.barrier
// CHECK-NEXT: nvvm.tcgen05.fence <after>
// CHECK: %[[BASE:.*]] = llvm.load %{{.*}} : !llvm.ptr<3> -> i32

// Warpgroup 0 gives registers, warpgroup 1 takes them; a narrow role is a further branch, and with
// one lane an elected thread.
// CHECK: %[[FOUR:.*]] = arith.constant 4 : i32
// CHECK-NEXT: %[[IS0:.*]] = arith.cmpi slt, %[[WARP]], %[[FOUR]]
// CHECK-NEXT: scf.if %[[IS0]]
// CHECK: nvvm.setmaxregister decrease 24
// CHECK: nvvm.elect.sync
// CHECK: arith.constant 1000
// CHECK: } else {
// CHECK: nvvm.setmaxregister increase 256
// CHECK-NOT: nvvm.elect.sync
// CHECK: arith.constant 1001
// CHECK: } else {
// CHECK: nvvm.setmaxregister decrease 24

// All meet again before tensor memory goes back, their accesses to it in order.
// CHECK: nvvm.tcgen05.fence <before>
// CHECK-NEXT: nvvm.barrier
// CHECK: nvvm.tcgen05.fence <after>
// CHECK: nvvm.tcgen05.dealloc
// CHECK: llvm.return

!t = !ws.tile<vector<64x64xbf16>, "shared">
!ring = !ws.ring<!t, 2, 1>
"ws.kernel"() ({
^bb0(%x: memref<?x64xbf16>, %y: memref<?x64xf32>, %s: f32):
  %r = "ws.alloc_ring"() {label_name = "r"} : () -> !ring
  %b = "ws.alloc_buffer"() {label_name = "b"} : () -> !ws.buffer<!ws.tile<vector<128x64xf32>, "tensor">, 1>
  "ws.role"() ({
  ^bb0(%g: i32):
    %zero = arith.constant 0 : i32
    %m0 = arith.constant 1000 : i32
    %a0 = "ws.acquire"(%r, %zero) : (!ring, i32) -> !t
    "ws.copy_in"(%x, %a0, %zero, %zero)
      {dims = array<i32: 0, 1>, operandSegmentSizes = array<i32: 1, 1, 2>} : (memref<?x64xbf16>, !t, i32, i32) -> ()
    "ws.commit"(%a0) {by = "copy_engine"} : (!t) -> ()
  }) {label_name = "load", warps = array<i32: 1, 1>, groups = 1 : i64, lanes = 1 : i64, registers = 24 : i64} : () -> ()
  "ws.role"() ({
  ^bb0(%g: i32):
    %zero = arith.constant 0 : i32
    %m1 = arith.constant 1001 : i32
    %a0 = "ws.wait"(%r, %zero) : (!ring, i32) -> !t
    "ws.release"(%a0) {by = "threads"} : (!t) -> ()
    %f = "ws.fill"(%s) : (f32) -> !ws.frag<vector<128x64xf32>>
    "ws.store_global"(%f, %y, %zero, %zero)
      {dims = array<i32: 0, 1>, operandSegmentSizes = array<i32: 1, 1, 2>}
      : (!ws.frag<vector<128x64xf32>>, memref<?x64xf32>, i32, i32) -> ()
  }) {label_name = "rows", warps = array<i32: 4, 4>, groups = 1 : i64, lanes = 32 : i64, registers = 256 : i64} : () -> ()
  "ws.role"() ({
  ^bb0(%g: i32):
  }) {label_name = "idle", warps = array<i32: 12, 1>, groups = 1 : i64, lanes = 1 : i64, registers = 24 : i64} : () -> ()
}) {sym_name = "full", arg_names = ["x", "y", "s"], arg_roles = ["in", "out", "scalar"], arg_dims = [["m", ""], ["m", ""], []]} : () -> ()

// -----

// Nothing is allocated, fetched or limited that the kernel does not use.

// CHECK-LABEL: llvm.func @bare()
// CHECK-NOT: tcgen05
// CHECK-NOT: setmaxregister
// CHECK-NOT: nvgpu
// CHECK: nvvm.bar.warp.sync
// CHECK-NOT: tcgen05
// CHECK-NOT: setmaxregister
// CHECK: llvm.return
"ws.kernel"() ({
^bb0:
  "ws.role"() ({
  ^bb0(%g: i32):
    "ws.barrier"() : () -> ()
  }) {label_name = "rows", warps = array<i32: 0, 4>, groups = 1 : i64, lanes = 32 : i64, registers = 0 : i64} : () -> ()
}) {sym_name = "bare", arg_names = [], arg_roles = [], arg_dims = []} : () -> ()

// -----

// Groups, barriers and tiles: the group from the warp, a named barrier of 128 threads per group,
// coordinates from the grid; the first one counted down where the last tiles are to start first.

// CHECK-LABEL: llvm.func @groups
// CHECK: %[[GROUP:.*]] = arith.divui
// CHECK: arith.constant 1000
// CHECK-DAG: nvvm.read.ptx.sreg.ctaid.x
// CHECK-DAG: nvvm.read.ptx.sreg.ctaid.y
// CHECK: %[[ID:.*]] = arith.addi %[[GROUP]], %{{.*}}
// CHECK: %[[COUNT:.*]] = arith.constant 128 : i32
// CHECK: nvvm.barrier id = %[[ID]] number_of_threads = %[[COUNT]]
// CHECK: arith.constant 1001
// CHECK: %[[X:.*]] = nvvm.read.ptx.sreg.ctaid.x
// CHECK: %[[TOP:.*]] = arith.subi %{{.*}}, %{{.*}}
// CHECK: arith.subi %[[TOP]], %[[X]]
// CHECK: arith.constant 1002
// CHECK: %[[FIRST:.*]] = nvvm.read.ptx.sreg.ctaid.x
// CHECK: %[[STEP:.*]] = nvvm.read.ptx.sreg.nctaid.x
// CHECK: scf.for %[[I:.*]] = %[[FIRST]] to %{{.*}} step %[[STEP]]
// CHECK: arith.remui %[[I]]
// CHECK: arith.divui %[[I]]
"ws.kernel"() ({
^bb0(%x: memref<?x?xf32>):
  "ws.role"() ({
  ^bb0(%g: i32):
    %m = "ws.extent"(%x) {dim = 0 : i64} : (memref<?x?xf32>) -> i32
    %n = "ws.extent"(%x) {dim = 1 : i64} : (memref<?x?xf32>) -> i32
    %m0 = arith.constant 1000 : i32
    "ws.tiles"(%m, %n) ({
    ^bb0(%i: i32, %j: i32):
      "ws.barrier"() : () -> ()
    }) {order = "single", operandSegmentSizes = array<i32: 2, 0, 0>} : (i32, i32) -> ()
    %m1 = arith.constant 1001 : i32
    "ws.tiles"(%m, %n) ({
    ^bb0(%i: i32, %j: i32):
      %used = arith.addi %i, %j : i32
    }) {order = "last_first", operandSegmentSizes = array<i32: 2, 0, 0>} : (i32, i32) -> ()
    %m2 = arith.constant 1002 : i32
    "ws.tiles"(%m, %n) ({
    ^bb0(%i: i32, %j: i32):
      %used = arith.addi %i, %j : i32
    }) {order = "persistent", operandSegmentSizes = array<i32: 2, 0, 0>} : (i32, i32) -> ()
  }) {label_name = "rows", warps = array<i32: 4, 8>, groups = 2 : i64, lanes = 32 : i64, registers = 0 : i64} : () -> ()
}) {sym_name = "groups", arg_names = ["x"], arg_roles = ["in"], arg_dims = [["m", "n"]]} : () -> ()
