// RUN: attn-opt %s --attn-to-ws --canonicalize --cse | FileCheck %s

// A sink is read behind the loops over key tiles, once per row and with the head of the row. It is not scaled, but its
// distance from the scaled maximum is taken in one rounding; it joins the sum whose inverse goes to correction, and not
// that of the LSE.

// CHECK: %[[LOG2E:.*]] = arith.constant 1.44269502 : f32
// CHECK: ^bb0({{.*}}: memref<?x4x?xf32>, %{{.*}}: f32, %[[SINKS:[^ ]+]]: memref<4xf32>):
// CHECK-NOT: "ws.element"
// CHECK: scf.for
// CHECK-NOT: "ws.element"
// CHECK: %[[STATE:.*]]:2 = scf.for
// CHECK-NOT: "ws.element"
// CHECK: scf.yield
// CHECK: "ws.acquire"
// CHECK: "ws.map"(%[[STATE]]#0, %[[STATE]]#1)
// CHECK: ^bb0(%{{.*}}: f32, %[[SUM:[^ ]+]]: f32, %[[ROW:[^ ]+]]: i32):
// CHECK: %[[LOGIT:.*]] = "ws.element"(%[[SINKS]], %{{.*}})
// CHECK: %[[DISTANCE:.*]] = math.fma %{{.*}}, %{{.*}}, %[[LOGIT]] : f32
// CHECK: math.fma %[[DISTANCE]], %[[LOG2E]], %{{.*}} : f32
// CHECK: math.exp2
// CHECK: arith.cmpf oeq, %[[SUM]]
// CHECK: arith.addf %[[SUM]]
// CHECK: arith.divf
// CHECK: "ws.map"(%[[STATE]]#0, %[[STATE]]#1)
// CHECK: math.log2
// CHECK-NOT: "ws.element"
// CHECK: "ws.store_global"(%{{.*}}, %{{.*}},
// CHECK: label_name = "softmax"
// CHECK: arg_names = ["q", "k", "v", "o", "lse", "scale", "sinks"]
func.func @sinks(%q: tensor<?x?x4x64xbf16>, %k: tensor<?x?x2x64xbf16>, %v: tensor<?x?x2x64xbf16>, %scale: f32,
                 %sinks: tensor<4xf32> {attn.name = "sinks"}) -> (tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>) {
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    %head = arith.index_cast %h : i32 to index
    %logit = tensor.extract %sinks[%head] : tensor<4xf32>
    "attn.sink"(%logit) : (f32) -> ()
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.null}
    : (tensor<?x?x4x64xbf16>, tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, f32)
      -> (tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>
}
