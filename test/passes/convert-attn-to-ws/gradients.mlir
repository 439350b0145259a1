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

// -----

// What scores pass on to a captured tensor goes to memory: sums of keys, and each part by itself.

// CHECK-LABEL: "ws.kernel"
// CHECK: scf.for
// CHECK: %[[PARTS:.*]] = "ws.map"
// CHECK: %[[PLACES:.*]] = "ws.map"
// CHECK: "ws.scatter"(%{{.*}}, %{{.*}}, %{{.*}}) {mode = "store"}
// CHECK: "ws.fold"
// CHECK: "ws.scatter"(%{{.*}}, %{{.*}}, %{{.*}}) {mode = "add"}
// CHECK: arg_names = {{.*}}"scale", "bias", "sums"]
// CHECK-SAME: arg_roles = {{.*}}"scalar", "inout", "inout"]
func.func @captured(%q: tensor<?x?x4x64xbf16>, %k: tensor<?x?x2x64xbf16>, %v: tensor<?x?x2x64xbf16>,
    %do: tensor<?x?x4x64xbf16>, %lse: tensor<?x4x?xf32>, %delta: tensor<?x4x?xf32>, %scale: f32,
    %bias: tensor<?x?xf32> {attn.name = "bias"}, %sums: tensor<?xf32> {attn.name = "sums"})
    -> tensor<?x?x4x64xbf16> {
  %dq = "attn.q_gradients"(%q, %k, %v, %do, %lse, %delta, %scale) ({
  ^bb0(%score: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.adjoint"(%score, %bias, %i, %j)
      {mode = "store", operandSegmentSizes = array<i32: 1, 1, 2>, per = "score"}
      : (f32, tensor<?x?xf32>, i32, i32) -> ()
    "attn.adjoint"(%score, %sums, %i)
      {mode = "add", operandSegmentSizes = array<i32: 1, 1, 1>, per = "row"}
      : (f32, tensor<?xf32>, i32) -> ()
    "attn.yield"(%score) : (f32) -> ()
  }) {mask = #attn.null}
    : (tensor<?x?x4x64xbf16>, tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, tensor<?x?x4x64xbf16>,
       tensor<?x4x?xf32>, tensor<?x4x?xf32>, f32) -> tensor<?x?x4x64xbf16>
  func.return %dq : tensor<?x?x4x64xbf16>
}

// -----

// Two groups of the same keys: one has S and the gradient of values, the other dP and that of keys;
// P goes from one to the other, so each product is issued once.

// CHECK-LABEL: "ws.kernel"
// CHECK: "ws.role"
// CHECK: %[[Q:.*]] = "ws.wait"
// CHECK: %[[S:.*]] = "ws.product"({{.*}}) {b_layout = "nk"}
// CHECK: "ws.settle"(%[[S]])
// CHECK: %[[FACTORS:.*]] = "ws.acquire"
// CHECK: "ws.store"(%{{.*}}, %[[FACTORS]])
// CHECK: "ws.product"({{.*}}) {b_layout = "kn"}
// CHECK: label_name = "values"
// CHECK: "ws.role"
// CHECK: "ws.product"({{.*}}) {b_layout = "nk"}
// CHECK: "ws.product"({{.*}}) {b_layout = "kn"}
// CHECK: label_name = "keys"
// CHECK-NOT: "ws.product"
func.func @large(%q: tensor<?x?x4x256xbf16>, %k: tensor<?x?x4x256xbf16>, %v: tensor<?x?x4x192xbf16>,
    %do: tensor<?x?x4x192xbf16>, %lse: tensor<?x4x?xf32>, %delta: tensor<?x4x?xf32>, %scale: f32)
    -> (tensor<?x?x4x256xbf16>, tensor<?x?x4x192xbf16>) {
  %dk, %dv = "attn.kv_gradients"(%q, %k, %v, %do, %lse, %delta, %scale) ({}) {mask = #attn.null}
    : (tensor<?x?x4x256xbf16>, tensor<?x?x4x256xbf16>, tensor<?x?x4x192xbf16>, tensor<?x?x4x192xbf16>,
       tensor<?x4x?xf32>, tensor<?x4x?xf32>, f32)
      -> (tensor<?x?x4x256xbf16>, tensor<?x?x4x192xbf16>)
  func.return %dk, %dv : tensor<?x?x4x256xbf16>, tensor<?x?x4x192xbf16>
}

// -----

// Blocks of keys take turns: each awaits the cell of a tile of queries, adds, and sets it.

// CHECK-LABEL: "ws.kernel"
// CHECK: "ws.await_turn"
// CHECK: "ws.reduce_out"
// CHECK: "ws.set_turn"
// CHECK: arg_names = {{.*}}"turns"
func.func @in_turn(%q: tensor<?x?x4x64xbf16>, %k: tensor<?x?x4x64xbf16>, %v: tensor<?x?x4x64xbf16>,
    %do: tensor<?x?x4x64xbf16>, %lse: tensor<?x4x?xf32>, %delta: tensor<?x4x?xf32>, %scale: f32,
    %sums: tensor<?x?x4x64xf32>, %turns: tensor<?x4x?xi32> {attn.name = "turns"})
    -> (tensor<?x?x4x64xbf16>, tensor<?x?x4x64xbf16>) {
  %dk, %dv = "attn.gradients"(%q, %k, %v, %do, %lse, %delta, %scale, %sums) ({
  ^bb0(%score: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.turns"(%turns) : (tensor<?x4x?xi32>) -> ()
    "attn.yield"(%score) : (f32) -> ()
  }) {mask = #attn.causal}
    : (tensor<?x?x4x64xbf16>, tensor<?x?x4x64xbf16>, tensor<?x?x4x64xbf16>, tensor<?x?x4x64xbf16>,
       tensor<?x4x?xf32>, tensor<?x4x?xf32>, f32, tensor<?x?x4x64xf32>)
      -> (tensor<?x?x4x64xbf16>, tensor<?x?x4x64xbf16>)
  func.return %dk, %dv : tensor<?x?x4x64xbf16>, tensor<?x?x4x64xbf16>
}
