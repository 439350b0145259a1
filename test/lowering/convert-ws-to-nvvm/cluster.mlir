// RUN: attn-opt --ws-plan-memory --convert-ws-to-nvvm --attn-check-stage=stage=nvvm %s | FileCheck %s

// A cluster of two pairs. Each CTA fetches its half of the rows of `a` for the CTA of the other pair
// as well, and its own `b`; the first CTA of a pair multiplies for both. Constants from 1000 on mark
// the places.

// CHECK: llvm.func @k
// CHECK: nvvm.cluster_dim = array<i32: 4, 1, 1>
// CHECK: %[[RANK:.*]] = nvvm.read.ptx.sreg.cluster.ctarank
// CHECK: nvvm.tcgen05.alloc {{.*}} {group = #nvvm.cta_group<cta_2>}
// CHECK: nvvm.tcgen05.relinquish_alloc_permit {group = #nvvm.cta_group<cta_2>}

// The barriers of `a`: full by the bytes of all CTAs, which the first CTA awaits, empty by the
// products of both pairs.
// CHECK: nvgpu.mbarrier.init %[[AF:[0-9]+]][{{.*}}], %c1{{(_[0-9]+)?}} :
// CHECK: nvgpu.mbarrier.init %[[AE:[0-9]+]][{{.*}}], %c2{{(_[0-9]+)?}} :
// Those of `b`, empty by the products of one pair; and of the sums, by 128 threads of two CTAs.
// CHECK: nvgpu.mbarrier.init %[[BF:[0-9]+]][{{.*}}], %c1{{(_[0-9]+)?}} :
// CHECK: nvgpu.mbarrier.init %[[BE:[0-9]+]][{{.*}}], %c1{{(_[0-9]+)?}} :
// CHECK: nvgpu.mbarrier.init %[[SF:[0-9]+]][{{.*}}], %c1{{(_[0-9]+)?}} :
// CHECK: nvgpu.mbarrier.init %[[SE:[0-9]+]][{{.*}}], %c256{{(_[0-9]+)?}} :
// CHECK: nvvm.fence.mbarrier.init

// All CTAs have set up theirs before one signals another's.
// CHECK: nvvm.cluster.arrive {aligned}
// CHECK-NEXT: nvvm.cluster.wait {aligned}

// Threads of both CTAs tell the first one that they have read.
// CHECK: arith.constant 1000
// CHECK: nvvm.mbarrier.try_wait {{.*}}scope = #nvvm.mem_scope<cluster>
// CHECK: nvvm.tcgen05.fence <before>
// CHECK: nvvm.mapa
// CHECK-NEXT: nvvm.mbarrier.arrive {{.*}} {scope = #nvvm.mem_scope<cluster>}

// Only the first CTA of a pair awaits bytes: 16384 for each CTA of the pair.
// CHECK: arith.constant 1001
// CHECK: nvvm.mbarrier.try_wait {{.*}}scope = #nvvm.mem_scope<cluster>
// CHECK: scf.if
// CHECK: nvgpu.mbarrier.arrive.expect_tx %[[AF]][{{.*}}], %c32768
// CHECK: nvvm.mapa
// CHECK: nvvm.cp.async.bulk.tensor.shared.cluster.global {{.*}} multicast_mask = {{.*}} {group = #nvvm.cta_group<cta_2>}

// What is for the own slot needs no mask, but the barrier of the first CTA.
// CHECK: arith.constant 1002
// CHECK: nvvm.mapa
// CHECK-NOT: multicast_mask
// CHECK: nvvm.cp.async.bulk.tensor.shared.cluster.global {{.*}} {group = #nvvm.cta_group<cta_2>}

// A CTA leaves the role when its slots are empty again: one wait for each.
// CHECK: nvvm.mbarrier.try_wait {{.*}}scope = #nvvm.mem_scope<cluster>
// CHECK: nvvm.mbarrier.try_wait {{.*}}scope = #nvvm.mem_scope<cluster>

// M 256, N 128; slots are free in the CTAs that the lists name.
// CHECK: arith.constant 1003
// CHECK: arith.constant 270533776
// CHECK: nvvm.tcgen05.mma {{.*}} {ctaGroup = #nvvm.cta_group<cta_2>
// CHECK: arith.constant 15 : i32
// CHECK: nvvm.tcgen05.commit {{.*}}, multicast_mask = {{.*}} {group = #nvvm.cta_group<cta_2>}
// CHECK: nvvm.tcgen05.commit {{.*}}, multicast_mask = {{.*}} {group = #nvvm.cta_group<cta_2>}
// CHECK: nvvm.tcgen05.commit {{.*}}, multicast_mask = {{.*}} {group = #nvvm.cta_group<cta_2>}

// CHECK: nvvm.cluster.arrive {aligned}
// CHECK-NEXT: nvvm.cluster.wait {aligned}
// CHECK: nvvm.tcgen05.dealloc {{.*}} {group = #nvvm.cta_group<cta_2>}

!t = !ws.tile<vector<128x64xbf16>, "shared">
!part = !ws.tile<vector<64x64xbf16>, "shared">
!half = !ws.tile<vector<64x64xbf16>, "shared">
!sum = !ws.tile<vector<128x128xf32>, "tensor">
!as = !ws.ring<!t, 1, 1>
!bs = !ws.ring<!half, 1, 1>
!sums = !ws.ring<!sum, 1, 1>
"ws.kernel"() ({
^bb0(%x: memref<?x?xbf16>, %y: memref<?x128xf32>):
  %as = "ws.alloc_ring"() {label_name = "a",
    full_at = [array<i32: 0, 2>, array<i32: 0, 2>, array<i32: 0, 2>, array<i32: 0, 2>],
    empty_at = [array<i32: 0, 1, 2, 3>, array<i32>, array<i32: 0, 1, 2, 3>, array<i32>]} : () -> !as
  %bs = "ws.alloc_ring"() {label_name = "b",
    full_at = [array<i32: 0>, array<i32: 0>, array<i32: 2>, array<i32: 2>],
    empty_at = [array<i32: 0, 1>, array<i32>, array<i32: 2, 3>, array<i32>]} : () -> !bs
  %sums = "ws.alloc_ring"() {label_name = "sums",
    full_at = [array<i32: 0, 1>, array<i32>, array<i32: 2, 3>, array<i32>],
    empty_at = [array<i32: 0>, array<i32: 0>, array<i32: 2>, array<i32: 2>]} : () -> !sums
  "ws.role"() ({
  ^bb0(%g: i32):
    %zero = arith.constant 0 : i32
    %mark = arith.constant 1000 : i32
    %s = "ws.wait"(%sums, %zero) : (!sums, i32) -> !sum
    %f = "ws.load"(%s) : (!sum) -> !ws.frag<vector<128x128xf32>>
    "ws.release"(%s) {by = "threads"} : (!sum) -> ()
    "ws.store_global"(%f, %y, %zero, %zero) {dims = array<i32: 0, 1>, operandSegmentSizes = array<i32: 1, 1, 2>} : (!ws.frag<vector<128x128xf32>>, memref<?x128xf32>, i32, i32) -> ()
  }) {label_name = "write", warps = array<i32: 0, 4>, groups = 1 : i64, lanes = 32 : i64, registers = 0 : i64} : () -> ()
  "ws.role"() ({
  ^bb0(%g: i32):
    %zero = arith.constant 0 : i32
    %rank = "ws.rank"() : () -> i32
    %two = arith.constant 2 : i32
    %pair = arith.divui %rank, %two : i32
    %rows = arith.constant 64 : i32
    %first = arith.muli %pair, %rows : i32
    %mark = arith.constant 1001 : i32
    %s = "ws.acquire"(%as, %zero) : (!as, i32) -> !t
    %part = "ws.rows"(%s, %first) : (!t, i32) -> !part
    "ws.copy_in"(%x, %part, %first, %zero) {dims = array<i32: 0, 1>, receivers = [array<i32: 0, 2>, array<i32: 1, 3>, array<i32: 0, 2>, array<i32: 1, 3>], operandSegmentSizes = array<i32: 1, 1, 2>} : (memref<?x?xbf16>, !part, i32, i32) -> ()
    "ws.commit"(%s) {by = "copy_engine"} : (!t) -> ()
    %other = arith.constant 1002 : i32
    %h = "ws.acquire"(%bs, %zero) : (!bs, i32) -> !half
    "ws.copy_in"(%x, %h, %first, %zero) {dims = array<i32: 0, 1>, operandSegmentSizes = array<i32: 1, 1, 2>} : (memref<?x?xbf16>, !half, i32, i32) -> ()
    "ws.commit"(%h) {by = "copy_engine"} : (!half) -> ()
  }) {label_name = "load", warps = array<i32: 4, 1>, groups = 1 : i64, lanes = 1 : i64, registers = 0 : i64} : () -> ()
  "ws.role"() ({
  ^bb0(%g: i32):
    %zero = arith.constant 0 : i32
    %no = arith.constant false
    %mark = arith.constant 1003 : i32
    %d = "ws.acquire"(%sums, %zero) : (!sums, i32) -> !sum
    %a = "ws.wait"(%as, %zero) : (!as, i32) -> !t
    %b = "ws.wait"(%bs, %zero) : (!bs, i32) -> !half
    "ws.mma"(%d, %a, %b, %no) {b_layout = "nk", ctas = 2 : i64} : (!sum, !t, !half, i1) -> ()
    "ws.release"(%a) {by = "tensor_core"} : (!t) -> ()
    "ws.release"(%b) {by = "tensor_core"} : (!half) -> ()
    "ws.commit"(%d) {by = "tensor_core"} : (!sum) -> ()
  }) {label_name = "multiply", warps = array<i32: 5, 1>, groups = 1 : i64, lanes = 1 : i64, registers = 0 : i64, ranks = array<i32: 0, 2>} : () -> ()
}) {sym_name = "k", arg_names = ["x", "y"], arg_roles = ["in", "out"], arg_dims = [["m", "k"], ["n", ""]], cluster = 4 : i64} : () -> ()
