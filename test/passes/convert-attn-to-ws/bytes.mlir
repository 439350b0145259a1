// RUN: attn-opt %s --attn-configure --convert-attn-to-ws --cse | FileCheck %s

// 8-bit operands: rows of whole products of 32, P in the element type of V, lifted by 2^6 and
// taken out of the LSE again.

// CHECK: label_name = "q"} : () -> !ws.ring<!ws.tile<vector<128x96xf8E4M3FN>, "shared">
// CHECK: label_name = "kv"} : () -> !ws.ring<!ws.tile<vector<128x96xf8E4M3FN>, "shared">
// CHECK: label_name = "out"} : () -> !ws.ring<!ws.tile<vector<128x80xbf16>, "shared">
// CHECK: %[[LIFT:.*]] = arith.constant 6.000000e+00 : f32
// CHECK: arith.subf %[[LIFT]], %{{.*}} : f32
// CHECK: arith.truncf %{{.*}} : f32 to f8E4M3FN
// CHECK: "ws.store"(%{{.*}}) : (!ws.frag<vector<128x128xf8E4M3FN>>, !ws.tile<vector<128x128xf8E4M3FN>, "tensor">)
// CHECK: math.log2
// CHECK: arith.subf %{{.*}}, %{{.*}} : f32
// CHECK: label_name = "softmax"
// CHECK: b_layout = "nk"} : (!ws.tile<vector<128x128xf32>, "tensor">, !ws.tile<vector<128x96xf8E4M3FN>, "shared">
// CHECK: b_layout = "kn"} : (!ws.tile<vector<128x80xf32>, "tensor">, !ws.tile<vector<128x128xf8E4M3FN>, "tensor">, !ws.tile<vector<128x80xf8E4M3FN>, "shared">
func.func @bytes(%q: tensor<?x?x2x80xf8E4M3FN>, %k: tensor<?x?x2x80xf8E4M3FN>, %v: tensor<?x?x2x80xf8E4M3FN>, %scale: f32)
    -> (tensor<?x?x2x80xbf16>, tensor<?x2x?xf32>) {
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%score: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%score) : (f32) -> ()
  }) {mask = #attn.null}
    : (tensor<?x?x2x80xf8E4M3FN>, tensor<?x?x2x80xf8E4M3FN>, tensor<?x?x2x80xf8E4M3FN>, f32)
      -> (tensor<?x?x2x80xbf16>, tensor<?x2x?xf32>)
  func.return %o, %lse : tensor<?x?x2x80xbf16>, tensor<?x2x?xf32>
}
