// RUN: attn-opt --split-input-file --ws-plan-memory %s | FileCheck %s
// RUN: not attn-opt --split-input-file --ws-plan-memory=target=sm_90a %s 2>&1 | FileCheck %s --check-prefix=HOPPER
// RUN: not attn-opt --split-input-file --ws-plan-memory=target=sm_42 %s 2>&1 | FileCheck %s --check-prefix=UNKNOWN

// The largest that fits; another chip has no tensor memory.

// CHECK: smem_bytes = 229608 : i64
// CHECK: tensor_cols = 512 : i64
// CHECK: sym_name = "third"

// HOPPER: limits.mlir:{{[0-9]+}}:1: error: the kernel needs 512 columns of tensor memory, sm_90a gives 0: more 384, r 128;

// UNKNOWN: limits.mlir: error: no target 'sm_42': supported are sm_90a, sm_100a

!t = !ws.tile<vector<128x64xbf16>, "shared">
!ring = !ws.ring<!t, 14, 1>
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

!t = !ws.tile<vector<128x128xf32>, "tensor">
!ring = !ws.ring<!t, 1, 1>
"ws.kernel"() ({
^bb0(%x: memref<?x128xbf16>):
  %r = "ws.alloc_ring"() {label_name = "r"} : () -> !ring
  %more = "ws.alloc_buffer"() {label_name = "more"} : () -> !ws.buffer<!t, 3>
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

!t = !ws.tile<vector<128x64xbf16>, "shared">
!ring = !ws.ring<!t, 1, 1>
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
  }) {label_name = "use", warps = array<i32: 4, 1>, groups = 1 : i64, lanes = 1 : i64, registers = 128 : i64} : () -> ()
  "ws.role"() ({
  ^bb0(%g: i32):
    %zero = arith.constant 0 : i32
  }) {label_name = "idle0", warps = array<i32: 8, 4>, groups = 1 : i64, lanes = 32 : i64, registers = 128 : i64} : () -> ()
  "ws.role"() ({
  ^bb0(%g: i32):
    %zero = arith.constant 0 : i32
  }) {label_name = "idle1", warps = array<i32: 12, 4>, groups = 1 : i64, lanes = 32 : i64, registers = 128 : i64} : () -> ()
}) {sym_name = "third", arg_names = ["x"], arg_roles = ["in"], arg_dims = [["keys", ""]]} : () -> ()
