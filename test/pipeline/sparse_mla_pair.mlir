// The way down of sparse latent attention of 128 heads: a pair of CTAs, of which each gathers half of the keys and of
// the columns of values.

// RUN: attn-opt --attn-to-ws=target=sm_100a %s -o %t.ws.mlir
// RUN: FileCheck %s --check-prefix=WS --input-file=%t.ws.mlir
// RUN: attn-opt --attn-to-ptx=target=sm_100a %s | FileCheck %s --check-prefix=PTX

// WS-NOT: "attn.
// WS-LABEL: "ws.kernel"()
// WS-DAG: {empty_at = [array<i32: 0, 1>, array<i32: 0, 1>], full_at = [array<i32: 0>, array<i32: 0>], label_name = "k"
// WS-DAG: {empty_at = [array<i32: 0, 1>, array<i32: 0, 1>], full_at = [array<i32: 0>, array<i32: 0>], label_name = "v"
// WS: label_name = "softmax"
// WS: dims = array<i32: 0, 1>{{.*}}!ws.tile<vector<16x192xbf16>, "shared">
// WS: label_name = "keys3"
// WS: dims = array<i32: 0, 1>{{.*}}!ws.tile<vector<16x256xbf16>, "shared">
// WS: label_name = "values3"
// WS: "ws.mma"({{.*}}) {b_layout = "nk", ctas = 2 : i64} : (!ws.tile<vector<128x64xf32>, "tensor">, !ws.tile<vector<64x192xbf16>, "shared">, !ws.tile<vector<64x192xbf16>, "shared">
// WS: label_name = "score"
// WS: "ws.mma"({{.*}}) {b_layout = "kn", ctas = 2 : i64} : (!ws.tile<vector<128x256xf32>, "tensor">, !ws.tile<vector<64x64xbf16>, "shared">, !ws.tile<vector<64x256xbf16>, "shared">
// WS: label_name = "sum_up"
// WS-NOT: "attn.

// PTX: .target sm_100a
// PTX: .visible .entry sparse(
// PTX-DAG: .reqnctapercluster 2
// PTX-DAG: tcgen05.mma.cta_group::2.kind::f16
// PTX-DAG: tcgen05.ld.sync.aligned.32x32b.x32.b32
// PTX-DAG: tile::gather4.mbarrier::complete_tx::bytes.cta_group::2

func.func @sparse(
    %q: tensor<?x128x576xbf16> {attn.name = "q"}, %kv: tensor<?x576xbf16> {attn.name = "kv"},
    %indices: tensor<?x?xi32> {attn.name = "indices"}, %scale: f32 {attn.name = "scale"})
    -> (tensor<?x128x512xbf16> {attn.name = "o"}, tensor<?x128xf32> {attn.name = "lse"},
        tensor<?x128xf32> {attn.name = "max_logits"}) {
  %o, %lse, %max = "attn.sparse_mla"(%q, %kv, %indices, %scale)
    {operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0, 0, 0>}
    : (tensor<?x128x576xbf16>, tensor<?x576xbf16>, tensor<?x?xi32>, f32)
      -> (tensor<?x128x512xbf16>, tensor<?x128xf32>, tensor<?x128xf32>)
  func.return %o, %lse, %max : tensor<?x128x512xbf16>, tensor<?x128xf32>, tensor<?x128xf32>
}
