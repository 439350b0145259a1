// RUN: attn-opt --attn-configure %s | FileCheck %s

// A module without attention stays as it is.

// CHECK: module {
// CHECK-NEXT: func.func @f(%[[A:.*]]: f32) -> f32 {
// CHECK-NEXT: return %[[A]] : f32
// CHECK-NOT: attn
func.func @f(%a: f32) -> f32 {
  func.return %a : f32
}
