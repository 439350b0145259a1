// RUN: attn-opt %s --split-input-file --attn-configure --convert-attn-to-ws | FileCheck %s

// O of another type: staged as it leaves. LSE that nobody returns is no argument.

// CHECK: label_name = "out"} : () -> !ws.ring<!ws.tile<vector<128x64xf32>, "shared">
// CHECK-NOT: "ws.store_global"
// CHECK: arg_names = ["q", "k", "v", "o", "scale"],{{.*}} sym_name = "o_alone"
func.func @o_alone(%q: tensor<?x?x2x64xbf16>, %k: tensor<?x?x2x64xbf16>, %v: tensor<?x?x2x64xbf16>, %scale: f32)
    -> tensor<?x?x2x64xf32> {
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%score: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%score) : (f32) -> ()
  }) {mask = #attn.null}
    : (tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, f32)
      -> (tensor<?x?x2x64xf32>, tensor<?x2x?xf32>)
  func.return %o : tensor<?x?x2x64xf32>
}

// -----

// CHECK: label_name = "out"} : () -> !ws.ring<!ws.tile<vector<128x64xbf16>, "shared">
// CHECK: "ws.store_global"
// CHECK: arg_names = ["q", "k", "v", "o", "lse", "scale"],{{.*}} sym_name = "o_and_lse"
func.func @o_and_lse(%q: tensor<?x?x2x64xf16>, %k: tensor<?x?x2x64xf16>, %v: tensor<?x?x2x64xf16>, %scale: f32)
    -> (tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>) {
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%score: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%score) : (f32) -> ()
  }) {mask = #attn.null}
    : (tensor<?x?x2x64xf16>, tensor<?x?x2x64xf16>, tensor<?x?x2x64xf16>, f32)
      -> (tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>)
  func.return %o, %lse : tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>
}
