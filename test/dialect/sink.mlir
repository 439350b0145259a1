// RUN: %roundtrip | FileCheck %s

// One logit per query head joins the sum that probabilities are divided by.

// CHECK-LABEL: func.func @f
// CHECK: %[[LOGIT:.*]] = tensor.extract
// CHECK-NEXT: "attn.sink"(%[[LOGIT]]) : (f32) -> ()
// CHECK-NEXT: "attn.yield"
func.func @f(%q: tensor<?x?x4x64xbf16>, %k: tensor<?x?x2x64xbf16>, %v: tensor<?x?x2x64xbf16>, %scale: f32,
             %sinks: tensor<?xf32>) -> (tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>) {
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    %head = arith.index_cast %h : i32 to index
    %logit = tensor.extract %sinks[%head] : tensor<?xf32>
    "attn.sink"(%logit) : (f32) -> ()
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.null}
    : (tensor<?x?x4x64xbf16>, tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, f32)
      -> (tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>
}
