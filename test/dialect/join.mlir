// RUN: %roundtrip | FileCheck %s

// Memory for parts of the keys in a score modifier.

// CHECK-LABEL: func.func @f
// CHECK: "attn.join"(%{{.*}}, %{{.*}}, %{{.*}}) : (tensor<?x?x2x16x32xf32>, tensor<2x?x?x2x16xf32>, tensor<?x2xi32>) -> ()
// CHECK-NEXT: "attn.yield"
func.func @f(%q: tensor<?x?x4x64xbf16>, %scale: f32, %sums: tensor<?x?x2x16x32xf32>,
             %extremes: tensor<2x?x?x2x16xf32>, %arrived: tensor<?x2xi32>)
    -> (tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>) {
  %o, %lse = "attn.mha"(%q, %q, %q, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.join"(%sums, %extremes, %arrived)
      : (tensor<?x?x2x16x32xf32>, tensor<2x?x?x2x16xf32>, tensor<?x2xi32>) -> ()
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.null}
    : (tensor<?x?x4x64xbf16>, tensor<?x?x4x64xbf16>, tensor<?x?x4x64xbf16>, f32)
      -> (tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>
}
