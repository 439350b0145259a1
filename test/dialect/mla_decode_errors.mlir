// RUN: attn-opt --split-input-file --verify-diagnostics %s

func.func @f(%q: tensor<?x64x576xbf16>, %kv: tensor<?x?x1x576xbf16>, %scale: f32) {
  // expected-error @below {{'attn.mla_decode' op expects q to be a tensor [batch, sq, heads, head_dim], got tensor<?x64x576xbf16>}}
  %o, %lse = "attn.mla_decode"(%q, %kv, %scale)
    {mask = #attn.null, operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0, 0, 0, 0>}
    : (tensor<?x64x576xbf16>, tensor<?x?x1x576xbf16>, f32)
      -> (tensor<?x?x64x512xbf16>, tensor<?x64x?xf32>)
  func.return
}

// -----

func.func @f(%q: tensor<?x?x64x576xf32>, %kv: tensor<?x?x1x576xbf16>, %scale: f32) {
  // expected-error @below {{'attn.mla_decode' op expects q elements of type bf16, f16, got f32}}
  %o, %lse = "attn.mla_decode"(%q, %kv, %scale)
    {mask = #attn.null, operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0, 0, 0, 0>}
    : (tensor<?x?x64x576xf32>, tensor<?x?x1x576xbf16>, f32)
      -> (tensor<?x?x64x512xbf16>, tensor<?x64x?xf32>)
  func.return
}

// -----

func.func @f(%q: tensor<?x?x64x576xbf16>, %kv: tensor<?x?x1x576xf16>, %scale: f32) {
  // expected-error @below {{'attn.mla_decode' op expects kv elements of type bf16, got f16}}
  %o, %lse = "attn.mla_decode"(%q, %kv, %scale)
    {mask = #attn.null, operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0, 0, 0, 0>}
    : (tensor<?x?x64x576xbf16>, tensor<?x?x1x576xf16>, f32)
      -> (tensor<?x?x64x512xbf16>, tensor<?x64x?xf32>)
  func.return
}

// -----

func.func @f(%q: tensor<?x?x64x576xbf16>, %kv: tensor<?x?x1x512xbf16>, %scale: f32) {
  // expected-error @below {{'attn.mla_decode' op expects head_dim of kv to be 576 as in q, got 512}}
  %o, %lse = "attn.mla_decode"(%q, %kv, %scale)
    {mask = #attn.null, operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0, 0, 0, 0>}
    : (tensor<?x?x64x576xbf16>, tensor<?x?x1x512xbf16>, f32)
      -> (tensor<?x?x64x512xbf16>, tensor<?x64x?xf32>)
  func.return
}

// -----

func.func @f(%q: tensor<?x?x64x576xbf16>, %kv: tensor<?x?x2x576xbf16>, %scale: f32) {
  // expected-error @below {{'attn.mla_decode' op expects kv of 1 head, got 2}}
  %o, %lse = "attn.mla_decode"(%q, %kv, %scale)
    {mask = #attn.null, operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0, 0, 0, 0>}
    : (tensor<?x?x64x576xbf16>, tensor<?x?x2x576xbf16>, f32)
      -> (tensor<?x?x64x512xbf16>, tensor<?x64x?xf32>)
  func.return
}

// -----

func.func @f(%q: tensor<?x?x64x128xbf16>, %kv: tensor<?x?x1x128xbf16>, %scale: f32) {
  // expected-error @below {{'attn.mla_decode' op expects head_dim of 576 or 512, got 128}}
  %o, %lse = "attn.mla_decode"(%q, %kv, %scale)
    {mask = #attn.null, operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0, 0, 0, 0>}
    : (tensor<?x?x64x128xbf16>, tensor<?x?x1x128xbf16>, f32)
      -> (tensor<?x?x64x512xbf16>, tensor<?x64x?xf32>)
  func.return
}

// -----

func.func @f(%q: tensor<?x?x64x576xbf16>, %kv: tensor<?x?x1x576xbf16>, %scale: f64) {
  // expected-error @below {{'attn.mla_decode' op expects scale of type f32, got f64}}
  %o, %lse = "attn.mla_decode"(%q, %kv, %scale)
    {mask = #attn.null, operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0, 0, 0, 0>}
    : (tensor<?x?x64x576xbf16>, tensor<?x?x1x576xbf16>, f64)
      -> (tensor<?x?x64x512xbf16>, tensor<?x64x?xf32>)
  func.return
}

// -----

func.func @f(%q: tensor<?x?x64x576xbf16>, %kv: tensor<?x?x1x576xbf16>, %scale: f32) {
  // expected-error @below {{'attn.mla_decode' op expects v_head_dim of 512, got 576}}
  %o, %lse = "attn.mla_decode"(%q, %kv, %scale)
    {mask = #attn.null, operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0, 0, 0, 0>}
    : (tensor<?x?x64x576xbf16>, tensor<?x?x1x576xbf16>, f32)
      -> (tensor<?x?x64x576xbf16>, tensor<?x64x?xf32>)
  func.return
}

// -----

func.func @f(%q: tensor<?x?x64x576xbf16>, %kv: tensor<?x?x1x576xbf16>, %scale: f32) {
  // expected-error @below {{'attn.mla_decode' op expects o elements of type bf16, got f32}}
  %o, %lse = "attn.mla_decode"(%q, %kv, %scale)
    {mask = #attn.null, operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0, 0, 0, 0>}
    : (tensor<?x?x64x576xbf16>, tensor<?x?x1x576xbf16>, f32)
      -> (tensor<?x?x64x512xf32>, tensor<?x64x?xf32>)
  func.return
}

// -----

func.func @f(%q: tensor<?x?x64x576xbf16>, %kv: tensor<?x?x1x576xbf16>, %scale: f32) {
  // expected-error @below {{'attn.mla_decode' op expects heads of lse to be 64 as in q, got 32}}
  %o, %lse = "attn.mla_decode"(%q, %kv, %scale)
    {mask = #attn.null, operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0, 0, 0, 0>}
    : (tensor<?x?x64x576xbf16>, tensor<?x?x1x576xbf16>, f32)
      -> (tensor<?x?x64x512xbf16>, tensor<?x32x?xf32>)
  func.return
}

// -----

func.func @f(%q: tensor<?x?x64x576xbf16>, %kv: tensor<?x?x1x576xbf16>, %scale: f32) {
  // expected-error @below {{'attn.mla_decode' op expects mask to be one of #attn.null, #attn.causal, #attn.window, #attn.chunked, #attn.prefix, #attn.and, #attn.or, #attn.not, got 1 : i64}}
  %o, %lse = "attn.mla_decode"(%q, %kv, %scale)
    {mask = 1 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0, 0, 0, 0>}
    : (tensor<?x?x64x576xbf16>, tensor<?x?x1x576xbf16>, f32)
      -> (tensor<?x?x64x512xbf16>, tensor<?x64x?xf32>)
  func.return
}

// -----

func.func @f(%q: tensor<?x?x64x576xbf16>, %kv: tensor<?x?x1x576xbf16>, %scale: f32, %indices: tensor<?x?x?xi32>) {
  // expected-error @below {{'attn.mla_decode' op expects kv to be a tensor [rows, head_dim], got tensor<?x?x1x576xbf16>}}
  %o, %lse = "attn.mla_decode"(%q, %kv, %scale, %indices)
    {mask = #attn.null, operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0, 0, 0, 0>}
    : (tensor<?x?x64x576xbf16>, tensor<?x?x1x576xbf16>, f32, tensor<?x?x?xi32>)
      -> (tensor<?x?x64x512xbf16>, tensor<?x64x?xf32>)
  func.return
}

// -----

func.func @f(%q: tensor<?x?x64x576xbf16>, %kv: tensor<?x576xbf16>, %scale: f32, %indices: tensor<?x?x?xi64>) {
  // expected-error @below {{'attn.mla_decode' op expects indices elements of type i32, got i64}}
  %o, %lse = "attn.mla_decode"(%q, %kv, %scale, %indices)
    {mask = #attn.null, operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0, 0, 0, 0>}
    : (tensor<?x?x64x576xbf16>, tensor<?x576xbf16>, f32, tensor<?x?x?xi64>)
      -> (tensor<?x?x64x512xbf16>, tensor<?x64x?xf32>)
  func.return
}

// -----

func.func @f(%q: tensor<?x?x64x576xbf16>, %kv: tensor<?x576xbf16>, %scale: f32, %indices: tensor<?x?x?xi32>) {
  // expected-error @below {{'attn.mla_decode' op expects mask #attn.null beside indices, got #attn.causal}}
  %o, %lse = "attn.mla_decode"(%q, %kv, %scale, %indices)
    {mask = #attn.causal, operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0, 0, 0, 0>}
    : (tensor<?x?x64x576xbf16>, tensor<?x576xbf16>, f32, tensor<?x?x?xi32>)
      -> (tensor<?x?x64x512xbf16>, tensor<?x64x?xf32>)
  func.return
}

// -----

func.func @f(%q: tensor<?x?x64x576xbf16>, %kv: tensor<?x?x1x576xbf16>, %scale: f32, %topk_length: tensor<?x?xi32>) {
  // expected-error @below {{'attn.mla_decode' op expects topk_length beside indices only}}
  %o, %lse = "attn.mla_decode"(%q, %kv, %scale, %topk_length)
    {mask = #attn.null, operandSegmentSizes = array<i32: 1, 1, 1, 0, 1, 0, 0, 0, 0>}
    : (tensor<?x?x64x576xbf16>, tensor<?x?x1x576xbf16>, f32, tensor<?x?xi32>)
      -> (tensor<?x?x64x512xbf16>, tensor<?x64x?xf32>)
  func.return
}

// -----

func.func @f(%q: tensor<?x?x64x576xbf16>, %kv: tensor<?x?x1x576xbf16>, %scale: f32, %sinks: tensor<64xbf16>) {
  // expected-error @below {{'attn.mla_decode' op expects sinks elements of type f32, got bf16}}
  %o, %lse = "attn.mla_decode"(%q, %kv, %scale, %sinks)
    {mask = #attn.null, operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 1, 0, 0, 0>}
    : (tensor<?x?x64x576xbf16>, tensor<?x?x1x576xbf16>, f32, tensor<64xbf16>)
      -> (tensor<?x?x64x512xbf16>, tensor<?x64x?xf32>)
  func.return
}

// -----

func.func @f(%q: tensor<?x?x64x576xbf16>, %kv: tensor<?x?x1x576xbf16>, %scale: f32, %sinks: tensor<64xf32>, %sinks2: tensor<64xf32>) {
  // expected-error @below {{'attn.mla_decode' op expects at most one tensor as sinks, got 2}}
  %o, %lse = "attn.mla_decode"(%q, %kv, %scale, %sinks, %sinks2)
    {mask = #attn.null, operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 2, 0, 0, 0>}
    : (tensor<?x?x64x576xbf16>, tensor<?x?x1x576xbf16>, f32, tensor<64xf32>, tensor<64xf32>)
      -> (tensor<?x?x64x512xbf16>, tensor<?x64x?xf32>)
  func.return
}

// -----

func.func @f(%q: tensor<?x?x64x576xbf16>, %kv: tensor<?x?x1x576xbf16>, %scale: f32, %sums: tensor<?x?x16x16x32xf32>) {
  // expected-error @below {{'attn.mla_decode' op expects sums, extremes, arrived together or none of them}}
  %o, %lse = "attn.mla_decode"(%q, %kv, %scale, %sums)
    {mask = #attn.null, operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0, 1, 0, 0>}
    : (tensor<?x?x64x576xbf16>, tensor<?x?x1x576xbf16>, f32, tensor<?x?x16x16x32xf32>)
      -> (tensor<?x?x64x512xbf16>, tensor<?x64x?xf32>)
  func.return
}

// -----

func.func @f(%q: tensor<?x?x64x576xbf16>, %kv: tensor<?x?x1x576xbf16>, %scale: f32, %sums: tensor<?x?x16x16x32xf32>, %extremes: tensor<2x?x?x4x16xf32>, %arrived: tensor<?x4xf32>) {
  // expected-error @below {{'attn.mla_decode' op expects arrived to be a tensor [tiles, copies] of i32, got tensor<?x4xf32>}}
  %o, %lse = "attn.mla_decode"(%q, %kv, %scale, %sums, %extremes, %arrived)
    {mask = #attn.null, operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0, 1, 1, 1>}
    : (tensor<?x?x64x576xbf16>, tensor<?x?x1x576xbf16>, f32, tensor<?x?x16x16x32xf32>, tensor<2x?x?x4x16xf32>, tensor<?x4xf32>)
      -> (tensor<?x?x64x512xbf16>, tensor<?x64x?xf32>)
  func.return
}

// -----

func.func @f(%q: tensor<?x?x64x576xbf16>, %kv: tensor<?x?x1x576xbf16>, %scale: f32, %sinks: tensor<64xf32>) {
  // expected-error @below {{'attn.mla_decode' op expects attn.partial without sinks, which every part would count}}
  %o, %lse = "attn.mla_decode"(%q, %kv, %scale, %sinks)
    {attn.partial, mask = #attn.null, operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 1, 0, 0, 0>}
    : (tensor<?x?x64x576xbf16>, tensor<?x?x1x576xbf16>, f32, tensor<64xf32>)
      -> (tensor<?x?x64x512xf32>, tensor<2x?x64x?xf32>)
  func.return
}

// -----

func.func @f(%q: tensor<?x?x64x576xbf16>, %kv: tensor<?x?x1x576xbf16>, %scale: f32, %sums: tensor<?x?x16x16x32xf32>, %extremes: tensor<2x?x?x4x16xf32>, %arrived: tensor<?x4xi32>) {
  // expected-error @below {{'attn.mla_decode' op expects attn.partial without memory to join parts}}
  %o, %lse = "attn.mla_decode"(%q, %kv, %scale, %sums, %extremes, %arrived)
    {attn.partial, mask = #attn.null, operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0, 1, 1, 1>}
    : (tensor<?x?x64x576xbf16>, tensor<?x?x1x576xbf16>, f32, tensor<?x?x16x16x32xf32>, tensor<2x?x?x4x16xf32>, tensor<?x4xi32>)
      -> (tensor<?x?x64x512xf32>, tensor<2x?x64x?xf32>)
  func.return
}

// -----

func.func @f(%q: tensor<?x?x64x576xbf16>, %kv: tensor<?x?x1x576xbf16>, %scale: f32) {
  // expected-error @below {{'attn.mla_decode' op expects partial lse of 2 terms, got tensor<1x?x64x?xf32>}}
  %o, %lse = "attn.mla_decode"(%q, %kv, %scale)
    {attn.partial, mask = #attn.null, operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0, 0, 0, 0>}
    : (tensor<?x?x64x576xbf16>, tensor<?x?x1x576xbf16>, f32)
      -> (tensor<?x?x64x512xf32>, tensor<1x?x64x?xf32>)
  func.return
}
