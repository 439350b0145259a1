// RUN: attn-opt --split-input-file --verify-diagnostics %s

func.func @f(%x: tensor<?x4x64xf8E5M2>, %scales: tensor<?x?xf32>) {
  // expected-error @below {{'attn.scaled' op expects source to stand for a tensor [batch, sequence, heads, columns], got tensor<?x4x64xf8E5M2>}}
  %k = "attn.scaled"(%x, %scales) {block = array<i32: 0, 64>} : (tensor<?x4x64xf8E5M2>, tensor<?x?xf32>)
    -> !attn.view<tensor<?x4x64xf8E5M2>, tensor<?x4x64xf8E5M2>>
  func.return
}

// -----

func.func @f(%x: tensor<?x?x4x64xf8E5M2>, %scales: tensor<?xf32>) {
  // expected-error @below {{'attn.scaled' op expects scales to be a tensor [batch, kv_heads] of f32, got tensor<?xf32>}}
  %k = "attn.scaled"(%x, %scales) {block = array<i32: 0, 64>} : (tensor<?x?x4x64xf8E5M2>, tensor<?xf32>)
    -> !attn.view<tensor<?x?x4x64xf8E5M2>, tensor<?x?x4x64xf8E5M2>>
  func.return
}

// -----

func.func @f(%x: tensor<?x?x4x64xf8E5M2>, %scales: tensor<?x?xf16>) {
  // expected-error @below {{'attn.scaled' op expects scales to be a tensor [batch, kv_heads] of f32, got tensor<?x?xf16>}}
  %k = "attn.scaled"(%x, %scales) {block = array<i32: 0, 64>} : (tensor<?x?x4x64xf8E5M2>, tensor<?x?xf16>)
    -> !attn.view<tensor<?x?x4x64xf8E5M2>, tensor<?x?x4x64xf8E5M2>>
  func.return
}

// -----

func.func @f(%x: tensor<?x?x4x64xf8E5M2>, %scales: tensor<?x?xf32>) {
  // expected-error @below {{'attn.scaled' op expects a result of type !attn.view<tensor<?x?x4x64xf8E5M2>, tensor<?x?x4x64xf8E5M2>>, got !attn.view<tensor<?x?x4x64xf32>, tensor<?x?x4x64xf8E5M2>>}}
  %k = "attn.scaled"(%x, %scales) {block = array<i32: 0, 64>} : (tensor<?x?x4x64xf8E5M2>, tensor<?x?xf32>)
    -> !attn.view<tensor<?x?x4x64xf32>, tensor<?x?x4x64xf8E5M2>>
  func.return
}

// -----

func.func @f(%x: tensor<?x?x4x64xf8E5M2>, %scales: tensor<?x?x4x2xf64>) {
  // expected-error @below {{'attn.scaled' op expects scales of positions of type f32, f16, bf16, got tensor<?x?x4x2xf64>}}
  %k = "attn.scaled"(%x, %scales) {block = array<i32: 1, 32>} : (tensor<?x?x4x64xf8E5M2>, tensor<?x?x4x2xf64>)
    -> !attn.view<tensor<?x?x4x64xf8E5M2>, tensor<?x?x4x64xf8E5M2>>
  func.return
}

// -----

func.func @f(%x: tensor<?x?x4x64xf8E5M2>, %scales: tensor<?x?x4x3xf32>) {
  // expected-error @below {{'attn.scaled' op expects scales of 4 heads or 1, in groups that divide 64 columns, got tensor<?x?x4x3xf32>}}
  %k = "attn.scaled"(%x, %scales) {block = array<i32: 1, 21>} : (tensor<?x?x4x64xf8E5M2>, tensor<?x?x4x3xf32>)
    -> !attn.view<tensor<?x?x4x64xf8E5M2>, tensor<?x?x4x64xf8E5M2>>
  func.return
}

// -----

func.func @f(%x: tensor<?x?x4x64xf8E5M2>, %scales: tensor<?x?x2x1xf32>) {
  // expected-error @below {{'attn.scaled' op expects scales of 4 heads or 1, in groups that divide 64 columns, got tensor<?x?x2x1xf32>}}
  %k = "attn.scaled"(%x, %scales) {block = array<i32: 1, 64>} : (tensor<?x?x4x64xf8E5M2>, tensor<?x?x2x1xf32>)
    -> !attn.view<tensor<?x?x4x64xf8E5M2>, tensor<?x?x4x64xf8E5M2>>
  func.return
}

// -----

func.func @f(%x: tensor<?x?x4x64xf8E5M2>, %scales: tensor<?x?x4x?xf32>) {
  // expected-error @below {{'attn.scaled' op expects static heads and groups of scales of positions, got tensor<?x?x4x?xf32>}}
  %k = "attn.scaled"(%x, %scales) {block = array<i32: 1, 64>} : (tensor<?x?x4x64xf8E5M2>, tensor<?x?x4x?xf32>)
    -> !attn.view<tensor<?x?x4x64xf8E5M2>, tensor<?x?x4x64xf8E5M2>>
  func.return
}

// -----

func.func @f(%x: tensor<?x?x4x64xf8E5M2>, %scales: tensor<?x?xf32>) {
  // expected-error @below {{'attn.scaled' op expects a block of rows and columns, got [0]}}
  %k = "attn.scaled"(%x, %scales) {block = array<i32: 0>} : (tensor<?x?x4x64xf8E5M2>, tensor<?x?xf32>)
    -> !attn.view<tensor<?x?x4x64xf8E5M2>, tensor<?x?x4x64xf8E5M2>>
  func.return
}

// -----

func.func @f(%x: tensor<?x?x4x64xf8E5M2>, %scales: tensor<?x?xf32>) {
  // expected-error @below {{'attn.scaled' op expects a block of rows and columns, got [-1, 64]}}
  %k = "attn.scaled"(%x, %scales) {block = array<i32: -1, 64>} : (tensor<?x?x4x64xf8E5M2>, tensor<?x?xf32>)
    -> !attn.view<tensor<?x?x4x64xf8E5M2>, tensor<?x?x4x64xf8E5M2>>
  func.return
}

// -----

func.func @f(%x: tensor<?x?x4x64xf8E5M2>, %scales: tensor<?x?xf32>) {
  // expected-error @below {{'attn.scaled' op expects a block of all columns of tensor<?x?x4x64xf8E5M2>, got [0, 32]}}
  %k = "attn.scaled"(%x, %scales) {block = array<i32: 0, 32>} : (tensor<?x?x4x64xf8E5M2>, tensor<?x?xf32>)
    -> !attn.view<tensor<?x?x4x64xf8E5M2>, tensor<?x?x4x64xf8E5M2>>
  func.return
}

// -----

func.func @f(%x: tensor<?x?x4x64xf8E5M2>, %scales: tensor<?x?xf32>) {
  // expected-error @below {{'attn.scaled' op expects scales to be a tensor [batch, row blocks, kv_heads, column blocks], got tensor<?x?xf32>}}
  %k = "attn.scaled"(%x, %scales) {block = array<i32: 1, 64>} : (tensor<?x?x4x64xf8E5M2>, tensor<?x?xf32>)
    -> !attn.view<tensor<?x?x4x64xf8E5M2>, tensor<?x?x4x64xf8E5M2>>
  func.return
}

// -----

func.func @f(%x: tensor<?x?x4x64xf8E5M2>, %scales: tensor<?x?x4x2xf32>) {
  // expected-error @below {{'attn.scaled' op expects a block of 32 columns for 2 groups, got [16, 64]}}
  %k = "attn.scaled"(%x, %scales) {block = array<i32: 16, 64>} : (tensor<?x?x4x64xf8E5M2>, tensor<?x?x4x2xf32>)
    -> !attn.view<tensor<?x?x4x64xf8E5M2>, tensor<?x?x4x64xf8E5M2>>
  func.return
}

// -----

func.func @f(%x: tensor<?x200x4x64xf8E5M2>, %scales: tensor<?x3x4x2xf32>) {
  // expected-error @below {{'attn.scaled' op expects 4 blocks of 64 positions, got tensor<?x3x4x2xf32>}}
  %k = "attn.scaled"(%x, %scales) {block = array<i32: 64, 32>} : (tensor<?x200x4x64xf8E5M2>, tensor<?x3x4x2xf32>)
    -> !attn.view<tensor<?x200x4x64xf8E5M2>, tensor<?x200x4x64xf8E5M2>>
  func.return
}
