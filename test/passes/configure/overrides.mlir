// RUN: attn-opt --attn-configure %s | FileCheck %s --check-prefixes=CHECK,TABLE
// RUN: attn-opt --attn-configure=tile-n=64,kv-stages=4,exp2-period=32 %s | FileCheck %s --check-prefixes=CHECK,OPTION
// RUN: attn-opt --attn-configure=exp2-period=-1 %s | FileCheck %s --check-prefix=NONE

// An option beats the table, an entry of the operation beats both.

// CHECK-LABEL: @plain
// TABLE: exp2_period = 16 : i32
// TABLE-SAME: kv_stages = 5 : i32
// TABLE-SAME: tile_n = 128 : i32
// OPTION: exp2_period = 32 : i32
// OPTION-SAME: kv_stages = 4 : i32
// OPTION-SAME: tile_n = 64 : i32
// NONE: exp2_period = 0 : i32
func.func @plain(%q: tensor<?x?x4x128xbf16>, %k: tensor<?x?x2x128xbf16>, %v: tensor<?x?x2x128xbf16>, %scale: f32)
    -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>) {
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.causal}
    : (tensor<?x?x4x128xbf16>, tensor<?x?x2x128xbf16>, tensor<?x?x2x128xbf16>, f32)
      -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>
}

// CHECK-LABEL: @carried
// TABLE: exp2_period = 16 : i32
// OPTION: exp2_period = 32 : i32
// CHECK-SAME: kv_stages = 2 : i32
// TABLE-SAME: tile_n = 128 : i32
// OPTION-SAME: tile_n = 64 : i32
func.func @carried(%q: tensor<?x?x4x128xbf16>, %k: tensor<?x?x2x128xbf16>, %v: tensor<?x?x2x128xbf16>, %scale: f32)
    -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>) {
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.causal, attn.config = {kv_stages = 2 : i32}}
    : (tensor<?x?x4x128xbf16>, tensor<?x?x2x128xbf16>, tensor<?x?x2x128xbf16>, f32)
      -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>
}
