// RUN: attn-opt --split-input-file --attn-to-ptx %s | FileCheck %s

// What only the last stage shows: the instructions that a part of the kernel becomes. One query tile each.

// 8-bit operands: products of another kind, P by pairs, rounded and never infinite.

// CHECK: .visible .entry bytes(
// CHECK-NOT: .kind::f16
// CHECK: cvt.rn.satfinite.e4m3x2.f32
// CHECK: tcgen05.mma.cta_group::1.kind::f8f6f4
func.func @bytes(%q: tensor<?x?x1x64xf8E4M3FN>, %k: tensor<?x?x1x64xf8E4M3FN>, %v: tensor<?x?x1x64xf8E4M3FN>, %scale: f32)
    -> tensor<?x?x1x64xbf16> {
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%score: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%score) : (f32) -> ()
  }) {mask = #attn.null, attn.config = {q_tiles = 1 : i32}}
    : (tensor<?x?x1x64xf8E4M3FN>, tensor<?x?x1x64xf8E4M3FN>, tensor<?x?x1x64xf8E4M3FN>, f32)
      -> (tensor<?x?x1x64xbf16>, tensor<?x1x?xf32>)
  func.return %o : tensor<?x?x1x64xbf16>
}

// -----

// A captured array: one instruction moves the index to 0 ... extent - 1. What is read is kept by a predicate.

// CHECK: .visible .entry modified(
// CHECK: min.relu.s32 \09%[[ENTRY:r[0-9]+]], %{{r[0-9]+}}, %{{r[0-9]+}}
// CHECK: mul.wide.u32 \09%{{rd[0-9]+}}, %[[ENTRY]], 4
// CHECK: ld.global.nc.b32
// CHECK: setp.{{[a-z]+}}.s32
// CHECK: selp.f32
// CHECK: tcgen05.mma.cta_group::1.kind::f16
func.func @modified(%q: tensor<?x?x2x64xbf16>, %k: tensor<?x?x2x64xbf16>, %v: tensor<?x?x2x64xbf16>, %scale: f32,
                    %table: tensor<2x?xf32> {attn.name = "table"}) -> tensor<?x?x2x64xbf16> {
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%score: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    %distance = arith.subi %i, %j : i32
    %head = arith.index_cast %h : i32 to index
    %entry = arith.index_cast %distance : i32 to index
    %bias = tensor.extract %table[%head, %entry] : tensor<2x?xf32>
    %sum = arith.addf %score, %bias : f32
    %capped = math.tanh %sum : f32
    %seen = arith.cmpi sle, %j, %i : i32
    "attn.keep"(%seen) : (i1) -> ()
    "attn.yield"(%capped) : (f32) -> ()
  }) {mask = #attn.null, attn.config = {q_tiles = 1 : i32}}
    : (tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, f32)
      -> (tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>)
  func.return %o : tensor<?x?x2x64xbf16>
}

// -----

// Claimed tiles, and a sink that is loaded once per row.

// CHECK: .visible .entry claimed(
// CHECK-COUNT-1: ld.global.nc.b32
// CHECK-NOT: ld.global.nc.b32
// CHECK: clusterlaunchcontrol.try_cancel.async
func.func @claimed(%q: tensor<?x?x4x64xbf16>, %k: tensor<?x?x2x64xbf16>, %v: tensor<?x?x2x64xbf16>, %scale: f32,
                 %sinks: tensor<4xf32> {attn.name = "sinks"}) -> (tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>) {
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    %head = arith.index_cast %h : i32 to index
    %logit = tensor.extract %sinks[%head] : tensor<4xf32>
    "attn.sink"(%logit) : (f32) -> ()
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.null, attn.config = {q_tiles = 1 : i32, tile_order = "clc"}}
    : (tensor<?x?x4x64xbf16>, tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, f32)
      -> (tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>
}
