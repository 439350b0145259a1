// RUN: attn-opt "--ws-plan-memory=target=sm_90a" "--convert-ws-to-nvvm=target=sm_90a" %s | FileCheck %s

// Threads that fill a slot for a product fence it for the tensor core before they hand it over.

// CHECK-LABEL: llvm.func @squares
// CHECK: nvvm.stmatrix %{{.*}} {eltType = #nvvm.ld_st_matrix_elt_type<b16>, layout = #nvvm.mma_layout<row>
// CHECK: nvvm.fence.proxy {kind = #nvvm.proxy_kind<async.shared>
// CHECK: nvgpu.mbarrier.arrive

// Sums that are not read are no operands of the first product, which leaves its own to the second one's
// wait; two registers of sums of eight columns in each half of 64 rows, two steps of K, whose descriptors
// are made of the low word of the first one.

// CHECK: llvm.inline_asm has_side_effects "{
// CHECK-SAME: add.u32 a_low, $4, 2; mov.b64 a1, {a_low, a_high};
// CHECK-SAME: add.u32 b_low, $5, 0; mov.b64 b0, {b_low, b_high}; add.s64 b1, b0, 128;
// CHECK-SAME: wgmma.fence.sync.aligned; wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {$0, $1, $2, $3}, a0, b0, 0, 1, 1, 0, 1;
// CHECK-SAME: wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {$0, $1, $2, $3}, a1, b1, 1, 1, 1, 0, 1; wgmma.commit_group.sync.aligned;
// CHECK-SAME: "=f,=f,=f,=f,r,r"
// CHECK: llvm.inline_asm has_side_effects "{
// CHECK-SAME: .reg .pred accumulate; setp.ne.b32 accumulate, $10, 0; wgmma.fence.sync.aligned;
// CHECK-SAME: {$0, $1, $2, $3}, a0, b0, accumulate, 1, 1, 0, 1;
// CHECK-SAME: "=f,=f,=f,=f,0,1,2,3,r,r,r"
// CHECK: llvm.inline_asm has_side_effects "wgmma.wait_group.sync.aligned 1;", "=f,=f,=f,=f,0,1,2,3"
// CHECK: llvm.inline_asm has_side_effects "wgmma.wait_group.sync.aligned 0;", "=f,=f,=f,=f,0,1,2,3"
// CHECK: nvgpu.mbarrier.arrive

!a = !ws.tile<vector<64x32xbf16>, "shared">
!b = !ws.tile<vector<32x8xbf16>, "shared">
!as = !ws.ring<!a, 1, 1>
!bs = !ws.buffer<!b, 1>
!sums = !ws.frag<vector<64x8xf32>>
!pending = !ws.pending<!sums>
"ws.kernel"() ({
^bb0(%n: i32):
  %as = "ws.alloc_ring"() {label_name = "a"} : () -> !as
  %bs = "ws.alloc_buffer"() {label_name = "b"} : () -> !bs
  "ws.role"() ({
  ^bb0(%g: i32):
    %c0 = arith.constant 0 : i32
    %zero = arith.constant 0.0 : bf16
    %zeros = "ws.fill"(%zero) : (bf16) -> !ws.frag<vector<64x32xbf16>>
    %slot = "ws.acquire"(%as, %c0) : (!as, i32) -> !a
    "ws.store"(%zeros, %slot) : (!ws.frag<vector<64x32xbf16>>, !a) -> ()
    "ws.commit"(%slot) {by = "threads"} : (!a) -> ()
  }) {label_name = "fill", warps = array<i32: 0, 4>, groups = 1 : i64, lanes = 32 : i64, registers = 0 : i64} : () -> ()
  "ws.role"() ({
  ^bb0(%g: i32):
    %c0 = arith.constant 0 : i32
    %no = arith.constant false
    %more = arith.cmpi sgt, %n, %c0 : i32
    %nothing = arith.constant 0.0 : f32
    %zeros = "ws.fill"(%nothing) : (f32) -> !sums
    %b = "ws.at"(%bs, %c0) : (!bs, i32) -> !b
    %slot = "ws.wait"(%as, %c0) : (!as, i32) -> !a
    %p = "ws.product"(%zeros, %slot, %b, %no) {b_layout = "kn"} : (!sums, !a, !b, i1) -> !pending
    %q = "ws.product"(%zeros, %slot, %b, %more) {b_layout = "kn"} : (!sums, !a, !b, i1) -> !pending
    %f = "ws.settle"(%p) {newest = 1 : i64} : (!pending) -> !sums
    %h = "ws.settle"(%q) {newest = 0 : i64} : (!pending) -> !sums
    "ws.release"(%slot) {by = "threads"} : (!a) -> ()
  }) {label_name = "multiply", warps = array<i32: 4, 4>, groups = 1 : i64, lanes = 32 : i64, registers = 0 : i64} : () -> ()
}) {sym_name = "squares", arg_names = ["n"], arg_roles = ["scalar"], arg_dims = [[]]} : () -> ()
