// RUN: attn-opt --split-input-file --verify-diagnostics %s

func.func @f(%parts: tensor<?x?x4x64xf32>, %lses: tensor<?x?x4x?xf32>) {
  // expected-error @below {{'attn.combine' op expects parts to be a tensor of rank 5, got tensor<?x?x4x64xf32>}}
  %o, %lse = "attn.combine"(%parts, %lses) {operandSegmentSizes = array<i32: 1, 1, 0>}
    : (tensor<?x?x4x64xf32>, tensor<?x?x4x?xf32>) -> (tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>)
  func.return
}

// -----

func.func @f(%parts: tensor<?x?x?x4x64xf32>, %lses: tensor<?x?x4x?xf32>) {
  // expected-error @below {{'attn.combine' op expects lse to be a tensor of rank 3, got f32}}
  %o, %lse = "attn.combine"(%parts, %lses) {operandSegmentSizes = array<i32: 1, 1, 0>}
    : (tensor<?x?x?x4x64xf32>, tensor<?x?x4x?xf32>) -> (tensor<?x?x4x64xbf16>, f32)
  func.return
}

// -----

func.func @f(%parts: tensor<?x?x?x4x64xbf16>, %lses: tensor<?x?x4x?xf32>) {
  // expected-error @below {{'attn.combine' op expects parts elements of type f32, got bf16}}
  %o, %lse = "attn.combine"(%parts, %lses) {operandSegmentSizes = array<i32: 1, 1, 0>}
    : (tensor<?x?x?x4x64xbf16>, tensor<?x?x4x?xf32>) -> (tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>)
  func.return
}

// -----

func.func @f(%parts: tensor<?x?x?x4x64xf32>, %lses: tensor<?x?x4x?xf16>) {
  // expected-error @below {{'attn.combine' op expects lses elements of type f32, got f16}}
  %o, %lse = "attn.combine"(%parts, %lses) {operandSegmentSizes = array<i32: 1, 1, 0>}
    : (tensor<?x?x?x4x64xf32>, tensor<?x?x4x?xf16>) -> (tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>)
  func.return
}

// -----

func.func @f(%parts: tensor<?x?x?x4x64xf32>, %lses: tensor<?x?x4x?xf32>) {
  // expected-error @below {{'attn.combine' op expects o elements of type bf16, f16, f32, got i8}}
  %o, %lse = "attn.combine"(%parts, %lses) {operandSegmentSizes = array<i32: 1, 1, 0>}
    : (tensor<?x?x?x4x64xf32>, tensor<?x?x4x?xf32>) -> (tensor<?x?x4x64xi8>, tensor<?x4x?xf32>)
  func.return
}

// -----

func.func @f(%parts: tensor<?x?x?x?x64xf32>, %lses: tensor<?x?x4x?xf32>) {
  // expected-error @below {{'attn.combine' op expects static heads and columns in parts, got tensor<?x?x?x?x64xf32>}}
  %o, %lse = "attn.combine"(%parts, %lses) {operandSegmentSizes = array<i32: 1, 1, 0>}
    : (tensor<?x?x?x?x64xf32>, tensor<?x?x4x?xf32>) -> (tensor<?x?x?x64xbf16>, tensor<?x4x?xf32>)
  func.return
}

// -----

func.func @f(%parts: tensor<?x?x?x4x64xf32>, %lses: tensor<?x?x4x?xf32>) {
  // expected-error @below {{'attn.combine' op expects o of the shape of a part, got tensor<?x?x4x32xbf16>}}
  %o, %lse = "attn.combine"(%parts, %lses) {operandSegmentSizes = array<i32: 1, 1, 0>}
    : (tensor<?x?x?x4x64xf32>, tensor<?x?x4x?xf32>) -> (tensor<?x?x4x32xbf16>, tensor<?x4x?xf32>)
  func.return
}

// -----

func.func @f(%parts: tensor<?x?x?x4x64xf32>, %lses: tensor<?x?x4x?xf32>) {
  // expected-error @below {{'attn.combine' op expects lse [batch, heads, sq] and lses of as many parts, got tensor<?x2x?xf32> and tensor<?x?x4x?xf32>}}
  %o, %lse = "attn.combine"(%parts, %lses) {operandSegmentSizes = array<i32: 1, 1, 0>}
    : (tensor<?x?x?x4x64xf32>, tensor<?x?x4x?xf32>) -> (tensor<?x?x4x64xbf16>, tensor<?x2x?xf32>)
  func.return
}

// -----

func.func @f(%parts: tensor<?x?x?x4x64xf32>, %lses: tensor<?x?x4x?xf32>, %s0: tensor<4xf32>, %s1: tensor<4xf32>) {
  // expected-error @below {{'attn.combine' op expects at most one tensor of sinks, got 2}}
  %o, %lse = "attn.combine"(%parts, %lses, %s0, %s1) {operandSegmentSizes = array<i32: 1, 1, 2>}
    : (tensor<?x?x?x4x64xf32>, tensor<?x?x4x?xf32>, tensor<4xf32>, tensor<4xf32>) -> (tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>)
  func.return
}

// -----

func.func @f(%parts: tensor<?x?x?x4x64xf32>, %lses: tensor<?x?x4x?xf32>, %s0: tensor<8xf32>) {
  // expected-error @below {{'attn.combine' op expects sinks to be a tensor [4] of bf16, f16, f32, got tensor<8xf32>}}
  %o, %lse = "attn.combine"(%parts, %lses, %s0) {operandSegmentSizes = array<i32: 1, 1, 1>}
    : (tensor<?x?x?x4x64xf32>, tensor<?x?x4x?xf32>, tensor<8xf32>) -> (tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>)
  func.return
}

// -----

func.func @f(%parts: tensor<?x?x?x4x64xf32>, %lses: tensor<?x?x4x?xf32>, %s0: tensor<4xi32>) {
  // expected-error @below {{'attn.combine' op expects sinks to be a tensor [4] of bf16, f16, f32, got tensor<4xi32>}}
  %o, %lse = "attn.combine"(%parts, %lses, %s0) {operandSegmentSizes = array<i32: 1, 1, 1>}
    : (tensor<?x?x?x4x64xf32>, tensor<?x?x4x?xf32>, tensor<4xi32>) -> (tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>)
  func.return
}

// -----

func.func @f(%q: tensor<2x?x4x64xbf16>, %scale: f32) {
  // expected-error @below {{'attn.mha' op expects partial o elements of type f32, got bf16}}
  %o, %lse = "attn.mha"(%q, %q, %q, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.null, attn.partial}
    : (tensor<2x?x4x64xbf16>, tensor<2x?x4x64xbf16>, tensor<2x?x4x64xbf16>, f32)
      -> (tensor<?x?x4x64xbf16>, tensor<2x?x4x?xf32>)
  func.return
}

// -----

func.func @f(%q: tensor<2x?x4x64xbf16>, %scale: f32) {
  // expected-error @below {{'attn.mha' op expects o to be a tensor [splits x batch, sq, heads, v_head_dim], got tensor<?x?x?x4x64xf32>}}
  %o, %lse = "attn.mha"(%q, %q, %q, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.null, attn.partial}
    : (tensor<2x?x4x64xbf16>, tensor<2x?x4x64xbf16>, tensor<2x?x4x64xbf16>, f32)
      -> (tensor<?x?x?x4x64xf32>, tensor<2x?x4x?xf32>)
  func.return
}

// -----

func.func @f(%q: tensor<2x?x4x64xbf16>, %scale: f32) {
  // expected-error @below {{'attn.mha' op expects no 'attn.sink' in a partial operation, where every part would count it}}
  %o, %lse = "attn.mha"(%q, %q, %q, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.sink"(%scale) : (f32) -> ()
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.null, attn.partial}
    : (tensor<2x?x4x64xbf16>, tensor<2x?x4x64xbf16>, tensor<2x?x4x64xbf16>, f32)
      -> (tensor<?x?x4x64xf32>, tensor<2x?x4x?xf32>)
  func.return
}

// -----

func.func @f(%q: tensor<2x?x4x64xbf16>, %scale: f32) {
  // expected-error @below {{'attn.mha' op expects partial lse of 2 terms, got tensor<3x?x4x?xf32>}}
  %o, %lse = "attn.mha"(%q, %q, %q, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.null, attn.partial}
    : (tensor<2x?x4x64xbf16>, tensor<2x?x4x64xbf16>, tensor<2x?x4x64xbf16>, f32)
      -> (tensor<?x?x4x64xf32>, tensor<3x?x4x?xf32>)
  func.return
}

// -----

func.func @f(%parts: tensor<?x?x?x4x64xf32>, %lses: tensor<3x?x?x4x?xf32>) {
  // expected-error @below {{'attn.combine' op expects lses of 2 terms, got tensor<3x?x?x4x?xf32>}}
  %o, %lse = "attn.combine"(%parts, %lses) {operandSegmentSizes = array<i32: 1, 1, 0>}
    : (tensor<?x?x?x4x64xf32>, tensor<3x?x?x4x?xf32>) -> (tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>)
  func.return
}
