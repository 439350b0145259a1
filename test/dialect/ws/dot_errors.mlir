// RUN: attn-opt --split-input-file --verify-diagnostics %s

func.func @f(%d: !ws.frag<vector<16x8xbf16>>, %a: !ws.frag<vector<16x16xbf16>>, %b: !ws.frag<vector<8x16xbf16>>) {
  // expected-error @below {{'ws.dot' op expects accumulators of f32, got !ws.frag<vector<16x8xbf16>>}}
  %0 = "ws.dot"(%d, %a, %b) {b_layout = "nk"} : (!ws.frag<vector<16x8xbf16>>, !ws.frag<vector<16x16xbf16>>, !ws.frag<vector<8x16xbf16>>) -> !ws.frag<vector<16x8xbf16>>
  func.return
}

// -----

func.func @f(%d: !ws.frag<vector<16x8xf32>>, %a: !ws.frag<vector<16x16xbf16>>, %b: !ws.frag<vector<8x16xbf16>>) {
  // expected-error @below {{'ws.dot' op expects a result of type !ws.frag<vector<16x8xf32>>, got !ws.frag<vector<8x8xf32>>}}
  %0 = "ws.dot"(%d, %a, %b) {b_layout = "nk"} : (!ws.frag<vector<16x8xf32>>, !ws.frag<vector<16x16xbf16>>, !ws.frag<vector<8x16xbf16>>) -> !ws.frag<vector<8x8xf32>>
  func.return
}

// -----

func.func @f(%d: !ws.frag<vector<16x8xf32>>, %a: !ws.frag<vector<16xbf16>>, %b: !ws.frag<vector<8x16xbf16>>) {
  // expected-error @below {{'ws.dot' op expects fragments of rank 2, got !ws.frag<vector<16x8xf32>>, !ws.frag<vector<16xbf16>> and !ws.frag<vector<8x16xbf16>>}}
  %0 = "ws.dot"(%d, %a, %b) {b_layout = "nk"} : (!ws.frag<vector<16x8xf32>>, !ws.frag<vector<16xbf16>>, !ws.frag<vector<8x16xbf16>>) -> !ws.frag<vector<16x8xf32>>
  func.return
}

// -----

func.func @f(%d: !ws.frag<vector<16x8xf32>>, %a: !ws.frag<vector<16x16xbf16>>, %b: !ws.frag<vector<8x16xf16>>) {
  // expected-error @below {{'ws.dot' op expects a and b of one element type, got bf16, f16}}
  %0 = "ws.dot"(%d, %a, %b) {b_layout = "nk"} : (!ws.frag<vector<16x8xf32>>, !ws.frag<vector<16x16xbf16>>, !ws.frag<vector<8x16xf16>>) -> !ws.frag<vector<16x8xf32>>
  func.return
}

// -----

func.func @f(%d: !ws.frag<vector<16x8xf32>>, %a: !ws.frag<vector<16x16xbf16>>, %b: !ws.frag<vector<8x16xbf16>>) {
  // expected-error @below {{'ws.dot' op expects b_layout of kn, nk, got mn}}
  %0 = "ws.dot"(%d, %a, %b) {b_layout = "mn"} : (!ws.frag<vector<16x8xf32>>, !ws.frag<vector<16x16xbf16>>, !ws.frag<vector<8x16xbf16>>) -> !ws.frag<vector<16x8xf32>>
  func.return
}

// -----

func.func @f(%d: !ws.frag<vector<16x8xf32>>, %a: !ws.frag<vector<16x16xbf16>>, %b: !ws.frag<vector<8x16xbf16>>) {
  // expected-error @below {{'ws.dot' op expects [M, N] = [M, K] x [K, N], got [16, 8], [16, 16], [8, 16]}}
  %0 = "ws.dot"(%d, %a, %b) {b_layout = "kn"} : (!ws.frag<vector<16x8xf32>>, !ws.frag<vector<16x16xbf16>>, !ws.frag<vector<8x16xbf16>>) -> !ws.frag<vector<16x8xf32>>
  func.return
}

// -----

func.func @f(%d: !ws.frag<vector<16x8xf32>>, %a: !ws.frag<vector<16x16xbf16>>, %b: !ws.frag<vector<16x16xbf16>>) {
  // expected-error @below {{'ws.dot' op expects [M, N] = [M, K] x [K, N], got [16, 8], [16, 16], [16, 16]}}
  %0 = "ws.dot"(%d, %a, %b) {b_layout = "nk"} : (!ws.frag<vector<16x8xf32>>, !ws.frag<vector<16x16xbf16>>, !ws.frag<vector<16x16xbf16>>) -> !ws.frag<vector<16x8xf32>>
  func.return
}

// -----

func.func @f(%d: !ws.frag<vector<32x8xf32>>, %a: !ws.frag<vector<16x16xbf16>>, %b: !ws.frag<vector<8x16xbf16>>) {
  // expected-error @below {{'ws.dot' op expects [M, N] = [M, K] x [K, N], got [32, 8], [16, 16], [16, 8]}}
  %0 = "ws.dot"(%d, %a, %b) {b_layout = "nk"} : (!ws.frag<vector<32x8xf32>>, !ws.frag<vector<16x16xbf16>>, !ws.frag<vector<8x16xbf16>>) -> !ws.frag<vector<32x8xf32>>
  func.return
}
