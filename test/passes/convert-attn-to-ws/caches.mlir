// RUN: attn-opt %s --split-input-file --attn-configure --convert-attn-to-ws --ws-verify-rings | FileCheck %s

// Pages of half a key tile: the table is read two entries per tile, before its copies wait for slots,
// and what is no page becomes one outside the pool. A tile takes two copies; those of V end with the
// sequence, those of K do not.

// CHECK-LABEL: "ws.kernel"
// CHECK-SAME: ({
// CHECK-NEXT: ^bb0(%{{[^:]+}}: memref<?x?x4x64xbf16>, %[[K:[^:]+]]: memref<?x64x2x64xbf16>, %[[V:[^:]+]]: memref<?x64x2x64xbf16>, %{{[^:]+}}: memref<?x?x4x64xbf16>, %{{[^:]+}}: memref<?x4x?xf32>, %{{.*}}: f32, %[[TABLE:[^:]+]]: memref<?x?xi32>, %[[USED:[^:]+]]: memref<?xi32>):

// The load role: pages of the first two tiles, then of the tile after the one that is copied.
// CHECK: label_name = "epilogue"
// CHECK: %[[ENTRY:.*]] = "ws.element"(%[[TABLE]],
// CHECK: "ws.element"(%[[TABLE]],
// CHECK: "ws.acquire"
// CHECK: arith.maxsi %[[ENTRY]],
// CHECK: %[[FIRST:.*]] = arith.select
// CHECK: %[[LOW:.*]] = "ws.rows"(%{{.*}}, %{{.*}}) : (!ws.tile<vector<128x64xbf16>, "shared">, i32) -> !ws.tile<vector<64x64xbf16>, "shared">
// CHECK: "ws.copy_in"(%[[K]], %[[LOW]], %[[FIRST]], %{{.*}}, %{{.*}}, %{{.*}}) {dims = array<i32: 1, 3>,
// CHECK: "ws.rows"
// CHECK: "ws.copy_in"(%[[K]],
// CHECK: %[[ENDING:.*]] = "ws.limit"(%[[V]], %{{.*}}) {dim = 1 : i64}
// CHECK: "ws.copy_in"(%[[ENDING]],
// CHECK-COUNT-2: "ws.element"(%[[TABLE]],
// CHECK: scf.for %{{.*}} iter_args(%[[NEXT:[^ ]+]] = %{{[^,]+}}, %{{[^ ]+}} = %{{[^)]+}})
// CHECK: "ws.acquire"
// CHECK: arith.maxsi %[[NEXT]],
// CHECK: %[[PAGE:.*]] = arith.select
// CHECK: "ws.copy_in"(%[[K]], %{{.*}}, %[[PAGE]],
// CHECK-COUNT-2: "ws.element"(%[[TABLE]],
// CHECK: scf.yield
// CHECK: label_name = "load"
// CHECK: arg_dims = {{\[\[}}"batch", "sq", "", ""], ["pages", "", "", ""], ["pages", "", "", ""],
func.func @paged(%q: tensor<?x?x4x64xbf16>, %k: tensor<?x64x2x64xbf16>, %v: tensor<?x64x2x64xbf16>, %scale: f32,
                 %table: tensor<?x?xi32>, %used: tensor<?xi32>) -> (tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>) {
  %k0 = "attn.paged"(%k, %table) : (tensor<?x64x2x64xbf16>, tensor<?x?xi32>) -> !attn.view<tensor<?x?x2x64xbf16>, tensor<?x64x2x64xbf16>>
  %keys = "attn.limited"(%k0, %used) {counted = "all"} : (!attn.view<tensor<?x?x2x64xbf16>, tensor<?x64x2x64xbf16>>, tensor<?xi32>) -> !attn.view<tensor<?x?x2x64xbf16>, tensor<?x64x2x64xbf16>>
  %v0 = "attn.paged"(%v, %table) : (tensor<?x64x2x64xbf16>, tensor<?x?xi32>) -> !attn.view<tensor<?x?x2x64xbf16>, tensor<?x64x2x64xbf16>>
  %values = "attn.limited"(%v0, %used) {counted = "all"} : (!attn.view<tensor<?x?x2x64xbf16>, tensor<?x64x2x64xbf16>>, tensor<?xi32>) -> !attn.view<tensor<?x?x2x64xbf16>, tensor<?x64x2x64xbf16>>
  %o, %lse = "attn.mha"(%q, %keys, %values, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.null}
    : (tensor<?x?x4x64xbf16>, !attn.view<tensor<?x?x2x64xbf16>, tensor<?x64x2x64xbf16>>, !attn.view<tensor<?x?x2x64xbf16>, tensor<?x64x2x64xbf16>>, f32) -> (tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>
}

// -----

// Pages larger than a tile, in compressed rows: one copy per tile, at a row of its page.

// CHECK-LABEL: "ws.kernel"
// CHECK: label_name = "epilogue"
// CHECK-NOT: "ws.rows"
// CHECK: "ws.limit"(%{{.*}}, %{{.*}}) {dim = 1 : i64} : (memref<?x256x2x64xbf16>, i32)
// CHECK-NOT: "ws.rows"
// CHECK: label_name = "load"
func.func @compressed(%q: tensor<?x?x4x64xbf16>, %k: tensor<?x256x2x64xbf16>, %v: tensor<?x256x2x64xbf16>, %scale: f32,
                      %ends: tensor<?xi32>, %indices: tensor<?xi32>, %last: tensor<?xi32>) -> (tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>) {
  %keys = "attn.paged_csr"(%k, %ends, %indices, %last) : (tensor<?x256x2x64xbf16>, tensor<?xi32>, tensor<?xi32>, tensor<?xi32>) -> !attn.view<tensor<?x?x2x64xbf16>, tensor<?x256x2x64xbf16>>
  %values = "attn.paged_csr"(%v, %ends, %indices, %last) : (tensor<?x256x2x64xbf16>, tensor<?xi32>, tensor<?xi32>, tensor<?xi32>) -> !attn.view<tensor<?x?x2x64xbf16>, tensor<?x256x2x64xbf16>>
  %o, %lse = "attn.mha"(%q, %keys, %values, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.causal}
    : (tensor<?x?x4x64xbf16>, !attn.view<tensor<?x?x2x64xbf16>, tensor<?x256x2x64xbf16>>, !attn.view<tensor<?x?x2x64xbf16>, tensor<?x256x2x64xbf16>>, f32) -> (tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>
}

// -----

// Selected rows without their padding: the row is told by an index, and begins where the padding ends.

// CHECK-LABEL: "ws.kernel"
// CHECK: label_name = "epilogue"
// CHECK: %[[ROW:.*]] = arith.minsi
// CHECK: "ws.copy_in"(%{{.*}}, %{{.*}}, %[[ROW]], %{{.*}}, %{{.*}}, %{{.*}}) {dims = array<i32: 1, 3>,
// CHECK: label_name = "load"
// CHECK: arg_dims = {{\[\[}}"batch", "sq", "", ""], ["rows", "sk", "", ""], ["rows", "sk", "", ""],
func.func @rows(%q: tensor<?x?x4x64xbf16>, %k: tensor<?x?x2x64xbf16>, %v: tensor<?x?x2x64xbf16>, %scale: f32,
                %rows: tensor<?xi32>, %padding: tensor<?xi32>) -> (tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>) {
  %k0 = "attn.selected"(%k, %rows) : (tensor<?x?x2x64xbf16>, tensor<?xi32>) -> !attn.view<tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>>
  %keys = "attn.trimmed"(%k0, %padding) : (!attn.view<tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>>, tensor<?xi32>) -> !attn.view<tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>>
  %v0 = "attn.selected"(%v, %rows) : (tensor<?x?x2x64xbf16>, tensor<?xi32>) -> !attn.view<tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>>
  %values = "attn.trimmed"(%v0, %padding) : (!attn.view<tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>>, tensor<?xi32>) -> !attn.view<tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>>
  %o, %lse = "attn.mha"(%q, %keys, %values, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.causal}
    : (tensor<?x?x4x64xbf16>, !attn.view<tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>>, !attn.view<tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>>, f32) -> (tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>
}
