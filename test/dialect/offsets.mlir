// RUN: %roundtrip | FileCheck %s

// Offsets of coordinates, in a score modifier: numbers, and one for each sequence.

// CHECK-LABEL: func.func @numbers
// CHECK: "attn.offsets"(%{{.*}}, %{{.*}}, %{{.*}}) {operandSegmentSizes = array<i32: 1, 1, 1>} : (i32, i32, i32) -> ()
// CHECK-NEXT: "attn.yield"
func.func @numbers(%q: tensor<?x?x4x64xbf16>, %scale: f32, %at: i32, %head: i32)
    -> (tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>) {
  %o, %lse = "attn.mha"(%q, %q, %q, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.offsets"(%at, %at, %head) {operandSegmentSizes = array<i32: 1, 1, 1>} : (i32, i32, i32) -> ()
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.causal}
    : (tensor<?x?x4x64xbf16>, tensor<?x?x4x64xbf16>, tensor<?x?x4x64xbf16>, f32)
      -> (tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>
}

// CHECK-LABEL: func.func @of_sequences
// CHECK: "attn.offsets"(%{{.*}}) {operandSegmentSizes = array<i32: 0, 1, 0>} : (tensor<?xi32>) -> ()
func.func @of_sequences(%q: tensor<?x?x4x64xbf16>, %scale: f32, %at: tensor<?xi32>)
    -> (tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>) {
  %o, %lse = "attn.mha"(%q, %q, %q, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.offsets"(%at) {operandSegmentSizes = array<i32: 0, 1, 0>} : (tensor<?xi32>) -> ()
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.window<9, 0>}
    : (tensor<?x?x4x64xbf16>, tensor<?x?x4x64xbf16>, tensor<?x?x4x64xbf16>, f32)
      -> (tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>
}
