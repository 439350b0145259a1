// RUN: attn-opt --split-input-file --verify-diagnostics %s

// Views and parts.

func.func @f(%s: !ws.tile<vector<8x64xbf16>, "shared">) {
  // expected-error @below {{'ws.view' op expects a view in shared memory, got tensor}}
  %0 = "ws.view"(%s) : (!ws.tile<vector<8x64xbf16>, "shared">) -> !ws.tile<vector<8x64xbf16>, "tensor">
  func.return
}

// -----

func.func @f(%s: !ws.tile<vector<8x64xbf16>, "shared">) {
  // expected-error @below {{'ws.view' op expects 8 rows, got 16}}
  %0 = "ws.view"(%s) : (!ws.tile<vector<8x64xbf16>, "shared">) -> !ws.tile<vector<16x32xbf16>, "shared">
  func.return
}

// -----

func.func @lines_below_one_another(%s: !ws.tile<vector<8x128xbf16>, "shared">) {
  %0 = "ws.view"(%s) : (!ws.tile<vector<8x128xbf16>, "shared">) -> !ws.tile<vector<16x64xbf16>, "shared">
  // expected-error @below {{'ws.view' op expects 8 rows, got 24}}
  %1 = "ws.view"(%s) : (!ws.tile<vector<8x128xbf16>, "shared">) -> !ws.tile<vector<24x64xbf16>, "shared">
  func.return
}

// -----

func.func @f(%s: !ws.tile<vector<8x128xf32>, "tensor">) {
  // expected-error @below {{'ws.view' op expects 8 rows, got 16}}
  %0 = "ws.view"(%s) : (!ws.tile<vector<8x128xf32>, "tensor">) -> !ws.tile<vector<16x64xf32>, "tensor">
  func.return
}

// -----

func.func @f(%s: !ws.tile<vector<8x64xbf16>, "shared">) {
  // expected-error @below {{'ws.view' op expects at most 1024 bytes, got 2048}}
  %0 = "ws.view"(%s) : (!ws.tile<vector<8x64xbf16>, "shared">) -> !ws.tile<vector<8x64xf32>, "shared">
  func.return
}

// -----

func.func @f(%s: !ws.tile<vector<8x64xbf16>, "shared">) {
  // expected-error @below {{'ws.columns' op expects tiles with two dimensions}}
  %0 = "ws.columns"(%s) {first = 0 : i64} : (!ws.tile<vector<8x64xbf16>, "shared">) -> !ws.tile<vector<8xbf16>, "shared">
  func.return
}

// -----

func.func @f(%s: !ws.tile<vector<8x64xbf16>, "shared">) {
  // expected-error @below {{'ws.columns' op expects a part of !ws.tile<vector<8x64xbf16>, "shared">, got}}
  %0 = "ws.columns"(%s) {first = 0 : i64} : (!ws.tile<vector<8x64xbf16>, "shared">) -> !ws.tile<vector<8x32xbf16>, "tensor">
  func.return
}

// -----

func.func @f(%s: !ws.tile<vector<8x64xbf16>, "shared">) {
  // expected-error @below {{'ws.columns' op expects a part of}}
  %0 = "ws.columns"(%s) {first = 0 : i64} : (!ws.tile<vector<8x64xbf16>, "shared">) -> !ws.tile<vector<4x32xbf16>, "shared">
  func.return
}

// -----

func.func @f(%s: !ws.tile<vector<8x64xbf16>, "shared">) {
  // expected-error @below {{'ws.columns' op expects a part of}}
  %0 = "ws.columns"(%s) {first = 0 : i64} : (!ws.tile<vector<8x64xbf16>, "shared">) -> !ws.tile<vector<8x32xf16>, "shared">
  func.return
}

// -----

func.func @f(%s: !ws.tile<vector<8x64xbf16>, "shared">) {
  // expected-error @below {{'ws.columns' op expects columns within 0..64, got 33..65}}
  %0 = "ws.columns"(%s) {first = 33 : i64} : (!ws.tile<vector<8x64xbf16>, "shared">) -> !ws.tile<vector<8x32xbf16>, "shared">
  func.return
}

// -----

func.func @f(%s: !ws.tile<vector<8x64xbf16>, "shared">, %n: i32) {
  // expected-error @below {{'ws.rows' op expects a part of}}
  %0 = "ws.rows"(%s, %n) : (!ws.tile<vector<8x64xbf16>, "shared">, i32) -> !ws.tile<vector<8xbf16>, "shared">
  func.return
}

// -----

func.func @f(%s: !ws.tile<vector<128x64xbf16>, "tensor">, %n: i32) {
  // expected-error @below {{'ws.rows' op expects a shared tile, got}}
  %0 = "ws.rows"(%s, %n) : (!ws.tile<vector<128x64xbf16>, "tensor">, i32) -> !ws.tile<vector<8x64xbf16>, "tensor">
  func.return
}

// -----

func.func @f(%s: !ws.tile<vector<16x64xbf16>, "shared">, %n: i32) {
  // expected-error @below {{'ws.rows' op expects a part of}}
  %0 = "ws.rows"(%s, %n) : (!ws.tile<vector<16x64xbf16>, "shared">, i32) -> !ws.tile<vector<8x32xbf16>, "shared">
  func.return
}

// -----

func.func @f(%s: !ws.tile<vector<16x64xbf16>, "shared">, %n: i32) {
  // expected-error @below {{'ws.rows' op expects a part of}}
  %0 = "ws.rows"(%s, %n) : (!ws.tile<vector<16x64xbf16>, "shared">, i32) -> !ws.tile<vector<8x64xbf16>, "tensor">
  func.return
}

// -----

func.func @f(%s: !ws.tile<vector<16xi32>, "shared">) {
  %n = arith.constant 8 : i32
  // expected-error @below {{'ws.rows' op expects rows within 0..16, got 8..17}}
  %0 = "ws.rows"(%s, %n) : (!ws.tile<vector<16xi32>, "shared">, i32) -> !ws.tile<vector<9xi32>, "shared">
  func.return
}

// -----

func.func @f(%s: !ws.tile<vector<16x64xbf16>, "shared">, %n: i32) {
  // expected-error @below {{'ws.rows' op expects rows within 0..16, got 0..24}}
  %0 = "ws.rows"(%s, %n) : (!ws.tile<vector<16x64xbf16>, "shared">, i32) -> !ws.tile<vector<24x64xbf16>, "shared">
  func.return
}

// -----

func.func @f(%s: !ws.tile<vector<16x64xbf16>, "shared">) {
  %n = arith.constant 9 : i32
  // expected-error @below {{'ws.rows' op expects rows within 0..16, got 9..17}}
  %0 = "ws.rows"(%s, %n) : (!ws.tile<vector<16x64xbf16>, "shared">, i32) -> !ws.tile<vector<8x64xbf16>, "shared">
  func.return
}

// -----

func.func @f(%s: !ws.tile<vector<16x64xbf16>, "shared">) {
  %n = arith.constant -8 : i32
  // expected-error @below {{'ws.rows' op expects rows within 0..16, got -8..0}}
  %0 = "ws.rows"(%s, %n) : (!ws.tile<vector<16x64xbf16>, "shared">, i32) -> !ws.tile<vector<8x64xbf16>, "shared">
  func.return
}

// -----

func.func @f(%s: !ws.tile<vector<8x64xbf16>, "shared">) {
  // expected-error @below {{'ws.columns' op expects columns within 0..64, got -1..31}}
  %0 = "ws.columns"(%s) {first = -1 : i64} : (!ws.tile<vector<8x64xbf16>, "shared">) -> !ws.tile<vector<8x32xbf16>, "shared">
  func.return
}

// -----

// Registers.

func.func @f(%s: !ws.tile<vector<8x64xbf16>, "shared">) {
  // expected-error @below {{'ws.load' op expects tile and fragment of one shape, got !ws.tile<vector<8x64xbf16>, "shared"> and !ws.frag<vector<8x32xbf16>>}}
  %0 = "ws.load"(%s) : (!ws.tile<vector<8x64xbf16>, "shared">) -> !ws.frag<vector<8x32xbf16>>
  func.return
}

// -----

func.func @f(%s: !ws.tile<vector<8x64xbf16>, "shared">) {
  // expected-error @below {{'ws.load' op expects tile and fragment of one shape}}
  %0 = "ws.load"(%s) : (!ws.tile<vector<8x64xbf16>, "shared">) -> !ws.frag<vector<8x64xf16>>
  func.return
}

// -----

func.func @f(%s: !ws.frag<vector<8x64xbf16>>, %t: !ws.tile<vector<8x32xbf16>, "shared">) {
  // expected-error @below {{'ws.store' op expects tile and fragment of one shape, got}}
  "ws.store"(%s, %t) : (!ws.frag<vector<8x64xbf16>>, !ws.tile<vector<8x32xbf16>, "shared">) -> ()
  func.return
}

// -----

// Copy engine.

func.func @f(%s: memref<?x?x64xbf16>, %t: !ws.tile<vector<8x64xbf16>, "tensor">, %c: i32) {
  // expected-error @below {{'ws.copy_in' op expects a shared tile, got}}
  "ws.copy_in"(%s, %t, %c, %c, %c) {dims = array<i32: 1, 2>, operandSegmentSizes = array<i32: 1, 1, 3>} : (memref<?x?x64xbf16>, !ws.tile<vector<8x64xbf16>, "tensor">, i32, i32, i32) -> ()
  func.return
}

// -----

func.func @f(%s: f32, %t: !ws.tile<vector<8x64xbf16>, "shared">, %c: i32) {
  // expected-error @below {{'ws.copy_in' op expects a memref, got f32}}
  "ws.copy_in"(%s, %t, %c, %c, %c) {dims = array<i32: 1, 2>, operandSegmentSizes = array<i32: 1, 1, 3>} : (f32, !ws.tile<vector<8x64xbf16>, "shared">, i32, i32, i32) -> ()
  func.return
}

// -----

func.func @f(%s: memref<?x?x64xbf16>, %t: !ws.tile<vector<8x64xf16>, "shared">, %c: i32) {
  // expected-error @below {{'ws.copy_in' op expects elements of bf16, got f16}}
  "ws.copy_in"(%s, %t, %c, %c, %c) {dims = array<i32: 1, 2>, operandSegmentSizes = array<i32: 1, 1, 3>} : (memref<?x?x64xbf16>, !ws.tile<vector<8x64xf16>, "shared">, i32, i32, i32) -> ()
  func.return
}

// -----

func.func @f(%s: memref<?x?x64xbf16>, %t: !ws.tile<vector<8x64xbf16>, "shared">, %c: i32) {
  // expected-error @below {{'ws.copy_in' op expects 3 coordinates, got 2}}
  "ws.copy_in"(%s, %t, %c, %c) {dims = array<i32: 1, 2>, operandSegmentSizes = array<i32: 1, 1, 2>} : (memref<?x?x64xbf16>, !ws.tile<vector<8x64xbf16>, "shared">, i32, i32) -> ()
  func.return
}

// -----

func.func @f(%s: memref<?x?x64xbf16>, %t: !ws.tile<vector<8x64xbf16>, "shared">, %c: i32) {
  // expected-error @below {{'ws.copy_in' op expects 2 or 3 distinct dims, got [1]}}
  "ws.copy_in"(%s, %t, %c, %c, %c) {dims = array<i32: 1>, operandSegmentSizes = array<i32: 1, 1, 3>} : (memref<?x?x64xbf16>, !ws.tile<vector<8x64xbf16>, "shared">, i32, i32, i32) -> ()
  func.return
}

// -----

func.func @f(%s: memref<?x?x64xbf16>, %t: !ws.tile<vector<8x64xbf16>, "shared">, %c: i32) {
  // expected-error @below {{'ws.copy_in' op expects 2 or 3 distinct dims, got [2, 2]}}
  "ws.copy_in"(%s, %t, %c, %c, %c) {dims = array<i32: 2, 2>, operandSegmentSizes = array<i32: 1, 1, 3>} : (memref<?x?x64xbf16>, !ws.tile<vector<8x64xbf16>, "shared">, i32, i32, i32) -> ()
  func.return
}

// -----

func.func @f(%s: memref<?x?x64xbf16>, %t: !ws.tile<vector<8x64xbf16>, "shared">, %c: i32) {
  // expected-error @below {{'ws.copy_in' op expects dims in 0..2, got [1, 3]}}
  "ws.copy_in"(%s, %t, %c, %c, %c) {dims = array<i32: 1, 3>, operandSegmentSizes = array<i32: 1, 1, 3>} : (memref<?x?x64xbf16>, !ws.tile<vector<8x64xbf16>, "shared">, i32, i32, i32) -> ()
  func.return
}

// -----

func.func @f(%s: memref<?x?x64xbf16>, %t: !ws.tile<vector<8x64xbf16>, "shared">, %c: i32) {
  // expected-error @below {{'ws.copy_in' op expects dims in 0..2, got [-1, 2]}}
  "ws.copy_in"(%s, %t, %c, %c, %c) {dims = array<i32: -1, 2>, operandSegmentSizes = array<i32: 1, 1, 3>} : (memref<?x?x64xbf16>, !ws.tile<vector<8x64xbf16>, "shared">, i32, i32, i32) -> ()
  func.return
}

// -----

func.func @f(%s: !ws.tile<vector<8x64xbf16>, "tensor">, %o: memref<?x?x64xbf16>, %c: i32) {
  // expected-error @below {{'ws.copy_out' op expects a shared tile, got}}
  "ws.copy_out"(%s, %o, %c, %c, %c) {dims = array<i32: 1, 2>, operandSegmentSizes = array<i32: 1, 1, 3>} : (!ws.tile<vector<8x64xbf16>, "tensor">, memref<?x?x64xbf16>, i32, i32, i32) -> ()
  func.return
}

// -----

func.func @f(%s: !ws.tile<vector<8x64xbf16>, "shared">, %o: memref<?x?x64xbf16>, %c: i32) {
  // expected-error @below {{'ws.copy_out' op expects 3 coordinates, got 1}}
  "ws.copy_out"(%s, %o, %c) {dims = array<i32: 1, 2>, operandSegmentSizes = array<i32: 1, 1, 1>} : (!ws.tile<vector<8x64xbf16>, "shared">, memref<?x?x64xbf16>, i32) -> ()
  func.return
}

// -----

func.func @f(%s: !ws.frag<vector<8xf32>>, %o: memref<?x?x64xbf16>, %c: i32) {
  // expected-error @below {{'ws.store_global' op expects elements of bf16, got f32}}
  "ws.store_global"(%s, %o, %c, %c, %c) {dims = array<i32: 1>, operandSegmentSizes = array<i32: 1, 1, 3>} : (!ws.frag<vector<8xf32>>, memref<?x?x64xbf16>, i32, i32, i32) -> ()
  func.return
}

// -----

// Columns from a computed one on.

func.func @f(%s: !ws.tile<vector<8xbf16>, "shared">, %n: i32) {
  // expected-error @below {{'ws.columns_at' op expects tiles with two dimensions}}
  %0 = "ws.columns_at"(%s, %n) : (!ws.tile<vector<8xbf16>, "shared">, i32) -> !ws.tile<vector<8xbf16>, "shared">
  func.return
}

// -----

func.func @f(%s: !ws.tile<vector<8x64xbf16>, "tensor">, %n: i32) {
  // expected-error @below {{'ws.columns_at' op expects a shared tile, or one of 128 rows in tensor memory, got !ws.tile<vector<8x64xbf16>, "tensor">}}
  %0 = "ws.columns_at"(%s, %n) : (!ws.tile<vector<8x64xbf16>, "tensor">, i32) -> !ws.tile<vector<8x64xbf16>, "tensor">
  func.return
}

// -----

func.func @f(%s: !ws.tile<vector<8x64xbf16>, "shared">, %n: i32) {
  // expected-error @below {{'ws.columns_at' op expects a part of !ws.tile<vector<8x64xbf16>, "shared">, got !ws.tile<vector<16x64xbf16>, "shared">}}
  %0 = "ws.columns_at"(%s, %n) : (!ws.tile<vector<8x64xbf16>, "shared">, i32) -> !ws.tile<vector<16x64xbf16>, "shared">
  func.return
}

// -----

func.func @f(%s: !ws.tile<vector<128x64xbf16>, "tensor">) {
  %n = arith.constant 3 : i32
  // expected-error @below {{'ws.columns_at' op expects a first column in 2s, got 3}}
  %0 = "ws.columns_at"(%s, %n) : (!ws.tile<vector<128x64xbf16>, "tensor">, i32) -> !ws.tile<vector<128x32xbf16>, "tensor">
  func.return
}

// -----

func.func @f(%s: !ws.tile<vector<8x192xbf16>, "shared">) {
  %n = arith.constant 128 : i32
  %0 = "ws.columns_at"(%s, %n) : (!ws.tile<vector<8x192xbf16>, "shared">, i32) -> !ws.tile<vector<8x64xbf16>, "shared">
  // expected-error @below {{'ws.columns_at' op expects columns within 0..192, got 128..256}}
  %1 = "ws.columns_at"(%s, %n) : (!ws.tile<vector<8x192xbf16>, "shared">, i32) -> !ws.tile<vector<8x128xbf16>, "shared">
  func.return
}

// -----

func.func @f(%s: !ws.tile<vector<8x192xbf16>, "shared">) {
  %n = arith.constant 32 : i32
  // expected-error @below {{'ws.columns_at' op expects a first column in 64s, got 32}}
  %0 = "ws.columns_at"(%s, %n) : (!ws.tile<vector<8x192xbf16>, "shared">, i32) -> !ws.tile<vector<8x64xbf16>, "shared">
  func.return
}
