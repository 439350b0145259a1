// RUN: attn-opt --split-input-file --verify-diagnostics --ws-plan-memory %s

// Shared memory: 14 tiles of 16 KiB fit, 15 do not.

!t = !ws.tile<vector<128x64xbf16>, "shared">
!ring = !ws.ring<!t, 15, 1>
// expected-error @below {{the kernel needs 246008 B of shared memory, sm_100a gives 232448: r 245760, barriers 248; try fewer stages or smaller tiles}}
"ws.kernel"() ({
^bb0(%x: memref<?x128xbf16>):
  %r = "ws.alloc_ring"() {label_name = "r"} : () -> !ring
  "ws.role"() ({
  ^bb0(%g: i32):
    %zero = arith.constant 0 : i32
    %s = "ws.acquire"(%r, %zero) : (!ring, i32) -> !t
    "ws.commit"(%s) {by = "copy_engine"} : (!t) -> ()
  }) {label_name = "fill", warps = array<i32: 0, 1>, groups = 1 : i64, lanes = 1 : i64, registers = 24 : i64} : () -> ()
  "ws.role"() ({
  ^bb0(%g: i32):
    %zero = arith.constant 0 : i32
    %s = "ws.wait"(%r, %zero) : (!ring, i32) -> !t
    "ws.release"(%s) {by = "tensor_core"} : (!t) -> ()
  }) {label_name = "use", warps = array<i32: 4, 1>, groups = 1 : i64, lanes = 1 : i64, registers = 24 : i64} : () -> ()
}) {sym_name = "k", arg_names = ["x"], arg_roles = ["in"], arg_dims = [["keys", ""]]} : () -> ()

// -----

// Tensor memory: 4 accumulators of 128 columns fit, 5 do not.

!t = !ws.tile<vector<128x128xf32>, "tensor">
!ring = !ws.ring<!t, 1, 1>
// expected-error @below {{the kernel needs 640 columns of tensor memory, sm_100a gives 512: more 512, r 128; try fewer stages or smaller tiles}}
"ws.kernel"() ({
^bb0(%x: memref<?x128xbf16>):
  %r = "ws.alloc_ring"() {label_name = "r"} : () -> !ring
  %more = "ws.alloc_buffer"() {label_name = "more"} : () -> !ws.buffer<!t, 4>
  "ws.role"() ({
  ^bb0(%g: i32):
    %zero = arith.constant 0 : i32
    %s = "ws.acquire"(%r, %zero) : (!ring, i32) -> !t
    "ws.commit"(%s) {by = "copy_engine"} : (!t) -> ()
  }) {label_name = "fill", warps = array<i32: 0, 1>, groups = 1 : i64, lanes = 1 : i64, registers = 24 : i64} : () -> ()
  "ws.role"() ({
  ^bb0(%g: i32):
    %zero = arith.constant 0 : i32
    %s = "ws.wait"(%r, %zero) : (!ring, i32) -> !t
    "ws.release"(%s) {by = "tensor_core"} : (!t) -> ()
  }) {label_name = "use", warps = array<i32: 4, 1>, groups = 1 : i64, lanes = 1 : i64, registers = 24 : i64} : () -> ()
}) {sym_name = "k", arg_names = ["x"], arg_roles = ["in"], arg_dims = [["keys", ""]]} : () -> ()

// -----

// Registers: 4 warpgroups of 128 fit, 136 for one of them does not.

!t = !ws.tile<vector<128x64xbf16>, "shared">
!ring = !ws.ring<!t, 1, 1>
// expected-error @below {{the 4 warpgroups need 520 registers per thread together, a CTA of their size on sm_100a gives 512: fill 128, use 136, idle0 128, idle1 128; lower the budget of a role}}
"ws.kernel"() ({
^bb0(%x: memref<?x128xbf16>):
  %r = "ws.alloc_ring"() {label_name = "r"} : () -> !ring
  "ws.role"() ({
  ^bb0(%g: i32):
    %zero = arith.constant 0 : i32
    %s = "ws.acquire"(%r, %zero) : (!ring, i32) -> !t
    "ws.commit"(%s) {by = "copy_engine"} : (!t) -> ()
  }) {label_name = "fill", warps = array<i32: 0, 1>, groups = 1 : i64, lanes = 1 : i64, registers = 128 : i64} : () -> ()
  "ws.role"() ({
  ^bb0(%g: i32):
    %zero = arith.constant 0 : i32
    %s = "ws.wait"(%r, %zero) : (!ring, i32) -> !t
    "ws.release"(%s) {by = "tensor_core"} : (!t) -> ()
  }) {label_name = "use", warps = array<i32: 4, 1>, groups = 1 : i64, lanes = 1 : i64, registers = 136 : i64} : () -> ()
  "ws.role"() ({
  ^bb0(%g: i32):
    %zero = arith.constant 0 : i32
  }) {label_name = "idle0", warps = array<i32: 8, 4>, groups = 1 : i64, lanes = 32 : i64, registers = 128 : i64} : () -> ()
  "ws.role"() ({
  ^bb0(%g: i32):
    %zero = arith.constant 0 : i32
  }) {label_name = "idle1", warps = array<i32: 12, 4>, groups = 1 : i64, lanes = 32 : i64, registers = 128 : i64} : () -> ()
}) {sym_name = "k", arg_names = ["x"], arg_roles = ["in"], arg_dims = [["keys", ""]]} : () -> ()

// -----

// A plan needs rings that agree.

!t = !ws.tile<vector<128x64xbf16>, "shared">
!ring = !ws.ring<!t, 1, 1>
"ws.kernel"() ({
^bb0(%x: memref<?x128xbf16>):
  // expected-error @below {{'ws.alloc_ring' op needs a role that reads slots of ring r[0], got none}}
  %r = "ws.alloc_ring"() {label_name = "r"} : () -> !ring
  "ws.role"() ({
  ^bb0(%g: i32):
    %zero = arith.constant 0 : i32
    %s = "ws.acquire"(%r, %zero) : (!ring, i32) -> !t
    "ws.commit"(%s) {by = "copy_engine"} : (!t) -> ()
  }) {label_name = "fill", warps = array<i32: 0, 1>, groups = 1 : i64, lanes = 1 : i64, registers = 24 : i64} : () -> ()
}) {sym_name = "k", arg_names = ["x"], arg_roles = ["in"], arg_dims = [["keys", ""]]} : () -> ()
