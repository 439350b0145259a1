// RUN: attn-opt --split-input-file --verify-diagnostics %s

func.func @f(%i: i32) {
  // expected-error @below {{'ws.store_entry' op expects a memref, got i32}}
  "ws.store_entry"(%i, %i, %i) {operandSegmentSizes = array<i32: 1, 1, 1>} : (i32, i32, i32) -> ()
  func.return
}

// -----

func.func @f(%x: memref<?xf32>, %i: i32) {
  // expected-error @below {{'ws.store_entry' op expects elements of i32, got f32}}
  "ws.store_entry"(%i, %x, %i) {operandSegmentSizes = array<i32: 1, 1, 1>} : (i32, memref<?xf32>, i32) -> ()
  func.return
}

// -----

func.func @f(%x: memref<?x4xi32>, %i: i32) {
  // expected-error @below {{'ws.store_entry' op expects 2 coordinates, got 1}}
  "ws.store_entry"(%i, %x, %i) {operandSegmentSizes = array<i32: 1, 1, 1>} : (i32, memref<?x4xi32>, i32) -> ()
  func.return
}
