// RUN: attn-opt --split-input-file --verify-diagnostics %s

func.func @f(%a0: tensor<?x4x64xbf16>, %a1: tensor<?x16x4x64xbf16>, %a2: tensor<?x4x64xbf16>, %a3: tensor<?x4x64xbf16>, %a4: tensor<?xi32>) {
  // expected-error @below {{'attn.append' op expects k_cache to stand for a tensor [batch, sequence, heads, columns], got tensor<?x4x64xbf16>}}
  "attn.append"(%a0, %a1, %a2, %a3, %a4)
    {operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 0, 0, 0, 0>}
    : (tensor<?x4x64xbf16>, tensor<?x16x4x64xbf16>, tensor<?x4x64xbf16>, tensor<?x4x64xbf16>, tensor<?xi32>) -> ()
  func.return
}

// -----

func.func @f(%a0: tensor<?x16x4x64xbf16>, %a1: tensor<?x16x4x64xbf16>, %a2: tensor<?x4x64xbf16>, %a3: tensor<?x64xbf16>, %a4: tensor<?xi32>) {
  // expected-error @below {{'attn.append' op expects v_new to be a tensor of rank 3 or 4, got tensor<?x64xbf16>}}
  "attn.append"(%a0, %a1, %a2, %a3, %a4)
    {operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 0, 0, 0, 0>}
    : (tensor<?x16x4x64xbf16>, tensor<?x16x4x64xbf16>, tensor<?x4x64xbf16>, tensor<?x64xbf16>, tensor<?xi32>) -> ()
  func.return
}

// -----

func.func @f(%a0: tensor<?x16x?x64xbf16>, %a1: tensor<?x16x4x64xbf16>, %a2: tensor<?x4x64xbf16>, %a3: tensor<?x4x64xbf16>, %a4: tensor<?xi32>) {
  // expected-error @below {{'attn.append' op expects static heads and columns in k_cache, got tensor<?x16x?x64xbf16>}}
  "attn.append"(%a0, %a1, %a2, %a3, %a4)
    {operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 0, 0, 0, 0>}
    : (tensor<?x16x?x64xbf16>, tensor<?x16x4x64xbf16>, tensor<?x4x64xbf16>, tensor<?x4x64xbf16>, tensor<?xi32>) -> ()
  func.return
}

// -----

func.func @f(%a0: tensor<?x16x4x64xbf16>, %a1: tensor<?x16x4x64xbf16>, %a2: tensor<?x2x64xbf16>, %a3: tensor<?x4x64xbf16>, %a4: tensor<?xi32>) {
  // expected-error @below {{'attn.append' op expects k_new with the heads and columns of tensor<?x16x4x64xbf16>, got tensor<?x2x64xbf16>}}
  "attn.append"(%a0, %a1, %a2, %a3, %a4)
    {operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 0, 0, 0, 0>}
    : (tensor<?x16x4x64xbf16>, tensor<?x16x4x64xbf16>, tensor<?x2x64xbf16>, tensor<?x4x64xbf16>, tensor<?xi32>) -> ()
  func.return
}

// -----

func.func @f(%a0: tensor<?x16x4x64xbf16>, %a1: tensor<?x16x2x64xbf16>, %a2: tensor<?x4x64xbf16>, %a3: tensor<?x2x64xbf16>, %a4: tensor<?xi32>) {
  // expected-error @below {{'attn.append' op expects caches of as many heads, got tensor<?x16x4x64xbf16> and tensor<?x16x2x64xbf16>}}
  "attn.append"(%a0, %a1, %a2, %a3, %a4)
    {operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 0, 0, 0, 0>}
    : (tensor<?x16x4x64xbf16>, tensor<?x16x2x64xbf16>, tensor<?x4x64xbf16>, tensor<?x2x64xbf16>, tensor<?xi32>) -> ()
  func.return
}

// -----

func.func @f(%a0: tensor<?x16x4x64xbf16>, %a1: tensor<?x16x4x64xbf16>, %a2: tensor<?x4x64xbf16>, %a3: tensor<?x?x4x64xbf16>, %a4: tensor<?xi32>) {
  // expected-error @below {{'attn.append' op expects k_new and v_new of one shape but for columns, got tensor<?x4x64xbf16> and tensor<?x?x4x64xbf16>}}
  "attn.append"(%a0, %a1, %a2, %a3, %a4)
    {operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 0, 0, 0, 0>}
    : (tensor<?x16x4x64xbf16>, tensor<?x16x4x64xbf16>, tensor<?x4x64xbf16>, tensor<?x?x4x64xbf16>, tensor<?xi32>) -> ()
  func.return
}

// -----

func.func @f(%a0: tensor<?x16x4x64xbf16>, %a1: tensor<?x16x4x64xbf16>, %a2: tensor<?x4x64xbf16>, %a3: tensor<?x4x64xf16>, %a4: tensor<?xi32>) {
  // expected-error @below {{'attn.append' op expects caches of one element type and tokens of one, got bf16 and f16 for bf16}}
  "attn.append"(%a0, %a1, %a2, %a3, %a4)
    {operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 0, 0, 0, 0>}
    : (tensor<?x16x4x64xbf16>, tensor<?x16x4x64xbf16>, tensor<?x4x64xbf16>, tensor<?x4x64xf16>, tensor<?xi32>) -> ()
  func.return
}

// -----

func.func @f(%a0: tensor<?x16x4x64xbf16>, %a1: tensor<?x16x4x64xbf16>, %a2: tensor<?x4x64xf16>, %a3: tensor<?x4x64xf16>, %a4: tensor<?xi32>) {
  // expected-error @below {{'attn.append' op expects tokens of the cache's type, bf16, f16 or of 8 bits, or of bf16 or f16 for one of 8 bits, got f16 for bf16}}
  "attn.append"(%a0, %a1, %a2, %a3, %a4)
    {operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 0, 0, 0, 0>}
    : (tensor<?x16x4x64xbf16>, tensor<?x16x4x64xbf16>, tensor<?x4x64xf16>, tensor<?x4x64xf16>, tensor<?xi32>) -> ()
  func.return
}

// -----

func.func @f(%a0: tensor<?x16x4x64xf32>, %a1: tensor<?x16x4x64xf32>, %a2: tensor<?x4x64xf32>, %a3: tensor<?x4x64xf32>, %a4: tensor<?xi32>) {
  // expected-error @below {{'attn.append' op expects tokens of the cache's type, bf16, f16 or of 8 bits, or of bf16 or f16 for one of 8 bits, got f32 for f32}}
  "attn.append"(%a0, %a1, %a2, %a3, %a4)
    {operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 0, 0, 0, 0>}
    : (tensor<?x16x4x64xf32>, tensor<?x16x4x64xf32>, tensor<?x4x64xf32>, tensor<?x4x64xf32>, tensor<?xi32>) -> ()
  func.return
}

// -----

func.func @f(%a0: tensor<?x16x4x64xbf16>, %a1: tensor<?x16x4x64xbf16>, %a2: tensor<?x4x64xbf16>, %a3: tensor<?x4x64xbf16>, %a4: tensor<?xi16>) {
  // expected-error @below {{'attn.append' op expects slots to be a tensor [tokens] of i32, i64, got tensor<?xi16>}}
  "attn.append"(%a0, %a1, %a2, %a3, %a4)
    {operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 0, 0, 0, 0>}
    : (tensor<?x16x4x64xbf16>, tensor<?x16x4x64xbf16>, tensor<?x4x64xbf16>, tensor<?x4x64xbf16>, tensor<?xi16>) -> ()
  func.return
}

// -----

func.func @f(%a0: tensor<?x16x4x64xbf16>, %a1: tensor<?x16x4x64xbf16>, %a2: tensor<?x4x64xbf16>, %a3: tensor<?x4x64xbf16>, %a4: tensor<?x?xi32>, %a5: tensor<?xi32>) {
  // expected-error @below {{'attn.append' op expects positions to be a tensor [tokens] of i32, got tensor<?x?xi32>}}
  "attn.append"(%a0, %a1, %a2, %a3, %a4, %a5)
    {operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 1, 1, 0, 0>}
    : (tensor<?x16x4x64xbf16>, tensor<?x16x4x64xbf16>, tensor<?x4x64xbf16>, tensor<?x4x64xbf16>, tensor<?x?xi32>, tensor<?xi32>) -> ()
  func.return
}

// -----

func.func @f(%a0: tensor<?x16x4x64xbf16>, %a1: tensor<?x16x4x64xbf16>, %a2: tensor<?x?x4x64xbf16>, %a3: tensor<?x?x4x64xbf16>, %a4: tensor<?xi32>) {
  // expected-error @below {{'attn.append' op expects positions to be a tensor [batch, n] of i32, got tensor<?xi32>}}
  "attn.append"(%a0, %a1, %a2, %a3, %a4)
    {operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 1, 0, 0, 0>}
    : (tensor<?x16x4x64xbf16>, tensor<?x16x4x64xbf16>, tensor<?x?x4x64xbf16>, tensor<?x?x4x64xbf16>, tensor<?xi32>) -> ()
  func.return
}

// -----

func.func @f(%a0: tensor<?x16x4x64xbf16>, %a1: tensor<?x16x4x64xbf16>, %a2: tensor<?x4x64xbf16>, %a3: tensor<?x4x64xbf16>, %a4: tensor<?xi64>) {
  // expected-error @below {{'attn.append' op expects offsets to be a tensor [batch + 1] of i32, got tensor<?xi64>}}
  "attn.append"(%a0, %a1, %a2, %a3, %a4)
    {operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0, 0, 1, 0>}
    : (tensor<?x16x4x64xbf16>, tensor<?x16x4x64xbf16>, tensor<?x4x64xbf16>, tensor<?x4x64xbf16>, tensor<?xi64>) -> ()
  func.return
}

// -----

func.func @f(%a0: tensor<?x16x4x64xbf16>, %a1: tensor<?x16x4x64xbf16>, %a2: tensor<?x4x64xbf16>, %a3: tensor<?x4x64xbf16>, %a4: tensor<?xi32>, %a5: tensor<?xi32>) {
  // expected-error @below {{'attn.append' op expects at most one tensor of each of slots, positions, sequences, offsets}}
  "attn.append"(%a0, %a1, %a2, %a3, %a4, %a5)
    {operandSegmentSizes = array<i32: 1, 1, 1, 1, 2, 0, 0, 0, 0>}
    : (tensor<?x16x4x64xbf16>, tensor<?x16x4x64xbf16>, tensor<?x4x64xbf16>, tensor<?x4x64xbf16>, tensor<?xi32>, tensor<?xi32>) -> ()
  func.return
}

// -----

func.func @f(%a0: tensor<?x16x4x64xbf16>, %a1: tensor<?x16x4x64xbf16>, %a2: tensor<?x4x64xbf16>, %a3: tensor<?x4x64xbf16>, %a4: tensor<?xi32>) {
  // expected-error @below {{'attn.append' op expects tokens [tokens, ...] with slots, sequences or offsets, got nothing}}
  "attn.append"(%a0, %a1, %a2, %a3, %a4)
    {operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 1, 0, 0, 0>}
    : (tensor<?x16x4x64xbf16>, tensor<?x16x4x64xbf16>, tensor<?x4x64xbf16>, tensor<?x4x64xbf16>, tensor<?xi32>) -> ()
  func.return
}

// -----

func.func @f(%a0: tensor<?x16x4x64xbf16>, %a1: tensor<?x16x4x64xbf16>, %a2: tensor<?x4x64xbf16>, %a3: tensor<?x4x64xbf16>, %a4: tensor<?xi32>, %a5: tensor<?xi32>) {
  // expected-error @below {{'attn.append' op expects tokens [tokens, ...] with slots, sequences or offsets, got slots and offsets}}
  "attn.append"(%a0, %a1, %a2, %a3, %a4, %a5)
    {operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 0, 0, 1, 0>}
    : (tensor<?x16x4x64xbf16>, tensor<?x16x4x64xbf16>, tensor<?x4x64xbf16>, tensor<?x4x64xbf16>, tensor<?xi32>, tensor<?xi32>) -> ()
  func.return
}

// -----

func.func @f(%a0: tensor<?x16x4x64xbf16>, %a1: tensor<?x16x4x64xbf16>, %a2: tensor<?x?x4x64xbf16>, %a3: tensor<?x?x4x64xbf16>, %a4: tensor<?xi32>) {
  // expected-error @below {{'attn.append' op expects tokens [tokens, ...] with offsets, got [batch, n, ...]}}
  "attn.append"(%a0, %a1, %a2, %a3, %a4)
    {operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0, 0, 1, 0>}
    : (tensor<?x16x4x64xbf16>, tensor<?x16x4x64xbf16>, tensor<?x?x4x64xbf16>, tensor<?x?x4x64xbf16>, tensor<?xi32>) -> ()
  func.return
}

// -----

func.func @f(%a0: tensor<?x16x4x64xbf16>, %a1: tensor<?x16x4x64xbf16>, %a2: tensor<?x4x64xbf16>, %a3: tensor<?x4x64xbf16>, %a4: tensor<?xi32>) {
  // expected-error @below {{'attn.append' op expects positions beside sequences}}
  "attn.append"(%a0, %a1, %a2, %a3, %a4)
    {operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0, 1, 0, 0>}
    : (tensor<?x16x4x64xbf16>, tensor<?x16x4x64xbf16>, tensor<?x4x64xbf16>, tensor<?x4x64xbf16>, tensor<?xi32>) -> ()
  func.return
}

// -----

func.func @f(%a0: tensor<?x16x4x64xbf16>, %a1: tensor<?x16x4x64xbf16>, %a2: tensor<?x4x64xbf16>, %a3: tensor<?x4x64xbf16>, %a4: tensor<?xi32>) {
  // expected-error @below {{'attn.append' op expects angles for pairs that are interleaved}}
  "attn.append"(%a0, %a1, %a2, %a3, %a4)
    {operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 0, 0, 0, 0>, attn.interleaved}
    : (tensor<?x16x4x64xbf16>, tensor<?x16x4x64xbf16>, tensor<?x4x64xbf16>, tensor<?x4x64xbf16>, tensor<?xi32>) -> ()
  func.return
}

// -----

func.func @f(%a0: tensor<?x16x4x64xbf16>, %a1: tensor<?x16x4x64xbf16>, %a2: tensor<?x4x64xbf16>, %a3: tensor<?x4x64xbf16>, %a4: tensor<?xi32>, %a5: tensor<?xi32>, %a6: tensor<?x16xf32>) {
  // expected-error @below {{'attn.append' op expects cos and sin as angles, got 1 tensors}}
  "attn.append"(%a0, %a1, %a2, %a3, %a4, %a5, %a6)
    {operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 1, 1, 0, 1>}
    : (tensor<?x16x4x64xbf16>, tensor<?x16x4x64xbf16>, tensor<?x4x64xbf16>, tensor<?x4x64xbf16>, tensor<?xi32>, tensor<?xi32>, tensor<?x16xf32>) -> ()
  func.return
}

// -----

func.func @f(%a0: tensor<?x16x4x64xbf16>, %a1: tensor<?x16x4x64xbf16>, %a2: tensor<?x4x64xbf16>, %a3: tensor<?x4x64xbf16>, %a4: tensor<?xi32>, %a5: tensor<?xi32>, %a6: tensor<?x16xf32>, %a7: tensor<?x8xf32>) {
  // expected-error @below {{'attn.append' op expects cos and sin [positions, C] of one type, got tensor<?x16xf32> and tensor<?x8xf32>}}
  "attn.append"(%a0, %a1, %a2, %a3, %a4, %a5, %a6, %a7)
    {operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 1, 1, 0, 2>}
    : (tensor<?x16x4x64xbf16>, tensor<?x16x4x64xbf16>, tensor<?x4x64xbf16>, tensor<?x4x64xbf16>, tensor<?xi32>, tensor<?xi32>, tensor<?x16xf32>, tensor<?x8xf32>) -> ()
  func.return
}

// -----

func.func @f(%a0: tensor<?x16x4x64xbf16>, %a1: tensor<?x16x4x64xbf16>, %a2: tensor<?x4x64xbf16>, %a3: tensor<?x4x64xbf16>, %a4: tensor<?xi32>, %a5: tensor<?xi32>, %a6: tensor<?x12xf32>, %a7: tensor<?x12xf32>) {
  // expected-error @below {{'attn.append' op expects angles of 16 columns of a key or a multiple, up to 64, got tensor<?x12xf32>}}
  "attn.append"(%a0, %a1, %a2, %a3, %a4, %a5, %a6, %a7)
    {operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 1, 1, 0, 2>}
    : (tensor<?x16x4x64xbf16>, tensor<?x16x4x64xbf16>, tensor<?x4x64xbf16>, tensor<?x4x64xbf16>, tensor<?xi32>, tensor<?xi32>, tensor<?x12xf32>, tensor<?x12xf32>) -> ()
  func.return
}

// -----

func.func @f(%a0: tensor<?x16x4x64xbf16>, %a1: tensor<?x16x4x64xbf16>, %a2: tensor<?x4x64xbf16>, %a3: tensor<?x4x64xbf16>, %a4: tensor<?xi32>, %a5: tensor<?xi32>, %a6: tensor<?x40xf32>, %a7: tensor<?x40xf32>) {
  // expected-error @below {{'attn.append' op expects angles of 16 columns of a key or a multiple, up to 64, got tensor<?x40xf32>}}
  "attn.append"(%a0, %a1, %a2, %a3, %a4, %a5, %a6, %a7)
    {operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 1, 1, 0, 2>}
    : (tensor<?x16x4x64xbf16>, tensor<?x16x4x64xbf16>, tensor<?x4x64xbf16>, tensor<?x4x64xbf16>, tensor<?xi32>, tensor<?xi32>, tensor<?x40xf32>, tensor<?x40xf32>) -> ()
  func.return
}

// -----

func.func @f(%a0: tensor<?x16x4x64xbf16>, %a1: tensor<?x16x4x64xbf16>, %a2: tensor<?x4x64xbf16>, %a3: tensor<?x4x64xbf16>, %a4: tensor<?xi32>, %a5: tensor<?xi32>, %a6: tensor<?x?xf32>, %a7: tensor<?x?xf32>) {
  // expected-error @below {{'attn.append' op expects angles of 16 columns of a key or a multiple, up to 64, got tensor<?x?xf32>}}
  "attn.append"(%a0, %a1, %a2, %a3, %a4, %a5, %a6, %a7)
    {operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 1, 1, 0, 2>}
    : (tensor<?x16x4x64xbf16>, tensor<?x16x4x64xbf16>, tensor<?x4x64xbf16>, tensor<?x4x64xbf16>, tensor<?xi32>, tensor<?xi32>, tensor<?x?xf32>, tensor<?x?xf32>) -> ()
  func.return
}

// -----

func.func @f(%a0: tensor<?x16x4x64xbf16>, %a1: tensor<?x16x4x64xbf16>, %a2: tensor<?x4x64xbf16>, %a3: tensor<?x4x64xbf16>, %a4: tensor<?xi32>, %a5: tensor<?xi32>, %a6: tensor<?x16xf64>, %a7: tensor<?x16xf64>) {
  // expected-error @below {{'attn.append' op expects angles of bf16, f16, f32, got tensor<?x16xf64>}}
  "attn.append"(%a0, %a1, %a2, %a3, %a4, %a5, %a6, %a7)
    {operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 1, 1, 0, 2>}
    : (tensor<?x16x4x64xbf16>, tensor<?x16x4x64xbf16>, tensor<?x4x64xbf16>, tensor<?x4x64xbf16>, tensor<?xi32>, tensor<?xi32>, tensor<?x16xf64>, tensor<?x16xf64>) -> ()
  func.return
}

// -----

func.func @f(%a0: tensor<?x16x4x64xf8E5M2>, %a1: tensor<?x16x4x64xf8E5M2>, %a2: tensor<?x4x64xf8E5M2>, %a3: tensor<?x4x64xf8E5M2>, %a4: tensor<?xi32>, %a5: tensor<?xi32>, %a6: tensor<?x16xf32>, %a7: tensor<?x16xf32>) {
  // expected-error @below {{'attn.append' op expects keys of bf16 or f16 to rotate, got tensor<?x4x64xf8E5M2>}}
  "attn.append"(%a0, %a1, %a2, %a3, %a4, %a5, %a6, %a7)
    {operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 1, 1, 0, 2>}
    : (tensor<?x16x4x64xf8E5M2>, tensor<?x16x4x64xf8E5M2>, tensor<?x4x64xf8E5M2>, tensor<?x4x64xf8E5M2>, tensor<?xi32>, tensor<?xi32>, tensor<?x16xf32>, tensor<?x16xf32>) -> ()
  func.return
}

// -----

func.func @f(%a0: tensor<?x16x4x64xbf16>, %a1: tensor<?x16x4x64xbf16>, %a2: tensor<?x4x64xbf16>, %a3: tensor<?x4x64xbf16>, %a4: tensor<?xi32>, %a5: tensor<?x16xf32>, %a6: tensor<?x16xf32>) {
  // expected-error @below {{'attn.append' op expects positions for the angles beside slots}}
  "attn.append"(%a0, %a1, %a2, %a3, %a4, %a5, %a6)
    {operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 0, 0, 0, 2>}
    : (tensor<?x16x4x64xbf16>, tensor<?x16x4x64xbf16>, tensor<?x4x64xbf16>, tensor<?x4x64xbf16>, tensor<?xi32>, tensor<?x16xf32>, tensor<?x16xf32>) -> ()
  func.return
}
