// The way down of attention for few queries, for a target without tensor memory.

// RUN: attn-opt --attn-to-ws=target=sm_90a %s -o %t.ws.mlir
// RUN: FileCheck %s --check-prefix=WS --input-file=%t.ws.mlir
// RUN: attn-opt --ws-verify-rings --ws-plan-memory --convert-ws-to-nvvm %t.ws.mlir -o %t.nvvm.mlir
// RUN: FileCheck %s --check-prefix=NVVM --input-file=%t.nvvm.mlir
// RUN: attn-opt --attn-to-ptx=target=sm_90a %s | FileCheck %s --check-prefix=PTX

// WS-NOT: "attn.
// WS-LABEL: "ws.kernel"()
// WS: "ws.alloc_ring"() {label_name = "kv"}
// WS: "ws.dot"
// WS: label_name = "attend"
// WS-SAME: warps = array<i32: 0, 4>
// WS: label_name = "merge"
// WS: label_name = "leave"
// WS: label_name = "load"
// WS-NOT: "attn.

// NVVM-NOT: "ws.
// NVVM: llvm.func @decode
// NVVM: nvvm.ldmatrix
// NVVM: llvm.nvvm.mma.m16n8k16.row.col.bf16
// NVVM-NOT: "ws.

// PTX: .target sm_90a
// PTX: .visible .entry decode(
// PTX: griddepcontrol.wait
// PTX: ldmatrix.sync.aligned.m8n8.x4.shared.b16
// PTX: mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32
// PTX: ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16
// PTX-COUNT-2: griddepcontrol.wait
// PTX: griddepcontrol.launch_dependents
// PTX: cp.async.bulk.prefetch.tensor.5d.L2.global.tile
// PTX: griddepcontrol.wait

func.func @decode(
    %q: tensor<?x?x8x64xbf16> {attn.name = "q"}, %k: tensor<?x?x2x64xbf16> {attn.name = "k"},
    %v: tensor<?x?x2x64xbf16> {attn.name = "v"}, %scale: f32 {attn.name = "scale"})
    -> (tensor<?x?x8x64xbf16> {attn.name = "o"}, tensor<?x8x?xf32> {attn.name = "lse"}) {
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%score: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%score) : (f32) -> ()
  }) {attn.schedule = "mha-streaming", mask = #attn.causal}
    : (tensor<?x?x8x64xbf16>, tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, f32)
      -> (tensor<?x?x8x64xbf16>, tensor<?x8x?xf32>)
  func.return %o, %lse : tensor<?x?x8x64xbf16>, tensor<?x8x?xf32>
}
