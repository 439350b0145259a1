// RUN: %roundtrip | FileCheck %s
// RUN: attn-opt --cse %s | FileCheck %s --check-prefix=CSE

// Rows that lists name, for each query its own.

// CHECK-LABEL: func.func @gathered
// CHECK: "attn.gathered"(%{{.*}}, %{{.*}}) {operandSegmentSizes = array<i32: 1, 1, 0>} : (tensor<?x576xbf16>, tensor<?x?x?xi32>) -> !attn.view<tensor<?x?x1x576xbf16>, tensor<?x576xbf16>>
// CHECK: "attn.gathered"(%{{.*}}, %{{.*}}, %{{.*}}) {operandSegmentSizes = array<i32: 1, 1, 1>}

// CSE-LABEL: func.func @gathered
// CSE-COUNT-2: "attn.gathered"
// CSE-NOT: "attn.gathered"
// CSE: return
func.func @gathered(%rows: tensor<?x576xbf16>, %indices: tensor<?x?x?xi32>, %lengths: tensor<?x?xi32>)
    -> (!attn.view<tensor<?x?x1x576xbf16>, tensor<?x576xbf16>>, !attn.view<tensor<?x?x1x576xbf16>, tensor<?x576xbf16>>, !attn.view<tensor<?x?x1x576xbf16>, tensor<?x576xbf16>>) {
  %all = "attn.gathered"(%rows, %indices) {operandSegmentSizes = array<i32: 1, 1, 0>}
    : (tensor<?x576xbf16>, tensor<?x?x?xi32>) -> !attn.view<tensor<?x?x1x576xbf16>, tensor<?x576xbf16>>
  %again = "attn.gathered"(%rows, %indices) {operandSegmentSizes = array<i32: 1, 1, 0>}
    : (tensor<?x576xbf16>, tensor<?x?x?xi32>) -> !attn.view<tensor<?x?x1x576xbf16>, tensor<?x576xbf16>>
  %some = "attn.gathered"(%rows, %indices, %lengths) {operandSegmentSizes = array<i32: 1, 1, 1>}
    : (tensor<?x576xbf16>, tensor<?x?x?xi32>, tensor<?x?xi32>) -> !attn.view<tensor<?x?x1x576xbf16>, tensor<?x576xbf16>>
  func.return %all, %again, %some : !attn.view<tensor<?x?x1x576xbf16>, tensor<?x576xbf16>>, !attn.view<tensor<?x?x1x576xbf16>, tensor<?x576xbf16>>, !attn.view<tensor<?x?x1x576xbf16>, tensor<?x576xbf16>>
}
