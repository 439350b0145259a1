// RUN: %roundtrip | FileCheck %s
// RUN: attn-opt --cse %s | FileCheck %s --check-prefix=CSE

// Ragged queries and keys, rope of a paged latent cache.

// CHECK-LABEL: func.func @mla
// CHECK: %[[ROPE:.*]] = "attn.columns"
// CHECK: "attn.mla"(%{{.*}}, %{{.*}}, %{{.*}}, %[[ROPE]], %{{.*}}, %{{.*}}) {mask = #attn.causal}
// CHECK-SAME: -> (tensor<?x4x128xbf16>, tensor<4x?xf32>)
func.func @mla(%q_nope: tensor<?x4x128xbf16>, %q_rope: tensor<?x4x64xbf16>, %k_nope: tensor<?x4x128xbf16>,
               %pool: tensor<?x64x1x576xbf16>, %v: tensor<?x4x128xbf16>, %scale: f32, %ends: tensor<?xi32>, %longest: i32,
               %table: tensor<?x?xi32>) -> (tensor<?x4x128xbf16>, tensor<4x?xf32>) {
  %q0 = "attn.ragged"(%q_nope, %ends, %longest) : (tensor<?x4x128xbf16>, tensor<?xi32>, i32) -> !attn.view<tensor<?x?x4x128xbf16>, tensor<?x4x128xbf16>>
  %q1 = "attn.ragged"(%q_rope, %ends, %longest) : (tensor<?x4x64xbf16>, tensor<?xi32>, i32) -> !attn.view<tensor<?x?x4x64xbf16>, tensor<?x4x64xbf16>>
  %k0 = "attn.ragged"(%k_nope, %ends, %longest) : (tensor<?x4x128xbf16>, tensor<?xi32>, i32) -> !attn.view<tensor<?x?x4x128xbf16>, tensor<?x4x128xbf16>>
  %v0 = "attn.ragged"(%v, %ends, %longest) : (tensor<?x4x128xbf16>, tensor<?xi32>, i32) -> !attn.view<tensor<?x?x4x128xbf16>, tensor<?x4x128xbf16>>
  %rows = "attn.paged"(%pool, %table) : (tensor<?x64x1x576xbf16>, tensor<?x?xi32>) -> !attn.view<tensor<?x?x1x576xbf16>, tensor<?x64x1x576xbf16>>
  %k1 = "attn.columns"(%rows) {first = 512 : i64} : (!attn.view<tensor<?x?x1x576xbf16>, tensor<?x64x1x576xbf16>>) -> !attn.view<tensor<?x?x1x64xbf16>, tensor<?x64x1x576xbf16>>
  %o, %lse = "attn.mla"(%q0, %q1, %k0, %k1, %v0, %scale) {mask = #attn.causal}
    : (!attn.view<tensor<?x?x4x128xbf16>, tensor<?x4x128xbf16>>, !attn.view<tensor<?x?x4x64xbf16>, tensor<?x4x64xbf16>>,
       !attn.view<tensor<?x?x4x128xbf16>, tensor<?x4x128xbf16>>, !attn.view<tensor<?x?x1x64xbf16>, tensor<?x64x1x576xbf16>>,
       !attn.view<tensor<?x?x4x128xbf16>, tensor<?x4x128xbf16>>, f32) -> (tensor<?x4x128xbf16>, tensor<4x?xf32>)
  func.return %o, %lse : tensor<?x4x128xbf16>, tensor<4x?xf32>
}

// Two of the same operands are one.

// CSE-LABEL: func.func @same
// CSE-COUNT-1: "attn.mla"
// CSE-NOT: "attn.mla"
// CSE: return
func.func @same(%q_nope: tensor<?x?x4x128xf16>, %q_rope: tensor<?x?x4x64xf16>, %k_nope: tensor<?x?x2x128xf16>,
                %k_rope: tensor<?x?x1x64xf16>, %v: tensor<?x?x2x96xf16>, %scale: f32)
    -> (tensor<?x?x4x96xf32>, tensor<?x?x4x96xf32>) {
  %o, %lse = "attn.mla"(%q_nope, %q_rope, %k_nope, %k_rope, %v, %scale) {mask = #attn.null}
    : (tensor<?x?x4x128xf16>, tensor<?x?x4x64xf16>, tensor<?x?x2x128xf16>, tensor<?x?x1x64xf16>, tensor<?x?x2x96xf16>, f32)
      -> (tensor<?x?x4x96xf32>, tensor<?x4x?xf32>)
  %o1, %lse1 = "attn.mla"(%q_nope, %q_rope, %k_nope, %k_rope, %v, %scale) {mask = #attn.null}
    : (tensor<?x?x4x128xf16>, tensor<?x?x4x64xf16>, tensor<?x?x2x128xf16>, tensor<?x?x1x64xf16>, tensor<?x?x2x96xf16>, f32)
      -> (tensor<?x?x4x96xf32>, tensor<?x4x?xf32>)
  func.return %o, %o1 : tensor<?x?x4x96xf32>, tensor<?x?x4x96xf32>
}

// Rope of 8 bits under operands of 16, with a scale for each position.

// CHECK-LABEL: func.func @narrow_rope
// CHECK: %[[SCALED:.*]] = "attn.scaled"(%[[K:.*]], %[[SCALES:.*]])
// CHECK: "attn.mla"(%{{.*}}, %{{.*}}, %{{.*}}, %[[SCALED]], %{{.*}}, %{{.*}})
func.func @narrow_rope(%q_nope: tensor<?x?x4x128xbf16>, %q_rope: tensor<?x?x4x64xbf16>, %k_nope: tensor<?x?x4x128xbf16>,
                       %k_rope: tensor<?x?x1x64xf8E4M3FN>, %v: tensor<?x?x4x128xbf16>, %scale: f32,
                       %scales: tensor<?x?x1x1xf32>) -> tensor<?x?x4x128xbf16> {
  %k1 = "attn.scaled"(%k_rope, %scales) {block = array<i32: 1, 64>} : (tensor<?x?x1x64xf8E4M3FN>, tensor<?x?x1x1xf32>)
    -> !attn.view<tensor<?x?x1x64xf8E4M3FN>, tensor<?x?x1x64xf8E4M3FN>>
  %o, %lse = "attn.mla"(%q_nope, %q_rope, %k_nope, %k1, %v, %scale) {mask = #attn.null}
    : (tensor<?x?x4x128xbf16>, tensor<?x?x4x64xbf16>, tensor<?x?x4x128xbf16>,
       !attn.view<tensor<?x?x1x64xf8E4M3FN>, tensor<?x?x1x64xf8E4M3FN>>, tensor<?x?x4x128xbf16>, f32)
      -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>)
  func.return %o : tensor<?x?x4x128xbf16>
}
