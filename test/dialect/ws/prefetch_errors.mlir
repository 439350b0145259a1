// RUN: attn-opt --split-input-file --verify-diagnostics %s

func.func @f(%i: i32) {
  // expected-error @below {{'ws.prefetch_line' op expects a memref, got i32}}
  "ws.prefetch_line"(%i, %i, %i) {operandSegmentSizes = array<i32: 1, 1, 1>} : (i32, i32, i32) -> ()
  func.return
}

// -----

func.func @f(%table: memref<?x?xi32>, %i: i32) {
  // expected-error @below {{'ws.prefetch_line' op expects 2 coordinates, got 1}}
  "ws.prefetch_line"(%table, %i, %i) {operandSegmentSizes = array<i32: 1, 1, 1>}
    : (memref<?x?xi32>, i32, i32) -> ()
  func.return
}

// -----

func.func @f(%k: memref<?x64xf16>, %i: i32) {
  // expected-error @below {{'ws.prefetch_box' op expects elements of f16, got bf16}}
  "ws.prefetch_box"(%k, %i, %i)
    {dims = array<i32: 0, 1>, operandSegmentSizes = array<i32: 1, 2>,
     tile = !ws.tile<vector<128x64xbf16>, "shared">}
    : (memref<?x64xf16>, i32, i32) -> ()
  func.return
}
