// RUN: attn-opt --ws-plan-memory --convert-ws-to-nvvm %s | FileCheck %s

// Operands of a product of one warp come as matrices, four at a time: A and a B that lies as nk as
// they are, a B that lies as kn transposed, each lane with the address of one row of 16 bytes. A
// product of 16 x 16 x 16 is two instructions.

// CHECK-LABEL: llvm.func @dots
// CHECK: nvvm.ldmatrix %{{.*}} {eltType = #nvvm.ld_st_matrix_elt_type<b16>, layout = #nvvm.mma_layout<row>, num = 4 : i32, shape = #nvvm.ld_st_matrix_shape<m = 8, n = 8>}
// CHECK: nvvm.ldmatrix %{{.*}} {eltType = #nvvm.ld_st_matrix_elt_type<b16>, layout = #nvvm.mma_layout<col>, num = 4 : i32, shape = #nvvm.ld_st_matrix_shape<m = 8, n = 8>}
// CHECK-COUNT-2: llvm.call_intrinsic "llvm.nvvm.mma.m16n8k16.row.col.bf16"
// CHECK-NOT: llvm.nvvm.mma
// CHECK: nvvm.ldmatrix %{{.*}} {eltType = #nvvm.ld_st_matrix_elt_type<b16>, layout = #nvvm.mma_layout<row>, num = 4 : i32, shape = #nvvm.ld_st_matrix_shape<m = 8, n = 8>}
// CHECK-COUNT-2: llvm.call_intrinsic "llvm.nvvm.mma.m16n8k16.row.col.bf16"
// CHECK-NOT: llvm.nvvm.mma

!t = !ws.tile<vector<16x16xbf16>, "shared">
!f = !ws.frag<vector<16x16xbf16>>
!d = !ws.frag<vector<16x16xf32>>
"ws.kernel"() ({
^bb0(%y: memref<?x16xf32>):
  %r = "ws.alloc_buffer"() {label_name = "r"} : () -> !ws.buffer<!t, 3>
  "ws.role"() ({
  ^bb0(%g: i32):
    %c0 = arith.constant 0 : i32
    %c1 = arith.constant 1 : i32
    %c2 = arith.constant 2 : i32
    %zero = arith.constant 0.0 : f32
    %none = "ws.fill"(%zero) : (f32) -> !d
    %ta = "ws.at"(%r, %c0) : (!ws.buffer<!t, 3>, i32) -> !t
    %a = "ws.load"(%ta) : (!t) -> !f
    %tb = "ws.at"(%r, %c1) : (!ws.buffer<!t, 3>, i32) -> !t
    %b = "ws.load"(%tb) : (!t) -> !f
    %d = "ws.dot"(%none, %a, %b) {b_layout = "kn"} : (!d, !f, !f) -> !d
    %tc = "ws.at"(%r, %c2) : (!ws.buffer<!t, 3>, i32) -> !t
    %c = "ws.load"(%tc) : (!t) -> !f
    %e = "ws.dot"(%d, %a, %c) {b_layout = "nk"} : (!d, !f, !f) -> !d
    "ws.store_global"(%e, %y, %c0, %c0)
      {dims = array<i32: 0, 1>, operandSegmentSizes = array<i32: 1, 1, 2>} : (!d, memref<?x16xf32>, i32, i32) -> ()
  }) {label_name = "rows", warps = array<i32: 0, 1>, groups = 1 : i64, lanes = 32 : i64, registers = 0 : i64} : () -> ()
}) {sym_name = "dots", arg_names = ["y"], arg_roles = ["out"], arg_dims = [["m", ""]]} : () -> ()
