// RUN: attn-opt --split-input-file --verify-diagnostics %s

func.func @f(%i: i32) {
  // expected-error @below {{'ws.arrive_last' op expects a memref, got i32}}
  %0 = "ws.arrive_last"(%i, %i, %i) {operandSegmentSizes = array<i32: 1, 1, 1>} : (i32, i32, i32) -> i1
  func.return
}

// -----

func.func @f(%counter: memref<?xf32>, %i: i32) {
  // expected-error @below {{'ws.arrive_last' op expects a counter of i32, got f32}}
  %0 = "ws.arrive_last"(%counter, %i, %i) {operandSegmentSizes = array<i32: 1, 1, 1>} : (memref<?xf32>, i32, i32) -> i1
  func.return
}

// -----

func.func @f(%counter: memref<?x4xi32>, %i: i32) {
  // expected-error @below {{'ws.arrive_last' op expects 2 coordinates, got 1}}
  %0 = "ws.arrive_last"(%counter, %i, %i) {operandSegmentSizes = array<i32: 1, 1, 1>} : (memref<?x4xi32>, i32, i32) -> i1
  func.return
}

// -----

func.func @f(%x: memref<?x64xbf16>, %i: i32) {
  // expected-error @below {{'ws.load_global' op expects elements of bf16, got f32}}
  %0 = "ws.load_global"(%x, %i, %i) {dims = array<i32: 0, 1>, operandSegmentSizes = array<i32: 1, 2>} : (memref<?x64xbf16>, i32, i32) -> !ws.frag<vector<16x64xf32>>
  func.return
}

// -----

func.func @f(%x: memref<?x64xbf16>, %i: i32) {
  // expected-error @below {{'ws.load_global' op expects 2 coordinates, got 1}}
  %0 = "ws.load_global"(%x, %i) {dims = array<i32: 0>, operandSegmentSizes = array<i32: 1, 1>} : (memref<?x64xbf16>, i32) -> !ws.frag<vector<16xbf16>>
  func.return
}

// -----

func.func @f(%x: memref<?x64xbf16>, %i: i32) {
  // expected-error @below {{'ws.load_global' op expects dims in 0..1, got [0, 2]}}
  %0 = "ws.load_global"(%x, %i, %i) {dims = array<i32: 0, 2>, operandSegmentSizes = array<i32: 1, 2>} : (memref<?x64xbf16>, i32, i32) -> !ws.frag<vector<16x64xbf16>>
  func.return
}

// -----

func.func @f(%tile: !ws.tile<vector<128x32xf32>, "tensor">, %sums: memref<?x?xf32>, %row: i32) {
  // expected-error @below {{'ws.reduce_out' op expects a shared tile, got !ws.tile<vector<128x32xf32>, "tensor">}}
  "ws.reduce_out"(%tile, %sums, %row, %row) {dims = array<i32: 0, 1>, kind = "add", operandSegmentSizes = array<i32: 1, 1, 2>}
    : (!ws.tile<vector<128x32xf32>, "tensor">, memref<?x?xf32>, i32, i32) -> ()
  func.return
}

// -----

func.func @f(%tile: !ws.tile<vector<128x32xf32>, "shared">, %sums: memref<?x?xf32>, %row: i32) {
  // expected-error @below {{'ws.reduce_out' op expects a kind of add, got max}}
  "ws.reduce_out"(%tile, %sums, %row, %row) {dims = array<i32: 0, 1>, kind = "max", operandSegmentSizes = array<i32: 1, 1, 2>}
    : (!ws.tile<vector<128x32xf32>, "shared">, memref<?x?xf32>, i32, i32) -> ()
  func.return
}

// -----

func.func @f(%tile: !ws.tile<vector<128x32xf32>, "shared">, %sums: memref<?x?xf32>, %row: i32) {
  // expected-error @below {{'ws.reduce_out' op expects 2 coordinates, got 1}}
  "ws.reduce_out"(%tile, %sums, %row) {dims = array<i32: 0, 1>, kind = "add", operandSegmentSizes = array<i32: 1, 1, 1>}
    : (!ws.tile<vector<128x32xf32>, "shared">, memref<?x?xf32>, i32) -> ()
  func.return
}

// -----

func.func @f(%i: i32) {
  // expected-error @below {{'ws.await_turn' op expects a memref, got i32}}
  "ws.await_turn"(%i, %i, %i) {operandSegmentSizes = array<i32: 1, 1, 1>} : (i32, i32, i32) -> ()
  func.return
}

// -----

func.func @f(%cell: memref<?xi64>, %i: i32) {
  // expected-error @below {{'ws.await_turn' op expects a cell of i32, got i64}}
  "ws.await_turn"(%cell, %i, %i) {operandSegmentSizes = array<i32: 1, 1, 1>} : (memref<?xi64>, i32, i32) -> ()
  func.return
}

// -----

func.func @f(%cell: memref<?xi32>, %i: i32) {
  // expected-error @below {{'ws.await_turn' op expects 1 coordinates, got 2}}
  "ws.await_turn"(%cell, %i, %i, %i) {operandSegmentSizes = array<i32: 1, 2, 1>} : (memref<?xi32>, i32, i32, i32) -> ()
  func.return
}

// -----

func.func @f(%i: i32) {
  // expected-error @below {{'ws.set_turn' op expects a memref, got i32}}
  "ws.set_turn"(%i, %i, %i) {operandSegmentSizes = array<i32: 1, 1, 1>} : (i32, i32, i32) -> ()
  func.return
}

// -----

func.func @f(%cell: memref<?xi64>, %i: i32) {
  // expected-error @below {{'ws.set_turn' op expects a cell of i32, got i64}}
  "ws.set_turn"(%cell, %i, %i) {operandSegmentSizes = array<i32: 1, 1, 1>} : (memref<?xi64>, i32, i32) -> ()
  func.return
}

// -----

func.func @f(%cell: memref<?xi32>, %i: i32) {
  // expected-error @below {{'ws.set_turn' op expects 1 coordinates, got 2}}
  "ws.set_turn"(%cell, %i, %i, %i) {operandSegmentSizes = array<i32: 1, 2, 1>} : (memref<?xi32>, i32, i32, i32) -> ()
  func.return
}
