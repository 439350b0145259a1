// RUN: %roundtrip | FileCheck %s
// RUN: attn-opt --split-input-file --cse %s | FileCheck %s --check-prefix=CSE

// CHECK-LABEL: func.func @dense
// CHECK: "attn.mla_kv_gradients"({{.*}}) {mask = #attn.causal}
// CHECK: -> (tensor<?x?x4x128xbf16>, tensor<?x?x4x64xf32>, tensor<?x?x4x128xbf16>)
// CSE-LABEL: func.func @dense
// CSE-COUNT-1: "attn.mla_kv_gradients"
// CSE-NOT: "attn.mla_kv_gradients"
func.func @dense(%q_nope: tensor<?x?x4x128xbf16>, %q_rope: tensor<?x?x4x64xbf16>,
    %k_nope: tensor<?x?x4x128xbf16>, %k_rope: tensor<?x?x1x64xbf16>, %do: tensor<?x?x4x128xbf16>,
    %r: tensor<?x4x?xf32>, %s: f32)
    -> (tensor<?x?x4x128xbf16>, tensor<?x?x4x64xf32>, tensor<?x?x4x128xbf16>) {
  %dk, %parts, %other = "attn.mla_kv_gradients"(%q_nope, %q_rope, %k_nope, %k_rope, %k_nope, %do, %r, %r, %s)
    {mask = #attn.causal}
    : (tensor<?x?x4x128xbf16>, tensor<?x?x4x64xbf16>, tensor<?x?x4x128xbf16>, tensor<?x?x1x64xbf16>,
       tensor<?x?x4x128xbf16>, tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>, tensor<?x4x?xf32>, f32)
      -> (tensor<?x?x4x128xbf16>, tensor<?x?x4x64xf32>, tensor<?x?x4x128xbf16>)
  %another, %others, %dv = "attn.mla_kv_gradients"(%q_nope, %q_rope, %k_nope, %k_rope, %k_nope, %do, %r, %r, %s)
    {mask = #attn.causal}
    : (tensor<?x?x4x128xbf16>, tensor<?x?x4x64xbf16>, tensor<?x?x4x128xbf16>, tensor<?x?x1x64xbf16>,
       tensor<?x?x4x128xbf16>, tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>, tensor<?x4x?xf32>, f32)
      -> (tensor<?x?x4x128xbf16>, tensor<?x?x4x64xf32>, tensor<?x?x4x128xbf16>)
  func.return %dk, %parts, %dv : tensor<?x?x4x128xbf16>, tensor<?x?x4x64xf32>, tensor<?x?x4x128xbf16>
}

// -----

// CHECK-LABEL: func.func @of_ragged_queries
// CHECK: "attn.mla_q_gradients"
// CHECK: -> (tensor<?x4x64xbf16>, tensor<?x4x16xbf16>)
func.func @of_ragged_queries(%nope: tensor<?x4x64xbf16>, %rope: tensor<?x4x16xbf16>, %ends: tensor<?xi32>, %most: i32,
    %k_nope: tensor<?x?x2x64xbf16>, %k_rope: tensor<?x?x1x16xbf16>, %r: tensor<4x?xf32>, %s: f32)
    -> (tensor<?x4x64xbf16>, tensor<?x4x16xbf16>) {
  %q_nope = "attn.ragged"(%nope, %ends, %most) : (tensor<?x4x64xbf16>, tensor<?xi32>, i32)
    -> !attn.view<tensor<?x?x4x64xbf16>, tensor<?x4x64xbf16>>
  %q_rope = "attn.ragged"(%rope, %ends, %most) : (tensor<?x4x16xbf16>, tensor<?xi32>, i32)
    -> !attn.view<tensor<?x?x4x16xbf16>, tensor<?x4x16xbf16>>
  %dq_nope, %dq_rope = "attn.mla_q_gradients"(%q_nope, %q_rope, %k_nope, %k_rope, %k_nope, %q_nope, %r, %r, %s)
    {mask = #attn.null}
    : (!attn.view<tensor<?x?x4x64xbf16>, tensor<?x4x64xbf16>>, !attn.view<tensor<?x?x4x16xbf16>, tensor<?x4x16xbf16>>,
       tensor<?x?x2x64xbf16>, tensor<?x?x1x16xbf16>, tensor<?x?x2x64xbf16>,
       !attn.view<tensor<?x?x4x64xbf16>, tensor<?x4x64xbf16>>, tensor<4x?xf32>, tensor<4x?xf32>, f32)
      -> (tensor<?x4x64xbf16>, tensor<?x4x16xbf16>)
  func.return %dq_nope, %dq_rope : tensor<?x4x64xbf16>, tensor<?x4x16xbf16>
}
