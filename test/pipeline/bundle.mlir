// REQUIRES: ptxas
// RUN: attn-opt --attn-to-bundle=output=%t.attn %s -o %t.mlir
// RUN: %python -m zipfile -l %t.attn | FileCheck %s --check-prefix=FILES
// RUN: %python -c "import json, sys, zipfile; print(json.dumps(json.loads(zipfile.ZipFile(sys.argv[1]).read('bundle.json')), indent=1, sort_keys=True))" %t.attn | FileCheck %s
// RUN: %python -c "import hashlib, json, sys, zipfile; z = zipfile.ZipFile(sys.argv[1]); print(json.loads(z.read('bundle.json'))['sha256'] == hashlib.sha256(z.read('kernel.cubin')).hexdigest())" %t.attn | FileCheck %s --check-prefix=HASH
// RUN: %python -c "import re, sys, zipfile; z = zipfile.ZipFile(sys.argv[1]); text = z.read('kernel.mlir').decode().splitlines(); numbers = {int(n) for n in re.findall(r'\.loc\s+1 (\d+)', z.read('kernel.ptx').decode())}; print(next(line for n, line in enumerate(text, 1) if n in numbers and 'ws.wait' in line))" %t.attn | FileCheck %s --check-prefix=SOURCE

// A module's way to a file: the parts, what the loader needs, nothing spilled.

// FILES-DAG: kernel.cubin
// FILES-DAG: kernel.ptx
// FILES-DAG: bundle.json
// FILES-DAG: kernel.mlir

// CHECK: "block": [
// CHECK: "entry": "small"
// CHECK: "what": "kv"
// CHECK: "spill_bytes": 0
// CHECK: "schema": 1
// CHECK: "target": "sm_100a"

// HASH: True

// The lines of the PTX are lines of kernel.mlir: some .loc points at the first wait of the text.

// SOURCE: ws.wait

func.func @small(
    %q: tensor<?x?x2x64xf16> {attn.name = "q"}, %k: tensor<?x?x1x64xf16> {attn.name = "k"},
    %v: tensor<?x?x1x64xf16> {attn.name = "v"}, %scale: f32 {attn.name = "scale"})
    -> (tensor<?x?x2x64xf16>, tensor<?x2x?xf32>) {
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%score: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%score) : (f32) -> ()
  }) {mask = #attn.null}
    : (tensor<?x?x2x64xf16>, tensor<?x?x1x64xf16>, tensor<?x?x1x64xf16>, f32)
      -> (tensor<?x?x2x64xf16>, tensor<?x2x?xf32>)
  func.return %o, %lse : tensor<?x?x2x64xf16>, tensor<?x2x?xf32>
}
