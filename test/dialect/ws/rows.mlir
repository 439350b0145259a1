// RUN: attn-opt %s | attn-opt | FileCheck %s

// Rows of a tensor, each from where a table says, read there and then or ahead; a ring that several
// agents fill; tokens.

!t = !ws.tile<vector<128x64xbf16>, "shared">

// CHECK-LABEL: func.func @rows
// CHECK: "ws.copy_rows"(%{{.*}}, %{{.*}}, %{{.*}}, %{{.*}}, %{{.*}}) ({
// CHECK: ^bb0(%[[ROW:.*]]: i32):
// CHECK: %[[FROM:.*]] = "ws.element"(%{{.*}}, %[[ROW]])
// CHECK: "ws.yield"(%[[FROM]]) : (i32) -> ()
func.func @rows(%x: memref<?x4x64xbf16>, %table: memref<?xi32>, %tile: !t, %zero: i32) {
  "ws.copy_rows"(%x, %tile, %zero, %zero, %zero) ({
  ^bb0(%row: i32):
    %from = "ws.element"(%table, %row) {operandSegmentSizes = array<i32: 1, 1>} : (memref<?xi32>, i32) -> i32
    "ws.yield"(%from) : (i32) -> ()
  }) {dims = array<i32: 0, 2>, operandSegmentSizes = array<i32: 1, 1, 3, 0>}
    : (memref<?x4x64xbf16>, !t, i32, i32, i32) -> ()
  func.return
}

// CHECK-LABEL: func.func @entries
// CHECK: "ws.copy_rows"({{.*}}) ({
// CHECK: ^bb0(%{{.*}}: i32, %[[PAGE:.*]]: i32):
// CHECK: "ws.yield"(%[[PAGE]]) : (i32) -> ()
// CHECK: operandSegmentSizes = array<i32: 1, 1, 3, 1>
func.func @entries(%x: memref<?x4x64xbf16>, %pages: !ws.frag<vector<128xi32>>, %tile: !t, %zero: i32) {
  "ws.copy_rows"(%x, %tile, %zero, %zero, %zero, %pages) ({
  ^bb0(%row: i32, %page: i32):
    "ws.yield"(%page) : (i32) -> ()
  }) {dims = array<i32: 0, 2>, operandSegmentSizes = array<i32: 1, 1, 3, 1>}
    : (memref<?x4x64xbf16>, !t, i32, i32, i32, !ws.frag<vector<128xi32>>) -> ()
  func.return
}

// CHECK-LABEL: func.func @read_ahead
// CHECK: "ws.bits"(%{{.*}}) : (!ws.frag<vector<64xi1>>) -> !ws.frag<vector<2xi32>>
// CHECK: "ws.gather_in"
// CHECK: ^bb0(%[[PLACE:.*]]: i32):
// CHECK: "ws.entry"(%{{.*}}, %[[PLACE]]) : (!ws.tile<vector<128xi32>, "shared">, i32) -> i32
func.func @read_ahead(%x: memref<?x64xbf16>, %table: !ws.tile<vector<128xi32>, "shared">, %tile: !t,
                      %valid: !ws.frag<vector<64xi1>>, %zero: i32) {
  %words = "ws.bits"(%valid) : (!ws.frag<vector<64xi1>>) -> !ws.frag<vector<2xi32>>
  "ws.gather_in"(%x, %tile, %zero, %zero) ({
  ^bb0(%row: i32):
    %from = "ws.entry"(%table, %row) : (!ws.tile<vector<128xi32>, "shared">, i32) -> i32
    "ws.yield"(%from) : (i32) -> ()
  }) {dims = array<i32: 0, 1>, operandSegmentSizes = array<i32: 1, 1, 2>}
    : (memref<?x64xbf16>, !t, i32, i32) -> ()
  func.return
}

// CHECK-LABEL: func.func @gather
// CHECK: "ws.gather_in"(%{{.*}}, %{{.*}}, %{{.*}}, %{{.*}}) ({
// CHECK: ^bb0(%[[GATHERED:.*]]: i32):
// CHECK: "ws.yield"(%[[GATHERED]]) : (i32) -> ()
func.func @gather(%x: memref<?x64xbf16>, %tile: !t, %zero: i32) {
  "ws.gather_in"(%x, %tile, %zero, %zero) ({
  ^bb0(%row: i32):
    "ws.yield"(%row) : (i32) -> ()
  }) {dims = array<i32: 0, 1>, operandSegmentSizes = array<i32: 1, 1, 2>}
    : (memref<?x64xbf16>, !t, i32, i32) -> ()
  func.return
}

// CHECK-LABEL: func.func @together
// CHECK: "ws.alloc_ring"() {label_name = "r", producers = ["copy_engine", "thread_copies"]}
func.func @together() {
  %r = "ws.alloc_ring"() {label_name = "r", producers = ["copy_engine", "thread_copies"]} : () -> !ws.ring<!t, 2, 1>
  func.return
}

// CHECK-LABEL: func.func @token
// CHECK: %[[S:.*]] = "ws.acquire"(%{{.*}}, %{{.*}}) : (!ws.ring<none, 1 : i64, 2 : i64>, i32) -> none
// CHECK: "ws.commit"(%[[S]]) {by = "threads"} : (none) -> ()
func.func @token(%r: !ws.ring<none, 1, 2>, %instance: i32) {
  %s = "ws.acquire"(%r, %instance) : (!ws.ring<none, 1, 2>, i32) -> none
  "ws.commit"(%s) {by = "threads"} : (none) -> ()
  func.return
}

// Rows anywhere in a tensor, to registers and from there; pages are a dimension that rows run through.
// CHECK-LABEL: func.func @chosen
// CHECK: %[[ANGLES:.*]] = "ws.load_rows"(%{{.*}}, %{{.*}}, %{{.*}}, %{{.*}}) {{.*}}dims = array<i32: 0, 1>
// CHECK: "ws.store_rows"(%[[ANGLES]], %{{.*}}, %{{.*}}, %{{.*}}, %{{.*}}, %{{.*}}) {{.*}}dims = array<i32: 0, 1, 2>
func.func @chosen(%x: memref<?x64xf32>, %y: memref<?x16x64xf32>, %rows: !ws.frag<vector<32xi32>>, %zero: i32) {
  %angles = "ws.load_rows"(%x, %rows, %zero, %zero)
    {dims = array<i32: 0, 1>, operandSegmentSizes = array<i32: 1, 1, 2>}
    : (memref<?x64xf32>, !ws.frag<vector<32xi32>>, i32, i32) -> !ws.frag<vector<32x64xf32>>
  "ws.store_rows"(%angles, %rows, %y, %zero, %zero, %zero)
    {dims = array<i32: 0, 1, 2>, operandSegmentSizes = array<i32: 1, 1, 1, 3>}
    : (!ws.frag<vector<32x64xf32>>, !ws.frag<vector<32xi32>>, memref<?x16x64xf32>, i32, i32, i32) -> ()
  func.return
}

// Elements anywhere in a tensor.
// CHECK-LABEL: func.func @scattered
// CHECK: "ws.scatter"(%{{.*}}, %{{.*}}, %{{.*}}) {mode = "add"}
// CHECK: "ws.scatter"(%{{.*}}, %{{.*}}, %{{.*}}) {mode = "store"}
func.func @scattered(%x: !ws.frag<vector<64x64xf32>>, %i: !ws.frag<vector<64x64xi32>>,
    %rows: !ws.frag<vector<64xf32>>, %j: !ws.frag<vector<64xi32>>, %sums: memref<?x?xf32>) {
  "ws.scatter"(%x, %i, %sums) {mode = "add"}
    : (!ws.frag<vector<64x64xf32>>, !ws.frag<vector<64x64xi32>>, memref<?x?xf32>) -> ()
  "ws.scatter"(%rows, %j, %sums) {mode = "store"}
    : (!ws.frag<vector<64xf32>>, !ws.frag<vector<64xi32>>, memref<?x?xf32>) -> ()
  func.return
}
