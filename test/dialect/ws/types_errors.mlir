// RUN: attn-opt --split-input-file --verify-diagnostics %s

// The parser takes any parameters; the operation that meets them does not.

func.func @f(%s: !ws.tile<i32, "shared">) {
  // expected-error @below {{'ws.view' op expects operand 'source' to be a vector of 1 or 2 dimensions, got !ws.tile<i32, "shared">}}
  %0 = "ws.view"(%s) : (!ws.tile<i32, "shared">) -> !ws.tile<vector<8xf32>, "shared">
  func.return
}

// -----

func.func @f(%s: !ws.tile<vector<8x8xf32>, "shared">) {
  // expected-error @below {{'ws.view' op expects result 'view' to lie in shared or tensor memory, got !ws.tile<vector<8x8xf32>, "global">}}
  %0 = "ws.view"(%s) : (!ws.tile<vector<8x8xf32>, "shared">) -> !ws.tile<vector<8x8xf32>, "global">
  func.return
}

// -----

func.func @f(%s: !ws.tile<vector<8x8xf32>, 3>) {
  // expected-error @below {{'ws.load' op expects operand 'source' to lie in shared or tensor memory, got !ws.tile<vector<8x8xf32>, 3 : i64>}}
  %0 = "ws.load"(%s) : (!ws.tile<vector<8x8xf32>, 3>) -> !ws.frag<vector<8x8xf32>>
  func.return
}

// -----

func.func @f(%s: !ws.tile<vector<8xf32>, "tensor">) {
  // expected-error @below {{'ws.load' op expects operand 'source' to be a vector of 2 dimensions, got !ws.tile<vector<8xf32>, "tensor">}}
  %0 = "ws.load"(%s) : (!ws.tile<vector<8xf32>, "tensor">) -> !ws.frag<vector<8xf32>>
  func.return
}

// -----

func.func @f(%s: !ws.tile<vector<8xindex>, "shared">) {
  // expected-error @below {{'ws.load' op expects operand 'source' to have elements of a known width, got}}
  %0 = "ws.load"(%s) : (!ws.tile<vector<8xindex>, "shared">) -> !ws.frag<vector<8xindex>>
  func.return
}

// -----

func.func @f(%x: f32) {
  // expected-error @below {{'ws.fill' op expects result 'fragment' to be a vector of 1 or 2 dimensions, got !ws.frag<f32>}}
  %0 = "ws.fill"(%x) : (f32) -> !ws.frag<f32>
  func.return
}

// -----

func.func @f(%x: f32) {
  // expected-error @below {{'ws.fill' op expects result 'fragment' to be a vector of 1 or 2 dimensions, got !ws.frag<vector<2x2x2xf32>>}}
  %0 = "ws.fill"(%x) : (f32) -> !ws.frag<vector<2x2x2xf32>>
  func.return
}

// -----

func.func @f(%x: f32) {
  // expected-error @below {{'ws.fill' op expects result 'fragment' to be a vector of 1 or 2 dimensions, got !ws.frag<vector<[8]xf32>>}}
  %0 = "ws.fill"(%x) : (f32) -> !ws.frag<vector<[8]xf32>>
  func.return
}

// -----

func.func @f() {
  // expected-error @below {{'ws.alloc_ring' op expects result 'ring' to have counts of at least 1, got}}
  %r = "ws.alloc_ring"() {label_name = "r"} : () -> !ws.ring<!ws.tile<vector<8xf32>, "shared">, 0, 1>
  func.return
}

// -----

func.func @f() {
  // expected-error @below {{'ws.alloc_ring' op expects result 'ring' to have counts of at least 1, got}}
  %r = "ws.alloc_ring"() {label_name = "r"} : () -> !ws.ring<!ws.tile<vector<8xf32>, "shared">, 1, "a">
  func.return
}

// -----

func.func @f() {
  // expected-error @below {{'ws.alloc_ring' op expects result 'ring' to have slots of type !ws.tile or none, got !ws.ring<i32, 1 : i64, 1 : i64>}}
  %r = "ws.alloc_ring"() {label_name = "r"} : () -> !ws.ring<i32, 1, 1>
  func.return
}

// -----

func.func @f() {
  // expected-error @below {{'ws.alloc_buffer' op expects result 'buffer' to have counts of at least 1, got}}
  %b = "ws.alloc_buffer"() {label_name = "b"} : () -> !ws.buffer<!ws.tile<vector<8xf32>, "shared">, -1>
  func.return
}

// -----

func.func @f() {
  // expected-error @below {{'ws.alloc_buffer' op expects result 'buffer' to lie in shared or tensor memory, got}}
  %b = "ws.alloc_buffer"() {label_name = "b"} : () -> !ws.buffer<!ws.tile<vector<8xf32>, "local">, 1>
  func.return
}

// -----

func.func @f(%s: !ws.tile<vector<8x64xbf16>, "shared.48">) {
  // expected-error @below {{'ws.view' op expects operand 'source' to lie in shared, tensor, shared.64, shared.32, shared.16, got !ws.tile<vector<8x64xbf16>, "shared.48">}}
  %0 = "ws.view"(%s) : (!ws.tile<vector<8x64xbf16>, "shared.48">) -> !ws.tile<vector<8x64xbf16>, "shared">
  func.return
}

// -----

func.func @f(%s: !ws.tile<vector<64xbf16>, "shared.64">) {
  // expected-error @below {{'ws.view' op expects operand 'source' to be a vector of 2 dimensions, got !ws.tile<vector<64xbf16>, "shared.64">}}
  %0 = "ws.view"(%s) : (!ws.tile<vector<64xbf16>, "shared.64">) -> !ws.tile<vector<64xbf16>, "shared">
  func.return
}

// -----

func.func @f(%s: !ws.tile<vector<8x64xbf16>, "shared.64">) {
  // expected-error @below {{'ws.view' op expects a view in lines of 64 bytes, got 128}}
  %0 = "ws.view"(%s) : (!ws.tile<vector<8x64xbf16>, "shared.64">) -> !ws.tile<vector<8x64xbf16>, "shared">
  func.return
}

// -----

func.func @f(%s: !ws.tile<vector<8x64xbf16>, "shared.64">) {
  // expected-error @below {{'ws.columns' op expects a part of !ws.tile<vector<8x64xbf16>, "shared.64">, got !ws.tile<vector<8x32xbf16>, "shared">}}
  %0 = "ws.columns"(%s) {first = 0 : i64} : (!ws.tile<vector<8x64xbf16>, "shared.64">) -> !ws.tile<vector<8x32xbf16>, "shared">
  func.return
}
