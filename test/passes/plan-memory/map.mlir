// RUN: attn-opt --ws-plan-memory %s | FileCheck %s
// RUN: attn-opt --ws-plan-memory=print-map %s 2>&1 | FileCheck %s --check-prefix=MAP
// RUN: attn-opt --ws-plan-memory %s | attn-opt --ws-plan-memory - | FileCheck %s

// Largest first. `out` is filled when the last product that read `in` is done, so it lies in the
// same place; `rows` is a vector and needs 16 bytes, tiles need 1024. A barrier counts the threads
// of one group, or one arrival of an engine. Tensor memory is granted in powers of two from 32.

// CHECK: "ws.alloc_ring"() {label_name = "rows", ws.plan = {empty = 32880 : i64, empty_count = 128 : i64, full = 32864 : i64, full_count = 32 : i64, offset = 32768 : i64, slot_step = 48 : i64}}
// CHECK: "ws.alloc_ring"() {label_name = "in", ws.plan = {empty = 32904 : i64, empty_count = 1 : i64, full = 32896 : i64, full_count = 1 : i64, offset = 0 : i64, slot_step = 32768 : i64}}
// CHECK: "ws.alloc_ring"() {label_name = "out", ws.plan = {empty = 32920 : i64, empty_count = 1 : i64, full = 32912 : i64, full_count = 128 : i64, offset = 0 : i64, slot_step = 16384 : i64}}
// CHECK: "ws.alloc_ring"() {label_name = "acc", ws.plan = {empty = 32936 : i64, empty_count = 128 : i64, full = 32928 : i64, full_count = 1 : i64, offset = 0 : i64, slot_step = 64 : i64}}
// CHECK: "ws.alloc_buffer"() {label_name = "spare", ws.plan = {offset = 64 : i64, slot_step = 8 : i64}}
// CHECK: ws.plan = {smem_bytes = 32952 : i64, tensor_address = 32944 : i64, tensor_cols = 128 : i64}

// MAP: memory map of k
// MAP: shared 0 .. 16384 16384 B out
// MAP: shared 0 .. 32768 32768 B in
// MAP: shared 32768 .. 32864 96 B rows
// MAP: shared 32864 .. 32952 88 B barriers
// MAP: tensor 0 .. 64 64 cols acc
// MAP: tensor 64 .. 72 8 cols spare

!in = !ws.tile<vector<128x128xbf16>, "shared">
!out = !ws.tile<vector<128x64xbf16>, "shared">
!acc = !ws.tile<vector<128x64xf32>, "tensor">
!row = !ws.tile<vector<9xf32>, "shared">
!ins = !ws.ring<!in, 1, 1>
!outs = !ws.ring<!out, 1, 1>
!accs = !ws.ring<!acc, 1, 1>
!rows = !ws.ring<!row, 1, 2>
"ws.kernel"() ({
^bb0(%x: memref<?x128xbf16>):
  %rows = "ws.alloc_ring"() {label_name = "rows"} : () -> !rows
  %in = "ws.alloc_ring"() {label_name = "in"} : () -> !ins
  %out = "ws.alloc_ring"() {label_name = "out"} : () -> !outs
  %acc = "ws.alloc_ring"() {label_name = "acc"} : () -> !accs
  %spare = "ws.alloc_buffer"() {label_name = "spare"} : () -> !ws.buffer<!ws.tile<vector<128x16xbf16>, "tensor">, 1>
  "ws.role"() ({
  ^bb0(%g: i32):
    %zero = arith.constant 0 : i32
    %s = "ws.acquire"(%in, %zero) : (!ins, i32) -> !in
    "ws.commit"(%s) {by = "copy_engine"} : (!in) -> ()
  }) {label_name = "load", warps = array<i32: 12, 1>, groups = 1 : i64, lanes = 1 : i64, registers = 24 : i64} : () -> ()
  "ws.role"() ({
  ^bb0(%g: i32):
    %zero = arith.constant 0 : i32
    %s = "ws.wait"(%in, %zero) : (!ins, i32) -> !in
    %d = "ws.acquire"(%acc, %zero) : (!accs, i32) -> !acc
    "ws.release"(%s) {by = "tensor_core"} : (!in) -> ()
    "ws.commit"(%d) {by = "tensor_core"} : (!acc) -> ()
  }) {label_name = "mma", warps = array<i32: 13, 1>, groups = 1 : i64, lanes = 1 : i64, registers = 24 : i64} : () -> ()
  "ws.role"() ({
  ^bb0(%g: i32):
    %zero = arith.constant 0 : i32
    %one = arith.constant 1 : i32
    %d = "ws.wait"(%acc, %zero) : (!accs, i32) -> !acc
    %o = "ws.acquire"(%out, %zero) : (!outs, i32) -> !out
    "ws.release"(%d) {by = "threads"} : (!acc) -> ()
    "ws.commit"(%o) {by = "threads"} : (!out) -> ()
    %a = "ws.wait"(%rows, %zero) : (!rows, i32) -> !row
    "ws.release"(%a) {by = "threads"} : (!row) -> ()
    %b = "ws.wait"(%rows, %one) : (!rows, i32) -> !row
    "ws.release"(%b) {by = "threads"} : (!row) -> ()
  }) {label_name = "finish", warps = array<i32: 8, 4>, groups = 1 : i64, lanes = 32 : i64, registers = 64 : i64} : () -> ()
  "ws.role"() ({
  ^bb0(%g: i32):
    %a = "ws.acquire"(%rows, %g) : (!rows, i32) -> !row
    "ws.commit"(%a) {by = "threads"} : (!row) -> ()
  }) {label_name = "count", warps = array<i32: 0, 2>, groups = 2 : i64, lanes = 32 : i64, registers = 64 : i64} : () -> ()
  "ws.role"() ({
  ^bb0(%g: i32):
    %zero = arith.constant 0 : i32
    %s = "ws.wait"(%out, %zero) : (!outs, i32) -> !out
    "ws.release"(%s) {by = "copy_engine"} : (!out) -> ()
  }) {label_name = "store", warps = array<i32: 14, 1>, groups = 1 : i64, lanes = 1 : i64, registers = 24 : i64} : () -> ()
}) {sym_name = "k", arg_names = ["x"], arg_roles = ["in"], arg_dims = [["keys", ""]]} : () -> ()
