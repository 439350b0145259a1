// RUN: attn-opt %s --split-input-file --attn-configure --convert-attn-to-ws | FileCheck %s

// Head sizes: V and O have their own, and rows of Q and K are filled up to whole products.

// Two query tiles still fit: 2 x (128 + 128) columns of tensor memory.

// CHECK: label_name = "q"} : () -> !ws.ring<!ws.tile<vector<128x192xbf16>, "shared">, 1 : i64, 2 : i64>
// CHECK: label_name = "out"} : () -> !ws.ring<!ws.tile<vector<128x128xbf16>, "shared">, 1 : i64, 2 : i64>
// CHECK: label_name = "o"} : () -> !ws.buffer<!ws.tile<vector<128x128xf32>, "tensor">, 2 : i64>
// CHECK: label_name = "load"
// CHECK-SAME: warps = array<i32: 14, 1>
// CHECK: sym_name = "narrower_values"
func.func @narrower_values(%q: tensor<?x?x1x192xbf16>, %k: tensor<?x?x1x192xbf16>, %v: tensor<?x?x1x128xbf16>, %scale: f32)
    -> (tensor<?x?x1x128xbf16>, tensor<?x1x?xf32>) {
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.null}
    : (tensor<?x?x1x192xbf16>, tensor<?x?x1x192xbf16>, tensor<?x?x1x128xbf16>, f32)
      -> (tensor<?x?x1x128xbf16>, tensor<?x1x?xf32>)
  func.return %o, %lse : tensor<?x?x1x128xbf16>, tensor<?x1x?xf32>
}

// -----

// One query tile, and a warpgroup less.

// CHECK: label_name = "q"} : () -> !ws.ring<!ws.tile<vector<128x256xbf16>, "shared">, 1 : i64, 1 : i64>
// CHECK: label_name = "kv"} : () -> !ws.ring<!ws.tile<vector<128x256xbf16>, "shared">, 2 : i64, 1 : i64>
// CHECK: label_name = "o"} : () -> !ws.buffer<!ws.tile<vector<128x256xf32>, "tensor">, 1 : i64>
// CHECK: label_name = "load"
// CHECK-SAME: warps = array<i32: 10, 1>
// CHECK: sym_name = "widest"
func.func @widest(%q: tensor<?x?x1x256xbf16>, %k: tensor<?x?x1x256xbf16>, %v: tensor<?x?x1x256xbf16>, %scale: f32)
    -> (tensor<?x?x1x256xbf16>, tensor<?x1x?xf32>) {
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.null}
    : (tensor<?x?x1x256xbf16>, tensor<?x?x1x256xbf16>, tensor<?x?x1x256xbf16>, f32)
      -> (tensor<?x?x1x256xbf16>, tensor<?x1x?xf32>)
  func.return %o, %lse : tensor<?x?x1x256xbf16>, tensor<?x1x?xf32>
}

// -----

// 72 is no multiple of 16: rows of Q and K get what a product needs, their tensors stay as they are.

// CHECK: ^bb0(%{{.*}}: memref<?x?x1x72xbf16>,
// CHECK: label_name = "q"} : () -> !ws.ring<!ws.tile<vector<128x80xbf16>, "shared">, 1 : i64, 2 : i64>
// CHECK: sym_name = "between"
func.func @between(%q: tensor<?x?x1x72xbf16>, %k: tensor<?x?x1x72xbf16>, %v: tensor<?x?x1x72xbf16>, %scale: f32)
    -> (tensor<?x?x1x72xbf16>, tensor<?x1x?xf32>) {
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.null}
    : (tensor<?x?x1x72xbf16>, tensor<?x?x1x72xbf16>, tensor<?x?x1x72xbf16>, f32)
      -> (tensor<?x?x1x72xbf16>, tensor<?x1x?xf32>)
  func.return %o, %lse : tensor<?x?x1x72xbf16>, tensor<?x1x?xf32>
}
