// RUN: %roundtrip | FileCheck %s
// RUN: attn-opt --attn-check-stage=stage=ws %s | FileCheck %s --check-prefix=STAGE

// A kernel that uses every operation once: a product of two tiles, its rows reduced.

// CHECK-LABEL: "ws.kernel"
// CHECK-NEXT: ^bb0(%[[A:.*]]: memref<?x?x64xbf16>, %[[O:.*]]: memref<?x?x64xbf16>, %[[L:.*]]: memref<?x?xf32>, %[[N:.*]]: f32):
// CHECK: %[[RING:.*]] = "ws.alloc_ring"() {label_name = "a"} : () -> !ws.ring<!ws.tile<vector<128x64xbf16>, "shared">, 3 : i64, 1 : i64>
// CHECK: %[[OUT:.*]] = "ws.alloc_ring"() {label_name = "out"}
// CHECK: %[[ACC:.*]] = "ws.alloc_ring"() {label_name = "acc"}
// CHECK: %[[SPARE:.*]] = "ws.alloc_buffer"() {label_name = "spare"} : () -> !ws.buffer<!ws.tile<vector<128x128xf32>, "tensor">, 2 : i64>
// CHECK: "ws.role"() ({
// CHECK-NEXT: ^bb0(%[[G:.*]]: i32):
// CHECK: %[[SIZE:.*]] = "ws.extent"(%[[A]]) {dim = 1 : i64} : (memref<?x?x64xbf16>) -> i32
// CHECK: "ws.tiles"(%[[SIZE]]) ({
// CHECK: ^bb0(%[[T:.*]]: i32):
// CHECK: %[[SLOT:.*]] = "ws.acquire"(%[[RING]], %[[G]])
// CHECK: "ws.copy_in"(%[[A]], %[[SLOT]], %[[T]], %[[T]], %{{.*}}) {dims = array<i32: 1, 2>, operandSegmentSizes = array<i32: 1, 1, 3>}
// CHECK: "ws.commit"(%[[SLOT]]) {by = "copy_engine"}
// CHECK: }) {operandSegmentSizes = array<i32: 1, 0, 0>, order = "single"} : (i32) -> ()
// CHECK: }) {groups = 1 : i64, label_name = "load", lanes = 1 : i64, registers = 24 : i64, warps = array<i32: 4, 1>}
// CHECK: %[[FULL:.*]] = "ws.wait"(%[[RING]], %{{.*}})
// CHECK: "ws.mma"(%{{.*}}, %[[FULL]], %[[FULL]], %{{.*}}) {b_layout = "nk"}
// CHECK: "ws.release"(%[[FULL]]) {by = "tensor_core"}
// CHECK: "ws.at"(%[[SPARE]], %{{.*}})
// CHECK: "ws.view"
// CHECK: "ws.columns"(%{{.*}}) {first = 32 : i64}
// CHECK: "ws.load"
// CHECK: "ws.map"
// CHECK: "ws.yield"
// CHECK: "ws.exp2"(%{{.*}}) {fma_begin = 0 : i64, fma_count = 4 : i64, fma_end = 128 : i64, fma_period = 16 : i64}
// CHECK: "ws.map"() ({
// CHECK: }) {operandSegmentSizes = array<i32: 0>} : () -> !ws.frag<vector<128x4xi32>>
// CHECK: "ws.keep"
// CHECK: "ws.fill"
// CHECK: "ws.reduce"(%{{.*}}, %{{.*}}) {kind = "add"}
// CHECK: "ws.broadcast"
// CHECK: "ws.any"
// CHECK: "ws.store"
// CHECK: "ws.barrier"
// CHECK: "ws.store_global"
// CHECK: "ws.copy_out"
// CHECK: }) {arg_dims = {{.*}}, arg_names = ["a", "o", "l", "n"], arg_roles = ["in", "out", "out", "scalar"], sym_name = "k"}

// STAGE: "ws.kernel"

!a = !ws.tile<vector<128x64xbf16>, "shared">
!acc = !ws.tile<vector<128x128xf32>, "tensor">
!half = !ws.tile<vector<128x128xbf16>, "tensor">
!part = !ws.tile<vector<128x32xbf16>, "tensor">
!ring = !ws.ring<!a, 3, 1>
!out = !ws.ring<!a, 1, 1>
!accs = !ws.ring<!acc, 1, 1>
!full = !ws.frag<vector<128x128xf32>>
!row = !ws.frag<vector<128xf32>>
!strip = !ws.frag<vector<128x32xbf16>>

"ws.kernel"() ({
^bb0(%a: memref<?x?x64xbf16>, %o: memref<?x?x64xbf16>, %l: memref<?x?xf32>, %n: f32):
  %ring = "ws.alloc_ring"() {label_name = "a"} : () -> !ring
  %out = "ws.alloc_ring"() {label_name = "out"} : () -> !out
  %acc = "ws.alloc_ring"() {label_name = "acc"} : () -> !accs
  %spare = "ws.alloc_buffer"() {label_name = "spare"} : () -> !ws.buffer<!acc, 2>
  "ws.role"() ({
  ^bb0(%g: i32):
    %zero = arith.constant 0 : i32
    %size = "ws.extent"(%a) {dim = 1 : i64} : (memref<?x?x64xbf16>) -> i32
    "ws.tiles"(%size) ({
    ^bb0(%t: i32):
      %slot = "ws.acquire"(%ring, %g) : (!ring, i32) -> !a
      "ws.copy_in"(%a, %slot, %t, %t, %zero)
        {dims = array<i32: 1, 2>, operandSegmentSizes = array<i32: 1, 1, 3>}
        : (memref<?x?x64xbf16>, !a, i32, i32, i32) -> ()
      "ws.commit"(%slot) {by = "copy_engine"} : (!a) -> ()
    }) {operandSegmentSizes = array<i32: 1, 0, 0>, order = "single"} : (i32) -> ()
  }) {groups = 1 : i64, label_name = "load", lanes = 1 : i64, registers = 24 : i64, warps = array<i32: 4, 1>} : () -> ()
  "ws.role"() ({
  ^bb0(%g: i32):
    %no = arith.constant false
    %slot = "ws.wait"(%ring, %g) : (!ring, i32) -> !a
    %d = "ws.acquire"(%acc, %g) : (!accs, i32) -> !acc
    "ws.mma"(%d, %slot, %slot, %no) {b_layout = "nk"} : (!acc, !a, !a, i1) -> ()
    "ws.release"(%slot) {by = "tensor_core"} : (!a) -> ()
    "ws.commit"(%d) {by = "tensor_core"} : (!acc) -> ()
  }) {groups = 1 : i64, label_name = "mma", lanes = 1 : i64, registers = 24 : i64, warps = array<i32: 5, 1>} : () -> ()
  "ws.role"() ({
  ^bb0(%g: i32):
    %zero = arith.constant 0 : i32
    %tile = "ws.at"(%spare, %g) : (!ws.buffer<!acc, 2>, i32) -> !acc
    %half = "ws.view"(%tile) : (!acc) -> !half
    %part = "ws.columns"(%half) {first = 32 : i64} : (!half) -> !part
    %strip = "ws.load"(%part) : (!part) -> !strip
    %full = "ws.wait"(%acc, %g) : (!accs, i32) -> !acc
    %s = "ws.load"(%full) : (!acc) -> !full
    %m = "ws.map"(%s) ({
    ^bb0(%x: f32, %r: i32, %c: i32):
      %y = arith.mulf %x, %n : f32
      "ws.yield"(%y) : (f32) -> ()
    }) {operandSegmentSizes = array<i32: 1>} : (!full) -> !full
    %e = "ws.exp2"(%m) {fma_begin = 0 : i64, fma_count = 4 : i64, fma_end = 128 : i64, fma_period = 16 : i64} : (!full) -> !full
    %bits = "ws.map"() ({
    ^bb0(%r: i32, %c: i32):
      "ws.yield"(%r) : (i32) -> ()
    }) {operandSegmentSizes = array<i32: 0>} : () -> !ws.frag<vector<128x4xi32>>
    %kept = "ws.keep"(%e, %bits, %n) : (!full, !ws.frag<vector<128x4xi32>>, f32) -> !full
    %none = "ws.fill"(%n) : (f32) -> !row
    %sum = "ws.reduce"(%kept, %none) {kind = "add"} : (!full, !row) -> !row
    %wide = "ws.broadcast"(%sum) : (!row) -> !full
    %low = "ws.map"(%sum) ({
    ^bb0(%x: f32, %r: i32):
      %y = arith.cmpf olt, %x, %n : f32
      "ws.yield"(%y) : (i1) -> ()
    }) {operandSegmentSizes = array<i32: 1>} : (!row) -> !ws.frag<vector<128xi1>>
    %any = "ws.any"(%low) : (!ws.frag<vector<128xi1>>) -> i1
    "ws.store"(%wide, %full) : (!full, !acc) -> ()
    "ws.release"(%full) {by = "threads"} : (!acc) -> ()
    "ws.barrier"() : () -> ()
    "ws.store_global"(%sum, %l, %zero, %zero)
      {dims = array<i32: 1>, operandSegmentSizes = array<i32: 1, 1, 2>}
      : (!row, memref<?x?xf32>, i32, i32) -> ()
  }) {groups = 1 : i64, label_name = "rows", lanes = 32 : i64, registers = 256 : i64, warps = array<i32: 0, 4>} : () -> ()
  "ws.role"() ({
  ^bb0(%g: i32):
    %zero = arith.constant 0 : i32
    %slot = "ws.wait"(%out, %g) : (!out, i32) -> !a
    "ws.copy_out"(%slot, %o, %zero, %zero, %zero)
      {dims = array<i32: 1, 2>, operandSegmentSizes = array<i32: 1, 1, 3>}
      : (!a, memref<?x?x64xbf16>, i32, i32, i32) -> ()
    "ws.release"(%slot) {by = "copy_engine"} : (!a) -> ()
  }) {groups = 1 : i64, label_name = "store", lanes = 1 : i64, registers = 0 : i64, warps = array<i32: 6, 1>} : () -> ()
}) {sym_name = "k", arg_names = ["a", "o", "l", "n"], arg_roles = ["in", "out", "out", "scalar"],
    arg_dims = [["batch", "sq", ""], ["batch", "sq", ""], ["batch", "sq"], []]} : () -> ()
