// The whole way down for one kernel. Every stage is a module that the next step can start from, so
// each boundary is crossed as text, and holds nothing of the stage above.

// RUN: attn-opt --attn-check-stage=stage=attn --attn-to-ws %s -o %t.ws.mlir
// RUN: FileCheck %s --check-prefix=WS --input-file=%t.ws.mlir
// RUN: attn-opt --ws-verify-rings --ws-plan-memory --convert-ws-to-nvvm %t.ws.mlir -o %t.nvvm.mlir
// RUN: FileCheck %s --check-prefix=NVVM --input-file=%t.nvvm.mlir
// RUN: attn-opt --attn-check-stage=stage=nvvm %t.nvvm.mlir -o %t.same.mlir
// RUN: attn-opt --attn-to-ptx %s | FileCheck %s --check-prefix=PTX
// RUN: not attn-opt --attn-check-stage=stage=attn %t.ws.mlir 2>&1 | FileCheck %s --check-prefix=LEAK
// RUN: not attn-opt --dialects=func,nvvm,llvm %t.ws.mlir 2>&1 | FileCheck %s --check-prefix=SCOPE

// WS-NOT: "attn.
// WS-LABEL: "ws.kernel"()
// WS: "ws.alloc_ring"() {label_name = "q"}
// WS: "ws.alloc_ring"() {label_name = "kv"}
// WS: label_name = "softmax"
// WS-SAME: warps = array<i32: 0, 8>
// WS: label_name = "correction"
// WS: "ws.mma"
// WS: label_name = "mma"
// WS: "ws.copy_out"
// WS: label_name = "epilogue"
// WS: "ws.copy_in"
// WS: label_name = "load"
// WS: sym_name = "mha"
// WS-NOT: "attn.

// NVVM-NOT: "ws.
// NVVM: gpu.module
// NVVM: llvm.func @mha
// NVVM-SAME: nvvm.grid_constant
// NVVM: nvvm.tcgen05.alloc
// NVVM: nvvm.setmaxregister
// NVVM: nvvm.tcgen05.mma
// NVVM-NOT: "ws.

// PTX-NOT: llvm.func
// PTX: gpu.binary
// PTX: .version 8.8
// PTX: .target sm_100a
// PTX: .visible .entry mha(
// PTX: tcgen05.mma

// LEAK: error: 'ws.kernel' op is not legal at stage 'attn'
// SCOPE: error: {{.*}}unregistered dialect

func.func @mha(
    %q: tensor<?x?x16x128xbf16> {attn.name = "q"}, %k: tensor<?x?x4x128xbf16> {attn.name = "k"},
    %v: tensor<?x?x4x128xbf16> {attn.name = "v"}, %scale: f32 {attn.name = "scale", attn.default = 0.0883883461 : f32})
    -> (tensor<?x?x16x128xbf16> {attn.name = "o"}, tensor<?x16x?xf32> {attn.name = "lse"}) {
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%score: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%score) : (f32) -> ()
  }) {mask = #attn.causal}
    : (tensor<?x?x16x128xbf16>, tensor<?x?x4x128xbf16>, tensor<?x?x4x128xbf16>, f32)
      -> (tensor<?x?x16x128xbf16>, tensor<?x16x?xf32>)
  func.return %o, %lse : tensor<?x?x16x128xbf16>, tensor<?x16x?xf32>
}
