// RUN: %roundtrip | FileCheck %s

// Lists of blocks in a score modifier.

// CHECK-LABEL: func.func @f
// CHECK: "attn.blocks"(%{{.*}}, %{{.*}}) {block = array<i32: 256, 1, 128>} : (tensor<?x?x?x2xi32>, tensor<?x?x?x?xi32>) -> ()
// CHECK-NEXT: "attn.yield"
func.func @f(%q: tensor<?x?x4x64xbf16>, %scale: f32, %counts: tensor<?x?x?x2xi32>, %indices: tensor<?x?x?x?xi32>)
    -> (tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>) {
  %o, %lse = "attn.mha"(%q, %q, %q, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.blocks"(%counts, %indices) {block = array<i32: 256, 1, 128>}
      : (tensor<?x?x?x2xi32>, tensor<?x?x?x?xi32>) -> ()
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.null}
    : (tensor<?x?x4x64xbf16>, tensor<?x?x4x64xbf16>, tensor<?x?x4x64xbf16>, f32)
      -> (tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>
}
