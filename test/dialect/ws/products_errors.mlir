// RUN: attn-opt --split-input-file --verify-diagnostics %s

// Sums in tensor memory.

func.func @f(%d: !ws.tile<vector<128x64xf32>, "shared">, %a: !ws.tile<vector<128x16xbf16>, "shared">, %b: !ws.tile<vector<64x16xbf16>, "shared">, %c: i1) {
  // expected-error @below {{'ws.mma' op expects an f32 accumulator in tensor memory, got}}
  "ws.mma"(%d, %a, %b, %c) {b_layout = "nk"} : (!ws.tile<vector<128x64xf32>, "shared">, !ws.tile<vector<128x16xbf16>, "shared">, !ws.tile<vector<64x16xbf16>, "shared">, i1) -> ()
  func.return
}

// -----

func.func @f(%d: !ws.tile<vector<128x64xf32>, "tensor">, %a: !ws.tile<vector<16x128xbf16>, "tensor">, %b: !ws.tile<vector<64x16xbf16>, "shared">, %c: i1) {
  // expected-error @below {{'ws.mma' op expects a as km in shared memory, got}}
  "ws.mma"(%d, %a, %b, %c) {a_layout = "km", b_layout = "nk"} : (!ws.tile<vector<128x64xf32>, "tensor">, !ws.tile<vector<16x128xbf16>, "tensor">, !ws.tile<vector<64x16xbf16>, "shared">, i1) -> ()
  func.return
}

// -----

func.func @f(%d: !ws.tile<vector<128x64xf32>, "tensor">, %a: !ws.tile<vector<128x16xbf16>, "shared">, %b: !ws.tile<vector<64x16xbf16>, "shared">, %c: i1) {
  // expected-error @below {{'ws.mma' op expects a_layout of mk, km, got mn}}
  "ws.mma"(%d, %a, %b, %c) {a_layout = "mn", b_layout = "nk"} : (!ws.tile<vector<128x64xf32>, "tensor">, !ws.tile<vector<128x16xbf16>, "shared">, !ws.tile<vector<64x16xbf16>, "shared">, i1) -> ()
  func.return
}

// -----

func.func @f(%d: !ws.tile<vector<128x64xf32>, "tensor">, %a: !ws.tile<vector<16x48xbf16>, "shared">, %b: !ws.tile<vector<64x16xbf16>, "shared">, %c: i1) {
  // expected-error @below {{'ws.mma' op expects [M, N] = [M, K] x [K, N], got [128, 64], [48, 16], [16, 64]}}
  "ws.mma"(%d, %a, %b, %c) {a_layout = "km", b_layout = "nk"} : (!ws.tile<vector<128x64xf32>, "tensor">, !ws.tile<vector<16x48xbf16>, "shared">, !ws.tile<vector<64x16xbf16>, "shared">, i1) -> ()
  func.return
}

// -----

func.func @f(%d: !ws.tile<vector<128x64xbf16>, "tensor">, %a: !ws.tile<vector<128x16xbf16>, "shared">, %b: !ws.tile<vector<64x16xbf16>, "shared">, %c: i1) {
  // expected-error @below {{'ws.mma' op expects an f32 accumulator in tensor memory, got}}
  "ws.mma"(%d, %a, %b, %c) {b_layout = "nk"} : (!ws.tile<vector<128x64xbf16>, "tensor">, !ws.tile<vector<128x16xbf16>, "shared">, !ws.tile<vector<64x16xbf16>, "shared">, i1) -> ()
  func.return
}

// -----

func.func @f(%d: !ws.tile<vector<128x64xf32>, "tensor">, %a: !ws.tile<vector<128x16xbf16>, "shared">, %b: !ws.tile<vector<64x16xbf16>, "tensor">, %c: i1) {
  // expected-error @below {{'ws.mma' op expects b in shared memory, got}}
  "ws.mma"(%d, %a, %b, %c) {b_layout = "nk"} : (!ws.tile<vector<128x64xf32>, "tensor">, !ws.tile<vector<128x16xbf16>, "shared">, !ws.tile<vector<64x16xbf16>, "tensor">, i1) -> ()
  func.return
}

// -----

func.func @f(%d: !ws.tile<vector<128x64xf32>, "tensor">, %a: !ws.tile<vector<128x16xf16>, "shared">, %b: !ws.tile<vector<64x16xbf16>, "shared">, %c: i1) {
  // expected-error @below {{'ws.mma' op expects a and b of one element type, got f16, bf16}}
  "ws.mma"(%d, %a, %b, %c) {b_layout = "nk"} : (!ws.tile<vector<128x64xf32>, "tensor">, !ws.tile<vector<128x16xf16>, "shared">, !ws.tile<vector<64x16xbf16>, "shared">, i1) -> ()
  func.return
}

// -----

func.func @f(%d: !ws.tile<vector<128x64xf32>, "tensor">, %a: !ws.tile<vector<128x16xbf16>, "shared">, %b: !ws.tile<vector<64x16xbf16>, "shared">, %c: i1) {
  // expected-error @below {{'ws.mma' op expects b_layout of kn, nk, got mn}}
  "ws.mma"(%d, %a, %b, %c) {b_layout = "mn"} : (!ws.tile<vector<128x64xf32>, "tensor">, !ws.tile<vector<128x16xbf16>, "shared">, !ws.tile<vector<64x16xbf16>, "shared">, i1) -> ()
  func.return
}

// -----

func.func @f(%d: !ws.tile<vector<128x64xf32>, "tensor">, %a: !ws.tile<vector<128x16xbf16>, "shared">, %b: !ws.tile<vector<32x16xbf16>, "shared">, %c: i1) {
  // expected-error @below {{'ws.mma' op expects [M, N] = [M, K] x [K, N], got [128, 64], [128, 16], [16, 32]}}
  "ws.mma"(%d, %a, %b, %c) {b_layout = "nk"} : (!ws.tile<vector<128x64xf32>, "tensor">, !ws.tile<vector<128x16xbf16>, "shared">, !ws.tile<vector<32x16xbf16>, "shared">, i1) -> ()
  func.return
}

// -----

func.func @f(%d: !ws.tile<vector<128x64xf32>, "tensor">, %a: !ws.tile<vector<64x16xbf16>, "shared">, %b: !ws.tile<vector<64x16xbf16>, "shared">, %c: i1) {
  // expected-error @below {{'ws.mma' op expects [M, N] = [M, K] x [K, N], got [128, 64], [64, 16], [16, 64]}}
  "ws.mma"(%d, %a, %b, %c) {b_layout = "nk"} : (!ws.tile<vector<128x64xf32>, "tensor">, !ws.tile<vector<64x16xbf16>, "shared">, !ws.tile<vector<64x16xbf16>, "shared">, i1) -> ()
  func.return
}

// -----

func.func @f(%d: !ws.tile<vector<128x64xf32>, "tensor">, %a: !ws.tile<vector<128x16xbf16>, "shared">, %b: !ws.tile<vector<64x16xbf16>, "shared">, %c: i1) {
  // expected-error @below {{'ws.mma' op expects [M, N] = [M, K] x [K, N], got [128, 64], [128, 16], [64, 16]}}
  "ws.mma"(%d, %a, %b, %c) {b_layout = "kn"} : (!ws.tile<vector<128x64xf32>, "tensor">, !ws.tile<vector<128x16xbf16>, "shared">, !ws.tile<vector<64x16xbf16>, "shared">, i1) -> ()
  func.return
}

// -----

// Sums in registers.

func.func @f(%s: !ws.frag<vector<64x32xf16>>, %a: !ws.tile<vector<64x16xbf16>, "shared">, %b: !ws.tile<vector<32x16xbf16>, "shared">, %c: i1) {
  // expected-error @below {{'ws.product' op expects accumulators of two dimensions and f32, got !ws.frag<vector<64x32xf16>>}}
  %p = "ws.product"(%s, %a, %b, %c) {b_layout = "nk"} : (!ws.frag<vector<64x32xf16>>, !ws.tile<vector<64x16xbf16>, "shared">, !ws.tile<vector<32x16xbf16>, "shared">, i1) -> !ws.pending<!ws.frag<vector<64x32xf16>>>
  %f = "ws.settle"(%p) {newest = 0 : i64} : (!ws.pending<!ws.frag<vector<64x32xf16>>>) -> !ws.frag<vector<64x32xf16>>
  func.return
}

// -----

func.func @f(%s: !ws.frag<vector<64x32xf32>>, %a: !ws.tile<vector<64x16xbf16>, "shared">, %b: !ws.tile<vector<32x16xbf16>, "shared">, %c: i1) {
  // expected-error @below {{'ws.product' op expects a result of pending !ws.frag<vector<64x32xf32>>, got}}
  %p = "ws.product"(%s, %a, %b, %c) {b_layout = "nk"} : (!ws.frag<vector<64x32xf32>>, !ws.tile<vector<64x16xbf16>, "shared">, !ws.tile<vector<32x16xbf16>, "shared">, i1) -> !ws.pending<!ws.frag<vector<64x16xf32>>>
  %f = "ws.settle"(%p) {newest = 0 : i64} : (!ws.pending<!ws.frag<vector<64x16xf32>>>) -> !ws.frag<vector<64x16xf32>>
  func.return
}

// -----

func.func @f(%s: !ws.frag<vector<64x32xf32>>, %a: !ws.tile<vector<64x16xbf16>, "tensor">, %b: !ws.tile<vector<32x16xbf16>, "shared">, %c: i1) {
  // expected-error @below {{'ws.product' op expects a in shared memory or registers, got}}
  %p = "ws.product"(%s, %a, %b, %c) {b_layout = "nk"} : (!ws.frag<vector<64x32xf32>>, !ws.tile<vector<64x16xbf16>, "tensor">, !ws.tile<vector<32x16xbf16>, "shared">, i1) -> !ws.pending<!ws.frag<vector<64x32xf32>>>
  %f = "ws.settle"(%p) {newest = 0 : i64} : (!ws.pending<!ws.frag<vector<64x32xf32>>>) -> !ws.frag<vector<64x32xf32>>
  func.return
}

// -----

func.func @f(%s: !ws.frag<vector<64x32xf32>>, %a: !ws.tile<vector<64x16xbf16>, "shared">, %b: !ws.tile<vector<32x16xbf16>, "tensor">, %c: i1) {
  // expected-error @below {{'ws.product' op expects b in shared memory, got}}
  %p = "ws.product"(%s, %a, %b, %c) {b_layout = "nk"} : (!ws.frag<vector<64x32xf32>>, !ws.tile<vector<64x16xbf16>, "shared">, !ws.tile<vector<32x16xbf16>, "tensor">, i1) -> !ws.pending<!ws.frag<vector<64x32xf32>>>
  %f = "ws.settle"(%p) {newest = 0 : i64} : (!ws.pending<!ws.frag<vector<64x32xf32>>>) -> !ws.frag<vector<64x32xf32>>
  func.return
}

// -----

func.func @f(%s: !ws.frag<vector<64x32xf32>>, %a: !ws.frag<vector<64x16xf16>>, %b: !ws.tile<vector<32x16xbf16>, "shared">, %c: i1) {
  // expected-error @below {{'ws.product' op expects a and b of one element type, got f16, bf16}}
  %p = "ws.product"(%s, %a, %b, %c) {b_layout = "nk"} : (!ws.frag<vector<64x32xf32>>, !ws.frag<vector<64x16xf16>>, !ws.tile<vector<32x16xbf16>, "shared">, i1) -> !ws.pending<!ws.frag<vector<64x32xf32>>>
  %f = "ws.settle"(%p) {newest = 0 : i64} : (!ws.pending<!ws.frag<vector<64x32xf32>>>) -> !ws.frag<vector<64x32xf32>>
  func.return
}

// -----

func.func @f(%s: !ws.frag<vector<64x32xf32>>, %a: !ws.tile<vector<64x16xbf16>, "shared">, %b: !ws.tile<vector<32x16xbf16>, "shared">, %c: i1) {
  // expected-error @below {{'ws.product' op expects b_layout of kn, nk, got mn}}
  %p = "ws.product"(%s, %a, %b, %c) {b_layout = "mn"} : (!ws.frag<vector<64x32xf32>>, !ws.tile<vector<64x16xbf16>, "shared">, !ws.tile<vector<32x16xbf16>, "shared">, i1) -> !ws.pending<!ws.frag<vector<64x32xf32>>>
  %f = "ws.settle"(%p) {newest = 0 : i64} : (!ws.pending<!ws.frag<vector<64x32xf32>>>) -> !ws.frag<vector<64x32xf32>>
  func.return
}

// -----

func.func @f(%s: !ws.frag<vector<64x32xf32>>, %a: !ws.tile<vector<64x16xbf16>, "shared">, %b: !ws.tile<vector<32x16xbf16>, "shared">, %c: i1) {
  // expected-error @below {{'ws.product' op expects [M, N] = [M, K] x [K, N], got [64, 32], [64, 16], [32, 16]}}
  %p = "ws.product"(%s, %a, %b, %c) {b_layout = "kn"} : (!ws.frag<vector<64x32xf32>>, !ws.tile<vector<64x16xbf16>, "shared">, !ws.tile<vector<32x16xbf16>, "shared">, i1) -> !ws.pending<!ws.frag<vector<64x32xf32>>>
  %f = "ws.settle"(%p) {newest = 0 : i64} : (!ws.pending<!ws.frag<vector<64x32xf32>>>) -> !ws.frag<vector<64x32xf32>>
  func.return
}

// -----

func.func @f(%s: !ws.frag<vector<64x32xf32>>, %a: !ws.tile<vector<64x16xbf16>, "shared">, %b: !ws.tile<vector<32x16xbf16>, "shared">, %c: i1) {
  // expected-error @below {{'ws.product' op expects operand 'a' of !ws.tile or !ws.frag, got i1}}
  %p = "ws.product"(%s, %c, %b, %c) {b_layout = "nk"} : (!ws.frag<vector<64x32xf32>>, i1, !ws.tile<vector<32x16xbf16>, "shared">, i1) -> !ws.pending<!ws.frag<vector<64x32xf32>>>
  %f = "ws.settle"(%p) {newest = 0 : i64} : (!ws.pending<!ws.frag<vector<64x32xf32>>>) -> !ws.frag<vector<64x32xf32>>
  func.return
}

// -----

func.func @f(%s: !ws.frag<vector<64x32xf32>>, %a: !ws.tile<vector<64x16xbf16>, "shared">, %b: !ws.tile<vector<32x16xbf16>, "shared">, %c: i1) {
  // expected-error @below {{'ws.product' op expects one ws.settle to use its result, got 0 uses}}
  %p = "ws.product"(%s, %a, %b, %c) {b_layout = "nk"} : (!ws.frag<vector<64x32xf32>>, !ws.tile<vector<64x16xbf16>, "shared">, !ws.tile<vector<32x16xbf16>, "shared">, i1) -> !ws.pending<!ws.frag<vector<64x32xf32>>>
  func.return
}

// -----

func.func @f(%s: !ws.frag<vector<64x32xf32>>, %a: !ws.tile<vector<64x16xbf16>, "shared">, %b: !ws.tile<vector<32x16xbf16>, "shared">, %c: i1) {
  // expected-error @below {{'ws.product' op expects one ws.settle to use its result, got 2 uses}}
  %p = "ws.product"(%s, %a, %b, %c) {b_layout = "nk"} : (!ws.frag<vector<64x32xf32>>, !ws.tile<vector<64x16xbf16>, "shared">, !ws.tile<vector<32x16xbf16>, "shared">, i1) -> !ws.pending<!ws.frag<vector<64x32xf32>>>
  %f = "ws.settle"(%p) {newest = 0 : i64} : (!ws.pending<!ws.frag<vector<64x32xf32>>>) -> !ws.frag<vector<64x32xf32>>
  %g = "ws.settle"(%p) {newest = 0 : i64} : (!ws.pending<!ws.frag<vector<64x32xf32>>>) -> !ws.frag<vector<64x32xf32>>
  func.return
}

// -----

func.func @f(%s: !ws.frag<vector<64x32xf32>>, %a: !ws.tile<vector<64x16xbf16>, "shared">, %b: !ws.tile<vector<32x16xbf16>, "shared">, %c: i1) {
  %lo = arith.constant 0 : index
  %hi = arith.constant 4 : index
  %step = arith.constant 1 : index
  // expected-error @below {{'ws.product' op expects one ws.settle to use its result, got 1 uses}}
  %p = "ws.product"(%s, %a, %b, %c) {b_layout = "nk"} : (!ws.frag<vector<64x32xf32>>, !ws.tile<vector<64x16xbf16>, "shared">, !ws.tile<vector<32x16xbf16>, "shared">, i1) -> !ws.pending<!ws.frag<vector<64x32xf32>>>
  %r = scf.for %i = %lo to %hi step %step iter_args(%q = %p) -> (!ws.pending<!ws.frag<vector<64x32xf32>>>) {
  scf.yield %q : !ws.pending<!ws.frag<vector<64x32xf32>>>
  }
  func.return
}

// -----

func.func @f(%s: !ws.frag<vector<64x32xf32>>, %a: !ws.tile<vector<64x16xbf16>, "shared">, %b: !ws.tile<vector<32x16xbf16>, "shared">, %c: i1) {
  // expected-error @below {{'ws.product' op expects its ws.settle in the same block}}
  %p = "ws.product"(%s, %a, %b, %c) {b_layout = "nk"} : (!ws.frag<vector<64x32xf32>>, !ws.tile<vector<64x16xbf16>, "shared">, !ws.tile<vector<32x16xbf16>, "shared">, i1) -> !ws.pending<!ws.frag<vector<64x32xf32>>>
  scf.if %c {
  %f = "ws.settle"(%p) {newest = 0 : i64} : (!ws.pending<!ws.frag<vector<64x32xf32>>>) -> !ws.frag<vector<64x32xf32>>
  }
  func.return
}

// -----

func.func @f(%s: !ws.frag<vector<64x32xf32>>, %a: !ws.tile<vector<64x16xbf16>, "shared">, %b: !ws.tile<vector<32x16xbf16>, "shared">, %c: i1) {
  %p = "ws.product"(%s, %a, %b, %c) {b_layout = "nk"} : (!ws.frag<vector<64x32xf32>>, !ws.tile<vector<64x16xbf16>, "shared">, !ws.tile<vector<32x16xbf16>, "shared">, i1) -> !ws.pending<!ws.frag<vector<64x32xf32>>>
  // expected-error @below {{'ws.settle' op expects a result of type !ws.frag<vector<64x32xf32>>, got !ws.frag<vector<64x16xf32>>}}
  %f = "ws.settle"(%p) {newest = 0 : i64} : (!ws.pending<!ws.frag<vector<64x32xf32>>>) -> !ws.frag<vector<64x16xf32>>
  func.return
}

// -----

func.func @f(%p: !ws.pending<!ws.frag<vector<64x32xf32>>>) {
  // expected-error @below {{'ws.settle' op expects the result of a ws.product}}
  %f = "ws.settle"(%p) {newest = 0 : i64} : (!ws.pending<!ws.frag<vector<64x32xf32>>>) -> !ws.frag<vector<64x32xf32>>
  func.return
}

// -----

func.func @f(%s: !ws.frag<vector<64x32xf32>>, %a: !ws.tile<vector<64x16xbf16>, "shared">, %b: !ws.tile<vector<32x16xbf16>, "shared">, %c: i1) {
  %p = "ws.product"(%s, %a, %b, %c) {b_layout = "nk"} : (!ws.frag<vector<64x32xf32>>, !ws.tile<vector<64x16xbf16>, "shared">, !ws.tile<vector<32x16xbf16>, "shared">, i1) -> !ws.pending<!ws.frag<vector<64x32xf32>>>
  %q = "ws.product"(%s, %a, %b, %c) {b_layout = "nk"} : (!ws.frag<vector<64x32xf32>>, !ws.tile<vector<64x16xbf16>, "shared">, !ws.tile<vector<32x16xbf16>, "shared">, i1) -> !ws.pending<!ws.frag<vector<64x32xf32>>>
  // expected-error @below {{'ws.settle' op expects products to be settled in the order of issue}}
  %g = "ws.settle"(%q) {newest = 0 : i64} : (!ws.pending<!ws.frag<vector<64x32xf32>>>) -> !ws.frag<vector<64x32xf32>>
  %f = "ws.settle"(%p) {newest = 0 : i64} : (!ws.pending<!ws.frag<vector<64x32xf32>>>) -> !ws.frag<vector<64x32xf32>>
  func.return
}

// -----

func.func @f(%s: !ws.frag<vector<64x32xf32>>, %a: !ws.tile<vector<64x16xbf16>, "shared">, %b: !ws.tile<vector<32x16xbf16>, "shared">, %c: i1) {
  %p = "ws.product"(%s, %a, %b, %c) {b_layout = "nk"} : (!ws.frag<vector<64x32xf32>>, !ws.tile<vector<64x16xbf16>, "shared">, !ws.tile<vector<32x16xbf16>, "shared">, i1) -> !ws.pending<!ws.frag<vector<64x32xf32>>>
  // expected-error @below {{'ws.settle' op expects newest within 0..0, the later ones, got 1}}
  %f = "ws.settle"(%p) {newest = 1 : i64} : (!ws.pending<!ws.frag<vector<64x32xf32>>>) -> !ws.frag<vector<64x32xf32>>
  %q = "ws.product"(%s, %a, %b, %c) {b_layout = "nk"} : (!ws.frag<vector<64x32xf32>>, !ws.tile<vector<64x16xbf16>, "shared">, !ws.tile<vector<32x16xbf16>, "shared">, i1) -> !ws.pending<!ws.frag<vector<64x32xf32>>>
  %g = "ws.settle"(%q) {newest = 0 : i64} : (!ws.pending<!ws.frag<vector<64x32xf32>>>) -> !ws.frag<vector<64x32xf32>>
  func.return
}

// -----

func.func @f(%s: !ws.frag<vector<64x32xf32>>, %a: !ws.tile<vector<64x16xbf16>, "shared">, %b: !ws.tile<vector<32x16xbf16>, "shared">, %c: i1) {
  %p = "ws.product"(%s, %a, %b, %c) {b_layout = "nk"} : (!ws.frag<vector<64x32xf32>>, !ws.tile<vector<64x16xbf16>, "shared">, !ws.tile<vector<32x16xbf16>, "shared">, i1) -> !ws.pending<!ws.frag<vector<64x32xf32>>>
  %q = "ws.product"(%s, %a, %b, %c) {b_layout = "nk"} : (!ws.frag<vector<64x32xf32>>, !ws.tile<vector<64x16xbf16>, "shared">, !ws.tile<vector<32x16xbf16>, "shared">, i1) -> !ws.pending<!ws.frag<vector<64x32xf32>>>
  // expected-error @below {{'ws.settle' op expects newest within 0..1, the later ones, got -1}}
  %f = "ws.settle"(%p) {newest = -1 : i64} : (!ws.pending<!ws.frag<vector<64x32xf32>>>) -> !ws.frag<vector<64x32xf32>>
  %g = "ws.settle"(%q) {newest = 0 : i64} : (!ws.pending<!ws.frag<vector<64x32xf32>>>) -> !ws.frag<vector<64x32xf32>>
  func.return
}

// -----

func.func @f(%s: !ws.frag<vector<64x32xf32>>, %a: !ws.tile<vector<64x16xbf16>, "shared">, %b: !ws.tile<vector<32x16xbf16>, "shared">, %c: i1) {
  // expected-error @below {{'ws.product' op expects result 'pending' to be a pending !ws.frag, got}}
  %p = "ws.product"(%s, %a, %b, %c) {b_layout = "nk"} : (!ws.frag<vector<64x32xf32>>, !ws.tile<vector<64x16xbf16>, "shared">, !ws.tile<vector<32x16xbf16>, "shared">, i1) -> !ws.pending<i1>
  %f = "ws.settle"(%p) {newest = 0 : i64} : (!ws.pending<i1>) -> !ws.frag<vector<64x32xf32>>
  func.return
}

// -----

// Sums that another block goes on with.

func.func @f(%s: !ws.frag<vector<64x32xf32>>, %a: !ws.tile<vector<64x16xbf16>, "shared">, %b: !ws.tile<vector<32x16xbf16>, "shared">, %c: i1) {
  // expected-error @below {{'ws.product' op expects its ws.product in the same block}}
  %p = "ws.product"(%s, %a, %b, %c) {b_layout = "nk"} : (!ws.frag<vector<64x32xf32>>, !ws.tile<vector<64x16xbf16>, "shared">, !ws.tile<vector<32x16xbf16>, "shared">, i1) -> !ws.pending<!ws.frag<vector<64x32xf32>>>
  scf.if %c {
    %q = "ws.product"(%p, %a, %b, %c) {b_layout = "nk"} : (!ws.pending<!ws.frag<vector<64x32xf32>>>, !ws.tile<vector<64x16xbf16>, "shared">, !ws.tile<vector<32x16xbf16>, "shared">, i1) -> !ws.pending<!ws.frag<vector<64x32xf32>>>
    %f = "ws.settle"(%q) {newest = 0 : i64} : (!ws.pending<!ws.frag<vector<64x32xf32>>>) -> !ws.frag<vector<64x32xf32>>
  }
  func.return
}

// -----

func.func @f(%s: !ws.frag<vector<64x32xf32>>, %a: !ws.tile<vector<16x32xbf16>, "shared">, %b: !ws.tile<vector<32x16xbf16>, "shared">, %more: i1) -> !ws.frag<vector<64x32xf32>> {
  // expected-error @below {{'ws.product' op expects [M, N] = [M, K] x [K, N], got [64, 32], [32, 16], [16, 32]}}
  %1 = "ws.product"(%s, %a, %b, %more) {a_layout = "km", b_layout = "nk"} : (!ws.frag<vector<64x32xf32>>, !ws.tile<vector<16x32xbf16>, "shared">, !ws.tile<vector<32x16xbf16>, "shared">, i1) -> !ws.pending<!ws.frag<vector<64x32xf32>>>
  %f = "ws.settle"(%1) {newest = 0 : i64} : (!ws.pending<!ws.frag<vector<64x32xf32>>>) -> !ws.frag<vector<64x32xf32>>
  func.return %f : !ws.frag<vector<64x32xf32>>
}

// -----

func.func @f(%s: !ws.frag<vector<64x32xf32>>, %a: !ws.frag<vector<16x64xbf16>>, %b: !ws.tile<vector<32x16xbf16>, "shared">, %more: i1) -> !ws.frag<vector<64x32xf32>> {
  // expected-error @below {{'ws.product' op expects a as km in shared memory, got}}
  %1 = "ws.product"(%s, %a, %b, %more) {a_layout = "km", b_layout = "nk"} : (!ws.frag<vector<64x32xf32>>, !ws.frag<vector<16x64xbf16>>, !ws.tile<vector<32x16xbf16>, "shared">, i1) -> !ws.pending<!ws.frag<vector<64x32xf32>>>
  %f = "ws.settle"(%1) {newest = 0 : i64} : (!ws.pending<!ws.frag<vector<64x32xf32>>>) -> !ws.frag<vector<64x32xf32>>
  func.return %f : !ws.frag<vector<64x32xf32>>
}
