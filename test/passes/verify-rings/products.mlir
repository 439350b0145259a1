// RUN: attn-opt --split-input-file --verify-diagnostics --ws-verify-rings %s

// A slot is released behind the settle of the product that reads it, wherever the two stand.

!a = !ws.tile<vector<64x64xbf16>, "shared">
!as = !ws.ring<!a, 2, 1>
!sums = !ws.frag<vector<64x64xf32>>
!pending = !ws.pending<!sums>
"ws.kernel"() ({
^bb0(%in: memref<?x64xbf16>):
  %r = "ws.alloc_ring"() {label_name = "r"} : () -> !as
  "ws.role"() ({
  ^bb0(%g: i32):
    %zero = arith.constant 0 : i32
    %one = arith.constant 1 : i32
    %two = arith.constant 2 : i32
    scf.for %i = %zero to %two step %one : i32 {
      %slot = "ws.acquire"(%r, %zero) : (!as, i32) -> !a
      "ws.commit"(%slot) {by = "threads"} : (!a) -> ()
    }
  }) {label_name = "load", warps = array<i32: 4, 1>, groups = 1 : i64, lanes = 1 : i64, registers = 0 : i64} : () -> ()
  "ws.role"() ({
  ^bb0(%g: i32):
    %zero = arith.constant 0 : i32
    %yes = arith.constant true
    %nothing = arith.constant 0.0 : f32
    %sums = "ws.fill"(%nothing) : (f32) -> !sums
    %s0 = "ws.wait"(%r, %zero) : (!as, i32) -> !a
    scf.if %yes {
      %p0 = "ws.product"(%sums, %s0, %s0, %yes) {b_layout = "kn"} : (!sums, !a, !a, i1) -> !pending
      %f0 = "ws.settle"(%p0) {newest = 0 : i64} : (!pending) -> !sums
    }
    "ws.release"(%s0) {by = "threads"} : (!a) -> ()
    %s1 = "ws.wait"(%r, %zero) : (!as, i32) -> !a
    %p1 = "ws.product"(%sums, %s1, %s1, %yes) {b_layout = "kn"} : (!sums, !a, !a, i1) -> !pending
    %f1 = "ws.settle"(%p1) {newest = 0 : i64} : (!pending) -> !sums
    "ws.release"(%s1) {by = "threads"} : (!a) -> ()
  }) {label_name = "use", warps = array<i32: 0, 4>, groups = 1 : i64, lanes = 32 : i64, registers = 0 : i64} : () -> ()
}) {sym_name = "k", arg_names = ["in"], arg_roles = ["in"], arg_dims = [["keys", ""]]} : () -> ()

// -----

// Two products in flight, of which the second still reads the slot.

!a = !ws.tile<vector<64x64xbf16>, "shared">
!as = !ws.ring<!a, 2, 1>
!sums = !ws.frag<vector<64x64xf32>>
!pending = !ws.pending<!sums>
"ws.kernel"() ({
^bb0(%in: memref<?x64xbf16>):
  %r = "ws.alloc_ring"() {label_name = "r"} : () -> !as
  "ws.role"() ({
  ^bb0(%g: i32):
    %zero = arith.constant 0 : i32
    %slot = "ws.acquire"(%r, %zero) : (!as, i32) -> !a
    "ws.commit"(%slot) {by = "threads"} : (!a) -> ()
  }) {label_name = "load", warps = array<i32: 4, 1>, groups = 1 : i64, lanes = 1 : i64, registers = 0 : i64} : () -> ()
  "ws.role"() ({
  ^bb0(%g: i32):
    %zero = arith.constant 0 : i32
    %yes = arith.constant true
    %nothing = arith.constant 0.0 : f32
    %sums = "ws.fill"(%nothing) : (f32) -> !sums
    %more = "ws.fill"(%nothing) : (f32) -> !sums
    %s0 = "ws.wait"(%r, %zero) : (!as, i32) -> !a
    %p0 = "ws.product"(%sums, %s0, %s0, %yes) {b_layout = "kn"} : (!sums, !a, !a, i1) -> !pending
    %p1 = "ws.product"(%more, %s0, %s0, %yes) {b_layout = "kn"} : (!sums, !a, !a, i1) -> !pending
    %f0 = "ws.settle"(%p0) {newest = 1 : i64} : (!pending) -> !sums
    // expected-error @below {{'ws.release' op hands a slot of ring r back that a product reads until it is settled: move the release behind ws.settle}}
    "ws.release"(%s0) {by = "threads"} : (!a) -> ()
    %f1 = "ws.settle"(%p1) {newest = 0 : i64} : (!pending) -> !sums
  }) {label_name = "use", warps = array<i32: 0, 4>, groups = 1 : i64, lanes = 32 : i64, registers = 0 : i64} : () -> ()
}) {sym_name = "k", arg_names = ["in"], arg_roles = ["in"], arg_dims = [["keys", ""]]} : () -> ()

// -----

// A branch that the warps of a group do not take together.

!a = !ws.tile<vector<64x64xbf16>, "shared">
!as = !ws.ring<!a, 2, 1>
!sums = !ws.frag<vector<64x64xf32>>
!pending = !ws.pending<!sums>
"ws.kernel"() ({
^bb0(%in: memref<?x64xbf16>):
  %r = "ws.alloc_ring"() {label_name = "r"} : () -> !as
  "ws.role"() ({
  ^bb0(%g: i32):
    %zero = arith.constant 0 : i32
    %one = arith.constant 1 : i32
    %two = arith.constant 2 : i32
    scf.for %i = %zero to %two step %one : i32 {
      %slot = "ws.acquire"(%r, %zero) : (!as, i32) -> !a
      "ws.commit"(%slot) {by = "threads"} : (!a) -> ()
    }
  }) {label_name = "load", warps = array<i32: 4, 1>, groups = 1 : i64, lanes = 1 : i64, registers = 0 : i64} : () -> ()
  "ws.role"() ({
  ^bb0(%g: i32):
    %zero = arith.constant 0 : i32
    %yes = arith.constant true
    %nothing = arith.constant 0.0 : f32
    %sums = "ws.fill"(%nothing) : (f32) -> !sums
    %none = "ws.fill"(%yes) : (i1) -> !ws.frag<vector<64xi1>>
    %some = "ws.any"(%none) : (!ws.frag<vector<64xi1>>) -> i1
    %both = arith.andi %some, %yes : i1
    %s0 = "ws.wait"(%r, %zero) : (!as, i32) -> !a
    // expected-error @below {{'scf.if' op is taken by each warp for itself, by ws.any, and holds a product, which all warps of a group issue together}}
    scf.if %both {
      %p0 = "ws.product"(%sums, %s0, %s0, %yes) {b_layout = "kn"} : (!sums, !a, !a, i1) -> !pending
      %f0 = "ws.settle"(%p0) {newest = 0 : i64} : (!pending) -> !sums
    }
    "ws.release"(%s0) {by = "threads"} : (!a) -> ()
    %s1 = "ws.wait"(%r, %zero) : (!as, i32) -> !a
    "ws.release"(%s1) {by = "threads"} : (!a) -> ()
  }) {label_name = "use", warps = array<i32: 0, 4>, groups = 1 : i64, lanes = 32 : i64, registers = 0 : i64} : () -> ()
}) {sym_name = "k", arg_names = ["in"], arg_roles = ["in"], arg_dims = [["keys", ""]]} : () -> ()
