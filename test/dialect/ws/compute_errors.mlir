// RUN: attn-opt --split-input-file --verify-diagnostics %s

// Element-wise regions.

func.func @f(%s: !ws.frag<vector<8x2xf32>>) {
  // expected-error @below {{'ws.map' op expects inputs of shape [8, 4], got !ws.frag<vector<8x2xf32>>}}
  %0 = "ws.map"(%s) ({
  ^bb0(%x: f32, %r: i32, %c: i32):
    "ws.yield"(%x) : (f32) -> ()
  }) {operandSegmentSizes = array<i32: 1>} : (!ws.frag<vector<8x2xf32>>) -> !ws.frag<vector<8x4xf32>>
  func.return
}

// -----

func.func @f(%s: !ws.frag<vector<8x4xf32>>) {
  // expected-error @below {{'ws.map' op expects one block, got 0}}
  %0 = "ws.map"(%s) ({}) {operandSegmentSizes = array<i32: 1>} : (!ws.frag<vector<8x4xf32>>) -> !ws.frag<vector<8x4xf32>>
  func.return
}

// -----

func.func @f(%s: !ws.frag<vector<8x4xf32>>) {
  // expected-error @below {{'ws.map' op expects block arguments ['f32', 'i32', 'i32'], got ['f32']}}
  %0 = "ws.map"(%s) ({
  ^bb0(%x: f32):
    "ws.yield"(%x) : (f32) -> ()
  }) {operandSegmentSizes = array<i32: 1>} : (!ws.frag<vector<8x4xf32>>) -> !ws.frag<vector<8x4xf32>>
  func.return
}

// -----

func.func @f(%s: !ws.frag<vector<8x4xf32>>) {
  // expected-error @below {{'ws.map' op expects block arguments ['f32', 'i32', 'i32'], got ['f32', 'i32', 'i64']}}
  %0 = "ws.map"(%s) ({
  ^bb0(%x: f32, %r: i32, %c: i64):
    "ws.yield"(%x) : (f32) -> ()
  }) {operandSegmentSizes = array<i32: 1>} : (!ws.frag<vector<8x4xf32>>) -> !ws.frag<vector<8x4xf32>>
  func.return
}

// -----

func.func @f(%s: !ws.frag<vector<8x4xf32>>) {
  // expected-error @below {{'ws.map' op expects ws.yield at the end of its region}}
  %0 = "ws.map"(%s) ({
  ^bb0(%x: f32, %r: i32, %c: i32):
    llvm.unreachable
  }) {operandSegmentSizes = array<i32: 1>} : (!ws.frag<vector<8x4xf32>>) -> !ws.frag<vector<8x4xf32>>
  func.return
}

// -----

func.func @f(%s: !ws.frag<vector<8x4xf32>>) {
  // expected-error @below {{'ws.map' op expects to yield f32, got i32}}
  %0 = "ws.map"(%s) ({
  ^bb0(%x: f32, %r: i32, %c: i32):
    "ws.yield"(%r) : (i32) -> ()
  }) {operandSegmentSizes = array<i32: 1>} : (!ws.frag<vector<8x4xf32>>) -> !ws.frag<vector<8x4xf32>>
  func.return
}

// -----

// Columns that are folded.

func.func @f(%s: !ws.frag<vector<8x12xf32>>, %i: !ws.frag<vector<8x8xf32>>) {
  // expected-error @below {{'ws.fold' op expects 8 rows, and columns that divide 12, got !ws.frag<vector<8x8xf32>>}}
  %0 = "ws.fold"(%s, %i) : (!ws.frag<vector<8x12xf32>>, !ws.frag<vector<8x8xf32>>) -> !ws.frag<vector<8x8xf32>>
  func.return
}

// -----

func.func @f(%s: !ws.frag<vector<8x16xf32>>, %i: !ws.frag<vector<8x4xf32>>) {
  // expected-error @below {{'ws.fold' op expects init of the result's type !ws.frag<vector<8x8xf32>>, got !ws.frag<vector<8x4xf32>>}}
  %0 = "ws.fold"(%s, %i) : (!ws.frag<vector<8x16xf32>>, !ws.frag<vector<8x4xf32>>) -> !ws.frag<vector<8x8xf32>>
  func.return
}

// -----

func.func @f(%s: !ws.frag<vector<8x16xbf16>>, %i: !ws.frag<vector<8x8xbf16>>) {
  // expected-error @below {{'ws.fold' op expects fragments of rank 2 and f32, got !ws.frag<vector<8x16xbf16>>}}
  %0 = "ws.fold"(%s, %i) : (!ws.frag<vector<8x16xbf16>>, !ws.frag<vector<8x8xbf16>>) -> !ws.frag<vector<8x8xbf16>>
  func.return
}

// -----

// Rows.

func.func @f(%s: !ws.frag<vector<8x4xf32>>, %i: !ws.frag<vector<8xf32>>) {
  // expected-error @below {{'ws.reduce' op expects kind of add, max, got mul}}
  %0 = "ws.reduce"(%s, %i) {kind = "mul"} : (!ws.frag<vector<8x4xf32>>, !ws.frag<vector<8xf32>>) -> !ws.frag<vector<8xf32>>
  func.return
}

// -----

func.func @f(%s: !ws.frag<vector<8xf32>>, %i: !ws.frag<vector<8xf32>>) {
  // expected-error @below {{'ws.reduce' op expects a fragment of rank 2, got}}
  %0 = "ws.reduce"(%s, %i) {kind = "add"} : (!ws.frag<vector<8xf32>>, !ws.frag<vector<8xf32>>) -> !ws.frag<vector<8xf32>>
  func.return
}

// -----

func.func @f(%s: !ws.frag<vector<8x4xf32>>, %i: !ws.frag<vector<4xf32>>) {
  // expected-error @below {{'ws.reduce' op expects one f32 per row, got !ws.frag<vector<4xf32>>}}
  %0 = "ws.reduce"(%s, %i) {kind = "add"} : (!ws.frag<vector<8x4xf32>>, !ws.frag<vector<4xf32>>) -> !ws.frag<vector<8xf32>>
  func.return
}

// -----

func.func @f(%s: !ws.frag<vector<8x4xf32>>, %i: !ws.frag<vector<8xf32>>) {
  // expected-error @below {{'ws.reduce' op expects one f32 per row, got !ws.frag<vector<8xi32>>}}
  %0 = "ws.reduce"(%s, %i) {kind = "add"} : (!ws.frag<vector<8x4xf32>>, !ws.frag<vector<8xf32>>) -> !ws.frag<vector<8xi32>>
  func.return
}

// -----

func.func @f(%s: !ws.frag<vector<8xf32>>) {
  // expected-error @below {{'ws.broadcast' op expects a fragment of rank 2, got}}
  %0 = "ws.broadcast"(%s) : (!ws.frag<vector<8xf32>>) -> !ws.frag<vector<8xf32>>
  func.return
}

// -----

func.func @f(%s: !ws.frag<vector<8xf32>>) {
  // expected-error @below {{'ws.broadcast' op expects one f32 per row, got !ws.frag<vector<8xf32>>}}
  %0 = "ws.broadcast"(%s) : (!ws.frag<vector<8xf32>>) -> !ws.frag<vector<4x8xf32>>
  func.return
}

// -----

func.func @f(%s: !ws.frag<vector<8xf32>>) {
  // expected-error @below {{'ws.broadcast' op expects one i32 per row, got !ws.frag<vector<8xf32>>}}
  %0 = "ws.broadcast"(%s) : (!ws.frag<vector<8xf32>>) -> !ws.frag<vector<8x4xi32>>
  func.return
}

// -----

func.func @f(%s: !ws.frag<vector<8xf32>>) {
  // expected-error @below {{'ws.broadcast' op expects one f32 per column, got !ws.frag<vector<8xf32>>}}
  %0 = "ws.broadcast"(%s) {axis = "rows"} : (!ws.frag<vector<8xf32>>) -> !ws.frag<vector<8x4xf32>>
  func.return
}

// -----

func.func @f(%s: !ws.frag<vector<8x4xf32>>, %i: !ws.frag<vector<8xf32>>) {
  // expected-error @below {{'ws.reduce' op expects one f32 per column, got !ws.frag<vector<8xf32>>}}
  %0 = "ws.reduce"(%s, %i) {axis = "rows", kind = "add"} : (!ws.frag<vector<8x4xf32>>, !ws.frag<vector<8xf32>>) -> !ws.frag<vector<8xf32>>
  func.return
}

// -----

func.func @f(%s: !ws.frag<vector<8x4xf32>>, %i: !ws.frag<vector<8xf32>>) {
  // expected-error @below {{'ws.reduce' op expects axis of rows, columns, got row}}
  %0 = "ws.reduce"(%s, %i) {axis = "row", kind = "add"} : (!ws.frag<vector<8x4xf32>>, !ws.frag<vector<8xf32>>) -> !ws.frag<vector<8xf32>>
  func.return
}

// -----

func.func @f(%s: !ws.frag<vector<8x4xf32>>, %i: !ws.frag<vector<8xf32>>) {
  // expected-error @below {{'ws.reduce' op expects attribute 'axis'}}
  %0 = "ws.reduce"(%s, %i) {axis = 0 : i64, kind = "add"} : (!ws.frag<vector<8x4xf32>>, !ws.frag<vector<8xf32>>) -> !ws.frag<vector<8xf32>>
  func.return
}

// -----

func.func @f(%x: i32) {
  // expected-error @below {{'ws.fill' op expects a value of f32, got i32}}
  %0 = "ws.fill"(%x) : (i32) -> !ws.frag<vector<8xf32>>
  func.return
}

// -----

func.func @f(%s: !ws.frag<vector<8x4xi1>>) {
  // expected-error @below {{'ws.any' op expects scope of warp, group, got cta}}
  %0 = "ws.any"(%s) {scope = "cta"} : (!ws.frag<vector<8x4xi1>>) -> i1
  func.return
}

// -----

func.func @f(%s: !ws.frag<vector<8xf32>>) {
  // expected-error @below {{'ws.any' op expects conditions of i1, got}}
  %0 = "ws.any"(%s) : (!ws.frag<vector<8xf32>>) -> i1
  func.return
}

// -----

// Exponentials.

func.func @f(%s: !ws.frag<vector<8x16xf32>>) {
  // expected-error @below {{'ws.exp2' op expects f32 fragments of one shape, got}}
  %0 = "ws.exp2"(%s) {fma_period = 16 : i64, fma_count = 4 : i64, fma_begin = 0 : i64, fma_end = 32 : i64} : (!ws.frag<vector<8x16xf32>>) -> !ws.frag<vector<8x32xf32>>
  func.return
}

// -----

func.func @f(%s: !ws.frag<vector<8x32xbf16>>) {
  // expected-error @below {{'ws.exp2' op expects f32 fragments of one shape, got}}
  %0 = "ws.exp2"(%s) {fma_period = 16 : i64, fma_count = 4 : i64, fma_begin = 0 : i64, fma_end = 32 : i64} : (!ws.frag<vector<8x32xbf16>>) -> !ws.frag<vector<8x32xbf16>>
  func.return
}

// -----

func.func @f(%s: !ws.frag<vector<8x32xf32>>) {
  // expected-error @below {{'ws.exp2' op expects an even count within an even period, got 4, 15}}
  %0 = "ws.exp2"(%s) {fma_period = 15 : i64, fma_count = 4 : i64, fma_begin = 0 : i64, fma_end = 32 : i64} : (!ws.frag<vector<8x32xf32>>) -> !ws.frag<vector<8x32xf32>>
  func.return
}

// -----

func.func @f(%s: !ws.frag<vector<8x32xf32>>) {
  // expected-error @below {{'ws.exp2' op expects an even count within an even period, got 3, 16}}
  %0 = "ws.exp2"(%s) {fma_period = 16 : i64, fma_count = 3 : i64, fma_begin = 0 : i64, fma_end = 32 : i64} : (!ws.frag<vector<8x32xf32>>) -> !ws.frag<vector<8x32xf32>>
  func.return
}

// -----

func.func @f(%s: !ws.frag<vector<8x32xf32>>) {
  // expected-error @below {{'ws.exp2' op expects an even count within an even period, got 18, 16}}
  %0 = "ws.exp2"(%s) {fma_period = 16 : i64, fma_count = 18 : i64, fma_begin = 0 : i64, fma_end = 32 : i64} : (!ws.frag<vector<8x32xf32>>) -> !ws.frag<vector<8x32xf32>>
  func.return
}

// -----

func.func @f(%s: !ws.frag<vector<8x32xf32>>) {
  // expected-error @below {{'ws.exp2' op expects an even count within an even period, got -2, 16}}
  %0 = "ws.exp2"(%s) {fma_period = 16 : i64, fma_count = -2 : i64, fma_begin = 0 : i64, fma_end = 32 : i64} : (!ws.frag<vector<8x32xf32>>) -> !ws.frag<vector<8x32xf32>>
  func.return
}

// -----

func.func @f(%s: !ws.frag<vector<8x32xf32>>) {
  // expected-error @below {{'ws.exp2' op expects columns within 0..32, got -1..32}}
  %0 = "ws.exp2"(%s) {fma_period = 16 : i64, fma_count = 4 : i64, fma_begin = -1 : i64, fma_end = 32 : i64} : (!ws.frag<vector<8x32xf32>>) -> !ws.frag<vector<8x32xf32>>
  func.return
}

// -----

func.func @f(%s: !ws.frag<vector<8x32xf32>>) {
  // expected-error @below {{'ws.exp2' op expects columns within 0..32, got 0..33}}
  %0 = "ws.exp2"(%s) {fma_period = 16 : i64, fma_count = 4 : i64, fma_begin = 0 : i64, fma_end = 33 : i64} : (!ws.frag<vector<8x32xf32>>) -> !ws.frag<vector<8x32xf32>>
  func.return
}

// -----

func.func @f(%s: !ws.frag<vector<8x32xf32>>) {
  // expected-error @below {{'ws.exp2' op expects columns within 0..32, got 20..10}}
  %0 = "ws.exp2"(%s) {fma_period = 16 : i64, fma_count = 4 : i64, fma_begin = 20 : i64, fma_end = 10 : i64} : (!ws.frag<vector<8x32xf32>>) -> !ws.frag<vector<8x32xf32>>
  func.return
}

// -----

// Bits that decide over elements.

func.func @f(%x: !ws.frag<vector<8xf32>>, %b: !ws.frag<vector<8x1xi32>>, %o: f32) {
  // expected-error @below {{'ws.keep' op expects fragments [R, C] of one type, got !ws.frag<vector<8xf32>> and !ws.frag<vector<8xf32>>}}
  %0 = "ws.keep"(%x, %b, %o) : (!ws.frag<vector<8xf32>>, !ws.frag<vector<8x1xi32>>, f32) -> !ws.frag<vector<8xf32>>
  func.return
}

// -----

func.func @f(%x: !ws.frag<vector<8x64xf32>>, %b: !ws.frag<vector<8x2xi32>>, %o: f32) {
  // expected-error @below {{'ws.keep' op expects fragments [R, C] of one type, got !ws.frag<vector<8x64xf32>> and !ws.frag<vector<8x32xf32>>}}
  %0 = "ws.keep"(%x, %b, %o) : (!ws.frag<vector<8x64xf32>>, !ws.frag<vector<8x2xi32>>, f32) -> !ws.frag<vector<8x32xf32>>
  func.return
}

// -----

func.func @f(%x: !ws.frag<vector<8x65xf32>>, %b: !ws.frag<vector<8x2xi32>>, %o: f32) {
  // expected-error @below {{'ws.keep' op expects bits of shape [8, 3] and i32, got !ws.frag<vector<8x2xi32>>}}
  %0 = "ws.keep"(%x, %b, %o) : (!ws.frag<vector<8x65xf32>>, !ws.frag<vector<8x2xi32>>, f32) -> !ws.frag<vector<8x65xf32>>
  func.return
}

// -----

func.func @f(%x: !ws.frag<vector<8x64xf32>>, %b: !ws.frag<vector<8x2xi16>>, %o: f32) {
  // expected-error @below {{'ws.keep' op expects bits of shape [8, 2] and i32, got !ws.frag<vector<8x2xi16>>}}
  %0 = "ws.keep"(%x, %b, %o) : (!ws.frag<vector<8x64xf32>>, !ws.frag<vector<8x2xi16>>, f32) -> !ws.frag<vector<8x64xf32>>
  func.return
}

// -----

func.func @f(%x: !ws.frag<vector<8x64xf32>>, %b: !ws.frag<vector<8x2xi32>>, %o: f16) {
  // expected-error @below {{'ws.keep' op expects other to be f32, got f16}}
  %0 = "ws.keep"(%x, %b, %o) : (!ws.frag<vector<8x64xf32>>, !ws.frag<vector<8x2xi32>>, f16) -> !ws.frag<vector<8x64xf32>>
  func.return
}

// -----

func.func @f(%s: !ws.frag<vector<8x40xf32>>, %b: !ws.frag<vector<8x2xi32>>, %x: f32) {
  // expected-error @below {{'ws.keep' op expects fragments [R, C] of one type, got !ws.frag<vector<8x40xf32>> and !ws.frag<vector<8x32xf32>>}}
  %0 = "ws.keep"(%s, %b, %x) : (!ws.frag<vector<8x40xf32>>, !ws.frag<vector<8x2xi32>>, f32) -> !ws.frag<vector<8x32xf32>>
  func.return
}

// -----

func.func @f(%s: !ws.frag<vector<8xf32>>, %b: !ws.frag<vector<8x1xi32>>, %x: f32) {
  // expected-error @below {{'ws.keep' op expects fragments [R, C] of one type, got !ws.frag<vector<8xf32>> and !ws.frag<vector<8xf32>>}}
  %0 = "ws.keep"(%s, %b, %x) : (!ws.frag<vector<8xf32>>, !ws.frag<vector<8x1xi32>>, f32) -> !ws.frag<vector<8xf32>>
  func.return
}

// -----

func.func @f(%s: !ws.frag<vector<8x40xf32>>, %b: !ws.frag<vector<8x1xi32>>, %x: f32) {
  // expected-error @below {{'ws.keep' op expects bits of shape [8, 2] and i32, got !ws.frag<vector<8x1xi32>>}}
  %0 = "ws.keep"(%s, %b, %x) : (!ws.frag<vector<8x40xf32>>, !ws.frag<vector<8x1xi32>>, f32) -> !ws.frag<vector<8x40xf32>>
  func.return
}

// -----

func.func @f(%s: !ws.frag<vector<8x40xf32>>, %b: !ws.frag<vector<8x2xi64>>, %x: f32) {
  // expected-error @below {{'ws.keep' op expects bits of shape [8, 2] and i32, got !ws.frag<vector<8x2xi64>>}}
  %0 = "ws.keep"(%s, %b, %x) : (!ws.frag<vector<8x40xf32>>, !ws.frag<vector<8x2xi64>>, f32) -> !ws.frag<vector<8x40xf32>>
  func.return
}

// -----

func.func @f(%s: !ws.frag<vector<8x40xf32>>, %b: !ws.frag<vector<8x2xi32>>, %x: f16) {
  // expected-error @below {{'ws.keep' op expects other to be f32, got f16}}
  %0 = "ws.keep"(%s, %b, %x) : (!ws.frag<vector<8x40xf32>>, !ws.frag<vector<8x2xi32>>, f16) -> !ws.frag<vector<8x40xf32>>
  func.return
}

// -----

func.func @f(%s: !ws.frag<vector<32x8xf32>>) {
  // expected-error @below {{'ws.spread' op expects lanes of rank 1 and 32 bits, got !ws.frag<vector<32x8xf32>>}}
  %0 = "ws.spread"(%s) : (!ws.frag<vector<32x8xf32>>) -> !ws.frag<vector<32x8xf32>>
  func.return
}

// -----

func.func @f(%s: !ws.frag<vector<32xf32>>) {
  // expected-error @below {{'ws.spread' op expects a result of type !ws.frag<vector<32xf32>>, got !ws.frag<vector<32xi32>>}}
  %0 = "ws.spread"(%s) : (!ws.frag<vector<32xf32>>) -> !ws.frag<vector<32xi32>>
  func.return
}

// -----

// Columns that are repeated.

func.func @f(%s: !ws.frag<vector<32xf32>>) {
  // expected-error @below {{'ws.repeat' op expects runs of rank 2 and 32 bits, got !ws.frag<vector<32xf32>>}}
  %0 = "ws.repeat"(%s) : (!ws.frag<vector<32xf32>>) -> !ws.frag<vector<32x8xf32>>
  func.return
}

// -----

func.func @f(%s: !ws.frag<vector<32x2xf32>>) {
  // expected-error @below {{'ws.repeat' op expects a result of rank 2 with 32 rows of f32, got !ws.frag<vector<64x8xf32>>}}
  %0 = "ws.repeat"(%s) : (!ws.frag<vector<32x2xf32>>) -> !ws.frag<vector<64x8xf32>>
  func.return
}

// -----

func.func @f(%s: !ws.frag<vector<32x2xf32>>) {
  // expected-error @below {{'ws.repeat' op expects 2 columns times a power of two, got !ws.frag<vector<32x6xf32>>}}
  %0 = "ws.repeat"(%s) : (!ws.frag<vector<32x2xf32>>) -> !ws.frag<vector<32x6xf32>>
  func.return
}

// -----

// Reductions of groups, and turned fragments.

func.func @f(%s: !ws.frag<vector<8x128xf32>>, %i: !ws.frag<vector<8xf32>>, %t: !ws.tile<vector<4x8xf32>, "shared">) {
  // expected-error @below {{'ws.reduce_group' op expects scratch of f32 in a shared tile of rank 1, got}}
  %0 = "ws.reduce_group"(%s, %i, %t) {kind = "max"} : (!ws.frag<vector<8x128xf32>>, !ws.frag<vector<8xf32>>, !ws.tile<vector<4x8xf32>, "shared">) -> !ws.frag<vector<8xf32>>
  func.return
}

// -----

func.func @f(%s: !ws.frag<vector<8x128xf32>>, %i: !ws.frag<vector<8xf32>>, %t: !ws.tile<vector<32xf32>, "shared">) {
  // expected-error @below {{'ws.reduce_group' op expects kind of add, max, got min}}
  %0 = "ws.reduce_group"(%s, %i, %t) {kind = "min"} : (!ws.frag<vector<8x128xf32>>, !ws.frag<vector<8xf32>>, !ws.tile<vector<32xf32>, "shared">) -> !ws.frag<vector<8xf32>>
  func.return
}

// -----

func.func @f(%s: !ws.frag<vector<8x128xf32>>) {
  // expected-error @below {{'ws.turn' op expects a result [128, 8] of f32, got}}
  %0 = "ws.turn"(%s) : (!ws.frag<vector<8x128xf32>>) -> !ws.frag<vector<8x128xf32>>
  func.return
}

// -----

func.func @f(%s: !ws.frag<vector<8xf32>>) {
  // expected-error @below {{'ws.turn' op expects a fragment of rank 2, got}}
  %0 = "ws.turn"(%s) : (!ws.frag<vector<8xf32>>) -> !ws.frag<vector<8xf32>>
  func.return
}

// -----

// Fragments under other names.

func.func @f(%s: !ws.frag<vector<8x24xf32>>) {
  // expected-error @below {{'ws.interleave' op expects columns in multiples of 16, got 24}}
  %0 = "ws.interleave"(%s) : (!ws.frag<vector<8x24xf32>>) -> !ws.frag<vector<8x24xf32>>
  func.return
}

// -----

func.func @f(%s: !ws.frag<vector<16x16xf32>>) {
  // expected-error @below {{'ws.interleave' op expects axis of rows, columns, got keys}}
  %0 = "ws.interleave"(%s) {axis = "keys"} : (!ws.frag<vector<16x16xf32>>) -> !ws.frag<vector<16x16xf32>>
  func.return
}

// -----

func.func @f(%s: !ws.frag<vector<16x16xf32>>) {
  // expected-error @below {{'ws.interleave' op expects a type of rank 2 and a result of it, got !ws.frag<vector<16x16xf32>>}}
  %0 = "ws.interleave"(%s) : (!ws.frag<vector<16x16xf32>>) -> !ws.frag<vector<16x32xf32>>
  func.return
}

// -----

func.func @f(%s: !ws.frag<vector<16xf32>>) {
  // expected-error @below {{'ws.pin' op expects a fragment of rank 2 and f32, got !ws.frag<vector<16xf32>>}}
  %0 = "ws.pin"(%s) : (!ws.frag<vector<16xf32>>) -> !ws.frag<vector<16xf32>>
  func.return
}

// -----

func.func @f(%s: !ws.frag<vector<16x8xf32>>) {
  // expected-error @below {{'ws.pin' op expects a result of type !ws.frag<vector<16x8xf32>>, got !ws.frag<vector<16x16xf32>>}}
  %0 = "ws.pin"(%s) : (!ws.frag<vector<16x8xf32>>) -> !ws.frag<vector<16x16xf32>>
  func.return
}
