// RUN: attn-opt --split-input-file --verify-diagnostics %s

func.func @f(%x: memref<?x64xbf16>, %tile: !ws.tile<vector<128x64xbf16>, "tensor">, %z: i32, %r: !ws.ring<none, 1, 1>) {
  // expected-error @below {{'ws.copy_rows' op expects a shared tile of two dimensions, got !ws.tile<vector<128x64xbf16>, "tensor">}}
  "ws.copy_rows"(%x, %tile, %z, %z) ({
  ^bb0(%row: i32):
    
    "ws.yield"(%row) : (i32) -> ()
  }) {dims = array<i32: 0, 1>, operandSegmentSizes = array<i32: 1, 1, 2, 0>}
    : (memref<?x64xbf16>, !ws.tile<vector<128x64xbf16>, "tensor">, i32, i32) -> ()
  func.return
}

// -----

func.func @f(%x: memref<?x64xbf16>, %tile: !ws.tile<vector<128xbf16>, "shared">, %z: i32, %r: !ws.ring<none, 1, 1>) {
  // expected-error @below {{'ws.copy_rows' op expects a shared tile of two dimensions, got !ws.tile<vector<128xbf16>, "shared">}}
  "ws.copy_rows"(%x, %tile, %z, %z) ({
  ^bb0(%row: i32):
    
    "ws.yield"(%row) : (i32) -> ()
  }) {dims = array<i32: 0, 1>, operandSegmentSizes = array<i32: 1, 1, 2, 0>}
    : (memref<?x64xbf16>, !ws.tile<vector<128xbf16>, "shared">, i32, i32) -> ()
  func.return
}

// -----

func.func @f(%x: memref<?x64xbf16>, %tile: !ws.tile<vector<128x64xf16>, "shared">, %z: i32, %r: !ws.ring<none, 1, 1>) {
  // expected-error @below {{'ws.copy_rows' op expects elements of bf16, got f16}}
  "ws.copy_rows"(%x, %tile, %z, %z) ({
  ^bb0(%row: i32):
    
    "ws.yield"(%row) : (i32) -> ()
  }) {dims = array<i32: 0, 1>, operandSegmentSizes = array<i32: 1, 1, 2, 0>}
    : (memref<?x64xbf16>, !ws.tile<vector<128x64xf16>, "shared">, i32, i32) -> ()
  func.return
}

// -----

func.func @f(%x: memref<?x64xbf16>, %tile: !ws.tile<vector<128x64xbf16>, "shared">, %z: i32, %r: !ws.ring<none, 1, 1>) {
  // expected-error @below {{'ws.copy_rows' op expects 2 coordinates, got 1}}
  "ws.copy_rows"(%x, %tile, %z) ({
  ^bb0(%row: i32):
    
    "ws.yield"(%row) : (i32) -> ()
  }) {dims = array<i32: 0, 1>, operandSegmentSizes = array<i32: 1, 1, 1, 0>}
    : (memref<?x64xbf16>, !ws.tile<vector<128x64xbf16>, "shared">, i32) -> ()
  func.return
}

// -----

func.func @f(%x: memref<?x64xbf16>, %tile: !ws.tile<vector<128x64xbf16>, "shared">, %z: i32, %r: !ws.ring<none, 1, 1>) {
  // expected-error @below {{'ws.copy_rows' op expects 2 or 3 distinct dims, got [0]}}
  "ws.copy_rows"(%x, %tile, %z, %z) ({
  ^bb0(%row: i32):
    
    "ws.yield"(%row) : (i32) -> ()
  }) {dims = array<i32: 0>, operandSegmentSizes = array<i32: 1, 1, 2, 0>}
    : (memref<?x64xbf16>, !ws.tile<vector<128x64xbf16>, "shared">, i32, i32) -> ()
  func.return
}

// -----

func.func @f(%x: memref<?x64xbf16>, %tile: !ws.tile<vector<128x64xbf16>, "shared">, %z: i32, %r: !ws.ring<none, 1, 1>) {
  // expected-error @below {{'ws.copy_rows' op expects block arguments ['i32'], got ['i32', 'i32']}}
  "ws.copy_rows"(%x, %tile, %z, %z) ({
  ^bb0(%row: i32, %c: i32):
    
    "ws.yield"(%row) : (i32) -> ()
  }) {dims = array<i32: 0, 1>, operandSegmentSizes = array<i32: 1, 1, 2, 0>}
    : (memref<?x64xbf16>, !ws.tile<vector<128x64xbf16>, "shared">, i32, i32) -> ()
  func.return
}

// -----

func.func @f(%x: memref<?x64xbf16>, %tile: !ws.tile<vector<128x64xbf16>, "shared">, %z: i32, %r: !ws.ring<none, 1, 1>) {
  // expected-error @below {{'ws.copy_rows' op expects to yield i32, got f32}}
  "ws.copy_rows"(%x, %tile, %z, %z) ({
  ^bb0(%row: i32):
    %f = arith.constant 1.0 : f32
    "ws.yield"(%f) : (f32) -> ()
  }) {dims = array<i32: 0, 1>, operandSegmentSizes = array<i32: 1, 1, 2, 0>}
    : (memref<?x64xbf16>, !ws.tile<vector<128x64xbf16>, "shared">, i32, i32) -> ()
  func.return
}

// -----

func.func @f(%x: memref<?x64xbf16>, %tile: !ws.tile<vector<128x64xbf16>, "shared">, %z: i32, %r: !ws.ring<none, 1, 1>) {
  // expected-error @below {{'ws.copy_rows' op expects a region of scalar operations, got ws.acquire}}
  "ws.copy_rows"(%x, %tile, %z, %z) ({
  ^bb0(%row: i32):
    %s = "ws.acquire"(%r, %z) : (!ws.ring<none, 1, 1>, i32) -> none
    "ws.yield"(%row) : (i32) -> ()
  }) {dims = array<i32: 0, 1>, operandSegmentSizes = array<i32: 1, 1, 2, 0>}
    : (memref<?x64xbf16>, !ws.tile<vector<128x64xbf16>, "shared">, i32, i32) -> ()
  func.return
}

// -----

func.func @f(%x: memref<?x64xbf16>, %tile: !ws.tile<vector<128x64xbf16>, "shared">, %z: i32, %pages: !ws.frag<vector<64xi32>>) {
  // expected-error @below {{'ws.copy_rows' op expects entries of shape [128], one per row, got !ws.frag<vector<64xi32>>}}
  "ws.copy_rows"(%x, %tile, %z, %z, %pages) ({
  ^bb0(%row: i32, %page: i32):
    "ws.yield"(%row) : (i32) -> ()
  }) {dims = array<i32: 0, 1>, operandSegmentSizes = array<i32: 1, 1, 2, 1>}
    : (memref<?x64xbf16>, !ws.tile<vector<128x64xbf16>, "shared">, i32, i32, !ws.frag<vector<64xi32>>) -> ()
  func.return
}

// -----

func.func @f(%x: memref<?x64xbf16>, %tile: !ws.tile<vector<128x64xbf16>, "shared">, %z: i32, %pages: !ws.frag<vector<128xi64>>) {
  // expected-error @below {{'ws.copy_rows' op expects block arguments ['i32', 'i64'], got ['i32', 'i32']}}
  "ws.copy_rows"(%x, %tile, %z, %z, %pages) ({
  ^bb0(%row: i32, %page: i32):
    "ws.yield"(%row) : (i32) -> ()
  }) {dims = array<i32: 0, 1>, operandSegmentSizes = array<i32: 1, 1, 2, 1>}
    : (memref<?x64xbf16>, !ws.tile<vector<128x64xbf16>, "shared">, i32, i32, !ws.frag<vector<128xi64>>) -> ()
  func.return
}

// -----

func.func @f(%x: memref<?x64xbf16>, %tile: !ws.tile<vector<128x64xbf16>, "shared">, %z: i32, %pages: !ws.frag<vector<128xi32>>) {
  // expected-error @below {{'ws.copy_rows' op expects block arguments ['i32', 'i32'], got ['i32']}}
  "ws.copy_rows"(%x, %tile, %z, %z, %pages) ({
  ^bb0(%row: i32):
    "ws.yield"(%row) : (i32) -> ()
  }) {dims = array<i32: 0, 1>, operandSegmentSizes = array<i32: 1, 1, 2, 1>}
    : (memref<?x64xbf16>, !ws.tile<vector<128x64xbf16>, "shared">, i32, i32, !ws.frag<vector<128xi32>>) -> ()
  func.return
}

// -----

func.func @f(%x: memref<?x64xbf16>, %tile: !ws.tile<vector<128x64xbf16>, "tensor">, %z: i32) {
  // expected-error @below {{'ws.gather_in' op expects a shared tile of two dimensions, got !ws.tile<vector<128x64xbf16>, "tensor">}}
  "ws.gather_in"(%x, %tile, %z, %z) ({
  ^bb0(%row: i32):
    "ws.yield"(%row) : (i32) -> ()
  }) {dims = array<i32: 0, 1>, operandSegmentSizes = array<i32: 1, 1, 2>}
    : (memref<?x64xbf16>, !ws.tile<vector<128x64xbf16>, "tensor">, i32, i32) -> ()
  func.return
}

// -----

func.func @f(%x: memref<?x64xf16>, %tile: !ws.tile<vector<128x64xbf16>, "shared">, %z: i32) {
  // expected-error @below {{'ws.gather_in' op expects elements of f16, got bf16}}
  "ws.gather_in"(%x, %tile, %z, %z) ({
  ^bb0(%row: i32):
    "ws.yield"(%row) : (i32) -> ()
  }) {dims = array<i32: 0, 1>, operandSegmentSizes = array<i32: 1, 1, 2>}
    : (memref<?x64xf16>, !ws.tile<vector<128x64xbf16>, "shared">, i32, i32) -> ()
  func.return
}

// -----

func.func @f(%x: memref<?x4x64xbf16>, %tile: !ws.tile<vector<128x64xbf16>, "shared">, %z: i32) {
  // expected-error @below {{'ws.gather_in' op expects a tensor of 2 dimensions, got 3}}
  "ws.gather_in"(%x, %tile, %z, %z, %z) ({
  ^bb0(%row: i32):
    "ws.yield"(%row) : (i32) -> ()
  }) {dims = array<i32: 0, 1>, operandSegmentSizes = array<i32: 1, 1, 3>}
    : (memref<?x4x64xbf16>, !ws.tile<vector<128x64xbf16>, "shared">, i32, i32, i32) -> ()
  func.return
}

// -----

func.func @f(%x: memref<?x64xbf16>, %tile: !ws.tile<vector<128x64xbf16>, "shared">, %z: i32) {
  // expected-error @below {{'ws.gather_in' op expects block arguments ['i32'], got ['i32', 'i32']}}
  "ws.gather_in"(%x, %tile, %z, %z) ({
  ^bb0(%row: i32, %page: i32):
    "ws.yield"(%row) : (i32) -> ()
  }) {dims = array<i32: 0, 1>, operandSegmentSizes = array<i32: 1, 1, 2>}
    : (memref<?x64xbf16>, !ws.tile<vector<128x64xbf16>, "shared">, i32, i32) -> ()
  func.return
}

// -----

func.func @f(%x: memref<?x64xf32>, %rows: !ws.frag<vector<32xi32>>, %z: i32) {
  // expected-error @below {{'ws.load_rows' op expects a fragment [R, C], got !ws.frag<vector<32xf32>>}}
  %f = "ws.load_rows"(%x, %rows, %z, %z) {dims = array<i32: 0, 1>, operandSegmentSizes = array<i32: 1, 1, 2>}
    : (memref<?x64xf32>, !ws.frag<vector<32xi32>>, i32, i32) -> !ws.frag<vector<32xf32>>
  func.return
}

// -----

func.func @f(%x: memref<?x64xf32>, %rows: !ws.frag<vector<16xi32>>, %z: i32) {
  // expected-error @below {{'ws.load_rows' op expects 32 rows of i32, got !ws.frag<vector<16xi32>>}}
  %f = "ws.load_rows"(%x, %rows, %z, %z) {dims = array<i32: 0, 1>, operandSegmentSizes = array<i32: 1, 1, 2>}
    : (memref<?x64xf32>, !ws.frag<vector<16xi32>>, i32, i32) -> !ws.frag<vector<32x64xf32>>
  func.return
}

// -----

func.func @f(%x: memref<?x64xf32>, %rows: !ws.frag<vector<32xf32>>, %z: i32) {
  // expected-error @below {{'ws.load_rows' op expects 32 rows of i32, got !ws.frag<vector<32xf32>>}}
  %f = "ws.load_rows"(%x, %rows, %z, %z) {dims = array<i32: 0, 1>, operandSegmentSizes = array<i32: 1, 1, 2>}
    : (memref<?x64xf32>, !ws.frag<vector<32xf32>>, i32, i32) -> !ws.frag<vector<32x64xf32>>
  func.return
}

// -----

func.func @f(%x: i32, %rows: !ws.frag<vector<32xi32>>, %z: i32) {
  // expected-error @below {{'ws.load_rows' op expects a memref, got i32}}
  %f = "ws.load_rows"(%x, %rows, %z, %z) {dims = array<i32: 0, 1>, operandSegmentSizes = array<i32: 1, 1, 2>}
    : (i32, !ws.frag<vector<32xi32>>, i32, i32) -> !ws.frag<vector<32x64xf32>>
  func.return
}

// -----

func.func @f(%x: memref<?x64xf16>, %rows: !ws.frag<vector<32xi32>>, %z: i32) {
  // expected-error @below {{'ws.load_rows' op expects elements of f16, got f32}}
  %f = "ws.load_rows"(%x, %rows, %z, %z) {dims = array<i32: 0, 1>, operandSegmentSizes = array<i32: 1, 1, 2>}
    : (memref<?x64xf16>, !ws.frag<vector<32xi32>>, i32, i32) -> !ws.frag<vector<32x64xf32>>
  func.return
}

// -----

func.func @f(%x: memref<?x64xf32>, %rows: !ws.frag<vector<32xi32>>, %z: i32) {
  // expected-error @below {{'ws.load_rows' op expects 2 coordinates, got 1}}
  %f = "ws.load_rows"(%x, %rows, %z) {dims = array<i32: 0, 1>, operandSegmentSizes = array<i32: 1, 1, 1>}
    : (memref<?x64xf32>, !ws.frag<vector<32xi32>>, i32) -> !ws.frag<vector<32x64xf32>>
  func.return
}

// -----

func.func @f(%x: memref<?x64xf32>, %rows: !ws.frag<vector<32xi32>>, %z: i32) {
  // expected-error @below {{'ws.load_rows' op expects 2 or 3 distinct dims, got [0]}}
  %f = "ws.load_rows"(%x, %rows, %z, %z) {dims = array<i32: 0>, operandSegmentSizes = array<i32: 1, 1, 2>}
    : (memref<?x64xf32>, !ws.frag<vector<32xi32>>, i32, i32) -> !ws.frag<vector<32x64xf32>>
  func.return
}

// -----

func.func @f(%x: memref<?x64xf32>, %rows: !ws.frag<vector<32xi32>>, %z: i32) {
  // expected-error @below {{'ws.load_rows' op expects 2 or 3 distinct dims, got [1, 1]}}
  %f = "ws.load_rows"(%x, %rows, %z, %z) {dims = array<i32: 1, 1>, operandSegmentSizes = array<i32: 1, 1, 2>}
    : (memref<?x64xf32>, !ws.frag<vector<32xi32>>, i32, i32) -> !ws.frag<vector<32x64xf32>>
  func.return
}

// -----

func.func @f(%x: memref<?x64xf32>, %rows: !ws.frag<vector<32xi32>>, %z: i32) {
  // expected-error @below {{'ws.load_rows' op expects dims in 0..1, got [0, 2]}}
  %f = "ws.load_rows"(%x, %rows, %z, %z) {dims = array<i32: 0, 2>, operandSegmentSizes = array<i32: 1, 1, 2>}
    : (memref<?x64xf32>, !ws.frag<vector<32xi32>>, i32, i32) -> !ws.frag<vector<32x64xf32>>
  func.return
}

// -----

func.func @f(%f: !ws.frag<vector<32x64xf32>>, %x: memref<?x64xf16>, %rows: !ws.frag<vector<32xi32>>, %z: i32) {
  // expected-error @below {{'ws.store_rows' op expects elements of f16, got f32}}
  "ws.store_rows"(%f, %rows, %x, %z, %z) {dims = array<i32: 0, 1>, operandSegmentSizes = array<i32: 1, 1, 1, 2>}
    : (!ws.frag<vector<32x64xf32>>, !ws.frag<vector<32xi32>>, memref<?x64xf16>, i32, i32) -> ()
  func.return
}

// -----

func.func @f(%line: !ws.tile<vector<64x8xi32>, "shared">, %row: i32) {
  // expected-error @below {{'ws.entry' op expects a shared tile of one dimension, got}}
  %0 = "ws.entry"(%line, %row) : (!ws.tile<vector<64x8xi32>, "shared">, i32) -> i32
  func.return
}

// -----

func.func @f(%line: !ws.tile<vector<64xi32>, "shared">, %row: i32) {
  // expected-error @below {{'ws.entry' op expects a result of i32, got f32}}
  %0 = "ws.entry"(%line, %row) : (!ws.tile<vector<64xi32>, "shared">, i32) -> f32
  func.return
}

// -----

func.func @f(%rows: !ws.frag<vector<48xi1>>) {
  // expected-error @below {{'ws.bits' op expects one i1 per row, rows in 32s, got}}
  %0 = "ws.bits"(%rows) : (!ws.frag<vector<48xi1>>) -> !ws.frag<vector<1xi32>>
  func.return
}

// -----

func.func @f(%rows: !ws.frag<vector<64xi1>>) {
  // expected-error @below {{'ws.bits' op expects an i32 per 32 rows, got}}
  %0 = "ws.bits"(%rows) : (!ws.frag<vector<64xi1>>) -> !ws.frag<vector<1xi32>>
  func.return
}

// -----

func.func @f(%x: !ws.frag<vector<64x64xf16>>, %i: !ws.frag<vector<64x64xi32>>, %sums: memref<?xf32>) {
  // expected-error @below {{'ws.scatter' op expects elements of f32, got}}
  "ws.scatter"(%x, %i, %sums) {mode = "add"}
    : (!ws.frag<vector<64x64xf16>>, !ws.frag<vector<64x64xi32>>, memref<?xf32>) -> ()
  func.return
}

// -----

func.func @f(%x: !ws.frag<vector<64x64xf32>>, %i: !ws.frag<vector<64xi32>>, %sums: memref<?xf32>) {
  // expected-error @below {{'ws.scatter' op expects positions [64, 64] of i32, got}}
  "ws.scatter"(%x, %i, %sums) {mode = "add"}
    : (!ws.frag<vector<64x64xf32>>, !ws.frag<vector<64xi32>>, memref<?xf32>) -> ()
  func.return
}

// -----

func.func @f(%x: !ws.frag<vector<64x64xf32>>, %i: !ws.frag<vector<64x64xi32>>, %sums: memref<?xbf16>) {
  // expected-error @below {{'ws.scatter' op expects a memref of f32, got memref<?xbf16>}}
  "ws.scatter"(%x, %i, %sums) {mode = "add"}
    : (!ws.frag<vector<64x64xf32>>, !ws.frag<vector<64x64xi32>>, memref<?xbf16>) -> ()
  func.return
}

// -----

func.func @f(%x: !ws.frag<vector<64x64xf32>>, %i: !ws.frag<vector<64x64xi32>>, %sums: memref<?xf32>) {
  // expected-error @below {{'ws.scatter' op expects mode of store, add, got max}}
  "ws.scatter"(%x, %i, %sums) {mode = "max"}
    : (!ws.frag<vector<64x64xf32>>, !ws.frag<vector<64x64xi32>>, memref<?xf32>) -> ()
  func.return
}
