// RUN: attn-opt --split-input-file --ws-plan-memory --convert-ws-to-nvvm %s | FileCheck %s
// RUN: attn-opt --split-input-file --ws-plan-memory --convert-ws-to-nvvm %s | FileCheck %s --check-prefix=MAP

// Copies: one box covers a tile whose 128-byte lines are a dimension of the map; where the map has
// no room for it, a box per 64 columns, each with bytes and a start of its own.

// CHECK-LABEL: llvm.func @copies
// CHECK: arith.constant 32768 : index
// CHECK: nvgpu.mbarrier.arrive.expect_tx
// CHECK: nvgpu.tma.async.load {{.*}} : <tensor = memref<1x1x2x128x64xbf16, 3>, swizzle = swizzle_128b
// CHECK-NOT: nvgpu.tma.async.load
// CHECK: arith.constant 32768 : index
// CHECK: nvgpu.mbarrier.arrive.expect_tx
// CHECK: nvgpu.tma.async.load {{.*}} : <tensor = memref<1x1x32x4x64xbf16, 3>
// CHECK: %[[SECOND:.*]] = arith.constant 16384 : i32
// CHECK-NEXT: arith.addi %{{.*}}, %[[SECOND]]
// CHECK: nvgpu.tma.async.load {{.*}} : <tensor = memref<1x1x32x4x64xbf16, 3>
// CHECK: nvgpu.tma.async.store {{.*}} -> <tensor = memref<1x1x2x128x64xbf16, 3>

// Dimensions innermost first: the lines of 64 elements, rows, lines per row, the rest.
// MAP: module attributes {attn.manifests = {copies =
// MAP-SAME: \22kind\22: \22tensor_map\22, \22tensor\22: \22x\22, \22box\22: [64, 128, 2, 1, 1], \22swizzle\22: \22128B\22, \22dims\22: [{\22extent\22: 64, \22axis\22: 3, \22step\22: 1}, {\22extent\22: \22s\22, \22axis\22: 1, \22step\22: 1}, {\22extent\22: 2, \22axis\22: 3, \22step\22: 64}, {\22extent\22: 8, \22axis\22: 2, \22step\22: 1}, {\22extent\22: \22b\22, \22axis\22: 0, \22step\22: 1}]
// MAP-SAME: \22box\22: [64, 4, 32, 1, 1], \22swizzle\22: \22128B\22, \22dims\22: [{\22extent\22: 128, \22axis\22: 3, \22step\22: 1}, {\22extent\22: 4, \22axis\22: 2, \22step\22: 1}, {\22extent\22: \22s\22, \22axis\22: 1, \22step\22: 1}, {\22extent\22: 2, \22axis\22: 2, \22step\22: 4}, {\22extent\22: \22b\22, \22axis\22: 0, \22step\22: 1}]

!t = !ws.tile<vector<128x128xbf16>, "shared">
!ring = !ws.ring<!t, 1, 1>
!x = memref<?x?x8x128xbf16>
!v = memref<?x?x2x4x128xbf16>
"ws.kernel"() ({
^bb0(%x: !x, %y: !x):
  %r = "ws.alloc_ring"() {label_name = "r"} : () -> !ring
  %q = "ws.alloc_ring"() {label_name = "q"} : () -> !ring
  "ws.role"() ({
  ^bb0(%g: i32):
    %zero = arith.constant 0 : i32
    %s = "ws.acquire"(%r, %zero) : (!ring, i32) -> !t
    "ws.copy_in"(%x, %s, %zero, %zero, %zero, %zero)
      {dims = array<i32: 1, 3>, operandSegmentSizes = array<i32: 1, 1, 4>} : (!x, !t, i32, i32, i32, i32) -> ()
    "ws.commit"(%s) {by = "copy_engine"} : (!t) -> ()
    %v = "ws.expand"(%x) {dim = 2 : i64, factor = 4 : i64} : (!x) -> !v
    %u = "ws.acquire"(%q, %zero) : (!ring, i32) -> !t
    "ws.copy_in"(%v, %u, %zero, %zero, %zero, %zero, %zero)
      {dims = array<i32: 1, 3, 4>, operandSegmentSizes = array<i32: 1, 1, 5>} : (!v, !t, i32, i32, i32, i32, i32) -> ()
    "ws.commit"(%u) {by = "copy_engine"} : (!t) -> ()
  }) {label_name = "load", warps = array<i32: 0, 1>, groups = 1 : i64, lanes = 1 : i64, registers = 0 : i64} : () -> ()
  "ws.role"() ({
  ^bb0(%g: i32):
    %zero = arith.constant 0 : i32
    %s = "ws.wait"(%r, %zero) : (!ring, i32) -> !t
    "ws.copy_out"(%s, %y, %zero, %zero, %zero, %zero)
      {dims = array<i32: 1, 3>, operandSegmentSizes = array<i32: 1, 1, 4>} : (!t, !x, i32, i32, i32, i32) -> ()
    "ws.release"(%s) {by = "copy_engine"} : (!t) -> ()
    %u = "ws.wait"(%q, %zero) : (!ring, i32) -> !t
    "ws.release"(%u) {by = "threads"} : (!t) -> ()
  }) {label_name = "store", warps = array<i32: 1, 1>, groups = 1 : i64, lanes = 1 : i64, registers = 0 : i64} : () -> ()
}) {sym_name = "copies", arg_names = ["x", "y"], arg_roles = ["in", "out"], arg_dims = [["b", "s", "", ""], ["b", "s", "", ""]]} : () -> ()

// -----

// Products: a K step of 16 is an instruction; the first takes `accumulate`, the others add. A step's
// descriptors are made in front of it. The
// descriptors are those of the worked examples: A and B K-major 0x4000404000010000, B with K in
// rows 0x4000404002000000 for 64 rows; bf16 128 x 64: 0x08100490, with B transposed 0x08110490.

// CHECK-LABEL: llvm.func @products
// CHECK: arith.constant 1000
// CHECK: %[[B:.*]] = arith.constant 4611756662049538048 : i64
// CHECK: %[[B_START:.*]] = arith.ori %{{.*}}, %[[B]]
// CHECK: %[[A:.*]] = arith.constant 4611756662049538048 : i64
// CHECK: %[[A_START:.*]] = arith.ori %{{.*}}, %[[A]]
// CHECK: %[[ALWAYS:.*]] = arith.constant true
// CHECK: %[[CODE:.*]] = arith.constant 135267472 : i32
// CHECK: nvvm.tcgen05.mma %{{.*}}, %{{.*}}, %{{.*}}, %[[CODE]], %[[FIRST:.*]] {
// CHECK: %[[STEP:.*]] = arith.constant 2 : i64
// CHECK: arith.addi %[[B_START]], %[[STEP]]
// CHECK: arith.addi %[[A_START]], %{{.*}}
// CHECK: nvvm.tcgen05.mma %{{.*}}, %{{.*}}, %{{.*}}, %[[CODE]], %[[ALWAYS]] {
// CHECK: nvvm.tcgen05.mma %{{.*}}, %[[ALWAYS]] {
// CHECK: nvvm.tcgen05.mma %{{.*}}, %[[ALWAYS]] {
// CHECK-NOT: nvvm.tcgen05.mma
// CHECK: arith.constant 1001
// CHECK: arith.constant 4611756662083026944 : i64
// CHECK: arith.constant 135333008 : i32
// CHECK: nvvm.tcgen05.mma %{{.*}} : (!llvm.ptr<6>, !llvm.ptr<6>, i64, i32, i1)
// CHECK: %[[ROWS:.*]] = arith.constant 128 : i64
// CHECK: arith.addi %{{.*}}, %[[ROWS]]
// CHECK: nvvm.tcgen05.mma
// CHECK: arith.constant 1002

!a = !ws.tile<vector<128x64xbf16>, "shared">
!b = !ws.tile<vector<64x64xbf16>, "shared">
!d = !ws.tile<vector<128x64xf32>, "tensor">
!p = !ws.tile<vector<128x64xbf16>, "tensor">
"ws.kernel"() ({
^bb0:
  %as = "ws.alloc_buffer"() {label_name = "a"} : () -> !ws.buffer<!a, 1>
  %bs = "ws.alloc_buffer"() {label_name = "b"} : () -> !ws.buffer<!b, 1>
  %ds = "ws.alloc_buffer"() {label_name = "d"} : () -> !ws.buffer<!d, 2>
  "ws.role"() ({
  ^bb0(%g: i32):
    %zero = arith.constant 0 : i32
    %one = arith.constant 1 : i32
    %no = arith.constant false
    %a = "ws.at"(%as, %zero) : (!ws.buffer<!a, 1>, i32) -> !a
    %b = "ws.at"(%bs, %zero) : (!ws.buffer<!b, 1>, i32) -> !b
    %d = "ws.at"(%ds, %zero) : (!ws.buffer<!d, 2>, i32) -> !d
    %s = "ws.at"(%ds, %one) : (!ws.buffer<!d, 2>, i32) -> !d
    %p = "ws.view"(%s) : (!d) -> !p
    %m0 = arith.constant 1000 : i32
    "ws.mma"(%d, %a, %b, %no) {b_layout = "nk"} : (!d, !a, !b, i1) -> ()
    %m1 = arith.constant 1001 : i32
    "ws.mma"(%d, %p, %b, %no) {b_layout = "kn"} : (!d, !p, !b, i1) -> ()
    %m2 = arith.constant 1002 : i32
  }) {label_name = "mma", warps = array<i32: 0, 1>, groups = 1 : i64, lanes = 1 : i64, registers = 0 : i64} : () -> ()
}) {sym_name = "products", arg_names = [], arg_roles = [], arg_dims = []} : () -> ()
