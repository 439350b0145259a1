// RUN: attn-opt --split-input-file --attn-configure=target=sm_100a --convert-attn-to-ws --attn-check-stage=stage=ws --canonicalize --cse %s | FileCheck %s

// Keys stand still, with room for weights beside scores, of which each group loads its half. One
// thread issues scores, another one what is added to the gradients.

// CHECK-LABEL: "ws.kernel"
// CHECK: %[[S:.*]] = "ws.alloc_ring"() {label_name = "s"} : () -> !ws.ring<!ws.tile<vector<128x128xf32>, "tensor">
// CHECK: %[[P:.*]] = "ws.alloc_ring"() {label_name = "p", producers = ["warps", "warps"]} : () -> !ws.ring<!ws.tile<vector<128x128xbf16>, "tensor">
// CHECK-NOT: loaded
// CHECK: scf.for %{{.*}} = %{{.*}} to %c4_i32
// CHECK: %[[SLOT:.*]] = "ws.wait"(%[[S]]
// CHECK: "ws.columns_at"(%[[SLOT]]
// CHECK: %[[PLACE:.*]] = "ws.acquire"(%[[P]]
// CHECK: "ws.columns_at"(%[[PLACE]]
// CHECK: label_name = "compute"
// CHECK: "ws.mma"{{.*}}b_layout = "nk"
// CHECK: label_name = "scores"
// CHECK: "ws.mma"{{.*}}b_layout = "kn"
// CHECK: label_name = "sums"
// CHECK: arg_names = ["q", "k", "v", "do", "lse", "delta", "dk", "dv", "scale"]
func.func @apart(%q: tensor<?x?x16x64xbf16>, %k: tensor<?x?x4x64xbf16>, %v: tensor<?x?x4x64xbf16>,
    %do: tensor<?x?x16x64xbf16>, %lse: tensor<?x16x?xf32>, %delta: tensor<?x16x?xf32>, %scale: f32)
    -> (tensor<?x?x4x64xbf16>, tensor<?x?x4x64xbf16>) {
  %dk, %dv = "attn.kv_gradients"(%q, %k, %v, %do, %lse, %delta, %scale) ({}) {mask = #attn.null}
    : (tensor<?x?x16x64xbf16>, tensor<?x?x4x64xbf16>, tensor<?x?x4x64xbf16>, tensor<?x?x16x64xbf16>,
       tensor<?x16x?xf32>, tensor<?x16x?xf32>, f32)
      -> (tensor<?x?x4x64xbf16>, tensor<?x?x4x64xbf16>)
  func.return %dk, %dv : tensor<?x?x4x64xbf16>, tensor<?x?x4x64xbf16>
}

// -----

// Without room P lies in the place of S, and is stored when both groups have loaded S. Scores wait
// for the product that reads P as well.

// CHECK-LABEL: "ws.kernel"
// CHECK: %[[S:.*]] = "ws.alloc_ring"() {label_name = "s"}
// CHECK: %[[LOADED:.*]] = "ws.alloc_ring"() {label_name = "s loaded", producers = ["warps", "warps"]}
// CHECK: %[[P:.*]] = "ws.alloc_inside"(%[[S]]) {known_empty, label_name = "p"
// CHECK: "ws.wait"(%[[S]]
// CHECK: "ws.acquire"(%[[LOADED]]
// CHECK: "ws.wait"(%[[LOADED]]
// CHECK: "ws.acquire"(%[[P]]
// CHECK: label_name = "compute"
// CHECK: label_name = "scores"
// CHECK: "ws.wait"(%[[P]]
// CHECK: "ws.wait"(%[[S]]
// CHECK: label_name = "sums"
// CHECK: arg_names = ["q", "k", "v", "do", "lse", "delta", "dk", "dv", "scale"]
func.func @dense(%q: tensor<?x?x4x128xbf16>, %k: tensor<?x?x4x128xbf16>, %v: tensor<?x?x4x128xbf16>,
    %do: tensor<?x?x4x128xbf16>, %lse: tensor<?x4x?xf32>, %delta: tensor<?x4x?xf32>, %scale: f32)
    -> (tensor<?x?x4x128xbf16>, tensor<?x?x4x128xbf16>) {
  %dk, %dv = "attn.kv_gradients"(%q, %k, %v, %do, %lse, %delta, %scale) ({}) {mask = #attn.causal}
    : (tensor<?x?x4x128xbf16>, tensor<?x?x4x128xbf16>, tensor<?x?x4x128xbf16>, tensor<?x?x4x128xbf16>,
       tensor<?x4x?xf32>, tensor<?x4x?xf32>, f32)
      -> (tensor<?x?x4x128xbf16>, tensor<?x?x4x128xbf16>)
  func.return %dk, %dv : tensor<?x?x4x128xbf16>, tensor<?x?x4x128xbf16>
}

// -----

// Queries stand still: nothing reads P.

// CHECK-LABEL: "ws.kernel"
// CHECK-NOT: label_name = "p"
// CHECK: label_name = "ds"
// CHECK-NOT: label_name = "rows"
// CHECK: arg_names = ["q", "k", "v", "do", "lse", "delta", "dq", "scale"]
func.func @queries(%q: tensor<?x?x4x128xbf16>, %k: tensor<?x?x4x128xbf16>, %v: tensor<?x?x4x128xbf16>,
    %do: tensor<?x?x4x128xbf16>, %lse: tensor<?x4x?xf32>, %delta: tensor<?x4x?xf32>, %scale: f32)
    -> tensor<?x?x4x128xbf16> {
  %dq = "attn.q_gradients"(%q, %k, %v, %do, %lse, %delta, %scale) ({}) {mask = #attn.causal}
    : (tensor<?x?x4x128xbf16>, tensor<?x?x4x128xbf16>, tensor<?x?x4x128xbf16>, tensor<?x?x4x128xbf16>,
       tensor<?x4x?xf32>, tensor<?x4x?xf32>, f32) -> tensor<?x?x4x128xbf16>
  func.return %dq : tensor<?x?x4x128xbf16>
}
