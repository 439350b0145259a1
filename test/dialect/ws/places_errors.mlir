// RUN: attn-opt --split-input-file --verify-diagnostics %s

// The memory is the lender's.

func.func @f(%s: !ws.ring<!ws.tile<vector<128x64xbf16>, "shared">, 1, 2>) {
  // expected-error @below {{'ws.alloc_inside' op expects slots within !ws.tile<vector<128x64xbf16>, "shared">, got !ws.tile<vector<128x64xbf16>, "tensor"> at 0}}
  %p = "ws.alloc_inside"(%s) {label_name = "p"} : (!ws.ring<!ws.tile<vector<128x64xbf16>, "shared">, 1, 2>) -> !ws.ring<!ws.tile<vector<128x64xbf16>, "tensor">, 1, 2>
  func.return
}

// -----

// Tokens are nowhere.

func.func @f(%s: !ws.ring<none, 1, 2>) {
  // expected-error @below {{'ws.alloc_inside' op expects a lender that has memory, got !ws.ring<none, 1 : i64, 2 : i64>}}
  %p = "ws.alloc_inside"(%s) {label_name = "p"} : (!ws.ring<none, 1, 2>) -> !ws.ring<none, 1, 2>
  func.return
}

// -----

// Slot by slot.

func.func @f(%s: !ws.ring<!ws.tile<vector<128x64xf32>, "tensor">, 1, 2>) {
  // expected-error @below {{'ws.alloc_inside' op expects a multiple of the lender's 1 stages and as many instances, 2, got 1 and 1}}
  %p = "ws.alloc_inside"(%s) {label_name = "p"} : (!ws.ring<!ws.tile<vector<128x64xf32>, "tensor">, 1, 2>) -> !ws.ring<!ws.tile<vector<128x64xbf16>, "tensor">, 1, 1>
  func.return
}

// -----

func.func @f(%s: !ws.ring<!ws.tile<vector<128x64xf32>, "tensor">, 2, 2>) {
  // expected-error @below {{'ws.alloc_inside' op expects a multiple of the lender's 2 stages and as many instances, 2, got 3 and 2}}
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
  // expected-error @below {{'ws.alloc_inside' op expects slots within 2 parts of !ws.tile<vector<128x64xf32>, "tensor">, got !ws.tile<vector<128x33xf32>, "tensor"> at 0}}
  %p = "ws.alloc_inside"(%s) {label_name = "p"} : (!ws.ring<!ws.tile<vector<128x64xf32>, "tensor">, 1, 2>) -> !ws.ring<!ws.tile<vector<128x33xf32>, "tensor">, 2, 2>
  func.return
}

// -----

func.func @f(%s: !ws.ring<!ws.tile<vector<128x64xf32>, "tensor">, 1, 2>) {
  // expected-error @below {{'ws.alloc_inside' op expects slots within 3 parts of !ws.tile<vector<128x64xf32>, "tensor">, got !ws.tile<vector<128x16xf32>, "tensor"> at 0}}
  %p = "ws.alloc_inside"(%s) {label_name = "p"} : (!ws.ring<!ws.tile<vector<128x64xf32>, "tensor">, 1, 2>) -> !ws.ring<!ws.tile<vector<128x16xf32>, "tensor">, 3, 2>
  func.return
}

// -----

// A slot inside a slot.

func.func @f(%s: !ws.ring<!ws.tile<vector<128x64xf32>, "tensor">, 1, 2>) {
  // expected-error @below {{'ws.alloc_inside' op expects slots within !ws.tile<vector<128x64xf32>, "tensor">, got !ws.tile<vector<128x65xf32>, "tensor"> at 0}}
  %p = "ws.alloc_inside"(%s) {label_name = "p"} : (!ws.ring<!ws.tile<vector<128x64xf32>, "tensor">, 1, 2>) -> !ws.ring<!ws.tile<vector<128x65xf32>, "tensor">, 1, 2>
  func.return
}

// -----

func.func @f(%s: !ws.ring<!ws.tile<vector<128x64xf32>, "tensor">, 1, 2>) {
  // expected-error @below {{'ws.alloc_inside' op expects slots of 128 rows within !ws.tile<vector<128x64xf32>, "tensor">, got !ws.tile<vector<64x64xf32>, "tensor"> at 0}}
  %p = "ws.alloc_inside"(%s) {label_name = "p"} : (!ws.ring<!ws.tile<vector<128x64xf32>, "tensor">, 1, 2>) -> !ws.ring<!ws.tile<vector<64x64xf32>, "tensor">, 1, 2>
  func.return
}

// -----

func.func @f(%s: !ws.ring<!ws.tile<vector<128x64xf32>, "tensor">, 1, 2>) {
  // expected-error @below {{'ws.alloc_inside' op expects slots within !ws.tile<vector<128x64xf32>, "tensor">, got !ws.tile<vector<128x64xbf16>, "shared"> at 0}}
  %p = "ws.alloc_inside"(%s) {label_name = "p"} : (!ws.ring<!ws.tile<vector<128x64xf32>, "tensor">, 1, 2>) -> !ws.ring<!ws.tile<vector<128x64xbf16>, "shared">, 1, 2>
  func.return
}

// -----

func.func @f(%s: !ws.ring<!ws.tile<vector<128x64xf32>, "tensor">, 1, 2>) {
  // expected-error @below {{'ws.alloc_inside' op expects slots within !ws.tile<vector<128x64xf32>, "tensor">, got none at 0}}
  %p = "ws.alloc_inside"(%s) {label_name = "p"} : (!ws.ring<!ws.tile<vector<128x64xf32>, "tensor">, 1, 2>) -> !ws.ring<none, 1, 2>
  func.return
}

// -----

// All of it.

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

func.func @f(%s: !ws.ring<!ws.tile<vector<128x64xf32>, "tensor">, 1, 2>) {
  // expected-error @below {{'ws.alloc_inside' op expects producers of threads, warps, tensor_core, copy_engine, thread_copies, got ['host']}}
  %p = "ws.alloc_inside"(%s) {label_name = "p", producers = ["host"]} : (!ws.ring<!ws.tile<vector<128x64xf32>, "tensor">, 1, 2>) -> !ws.ring<!ws.tile<vector<128x64xbf16>, "tensor">, 1, 2>
  func.return
}

// -----

// From an offset on: columns of tensor memory, the last that there are ...

func.func @f(%s: !ws.ring<!ws.tile<vector<128x64xf32>, "tensor">, 1, 2>) {
  %p = "ws.alloc_inside"(%s) {label_name = "p", offset = 32 : i64} : (!ws.ring<!ws.tile<vector<128x64xf32>, "tensor">, 1, 2>) -> !ws.ring<!ws.tile<vector<128x64xbf16>, "tensor">, 1, 2>
  func.return
}

// -----

func.func @f(%s: !ws.ring<!ws.tile<vector<128x64xf32>, "tensor">, 1, 2>) {
  // expected-error @below {{'ws.alloc_inside' op expects slots within !ws.tile<vector<128x64xf32>, "tensor">, got !ws.tile<vector<128x64xbf16>, "tensor"> at 33}}
  %p = "ws.alloc_inside"(%s) {label_name = "p", offset = 33 : i64} : (!ws.ring<!ws.tile<vector<128x64xf32>, "tensor">, 1, 2>) -> !ws.ring<!ws.tile<vector<128x64xbf16>, "tensor">, 1, 2>
  func.return
}

// -----

func.func @f(%s: !ws.ring<!ws.tile<vector<128x64xf32>, "tensor">, 1, 2>) {
  // expected-error @below {{'ws.alloc_inside' op expects slots within !ws.tile<vector<128x64xf32>, "tensor">, got !ws.tile<vector<128x64xbf16>, "tensor"> at -1}}
  %p = "ws.alloc_inside"(%s) {label_name = "p", offset = -1 : i64} : (!ws.ring<!ws.tile<vector<128x64xf32>, "tensor">, 1, 2>) -> !ws.ring<!ws.tile<vector<128x64xbf16>, "tensor">, 1, 2>
  func.return
}

// -----

// ... or bytes of shared memory, in whole patterns of the swizzle.

func.func @f(%s: !ws.ring<!ws.tile<vector<128x64xbf16>, "shared">, 1, 2>) {
  %p = "ws.alloc_inside"(%s) {label_name = "p", offset = 8192 : i64} : (!ws.ring<!ws.tile<vector<128x64xbf16>, "shared">, 1, 2>) -> !ws.ring<!ws.tile<vector<64x64xbf16>, "shared">, 1, 2>
  func.return
}

// -----

func.func @f(%s: !ws.ring<!ws.tile<vector<128x64xbf16>, "shared">, 1, 2>) {
  // expected-error @below {{'ws.alloc_inside' op expects slots at multiples of 1024 bytes within !ws.tile<vector<128x64xbf16>, "shared">, got !ws.tile<vector<64x64xbf16>, "shared"> at 8176}}
  %p = "ws.alloc_inside"(%s) {label_name = "p", offset = 8176 : i64} : (!ws.ring<!ws.tile<vector<128x64xbf16>, "shared">, 1, 2>) -> !ws.ring<!ws.tile<vector<64x64xbf16>, "shared">, 1, 2>
  func.return
}

// -----

func.func @f(%s: !ws.ring<!ws.tile<vector<128x64xbf16>, "shared">, 1, 2>) {
  // expected-error @below {{'ws.alloc_inside' op expects slots within !ws.tile<vector<128x64xbf16>, "shared">, got !ws.tile<vector<64x64xbf16>, "shared"> at 9216}}
  %p = "ws.alloc_inside"(%s) {label_name = "p", offset = 9216 : i64} : (!ws.ring<!ws.tile<vector<128x64xbf16>, "shared">, 1, 2>) -> !ws.ring<!ws.tile<vector<64x64xbf16>, "shared">, 1, 2>
  func.return
}

// -----

// A vector in a tile, not a tile in a vector.

func.func @f(%s: !ws.ring<!ws.tile<vector<128x64xbf16>, "shared">, 1, 2>) {
  %p = "ws.alloc_inside"(%s) {label_name = "p", offset = 16256 : i64} : (!ws.ring<!ws.tile<vector<128x64xbf16>, "shared">, 1, 2>) -> !ws.ring<!ws.tile<vector<32xf32>, "shared">, 1, 2>
  func.return
}

// -----

func.func @f(%s: !ws.ring<!ws.tile<vector<512xf32>, "shared">, 1, 2>) {
  // expected-error @below {{'ws.alloc_inside' op expects slots at multiples of 1024 bytes within !ws.tile<vector<512xf32>, "shared">, got !ws.tile<vector<8x64xbf16>, "shared"> at 0}}
  %p = "ws.alloc_inside"(%s) {label_name = "p"} : (!ws.ring<!ws.tile<vector<512xf32>, "shared">, 1, 2>) -> !ws.ring<!ws.tile<vector<8x64xbf16>, "shared">, 1, 2>
  func.return
}

// -----

// Parts begin where patterns do.

func.func @f(%s: !ws.ring<!ws.tile<vector<24x64xbf16>, "shared">, 1, 2>) {
  // expected-error @below {{'ws.alloc_inside' op expects slots at multiples of 1024 bytes within 2 parts of !ws.tile<vector<24x64xbf16>, "shared">, got !ws.tile<vector<8x64xbf16>, "shared"> at 0}}
  %p = "ws.alloc_inside"(%s) {label_name = "p"} : (!ws.ring<!ws.tile<vector<24x64xbf16>, "shared">, 1, 2>) -> !ws.ring<!ws.tile<vector<8x64xbf16>, "shared">, 2, 2>
  func.return
}
