// RUN: attn-opt --split-input-file --verify-diagnostics --attn-configure %s

// Head sizes without a kernel, on both sides of those with one.

func.func @f(%q: tensor<?x?x4x63xbf16>, %k: tensor<?x?x2x63xbf16>, %v: tensor<?x?x2x63xbf16>, %scale: f32)
    -> (tensor<?x?x4x63xbf16>, tensor<?x4x?xf32>) {
  // expected-error @below {{ mha: head_dim must be a multiple of 8 up to 256, got 63}}
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.causal}
    : (tensor<?x?x4x63xbf16>, tensor<?x?x2x63xbf16>, tensor<?x?x2x63xbf16>, f32)
      -> (tensor<?x?x4x63xbf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x63xbf16>, tensor<?x4x?xf32>
}

// -----

func.func @f(%q: tensor<?x?x4x129xbf16>, %k: tensor<?x?x2x129xbf16>, %v: tensor<?x?x2x129xbf16>, %scale: f32)
    -> (tensor<?x?x4x129xbf16>, tensor<?x4x?xf32>) {
  // expected-error @below {{ mha: head_dim must be a multiple of 8 up to 256, got 129}}
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.causal}
    : (tensor<?x?x4x129xbf16>, tensor<?x?x2x129xbf16>, tensor<?x?x2x129xbf16>, f32)
      -> (tensor<?x?x4x129xbf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x129xbf16>, tensor<?x4x?xf32>
}

// -----

// Elements, value size, score modifier.

func.func @f(%q: tensor<?x?x4x128xf32>, %k: tensor<?x?x2x128xf32>, %v: tensor<?x?x2x128xf32>, %scale: f32)
    -> (tensor<?x?x4x128xf32>, tensor<?x4x?xf32>) {
  // expected-error @below {{ mha: q's element type must be bf16, f16, e4m3 or e5m2, got f32}}
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.causal}
    : (tensor<?x?x4x128xf32>, tensor<?x?x2x128xf32>, tensor<?x?x2x128xf32>, f32)
      -> (tensor<?x?x4x128xf32>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x128xf32>, tensor<?x4x?xf32>
}

// -----

// The dictionary.

func.func @f(%q: tensor<?x?x4x128xbf16>, %k: tensor<?x?x2x128xbf16>, %v: tensor<?x?x2x128xbf16>, %scale: f32)
    -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>) {
  // expected-error @below {{'attn.mha' op expects 'attn.config' to be a dictionary, got 3 : i32}}
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.causal, attn.config = 3 : i32}
    : (tensor<?x?x4x128xbf16>, tensor<?x?x2x128xbf16>, tensor<?x?x2x128xbf16>, f32)
      -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>
}

// -----

func.func @f(%q: tensor<?x?x4x128xbf16>, %k: tensor<?x?x2x128xbf16>, %v: tensor<?x?x2x128xbf16>, %scale: f32)
    -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>) {
  // expected-error @below {{'attn.mha' op has unknown entry 'tile' in 'attn.config': known are tile_m, tile_n, kv_stages}}
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.causal, attn.config = {tile = 3 : i32}}
    : (tensor<?x?x4x128xbf16>, tensor<?x?x2x128xbf16>, tensor<?x?x2x128xbf16>, f32)
      -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>
}

// -----

func.func @f(%q: tensor<?x?x4x128xbf16>, %k: tensor<?x?x2x128xbf16>, %v: tensor<?x?x2x128xbf16>, %scale: f32)
    -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>) {
  // expected-error @below {{'attn.mha' op expects tile_n to be an integer, got "x"}}
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.causal, attn.config = {tile_n = "x"}}
    : (tensor<?x?x4x128xbf16>, tensor<?x?x2x128xbf16>, tensor<?x?x2x128xbf16>, f32)
      -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>
}

// -----

// Numbers, beyond each bound.

func.func @f(%q: tensor<?x?x4x128xbf16>, %k: tensor<?x?x2x128xbf16>, %v: tensor<?x?x2x128xbf16>, %scale: f32)
    -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>) {
  // expected-error @below {{'attn.mha' op expects tile_m to be 128, got 64}}
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.causal, attn.config = {tile_m = 64 : i32}}
    : (tensor<?x?x4x128xbf16>, tensor<?x?x2x128xbf16>, tensor<?x?x2x128xbf16>, f32)
      -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>
}

// -----

func.func @f(%q: tensor<?x?x4x128xbf16>, %k: tensor<?x?x2x128xbf16>, %v: tensor<?x?x2x128xbf16>, %scale: f32)
    -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>) {
  // expected-error @below {{'attn.mha' op expects q_tiles to be 1 or 2, got 3}}
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.causal, attn.config = {q_tiles = 3 : i32}}
    : (tensor<?x?x4x128xbf16>, tensor<?x?x2x128xbf16>, tensor<?x?x2x128xbf16>, f32)
      -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>
}

// -----

func.func @f(%q: tensor<?x?x4x128xbf16>, %k: tensor<?x?x2x128xbf16>, %v: tensor<?x?x2x128xbf16>, %scale: f32)
    -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>) {
  // expected-error @below {{'attn.mha' op expects q_tiles to be 1 or 2, got 0}}
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.causal, attn.config = {q_tiles = 0 : i32}}
    : (tensor<?x?x4x128xbf16>, tensor<?x?x2x128xbf16>, tensor<?x?x2x128xbf16>, f32)
      -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>
}

// -----

func.func @f(%q: tensor<?x?x4x128xbf16>, %k: tensor<?x?x2x128xbf16>, %v: tensor<?x?x2x128xbf16>, %scale: f32)
    -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>) {
  // expected-error @below {{'attn.mha' op expects tile_n to be 64 or 128, got 96}}
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.causal, attn.config = {tile_n = 96 : i32}}
    : (tensor<?x?x4x128xbf16>, tensor<?x?x2x128xbf16>, tensor<?x?x2x128xbf16>, f32)
      -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>
}

// -----

func.func @f(%q: tensor<?x?x4x128xbf16>, %k: tensor<?x?x2x128xbf16>, %v: tensor<?x?x2x128xbf16>, %scale: f32)
    -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>) {
  // expected-error @below {{'attn.mha' op expects kv_stages to be at least 2, got 1}}
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.causal, attn.config = {kv_stages = 1 : i32}}
    : (tensor<?x?x4x128xbf16>, tensor<?x?x2x128xbf16>, tensor<?x?x2x128xbf16>, f32)
      -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>
}

// -----

func.func @f(%q: tensor<?x?x4x128xbf16>, %k: tensor<?x?x2x128xbf16>, %v: tensor<?x?x2x128xbf16>, %scale: f32)
    -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>) {
  // expected-error @below {{'attn.mha' op expects softmax_registers to be a multiple of 8 from 24 to 256, got 188}}
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.causal, attn.config = {softmax_registers = 188 : i32}}
    : (tensor<?x?x4x128xbf16>, tensor<?x?x2x128xbf16>, tensor<?x?x2x128xbf16>, f32)
      -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>
}

// -----

func.func @f(%q: tensor<?x?x4x128xbf16>, %k: tensor<?x?x2x128xbf16>, %v: tensor<?x?x2x128xbf16>, %scale: f32)
    -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>) {
  // expected-error @below {{'attn.mha' op expects correction_registers to be a multiple of 8 from 24 to 256, got 16}}
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.causal, attn.config = {correction_registers = 16 : i32}}
    : (tensor<?x?x4x128xbf16>, tensor<?x?x2x128xbf16>, tensor<?x?x2x128xbf16>, f32)
      -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>
}

// -----

func.func @f(%q: tensor<?x?x4x128xbf16>, %k: tensor<?x?x2x128xbf16>, %v: tensor<?x?x2x128xbf16>, %scale: f32)
    -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>) {
  // expected-error @below {{'attn.mha' op expects other_registers to be a multiple of 8 from 24 to 256, got 264}}
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.causal, attn.config = {other_registers = 264 : i32}}
    : (tensor<?x?x4x128xbf16>, tensor<?x?x2x128xbf16>, tensor<?x?x2x128xbf16>, f32)
      -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>
}

// -----

func.func @f(%q: tensor<?x?x4x128xbf16>, %k: tensor<?x?x2x128xbf16>, %v: tensor<?x?x2x128xbf16>, %scale: f32)
    -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>) {
  // expected-error @below {{'attn.mha' op expects other_registers to be at most 40, as 2 x softmax_registers + correction_registers leave of 512, got 56}}
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.causal, attn.config = {softmax_registers = 200 : i32}}
    : (tensor<?x?x4x128xbf16>, tensor<?x?x2x128xbf16>, tensor<?x?x2x128xbf16>, f32)
      -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>
}

// -----

func.func @f(%q: tensor<?x?x4x128xbf16>, %k: tensor<?x?x2x128xbf16>, %v: tensor<?x?x2x128xbf16>, %scale: f32)
    -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>) {
  // expected-error @below {{'attn.mha' op expects other_registers to be at most 120, as 1 x softmax_registers + correction_registers leave of 504, got 128}}
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.causal, attn.config = {q_tiles = 1 : i32, softmax_registers = 240 : i32, correction_registers = 144 : i32, other_registers = 128 : i32}}
    : (tensor<?x?x4x128xbf16>, tensor<?x?x2x128xbf16>, tensor<?x?x2x128xbf16>, f32)
      -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>
}

// -----

func.func @f(%q: tensor<?x?x4x128xbf16>, %k: tensor<?x?x2x128xbf16>, %v: tensor<?x?x2x128xbf16>, %scale: f32)
    -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>) {
  // expected-error @below {{'attn.mha' op expects exp2_period to be 0 or 4 to 128, got 3}}
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.causal, attn.config = {exp2_period = 3 : i32}}
    : (tensor<?x?x4x128xbf16>, tensor<?x?x2x128xbf16>, tensor<?x?x2x128xbf16>, f32)
      -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>
}

// -----

func.func @f(%q: tensor<?x?x4x128xbf16>, %k: tensor<?x?x2x128xbf16>, %v: tensor<?x?x2x128xbf16>, %scale: f32)
    -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>) {
  // expected-error @below {{'attn.mha' op expects exp2_period to be 0 or 4 to 128, got 129}}
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.causal, attn.config = {exp2_period = 129 : i32}}
    : (tensor<?x?x4x128xbf16>, tensor<?x?x2x128xbf16>, tensor<?x?x2x128xbf16>, f32)
      -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>
}

// -----

func.func @f(%q: tensor<?x?x4x128xbf16>, %k: tensor<?x?x2x128xbf16>, %v: tensor<?x?x2x128xbf16>, %scale: f32)
    -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>) {
  // expected-error @below {{'attn.mha' op expects exp2_start to be 0 to 3, got 4}}
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.causal, attn.config = {exp2_start = 4 : i32}}
    : (tensor<?x?x4x128xbf16>, tensor<?x?x2x128xbf16>, tensor<?x?x2x128xbf16>, f32)
      -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>
}

// -----

func.func @f(%q: tensor<?x?x4x128xbf16>, %k: tensor<?x?x2x128xbf16>, %v: tensor<?x?x2x128xbf16>, %scale: f32)
    -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>) {
  // expected-error @below {{'attn.mha' op expects exp2_start to be 0 to 3, got -1}}
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.causal, attn.config = {exp2_start = -1 : i32}}
    : (tensor<?x?x4x128xbf16>, tensor<?x?x2x128xbf16>, tensor<?x?x2x128xbf16>, f32)
      -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>
}

// -----

func.func @f(%q: tensor<?x?x4x128xbf16>, %k: tensor<?x?x2x128xbf16>, %v: tensor<?x?x2x128xbf16>, %scale: f32)
    -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>) {
  // expected-error @below {{'attn.mha' op expects rescale_threshold to be 0 to 8, got 9}}
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.causal, attn.config = {rescale_threshold = 9 : i32}}
    : (tensor<?x?x4x128xbf16>, tensor<?x?x2x128xbf16>, tensor<?x?x2x128xbf16>, f32)
      -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>
}

// -----

func.func @f(%q: tensor<?x?x4x128xbf16>, %k: tensor<?x?x2x128xbf16>, %v: tensor<?x?x2x128xbf16>, %scale: f32)
    -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>) {
  // expected-error @below {{'attn.mha' op expects rescale_threshold to be 0 to 8, got -1}}
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.causal, attn.config = {rescale_threshold = -1 : i32}}
    : (tensor<?x?x4x128xbf16>, tensor<?x?x2x128xbf16>, tensor<?x?x2x128xbf16>, f32)
      -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>
}

// -----

// Where the copy engine copies, pages and key tiles divide each other, and a tile is made of at most 8 pages.

func.func @f(%q: tensor<?x?x4x64xbf16>, %k: tensor<?x24x2x64xbf16>, %v: tensor<?x24x2x64xbf16>, %scale: f32,
             %table: tensor<?x?xi32>) -> (tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>) {
  %keys = "attn.paged"(%k, %table) : (tensor<?x24x2x64xbf16>, tensor<?x?xi32>) -> !attn.view<tensor<?x?x2x64xbf16>, tensor<?x24x2x64xbf16>>
  %values = "attn.paged"(%v, %table) : (tensor<?x24x2x64xbf16>, tensor<?x?xi32>) -> !attn.view<tensor<?x?x2x64xbf16>, tensor<?x24x2x64xbf16>>
  // expected-error @below {{ mha: page_size must be 8, 16, 32 or a multiple of 64, got 24}}
  %o, %lse = "attn.mha"(%q, %keys, %values, %scale) ({
  ^bb0(%s: f32, %n: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.causal, attn.schedule = "mha"}
    : (tensor<?x?x4x64xbf16>, !attn.view<tensor<?x?x2x64xbf16>, tensor<?x24x2x64xbf16>>, !attn.view<tensor<?x?x2x64xbf16>, tensor<?x24x2x64xbf16>>, f32) -> (tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>
}

// -----

func.func @f(%q: tensor<?x?x4x64xbf16>, %k: tensor<?x8x2x64xbf16>, %v: tensor<?x8x2x64xbf16>, %scale: f32,
             %table: tensor<?x?xi32>) -> (tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>) {
  %keys = "attn.paged"(%k, %table) : (tensor<?x8x2x64xbf16>, tensor<?x?xi32>) -> !attn.view<tensor<?x?x2x64xbf16>, tensor<?x8x2x64xbf16>>
  %values = "attn.paged"(%v, %table) : (tensor<?x8x2x64xbf16>, tensor<?x?xi32>) -> !attn.view<tensor<?x?x2x64xbf16>, tensor<?x8x2x64xbf16>>
  // expected-error @below {{'attn.mha' op expects tile_n to be one that goes with pages of 8, got 128}}
  %o, %lse = "attn.mha"(%q, %keys, %values, %scale) ({
  ^bb0(%s: f32, %n: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.causal, attn.config = {tile_n = 128 : i32}}
    : (tensor<?x?x4x64xbf16>, !attn.view<tensor<?x?x2x64xbf16>, tensor<?x8x2x64xbf16>>, !attn.view<tensor<?x?x2x64xbf16>, tensor<?x8x2x64xbf16>>, f32) -> (tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>
}

// -----

// Stages inside Q K^T: 1, 2 or 4 parts of whole lines.

func.func @f(%q: tensor<?x?x4x128xbf16>, %k: tensor<?x?x2x128xbf16>, %v: tensor<?x?x2x128xbf16>, %scale: f32)
    -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>) {
  // expected-error @below {{'attn.mha' op expects num_qk_stages to be 1, 2 or 4, got 3}}
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.causal, attn.config = {num_qk_stages = 3 : i32}}
    : (tensor<?x?x4x128xbf16>, tensor<?x?x2x128xbf16>, tensor<?x?x2x128xbf16>, f32)
      -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>
}

// -----

func.func @f(%q: tensor<?x?x4x128xbf16>, %k: tensor<?x?x2x128xbf16>, %v: tensor<?x?x2x128xbf16>, %scale: f32)
    -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>) {
  // expected-error @below {{'attn.mha' op expects num_qk_stages to be a divisor of the 2 lines of 128 bytes of 128 columns of keys, got 4}}
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.causal, attn.config = {num_qk_stages = 4 : i32}}
    : (tensor<?x?x4x128xbf16>, tensor<?x?x2x128xbf16>, tensor<?x?x2x128xbf16>, f32)
      -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>
}

// -----

func.func @f(%q: tensor<?x?x4x128xbf16>, %k: tensor<?x?x2x128xbf16>, %v: tensor<?x?x2x128xbf16>, %scale: f32)
    -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>) {
  // expected-error @below {{'attn.mha' op expects num_pv_stages to be 1, 2 or 4, got 8}}
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.causal, attn.config = {num_pv_stages = 8 : i32}}
    : (tensor<?x?x4x128xbf16>, tensor<?x?x2x128xbf16>, tensor<?x?x2x128xbf16>, f32)
      -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>
}

// -----

func.func @f(%q: tensor<?x?x4x128xbf16>, %k: tensor<?x?x2x128xbf16>, %v: tensor<?x?x2x128xbf16>, %scale: f32)
    -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>) {
  // expected-error @below {{'attn.mha' op expects num_pv_stages to be at most 2, for parts of 32 columns of 64, got 4}}
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.causal, attn.config = {num_pv_stages = 4 : i32, tile_n = 64 : i32}}
    : (tensor<?x?x4x128xbf16>, tensor<?x?x2x128xbf16>, tensor<?x?x2x128xbf16>, f32)
      -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>
}

// -----

func.func @f(%q: tensor<?x?x4x128xbf16>, %k: tensor<?x?x2x128xbf16>, %v: tensor<?x?x2x128xbf16>, %scale: f32)
    -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>) {
  // expected-error @below {{'attn.mha' op expects exp2_period to be 0 or a divisor of 32 from 4 on with num_pv_stages above 1, got 20}}
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.causal, attn.config = {num_pv_stages = 2 : i32, exp2_period = 20 : i32}}
    : (tensor<?x?x4x128xbf16>, tensor<?x?x2x128xbf16>, tensor<?x?x2x128xbf16>, f32)
      -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>
}

// -----

func.func @f(%q: tensor<?x?x4x128xbf16>, %k: tensor<?x?x2x128xbf16>, %v: tensor<?x?x2x128xbf16>, %scale: f32)
    -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>) {
  // expected-error @below {{'attn.mha' op expects ordered_softmax to be 0 or 1, got 2}}
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.causal, attn.config = {ordered_softmax = 2 : i32}}
    : (tensor<?x?x4x128xbf16>, tensor<?x?x2x128xbf16>, tensor<?x?x2x128xbf16>, f32)
      -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>
}

// -----

func.func @f(%q: tensor<?x?x4x128xbf16>, %k: tensor<?x?x2x128xbf16>, %v: tensor<?x?x2x128xbf16>, %scale: f32)
    -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>) {
  // expected-error @below {{'attn.mha' op expects ordered_softmax to be 0 with one query tile, got 1}}
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.causal, attn.config = {ordered_softmax = 1 : i32, q_tiles = 1 : i32}}
    : (tensor<?x?x4x128xbf16>, tensor<?x?x2x128xbf16>, tensor<?x?x2x128xbf16>, f32)
      -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>
}
