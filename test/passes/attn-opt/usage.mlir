// What the command line refuses before anything runs: exit status 2 and one line.

// RUN: %python -c "import subprocess, sys; sys.exit(subprocess.run(sys.argv[1:]).returncode != 2)" attn-opt --attn-configur %s 2>&1 | FileCheck %s --check-prefix=NEAR
// NEAR: attn-opt: error: unknown flag, pass or pipeline 'attn-configur': did you mean attn-configure

// RUN: not attn-opt --pass-pipeline='builtin.module(gpu.module(canonicalise))' %s 2>&1 | FileCheck %s --check-prefix=UPSTREAM
// UPSTREAM: attn-opt: error: unknown pass or pipeline 'canonicalise': did you mean canonicalize

// RUN: not attn-opt --pass-pipeline='builtin.module(func.func(attn-configure))' %s 2>&1 | FileCheck %s --check-prefix=NEST
// NEST: attn-opt: error: 'attn-configure' runs on builtin.module, not on func.func: move it out of 'func.func(...)'

// RUN: not attn-opt --attn-configure=tile=64 %s 2>&1 | FileCheck %s --check-prefix=OPTION
// OPTION: attn-opt: error: 'attn-configure' has no option 'tile': allowed are target, tile-n, kv-stages, exp2-period

// RUN: not attn-opt --attn-configure=tile-n=wide %s 2>&1 | FileCheck %s --check-prefix=VALUE
// VALUE: attn-opt: error: option 'tile-n' of 'attn-configure' expects an integer, got 'wide'

// RUN: not attn-opt --attn-check-stage=stage=moon %s 2>&1 | FileCheck %s --check-prefix=CHOICE
// CHOICE: attn-opt: error: option 'stage' of 'attn-check-stage' expects one of attn, ws, nvvm, llvm, binary, got 'moon'

// RUN: not attn-opt --cse --pass-pipeline=cse %s 2>&1 | FileCheck %s --check-prefix=BOTH
// BOTH: attn-opt: error: --pass-pipeline and --cse exclude each other

// RUN: not attn-opt %s %s 2>&1 | FileCheck %s --check-prefix=FILES
// FILES: attn-opt: error: unexpected argument

// RUN: not attn-opt %s.missing 2>&1 | FileCheck %s --check-prefix=MISSING
// MISSING: attn-opt: error: {{.*}}No such file
