// RUN: attn-opt --verify-roundtrip %s | FileCheck %s

// Memory that kernels add rows to: zeros before that, and what becomes of them.

// CHECK-LABEL: func.func @zeros
func.func @zeros() -> tensor<?x?x4x64xf32> {
  // CHECK: "attn.zero_rows"() : () -> tensor<?x?x4x64xf32>
  %accum = "attn.zero_rows"() : () -> tensor<?x?x4x64xf32>
  func.return %accum : tensor<?x?x4x64xf32>
}

// CHECK-LABEL: func.func @rounded
func.func @rounded(%accum: tensor<?x?x4x64xf32>, %scale: f32) -> tensor<?x?x4x64xbf16> {
  // CHECK: "attn.round_rows"(%{{.*}}, %{{.*}}) : (tensor<?x?x4x64xf32>, f32) -> tensor<?x?x4x64xbf16>
  %dq = "attn.round_rows"(%accum, %scale) : (tensor<?x?x4x64xf32>, f32) -> tensor<?x?x4x64xbf16>
  func.return %dq : tensor<?x?x4x64xbf16>
}

// CHECK-LABEL: func.func @summed
func.func @summed(%q: tensor<?x?x4x64xbf16>, %k: tensor<?x?x2x64xbf16>, %rows: tensor<?x4x?xf32>,
    %scale: f32, %accum: tensor<?x?x4x64xf32>) -> (tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>) {
  // CHECK: "attn.gradients"({{.*}}) ({
  // CHECK-NEXT: }) {mask = #attn.causal}
  %dk, %dv = "attn.gradients"(%q, %k, %k, %q, %rows, %rows, %scale, %accum) ({}) {mask = #attn.causal}
    : (tensor<?x?x4x64xbf16>, tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, tensor<?x?x4x64xbf16>,
       tensor<?x4x?xf32>, tensor<?x4x?xf32>, f32, tensor<?x?x4x64xf32>)
      -> (tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>)
  func.return %dk, %dv : tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>
}

// Parts that kernels write, and their sums.

// CHECK-LABEL: func.func @parts
func.func @parts(%parts: tensor<?x?xf32>) -> tensor<?xbf16> {
  // CHECK: "attn.sum_parts"(%{{.*}}) : (tensor<?x?xf32>) -> tensor<?xbf16>
  %sums = "attn.sum_parts"(%parts) : (tensor<?x?xf32>) -> tensor<?xbf16>
  func.return %sums : tensor<?xbf16>
}
