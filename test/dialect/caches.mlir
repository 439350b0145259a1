// RUN: %roundtrip | FileCheck %s
// RUN: attn-opt --split-input-file --cse %s | FileCheck %s --check-prefix=CSE

// Keys and values in pages, listed by a table; two views of the same are one.

// CHECK-LABEL: func.func @paged
// CHECK: %[[K:.*]] = "attn.paged"(%{{.*}}, %{{.*}}) : (tensor<?x64x4x128xbf16>, tensor<?x?xi32>) -> !attn.view<tensor<?x?x4x128xbf16>, tensor<?x64x4x128xbf16>>
// CHECK: "attn.mha"(%{{.*}}, %[[K]],
// CSE-LABEL: func.func @paged
// CSE-COUNT-1: "attn.paged"
// CSE-NOT: "attn.paged"
// CSE: return
func.func @paged(%q: tensor<?x?x4x128xbf16>, %pool: tensor<?x64x4x128xbf16>,
                 %table: tensor<?x?xi32>, %scale: f32)
    -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>) {
  %k = "attn.paged"(%pool, %table) : (tensor<?x64x4x128xbf16>, tensor<?x?xi32>)
    -> !attn.view<tensor<?x?x4x128xbf16>, tensor<?x64x4x128xbf16>>
  %v = "attn.paged"(%pool, %table) : (tensor<?x64x4x128xbf16>, tensor<?x?xi32>)
    -> !attn.view<tensor<?x?x4x128xbf16>, tensor<?x64x4x128xbf16>>
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.causal}
    : (tensor<?x?x4x128xbf16>, !attn.view<tensor<?x?x4x128xbf16>, tensor<?x64x4x128xbf16>>,
       !attn.view<tensor<?x?x4x128xbf16>, tensor<?x64x4x128xbf16>>, f32)
      -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>
}

// -----

// Compressed rows of pages.

// CHECK-LABEL: func.func @compressed
// CHECK: "attn.paged_csr"(%{{.*}}, %{{.*}}, %{{.*}}, %{{.*}}) : (tensor<?x16x4x64xbf16>, tensor<?xi32>, tensor<?xi32>, tensor<?xi32>) -> !attn.view<tensor<?x?x4x64xbf16>, tensor<?x16x4x64xbf16>>
// CSE-LABEL: func.func @compressed
// CSE-COUNT-1: "attn.paged_csr"
// CSE-NOT: "attn.paged_csr"
// CSE: return
func.func @compressed(%q: tensor<?x?x4x64xbf16>, %pool: tensor<?x16x4x64xbf16>,
                      %offsets: tensor<?xi32>, %indices: tensor<?xi32>, %last: tensor<?xi32>,
                      %scale: f32) -> (tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>) {
  %k = "attn.paged_csr"(%pool, %offsets, %indices, %last)
    : (tensor<?x16x4x64xbf16>, tensor<?xi32>, tensor<?xi32>, tensor<?xi32>)
      -> !attn.view<tensor<?x?x4x64xbf16>, tensor<?x16x4x64xbf16>>
  %v = "attn.paged_csr"(%pool, %offsets, %indices, %last)
    : (tensor<?x16x4x64xbf16>, tensor<?xi32>, tensor<?xi32>, tensor<?xi32>)
      -> !attn.view<tensor<?x?x4x64xbf16>, tensor<?x16x4x64xbf16>>
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.null}
    : (tensor<?x?x4x64xbf16>, !attn.view<tensor<?x?x4x64xbf16>, tensor<?x16x4x64xbf16>>,
       !attn.view<tensor<?x?x4x64xbf16>, tensor<?x16x4x64xbf16>>, f32)
      -> (tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>
}

// -----

// Rows that a batch selects, without the padding in front; two views of the same are one.

// CHECK-LABEL: func.func @rows
// CHECK: %[[ROWS:.*]] = "attn.selected"(%{{.*}}, %{{.*}}) : (tensor<?x?x4x64xf16>, tensor<?xi32>) -> !attn.view<tensor<?x?x4x64xf16>, tensor<?x?x4x64xf16>>
// CHECK: "attn.trimmed"(%[[ROWS]], %{{.*}})
// CSE-LABEL: func.func @rows
// CSE-COUNT-1: "attn.selected"
// CSE-COUNT-1: "attn.trimmed"
// CSE-NOT: "attn.{{selected|trimmed}}"
// CSE: return
func.func @rows(%q: tensor<?x?x4x64xf16>, %cache: tensor<?x?x4x64xf16>, %rows: tensor<?xi32>,
                %padding: tensor<?xi32>, %scale: f32)
    -> (tensor<?x?x4x64xf16>, tensor<?x4x?xf32>) {
  %k0 = "attn.selected"(%cache, %rows) : (tensor<?x?x4x64xf16>, tensor<?xi32>)
    -> !attn.view<tensor<?x?x4x64xf16>, tensor<?x?x4x64xf16>>
  %k = "attn.trimmed"(%k0, %padding)
    : (!attn.view<tensor<?x?x4x64xf16>, tensor<?x?x4x64xf16>>, tensor<?xi32>)
      -> !attn.view<tensor<?x?x4x64xf16>, tensor<?x?x4x64xf16>>
  %v0 = "attn.selected"(%cache, %rows) : (tensor<?x?x4x64xf16>, tensor<?xi32>)
    -> !attn.view<tensor<?x?x4x64xf16>, tensor<?x?x4x64xf16>>
  %v = "attn.trimmed"(%v0, %padding)
    : (!attn.view<tensor<?x?x4x64xf16>, tensor<?x?x4x64xf16>>, tensor<?xi32>)
      -> !attn.view<tensor<?x?x4x64xf16>, tensor<?x?x4x64xf16>>
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.null}
    : (tensor<?x?x4x64xf16>, !attn.view<tensor<?x?x4x64xf16>, tensor<?x?x4x64xf16>>,
       !attn.view<tensor<?x?x4x64xf16>, tensor<?x?x4x64xf16>>, f32)
      -> (tensor<?x?x4x64xf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x64xf16>, tensor<?x4x?xf32>
}
