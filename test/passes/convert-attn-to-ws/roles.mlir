// RUN: attn-opt --split-input-file --attn-configure --convert-attn-to-ws --attn-check-stage=stage=ws --canonicalize --cse %s | FileCheck %s

// Five roles over two query tiles: what each ring carries, and the order of the products.

// CHECK-LABEL: "ws.kernel"
// CHECK: ^bb0(%[[Q:.*]]: memref<?x?x2x128xbf16>, %[[K:.*]]: memref<?x?x2x128xbf16>, %[[V:.*]]: memref<?x?x2x128xbf16>, %[[O:.*]]: memref<?x?x2x128xbf16>, %[[LSE:.*]]: memref<?x2x?xf32>, %{{.*}}: f32):
// CHECK: %[[QS:.*]] = "ws.alloc_ring"() {label_name = "q"} : () -> !ws.ring<!ws.tile<vector<128x128xbf16>, "shared">, 1 : i64, 2 : i64>
// CHECK: %[[KVS:.*]] = "ws.alloc_ring"() {label_name = "kv"} : () -> !ws.ring<!ws.tile<vector<128x128xbf16>, "shared">, 5 : i64, 1 : i64>
// CHECK: %[[SS:.*]] = "ws.alloc_ring"() {known_empty, label_name = "s"} : () -> !ws.ring<!ws.tile<vector<128x128xf32>, "tensor">, 1 : i64, 2 : i64>
// CHECK: %[[PS:.*]] = "ws.alloc_inside"(%[[SS]]) {known_empty, label_name = "p", producers = ["threads", "threads"]} : ({{.*}}) -> !ws.ring<!ws.tile<vector<128x128xbf16>, "tensor">, 1 : i64, 2 : i64>
// CHECK: %[[STATS:.*]] = "ws.alloc_ring"() {known_empty, label_name = "stats"} : () -> !ws.ring<!ws.tile<vector<128xf32>, "shared">, 1 : i64, 2 : i64>
// CHECK: %[[HEARD:.*]] = "ws.alloc_ring"() {label_name = "heard"} : () -> !ws.ring<none, 1 : i64, 2 : i64>
// CHECK: %[[OUTS:.*]] = "ws.alloc_ring"() {label_name = "out"} : () -> !ws.ring<!ws.tile<vector<128x128xbf16>, "shared">, 1 : i64, 2 : i64>
// CHECK: "ws.alloc_buffer"() {label_name = "o"} : () -> !ws.buffer<!ws.tile<vector<128x128xf32>, "tensor">, 2 : i64>
// CHECK: %[[FINISHED:.*]] = "ws.alloc_ring"() {label_name = "finished"} : () -> !ws.ring<none, 1 : i64, 2 : i64>

// Softmax: two loops over tiles, masked and not; P takes the place of S, and is handed over before the row's sum is
// taken. Where a row's maximum is large, the same is done with the distances from it.
// CHECK: "ws.role"()
// CHECK: scf.for
// CHECK: %[[S:.*]] = "ws.wait"(%[[SS]], %[[WAY:.*]]) :
// CHECK-NEXT: "ws.load"(%[[S]])
// CHECK-NEXT: "ws.release"(%[[S]]) {by = "threads"}
// CHECK: "ws.reduce"(%{{.*}}) {kind = "max"}
// CHECK: "ws.acquire"(%[[STATS]], %[[WAY]])
// CHECK: %[[P:.*]] = "ws.acquire"(%[[PS]], %[[WAY]])
// CHECK: math.absf
// CHECK: arith.cmpf oge
// CHECK: scf.if %{{.*}} -> (!ws.frag<vector<128xf32>>) {
// CHECK: arith.subf
// CHECK: "ws.exp2"
// CHECK: "ws.store"(%{{.*}}, %[[P]])
// CHECK-NEXT: "ws.commit"(%[[P]]) {by = "threads"}
// CHECK: "ws.reduce"(%{{.*}}) {kind = "add"}
// CHECK: } else {
// CHECK-NOT: arith.subf
// CHECK: "ws.exp2"
// CHECK: "ws.store"(%{{.*}}, %[[P]])
// CHECK-NEXT: "ws.commit"(%[[P]]) {by = "threads"}
// CHECK: "ws.reduce"(%{{.*}}) {kind = "add"}
// CHECK: scf.for
// CHECK: "ws.wait"(%[[HEARD]], %[[WAY]])
// CHECK: "ws.acquire"(%[[STATS]], %[[WAY]])
// CHECK: "ws.store_global"(%{{.*}}, %[[LSE]],
// CHECK: "ws.wait"(%[[HEARD]], %[[WAY]])
// CHECK: label_name = "softmax"
// CHECK-SAME: registers = 192
// CHECK-SAME: warps = array<i32: 0, 8>

// Correction: waits for a warp's vote before it touches O, and not at all for scores; P is not full before O fits.
// The first key tile is in front of the loop.
// CHECK-NOT: "ws.wait"(%[[SS]]
// CHECK: "ws.wait"(%[[STATS]], %c0_i32)
// CHECK-NOT: "ws.any"
// CHECK: "ws.wait"(%[[STATS]], %c1_i32)
// CHECK: scf.for
// CHECK: "ws.wait"(%[[STATS]], %c0_i32)
// CHECK: %[[FITS:.*]] = "ws.acquire"(%[[PS]], %c0_i32)
// CHECK: "ws.any"
// CHECK: scf.if
// CHECK: "ws.commit"(%[[FITS]]) {by = "threads"}
// CHECK: "ws.wait"(%[[STATS]], %c1_i32)
// CHECK: "ws.commit"(%{{.*}}) {by = "threads"}
// CHECK: "ws.acquire"(%[[HEARD]], %c0_i32)
// CHECK: "ws.wait"(%[[STATS]], %c0_i32)
// CHECK: "ws.wait"(%[[STATS]], %c1_i32)
// CHECK: "ws.wait"(%[[FINISHED]], %c0_i32)
// CHECK: "ws.acquire"(%[[OUTS]], %c0_i32)
// CHECK: "ws.acquire"(%[[OUTS]], %c1_i32)
// CHECK: label_name = "correction"
// CHECK-SAME: warps = array<i32: 8, 4>

// Products: S0 S1, then per turn O0 S0 O1 S1, at the end O0 O1. K and V slots go back as soon as
// both query tiles have been multiplied.
// CHECK: %[[K0:.*]] = "ws.wait"(%[[KVS]], %c0_i32)
// CHECK: %[[Q0:.*]] = "ws.wait"(%[[QS]], %c0_i32)
// CHECK: "ws.mma"(%{{.*}}, %[[Q0]], %[[K0]], %{{.*}}) {b_layout = "nk"}
// CHECK: %[[Q1:.*]] = "ws.wait"(%[[QS]], %c1_i32)
// CHECK: "ws.mma"(%{{.*}}, %[[Q1]], %[[K0]], %{{.*}}) {b_layout = "nk"}
// CHECK: "ws.release"(%[[K0]]) {by = "tensor_core"}
// CHECK: %[[O0:.*]] = "ws.acquire"(%[[FINISHED]], %c0_i32)
// CHECK: %[[O1:.*]] = "ws.acquire"(%[[FINISHED]], %c1_i32)
// CHECK: scf.for
// CHECK: %[[VN:.*]] = "ws.wait"(%[[KVS]]
// CHECK: %[[P0:.*]] = "ws.wait"(%[[PS]], %c0_i32)
// CHECK: "ws.mma"(%{{.*}}, %[[P0]], %[[VN]], %{{.*}}) {b_layout = "kn"}
// CHECK-NEXT: "ws.release"(%[[P0]]) {by = "tensor_core"}
// CHECK: %[[KN:.*]] = "ws.wait"(%[[KVS]]
// CHECK-NEXT: %[[S0:.*]] = "ws.acquire"(%[[SS]], %c0_i32)
// CHECK-NEXT: "ws.mma"(%[[S0]], %[[Q0]], %[[KN]], %{{.*}}) {b_layout = "nk"}
// CHECK: "ws.mma"(%{{.*}}, %{{.*}}, %[[VN]], %{{.*}}) {b_layout = "kn"}
// CHECK-NEXT: "ws.release"(%{{.*}}) {by = "tensor_core"}
// CHECK-NEXT: "ws.release"(%[[VN]]) {by = "tensor_core"}
// CHECK-NEXT: %[[S1:.*]] = "ws.acquire"(%[[SS]], %c1_i32)
// CHECK-NEXT: "ws.mma"(%[[S1]], %[[Q1]], %[[KN]], %{{.*}}) {b_layout = "nk"}
// CHECK: "ws.release"(%[[KN]]) {by = "tensor_core"}
// CHECK: }
// CHECK: "ws.release"(%[[Q0]]) {by = "tensor_core"}
// CHECK: "ws.release"(%[[Q1]]) {by = "tensor_core"}
// CHECK: {b_layout = "kn"}
// CHECK: "ws.commit"(%[[O0]]) {by = "tensor_core"}
// CHECK: {b_layout = "kn"}
// CHECK: "ws.commit"(%[[O1]]) {by = "tensor_core"}
// CHECK-NOT: "ws.mma"
// CHECK: label_name = "mma"
// CHECK-SAME: warps = array<i32: 12, 1>

// CHECK: "ws.copy_out"(%{{.*}}, %[[O]],
// CHECK: "ws.copy_out"(%{{.*}}, %[[O]],
// CHECK: label_name = "epilogue"
// CHECK: "ws.copy_in"(%[[K]],
// CHECK: "ws.copy_in"(%[[Q]],
// CHECK: "ws.copy_in"(%[[Q]],
// CHECK: "ws.copy_in"(%[[V]],
// CHECK: scf.for
// CHECK: "ws.copy_in"(%[[K]],
// CHECK: "ws.copy_in"(%[[V]],
// CHECK: label_name = "load"
// CHECK: arg_dims = {{\[\[}}"batch", "sq", "", ""], ["batch", "sk", "", ""], ["batch", "sk", "", ""], ["batch", "sq", "", ""], ["batch", "", "sq"], []]
// CHECK-SAME: arg_names = ["q", "k", "v", "o", "lse", "scale"]
// CHECK-SAME: arg_roles = ["in", "in", "in", "out", "out", "scalar"]
// CHECK-SAME: sym_name = "plain"
// CHECK-NOT: func.func
func.func @plain(%q: tensor<?x?x2x128xbf16>, %k: tensor<?x?x2x128xbf16>, %v: tensor<?x?x2x128xbf16>, %scale: f32)
    -> (tensor<?x?x2x128xbf16>, tensor<?x2x?xf32>) {
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%score: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%score) : (f32) -> ()
  }) {mask = #attn.null}
    : (tensor<?x?x2x128xbf16>, tensor<?x?x2x128xbf16>, tensor<?x?x2x128xbf16>, f32)
      -> (tensor<?x?x2x128xbf16>, tensor<?x2x?xf32>)
  func.return %o, %lse : tensor<?x?x2x128xbf16>, tensor<?x2x?xf32>
}

// -----

// Head size 64, f16, one query tile: twelve slots of K and V, a warpgroup less. The default of the
// scale comes along.

// CHECK-LABEL: "ws.kernel"
// CHECK: "ws.alloc_ring"() {label_name = "q"} : () -> !ws.ring<!ws.tile<vector<128x64xf16>, "shared">, 1 : i64, 1 : i64>
// CHECK: "ws.alloc_ring"() {label_name = "kv"} : () -> !ws.ring<!ws.tile<vector<128x64xf16>, "shared">, 12 : i64, 1 : i64>
// CHECK: label_name = "softmax"
// CHECK-SAME: warps = array<i32: 0, 4>
// CHECK: label_name = "correction"
// CHECK-SAME: warps = array<i32: 4, 4>
// CHECK: label_name = "mma"
// CHECK-SAME: warps = array<i32: 8, 1>
// CHECK: label_name = "load"
// CHECK-SAME: warps = array<i32: 10, 1>
// CHECK: sym_name = "one_tile"
// CHECK-SAME: ws.defaults = {scale = 1.250000e-01 : f32}
func.func @one_tile(%q: tensor<?x?x2x64xf16>, %k: tensor<?x?x2x64xf16>, %v: tensor<?x?x2x64xf16>,
    %scale: f32 {attn.name = "scale", attn.default = 0.125 : f32})
    -> (tensor<?x?x2x64xf16>, tensor<?x2x?xf32>) {
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%score: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%score) : (f32) -> ()
  }) {mask = #attn.null, attn.config = {q_tiles = 1 : i32}}
    : (tensor<?x?x2x64xf16>, tensor<?x?x2x64xf16>, tensor<?x?x2x64xf16>, f32)
      -> (tensor<?x?x2x64xf16>, tensor<?x2x?xf32>)
  func.return %o, %lse : tensor<?x?x2x64xf16>, tensor<?x2x?xf32>
}

// -----

// Four heads of a group share a query tile: Q and O are seen as groups, the rows of a tile run
// through the four heads, K and V are read at the tile's head.

// CHECK-LABEL: "ws.kernel"
// CHECK: ^bb0(%[[Q:[a-z0-9]+]]: memref<?x?x8x64xbf16>, %[[K:[a-z0-9]+]]: memref<?x?x2x64xbf16>
// CHECK: "ws.expand"(%{{.*}}) {dim = 1 : i64, factor = 4 : i64} : (memref<?x8x?xf32>) -> memref<?x2x4x?xf32>
// CHECK: "ws.store_global"
// CHECK-SAME: dims = array<i32: 3, 2>
// CHECK: label_name = "softmax"
// CHECK: "ws.expand"(%{{.*}}) {dim = 2 : i64, factor = 4 : i64} : (memref<?x?x8x64xbf16>) -> memref<?x?x2x4x64xbf16>
// CHECK: "ws.copy_out"
// CHECK-SAME: dims = array<i32: 1, 3, 4>
// CHECK: label_name = "epilogue"
// CHECK: "ws.copy_in"(%[[K]],
// CHECK-SAME: dims = array<i32: 1, 3>
// CHECK: %[[VIEW:.*]] = "ws.expand"(%[[Q]]) {dim = 2 : i64, factor = 4 : i64}
// CHECK: "ws.copy_in"(%[[VIEW]],
// CHECK-SAME: dims = array<i32: 1, 3, 4>
// CHECK: sym_name = "grouped"
func.func @grouped(%q: tensor<?x?x8x64xbf16>, %k: tensor<?x?x2x64xbf16>, %v: tensor<?x?x2x64xbf16>, %scale: f32)
    -> (tensor<?x?x8x64xbf16>, tensor<?x8x?xf32>) {
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%score: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%score) : (f32) -> ()
  }) {mask = #attn.null}
    : (tensor<?x?x8x64xbf16>, tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, f32)
      -> (tensor<?x?x8x64xbf16>, tensor<?x8x?xf32>)
  func.return %o, %lse : tensor<?x?x8x64xbf16>, tensor<?x8x?xf32>
}

// -----

// A score modifier is evaluated on scaled scores with the coordinates of the call; what it reads is
// an argument of the kernel, after the others and with sizes of its own.

// CHECK-LABEL: "ws.kernel"
// CHECK: ^bb0({{.*}}, %[[SCALE:.*]]: f32, %[[SLOPES:.*]]: memref<2x?xf32>, %[[LIMIT:.*]]: f32):
// CHECK: "ws.map"
// CHECK: ^bb0(%[[X:.*]]: f32, %[[I:.*]]: i32, %[[J:.*]]: i32):
// CHECK: %[[SCALED:.*]] = arith.mulf %[[X]], %[[SCALE]]
// CHECK: %[[E:.*]] = "ws.element"(%[[SLOPES]], %{{.*}}, %{{.*}})
// CHECK: %[[SUM:.*]] = arith.addf %[[SCALED]], %[[E]]
// CHECK: arith.minimumf %[[SUM]], %[[LIMIT]]
// CHECK: arith.select %{{.*}}, %{{.*}}, %{{.*}}
// CHECK: "ws.yield"
// CHECK: arg_names = ["q", "k", "v", "o", "lse", "scale", "slopes", "capture1"]
// CHECK-SAME: arg_roles = ["in", "in", "in", "out", "out", "scalar", "in", "scalar"]
// CHECK-SAME: sym_name = "modified"
func.func @modified(%q: tensor<?x?x2x64xbf16>, %k: tensor<?x?x2x64xbf16>, %v: tensor<?x?x2x64xbf16>, %scale: f32,
    %slopes: tensor<2x?xf32> {attn.name = "slopes"}, %limit: f32)
    -> (tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>) {
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%score: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    %head = arith.index_cast %h : i32 to index
    %key = arith.index_cast %j : i32 to index
    %slope = tensor.extract %slopes[%head, %key] : tensor<2x?xf32>
    %sum = arith.addf %score, %slope : f32
    %less = arith.minimumf %sum, %limit : f32
    %seen = arith.cmpi sle, %j, %i : i32
    "attn.keep"(%seen) : (i1) -> ()
    "attn.yield"(%less) : (f32) -> ()
  }) {mask = #attn.null}
    : (tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, f32)
      -> (tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>)
  func.return %o, %lse : tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>
}
