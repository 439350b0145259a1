// RUN: attn-opt --split-input-file --verify-diagnostics --ws-verify-rings %s

// Rings that share a place: nobody waits for it to be free, so somebody has to know.

// In turns: scores, what is made of them in their place, the next scores.

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

// -----

// The lender's next turn before the borrower's is over: with a place of its own, `p` would allow it.

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
    // expected-error @below {{'ws.acquire' op in role mma takes a slot of ring s[0], which has no empty barriers, that role soft may not have released: no signal says so}}
    %s1 = "ws.acquire"(%s, %zero) : (!ss, i32) -> !s
    "ws.mma"(%s1, %ta, %tb, %no) {b_layout = "nk"} : (!s, !a, !b, i1) -> ()
    "ws.commit"(%s1) {by = "tensor_core"} : (!s) -> ()
    %p0 = "ws.wait"(%p, %zero) : (!ps, i32) -> !p
    "ws.mma"(%to, %p0, %tb, %yes) {b_layout = "kn"} : (!s, !p, !b, i1) -> ()
    "ws.release"(%p0) {by = "tensor_core"} : (!p) -> ()
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

// -----

// Two stages are two places.

!s = !ws.tile<vector<128x64xf32>, "tensor">
!p = !ws.tile<vector<128x64xbf16>, "tensor">
!a = !ws.tile<vector<128x64xbf16>, "shared">
!b = !ws.tile<vector<64x64xbf16>, "shared">
!ss = !ws.ring<!s, 2, 1>
!ps = !ws.ring<!p, 2, 1>
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
    %s1 = "ws.acquire"(%s, %zero) : (!ss, i32) -> !s
    "ws.mma"(%s1, %ta, %tb, %no) {b_layout = "nk"} : (!s, !a, !b, i1) -> ()
    "ws.commit"(%s1) {by = "tensor_core"} : (!s) -> ()
    %p0 = "ws.wait"(%p, %zero) : (!ps, i32) -> !p
    "ws.mma"(%to, %p0, %tb, %yes) {b_layout = "kn"} : (!s, !p, !b, i1) -> ()
    "ws.release"(%p0) {by = "tensor_core"} : (!p) -> ()
    %s2 = "ws.acquire"(%s, %zero) : (!ss, i32) -> !s
    "ws.mma"(%s2, %ta, %tb, %no) {b_layout = "nk"} : (!s, !a, !b, i1) -> ()
    "ws.commit"(%s2) {by = "tensor_core"} : (!s) -> ()
    %p1 = "ws.wait"(%p, %zero) : (!ps, i32) -> !p
    "ws.mma"(%to, %p1, %tb, %yes) {b_layout = "kn"} : (!s, !p, !b, i1) -> ()
    "ws.release"(%p1) {by = "tensor_core"} : (!p) -> ()
    %p2 = "ws.wait"(%p, %zero) : (!ps, i32) -> !p
    "ws.mma"(%to, %p2, %tb, %yes) {b_layout = "kn"} : (!s, !p, !b, i1) -> ()
    "ws.release"(%p2) {by = "tensor_core"} : (!p) -> ()
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
    %s2 = "ws.wait"(%s, %zero) : (!ss, i32) -> !s
    %f2 = "ws.load"(%s2) : (!s) -> !ws.frag<vector<128x64xf32>>
    "ws.release"(%s2) {by = "threads"} : (!s) -> ()
    %p2 = "ws.acquire"(%p, %zero) : (!ps, i32) -> !p
    "ws.store"(%x, %p2) : (!ws.frag<vector<128x64xbf16>>, !p) -> ()
    "ws.commit"(%p2) {by = "threads"} : (!p) -> ()
  }) {label_name = "soft", warps = array<i32: 0, 4>, groups = 1 : i64, lanes = 32 : i64, registers = 64 : i64} : () -> ()
}) {sym_name = "k", arg_names = [], arg_roles = [], arg_dims = []} : () -> ()

// -----

// The borrower is written before its writer has read what lies there.

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
  }) {label_name = "mma", warps = array<i32: 8, 1>, groups = 1 : i64, lanes = 1 : i64, registers = 64 : i64} : () -> ()
  "ws.role"() ({
  ^bb0(%g: i32):
    %zero = arith.constant 0 : i32
    %h = arith.constant 1.0 : bf16
    %x = "ws.fill"(%h) : (bf16) -> !ws.frag<vector<128x64xbf16>>
    %s0 = "ws.wait"(%s, %zero) : (!ss, i32) -> !s
    // expected-error @below {{'ws.acquire' op in role soft takes turn 0 of ring p[0] in the place of turn 0 of ring s[0], which role soft may still read: a wait for what follows that release is missing before this acquire}}
    %p0 = "ws.acquire"(%p, %zero) : (!ps, i32) -> !p
    "ws.store"(%x, %p0) : (!ws.frag<vector<128x64xbf16>>, !p) -> ()
    %f0 = "ws.load"(%s0) : (!s) -> !ws.frag<vector<128x64xf32>>
    "ws.release"(%s0) {by = "threads"} : (!s) -> ()
    "ws.commit"(%p0) {by = "threads"} : (!p) -> ()
  }) {label_name = "soft", warps = array<i32: 0, 4>, groups = 1 : i64, lanes = 32 : i64, registers = 64 : i64} : () -> ()
}) {sym_name = "k", arg_names = [], arg_roles = [], arg_dims = []} : () -> ()

// -----

// ... or before another reader has.

!s = !ws.tile<vector<128x64xf32>, "tensor">
!p = !ws.tile<vector<128x64xbf16>, "tensor">
!a = !ws.tile<vector<128x64xbf16>, "shared">
!b = !ws.tile<vector<64x64xbf16>, "shared">
!ss = !ws.ring<!s, 1, 1>
!ps = !ws.ring<!p, 1, 1>
"ws.kernel"() ({
^bb0:
  %s = "ws.alloc_ring"() {known_empty, label_name = "s"} : () -> !ss
  %p = "ws.alloc_inside"(%s) {known_empty, label_name = "p", producers = ["threads", "threads"]} : (!ss) -> !ps
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
  }) {label_name = "mma", warps = array<i32: 8, 1>, groups = 1 : i64, lanes = 1 : i64, registers = 64 : i64} : () -> ()
  "ws.role"() ({
  ^bb0(%g: i32):
    %zero = arith.constant 0 : i32
    %h = arith.constant 1.0 : bf16
    %x = "ws.fill"(%h) : (bf16) -> !ws.frag<vector<128x64xbf16>>
    %s0 = "ws.wait"(%s, %zero) : (!ss, i32) -> !s
    %f0 = "ws.load"(%s0) : (!s) -> !ws.frag<vector<128x64xf32>>
    "ws.release"(%s0) {by = "threads"} : (!s) -> ()
    // expected-error @below {{'ws.acquire' op in role soft takes turn 0 of ring p[0] in the place of turn 0 of ring s[0], which role watch may still read: a wait for what follows that release is missing before this acquire}}
    %p0 = "ws.acquire"(%p, %zero) : (!ps, i32) -> !p
    "ws.store"(%x, %p0) : (!ws.frag<vector<128x64xbf16>>, !p) -> ()
    "ws.commit"(%p0) {by = "threads"} : (!p) -> ()
  }) {label_name = "soft", warps = array<i32: 0, 4>, groups = 1 : i64, lanes = 32 : i64, registers = 64 : i64} : () -> ()
  "ws.role"() ({
  ^bb0(%g: i32):
    %zero = arith.constant 0 : i32
    %s0 = "ws.wait"(%s, %zero) : (!ss, i32) -> !s
    %p0 = "ws.acquire"(%p, %zero) : (!ps, i32) -> !p
    %f0 = "ws.load"(%s0) : (!s) -> !ws.frag<vector<128x64xf32>>
    "ws.release"(%s0) {by = "threads"} : (!s) -> ()
    "ws.commit"(%p0) {by = "threads"} : (!p) -> ()
  }) {label_name = "watch", warps = array<i32: 4, 4>, groups = 1 : i64, lanes = 32 : i64, registers = 64 : i64} : () -> ()
}) {sym_name = "k", arg_names = [], arg_roles = [], arg_dims = []} : () -> ()

// -----

// ... or by who has not waited for the lender.

!s = !ws.tile<vector<128x64xf32>, "tensor">
!p = !ws.tile<vector<128x64xbf16>, "tensor">
!a = !ws.tile<vector<128x64xbf16>, "shared">
!b = !ws.tile<vector<64x64xbf16>, "shared">
!ss = !ws.ring<!s, 1, 1>
!ps = !ws.ring<!p, 1, 1>
"ws.kernel"() ({
^bb0:
  %s = "ws.alloc_ring"() {known_empty, label_name = "s"} : () -> !ss
  %p = "ws.alloc_inside"(%s) {known_empty, label_name = "p", producers = ["threads", "threads"]} : (!ss) -> !ps
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
  }) {label_name = "mma", warps = array<i32: 8, 1>, groups = 1 : i64, lanes = 1 : i64, registers = 64 : i64} : () -> ()
  "ws.role"() ({
  ^bb0(%g: i32):
    %zero = arith.constant 0 : i32
    %h = arith.constant 1.0 : bf16
    %x = "ws.fill"(%h) : (bf16) -> !ws.frag<vector<128x64xbf16>>
    // expected-error @below {{'ws.acquire' op in role soft takes turn 0 of ring p[0] in the place of turn 0 of ring s[0], which role mma may still fill: a wait for what follows that commit is missing before this acquire}}
    %p0 = "ws.acquire"(%p, %zero) : (!ps, i32) -> !p
    "ws.store"(%x, %p0) : (!ws.frag<vector<128x64xbf16>>, !p) -> ()
    "ws.commit"(%p0) {by = "threads"} : (!p) -> ()
  }) {label_name = "soft", warps = array<i32: 0, 4>, groups = 1 : i64, lanes = 32 : i64, registers = 64 : i64} : () -> ()
  "ws.role"() ({
  ^bb0(%g: i32):
    %zero = arith.constant 0 : i32
    %s0 = "ws.wait"(%s, %zero) : (!ss, i32) -> !s
    %p0 = "ws.acquire"(%p, %zero) : (!ps, i32) -> !p
    "ws.release"(%s0) {by = "threads"} : (!s) -> ()
    "ws.commit"(%p0) {by = "threads"} : (!p) -> ()
  }) {label_name = "watch", warps = array<i32: 4, 4>, groups = 1 : i64, lanes = 32 : i64, registers = 64 : i64} : () -> ()
}) {sym_name = "k", arg_names = [], arg_roles = [], arg_dims = []} : () -> ()

// -----

// A role that only joins in a commit hears from another one that the turn before is over.

!s = !ws.tile<vector<128x64xf32>, "tensor">
!p = !ws.tile<vector<128x64xbf16>, "tensor">
!a = !ws.tile<vector<128x64xbf16>, "shared">
!b = !ws.tile<vector<64x64xbf16>, "shared">
!ss = !ws.ring<!s, 1, 1>
!ps = !ws.ring<!p, 1, 1>
!ts = !ws.ring<none, 1, 1>
"ws.kernel"() ({
^bb0:
  %s = "ws.alloc_ring"() {known_empty, label_name = "s"} : () -> !ss
  %p = "ws.alloc_inside"(%s) {known_empty, label_name = "p", producers = ["threads", "threads"]} : (!ss) -> !ps
  %t = "ws.alloc_ring"() {label_name = "t"} : () -> !ts
  %o = "ws.alloc_buffer"() {label_name = "o"} : () -> !ws.buffer<!s, 1>
  %a = "ws.alloc_buffer"() {label_name = "a"} : () -> !ws.buffer<!a, 1>
  %b = "ws.alloc_buffer"() {label_name = "b"} : () -> !ws.buffer<!b, 1>
  "ws.role"() ({
  ^bb0(%g: i32):
    %zero = arith.constant 0 : i32
    %one = arith.constant 1 : i32
    %two = arith.constant 2 : i32
    %yes = arith.constant true
    %no = arith.constant false
    %ta = "ws.at"(%a, %zero) : (!ws.buffer<!a, 1>, i32) -> !a
    %tb = "ws.at"(%b, %zero) : (!ws.buffer<!b, 1>, i32) -> !b
    %to = "ws.at"(%o, %zero) : (!ws.buffer<!s, 1>, i32) -> !s
    scf.for %i = %zero to %two step %one : i32 {
      %s0 = "ws.acquire"(%s, %zero) : (!ss, i32) -> !s
      "ws.mma"(%s0, %ta, %tb, %no) {b_layout = "nk"} : (!s, !a, !b, i1) -> ()
      "ws.commit"(%s0) {by = "tensor_core"} : (!s) -> ()
      %p0 = "ws.wait"(%p, %zero) : (!ps, i32) -> !p
      "ws.mma"(%to, %p0, %tb, %yes) {b_layout = "kn"} : (!s, !p, !b, i1) -> ()
      "ws.release"(%p0) {by = "tensor_core"} : (!p) -> ()
    }
  }) {label_name = "mma", warps = array<i32: 8, 1>, groups = 1 : i64, lanes = 1 : i64, registers = 64 : i64} : () -> ()
  "ws.role"() ({
  ^bb0(%g: i32):
    %zero = arith.constant 0 : i32
    %one = arith.constant 1 : i32
    %two = arith.constant 2 : i32
    %h = arith.constant 1.0 : bf16
    %x = "ws.fill"(%h) : (bf16) -> !ws.frag<vector<128x64xbf16>>
    scf.for %i = %zero to %two step %one : i32 {
      %t0 = "ws.acquire"(%t, %zero) : (!ts, i32) -> none
      %s0 = "ws.wait"(%s, %zero) : (!ss, i32) -> !s
      %f0 = "ws.load"(%s0) : (!s) -> !ws.frag<vector<128x64xf32>>
      "ws.release"(%s0) {by = "threads"} : (!s) -> ()
      "ws.commit"(%t0) {by = "threads"} : (none) -> ()
      %p0 = "ws.acquire"(%p, %zero) : (!ps, i32) -> !p
      "ws.store"(%x, %p0) : (!ws.frag<vector<128x64xbf16>>, !p) -> ()
      "ws.commit"(%p0) {by = "threads"} : (!p) -> ()
    }
  }) {label_name = "soft", warps = array<i32: 0, 4>, groups = 1 : i64, lanes = 32 : i64, registers = 64 : i64} : () -> ()
  "ws.role"() ({
  ^bb0(%g: i32):
    %zero = arith.constant 0 : i32
    %one = arith.constant 1 : i32
    %two = arith.constant 2 : i32
    scf.for %i = %zero to %two step %one : i32 {
      %t0 = "ws.wait"(%t, %zero) : (!ts, i32) -> none
      "ws.release"(%t0) {by = "threads"} : (none) -> ()
      %p0 = "ws.acquire"(%p, %zero) : (!ps, i32) -> !p
      "ws.commit"(%p0) {by = "threads"} : (!p) -> ()
    }
  }) {label_name = "watch", warps = array<i32: 4, 4>, groups = 1 : i64, lanes = 32 : i64, registers = 64 : i64} : () -> ()
}) {sym_name = "k", arg_names = [], arg_roles = [], arg_dims = []} : () -> ()

// -----

// It joins in before it hears so, and may be a phase ahead.

!s = !ws.tile<vector<128x64xf32>, "tensor">
!p = !ws.tile<vector<128x64xbf16>, "tensor">
!a = !ws.tile<vector<128x64xbf16>, "shared">
!b = !ws.tile<vector<64x64xbf16>, "shared">
!ss = !ws.ring<!s, 1, 1>
!ps = !ws.ring<!p, 1, 1>
!ts = !ws.ring<none, 1, 1>
"ws.kernel"() ({
^bb0:
  %s = "ws.alloc_ring"() {known_empty, label_name = "s"} : () -> !ss
  %p = "ws.alloc_inside"(%s) {known_empty, label_name = "p", producers = ["threads", "threads"]} : (!ss) -> !ps
  %t = "ws.alloc_ring"() {label_name = "t"} : () -> !ts
  %o = "ws.alloc_buffer"() {label_name = "o"} : () -> !ws.buffer<!s, 1>
  %a = "ws.alloc_buffer"() {label_name = "a"} : () -> !ws.buffer<!a, 1>
  %b = "ws.alloc_buffer"() {label_name = "b"} : () -> !ws.buffer<!b, 1>
  "ws.role"() ({
  ^bb0(%g: i32):
    %zero = arith.constant 0 : i32
    %one = arith.constant 1 : i32
    %two = arith.constant 2 : i32
    %yes = arith.constant true
    %no = arith.constant false
    %ta = "ws.at"(%a, %zero) : (!ws.buffer<!a, 1>, i32) -> !a
    %tb = "ws.at"(%b, %zero) : (!ws.buffer<!b, 1>, i32) -> !b
    %to = "ws.at"(%o, %zero) : (!ws.buffer<!s, 1>, i32) -> !s
    scf.for %i = %zero to %two step %one : i32 {
      %s0 = "ws.acquire"(%s, %zero) : (!ss, i32) -> !s
      "ws.mma"(%s0, %ta, %tb, %no) {b_layout = "nk"} : (!s, !a, !b, i1) -> ()
      "ws.commit"(%s0) {by = "tensor_core"} : (!s) -> ()
      %p0 = "ws.wait"(%p, %zero) : (!ps, i32) -> !p
      "ws.mma"(%to, %p0, %tb, %yes) {b_layout = "kn"} : (!s, !p, !b, i1) -> ()
      "ws.release"(%p0) {by = "tensor_core"} : (!p) -> ()
    }
  }) {label_name = "mma", warps = array<i32: 8, 1>, groups = 1 : i64, lanes = 1 : i64, registers = 64 : i64} : () -> ()
  "ws.role"() ({
  ^bb0(%g: i32):
    %zero = arith.constant 0 : i32
    %one = arith.constant 1 : i32
    %two = arith.constant 2 : i32
    %h = arith.constant 1.0 : bf16
    %x = "ws.fill"(%h) : (bf16) -> !ws.frag<vector<128x64xbf16>>
    scf.for %i = %zero to %two step %one : i32 {
      %t0 = "ws.acquire"(%t, %zero) : (!ts, i32) -> none
      %s0 = "ws.wait"(%s, %zero) : (!ss, i32) -> !s
      %f0 = "ws.load"(%s0) : (!s) -> !ws.frag<vector<128x64xf32>>
      "ws.release"(%s0) {by = "threads"} : (!s) -> ()
      "ws.commit"(%t0) {by = "threads"} : (none) -> ()
      %p0 = "ws.acquire"(%p, %zero) : (!ps, i32) -> !p
      "ws.store"(%x, %p0) : (!ws.frag<vector<128x64xbf16>>, !p) -> ()
      "ws.commit"(%p0) {by = "threads"} : (!p) -> ()
    }
  }) {label_name = "soft", warps = array<i32: 0, 4>, groups = 1 : i64, lanes = 32 : i64, registers = 64 : i64} : () -> ()
  "ws.role"() ({
  ^bb0(%g: i32):
    %zero = arith.constant 0 : i32
    %one = arith.constant 1 : i32
    %two = arith.constant 2 : i32
    scf.for %i = %zero to %two step %one : i32 {
      // expected-error @below {{'ws.acquire' op in role watch takes a slot of ring p[0], which has no empty barriers, that role mma may not have released: no signal says so}}
      %p0 = "ws.acquire"(%p, %zero) : (!ps, i32) -> !p
      "ws.commit"(%p0) {by = "threads"} : (!p) -> ()
      %t0 = "ws.wait"(%t, %zero) : (!ts, i32) -> none
      "ws.release"(%t0) {by = "threads"} : (none) -> ()
    }
  }) {label_name = "watch", warps = array<i32: 4, 4>, groups = 1 : i64, lanes = 32 : i64, registers = 64 : i64} : () -> ()
}) {sym_name = "k", arg_names = [], arg_roles = [], arg_dims = []} : () -> ()

// -----

// The lender is filled while another role reads the borrower.

!s = !ws.tile<vector<128x64xf32>, "tensor">
!p = !ws.tile<vector<128x64xbf16>, "tensor">
!a = !ws.tile<vector<128x64xbf16>, "shared">
!b = !ws.tile<vector<64x64xbf16>, "shared">
!ss = !ws.ring<!s, 1, 1>
!ps = !ws.ring<!p, 1, 1>
"ws.kernel"() ({
^bb0:
  %s = "ws.alloc_ring"() {known_empty, label_name = "s", producers = ["tensor_core", "threads"]} : () -> !ss
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
    // expected-error @below {{'ws.acquire' op in role mma takes turn 1 of ring s[0] in the place of turn 0 of ring p[0], which role watch may still read: a wait for what follows that release is missing before this acquire}}
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
  "ws.role"() ({
  ^bb0(%g: i32):
    %zero = arith.constant 0 : i32
    %s0 = "ws.acquire"(%s, %zero) : (!ss, i32) -> !s
    "ws.commit"(%s0) {by = "threads"} : (!s) -> ()
    %p0 = "ws.wait"(%p, %zero) : (!ps, i32) -> !p
    %f0 = "ws.load"(%p0) : (!p) -> !ws.frag<vector<128x64xbf16>>
    "ws.release"(%p0) {by = "threads"} : (!p) -> ()
    %s1 = "ws.acquire"(%s, %zero) : (!ss, i32) -> !s
    "ws.commit"(%s1) {by = "threads"} : (!s) -> ()
    %p1 = "ws.wait"(%p, %zero) : (!ps, i32) -> !p
    %f1 = "ws.load"(%p1) : (!p) -> !ws.frag<vector<128x64xbf16>>
    "ws.release"(%p1) {by = "threads"} : (!p) -> ()
  }) {label_name = "watch", warps = array<i32: 4, 4>, groups = 1 : i64, lanes = 32 : i64, registers = 64 : i64} : () -> ()
}) {sym_name = "k", arg_names = [], arg_roles = [], arg_dims = []} : () -> ()

// -----

// Who only waits for a ring without empty barriers is not heard of.

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
    // expected-error @below {{'ws.acquire' op in role mma takes a slot of ring s[0], which has no empty barriers, that role watch may not have released: no signal says so}}
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
  "ws.role"() ({
  ^bb0(%g: i32):
    %zero = arith.constant 0 : i32
    %s0 = "ws.wait"(%s, %zero) : (!ss, i32) -> !s
    "ws.release"(%s0) {by = "threads"} : (!s) -> ()
    %s1 = "ws.wait"(%s, %zero) : (!ss, i32) -> !s
    "ws.release"(%s1) {by = "threads"} : (!s) -> ()
  }) {label_name = "watch", warps = array<i32: 4, 4>, groups = 1 : i64, lanes = 32 : i64, registers = 64 : i64} : () -> ()
}) {sym_name = "k", arg_names = [], arg_roles = [], arg_dims = []} : () -> ()

// -----

// Also without writing: then it only says that it is done.

!s = !ws.tile<vector<128x64xf32>, "tensor">
!p = !ws.tile<vector<128x64xbf16>, "tensor">
!a = !ws.tile<vector<128x64xbf16>, "shared">
!b = !ws.tile<vector<64x64xbf16>, "shared">
!ss = !ws.ring<!s, 1, 1>
!ps = !ws.ring<!p, 1, 1>
"ws.kernel"() ({
^bb0:
  %s = "ws.alloc_ring"() {known_empty, label_name = "s"} : () -> !ss
  %p = "ws.alloc_inside"(%s) {known_empty, label_name = "p", producers = ["threads", "threads"]} : (!ss) -> !ps
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
  "ws.role"() ({
  ^bb0(%g: i32):
    %zero = arith.constant 0 : i32
    %s0 = "ws.wait"(%s, %zero) : (!ss, i32) -> !s
    %p0 = "ws.acquire"(%p, %zero) : (!ps, i32) -> !p
    "ws.release"(%s0) {by = "threads"} : (!s) -> ()
    "ws.commit"(%p0) {by = "threads"} : (!p) -> ()
    %s1 = "ws.wait"(%s, %zero) : (!ss, i32) -> !s
    %p1 = "ws.acquire"(%p, %zero) : (!ps, i32) -> !p
    "ws.release"(%s1) {by = "threads"} : (!s) -> ()
    "ws.commit"(%p1) {by = "threads"} : (!p) -> ()
  }) {label_name = "watch", warps = array<i32: 4, 4>, groups = 1 : i64, lanes = 32 : i64, registers = 64 : i64} : () -> ()
}) {sym_name = "k", arg_names = [], arg_roles = [], arg_dims = []} : () -> ()

// -----

// It says so too early.

!s = !ws.tile<vector<128x64xf32>, "tensor">
!p = !ws.tile<vector<128x64xbf16>, "tensor">
!a = !ws.tile<vector<128x64xbf16>, "shared">
!b = !ws.tile<vector<64x64xbf16>, "shared">
!ss = !ws.ring<!s, 1, 1>
!ps = !ws.ring<!p, 1, 1>
"ws.kernel"() ({
^bb0:
  %s = "ws.alloc_ring"() {known_empty, label_name = "s"} : () -> !ss
  %p = "ws.alloc_inside"(%s) {known_empty, label_name = "p", producers = ["threads", "threads"]} : (!ss) -> !ps
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
    // expected-error @below {{'ws.acquire' op in role mma takes a slot of ring s[0], which has no empty barriers, that role watch may not have released: no signal says so}}
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
  "ws.role"() ({
  ^bb0(%g: i32):
    %zero = arith.constant 0 : i32
    %s0 = "ws.wait"(%s, %zero) : (!ss, i32) -> !s
    %p0 = "ws.acquire"(%p, %zero) : (!ps, i32) -> !p
    "ws.commit"(%p0) {by = "threads"} : (!p) -> ()
    "ws.release"(%s0) {by = "threads"} : (!s) -> ()
    %s1 = "ws.wait"(%s, %zero) : (!ss, i32) -> !s
    %p1 = "ws.acquire"(%p, %zero) : (!ps, i32) -> !p
    "ws.commit"(%p1) {by = "threads"} : (!p) -> ()
    "ws.release"(%s1) {by = "threads"} : (!s) -> ()
  }) {label_name = "watch", warps = array<i32: 4, 4>, groups = 1 : i64, lanes = 32 : i64, registers = 64 : i64} : () -> ()
}) {sym_name = "k", arg_names = [], arg_roles = [], arg_dims = []} : () -> ()

// -----

// A thread does not wait for the products that it issued: it may not write what they read.

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
    %one = arith.constant 1.0 : f32
    %y = "ws.fill"(%one) : (f32) -> !ws.frag<vector<128x64xf32>>
    %s0 = "ws.acquire"(%s, %zero) : (!ss, i32) -> !s
    "ws.store"(%y, %s0) : (!ws.frag<vector<128x64xf32>>, !s) -> ()
    "ws.commit"(%s0) {by = "threads"} : (!s) -> ()
    %p0 = "ws.wait"(%p, %zero) : (!ps, i32) -> !p
    "ws.mma"(%to, %p0, %tb, %yes) {b_layout = "kn"} : (!s, !p, !b, i1) -> ()
    "ws.release"(%p0) {by = "tensor_core"} : (!p) -> ()
    // expected-error @below {{'ws.acquire' op in role mma takes turn 1 of ring s[0] in the place of turn 0 of ring p[0], which role mma may still read: a wait for what follows that release is missing before this acquire}}
    %s1 = "ws.acquire"(%s, %zero) : (!ss, i32) -> !s
    "ws.store"(%y, %s1) : (!ws.frag<vector<128x64xf32>>, !s) -> ()
    "ws.commit"(%s1) {by = "threads"} : (!s) -> ()
    %p1 = "ws.wait"(%p, %zero) : (!ps, i32) -> !p
    "ws.mma"(%to, %p1, %tb, %yes) {b_layout = "kn"} : (!s, !p, !b, i1) -> ()
    "ws.release"(%p1) {by = "tensor_core"} : (!p) -> ()
  }) {label_name = "mma", warps = array<i32: 8, 4>, groups = 1 : i64, lanes = 32 : i64, registers = 64 : i64} : () -> ()
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
