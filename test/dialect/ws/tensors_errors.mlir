// RUN: attn-opt --split-input-file --verify-diagnostics %s

// A dimension seen as two.

func.func @f(%x: i32) {
  // expected-error @below {{'ws.expand' op expects a memref, got i32}}
  %0 = "ws.expand"(%x) {dim = 0 : i64, factor = 2 : i64} : (i32) -> memref<2x2xf32>
  func.return
}

// -----

func.func @f(%x: memref<?x8xf32>) {
  // expected-error @below {{'ws.expand' op expects dim to be a static one of 0..1, got 0}}
  %0 = "ws.expand"(%x) {dim = 0 : i64, factor = 2 : i64} : (memref<?x8xf32>) -> memref<?x2x8xf32>
  func.return
}

// -----

func.func @f(%x: memref<?x8xf32>) {
  // expected-error @below {{'ws.expand' op expects dim to be a static one of 0..1, got 2}}
  %0 = "ws.expand"(%x) {dim = 2 : i64, factor = 2 : i64} : (memref<?x8xf32>) -> memref<?x8x2xf32>
  func.return
}

// -----

func.func @f(%x: memref<?x8xf32>) {
  // expected-error @below {{'ws.expand' op expects dim to be a static one of 0..1, got -1}}
  %0 = "ws.expand"(%x) {dim = -1 : i64, factor = 2 : i64} : (memref<?x8xf32>) -> memref<?x8x2xf32>
  func.return
}

// -----

func.func @f(%x: memref<?x8xf32>) {
  // expected-error @below {{'ws.expand' op expects a factor that divides 8, got 3}}
  %0 = "ws.expand"(%x) {dim = 1 : i64, factor = 3 : i64} : (memref<?x8xf32>) -> memref<?x2x3xf32>
  func.return
}

// -----

func.func @f(%x: memref<?x8xf32>) {
  // expected-error @below {{'ws.expand' op expects a factor that divides 8, got 0}}
  %0 = "ws.expand"(%x) {dim = 1 : i64, factor = 0 : i64} : (memref<?x8xf32>) -> memref<?x8x0xf32>
  func.return
}

// -----

func.func @f(%x: memref<4x8xf32>) {
  // expected-error @below {{'ws.expand' op expects a memref of shape [4, 2, 4] as result, got memref<4x4x2xf32>}}
  %0 = "ws.expand"(%x) {dim = 1 : i64, factor = 4 : i64} : (memref<4x8xf32>) -> memref<4x4x2xf32>
  func.return
}

// -----

func.func @f(%x: memref<4x8xf32>) {
  // expected-error @below {{'ws.expand' op expects a memref of shape [4, 2, 4] as result, got i32}}
  %0 = "ws.expand"(%x) {dim = 1 : i64, factor = 4 : i64} : (memref<4x8xf32>) -> i32
  func.return
}

// -----

func.func @f(%x: memref<4x8xf32>) {
  // expected-error @below {{'ws.expand' op expects elements of the source's type, got memref<4x2x4xf16>}}
  %0 = "ws.expand"(%x) {dim = 1 : i64, factor = 4 : i64} : (memref<4x8xf32>) -> memref<4x2x4xf16>
  func.return
}

// -----

// One element.

func.func @f(%x: f32, %i: i32) {
  // expected-error @below {{'ws.element' op expects a memref, got f32}}
  %0 = "ws.element"(%x, %i) {operandSegmentSizes = array<i32: 1, 1>} : (f32, i32) -> f32
  func.return
}

// -----

func.func @f(%x: memref<?x8xf32>, %i: i32) {
  // expected-error @below {{'ws.element' op expects 2 coordinates, got 1}}
  %0 = "ws.element"(%x, %i) {operandSegmentSizes = array<i32: 1, 1>} : (memref<?x8xf32>, i32) -> f32
  func.return
}

// -----

func.func @f(%x: memref<?x8xf32>, %i: i32) {
  // expected-error @below {{'ws.element' op expects a result of f32, got f16}}
  %0 = "ws.element"(%x, %i, %i) {operandSegmentSizes = array<i32: 1, 2>} : (memref<?x8xf32>, i32, i32) -> f16
  func.return
}

// -----

// Rows that run through two dimensions.

func.func @f(%r: !ws.frag<vector<128xf32>>, %x: memref<?x?x3xf32>, %i: i32) {
  // expected-error @below {{'ws.store_global' op expects dim 1 to be static}}
  "ws.store_global"(%r, %x, %i, %i, %i)
    {dims = array<i32: 0, 1>, operandSegmentSizes = array<i32: 1, 1, 3>}
    : (!ws.frag<vector<128xf32>>, memref<?x?x3xf32>, i32, i32, i32) -> ()
  func.return
}

// -----

// A box holds whole positions; a thread that writes its own rows does not care.

func.func @f(%r: !ws.frag<vector<128xf32>>, %t: !ws.tile<vector<128x64xf32>, "shared">, %x: memref<?x?x3xf32>, %y: memref<?x3x64xf32>, %i: i32) {
  "ws.store_global"(%r, %x, %i, %i, %i)
    {dims = array<i32: 0, 2>, operandSegmentSizes = array<i32: 1, 1, 3>}
    : (!ws.frag<vector<128xf32>>, memref<?x?x3xf32>, i32, i32, i32) -> ()
  // expected-error @below {{'ws.copy_out' op expects dim 1 of 3 to divide 128 rows}}
  "ws.copy_out"(%t, %y, %i, %i, %i)
    {dims = array<i32: 0, 1, 2>, operandSegmentSizes = array<i32: 1, 1, 3>}
    : (!ws.tile<vector<128x64xf32>, "shared">, memref<?x3x64xf32>, i32, i32, i32) -> ()
  func.return
}

// -----

func.func @f(%r: !ws.frag<vector<128xf32>>, %x: memref<?x?x4xf32>, %i: i32) {
  // expected-error @below {{'ws.store_global' op expects 1 or 2 distinct dims, got [0, 1, 2]}}
  "ws.store_global"(%r, %x, %i, %i, %i)
    {dims = array<i32: 0, 1, 2>, operandSegmentSizes = array<i32: 1, 1, 3>}
    : (!ws.frag<vector<128xf32>>, memref<?x?x4xf32>, i32, i32, i32) -> ()
  func.return
}

// -----

func.func @f(%r: !ws.frag<vector<128xf32>>, %x: memref<?x?x4xf32>, %i: i32) {
  // expected-error @below {{'ws.store_global' op expects 1 or 2 distinct dims, got [2, 2]}}
  "ws.store_global"(%r, %x, %i, %i, %i)
    {dims = array<i32: 2, 2>, operandSegmentSizes = array<i32: 1, 1, 3>}
    : (!ws.frag<vector<128xf32>>, memref<?x?x4xf32>, i32, i32, i32) -> ()
  func.return
}

// -----

func.func @f(%x: i32) {
  // expected-error @below {{'ws.limit' op expects a memref, got i32}}
  %0 = "ws.limit"(%x, %x) {dim = 0 : i64} : (i32, i32) -> i32
  func.return
}

// -----

func.func @f(%x: memref<?x8xf32>, %end: i32) {
  // expected-error @below {{'ws.limit' op expects dim in 0..1, got 2}}
  %0 = "ws.limit"(%x, %end) {dim = 2 : i64} : (memref<?x8xf32>, i32) -> memref<?x8xf32>
  func.return
}

// -----

func.func @f(%x: memref<?x8xf32>, %end: i32) {
  // expected-error @below {{'ws.limit' op expects a result of type memref<?x8xf32>, got memref<?x4xf32>}}
  %0 = "ws.limit"(%x, %end) {dim = 0 : i64} : (memref<?x8xf32>, i32) -> memref<?x4xf32>
  func.return
}

// -----

// Two dimensions walked as one.

func.func @f(%x: i32) {
  // expected-error @below {{'ws.collapse' op expects a memref, got i32}}
  %0 = "ws.collapse"(%x) {dim = 0 : i64} : (i32) -> memref<?x8xf32>
  func.return
}

// -----

func.func @f(%x: memref<?x4x8xf32>) {
  // expected-error @below {{'ws.collapse' op expects dim to have another behind it, got 2 of 3}}
  %0 = "ws.collapse"(%x) {dim = 2 : i64} : (memref<?x4x8xf32>) -> memref<?x8xf32>
  func.return
}

// -----

func.func @f(%x: memref<?x4x8xf32>) {
  // expected-error @below {{'ws.collapse' op expects dim to have another behind it, got -1 of 3}}
  %0 = "ws.collapse"(%x) {dim = -1 : i64} : (memref<?x4x8xf32>) -> memref<?x8xf32>
  func.return
}

// -----

func.func @f(%x: memref<?x4x8xf32>) {
  // expected-error @below {{'ws.collapse' op expects a memref of shape [?, 8] as result, got memref<32x8xf32>}}
  %0 = "ws.collapse"(%x) {dim = 0 : i64} : (memref<?x4x8xf32>) -> memref<32x8xf32>
  func.return
}

// -----

func.func @f(%x: memref<?x4x8xf32>) {
  // expected-error @below {{'ws.collapse' op expects elements of the source's type, got memref<?x8xf16>}}
  %0 = "ws.collapse"(%x) {dim = 0 : i64} : (memref<?x4x8xf32>) -> memref<?x8xf16>
  func.return
}

// -----

func.func @f(%x: memref<?xf32>) {
  // expected-error @below {{'ws.pitch' op expects dim to have another behind it, got 0 of 1}}
  %0 = "ws.pitch"(%x) {dim = 0 : i64} : (memref<?xf32>) -> i32
  func.return
}

// -----

func.func @f(%x: f32) {
  // expected-error @below {{'ws.pitch' op expects a memref, got f32}}
  %0 = "ws.pitch"(%x) {dim = 0 : i64} : (f32) -> i32
  func.return
}
