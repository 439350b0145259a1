// RUN: attn-opt --split-input-file --verify-diagnostics --attn-configure %s

func.func @f(%q_nope: tensor<?x?x4x128xf8E5M2>, %q_rope: tensor<?x?x4x64xf8E5M2>, %k_nope: tensor<?x?x4x128xf8E5M2>, %k_rope: tensor<?x?x1x64xf8E5M2>, %v: tensor<?x?x4x128xf8E5M2>, %scale: f32)
    -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>) {
  // expected-error @below {{'attn.mla' op has no kernel for f8E5M2 elements: supported are bf16 and f16 and f8E4M3FN}}
  %o, %lse = "attn.mla"(%q_nope, %q_rope, %k_nope, %k_rope, %v, %scale) {mask = #attn.causal}
    : (tensor<?x?x4x128xf8E5M2>, tensor<?x?x4x64xf8E5M2>, tensor<?x?x4x128xf8E5M2>, tensor<?x?x1x64xf8E5M2>, tensor<?x?x4x128xf8E5M2>, f32) -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>
}

// -----

func.func @f(%q_nope: tensor<?x?x4x96xbf16>, %q_rope: tensor<?x?x4x64xbf16>, %k_nope: tensor<?x?x4x96xbf16>, %k_rope: tensor<?x?x1x64xbf16>, %v: tensor<?x?x4x128xbf16>, %scale: f32)
    -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>) {
  // expected-error @below {{'attn.mla' op has no kernel for nope of 96: supported are multiples of 64}}
  %o, %lse = "attn.mla"(%q_nope, %q_rope, %k_nope, %k_rope, %v, %scale) {mask = #attn.causal}
    : (tensor<?x?x4x96xbf16>, tensor<?x?x4x64xbf16>, tensor<?x?x4x96xbf16>, tensor<?x?x1x64xbf16>, tensor<?x?x4x128xbf16>, f32) -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>
}

// -----

func.func @f(%q_nope: tensor<?x?x4x128xbf16>, %q_rope: tensor<?x?x4x40xbf16>, %k_nope: tensor<?x?x4x128xbf16>, %k_rope: tensor<?x?x1x40xbf16>, %v: tensor<?x?x4x128xbf16>, %scale: f32)
    -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>) {
  // expected-error @below {{'attn.mla' op has no kernel for rope of 40: supported are multiples of 16}}
  %o, %lse = "attn.mla"(%q_nope, %q_rope, %k_nope, %k_rope, %v, %scale) {mask = #attn.causal}
    : (tensor<?x?x4x128xbf16>, tensor<?x?x4x40xbf16>, tensor<?x?x4x128xbf16>, tensor<?x?x1x40xbf16>, tensor<?x?x4x128xbf16>, f32) -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>
}

// -----

func.func @f(%q_nope: tensor<?x?x4x256xbf16>, %q_rope: tensor<?x?x4x64xbf16>, %k_nope: tensor<?x?x4x256xbf16>, %k_rope: tensor<?x?x1x64xbf16>, %v: tensor<?x?x4x128xbf16>, %scale: f32)
    -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>) {
  // expected-error @below {{'attn.mla' op has no kernel: head_dim 320 has no kernel: supported are multiples of 8 up to 256}}
  %o, %lse = "attn.mla"(%q_nope, %q_rope, %k_nope, %k_rope, %v, %scale) {mask = #attn.causal}
    : (tensor<?x?x4x256xbf16>, tensor<?x?x4x64xbf16>, tensor<?x?x4x256xbf16>, tensor<?x?x1x64xbf16>, tensor<?x?x4x128xbf16>, f32) -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>
}

// -----

func.func @f(%q_nope: tensor<?x?x4x128xbf16>, %q_rope: tensor<?x?x4x64xbf16>, %k_nope: tensor<?x?x4x128xbf16>, %k_rope: tensor<?x?x1x64xbf16>, %v: tensor<?x?x4x128xbf16>, %scale: f32)
    -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>) {
  // expected-error @below {{'attn.mla' op expects tile_m of 128, got 64}}
  %o, %lse = "attn.mla"(%q_nope, %q_rope, %k_nope, %k_rope, %v, %scale) {mask = #attn.causal, attn.config = {tile_m = 64 : i32}}
    : (tensor<?x?x4x128xbf16>, tensor<?x?x4x64xbf16>, tensor<?x?x4x128xbf16>, tensor<?x?x1x64xbf16>, tensor<?x?x4x128xbf16>, f32) -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>
}

// -----

func.func @f(%q_nope: tensor<?x?x4x128xbf16>, %q_rope: tensor<?x?x4x64xbf16>, %k_nope: tensor<?x?x4x128xbf16>, %k_rope: tensor<?x?x1x64xbf16>, %v: tensor<?x?x4x128xbf16>, %scale: f32)
    -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>) {
  // expected-error @below {{'attn.mla' op expects at least 2 kv_stages, got 1}}
  %o, %lse = "attn.mla"(%q_nope, %q_rope, %k_nope, %k_rope, %v, %scale) {mask = #attn.causal, attn.config = {kv_stages = 1 : i32}}
    : (tensor<?x?x4x128xbf16>, tensor<?x?x4x64xbf16>, tensor<?x?x4x128xbf16>, tensor<?x?x1x64xbf16>, tensor<?x?x4x128xbf16>, f32) -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>
}

// -----

func.func @f(%q_nope: tensor<?x?x4x128xbf16>, %q_rope: tensor<?x?x4x64xbf16>, %k_nope: tensor<?x?x4x128xbf16>, %k_rope: tensor<?x?x1x64xbf16>, %v: tensor<?x?x4x128xbf16>, %scale: f32)
    -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>) {
  // expected-error @below {{'attn.mla' op expects rope_stages of 0 or more, got -1}}
  %o, %lse = "attn.mla"(%q_nope, %q_rope, %k_nope, %k_rope, %v, %scale) {mask = #attn.causal, attn.config = {rope_stages = -1 : i32}}
    : (tensor<?x?x4x128xbf16>, tensor<?x?x4x64xbf16>, tensor<?x?x4x128xbf16>, tensor<?x?x1x64xbf16>, tensor<?x?x4x128xbf16>, f32) -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>
}

// -----

func.func @f(%q_nope: tensor<?x?x4x128xbf16>, %q_rope: tensor<?x?x4x64xbf16>, %k_nope: tensor<?x?x4x128xbf16>, %k_rope: tensor<?x?x1x64xbf16>, %v: tensor<?x?x4x128xbf16>, %scale: f32)
    -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>) {
  // expected-error @below {{'attn.mla' op expects value_stages of 0 beside rope_stages of 2, got 1}}
  %o, %lse = "attn.mla"(%q_nope, %q_rope, %k_nope, %k_rope, %v, %scale) {mask = #attn.causal, attn.config = {rope_stages = 2 : i32, value_stages = 1 : i32}}
    : (tensor<?x?x4x128xbf16>, tensor<?x?x4x64xbf16>, tensor<?x?x4x128xbf16>, tensor<?x?x1x64xbf16>, tensor<?x?x4x128xbf16>, f32) -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>
}

// -----

module attributes {attn.target = "sm_90a"} {
  func.func @f(%q_nope: tensor<?x?x4x128xbf16>, %q_rope: tensor<?x?x4x64xbf16>, %k_nope: tensor<?x?x4x128xbf16>, %k_rope: tensor<?x?x1x64xf8E4M3FN>, %v: tensor<?x?x4x128xbf16>, %scale: f32)
      -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>) {
    // expected-error @below {{'attn.mla' op has no kernel for k_rope of 8 bits on sm_90a: supported is bf16 there}}
    %o, %lse = "attn.mla"(%q_nope, %q_rope, %k_nope, %k_rope, %v, %scale) {mask = #attn.causal}
      : (tensor<?x?x4x128xbf16>, tensor<?x?x4x64xbf16>, tensor<?x?x4x128xbf16>, tensor<?x?x1x64xf8E4M3FN>, tensor<?x?x4x128xbf16>, f32) -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>)
    func.return %o, %lse : tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>
  }
}

// -----

module attributes {attn.target = "sm_100a"} {
  func.func @f(%q_nope: tensor<?x?x4x128xbf16>, %q_rope: tensor<?x?x4x64xbf16>, %k_nope: tensor<?x?x4x128xbf16>, %k_rope: tensor<?x?x1x64xf8E4M3FN>, %v: tensor<?x?x4x128xbf16>, %scale: f32)
      -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>) {
    // expected-error @below {{'attn.mla' op expects q_tiles of 1 for the tile_order clc where k_rope has 8 bits, got 2: no warp is left to widen it or to read its factors}}
    %o, %lse = "attn.mla"(%q_nope, %q_rope, %k_nope, %k_rope, %v, %scale) {mask = #attn.causal, attn.config = {q_tiles = 2 : i32, tile_order = "clc"}}
      : (tensor<?x?x4x128xbf16>, tensor<?x?x4x64xbf16>, tensor<?x?x4x128xbf16>, tensor<?x?x1x64xf8E4M3FN>, tensor<?x?x4x128xbf16>, f32) -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>)
    func.return %o, %lse : tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>
  }
}

// -----

// Parts of nope where rope has slots of its own, of both where it has not.

func.func @f(%q_nope: tensor<?x?x4x192xbf16>, %q_rope: tensor<?x?x4x64xbf16>, %k_nope: tensor<?x?x4x192xbf16>, %k_rope: tensor<?x?x1x64xbf16>, %v: tensor<?x?x4x128xbf16>, %scale: f32)
    -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>) {
  // expected-error @below {{'attn.mla' op expects num_qk_stages to divide the 3 lines of 128 bytes of 192 columns of keys, got 2}}
  %o, %lse = "attn.mla"(%q_nope, %q_rope, %k_nope, %k_rope, %v, %scale) {mask = #attn.causal, attn.config = {kv_stages = 2 : i32, rope_stages = 2 : i32, num_qk_stages = 2 : i32}}
    : (tensor<?x?x4x192xbf16>, tensor<?x?x4x64xbf16>, tensor<?x?x4x192xbf16>, tensor<?x?x1x64xbf16>, tensor<?x?x4x128xbf16>, f32) -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>
}
