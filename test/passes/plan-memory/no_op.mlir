// RUN: attn-opt --ws-plan-memory --ws-verify-rings %s | FileCheck %s

// A module without kernels stays as it is.

// CHECK: module {
// CHECK-NEXT: func.func @f() {
// CHECK-NOT: ws.plan
func.func @f() { func.return }
