// RUN: attn-opt %s --attn-configure --convert-attn-to-ws --ws-verify-rings | FileCheck %s

// Key tiles from lists: counts are moved to 0 ... the number of tiles, each number to a tile that exists. The predicate
// of attn.keep is evaluated in the tested tiles, which come first, and not in those that follow.

// CHECK: "ws.kernel"() ({
// CHECK-NEXT: ^bb0({{.*}}, %[[COUNTS:[^ ]+]]: memref<?x?x?x2xi32>, %[[INDICES:[^ ]+]]: memref<?x?x?x?xi32>):
// CHECK: "ws.role"
// CHECK: %[[LISTED:.*]] = "ws.element"(%[[COUNTS]], %[[B:.*]], %[[H:.*]], %[[I:.*]], %c1_i32)
// CHECK-NEXT: %[[FEWER:.*]] = arith.minsi %[[LISTED]], %[[TILES:.*]] : i32
// CHECK: %[[COUNT:.*]] = arith.maxsi %[[FEWER]], %{{.*}} : i32
// CHECK: %[[TESTED:.*]] = "ws.element"(%[[COUNTS]], %[[B]], %[[H]], %[[I]], %c0_i32{{.*}})
// CHECK-NEXT: %[[LESS:.*]] = arith.minsi %[[TESTED]], %[[COUNT]] : i32
// CHECK: %[[PLAIN:.*]] = arith.maxsi %[[LESS]], %{{.*}} : i32
// CHECK: scf.for %[[TURN:.*]] = %{{.*}} to %[[PLAIN]]
// CHECK: "ws.element"(%[[INDICES]], %[[B]], %[[H]], %[[I]], %[[TURN]])
// CHECK: arith.cmpi sge
// CHECK: "ws.keep"
// CHECK: scf.for %{{.*}} = %[[PLAIN]] to %[[COUNT]]
// CHECK-NOT: arith.cmpi sge
// CHECK-NOT: "ws.keep"
// CHECK-NOT: "ws.element"
// CHECK: label_name = "softmax"
// CHECK: scf.for %[[TURN:.*]] = %c1_i32
// CHECK: "ws.element"(%[[INDICES]], %{{.*}}, %[[TURN]])
// CHECK-COUNT-2: "ws.copy_in"
// CHECK: label_name = "load"

func.func @f(%q: tensor<?x?x2x64xbf16>, %k: tensor<?x?x2x64xbf16>, %v: tensor<?x?x2x64xbf16>, %scale: f32,
             %counts: tensor<?x?x?x2xi32>, %indices: tensor<?x?x?x?xi32>)
    -> (tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>) {
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    %seen = arith.cmpi sge, %i, %j : i32
    "attn.keep"(%seen) : (i1) -> ()
    "attn.blocks"(%counts, %indices) {block = array<i32: 256, 1, 128>} : (tensor<?x?x?x2xi32>, tensor<?x?x?x?xi32>) -> ()
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.null}
    : (tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, f32)
      -> (tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>)
  func.return %o, %lse : tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>
}
