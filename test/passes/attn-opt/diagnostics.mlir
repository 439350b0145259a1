// RUN: not attn-opt --split-input-file %s 2> %t.err | FileCheck %s
// RUN: FileCheck %s --check-prefix=ERR --input-file=%t.err
// RUN: not attn-opt --split-input-file --verify-diagnostics %s 2>&1 | FileCheck %s --check-prefix=VERIFY

// Lines count from the start of the file; what is sound is still printed.

// CHECK: func.func @first
// CHECK: // -----
// CHECK-NOT: func.func @second
// CHECK: // -----
// CHECK: func.func @third

// ERR: diagnostics.mlir:25:8: error: 'arith.addf' op requires the same type for all operands and results
// ERR-NOT: error:

// VERIFY-NOT: 25:
// VERIFY: diagnostics.mlir:29:1: error: expected error "nothing of the kind" was not produced
// VERIFY-NOT: error:

func.func @first() { func.return }

// -----
func.func @second(%a: f32) -> f64 {
  // expected-error @below {{requires the same type for all operands and results}}
  %0 = "arith.addf"(%a, %a) : (f32, f32) -> f64
  func.return %0 : f64
}
// -----
// expected-error @below {{nothing of the kind}}
func.func @third() { func.return }
