// RUN: attn-opt %s --split-input-file --attn-configure --convert-attn-to-ws --ws-verify-rings | FileCheck %s

// Keys in two parts of 64 columns, each with a slot: of five tiles in shared memory three are keys. So are
// queries; the first product needs the first part of either. Slots of keys are handed back one by one.

// CHECK-LABEL: "ws.kernel"
// CHECK: %[[QS:.*]] = "ws.alloc_ring"() {label_name = "q"} : () -> !ws.ring<!ws.tile<vector<128x64xbf16>, "shared">, 2 : i64, 2 : i64>
// CHECK: %[[KS:.*]] = "ws.alloc_ring"() {label_name = "k"} : () -> !ws.ring<!ws.tile<vector<128x64xbf16>, "shared">, 6 : i64, 1 : i64>
// CHECK: %[[VS:.*]] = "ws.alloc_ring"() {label_name = "v"} : () -> !ws.ring<!ws.tile<vector<128x128xbf16>, "shared">, 2 : i64, 1 : i64>
// CHECK: label_name = "correction"
// CHECK: %[[K0:.*]] = "ws.wait"(%[[KS]],
// CHECK: %[[Q0:.*]] = "ws.wait"(%[[QS]], %c0_i32
// CHECK: %[[S:.*]] = "ws.acquire"
// CHECK: "ws.mma"(%[[S]], %[[Q0]], %[[K0]], %false
// CHECK: %[[Q1:.*]] = "ws.wait"(%[[QS]], %c0_i32
// CHECK: %[[K1:.*]] = "ws.wait"(%[[KS]],
// CHECK: "ws.mma"(%[[S]], %[[Q1]], %[[K1]], %true
// CHECK: "ws.commit"(%[[S]])
// CHECK: %[[R0:.*]] = "ws.wait"(%[[QS]], %c1_i32
// CHECK: "ws.mma"(%[[T:.*]], %[[R0]], %[[K0]], %false
// CHECK: "ws.release"(%[[K0]]) {by = "tensor_core"}
// CHECK: %[[R1:.*]] = "ws.wait"(%[[QS]], %c1_i32
// CHECK: "ws.mma"(%[[T]], %[[R1]], %[[K1]], %true
// CHECK: "ws.commit"(%[[T]])
// CHECK: "ws.release"(%[[K1]]) {by = "tensor_core"}
// CHECK: scf.for
// CHECK: label_name = "mma"
// CHECK: label_name = "epilogue"
// CHECK: %[[FIRST:.*]] = "ws.acquire"(%[[KS]],
// CHECK: %[[COLUMN:.*]] = arith.constant 0 : i32
// CHECK: "ws.copy_in"(%{{.*}}, %[[FIRST]], %{{.*}}, %[[COLUMN]])
// CHECK: "ws.acquire"(%[[QS]],
// CHECK: %[[NEXT:.*]] = "ws.acquire"(%[[KS]],
// CHECK: %[[COLUMN:.*]] = arith.constant 64 : i32
// CHECK: "ws.copy_in"(%{{.*}}, %[[NEXT]], %{{.*}}, %[[COLUMN]])
// CHECK-COUNT-3: "ws.acquire"(%[[QS]],
// CHECK: "ws.acquire"(%[[VS]],
// CHECK: label_name = "load"
func.func @keys(%q: tensor<?x?x2x128xbf16>, %k: tensor<?x?x2x128xbf16>, %v: tensor<?x?x2x128xbf16>, %scale: f32)
    -> (tensor<?x?x2x128xbf16>, tensor<?x2x?xf32>) {
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.null, attn.config = {num_qk_stages = 2 : i32}}
    : (tensor<?x?x2x128xbf16>, tensor<?x?x2x128xbf16>, tensor<?x?x2x128xbf16>, f32)
      -> (tensor<?x?x2x128xbf16>, tensor<?x2x?xf32>)
  func.return %o, %lse : tensor<?x?x2x128xbf16>, tensor<?x2x?xf32>
}

// -----

// P in two parts of 64 columns in the place of S, each of which softmax and correction hand over together, the
// second computed behind the first; a product takes a part, with as many rows of values.

// CHECK-LABEL: "ws.kernel"
// CHECK: %[[SS:.*]] = "ws.alloc_ring"() {known_empty, label_name = "s"} : () -> !ws.ring<!ws.tile<vector<128x128xf32>, "tensor">, 1 : i64, 2 : i64>
// CHECK: %[[PS:.*]] = "ws.alloc_inside"(%[[SS]]) {known_empty, label_name = "p", producers = ["threads", "threads"]} : ({{.*}}) -> !ws.ring<!ws.tile<vector<128x64xbf16>, "tensor">, 2 : i64, 2 : i64>
// CHECK: scf.for
// CHECK: %[[S:.*]] = "ws.wait"(%[[SS]],
// CHECK-COUNT-4: "ws.load"
// CHECK: "ws.release"(%[[S]]) {by = "threads"}
// CHECK-COUNT-4: "ws.reduce"(%{{.*}}) {kind = "max"}
// CHECK: %[[P0:.*]] = "ws.acquire"(%[[PS]],
// CHECK: %[[P1:.*]] = "ws.acquire"(%[[PS]],
// CHECK: scf.if
// CHECK-COUNT-2: "ws.exp2"
// CHECK: "ws.commit"(%[[P0]]) {by = "threads"}
// CHECK: "ws.behind"(%{{.*}}, %[[P0]])
// CHECK-COUNT-2: "ws.exp2"
// CHECK: "ws.commit"(%[[P1]]) {by = "threads"}
// CHECK-NOT: "ws.exp2"
// CHECK: "ws.reduce"(%{{.*}}) {kind = "add"}
// CHECK: } else {
// CHECK: label_name = "softmax"
// CHECK: scf.for
// CHECK: %[[F0:.*]] = "ws.acquire"(%[[PS]], %c0_i32
// CHECK: %[[F1:.*]] = "ws.acquire"(%[[PS]], %c0_i32
// CHECK: "ws.commit"(%[[F0]])
// CHECK: "ws.commit"(%[[F1]])
// CHECK: label_name = "correction"
// CHECK: scf.for
// CHECK: %[[A:.*]] = "ws.wait"(%[[PS]], %c0_i32
// CHECK: %[[LOW:.*]] = "ws.rows"(%{{.*}}, %c0_i32{{.*}}) : ({{.*}}) -> !ws.tile<vector<64x128xbf16>, "shared">
// CHECK: "ws.mma"(%[[O:.*]], %[[A]], %[[LOW]], %{{.*}}) {b_layout = "kn"}
// CHECK: "ws.release"(%[[A]]) {by = "tensor_core"}
// CHECK: %[[B:.*]] = "ws.wait"(%[[PS]], %c0_i32
// CHECK: %[[HIGH:.*]] = "ws.rows"(%{{.*}}, %c64_i32{{.*}}) : ({{.*}}) -> !ws.tile<vector<64x128xbf16>, "shared">
// CHECK: "ws.mma"(%{{.*}}, %[[B]], %[[HIGH]], %true{{.*}}) {b_layout = "kn"}
// CHECK: label_name = "mma"
func.func @weights(%q: tensor<?x?x2x128xbf16>, %k: tensor<?x?x2x128xbf16>, %v: tensor<?x?x2x128xbf16>, %scale: f32)
    -> (tensor<?x?x2x128xbf16>, tensor<?x2x?xf32>) {
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.null, attn.config = {num_pv_stages = 2 : i32}}
    : (tensor<?x?x2x128xbf16>, tensor<?x?x2x128xbf16>, tensor<?x?x2x128xbf16>, f32)
      -> (tensor<?x?x2x128xbf16>, tensor<?x2x?xf32>)
  func.return %o, %lse : tensor<?x?x2x128xbf16>, tensor<?x2x?xf32>
}

// -----

// Softmax groups in turn: group 1 waits in front of its turn, group 0 behind its own, and either tells the other one
// when it has handed P over, whichever formula computes it.

// CHECK-LABEL: "ws.kernel"
// CHECK: %[[SS:.*]] = "ws.alloc_ring"() {known_empty, label_name = "s"}
// CHECK: %[[ORDER:.*]] = "ws.alloc_ring"() {known_empty, label_name = "order"} : () -> !ws.ring<none, 1 : i64, 2 : i64>
// CHECK: ^bb0(%[[WAY:.*]]: i32):
// CHECK: scf.for
// CHECK: %[[IS_1:.*]] = arith.cmpi eq, %[[WAY]], %c1_i32
// CHECK-NEXT: scf.if %[[IS_1]] {
// CHECK: "ws.wait"(%[[ORDER]], %[[WAY]])
// CHECK: "ws.release"(%{{.*}}) {by = "threads"} : (none)
// CHECK: "ws.wait"(%[[SS]],
// CHECK: %[[OTHER:.*]] = arith.subi %c1_i32{{.*}}, %[[WAY]]
// CHECK: %[[TOKEN:.*]] = "ws.acquire"(%[[ORDER]], %[[OTHER]])
// CHECK: scf.if
// CHECK: "ws.commit"(%[[TOKEN]]) {by = "threads"}
// CHECK: } else {
// CHECK: "ws.commit"(%[[TOKEN]]) {by = "threads"}
// CHECK: arith.cmpi eq, %[[WAY]], %c0_i32
// CHECK: "ws.wait"(%[[ORDER]], %[[WAY]])
// CHECK: label_name = "softmax"
func.func @in_turn(%q: tensor<?x?x2x128xbf16>, %k: tensor<?x?x2x128xbf16>, %v: tensor<?x?x2x128xbf16>, %scale: f32)
    -> (tensor<?x?x2x128xbf16>, tensor<?x2x?xf32>) {
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.null, attn.config = {ordered_softmax = 1 : i32}}
    : (tensor<?x?x2x128xbf16>, tensor<?x?x2x128xbf16>, tensor<?x?x2x128xbf16>, f32)
      -> (tensor<?x?x2x128xbf16>, tensor<?x2x?xf32>)
  func.return %o, %lse : tensor<?x?x2x128xbf16>, tensor<?x2x?xf32>
}
