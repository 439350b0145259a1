// RUN: attn-opt --attn-configure %s | FileCheck %s
// RUN: attn-opt --attn-configure --attn-configure %s | FileCheck %s

// The table by head size and mask; a second run changes nothing.

// CHECK-LABEL: @d128_causal
// CHECK: attn.config = {correction_registers = 72 : i32, exp2_period = 16 : i32, exp2_start = 1 : i32, kv_stages = 5 : i32, num_pv_stages = 1 : i32, num_qk_stages = 1 : i32, ordered_softmax = 0 : i32, other_registers = 56 : i32, packed_heads = 2 : i32, q_tiles = 2 : i32, rescale_threshold = 8 : i32, softmax_registers = 192 : i32, tile_m = 128 : i32, tile_n = 128 : i32, tile_order = "last_first"}
func.func @d128_causal(%q: tensor<?x?x4x128xbf16>, %k: tensor<?x?x2x128xbf16>, %v: tensor<?x?x2x128xbf16>, %scale: f32)
    -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>) {
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.causal}
    : (tensor<?x?x4x128xbf16>, tensor<?x?x2x128xbf16>, tensor<?x?x2x128xbf16>, f32)
      -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>
}

// CHECK-LABEL: @d128_full
// CHECK: correction_registers = 72 : i32
// CHECK-SAME: other_registers = 56 : i32
// CHECK-SAME: softmax_registers = 192 : i32
func.func @d128_full(%q: tensor<?x?x4x128xf16>, %k: tensor<?x?x2x128xf16>, %v: tensor<?x?x2x128xf16>, %scale: f32)
    -> (tensor<?x?x4x128xf16>, tensor<?x4x?xf32>) {
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.null}
    : (tensor<?x?x4x128xf16>, tensor<?x?x2x128xf16>, tensor<?x?x2x128xf16>, f32)
      -> (tensor<?x?x4x128xf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x128xf16>, tensor<?x4x?xf32>
}

// CHECK-LABEL: @d64
// CHECK: correction_registers = 64 : i32
// CHECK-SAME: kv_stages = 12 : i32
// CHECK-SAME: other_registers = 48 : i32
// CHECK-SAME: softmax_registers = 200 : i32
func.func @d64(%q: tensor<?x?x4x64xbf16>, %k: tensor<?x?x2x64xbf16>, %v: tensor<?x?x2x64xbf16>, %scale: f32)
    -> (tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>) {
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.causal}
    : (tensor<?x?x4x64xbf16>, tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, f32)
      -> (tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>
}
