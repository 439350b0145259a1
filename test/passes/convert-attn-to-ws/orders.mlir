// RUN: attn-opt %s --attn-configure="tile-order=last_first" --convert-attn-to-ws | FileCheck %s --check-prefix=ONCE
// RUN: attn-opt %s --attn-configure="tile-order=persistent" --convert-attn-to-ws --ws-verify-rings | FileCheck %s --check-prefix=LOOPS
// RUN: attn-opt %s --attn-configure="tile-order=clc" --convert-attn-to-ws --ws-verify-rings | FileCheck %s --check-prefix=CLAIMS

// The order of the work tiles is an attribute that all roles share; what a role does with a tile is the same.

// Every CTA has one tile: O is staged over Q, and K and V have all other shared memory.

// ONCE: label_name = "kv"} : () -> !ws.ring<!ws.tile<vector<128x64xbf16>, "shared">, 12 : i64, 1 : i64>
// ONCE-COUNT-5: order = "last_first"
// ONCE-NOT: order =

// A CTA that goes on to another tile needs Q of that beside O of this one.

// LOOPS: label_name = "kv"} : () -> !ws.ring<!ws.tile<vector<128x64xbf16>, "shared">, 10 : i64, 1 : i64>
// LOOPS-NOT: label_name = "answers"
// LOOPS-COUNT-5: order = "persistent"
// LOOPS-NOT: order =

// Claimed tiles: a role more, which asks; each of the six ends a tile by waiting for the answer.

// CLAIMS: %[[ANSWERS:.*]] = "ws.alloc_ring"() {label_name = "answers"} : () -> !ws.ring<!ws.tile<vector<4xi32>, "shared">, 2 : i64, 1 : i64>
// CLAIMS: "ws.wait"(%[[ANSWERS]]
// CLAIMS: "ws.next_tile"
// CLAIMS: order = "clc"
// CLAIMS: label_name = "softmax"
// CLAIMS-COUNT-4: "ws.next_tile"
// CLAIMS: label_name = "load"
// CLAIMS: "ws.next_tile"
// CLAIMS: order = "clc"
// CLAIMS-NOT: "ws.next_tile"
func.func @orders(%q: tensor<?x?x1x64xbf16>, %k: tensor<?x?x1x64xbf16>, %v: tensor<?x?x1x64xbf16>, %scale: f32)
    -> (tensor<?x?x1x64xbf16>, tensor<?x1x?xf32>) {
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.null}
    : (tensor<?x?x1x64xbf16>, tensor<?x?x1x64xbf16>, tensor<?x?x1x64xbf16>, f32)
      -> (tensor<?x?x1x64xbf16>, tensor<?x1x?xf32>)
  func.return %o, %lse : tensor<?x?x1x64xbf16>, tensor<?x1x?xf32>
}
