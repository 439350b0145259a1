// RUN: attn-opt --ws-plan-memory=print-map %s 2>&1 | FileCheck %s

// The borrower lies in the place of its lender; neither has barriers that say that a slot is empty.

// CHECK: tensor 0 .. 32 32 cols p
// CHECK: tensor 0 .. 64 64 cols s
// CHECK: tensor 64 .. 128 64 cols o
// CHECK: %[[S:.*]] = "ws.alloc_ring"() {known_empty, label_name = "s", ws.plan = {full = 24576 : i64, full_count = 1 : i64, offset = 0 : i64, slot_step = 64 : i64}}
// CHECK: "ws.alloc_inside"(%[[S]]) {known_empty, label_name = "p", ws.plan = {full = 24584 : i64, full_count = 128 : i64, offset = 0 : i64, slot_step = 64 : i64}}
// CHECK: ws.plan = {smem_bytes = 24600 : i64, tensor_address = 24592 : i64, tensor_cols = 128 : i64}

!s = !ws.tile<vector<128x64xf32>, "tensor">
!p = !ws.tile<vector<128x64xbf16>, "tensor">
!a = !ws.tile<vector<128x64xbf16>, "shared">
!b = !ws.tile<vector<64x64xbf16>, "shared">
!ss = !ws.ring<!s, 1, 1>
!ps = !ws.ring<!p, 1, 1>
"ws.kernel"() ({
^bb0:
  %s = "ws.alloc_ring"() {known_empty, label_name = "s"} : () -> !ss
  %p = "ws.alloc_inside"(%s) {known_empty, label_name = "p"} : (!ss) -> !ps
  %o = "ws.alloc_buffer"() {label_name = "o"} : () -> !ws.buffer<!s, 1>
  %a = "ws.alloc_buffer"() {label_name = "a"} : () -> !ws.buffer<!a, 1>
  %b = "ws.alloc_buffer"() {label_name = "b"} : () -> !ws.buffer<!b, 1>
  "ws.role"() ({
  ^bb0(%g: i32):
    %zero = arith.constant 0 : i32
    %yes = arith.constant true
    %no = arith.constant false
    %ta = "ws.at"(%a, %zero) : (!ws.buffer<!a, 1>, i32) -> !a
    %tb = "ws.at"(%b, %zero) : (!ws.buffer<!b, 1>, i32) -> !b
    %to = "ws.at"(%o, %zero) : (!ws.buffer<!s, 1>, i32) -> !s
    %s0 = "ws.acquire"(%s, %zero) : (!ss, i32) -> !s
    "ws.mma"(%s0, %ta, %tb, %no) {b_layout = "nk"} : (!s, !a, !b, i1) -> ()
    "ws.commit"(%s0) {by = "tensor_core"} : (!s) -> ()
    %p0 = "ws.wait"(%p, %zero) : (!ps, i32) -> !p
    "ws.mma"(%to, %p0, %tb, %yes) {b_layout = "kn"} : (!s, !p, !b, i1) -> ()
    "ws.release"(%p0) {by = "tensor_core"} : (!p) -> ()
    %s1 = "ws.acquire"(%s, %zero) : (!ss, i32) -> !s
    "ws.mma"(%s1, %ta, %tb, %no) {b_layout = "nk"} : (!s, !a, !b, i1) -> ()
    "ws.commit"(%s1) {by = "tensor_core"} : (!s) -> ()
    %p1 = "ws.wait"(%p, %zero) : (!ps, i32) -> !p
    "ws.mma"(%to, %p1, %tb, %yes) {b_layout = "kn"} : (!s, !p, !b, i1) -> ()
    "ws.release"(%p1) {by = "tensor_core"} : (!p) -> ()
  }) {label_name = "mma", warps = array<i32: 8, 1>, groups = 1 : i64, lanes = 1 : i64, registers = 64 : i64} : () -> ()
  "ws.role"() ({
  ^bb0(%g: i32):
    %zero = arith.constant 0 : i32
    %h = arith.constant 1.0 : bf16
    %x = "ws.fill"(%h) : (bf16) -> !ws.frag<vector<128x64xbf16>>
    %s0 = "ws.wait"(%s, %zero) : (!ss, i32) -> !s
    %f0 = "ws.load"(%s0) : (!s) -> !ws.frag<vector<128x64xf32>>
    "ws.release"(%s0) {by = "threads"} : (!s) -> ()
    %p0 = "ws.acquire"(%p, %zero) : (!ps, i32) -> !p
    "ws.store"(%x, %p0) : (!ws.frag<vector<128x64xbf16>>, !p) -> ()
    "ws.commit"(%p0) {by = "threads"} : (!p) -> ()
    %s1 = "ws.wait"(%s, %zero) : (!ss, i32) -> !s
    %f1 = "ws.load"(%s1) : (!s) -> !ws.frag<vector<128x64xf32>>
    "ws.release"(%s1) {by = "threads"} : (!s) -> ()
    %p1 = "ws.acquire"(%p, %zero) : (!ps, i32) -> !p
    "ws.store"(%x, %p1) : (!ws.frag<vector<128x64xbf16>>, !p) -> ()
    "ws.commit"(%p1) {by = "threads"} : (!p) -> ()
  }) {label_name = "soft", warps = array<i32: 0, 4>, groups = 1 : i64, lanes = 32 : i64, registers = 64 : i64} : () -> ()
}) {sym_name = "k", arg_names = [], arg_roles = [], arg_dims = []} : () -> ()
