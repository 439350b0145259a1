// RUN: attn-opt --attn-check-stage=stage=attn %s | FileCheck %s
// RUN: not attn-opt --attn-check-stage=stage=ws %s 2>&1 | FileCheck %s --check-prefix=WS
// RUN: not attn-opt --attn-check-stage=stage=llvm %s 2>&1 | FileCheck %s --check-prefix=LLVM

// The operation that does not belong is named where it stands; up to nine more are notes.

// CHECK: arith.addf

// WS: stages.mlir:21:1: error: 'func.func' op is not legal at stage 'ws', which holds builtin, ws,
// WS: stages.mlir:23:3: note: 'func.return' op is not legal either
// WS-NOT: note:

// LLVM: stages.mlir:21:1: error: 'func.func' op is not legal at stage 'llvm'
// LLVM: stages.mlir:22:8: note: 'arith.addf' op is not legal either
// LLVM: stages.mlir:23:3: note: 'func.return' op is not legal either
// LLVM-NOT: note:




func.func @f(%a: f32) -> f32 {
  %0 = arith.addf %a, %a : f32
  func.return %0 : f32
}
