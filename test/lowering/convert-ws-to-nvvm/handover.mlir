// RUN: attn-opt --ws-plan-memory --convert-ws-to-nvvm --attn-check-stage=stage=nvvm %s | FileCheck %s

// What stands around a handover follows from who touches the slot. Constants from 1000 on mark the
// places; barriers lie in the order of the rings, for each full before empty.

// Where they lie.
// CHECK: %[[AFP:[0-9]+]] = llvm.getelementptr %{{.*}}[%c16384_i32]
// CHECK: %[[AEP:[0-9]+]] = llvm.getelementptr %{{.*}}[%c16392_i32]
// CHECK: %[[BFP:[0-9]+]] = llvm.getelementptr %{{.*}}[%c16400_i32]
// CHECK: %[[BEP:[0-9]+]] = llvm.getelementptr %{{.*}}[%c16408_i32]
// CHECK: %[[CFP:[0-9]+]] = llvm.getelementptr %{{.*}}[%c16416_i32]
// CHECK: %[[CEP:[0-9]+]] = llvm.getelementptr %{{.*}}[%c16424_i32]
// CHECK: %[[DFP:[0-9]+]] = llvm.getelementptr %{{.*}}[%c16432_i32]
// CHECK: %[[DEP:[0-9]+]] = llvm.getelementptr %{{.*}}[%c16440_i32]
// CHECK: %[[EFP:[0-9]+]] = llvm.getelementptr %{{.*}}[%c16448_i32]
// CHECK: %[[EEP:[0-9]+]] = llvm.getelementptr %{{.*}}[%c16456_i32]

// Barriers are set up by one thread, with the arrivals of the other side: 128 threads or one engine.
// CHECK: nvgpu.mbarrier.init %[[AF:[0-9]+]][{{.*}}], %c128{{.*}} :
// CHECK: nvgpu.mbarrier.init %[[AE:[0-9]+]][{{.*}}], %c1{{(_[0-9]+)?}} :
// CHECK: nvgpu.mbarrier.init %[[BF:[0-9]+]][{{.*}}], %c128{{.*}} :
// CHECK: nvgpu.mbarrier.init %[[BE:[0-9]+]][{{.*}}], %c1{{(_[0-9]+)?}} :
// CHECK: nvgpu.mbarrier.init %[[CF:[0-9]+]][{{.*}}], %c128{{.*}} :
// CHECK: nvgpu.mbarrier.init %[[CE:[0-9]+]][{{.*}}], %c1{{(_[0-9]+)?}} :
// CHECK: nvgpu.mbarrier.init %[[DF:[0-9]+]][{{.*}}], %c1{{(_[0-9]+)?}} :
// CHECK: nvgpu.mbarrier.init %[[DE:[0-9]+]][{{.*}}], %c128{{.*}} :
// CHECK: nvgpu.mbarrier.init %[[EF:[0-9]+]][{{.*}}], %c1{{(_[0-9]+)?}} :
// CHECK: nvgpu.mbarrier.init %[[EE:[0-9]+]][{{.*}}], %c128{{.*}} :
// CHECK: nvvm.fence.mbarrier.init

// Threads fill a shared tile that the copy engine reads: their writes reach the async proxy.
// CHECK: arith.constant 1000
// CHECK-NOT: tcgen05
// CHECK: %[[AT:[0-9]+]] = llvm.getelementptr %[[AEP]]
// CHECK: nvvm.mbarrier.try_wait.parity %[[AT]]
// CHECK-NOT: tcgen05
// CHECK: nvvm.fence.proxy {kind = #nvvm.proxy_kind<async.shared>, space = #nvvm.shared_space<cta>}
// CHECK: nvgpu.mbarrier.arrive %[[AF]]

// Threads fill shared rows that threads read: nothing but the arrival.
// CHECK: arith.constant 1001
// CHECK: %[[AT:[0-9]+]] = llvm.getelementptr %[[BEP]]
// CHECK: nvvm.mbarrier.try_wait.parity %[[AT]]
// CHECK-NOT: fence
// CHECK-NOT: tcgen05
// CHECK: nvgpu.mbarrier.arrive %[[BF]]

// Threads fill tensor memory: stores done, ordered before the arrival.
// CHECK: arith.constant 1002
// CHECK: %[[AT:[0-9]+]] = llvm.getelementptr %[[CEP]]
// CHECK: nvvm.mbarrier.try_wait.parity %[[AT]]
// CHECK: nvvm.tcgen05.fence <after>
// CHECK-NOT: fence.proxy
// CHECK: nvvm.tcgen05.wait <store>
// CHECK-NEXT: nvvm.tcgen05.fence <before>
// CHECK: nvgpu.mbarrier.arrive %[[CF]]

// Threads read what the tensor core has filled, and hand it back: no stores to wait for.
// CHECK: arith.constant 1003
// CHECK: %[[AT:[0-9]+]] = llvm.getelementptr %[[DFP]]
// CHECK: nvvm.mbarrier.try_wait.parity %[[AT]]
// CHECK: nvvm.tcgen05.fence <after>
// CHECK: nvvm.tcgen05.ld
// CHECK-NOT: nvvm.tcgen05.wait <store>
// CHECK: nvvm.tcgen05.fence <before>
// CHECK: nvgpu.mbarrier.arrive %[[DE]]

// Once more, unread: there is no access to order.
// CHECK: arith.constant 1011
// CHECK: nvvm.tcgen05.fence <after>
// CHECK-NOT: nvvm.tcgen05.fence <before>
// CHECK: nvgpu.mbarrier.arrive %[[DE]]

// Threads hand back what the copy engine has filled: nothing but the arrival.
// CHECK: arith.constant 1004
// CHECK: %[[AT:[0-9]+]] = llvm.getelementptr %[[EFP]]
// CHECK: nvvm.mbarrier.try_wait.parity %[[AT]]
// CHECK-NOT: fence
// CHECK: nvgpu.mbarrier.arrive %[[EE]]

// The copy engine hands back when its stores have read: the group is committed and waited for.
// CHECK: arith.constant 1005
// CHECK: %[[AT:[0-9]+]] = llvm.getelementptr %[[AFP]]
// CHECK: nvvm.mbarrier.try_wait.parity %[[AT]]
// CHECK: nvvm.cp.async.bulk.commit.group
// CHECK-NEXT: nvvm.cp.async.bulk.wait_group 0 {read}
// CHECK: nvgpu.mbarrier.arrive %[[AE]]

// One thread reads shared rows.
// CHECK: arith.constant 1006
// CHECK: %[[AT:[0-9]+]] = llvm.getelementptr %[[BFP]]
// CHECK: nvvm.mbarrier.try_wait.parity %[[AT]]
// CHECK-NOT: fence
// CHECK: nvgpu.mbarrier.arrive %[[BE]]

// The tensor core hands over and back by commits of its own; no thread arrives.
// CHECK: arith.constant 1007
// CHECK: %[[AT:[0-9]+]] = llvm.getelementptr %[[CFP]]
// CHECK: nvvm.mbarrier.try_wait.parity %[[AT]]
// CHECK: nvvm.tcgen05.fence <after>
// CHECK-NOT: nvgpu.mbarrier.arrive
// CHECK: nvvm.tcgen05.commit
// CHECK: arith.constant 1008
// CHECK: %[[AT:[0-9]+]] = llvm.getelementptr %[[DEP]]
// CHECK: nvvm.mbarrier.try_wait.parity %[[AT]]
// CHECK: nvvm.tcgen05.fence <after>
// CHECK-NOT: nvgpu.mbarrier.arrive
// CHECK: nvvm.tcgen05.commit

// The copy engine fills: the barrier is armed with the bytes before the copy, and the commit is
// theirs: 64 x 64 elements of 16 bits.
// CHECK: arith.constant 1009
// CHECK: %[[AT:[0-9]+]] = llvm.getelementptr %[[EEP]]
// CHECK: nvvm.mbarrier.try_wait.parity %[[AT]]
// CHECK: %[[BYTES:.*]] = arith.constant 8192 : index
// CHECK: nvgpu.mbarrier.arrive.expect_tx %[[EF]][{{.*}}], %[[BYTES]]
// CHECK: nvgpu.tma.async.load {{.*}}, %[[EF]]
// CHECK-NOT: nvgpu.mbarrier.arrive
// CHECK: arith.constant 1010

!t = !ws.tile<vector<64x64xbf16>, "shared">
!v = !ws.tile<vector<128xf32>, "shared">
!m = !ws.tile<vector<128x32xf32>, "tensor">
!ring_t = !ws.ring<!t, 1, 1>
!ring_v = !ws.ring<!v, 1, 1>
!ring_m = !ws.ring<!m, 1, 1>
"ws.kernel"() ({
^bb0(%x: memref<?x64xbf16>):
  %a = "ws.alloc_ring"() {label_name = "a"} : () -> !ring_t
  %b = "ws.alloc_ring"() {label_name = "b"} : () -> !ring_v
  %c = "ws.alloc_ring"() {label_name = "c"} : () -> !ring_m
  %d = "ws.alloc_ring"() {label_name = "d"} : () -> !ring_m
  %e = "ws.alloc_ring"() {label_name = "e"} : () -> !ring_t
  "ws.role"() ({
  ^bb0(%g: i32):
    %zero = arith.constant 0 : i32
    %m0 = arith.constant 1000 : i32
    %a0 = "ws.acquire"(%a, %zero) : (!ring_t, i32) -> !t
    "ws.commit"(%a0) {by = "threads"} : (!t) -> ()
    %m1 = arith.constant 1001 : i32
    %b0 = "ws.acquire"(%b, %zero) : (!ring_v, i32) -> !v
    "ws.commit"(%b0) {by = "threads"} : (!v) -> ()
    %m2 = arith.constant 1002 : i32
    %c0 = "ws.acquire"(%c, %zero) : (!ring_m, i32) -> !m
    %nothing = arith.constant 0.0 : f32
    %sums = "ws.fill"(%nothing) : (f32) -> !ws.frag<vector<128x32xf32>>
    "ws.store"(%sums, %c0) : (!ws.frag<vector<128x32xf32>>, !m) -> ()
    "ws.commit"(%c0) {by = "threads"} : (!m) -> ()
    %m3 = arith.constant 1003 : i32
    %d0 = "ws.wait"(%d, %zero) : (!ring_m, i32) -> !m
    %read = "ws.load"(%d0) : (!m) -> !ws.frag<vector<128x32xf32>>
    "ws.release"(%d0) {by = "threads"} : (!m) -> ()
    %m11 = arith.constant 1011 : i32
    %d1 = "ws.wait"(%d, %zero) : (!ring_m, i32) -> !m
    "ws.release"(%d1) {by = "threads"} : (!m) -> ()
    %m4 = arith.constant 1004 : i32
    %e0 = "ws.wait"(%e, %zero) : (!ring_t, i32) -> !t
    "ws.release"(%e0) {by = "threads"} : (!t) -> ()
  }) {label_name = "threads", warps = array<i32: 0, 4>, groups = 1 : i64, lanes = 32 : i64, registers = 0 : i64} : () -> ()
  "ws.role"() ({
  ^bb0(%g: i32):
    %zero = arith.constant 0 : i32
    %m5 = arith.constant 1005 : i32
    %a0 = "ws.wait"(%a, %zero) : (!ring_t, i32) -> !t
    "ws.release"(%a0) {by = "copy_engine"} : (!t) -> ()
    %m6 = arith.constant 1006 : i32
    %b0 = "ws.wait"(%b, %zero) : (!ring_v, i32) -> !v
    "ws.release"(%b0) {by = "threads"} : (!v) -> ()
    %m7 = arith.constant 1007 : i32
    %c0 = "ws.wait"(%c, %zero) : (!ring_m, i32) -> !m
    "ws.release"(%c0) {by = "tensor_core"} : (!m) -> ()
    %m8 = arith.constant 1008 : i32
    %d0 = "ws.acquire"(%d, %zero) : (!ring_m, i32) -> !m
    "ws.commit"(%d0) {by = "tensor_core"} : (!m) -> ()
    %d1 = "ws.acquire"(%d, %zero) : (!ring_m, i32) -> !m
    "ws.commit"(%d1) {by = "tensor_core"} : (!m) -> ()
    %m9 = arith.constant 1009 : i32
    %e0 = "ws.acquire"(%e, %zero) : (!ring_t, i32) -> !t
    "ws.copy_in"(%x, %e0, %zero, %zero)
      {dims = array<i32: 0, 1>, operandSegmentSizes = array<i32: 1, 1, 2>} : (memref<?x64xbf16>, !t, i32, i32) -> ()
    "ws.commit"(%e0) {by = "copy_engine"} : (!t) -> ()
    %m10 = arith.constant 1010 : i32
  }) {label_name = "engines", warps = array<i32: 4, 1>, groups = 1 : i64, lanes = 1 : i64, registers = 0 : i64} : () -> ()
}) {sym_name = "k", arg_names = ["x"], arg_roles = ["in"], arg_dims = [["m", ""]]} : () -> ()
