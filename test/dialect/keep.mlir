// RUN: %roundtrip | FileCheck %s

// A score modifier that hides scores of keys beyond the tenth.

// CHECK-LABEL: func.func @f
// CHECK: "attn.keep"(%{{.*}}) : (i1) -> ()
// CHECK-NEXT: "attn.yield"
func.func @f(%q: tensor<?x?x4x64xbf16>, %k: tensor<?x?x2x64xbf16>, %v: tensor<?x?x2x64xbf16>, %scale: f32)
    -> (tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>) {
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    %ten = arith.constant 10 : i32
    %seen = arith.cmpi slt, %j, %ten : i32
    "attn.keep"(%seen) : (i1) -> ()
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.null}
    : (tensor<?x?x4x64xbf16>, tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, f32)
      -> (tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>
}
