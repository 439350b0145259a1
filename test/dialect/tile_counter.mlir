// RUN: %roundtrip | FileCheck %s

// A counter that work tiles are drawn from, in a score modifier.

// CHECK-LABEL: func.func @f
// CHECK: "attn.tile_counter"(%{{.*}}) : (tensor<1xi32>) -> ()
// CHECK-NEXT: "attn.yield"
func.func @f(%q: tensor<?x?x4x64xbf16>, %scale: f32, %counter: tensor<1xi32>)
    -> (tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>) {
  %o, %lse = "attn.mha"(%q, %q, %q, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.tile_counter"(%counter) : (tensor<1xi32>) -> ()
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.null}
    : (tensor<?x?x4x64xbf16>, tensor<?x?x4x64xbf16>, tensor<?x?x4x64xbf16>, f32)
      -> (tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>
}
