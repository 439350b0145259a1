// RUN: attn-opt --split-input-file --verify-diagnostics %s

// Clusters.

// expected-error @below {{'ws.kernel' op expects a cluster of at least 1 CTA, got 0}}
"ws.kernel"() ({
^bb0:
}) {sym_name = "k", arg_names = [], arg_roles = [], arg_dims = [], cluster = 0 : i64} : () -> ()

// -----

// expected-error @below {{'ws.kernel' op expects attribute 'cluster' of IntegerAttr, got array<i32: 2>}}
"ws.kernel"() ({
}) {sym_name = "k", arg_names = [], arg_roles = [], arg_dims = [], cluster = array<i32: 2>} : () -> ()

// -----

// Ranks of a role.

"ws.kernel"() ({
  // expected-error @below {{'ws.role' op expects ranks below 2 that ascend, got [0, 2]}}
  "ws.role"() ({
  ^bb0(%g: i32):
  }) {label_name = "r", warps = array<i32: 0, 1>, groups = 1 : i64, lanes = 1 : i64, registers = 0 : i64, ranks = array<i32: 0, 2>} : () -> ()
}) {sym_name = "k", arg_names = [], arg_roles = [], arg_dims = [], cluster = 2 : i64} : () -> ()

// -----

"ws.kernel"() ({
  // expected-error @below {{'ws.role' op expects ranks below 2 that ascend, got []}}
  "ws.role"() ({
  ^bb0(%g: i32):
  }) {label_name = "r", warps = array<i32: 0, 1>, groups = 1 : i64, lanes = 1 : i64, registers = 0 : i64, ranks = array<i32>} : () -> ()
}) {sym_name = "k", arg_names = [], arg_roles = [], arg_dims = [], cluster = 2 : i64} : () -> ()

// -----

// Lists.

"ws.kernel"() ({
  // expected-error @below {{'ws.alloc_ring' op expects a list in full_at for each of 2 CTAs, got 1}}
  %r = "ws.alloc_ring"() {label_name = "r", full_at = [array<i32: 0>]} : () -> !ws.ring<none, 1, 1>
}) {sym_name = "k", arg_names = [], arg_roles = [], arg_dims = [], cluster = 2 : i64} : () -> ()

// -----

"ws.kernel"() ({
  // expected-error @below {{'ws.alloc_ring' op expects empty_at of ranks below 2 that ascend, got [1, 0]}}
  %r = "ws.alloc_ring"() {label_name = "r", empty_at = [array<i32: 0>, array<i32: 1, 0>]} : () -> !ws.ring<none, 1, 1>
}) {sym_name = "k", arg_names = [], arg_roles = [], arg_dims = [], cluster = 2 : i64} : () -> ()

// -----

"ws.kernel"() ({
  // expected-error @below {{'ws.alloc_ring' op expects empty_at to hold lists of i32, got [0, 1]}}
  %r = "ws.alloc_ring"() {label_name = "r", empty_at = [0, 1]} : () -> !ws.ring<none, 1, 1>
}) {sym_name = "k", arg_names = [], arg_roles = [], arg_dims = [], cluster = 2 : i64} : () -> ()

// -----

// Outside of a cluster there is one CTA.

func.func @f(%x: memref<?x64xbf16>, %s: !ws.tile<vector<8x64xbf16>, "shared">, %c: i32) {
  // expected-error @below {{'ws.copy_in' op expects receivers of ranks below 1 that ascend, got [0, 1]}}
  "ws.copy_in"(%x, %s, %c, %c) {dims = array<i32: 0, 1>, receivers = [array<i32: 0, 1>], operandSegmentSizes = array<i32: 1, 1, 2>} : (memref<?x64xbf16>, !ws.tile<vector<8x64xbf16>, "shared">, i32, i32) -> ()
  func.return
}

// -----

// Products of pairs.

func.func @f(%d: !ws.tile<vector<128x64xf32>, "tensor">, %a: !ws.tile<vector<128x64xbf16>, "shared">, %b: !ws.tile<vector<32x64xbf16>, "shared">, %c: i1) {
  // expected-error @below {{'ws.mma' op expects ctas of 1 or 2, got 4}}
  "ws.mma"(%d, %a, %b, %c) {b_layout = "nk", ctas = 4 : i64} : (!ws.tile<vector<128x64xf32>, "tensor">, !ws.tile<vector<128x64xbf16>, "shared">, !ws.tile<vector<32x64xbf16>, "shared">, i1) -> ()
  func.return
}

// -----

func.func @f(%d: !ws.tile<vector<128x64xf32>, "tensor">, %a: !ws.tile<vector<128x64xbf16>, "shared">, %b: !ws.tile<vector<16x64xbf16>, "shared">, %c: i1) {
  // expected-error @below {{'ws.mma' op expects [M, N] = [M, K] x [K, N / 2], got [128, 64], [128, 64], [64, 16]}}
  "ws.mma"(%d, %a, %b, %c) {b_layout = "nk", ctas = 2 : i64} : (!ws.tile<vector<128x64xf32>, "tensor">, !ws.tile<vector<128x64xbf16>, "shared">, !ws.tile<vector<16x64xbf16>, "shared">, i1) -> ()
  func.return
}

// -----

// Of sums below one another a has half as many rows in shared memory, as many in tensor memory.

func.func @f(%d: !ws.tile<vector<128x64xf32>, "tensor">, %a: !ws.tile<vector<128x64xbf16>, "shared">, %b: !ws.tile<vector<64x64xbf16>, "shared">, %c: i1) {
  // expected-error @below {{'ws.mma' op expects [M, N] = [M, K] x [K, N / 2], got [64, 128], [128, 64], [64, 64]}}
  "ws.mma"(%d, %a, %b, %c) {b_layout = "nk", ctas = 2 : i64} : (!ws.tile<vector<128x64xf32>, "tensor">, !ws.tile<vector<128x64xbf16>, "shared">, !ws.tile<vector<64x64xbf16>, "shared">, i1) -> ()
  func.return
}

// -----

func.func @f(%d: !ws.tile<vector<128x64xf32>, "tensor">, %a: !ws.tile<vector<64x64xbf16>, "tensor">, %b: !ws.tile<vector<64x64xbf16>, "shared">, %c: i1) {
  // expected-error @below {{'ws.mma' op expects [M, N] = [M, K] x [K, N / 2], got [128, 128], [64, 64], [64, 64]}}
  "ws.mma"(%d, %a, %b, %c) {b_layout = "nk", ctas = 2 : i64} : (!ws.tile<vector<128x64xf32>, "tensor">, !ws.tile<vector<64x64xbf16>, "tensor">, !ws.tile<vector<64x64xbf16>, "shared">, i1) -> ()
  func.return
}

// -----

// Copies across.

"ws.kernel"() ({
^bb0:
  %b = "ws.alloc_buffer"() {label_name = "b"} : () -> !ws.buffer<!ws.tile<vector<8x64xbf16>, "shared">, 1>
  "ws.role"() ({
  ^bb0(%g: i32):
    %s = "ws.at"(%b, %g) : (!ws.buffer<!ws.tile<vector<8x64xbf16>, "shared">, 1>, i32) -> !ws.tile<vector<8x64xbf16>, "shared">
    // expected-error @below {{'ws.copy_across' op expects at most one receiver of a CTA, got [0, 1]}}
    "ws.copy_across"(%s, %s) {receivers = [array<i32: 0, 1>, array<i32>]} : (!ws.tile<vector<8x64xbf16>, "shared">, !ws.tile<vector<8x64xbf16>, "shared">) -> ()
  }) {label_name = "r", warps = array<i32: 0, 1>, groups = 1 : i64, lanes = 1 : i64, registers = 0 : i64} : () -> ()
}) {sym_name = "k", arg_names = [], arg_roles = [], arg_dims = [], cluster = 2 : i64} : () -> ()

// -----

func.func @f(%a: !ws.tile<vector<8x64xbf16>, "shared">, %b: !ws.tile<vector<16x64xbf16>, "shared">) {
  // expected-error @below {{'ws.copy_across' op expects shared tiles of one type, got !ws.tile<vector<8x64xbf16>, "shared"> and !ws.tile<vector<16x64xbf16>, "shared">}}
  "ws.copy_across"(%a, %b) {receivers = [array<i32: 0>]} : (!ws.tile<vector<8x64xbf16>, "shared">, !ws.tile<vector<16x64xbf16>, "shared">) -> ()
  func.return
}
