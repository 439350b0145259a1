// The way down of sparse latent attention: rows are gathered once, and are keys and values.

// RUN: attn-opt --attn-to-ws=target=sm_100a %s -o %t.ws.mlir
// RUN: FileCheck %s --check-prefix=WS --input-file=%t.ws.mlir
// RUN: attn-opt --attn-to-ptx=target=sm_100a %s | FileCheck %s --check-prefix=PTX
// RUN: not attn-opt --attn-to-ws=target=sm_90a %s 2>&1 | FileCheck %s --check-prefix=HOPPER

// HOPPER: no schedule of attn.sparse_mla applies to sm_90a: {{.*}}sparse-mla needs accumulators in tensor memory

// WS-NOT: "attn.
// WS-LABEL: "ws.kernel"()
// WS: label_name = "keys"
// WS: label_name = "o"
// WS: "ws.keep"
// WS: label_name = "softmax"
// WS: "ws.bits"
// WS: label_name = "find"
// WS: %[[SLOT:.*]] = "ws.wait"
// WS: %[[ROWS:.*]] = "ws.rows"(%[[SLOT]], %{{.*}} -> !ws.tile<vector<16xi32>, "shared">
// WS: "ws.gather_in"
// WS: "ws.entry"(%[[ROWS]], %{{.*}})
// WS: label_name = "load0"
// WS: label_name = "load3"
// WS-NOT: "ws.gather_in"
// WS: "ws.mma"({{.*}}) {b_layout = "nk"} : (!ws.tile<vector<64x64xf32>, "tensor">
// WS: label_name = "score"
// WS: "ws.view"{{.*}} -> !ws.tile<vector<64x512xbf16>, "shared">
// WS: "ws.mma"({{.*}}) {b_layout = "kn"} : (!ws.tile<vector<64x512xf32>, "tensor">
// WS: label_name = "sum_up"
// WS-NOT: "attn.

// PTX: .target sm_100a
// PTX: .visible .entry sparse(
// PTX-DAG: tcgen05.ld.sync.aligned.16x256b.x8.b32
// PTX-DAG: tcgen05.st.sync.aligned.16x256b.x8.b32
// PTX-DAG: cp.async.bulk.tensor.2d.shared::cluster.global.tile::gather4.mbarrier
// PTX-DAG: vote.sync.ballot.b32

func.func @sparse(
    %q: tensor<?x64x576xbf16> {attn.name = "q"}, %kv: tensor<?x576xbf16> {attn.name = "kv"},
    %indices: tensor<?x?xi32> {attn.name = "indices"}, %scale: f32 {attn.name = "scale"})
    -> (tensor<?x64x512xbf16> {attn.name = "o"}, tensor<?x64xf32> {attn.name = "lse"},
        tensor<?x64xf32> {attn.name = "max_logits"}) {
  %o, %lse, %max = "attn.sparse_mla"(%q, %kv, %indices, %scale)
    {operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0, 0, 0>}
    : (tensor<?x64x576xbf16>, tensor<?x576xbf16>, tensor<?x?xi32>, f32)
      -> (tensor<?x64x512xbf16>, tensor<?x64xf32>, tensor<?x64xf32>)
  func.return %o, %lse, %max : tensor<?x64x512xbf16>, tensor<?x64xf32>, tensor<?x64xf32>
}
