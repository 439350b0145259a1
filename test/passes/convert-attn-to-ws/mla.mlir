// RUN: attn-opt %s --split-input-file --attn-configure --convert-attn-to-ws --ws-verify-rings | FileCheck %s

// A slot of Q and one of K are filled by two copies each, nope in the first 128 columns and rope, of
// head 0, in the last 64; one product of depth 192 reads both. Values take the front of a slot of K.
// (Of two query tiles there is room for two such slots: without that wish rope has a ring of its own.)

// CHECK-LABEL: "ws.kernel"
// CHECK-SAME: ({
// CHECK-NEXT: ^bb0(%[[QN:[^:]+]]: memref<?x?x4x128xbf16>, %[[QR:[^:]+]]: memref<?x?x4x64xbf16>, %[[KN:[^:]+]]: memref<?x?x4x128xbf16>, %[[KR:[^:]+]]: memref<?x?x1x64xbf16>, %[[V:[^:]+]]: memref<?x?x4x128xbf16>, %{{.*}}: memref<?x?x4x128xbf16>, %{{.*}}: memref<?x4x?xf32>, %{{.*}}: f32):
// CHECK: label_name = "softmax"
// CHECK: label_name = "correction"
// CHECK: "ws.mma"(%{{.*}}, %{{.*}}, %{{.*}}, %{{.*}}) {b_layout = "nk"} : (!ws.tile<vector<128x128xf32>, "tensor">, !ws.tile<vector<128x192xbf16>, "shared">, !ws.tile<vector<128x192xbf16>, "shared">, i1)
// CHECK: label_name = "mma"
// CHECK: label_name = "epilogue"
// CHECK: %[[SLOT:.*]] = "ws.acquire"
// CHECK: %[[NOPE:.*]] = "ws.columns"(%[[SLOT]]) {first = 0 : i64} : (!ws.tile<vector<128x192xbf16>, "shared">) -> !ws.tile<vector<128x128xbf16>, "shared">
// CHECK: %[[ROPE:.*]] = "ws.columns"(%[[SLOT]]) {first = 128 : i64} : (!ws.tile<vector<128x192xbf16>, "shared">) -> !ws.tile<vector<128x64xbf16>, "shared">
// CHECK: "ws.copy_in"(%[[KN]], %[[NOPE]], %[[BATCH:.*]], %[[ROW:.*]], %{{.*}}, %{{.*}})
// CHECK: %[[HEAD:.*]] = arith.constant 0 : i32
// CHECK: "ws.copy_in"(%[[KR]], %[[ROPE]], %[[BATCH]], %[[ROW]], %[[HEAD]], %{{.*}})
// CHECK: "ws.commit"(%[[SLOT]]) {by = "copy_engine"}
// CHECK: "ws.copy_in"(%[[QN]],
// CHECK: "ws.copy_in"(%[[QR]],
// CHECK: "ws.commit"
// CHECK: "ws.copy_in"(%[[QN]],
// CHECK: "ws.copy_in"(%[[QR]],
// CHECK: "ws.copy_in"(%[[V]],
// CHECK: label_name = "load"
// CHECK: arg_dims = {{\[\[}}"batch", "sq", "", ""], ["batch", "sq", "", ""], ["batch", "sk", "", ""], ["batch", "sk", "", ""], ["batch", "sk", "", ""],
func.func @mla(%q_nope: tensor<?x?x4x128xbf16>, %q_rope: tensor<?x?x4x64xbf16>, %k_nope: tensor<?x?x4x128xbf16>,
               %k_rope: tensor<?x?x1x64xbf16>, %v: tensor<?x?x4x128xbf16>, %scale: f32)
    -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>) {
  %o, %lse = "attn.mla"(%q_nope, %q_rope, %k_nope, %k_rope, %v, %scale) {mask = #attn.causal, attn.config = {kv_stages = 2 : i32}}
    : (tensor<?x?x4x128xbf16>, tensor<?x?x4x64xbf16>, tensor<?x?x4x128xbf16>, tensor<?x?x1x64xbf16>, tensor<?x?x4x128xbf16>, f32)
      -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>
}

// -----

// Rope of a paged latent cache: two pages to a tile, found before the copies wait for their slot, and
// columns from 512 on; a sequence has the keys that k_nope and the cache both have.

// CHECK-LABEL: "ws.kernel"
// CHECK: ^bb0(%{{[^:]+}}: memref<?x4x128xbf16>, %{{[^:]+}}: memref<?x4x64xbf16>, %[[KN:[^:]+]]: memref<?x4x128xbf16>, %[[POOL:[^:]+]]: memref<?x64x1x576xbf16>,
// CHECK: label_name = "epilogue"
// CHECK: %[[TABLED:.*]] = "ws.extent"(%[[TABLE:.*]]) {dim = 1 : i64} : (memref<?x?xi32>) -> i32
// CHECK: arith.minsi
// CHECK-COUNT-2: "ws.element"(%[[TABLE]],
// CHECK: "ws.acquire"
// CHECK: "ws.copy_in"(%{{.*}}, %{{.*}}, %{{.*}}, %{{.*}}, %{{.*}}) {dims = array<i32: 0, 2>
// CHECK: %[[LOW:.*]] = "ws.rows"(%{{.*}}, %{{.*}}) : (!ws.tile<vector<128x64xbf16>, "shared">, i32) -> !ws.tile<vector<64x64xbf16>, "shared">
// CHECK: %[[COLUMN:.*]] = arith.constant 512 : i32
// CHECK: "ws.copy_in"(%[[POOL]], %[[LOW]], %{{.*}}, %{{.*}}, %{{.*}}, %[[COLUMN]])
// CHECK: "ws.copy_in"(%[[POOL]],
// CHECK: "ws.commit"
// CHECK: label_name = "load"
// CHECK: ["total_k", "", ""], ["pages", "", "", ""], ["total_k", "", ""],
func.func @paged(%q_nope: tensor<?x4x128xbf16>, %q_rope: tensor<?x4x64xbf16>, %k_nope: tensor<?x4x128xbf16>,
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

// -----

// Rope in a ring of its own: three slots for nope and values in turn, two for rope; a second product
// adds what the queries' last 64 columns and rope give.

// CHECK-LABEL: "ws.kernel"
// CHECK: %[[KV:.*]] = "ws.alloc_ring"() {label_name = "kv"} : () -> !ws.ring<!ws.tile<vector<128x128xbf16>, "shared">, 3 : i64, 1 : i64>
// CHECK: %[[RING:.*]] = "ws.alloc_ring"() {label_name = "rope"} : () -> !ws.ring<!ws.tile<vector<128x64xbf16>, "shared">, 2 : i64, 1 : i64>
// CHECK: label_name = "correction"
// CHECK: %[[OWN:.*]] = "ws.wait"(%[[KV]],
// CHECK: %[[SHARED:.*]] = "ws.wait"(%[[RING]],
// CHECK: %[[S:.*]] = "ws.acquire"
// CHECK: %[[QN:.*]] = "ws.columns"(%{{.*}}) {first = 0 : i64}
// CHECK: "ws.mma"(%[[S]], %[[QN]], %[[OWN]], %{{.*}})
// CHECK: %[[QR:.*]] = "ws.columns"(%{{.*}}) {first = 128 : i64}
// CHECK: %[[ADD:.*]] = arith.constant true
// CHECK: "ws.mma"(%[[S]], %[[QR]], %[[SHARED]], %[[ADD]])
// CHECK: "ws.commit"(%[[S]]) {by = "tensor_core"}
// CHECK: "ws.release"(%[[OWN]]) {by = "tensor_core"}
// CHECK: "ws.release"(%[[SHARED]]) {by = "tensor_core"}
// CHECK: label_name = "mma"
func.func @apart(%q_nope: tensor<?x?x4x128xbf16>, %q_rope: tensor<?x?x4x64xbf16>, %k_nope: tensor<?x?x4x128xbf16>,
                 %k_rope: tensor<?x?x1x64xbf16>, %v: tensor<?x?x4x128xbf16>, %scale: f32)
    -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>) {
  %o, %lse = "attn.mla"(%q_nope, %q_rope, %k_nope, %k_rope, %v, %scale) {mask = #attn.null}
    : (tensor<?x?x4x128xbf16>, tensor<?x?x4x64xbf16>, tensor<?x?x4x128xbf16>, tensor<?x?x1x64xbf16>, tensor<?x?x4x128xbf16>, f32)
      -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>
}
