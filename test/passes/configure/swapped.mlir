// RUN: attn-opt --split-input-file --attn-configure %s | FileCheck %s

// One token of 8 heads fills 8 rows; K and V have three slots each.

// CHECK-LABEL: func.func @eight
// CHECK: kv_stages = 3 : i32
// CHECK-SAME: packed_heads = 8 : i32
// CHECK-SAME: tile_m = 8 : i32, tile_n = 128 : i32, tile_order = "persistent"
func.func @eight(%q: tensor<?x?x8x128xbf16>, %k: tensor<?x?x1x128xbf16>, %v: tensor<?x?x1x128xbf16>, %scale: f32) -> (tensor<?x?x8x128xbf16>, tensor<?x8x?xf32>) {
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%score: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%score) : (f32) -> ()
  }) {mask = #attn.null, attn.schedule = "mha-swapped"}
    : (tensor<?x?x8x128xbf16>, tensor<?x?x1x128xbf16>, tensor<?x?x1x128xbf16>, f32) -> (tensor<?x?x8x128xbf16>, tensor<?x8x?xf32>)
  func.return %o, %lse : tensor<?x?x8x128xbf16>, tensor<?x8x?xf32>
}

// -----

// 12 heads of a group need 16 rows, of which 4 are nobody's.

// CHECK-LABEL: func.func @twelve
// CHECK: packed_heads = 12 : i32
// CHECK-SAME: tile_m = 16 : i32
func.func @twelve(%q: tensor<?x?x12x64xbf16>, %k: tensor<?x?x1x64xbf16>, %v: tensor<?x?x1x64xbf16>, %scale: f32) -> (tensor<?x?x12x64xbf16>, tensor<?x12x?xf32>) {
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%score: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%score) : (f32) -> ()
  }) {mask = #attn.null, attn.schedule = "mha-swapped"}
    : (tensor<?x?x12x64xbf16>, tensor<?x?x1x64xbf16>, tensor<?x?x1x64xbf16>, f32) -> (tensor<?x?x12x64xbf16>, tensor<?x12x?xf32>)
  func.return %o, %lse : tensor<?x?x12x64xbf16>, tensor<?x12x?xf32>
}
