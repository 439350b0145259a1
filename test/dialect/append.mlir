// RUN: %roundtrip | FileCheck %s
// RUN: attn-opt --split-input-file --cse %s | FileCheck %s --check-prefix=CSE

// By slots, into caches as they are stored. It writes: the same twice is not one.

// CHECK-LABEL: func.func @slots
// CHECK: "attn.append"(%{{.*}}, %{{.*}}, %{{.*}}, %{{.*}}, %{{.*}}) {operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 0, 0, 0, 0>}
// CSE-LABEL: func.func @slots
// CSE-COUNT-2: "attn.append"
func.func @slots(%k: tensor<?x16x4x64xbf16>, %v: tensor<?x16x4x32xbf16>, %kn: tensor<?x4x64xbf16>,
                 %vn: tensor<?x4x32xbf16>, %slots: tensor<?xi64>) {
  "attn.append"(%k, %v, %kn, %vn, %slots) {operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 0, 0, 0, 0>}
    : (tensor<?x16x4x64xbf16>, tensor<?x16x4x32xbf16>, tensor<?x4x64xbf16>, tensor<?x4x32xbf16>, tensor<?xi64>) -> ()
  "attn.append"(%k, %v, %kn, %vn, %slots) {operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 0, 0, 0, 0>}
    : (tensor<?x16x4x64xbf16>, tensor<?x16x4x32xbf16>, tensor<?x4x64xbf16>, tensor<?x4x32xbf16>, tensor<?xi64>) -> ()
  func.return
}

// -----

// By positions, into pages of 8 bits with scales, rotated.

// CHECK-LABEL: func.func @positions
// CHECK: "attn.append"({{.*}}attn.interleaved{{.*}}!attn.view
func.func @positions(%k: tensor<?x16x4x64xf8E4M3FN>, %kn: tensor<?x4x64xbf16>, %positions: tensor<?xi32>,
                     %sequences: tensor<?xi32>, %cos: tensor<?x16xf32>, %sin: tensor<?x16xf32>,
                     %table: tensor<?x?xi32>, %scales: tensor<?x?xf32>) {
  %pages = "attn.paged"(%k, %table) : (tensor<?x16x4x64xf8E4M3FN>, tensor<?x?xi32>)
    -> !attn.view<tensor<?x?x4x64xf8E4M3FN>, tensor<?x16x4x64xf8E4M3FN>>
  %scaled = "attn.scaled"(%pages, %scales) {block = array<i32: 0, 64>}
    : (!attn.view<tensor<?x?x4x64xf8E4M3FN>, tensor<?x16x4x64xf8E4M3FN>>, tensor<?x?xf32>)
      -> !attn.view<tensor<?x?x4x64xf8E4M3FN>, tensor<?x16x4x64xf8E4M3FN>>
  "attn.append"(%scaled, %scaled, %kn, %kn, %positions, %sequences, %cos, %sin)
    {operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 1, 1, 0, 2>, attn.interleaved}
    : (!attn.view<tensor<?x?x4x64xf8E4M3FN>, tensor<?x16x4x64xf8E4M3FN>>,
       !attn.view<tensor<?x?x4x64xf8E4M3FN>, tensor<?x16x4x64xf8E4M3FN>>,
       tensor<?x4x64xbf16>, tensor<?x4x64xbf16>, tensor<?xi32>, tensor<?xi32>, tensor<?x16xf32>, tensor<?x16xf32>) -> ()
  func.return
}

// -----

// By the cache's lengths: tokens have a dimension for their sequence.

// CHECK-LABEL: func.func @lengths
// CHECK: "attn.append"
func.func @lengths(%k: tensor<?x?x4x64xbf16>, %kn: tensor<?x?x4x64xbf16>, %lengths: tensor<?xi32>) {
  %limited = "attn.limited"(%k, %lengths) {counted = "cached"} : (tensor<?x?x4x64xbf16>, tensor<?xi32>)
    -> !attn.view<tensor<?x?x4x64xbf16>, tensor<?x?x4x64xbf16>>
  "attn.append"(%limited, %limited, %kn, %kn) {operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0, 0, 0, 0>}
    : (!attn.view<tensor<?x?x4x64xbf16>, tensor<?x?x4x64xbf16>>,
       !attn.view<tensor<?x?x4x64xbf16>, tensor<?x?x4x64xbf16>>, tensor<?x?x4x64xbf16>, tensor<?x?x4x64xbf16>) -> ()
  func.return
}
