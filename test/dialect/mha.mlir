// RUN: %roundtrip | FileCheck %s
// RUN: attn-opt --split-input-file --mlir-print-op-generic %s | FileCheck %s --check-prefix=GENERIC
// RUN: attn-opt --split-input-file --cse --canonicalize %s | FileCheck %s --check-prefix=CSE

// The example of the operation's documentation.

// CHECK-LABEL: func.func @mha
// CHECK-SAME: %[[Q:[^:]+]]: tensor<?x?x16x128xbf16>, %[[K:[^:]+]]: tensor<?x?x4x128xbf16>, %[[V:[^:]+]]: tensor<?x?x4x128xbf16>, %[[SCALE:[^:]+]]: f32
// CHECK: %[[R:.*]]:2 = "attn.mha"(%[[Q]], %[[K]], %[[V]], %[[SCALE]]) ({
// CHECK-NEXT: ^bb0(%[[S:[^:]+]]: f32, %{{.*}}: i32, %{{.*}}: i32, %{{.*}}: i32, %{{.*}}: i32):
// CHECK-NEXT: "attn.yield"(%[[S]]) : (f32) -> ()
// CHECK: {mask = #attn.causal}
// CHECK: return %[[R]]#0, %[[R]]#1

// GENERIC-LABEL: "func.func"() <{
// GENERIC-SAME: sym_name = "mha"
// GENERIC: "attn.mha"
func.func @mha(%q: tensor<?x?x16x128xbf16>, %k: tensor<?x?x4x128xbf16>,
               %v: tensor<?x?x4x128xbf16>, %scale: f32)
    -> (tensor<?x?x16x128xbf16>, tensor<?x16x?xf32>) {
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%score: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%score) : (f32) -> ()
  }) {mask = #attn.causal}
    : (tensor<?x?x16x128xbf16>, tensor<?x?x4x128xbf16>, tensor<?x?x4x128xbf16>, f32)
      -> (tensor<?x?x16x128xbf16>, tensor<?x16x?xf32>)
  func.return %o, %lse : tensor<?x?x16x128xbf16>, tensor<?x16x?xf32>
}

// -----

// Static lengths, another value head size, one head, a score modifier.

// CHECK-LABEL: func.func @modified
// CHECK: "attn.mha"
// CHECK: %[[H:.*]] = arith.sitofp
// CHECK: %[[M:.*]] = arith.mulf %{{.*}}, %[[H]] : f32
// CHECK: "attn.yield"(%[[M]])
// CHECK: {mask = #attn.null}
func.func @modified(%q: tensor<2x5x1x64xf16>, %k: tensor<2x?x1x64xf16>,
                    %v: tensor<?x7x1x32xf16>, %scale: f32)
    -> (tensor<?x5x1x32xf16>, tensor<2x1x5xf32>) {
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%score: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    %slope = arith.sitofp %h : i32 to f32
    %new = arith.mulf %score, %slope : f32
    "attn.yield"(%new) : (f32) -> ()
  }) {mask = #attn.null}
    : (tensor<2x5x1x64xf16>, tensor<2x?x1x64xf16>, tensor<?x7x1x32xf16>, f32)
      -> (tensor<?x5x1x32xf16>, tensor<2x1x5xf32>)
  func.return %o, %lse : tensor<?x5x1x32xf16>, tensor<2x1x5xf32>
}

// -----

// The operation is a function of its operands: the same twice is computed once, unused never.

// CSE-LABEL: func.func @pure
// CSE: "attn.mha"
// CSE-NOT: "attn.mha"
// CSE: return %[[O:.*]]#0, %[[O]]#0
func.func @pure(%x: tensor<?x?x2x64xbf16>, %scale: f32, %other: f32)
    -> (tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>) {
  %a, %la = "attn.mha"(%x, %x, %x, %scale) ({
  ^bb0(%score: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%score) : (f32) -> ()
  }) {mask = #attn.null}
    : (tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, f32)
      -> (tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>)
  %c, %lc = "attn.mha"(%x, %x, %x, %scale) ({
  ^bb0(%score: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%score) : (f32) -> ()
  }) {mask = #attn.null}
    : (tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, f32)
      -> (tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>)
  %e, %le = "attn.mha"(%x, %x, %x, %other) ({
  ^bb0(%score: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%score) : (f32) -> ()
  }) {mask = #attn.causal}
    : (tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, f32)
      -> (tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>)
  func.return %a, %c : tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>
}
