// RUN: attn-opt --split-input-file --attn-configure=target=sm_90a --convert-attn-to-ws --attn-check-stage=stage=ws --canonicalize --cse %s | FileCheck %s

// dS goes to a group of its own, which multiplies it with the keys of both groups; one thread adds to memory.

// CHECK-LABEL: "ws.kernel"
// CHECK: "ws.role"
// CHECK: "ws.store"
// CHECK: "ws.product"({{.*}}) {b_layout = "kn"}
// CHECK: "ws.role"
// CHECK: %[[P:.*]] = "ws.product"({{.*}}) {a_layout = "km", b_layout = "kn"}
// CHECK: "ws.product"(%[[P]], {{.*}}) {a_layout = "km", b_layout = "kn"}
// CHECK: "ws.role"
// CHECK: "ws.reduce_out"
// CHECK: arg_names = ["q", "k", "v", "do", "lse", "delta", "dk", "dv", "scale", "capture0"]
// CHECK-SAME: arg_roles = ["in", "in", "in", "in", "in", "in", "out", "out", "scalar", "inout"]
func.func @apart(%q: tensor<?x?x4x64xbf16>, %k: tensor<?x?x2x64xbf16>, %v: tensor<?x?x2x64xbf16>,
    %do: tensor<?x?x4x64xbf16>, %lse: tensor<?x4x?xf32>, %delta: tensor<?x4x?xf32>, %scale: f32,
    %dq_accum: tensor<?x?x4x64xf32>) -> (tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>) {
  %dk, %dv = "attn.gradients"(%q, %k, %v, %do, %lse, %delta, %scale, %dq_accum) ({}) {mask = #attn.null}
    : (tensor<?x?x4x64xbf16>, tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, tensor<?x?x4x64xbf16>,
       tensor<?x4x?xf32>, tensor<?x4x?xf32>, f32, tensor<?x?x4x64xf32>)
      -> (tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>)
  func.return %dk, %dv : tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>
}

// -----

// Of wider heads the groups multiply themselves, before the product that adds to dK.

// CHECK-LABEL: "ws.kernel"
// CHECK: "ws.role"
// CHECK: "ws.columns_at"
// CHECK: %[[P:.*]] = "ws.product"({{.*}}) {a_layout = "km", b_layout = "kn"}
// CHECK: %[[Q:.*]] = "ws.product"(%[[P]], {{.*}}) {a_layout = "km", b_layout = "kn"}
// CHECK: %[[DK:.*]] = "ws.product"({{.*}}) {b_layout = "kn"}
// CHECK: "ws.settle"(%[[Q]]) {newest = 1 : i64}
// CHECK: "ws.settle"(%[[DK]]) {newest = 0 : i64}
func.func @together(%q: tensor<?x?x2x128xbf16>, %k: tensor<?x?x2x128xbf16>, %v: tensor<?x?x2x128xbf16>,
    %do: tensor<?x?x2x128xbf16>, %lse: tensor<?x2x?xf32>, %delta: tensor<?x2x?xf32>, %scale: f32,
    %dq_accum: tensor<?x?x2x128xf32>) -> (tensor<?x?x2x128xbf16>, tensor<?x?x2x128xbf16>) {
  %dk, %dv = "attn.gradients"(%q, %k, %v, %do, %lse, %delta, %scale, %dq_accum) ({}) {mask = #attn.null}
    : (tensor<?x?x2x128xbf16>, tensor<?x?x2x128xbf16>, tensor<?x?x2x128xbf16>, tensor<?x?x2x128xbf16>,
       tensor<?x2x?xf32>, tensor<?x2x?xf32>, f32, tensor<?x?x2x128xf32>)
      -> (tensor<?x?x2x128xbf16>, tensor<?x?x2x128xbf16>)
  func.return %dk, %dv : tensor<?x?x2x128xbf16>, tensor<?x?x2x128xbf16>
}
