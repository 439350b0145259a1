// RUN: attn-opt --split-input-file --verify-diagnostics --convert-ws-to-nvvm %s

// A plan may be written by hand; what it lacks or gets wrong is found before anything is emitted.

// expected-error @below {{'ws.kernel' op has no 'ws.plan': run ws-plan-memory first}}
"ws.kernel"() ({
^bb0:
}) {sym_name = "k", arg_names = [], arg_roles = [], arg_dims = []} : () -> ()

// -----

// expected-error @below {{'ws.kernel' op expects 'ws.plan' to be a dictionary, got loc("x":1:2)}}
"ws.kernel"() ({
^bb0:
}) {sym_name = "k", arg_names = [], arg_roles = [], arg_dims = [], ws.plan = loc("x":1:2)} : () -> ()

// -----

// expected-error @below {{'ws.kernel' op expects 'ws.plan' to say tensor_cols, a number from 0 on, got nothing}}
"ws.kernel"() ({
^bb0:
}) {sym_name = "k", arg_names = [], arg_roles = [], arg_dims = [], ws.plan = {smem_bytes = 8 : i64}} : () -> ()

// -----

// expected-error @below {{'ws.kernel' op expects smem_bytes of 'ws.plan' to be at most 232448, got 232456}}
"ws.kernel"() ({
^bb0:
}) {sym_name = "k", arg_names = [], arg_roles = [], arg_dims = [],
    ws.plan = {smem_bytes = 232456 : i64, tensor_cols = 0 : i64, tensor_address = 0 : i64}} : () -> ()

// -----

// expected-error @below {{'ws.kernel' op expects tensor_cols of 'ws.plan' to be 0 or a power of two from 32, got 48}}
"ws.kernel"() ({
^bb0:
}) {sym_name = "k", arg_names = [], arg_roles = [], arg_dims = [],
    ws.plan = {smem_bytes = 8 : i64, tensor_cols = 48 : i64, tensor_address = 0 : i64}} : () -> ()

// -----

// expected-error @below {{'ws.kernel' op expects tensor_address of 'ws.plan' to be a multiple of 8, at most 0, got 8}}
"ws.kernel"() ({
^bb0:
}) {sym_name = "k", arg_names = [], arg_roles = [], arg_dims = [],
    ws.plan = {smem_bytes = 8 : i64, tensor_cols = 0 : i64, tensor_address = 8 : i64}} : () -> ()

// -----

"ws.kernel"() ({
^bb0:
  // expected-error @below {{'ws.alloc_buffer' op has no 'ws.plan': run ws-plan-memory first}}
  %b = "ws.alloc_buffer"() {label_name = "b"} : () -> !ws.buffer<!ws.tile<vector<4xf32>, "shared">, 2>
}) {sym_name = "k", arg_names = [], arg_roles = [], arg_dims = [],
    ws.plan = {smem_bytes = 40 : i64, tensor_cols = 0 : i64, tensor_address = 32 : i64}} : () -> ()

// -----

"ws.kernel"() ({
^bb0:
  // expected-error @below {{'ws.alloc_buffer' op expects slot_step of 'ws.plan' to be 16, got 8}}
  %b = "ws.alloc_buffer"() {label_name = "b", ws.plan = {offset = 0 : i64, slot_step = 8 : i64}}
    : () -> !ws.buffer<!ws.tile<vector<4xf32>, "shared">, 2>
}) {sym_name = "k", arg_names = [], arg_roles = [], arg_dims = [],
    ws.plan = {smem_bytes = 40 : i64, tensor_cols = 0 : i64, tensor_address = 32 : i64}} : () -> ()

// -----

"ws.kernel"() ({
^bb0:
  // expected-error @below {{'ws.alloc_buffer' op expects offset of 'ws.plan' to be a multiple of 16, got 4}}
  %b = "ws.alloc_buffer"() {label_name = "b", ws.plan = {offset = 4 : i64, slot_step = 16 : i64}}
    : () -> !ws.buffer<!ws.tile<vector<4xf32>, "shared">, 2>
}) {sym_name = "k", arg_names = [], arg_roles = [], arg_dims = [],
    ws.plan = {smem_bytes = 40 : i64, tensor_cols = 0 : i64, tensor_address = 32 : i64}} : () -> ()

// -----

"ws.kernel"() ({
^bb0:
  // expected-error @below {{'ws.alloc_buffer' op expects offset of 'ws.plan' to be at most 8, got 16}}
  %b = "ws.alloc_buffer"() {label_name = "b", ws.plan = {offset = 16 : i64, slot_step = 16 : i64}}
    : () -> !ws.buffer<!ws.tile<vector<4xf32>, "shared">, 2>
}) {sym_name = "k", arg_names = [], arg_roles = [], arg_dims = [],
    ws.plan = {smem_bytes = 40 : i64, tensor_cols = 0 : i64, tensor_address = 32 : i64}} : () -> ()

// -----

!ring = !ws.ring<!ws.tile<vector<4xf32>, "shared">, 2, 1>
"ws.kernel"() ({
^bb0:
  // expected-error @below {{'ws.alloc_ring' op expects full_count of 'ws.plan' to be 1, got 32}}
  %r = "ws.alloc_ring"() {label_name = "r", ws.plan = {offset = 0 : i64, slot_step = 16 : i64,
      full = 32 : i64, empty = 48 : i64, full_count = 32 : i64, empty_count = 1 : i64}} : () -> !ring
  "ws.role"() ({
  ^bb0(%g: i32):
    %zero = arith.constant 0 : i32
    %s = "ws.acquire"(%r, %zero) : (!ring, i32) -> !ws.tile<vector<4xf32>, "shared">
    "ws.commit"(%s) {by = "copy_engine"} : (!ws.tile<vector<4xf32>, "shared">) -> ()
  }) {label_name = "fill", warps = array<i32: 0, 1>, groups = 1 : i64, lanes = 1 : i64, registers = 0 : i64} : () -> ()
  "ws.role"() ({
  ^bb0(%g: i32):
    %zero = arith.constant 0 : i32
    %s = "ws.wait"(%r, %zero) : (!ring, i32) -> !ws.tile<vector<4xf32>, "shared">
    "ws.release"(%s) {by = "threads"} : (!ws.tile<vector<4xf32>, "shared">) -> ()
  }) {label_name = "read", warps = array<i32: 1, 1>, groups = 1 : i64, lanes = 1 : i64, registers = 0 : i64} : () -> ()
}) {sym_name = "k", arg_names = [], arg_roles = [], arg_dims = [],
    ws.plan = {smem_bytes = 80 : i64, tensor_cols = 0 : i64, tensor_address = 64 : i64}} : () -> ()

// -----

// What is borrowed lies in the place of its lender, from its offset on.

!s = !ws.tile<vector<128x32xf32>, "tensor">
!ring = !ws.ring<!s, 1, 1>
!p = !ws.tile<vector<128x16xf32>, "tensor">
!ps = !ws.ring<!p, 1, 1>
"ws.kernel"() ({
^bb0:
  %s = "ws.alloc_ring"() {known_empty, label_name = "s", ws.plan = {offset = 0 : i64, slot_step = 32 : i64,
      full = 0 : i64, full_count = 32 : i64}} : () -> !ring
  // expected-error @below {{'ws.alloc_inside' op expects offset of 'ws.plan' to be 16, in the place of ring s, got 32}}
  %p = "ws.alloc_inside"(%s) {known_empty, label_name = "p", offset = 16 : i64, ws.plan = {offset = 32 : i64, slot_step = 32 : i64,
      full = 8 : i64, full_count = 32 : i64}} : (!ring) -> !ps
  "ws.role"() ({
  ^bb0(%g: i32):
    %zero = arith.constant 0 : i32
    %t = "ws.acquire"(%s, %zero) : (!ring, i32) -> !s
    "ws.commit"(%t) {by = "threads"} : (!s) -> ()
    %u = "ws.wait"(%s, %zero) : (!ring, i32) -> !s
    "ws.release"(%u) {by = "threads"} : (!s) -> ()
    %v = "ws.acquire"(%p, %zero) : (!ps, i32) -> !p
    "ws.commit"(%v) {by = "threads"} : (!p) -> ()
    %w = "ws.wait"(%p, %zero) : (!ps, i32) -> !p
    "ws.release"(%w) {by = "threads"} : (!p) -> ()
  }) {label_name = "all", warps = array<i32: 0, 1>, groups = 1 : i64, lanes = 32 : i64, registers = 0 : i64} : () -> ()
}) {sym_name = "k", arg_names = [], arg_roles = [], arg_dims = [],
    ws.plan = {smem_bytes = 24 : i64, tensor_cols = 64 : i64, tensor_address = 16 : i64}} : () -> ()

// -----

// Slots that are known to be empty have no empty barriers.

!ring = !ws.ring<!ws.tile<vector<128x32xf32>, "tensor">, 1, 1>
"ws.kernel"() ({
^bb0:
  // expected-error @below {{'ws.alloc_ring' op has unknown entry 'empty' in 'ws.plan': known are offset, slot_step, full, full_count}}
  %s = "ws.alloc_ring"() {known_empty, label_name = "s", ws.plan = {offset = 0 : i64, slot_step = 32 : i64,
      full = 0 : i64, empty = 8 : i64, full_count = 32 : i64, empty_count = 1 : i64}} : () -> !ring
  %p = "ws.alloc_inside"(%s) {known_empty, label_name = "p", ws.plan = {offset = 0 : i64, slot_step = 32 : i64,
      full = 8 : i64, full_count = 32 : i64}} : (!ring) -> !ring
}) {sym_name = "k", arg_names = [], arg_roles = [], arg_dims = [],
    ws.plan = {smem_bytes = 24 : i64, tensor_cols = 64 : i64, tensor_address = 16 : i64}} : () -> ()
