// RUN: %roundtrip | FileCheck %s
// RUN: attn-opt --split-input-file --cse %s | FileCheck %s --check-prefix=CSE

// Sequences of unequal lengths: the results lie as the queries do.

// CHECK-LABEL: func.func @ragged
// CHECK: %[[Q:.*]] = "attn.ragged"(%{{.*}}, %[[OFFSETS:[^,]+]], %{{.*}}) : (tensor<?x16x128xbf16>, tensor<?xi32>, i32) -> !attn.view<tensor<?x?x16x128xbf16>, tensor<?x16x128xbf16>>
// CHECK: "attn.mha"(%[[Q]],
// CHECK: -> (tensor<?x16x128xbf16>, tensor<16x?xf32>)

// Two views of the same are one.

// CSE-LABEL: func.func @ragged
// CSE-COUNT-2: "attn.ragged"
// CSE-NOT: "attn.ragged"
// CSE: return
func.func @ragged(%q: tensor<?x16x128xbf16>, %k: tensor<?x4x128xbf16>, %offsets: tensor<?xi32>,
                  %longest: i32, %scale: f32) -> (tensor<?x16x128xbf16>, tensor<16x?xf32>) {
  %queries = "attn.ragged"(%q, %offsets, %longest) : (tensor<?x16x128xbf16>, tensor<?xi32>, i32)
    -> !attn.view<tensor<?x?x16x128xbf16>, tensor<?x16x128xbf16>>
  %keys = "attn.ragged"(%k, %offsets, %longest) : (tensor<?x4x128xbf16>, tensor<?xi32>, i32)
    -> !attn.view<tensor<?x?x4x128xbf16>, tensor<?x4x128xbf16>>
  %values = "attn.ragged"(%k, %offsets, %longest) : (tensor<?x4x128xbf16>, tensor<?xi32>, i32)
    -> !attn.view<tensor<?x?x4x128xbf16>, tensor<?x4x128xbf16>>
  %o, %lse = "attn.mha"(%queries, %keys, %values, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.causal}
    : (!attn.view<tensor<?x?x16x128xbf16>, tensor<?x16x128xbf16>>,
       !attn.view<tensor<?x?x4x128xbf16>, tensor<?x4x128xbf16>>,
       !attn.view<tensor<?x?x4x128xbf16>, tensor<?x4x128xbf16>>, f32)
      -> (tensor<?x16x128xbf16>, tensor<16x?xf32>)
  func.return %o, %lse : tensor<?x16x128xbf16>, tensor<16x?xf32>
}

// -----

// A dense cache with lengths, twice limited, and dense queries.

// CHECK-LABEL: func.func @limited
// CHECK: %[[CACHE:.*]] = "attn.limited"(%{{.*}}, %{{.*}}) {counted = "cached"} : (tensor<?x?x4x64xf16>, tensor<?xi32>) -> !attn.view<tensor<?x?x4x64xf16>, tensor<?x?x4x64xf16>>
// CHECK: "attn.limited"(%[[CACHE]], %{{.*}}) {counted = "all"}
// CSE-LABEL: func.func @limited
func.func @limited(%q: tensor<?x?x4x64xf16>, %k: tensor<?x?x4x64xf16>, %lengths: tensor<?xi32>,
                   %scale: f32) -> (tensor<?x?x4x64xf16>, tensor<?x4x?xf32>) {
  %cache = "attn.limited"(%k, %lengths) {counted = "cached"}
    : (tensor<?x?x4x64xf16>, tensor<?xi32>)
      -> !attn.view<tensor<?x?x4x64xf16>, tensor<?x?x4x64xf16>>
  %shorter = "attn.limited"(%cache, %lengths) {counted = "all"}
    : (!attn.view<tensor<?x?x4x64xf16>, tensor<?x?x4x64xf16>>, tensor<?xi32>)
      -> !attn.view<tensor<?x?x4x64xf16>, tensor<?x?x4x64xf16>>
  %o, %lse = "attn.mha"(%q, %cache, %shorter, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.null}
    : (tensor<?x?x4x64xf16>, !attn.view<tensor<?x?x4x64xf16>, tensor<?x?x4x64xf16>>,
       !attn.view<tensor<?x?x4x64xf16>, tensor<?x?x4x64xf16>>, f32)
      -> (tensor<?x?x4x64xf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x64xf16>, tensor<?x4x?xf32>
}
