// RUN: attn-opt --split-input-file --verify-diagnostics --attn-configure %s

// The kernel with keys in the rows of its products: what it has no kernel for, and what cannot be.

// Values of more columns than a product has rows.

func.func @f(%q: tensor<?x?x2x64xbf16>, %k: tensor<?x?x1x64xbf16>, %v: tensor<?x?x1x136xbf16>, %scale: f32) -> (tensor<?x?x2x136xbf16>, tensor<?x2x?xf32>) {
  // expected-error @below {{'attn.mha' op has no kernel: mha-swapped: v_head_dim must be a multiple of 8 up to 128, got 136}}
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%score: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%score) : (f32) -> ()
  }) {mask = #attn.null, attn.schedule = "mha-swapped"}
    : (tensor<?x?x2x64xbf16>, tensor<?x?x1x64xbf16>, tensor<?x?x1x136xbf16>, f32) -> (tensor<?x?x2x136xbf16>, tensor<?x2x?xf32>)
  func.return %o, %lse : tensor<?x?x2x136xbf16>, tensor<?x2x?xf32>
}

// -----

// Elements of 8 bits.

func.func @f(%q: tensor<?x?x2x64xf8E4M3FN>, %k: tensor<?x?x1x64xf8E4M3FN>, %v: tensor<?x?x1x64xf8E4M3FN>, %scale: f32) -> (tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>) {
  // expected-error @below {{'attn.mha' op has no kernel: mha-swapped: q's element type must be bf16 or f16, got e4m3}}
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%score: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%score) : (f32) -> ()
  }) {mask = #attn.null, attn.schedule = "mha-swapped"}
    : (tensor<?x?x2x64xf8E4M3FN>, tensor<?x?x1x64xf8E4M3FN>, tensor<?x?x1x64xf8E4M3FN>, f32) -> (tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>)
  func.return %o, %lse : tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>
}

// -----

// Rows that are no columns of a product.

func.func @f(%q: tensor<?x?x2x64xbf16>, %k: tensor<?x?x1x64xbf16>, %v: tensor<?x?x1x64xbf16>, %scale: f32) -> (tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>) {
  // expected-error @below {{'attn.mha' op expects tile_m to be 8, 16 or 32, got 24}}
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%score: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%score) : (f32) -> ()
  }) {mask = #attn.null, attn.schedule = "mha-swapped", attn.config = {tile_m = 24 : i32}}
    : (tensor<?x?x2x64xbf16>, tensor<?x?x1x64xbf16>, tensor<?x?x1x64xbf16>, f32) -> (tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>)
  func.return %o, %lse : tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>
}

// -----

// One slot of keys.

func.func @f(%q: tensor<?x?x2x64xbf16>, %k: tensor<?x?x1x64xbf16>, %v: tensor<?x?x1x64xbf16>, %scale: f32) -> (tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>) {
  // expected-error @below {{'attn.mha' op expects kv_stages to be at least 2, got 1}}
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%score: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%score) : (f32) -> ()
  }) {mask = #attn.null, attn.schedule = "mha-swapped", attn.config = {kv_stages = 1 : i32}}
    : (tensor<?x?x2x64xbf16>, tensor<?x?x1x64xbf16>, tensor<?x?x1x64xbf16>, f32) -> (tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>)
  func.return %o, %lse : tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>
}

// -----

// Heads that do not share keys.

func.func @f(%q: tensor<?x?x2x64xbf16>, %k: tensor<?x?x1x64xbf16>, %v: tensor<?x?x1x64xbf16>, %scale: f32) -> (tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>) {
  // expected-error @below {{'attn.mha' op expects packed_heads to be a divisor of 2, up to 8, got 4}}
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%score: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%score) : (f32) -> ()
  }) {mask = #attn.null, attn.schedule = "mha-swapped", attn.config = {packed_heads = 4 : i32}}
    : (tensor<?x?x2x64xbf16>, tensor<?x?x1x64xbf16>, tensor<?x?x1x64xbf16>, f32) -> (tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>)
  func.return %o, %lse : tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>
}

// -----

// Keys per tile, which are the rows of a product.

func.func @f(%q: tensor<?x?x2x64xbf16>, %k: tensor<?x?x1x64xbf16>, %v: tensor<?x?x1x64xbf16>, %scale: f32) -> (tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>) {
  // expected-error @below {{'attn.mha' op expects tile_n to be 128, got 64}}
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%score: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%score) : (f32) -> ()
  }) {mask = #attn.null, attn.schedule = "mha-swapped", attn.config = {tile_n = 64 : i32}}
    : (tensor<?x?x2x64xbf16>, tensor<?x?x1x64xbf16>, tensor<?x?x1x64xbf16>, f32) -> (tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>)
  func.return %o, %lse : tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>
}
