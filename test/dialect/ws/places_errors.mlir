// RUN: attn-opt --split-input-file --verify-diagnostics %s

// Only lanes of tensor memory are one thread's.

func.func @f(%s: !ws.ring<!ws.tile<vector<128x64xbf16>, "shared">, 1, 2>) {
  // expected-error @below {{'ws.alloc_inside' op expects a lender in tensor memory, got !ws.ring<!ws.tile<vector<128x64xbf16>, "shared">, 1 : i64, 2 : i64>}}
  %p = "ws.alloc_inside"(%s) {label_name = "p"} : (!ws.ring<!ws.tile<vector<128x64xbf16>, "shared">, 1, 2>) -> !ws.ring<!ws.tile<vector<128x64xbf16>, "shared">, 1, 2>
  func.return
}

// -----

// Tokens are nowhere.

func.func @f(%s: !ws.ring<none, 1, 2>) {
  // expected-error @below {{'ws.alloc_inside' op expects a lender in tensor memory, got !ws.ring<none, 1 : i64, 2 : i64>}}
  %p = "ws.alloc_inside"(%s) {label_name = "p"} : (!ws.ring<none, 1, 2>) -> !ws.ring<none, 1, 2>
  func.return
}

// -----

// Slot by slot.

func.func @f(%s: !ws.ring<!ws.tile<vector<128x64xf32>, "tensor">, 1, 2>) {
  // expected-error @below {{'ws.alloc_inside' op expects a multiple of the lender's 1 stages and as many ways, 2, got 1 and 1}}
  %p = "ws.alloc_inside"(%s) {label_name = "p"} : (!ws.ring<!ws.tile<vector<128x64xf32>, "tensor">, 1, 2>) -> !ws.ring<!ws.tile<vector<128x64xbf16>, "tensor">, 1, 1>
  func.return
}

// -----

func.func @f(%s: !ws.ring<!ws.tile<vector<128x64xf32>, "tensor">, 2, 2>) {
  // expected-error @below {{'ws.alloc_inside' op expects a multiple of the lender's 2 stages and as many ways, 2, got 3 and 2}}
  %p = "ws.alloc_inside"(%s) {label_name = "p"} : (!ws.ring<!ws.tile<vector<128x64xf32>, "tensor">, 2, 2>) -> !ws.ring<!ws.tile<vector<128x32xbf16>, "tensor">, 3, 2>
  func.return
}

// -----

// Parts of a slot: their bytes, and columns that are no parts.

func.func @f(%s: !ws.ring<!ws.tile<vector<128x64xf32>, "tensor">, 1, 2>) {
  %p = "ws.alloc_inside"(%s) {label_name = "p"} : (!ws.ring<!ws.tile<vector<128x64xf32>, "tensor">, 1, 2>) -> !ws.ring<!ws.tile<vector<128x32xf32>, "tensor">, 2, 2>
  func.return
}

// -----

func.func @f(%s: !ws.ring<!ws.tile<vector<128x64xf32>, "tensor">, 1, 2>) {
  // expected-error @below {{'ws.alloc_inside' op expects slots at the front of 2 parts of !ws.tile<vector<128x64xf32>, "tensor">, got !ws.tile<vector<128x33xf32>, "tensor">}}
  %p = "ws.alloc_inside"(%s) {label_name = "p"} : (!ws.ring<!ws.tile<vector<128x64xf32>, "tensor">, 1, 2>) -> !ws.ring<!ws.tile<vector<128x33xf32>, "tensor">, 2, 2>
  func.return
}

// -----

func.func @f(%s: !ws.ring<!ws.tile<vector<128x64xf32>, "tensor">, 1, 2>) {
  // expected-error @below {{'ws.alloc_inside' op expects slots at the front of 3 parts of !ws.tile<vector<128x64xf32>, "tensor">, got !ws.tile<vector<128x16xf32>, "tensor">}}
  %p = "ws.alloc_inside"(%s) {label_name = "p"} : (!ws.ring<!ws.tile<vector<128x64xf32>, "tensor">, 1, 2>) -> !ws.ring<!ws.tile<vector<128x16xf32>, "tensor">, 3, 2>
  func.return
}

// -----

// A slot inside a slot.

func.func @f(%s: !ws.ring<!ws.tile<vector<128x64xf32>, "tensor">, 1, 2>) {
  // expected-error @below {{'ws.alloc_inside' op expects slots at the front of !ws.tile<vector<128x64xf32>, "tensor">, got !ws.tile<vector<128x65xf32>, "tensor">}}
  %p = "ws.alloc_inside"(%s) {label_name = "p"} : (!ws.ring<!ws.tile<vector<128x64xf32>, "tensor">, 1, 2>) -> !ws.ring<!ws.tile<vector<128x65xf32>, "tensor">, 1, 2>
  func.return
}

// -----

func.func @f(%s: !ws.ring<!ws.tile<vector<128x64xf32>, "tensor">, 1, 2>) {
  // expected-error @below {{'ws.alloc_inside' op expects slots at the front of !ws.tile<vector<128x64xf32>, "tensor">, got !ws.tile<vector<64x64xf32>, "tensor">}}
  %p = "ws.alloc_inside"(%s) {label_name = "p"} : (!ws.ring<!ws.tile<vector<128x64xf32>, "tensor">, 1, 2>) -> !ws.ring<!ws.tile<vector<64x64xf32>, "tensor">, 1, 2>
  func.return
}

// -----

func.func @f(%s: !ws.ring<!ws.tile<vector<128x64xf32>, "tensor">, 1, 2>) {
  // expected-error @below {{'ws.alloc_inside' op expects slots at the front of !ws.tile<vector<128x64xf32>, "tensor">, got !ws.tile<vector<128x64xbf16>, "shared">}}
  %p = "ws.alloc_inside"(%s) {label_name = "p"} : (!ws.ring<!ws.tile<vector<128x64xf32>, "tensor">, 1, 2>) -> !ws.ring<!ws.tile<vector<128x64xbf16>, "shared">, 1, 2>
  func.return
}

// -----

func.func @f(%s: !ws.ring<!ws.tile<vector<128x64xf32>, "tensor">, 1, 2>) {
  // expected-error @below {{'ws.alloc_inside' op expects slots at the front of !ws.tile<vector<128x64xf32>, "tensor">, got none}}
  %p = "ws.alloc_inside"(%s) {label_name = "p"} : (!ws.ring<!ws.tile<vector<128x64xf32>, "tensor">, 1, 2>) -> !ws.ring<none, 1, 2>
  func.return
}

// -----

// All of it is no less than the front.

func.func @f(%s: !ws.ring<!ws.tile<vector<128x64xf32>, "tensor">, 1, 2>) {
  %p = "ws.alloc_inside"(%s) {label_name = "p"} : (!ws.ring<!ws.tile<vector<128x64xf32>, "tensor">, 1, 2>) -> !ws.ring<!ws.tile<vector<128x64xf32>, "tensor">, 1, 2>
  func.return
}

// -----

// Nobody lends what is borrowed.

func.func @f(%s: !ws.ring<!ws.tile<vector<128x64xf32>, "tensor">, 1, 2>) {
  %p = "ws.alloc_inside"(%s) {label_name = "p"} : (!ws.ring<!ws.tile<vector<128x64xf32>, "tensor">, 1, 2>) -> !ws.ring<!ws.tile<vector<128x64xbf16>, "tensor">, 1, 2>
  // expected-error @below {{'ws.alloc_inside' op expects a lender with a place of its own, got ring p}}
  %r = "ws.alloc_inside"(%p) {label_name = "r"} : (!ws.ring<!ws.tile<vector<128x64xbf16>, "tensor">, 1, 2>) -> !ws.ring<!ws.tile<vector<128x64xbf16>, "tensor">, 1, 2>
  func.return
}

// -----

// ... or lends twice.

func.func @f() {
  // expected-error @below {{'ws.alloc_ring' op lends its place to one ring, got p and r}}
  %s = "ws.alloc_ring"() {label_name = "s"} : () -> !ws.ring<!ws.tile<vector<128x64xf32>, "tensor">, 1, 2>
  %p = "ws.alloc_inside"(%s) {label_name = "p"} : (!ws.ring<!ws.tile<vector<128x64xf32>, "tensor">, 1, 2>) -> !ws.ring<!ws.tile<vector<128x64xbf16>, "tensor">, 1, 2>
  %r = "ws.alloc_inside"(%s) {label_name = "r"} : (!ws.ring<!ws.tile<vector<128x64xf32>, "tensor">, 1, 2>) -> !ws.ring<!ws.tile<vector<128x64xbf16>, "tensor">, 1, 2>
  func.return
}

// -----

func.func @f(%s: !ws.ring<!ws.tile<vector<128x64xf32>, "tensor">, 1, 2>) {
  // expected-error @below {{'ws.alloc_inside' op expects producers of threads, warps, tensor_core, copy_engine, thread_copies, got ['host']}}
  %p = "ws.alloc_inside"(%s) {label_name = "p", producers = ["host"]} : (!ws.ring<!ws.tile<vector<128x64xf32>, "tensor">, 1, 2>) -> !ws.ring<!ws.tile<vector<128x64xbf16>, "tensor">, 1, 2>
  func.return
}

// -----

"ws.kernel"() ({
^bb0:
  %s = "ws.alloc_ring"() {label_name = "s"} : () -> !ws.ring<!ws.tile<vector<128x64xf32>, "tensor">, 1, 2>
  // expected-error @below {{'ws.alloc_inside' op expects a kernel without clusters, got one of 2 CTAs}}
  %p = "ws.alloc_inside"(%s) {label_name = "p"} : (!ws.ring<!ws.tile<vector<128x64xf32>, "tensor">, 1, 2>) -> !ws.ring<!ws.tile<vector<128x64xbf16>, "tensor">, 1, 2>
}) {sym_name = "k", arg_names = [], arg_roles = [], arg_dims = [], cluster = 2 : i64} : () -> ()
