// RUN: attn-opt --split-input-file --verify-diagnostics --attn-configure %s

func.func @f(%q_nope: tensor<?x?x4x128xf8E5M2>, %q_rope: tensor<?x?x4x64xf8E5M2>, %k_nope: tensor<?x?x4x128xf8E5M2>, %k_rope: tensor<?x?x1x64xf8E5M2>, %v: tensor<?x?x4x128xf8E5M2>, %scale: f32)
    -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>) {
  // expected-error @below {{'attn.mla' op has no kernel: mla: q's element type must be bf16, f16 or e4m3, got e5m2}}
  %o, %lse = "attn.mla"(%q_nope, %q_rope, %k_nope, %k_rope, %v, %scale) {mask = #attn.causal}
    : (tensor<?x?x4x128xf8E5M2>, tensor<?x?x4x64xf8E5M2>, tensor<?x?x4x128xf8E5M2>, tensor<?x?x1x64xf8E5M2>, tensor<?x?x4x128xf8E5M2>, f32) -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>
}

// -----

func.func @f(%q_nope: tensor<?x?x4x96xbf16>, %q_rope: tensor<?x?x4x64xbf16>, %k_nope: tensor<?x?x4x96xbf16>, %k_rope: tensor<?x?x1x64xbf16>, %v: tensor<?x?x4x128xbf16>, %scale: f32)
    -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>) {
  // expected-error @below {{'attn.mla' op has no kernel: mla: nope_dim must be a multiple of 64, got 96}}
  %o, %lse = "attn.mla"(%q_nope, %q_rope, %k_nope, %k_rope, %v, %scale) {mask = #attn.causal}
    : (tensor<?x?x4x96xbf16>, tensor<?x?x4x64xbf16>, tensor<?x?x4x96xbf16>, tensor<?x?x1x64xbf16>, tensor<?x?x4x128xbf16>, f32) -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>
}

// -----

func.func @f(%q_nope: tensor<?x?x4x128xbf16>, %q_rope: tensor<?x?x4x40xbf16>, %k_nope: tensor<?x?x4x128xbf16>, %k_rope: tensor<?x?x1x40xbf16>, %v: tensor<?x?x4x128xbf16>, %scale: f32)
    -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>) {
  // expected-error @below {{'attn.mla' op has no kernel: mla: rope_dim must be a multiple of 16, got 40}}
  %o, %lse = "attn.mla"(%q_nope, %q_rope, %k_nope, %k_rope, %v, %scale) {mask = #attn.causal}
    : (tensor<?x?x4x128xbf16>, tensor<?x?x4x40xbf16>, tensor<?x?x4x128xbf16>, tensor<?x?x1x40xbf16>, tensor<?x?x4x128xbf16>, f32) -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>
}

// -----

func.func @f(%q_nope: tensor<?x?x4x256xbf16>, %q_rope: tensor<?x?x4x64xbf16>, %k_nope: tensor<?x?x4x256xbf16>, %k_rope: tensor<?x?x1x64xbf16>, %v: tensor<?x?x4x128xbf16>, %scale: f32)
    -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>) {
  // expected-error @below {{'attn.mla' op has no kernel: mla: nope_dim + rope_dim must be a multiple of 8 up to 256, got 320}}
  %o, %lse = "attn.mla"(%q_nope, %q_rope, %k_nope, %k_rope, %v, %scale) {mask = #attn.causal}
    : (tensor<?x?x4x256xbf16>, tensor<?x?x4x64xbf16>, tensor<?x?x4x256xbf16>, tensor<?x?x1x64xbf16>, tensor<?x?x4x128xbf16>, f32) -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>
}

// -----

func.func @f(%q_nope: tensor<?x?x4x128xbf16>, %q_rope: tensor<?x?x4x64xbf16>, %k_nope: tensor<?x?x4x128xbf16>, %k_rope: tensor<?x?x1x64xbf16>, %v: tensor<?x?x4x128xbf16>, %scale: f32)
    -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>) {
  // expected-error @below {{'attn.mla' op expects tile_m to be 128, got 64}}
  %o, %lse = "attn.mla"(%q_nope, %q_rope, %k_nope, %k_rope, %v, %scale) {mask = #attn.causal, attn.config = {tile_m = 64 : i32}}
    : (tensor<?x?x4x128xbf16>, tensor<?x?x4x64xbf16>, tensor<?x?x4x128xbf16>, tensor<?x?x1x64xbf16>, tensor<?x?x4x128xbf16>, f32) -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>
}

// -----

func.func @f(%q_nope: tensor<?x?x4x128xbf16>, %q_rope: tensor<?x?x4x64xbf16>, %k_nope: tensor<?x?x4x128xbf16>, %k_rope: tensor<?x?x1x64xbf16>, %v: tensor<?x?x4x128xbf16>, %scale: f32)
    -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>) {
  // expected-error @below {{'attn.mla' op expects kv_stages to be at least 2, got 1}}
  %o, %lse = "attn.mla"(%q_nope, %q_rope, %k_nope, %k_rope, %v, %scale) {mask = #attn.causal, attn.config = {kv_stages = 1 : i32}}
    : (tensor<?x?x4x128xbf16>, tensor<?x?x4x64xbf16>, tensor<?x?x4x128xbf16>, tensor<?x?x1x64xbf16>, tensor<?x?x4x128xbf16>, f32) -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>
}

// -----

func.func @f(%q_nope: tensor<?x?x4x128xbf16>, %q_rope: tensor<?x?x4x64xbf16>, %k_nope: tensor<?x?x4x128xbf16>, %k_rope: tensor<?x?x1x64xbf16>, %v: tensor<?x?x4x128xbf16>, %scale: f32)
    -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>) {
  // expected-error @below {{'attn.mla' op expects rope_stages to be at least 0, got -1}}
  %o, %lse = "attn.mla"(%q_nope, %q_rope, %k_nope, %k_rope, %v, %scale) {mask = #attn.causal, attn.config = {rope_stages = -1 : i32}}
    : (tensor<?x?x4x128xbf16>, tensor<?x?x4x64xbf16>, tensor<?x?x4x128xbf16>, tensor<?x?x1x64xbf16>, tensor<?x?x4x128xbf16>, f32) -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>
}

// -----

func.func @f(%q_nope: tensor<?x?x4x128xbf16>, %q_rope: tensor<?x?x4x64xbf16>, %k_nope: tensor<?x?x4x128xbf16>, %k_rope: tensor<?x?x1x64xbf16>, %v: tensor<?x?x4x128xbf16>, %scale: f32)
    -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>) {
  // expected-error @below {{'attn.mla' op expects value_stages to be 0 beside rope_stages, got 1}}
  %o, %lse = "attn.mla"(%q_nope, %q_rope, %k_nope, %k_rope, %v, %scale) {mask = #attn.causal, attn.config = {rope_stages = 2 : i32, value_stages = 1 : i32}}
    : (tensor<?x?x4x128xbf16>, tensor<?x?x4x64xbf16>, tensor<?x?x4x128xbf16>, tensor<?x?x1x64xbf16>, tensor<?x?x4x128xbf16>, f32) -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>
}

// -----

module attributes {attn.target = "sm_90a"} {
  func.func @f(%q_nope: tensor<?x?x4x128xbf16>, %q_rope: tensor<?x?x4x64xbf16>, %k_nope: tensor<?x?x4x128xbf16>, %k_rope: tensor<?x?x1x64xf8E4M3FN>, %v: tensor<?x?x4x128xbf16>, %scale: f32)
      -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>) {
    // expected-error @below {{'attn.mla' op has no kernel: mla-registers: k_rope of 8 bits must be left out}}
    %o, %lse = "attn.mla"(%q_nope, %q_rope, %k_nope, %k_rope, %v, %scale) {mask = #attn.causal}
      : (tensor<?x?x4x128xbf16>, tensor<?x?x4x64xbf16>, tensor<?x?x4x128xbf16>, tensor<?x?x1x64xf8E4M3FN>, tensor<?x?x4x128xbf16>, f32) -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>)
    func.return %o, %lse : tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>
  }
}

// -----

module attributes {attn.target = "sm_100a"} {
  func.func @f(%q_nope: tensor<?x?x4x128xbf16>, %q_rope: tensor<?x?x4x64xbf16>, %k_nope: tensor<?x?x4x128xbf16>, %k_rope: tensor<?x?x1x64xf8E4M3FN>, %v: tensor<?x?x4x128xbf16>, %scale: f32)
      -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>) {
    // expected-error @below {{'attn.mla' op expects q_tiles to be 1 for the tile_order clc where k_rope has 8 bits or keys have scales, got 2}}
    %o, %lse = "attn.mla"(%q_nope, %q_rope, %k_nope, %k_rope, %v, %scale) {mask = #attn.causal, attn.config = {q_tiles = 2 : i32, tile_order = "clc"}}
      : (tensor<?x?x4x128xbf16>, tensor<?x?x4x64xbf16>, tensor<?x?x4x128xbf16>, tensor<?x?x1x64xf8E4M3FN>, tensor<?x?x4x128xbf16>, f32) -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>)
    func.return %o, %lse : tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>
  }
}

// -----

// Parts of nope where rope has slots of its own, of both where it has not.

func.func @f(%q_nope: tensor<?x?x4x192xbf16>, %q_rope: tensor<?x?x4x64xbf16>, %k_nope: tensor<?x?x4x192xbf16>, %k_rope: tensor<?x?x1x64xbf16>, %v: tensor<?x?x4x128xbf16>, %scale: f32)
    -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>) {
  // expected-error @below {{'attn.mla' op expects num_qk_stages to be a divisor of the 3 lines of 128 bytes of 192 columns of keys, got 2}}
  %o, %lse = "attn.mla"(%q_nope, %q_rope, %k_nope, %k_rope, %v, %scale) {mask = #attn.causal, attn.config = {kv_stages = 2 : i32, rope_stages = 2 : i32, num_qk_stages = 2 : i32}}
    : (tensor<?x?x4x192xbf16>, tensor<?x?x4x64xbf16>, tensor<?x?x4x192xbf16>, tensor<?x?x1x64xbf16>, tensor<?x?x4x128xbf16>, f32) -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>
}
