// RUN: %roundtrip | FileCheck %s
// RUN: attn-opt --cse %s | FileCheck %s --check-prefix=CSE

// The rope of a paged latent cache; two views of the same columns are one.

// CHECK-LABEL: func.func @rope
// CHECK: %[[ROWS:.*]] = "attn.paged"
// CHECK: "attn.columns"(%[[ROWS]]) {first = 512 : i64} : (!attn.view<tensor<?x?x1x576xbf16>, tensor<?x64x1x576xbf16>>) -> !attn.view<tensor<?x?x1x64xbf16>, tensor<?x64x1x576xbf16>>

// CSE-LABEL: func.func @rope
// CSE-COUNT-1: "attn.columns"
// CSE-NOT: "attn.columns"
// CSE: return
func.func @rope(%pool: tensor<?x64x1x576xbf16>, %table: tensor<?x?xi32>)
    -> (!attn.view<tensor<?x?x1x64xbf16>, tensor<?x64x1x576xbf16>>, !attn.view<tensor<?x?x1x64xbf16>, tensor<?x64x1x576xbf16>>) {
  %rows = "attn.paged"(%pool, %table) : (tensor<?x64x1x576xbf16>, tensor<?x?xi32>)
    -> !attn.view<tensor<?x?x1x576xbf16>, tensor<?x64x1x576xbf16>>
  %a = "attn.columns"(%rows) {first = 512 : i64} : (!attn.view<tensor<?x?x1x576xbf16>, tensor<?x64x1x576xbf16>>)
    -> !attn.view<tensor<?x?x1x64xbf16>, tensor<?x64x1x576xbf16>>
  %b = "attn.columns"(%rows) {first = 512 : i64} : (!attn.view<tensor<?x?x1x576xbf16>, tensor<?x64x1x576xbf16>>)
    -> !attn.view<tensor<?x?x1x64xbf16>, tensor<?x64x1x576xbf16>>
  func.return %a, %b : !attn.view<tensor<?x?x1x64xbf16>, tensor<?x64x1x576xbf16>>, !attn.view<tensor<?x?x1x64xbf16>, tensor<?x64x1x576xbf16>>
}
