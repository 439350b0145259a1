// RUN: attn-opt --split-input-file --attn-configure %s | FileCheck %s

// An operation that asks for the kernel of few queries: heads of a group share a tile, the ring takes what is left.

// CHECK-LABEL: func.func @packed
// CHECK: kv_stages = 12 : i32
// CHECK-SAME: packed_heads = 4 : i32
// CHECK-SAME: tile_m = 16 : i32
// CHECK-SAME: tile_order = "persistent"
func.func @packed(%q: tensor<?x?x8x64xbf16>, %k: tensor<?x?x2x64xbf16>, %v: tensor<?x?x2x64xbf16>, %scale: f32)
    -> (tensor<?x?x8x64xbf16>, tensor<?x8x?xf32>) {
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%score: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%score) : (f32) -> ()
  }) {mask = #attn.null, attn.schedule = "mha-streaming"}
    : (tensor<?x?x8x64xbf16>, tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, f32)
      -> (tensor<?x?x8x64xbf16>, tensor<?x8x?xf32>)
  func.return %o, %lse : tensor<?x?x8x64xbf16>, tensor<?x8x?xf32>
}

// -----

// What the operation carries wins; a group of 3 shares a tile, whose last row is nobody's.

// CHECK-LABEL: func.func @given
// CHECK: kv_stages = 2 : i32
// CHECK-SAME: packed_heads = 3 : i32
// CHECK-SAME: tile_order = "single"
func.func @given(%q: tensor<?x?x3x64xbf16>, %k: tensor<?x?x1x64xbf16>, %v: tensor<?x?x1x64xbf16>, %scale: f32)
    -> (tensor<?x?x3x64xbf16>, tensor<?x3x?xf32>) {
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%score: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%score) : (f32) -> ()
  }) {mask = #attn.null, attn.schedule = "mha-streaming", attn.config = {kv_stages = 2 : i32, tile_order = "single"}}
    : (tensor<?x?x3x64xbf16>, tensor<?x?x1x64xbf16>, tensor<?x?x1x64xbf16>, f32)
      -> (tensor<?x?x3x64xbf16>, tensor<?x3x?xf32>)
  func.return %o, %lse : tensor<?x?x3x64xbf16>, tensor<?x3x?xf32>
}

// -----

// Two query tiles, of 12 heads each: the group of 24 is read once.

// CHECK-LABEL: func.func @two
// CHECK: head_tiles = 2 : i32
// CHECK-SAME: packed_heads = 12 : i32
// CHECK-SAME: q_tiles = 2 : i32
func.func @two(%q: tensor<?x?x24x64xbf16>, %k: tensor<?x?x1x64xbf16>, %v: tensor<?x?x1x64xbf16>, %scale: f32)
    -> (tensor<?x?x24x64xbf16>, tensor<?x24x?xf32>) {
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%score: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%score) : (f32) -> ()
  }) {mask = #attn.null, attn.schedule = "mha-streaming", attn.config = {q_tiles = 2 : i32, head_tiles = 2 : i32}}
    : (tensor<?x?x24x64xbf16>, tensor<?x?x1x64xbf16>, tensor<?x?x1x64xbf16>, f32)
      -> (tensor<?x?x24x64xbf16>, tensor<?x24x?xf32>)
  func.return %o, %lse : tensor<?x?x24x64xbf16>, tensor<?x24x?xf32>
}
