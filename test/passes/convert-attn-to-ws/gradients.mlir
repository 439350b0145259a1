// RUN: attn-opt --split-input-file --attn-configure=target=sm_90a --convert-attn-to-ws --attn-check-stage=stage=ws --canonicalize --cse %s | FileCheck %s

// Keys stand still: their slots are filled once, those of queries head by head of the group, and
// gradients of a work tile are added up over the loops of both.

// CHECK-LABEL: "ws.kernel"
// CHECK: "ws.role"
// CHECK: %[[K:.*]] = "ws.wait"
// CHECK: %[[V:.*]] = "ws.wait"
// CHECK: scf.for %{{.*}} = %{{.*}} to %c4_i32
// CHECK: scf.for
// CHECK: %[[Q:.*]] = "ws.wait"
// CHECK: %[[S:.*]] = "ws.product"(%{{.*}}, %[[K]], %[[Q]], %{{.*}}) {b_layout = "nk"}
// CHECK: %[[DO:.*]] = "ws.wait"
// CHECK: %[[DP:.*]] = "ws.product"(%{{.*}}, %[[V]], %[[DO]], %{{.*}}) {b_layout = "nk"}
// CHECK: "ws.settle"(%[[S]]) {newest = 1 : i64}
// CHECK: "ws.settle"(%[[DP]]) {newest = 0 : i64}
// CHECK: "ws.product"(%{{.*}}, %{{.*}}, %[[DO]], %{{.*}}) {b_layout = "kn"}
// CHECK: "ws.product"(%{{.*}}, %{{.*}}, %[[Q]], %{{.*}}) {b_layout = "kn"}
// CHECK: arg_names = ["q", "k", "v", "do", "lse", "delta", "dk", "dv", "scale"]
// CHECK-SAME: arg_roles = ["in", "in", "in", "in", "in", "in", "out", "out", "scalar"]
func.func @dense(%q: tensor<?x?x16x64xbf16>, %k: tensor<?x?x4x64xbf16>, %v: tensor<?x?x4x64xbf16>,
    %do: tensor<?x?x16x64xbf16>, %lse: tensor<?x16x?xf32>, %delta: tensor<?x16x?xf32>, %scale: f32)
    -> (tensor<?x?x4x64xbf16>, tensor<?x?x4x64xbf16>) {
  %dk, %dv = "attn.kv_gradients"(%q, %k, %v, %do, %lse, %delta, %scale) ({}) {mask = #attn.null}
    : (tensor<?x?x16x64xbf16>, tensor<?x?x4x64xbf16>, tensor<?x?x4x64xbf16>, tensor<?x?x16x64xbf16>,
       tensor<?x16x?xf32>, tensor<?x16x?xf32>, f32)
      -> (tensor<?x?x4x64xbf16>, tensor<?x?x4x64xbf16>)
  func.return %dk, %dv : tensor<?x?x4x64xbf16>, tensor<?x?x4x64xbf16>
}
