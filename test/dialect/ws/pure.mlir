// RUN: attn-opt --cse %s | FileCheck %s

// What is a function of its operands is computed once, or not at all when nobody uses it; what
// touches a ring, a tile or a barrier stays.

// CHECK-LABEL: func.func @once
// CHECK: ws.extent
// CHECK-NOT: ws.extent
// CHECK: ws.at
// CHECK-NOT: ws.at
// CHECK: ws.view
// CHECK-NOT: ws.view
// CHECK: ws.columns
// CHECK-NOT: ws.columns
// CHECK: ws.rows
// CHECK-NOT: ws.rows
// CHECK: ws.columns_at
// CHECK-NOT: ws.columns_at
// CHECK: ws.fill
// CHECK-NOT: ws.fill
// CHECK: ws.broadcast
// CHECK-NOT: ws.broadcast
// CHECK: ws.reduce
// CHECK-NOT: ws.reduce
// CHECK: ws.fold
// CHECK-NOT: ws.fold
// CHECK: ws.exp2
// CHECK-NOT: ws.exp2
// CHECK: ws.keep
// CHECK-NOT: ws.keep
// CHECK: ws.expand
// CHECK-NOT: ws.expand
// CHECK: ws.limit
// CHECK-NOT: ws.limit
// CHECK: ws.collapse
// CHECK-NOT: ws.collapse
// CHECK: ws.pitch
// CHECK-NOT: ws.pitch
// CHECK: ws.element
// CHECK-NOT: ws.element
// CHECK: return
!t = !ws.tile<vector<128x64xf32>, "tensor">
!h = !ws.tile<vector<128x64xbf16>, "tensor">
!p = !ws.tile<vector<128x32xbf16>, "tensor">
!slot = !ws.tile<vector<128x64xbf16>, "shared">
!page = !ws.tile<vector<16x64xbf16>, "shared">
!side = !ws.tile<vector<16x32xbf16>, "shared">
!row = !ws.frag<vector<128xf32>>
!full = !ws.frag<vector<128x64xf32>>
!some = !ws.frag<vector<128x8xf32>>
func.func @once(%a: memref<?x4xf32>, %b: !ws.buffer<!t, 2>, %g: i32, %x: f32, %bits: !ws.frag<vector<128x2xi32>>, %slot: !slot, %some: !some)
    -> (i32, i32, !p, !p, !page, !page, !side, !side, !row, !row, !some, !some, !full, !full, memref<?x2xf32>, memref<?x2xf32>, i32, i32, f32, f32) {
  %0 = "ws.extent"(%a) {dim = 0 : i64} : (memref<?x4xf32>) -> i32
  %1 = "ws.extent"(%a) {dim = 0 : i64} : (memref<?x4xf32>) -> i32
  %2 = "ws.at"(%b, %g) : (!ws.buffer<!t, 2>, i32) -> !t
  %3 = "ws.at"(%b, %g) : (!ws.buffer<!t, 2>, i32) -> !t
  %4 = "ws.view"(%2) : (!t) -> !h
  %5 = "ws.view"(%3) : (!t) -> !h
  %6 = "ws.columns"(%4) {first = 0 : i64} : (!h) -> !p
  %7 = "ws.columns"(%5) {first = 0 : i64} : (!h) -> !p
  %25 = "ws.rows"(%slot, %g) : (!slot, i32) -> !page
  %26 = "ws.rows"(%slot, %g) : (!slot, i32) -> !page
  %50 = "ws.columns_at"(%25, %g) : (!page, i32) -> !side
  %51 = "ws.columns_at"(%26, %g) : (!page, i32) -> !side
  %8 = "ws.fill"(%x) : (f32) -> !row
  %9 = "ws.fill"(%x) : (f32) -> !row
  %10 = "ws.broadcast"(%8) : (!row) -> !full
  %11 = "ws.broadcast"(%9) : (!row) -> !full
  %12 = "ws.reduce"(%10, %8) {kind = "max"} : (!full, !row) -> !row
  %13 = "ws.reduce"(%11, %8) {kind = "max"} : (!full, !row) -> !row
  %27 = "ws.fold"(%10, %some) : (!full, !some) -> !some
  %28 = "ws.fold"(%11, %some) : (!full, !some) -> !some
  %15 = "ws.exp2"(%10) {fma_begin = 0 : i64, fma_count = 0 : i64, fma_end = 0 : i64, fma_period = 0 : i64} : (!full) -> !full
  %16 = "ws.exp2"(%11) {fma_begin = 0 : i64, fma_count = 0 : i64, fma_end = 0 : i64, fma_period = 0 : i64} : (!full) -> !full
  %17 = "ws.keep"(%15, %bits, %x) : (!full, !ws.frag<vector<128x2xi32>>, f32) -> !full
  %18 = "ws.keep"(%16, %bits, %x) : (!full, !ws.frag<vector<128x2xi32>>, f32) -> !full
  %19 = "ws.expand"(%a) {dim = 1 : i64, factor = 2 : i64} : (memref<?x4xf32>) -> memref<?x2x2xf32>
  %20 = "ws.expand"(%a) {dim = 1 : i64, factor = 2 : i64} : (memref<?x4xf32>) -> memref<?x2x2xf32>
  %23 = "ws.limit"(%19, %g) {dim = 0 : i64} : (memref<?x2x2xf32>, i32) -> memref<?x2x2xf32>
  %24 = "ws.limit"(%20, %g) {dim = 0 : i64} : (memref<?x2x2xf32>, i32) -> memref<?x2x2xf32>
  %29 = "ws.collapse"(%19) {dim = 0 : i64} : (memref<?x2x2xf32>) -> memref<?x2xf32>
  %30 = "ws.collapse"(%20) {dim = 0 : i64} : (memref<?x2x2xf32>) -> memref<?x2xf32>
  %31 = "ws.pitch"(%19) {dim = 0 : i64} : (memref<?x2x2xf32>) -> i32
  %32 = "ws.pitch"(%20) {dim = 0 : i64} : (memref<?x2x2xf32>) -> i32
  %21 = "ws.element"(%23, %g, %g, %g) {operandSegmentSizes = array<i32: 1, 3>} : (memref<?x2x2xf32>, i32, i32, i32) -> f32
  %22 = "ws.element"(%24, %g, %g, %g) {operandSegmentSizes = array<i32: 1, 3>} : (memref<?x2x2xf32>, i32, i32, i32) -> f32
  func.return %0, %1, %6, %7, %25, %26, %50, %51, %12, %13, %27, %28, %17, %18, %29, %30, %31, %32, %21, %22 
    : i32, i32, !p, !p, !page, !page, !side, !side, !row, !row, !some, !some, !full, !full, memref<?x2xf32>, memref<?x2xf32>, i32, i32, f32, f32
}

// CHECK-LABEL: func.func @kept
// CHECK: ws.wait
// CHECK: ws.wait
// CHECK: ws.load
// CHECK: ws.load
// CHECK: ws.store
// CHECK: ws.barrier
// CHECK: ws.barrier
func.func @kept(%r: !ws.ring<!t, 1, 1>, %g: i32) {
  %0 = "ws.wait"(%r, %g) : (!ws.ring<!t, 1, 1>, i32) -> !t
  %1 = "ws.wait"(%r, %g) : (!ws.ring<!t, 1, 1>, i32) -> !t
  %2 = "ws.load"(%0) : (!t) -> !full
  %3 = "ws.load"(%0) : (!t) -> !full
  "ws.store"(%2, %0) : (!full, !t) -> ()
  "ws.barrier"() : () -> ()
  "ws.barrier"() : () -> ()
  func.return
}

// CHECK-LABEL: func.func @spread
// CHECK: ws.spread
// CHECK-NOT: ws.spread
// CHECK: return
func.func @spread(%lanes: !ws.frag<vector<32xf32>>) -> (!ws.frag<vector<32xf32>>, !ws.frag<vector<32xf32>>) {
  %0 = "ws.spread"(%lanes) : (!ws.frag<vector<32xf32>>) -> !ws.frag<vector<32xf32>>
  %1 = "ws.spread"(%lanes) : (!ws.frag<vector<32xf32>>) -> !ws.frag<vector<32xf32>>
  func.return %0, %1 : !ws.frag<vector<32xf32>>, !ws.frag<vector<32xf32>>
}

// CHECK-LABEL: func.func @repeat
// CHECK: ws.repeat
// CHECK-NOT: ws.repeat
// CHECK: return
func.func @repeat(%runs: !some) -> (!full, !full) {
  %0 = "ws.repeat"(%runs) : (!some) -> !full
  %1 = "ws.repeat"(%runs) : (!some) -> !full
  func.return %0, %1 : !full, !full
}

// CHECK-LABEL: func.func @rank
// CHECK: ws.rank
// CHECK-NOT: ws.rank
// CHECK: return
func.func @rank() -> (i32, i32) {
  %0 = "ws.rank"() : () -> i32
  %1 = "ws.rank"() : () -> i32
  func.return %0, %1 : i32, i32
}
