// RUN: %roundtrip | FileCheck %s
// RUN: attn-opt --split-input-file --cse %s | FileCheck %s --check-prefix=CSE

// CHECK-LABEL: func.func @dense
// CHECK: "attn.kv_gradients"(%{{.*}}, %{{.*}}, %{{.*}}, %{{.*}}, %{{.*}}, %{{.*}}, %{{.*}}) ({
// CHECK-NEXT: }) {mask = #attn.causal}
// CHECK: -> (tensor<?x?x4x128xbf16>, tensor<?x?x4x64xbf16>)
// CSE-LABEL: func.func @dense
// CSE-COUNT-1: "attn.kv_gradients"
// CSE-NOT: "attn.kv_gradients"
func.func @dense(%q: tensor<?x?x16x128xbf16>, %k: tensor<?x?x4x128xbf16>, %v: tensor<?x?x4x64xbf16>,
    %do: tensor<?x?x16x64xbf16>, %lse: tensor<?x16x?xf32>, %delta: tensor<?x16x?xf32>, %scale: f32)
    -> (tensor<?x?x4x128xbf16>, tensor<?x?x4x64xbf16>) {
  %dk, %other = "attn.kv_gradients"(%q, %k, %v, %do, %lse, %delta, %scale) ({}) {mask = #attn.causal}
    : (tensor<?x?x16x128xbf16>, tensor<?x?x4x128xbf16>, tensor<?x?x4x64xbf16>, tensor<?x?x16x64xbf16>,
       tensor<?x16x?xf32>, tensor<?x16x?xf32>, f32)
      -> (tensor<?x?x4x128xbf16>, tensor<?x?x4x64xbf16>)
  %another, %dv = "attn.kv_gradients"(%q, %k, %v, %do, %lse, %delta, %scale) ({}) {mask = #attn.causal}
    : (tensor<?x?x16x128xbf16>, tensor<?x?x4x128xbf16>, tensor<?x?x4x64xbf16>, tensor<?x?x16x64xbf16>,
       tensor<?x16x?xf32>, tensor<?x16x?xf32>, f32)
      -> (tensor<?x?x4x128xbf16>, tensor<?x?x4x64xbf16>)
  func.return %dk, %dv : tensor<?x?x4x128xbf16>, tensor<?x?x4x64xbf16>
}

// -----

// CHECK-LABEL: func.func @of_ragged_queries
// CHECK: "attn.q_gradients"
// CHECK: -> tensor<?x16x64xbf16>
func.func @of_ragged_queries(%rows: tensor<?x16x64xbf16>, %ends: tensor<?xi32>, %most: i32,
    %k: tensor<?x?x4x64xbf16>, %lse: tensor<16x?xf32>, %scale: f32) -> tensor<?x16x64xbf16> {
  %q = "attn.ragged"(%rows, %ends, %most) : (tensor<?x16x64xbf16>, tensor<?xi32>, i32)
    -> !attn.view<tensor<?x?x16x64xbf16>, tensor<?x16x64xbf16>>
  %dq = "attn.q_gradients"(%q, %k, %k, %q, %lse, %lse, %scale) ({}) {mask = #attn.null}
    : (!attn.view<tensor<?x?x16x64xbf16>, tensor<?x16x64xbf16>>, tensor<?x?x4x64xbf16>, tensor<?x?x4x64xbf16>,
       !attn.view<tensor<?x?x16x64xbf16>, tensor<?x16x64xbf16>>, tensor<16x?xf32>, tensor<16x?xf32>, f32)
      -> tensor<?x16x64xbf16>
  func.return %dq : tensor<?x16x64xbf16>
}

// -----

// A modifier with its derivative; what is hidden has none.

// CHECK-LABEL: func.func @softcap
// CHECK: "attn.q_gradients"
// CHECK: ^bb0(%[[SCORE:.*]]: f32, %{{.*}}: i32, %{{.*}}: i32, %{{.*}}: i32, %{{.*}}: i32):
// CHECK: %[[T:.*]] = math.tanh %[[SCORE]]
// CHECK: "attn.slope"(%{{.*}}) : (f32) -> ()
// CHECK: "attn.keep"(%{{.*}}) : (i1) -> ()
// CHECK: "attn.yield"(%[[T]]) : (f32) -> ()
func.func @softcap(%q: tensor<?x?x4x64xbf16>, %rows: tensor<?x4x?xf32>, %scale: f32)
    -> tensor<?x?x4x64xbf16> {
  %dq = "attn.q_gradients"(%q, %q, %q, %q, %rows, %rows, %scale) ({
  ^bb0(%score: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    %t = math.tanh %score : f32
    %square = arith.mulf %t, %t : f32
    %one = arith.constant 1.0 : f32
    %slope = arith.subf %one, %square : f32
    "attn.slope"(%slope) : (f32) -> ()
    %near = arith.cmpi sle, %i, %j : i32
    "attn.keep"(%near) : (i1) -> ()
    "attn.yield"(%t) : (f32) -> ()
  }) {mask = #attn.null}
    : (tensor<?x?x4x64xbf16>, tensor<?x?x4x64xbf16>, tensor<?x?x4x64xbf16>, tensor<?x?x4x64xbf16>,
       tensor<?x4x?xf32>, tensor<?x4x?xf32>, f32) -> tensor<?x?x4x64xbf16>
  func.return %dq : tensor<?x?x4x64xbf16>
}
