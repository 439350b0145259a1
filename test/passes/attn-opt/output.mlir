// RUN: attn-opt --cse --attn-configure --canonicalize --mlir-print-ir-after-all %s 2>&1 | FileCheck %s --check-prefix=AFTER
// RUN: attn-opt --pass-pipeline='builtin.module(cse,attn-configure,func.func(canonicalize))' --mlir-timing %s 2>&1 | FileCheck %s --check-prefix=TIMING
// RUN: rm -rf %t.tree && attn-opt --cse --attn-configure --mlir-print-ir-tree-dir=%t.tree %s -o %t.out
// RUN: FileCheck %s --input-file=%t.tree/000_cse.mlir
// RUN: FileCheck %s --input-file=%t.tree/001_attn-configure.mlir
// RUN: FileCheck %s --input-file=%t.out
// RUN: attn-opt --mlir-print-op-generic %s | FileCheck %s --check-prefix=GENERIC
// RUN: attn-opt --mlir-print-debuginfo %s | FileCheck %s --check-prefix=DEBUG
// RUN: cat %s | attn-opt - | FileCheck %s
// RUN: attn-opt --list-passes | FileCheck %s --check-prefix=LIST
// RUN: attn-opt --show-dialects | FileCheck %s --check-prefix=DIALECTS

// AFTER: IR Dump After cse
// AFTER: IR Dump After attn-configure
// AFTER: IR Dump After canonicalize
// AFTER: module {

// TIMING: s ({{.*}}%)  cse
// TIMING: s ({{.*}}%)  attn-configure
// TIMING: s ({{.*}}%)  func.func(canonicalize)
// TIMING: Total

// CHECK: func.func @f
// GENERIC: "func.func"() <{
// DEBUG: func.func @f() {
// DEBUG: loc("-":{{[0-9]+}}:1)

// LIST: Passes:
// LIST: --attn-configure {{.*}}Chooses tiles
// LIST: tile-n=0
// LIST: Pipelines:

// DIALECTS: {{^}}attn
// DIALECTS: {{^}}nvvm
func.func @f() { func.return }
