// RUN: attn-opt --split-input-file --verify-diagnostics --attn-configure %s

// The kernel of few queries has no choice of tiles, and a few orders.

// A head size without one.

func.func @f(%q: tensor<?x?x2x264xbf16>, %k: tensor<?x?x1x264xbf16>, %v: tensor<?x?x1x264xbf16>, %scale: f32) -> (tensor<?x?x2x264xbf16>, tensor<?x2x?xf32>) {
  // expected-error @below {{'attn.mha' op has no kernel: mha-streaming: head_dim must be a multiple of 8 up to 256, got 264}}
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%score: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%score) : (f32) -> ()
  }) {mask = #attn.null, attn.schedule = "mha-streaming"}
    : (tensor<?x?x2x264xbf16>, tensor<?x?x1x264xbf16>, tensor<?x?x1x264xbf16>, f32) -> (tensor<?x?x2x264xbf16>, tensor<?x2x?xf32>)
  func.return %o, %lse : tensor<?x?x2x264xbf16>, tensor<?x2x?xf32>
}

// -----

// Rows that are not a product's.

func.func @f(%q: tensor<?x?x2x64xbf16>, %k: tensor<?x?x1x64xbf16>, %v: tensor<?x?x1x64xbf16>, %scale: f32) -> (tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>) {
  // expected-error @below {{'attn.mha' op expects tile_m to be 16, got 32}}
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%score: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%score) : (f32) -> ()
  }) {mask = #attn.null, attn.schedule = "mha-streaming", attn.config = {tile_m = 32 : i32}}
    : (tensor<?x?x2x64xbf16>, tensor<?x?x1x64xbf16>, tensor<?x?x1x64xbf16>, f32) -> (tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>)
  func.return %o, %lse : tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>
}

// -----

// No slot, where K and V in turn need one.

func.func @f(%q: tensor<?x?x2x64xbf16>, %k: tensor<?x?x1x64xbf16>, %v: tensor<?x?x1x64xbf16>, %scale: f32) -> (tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>) {
  // expected-error @below {{'attn.mha' op expects kv_stages to be at least 1, got 0}}
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%score: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%score) : (f32) -> ()
  }) {mask = #attn.null, attn.schedule = "mha-streaming", attn.config = {kv_stages = 0 : i32}}
    : (tensor<?x?x2x64xbf16>, tensor<?x?x1x64xbf16>, tensor<?x?x1x64xbf16>, f32) -> (tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>)
  func.return %o, %lse : tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>
}

// -----

// Heads that do not divide the group.

func.func @f(%q: tensor<?x?x2x64xbf16>, %k: tensor<?x?x1x64xbf16>, %v: tensor<?x?x1x64xbf16>, %scale: f32) -> (tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>) {
  // expected-error @below {{'attn.mha' op expects packed_heads to be a divisor of 2, up to 16, got 4}}
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%score: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%score) : (f32) -> ()
  }) {mask = #attn.null, attn.schedule = "mha-streaming", attn.config = {packed_heads = 4 : i32}}
    : (tensor<?x?x2x64xbf16>, tensor<?x?x1x64xbf16>, tensor<?x?x1x64xbf16>, f32) -> (tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>)
  func.return %o, %lse : tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>
}

// -----

// An order that needs a role of its own.

func.func @f(%q: tensor<?x?x2x64xbf16>, %k: tensor<?x?x1x64xbf16>, %v: tensor<?x?x1x64xbf16>, %scale: f32) -> (tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>) {
  // expected-error @below {{'attn.mha' op expects tile_order to be single, last_first or persistent, got clc}}
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%score: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%score) : (f32) -> ()
  }) {mask = #attn.null, attn.schedule = "mha-streaming", attn.config = {tile_order = "clc"}}
    : (tensor<?x?x2x64xbf16>, tensor<?x?x1x64xbf16>, tensor<?x?x1x64xbf16>, f32) -> (tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>)
  func.return %o, %lse : tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>
}

// -----

// More query tiles than there are registers for.

func.func @f(%q: tensor<?x?x2x64xbf16>, %k: tensor<?x?x1x64xbf16>, %v: tensor<?x?x1x64xbf16>, %scale: f32) -> (tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>) {
  // expected-error @below {{'attn.mha' op expects q_tiles to be 1 or 2, got 3}}
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%score: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%score) : (f32) -> ()
  }) {mask = #attn.null, attn.schedule = "mha-streaming", attn.config = {q_tiles = 3 : i32}}
    : (tensor<?x?x2x64xbf16>, tensor<?x?x1x64xbf16>, tensor<?x?x1x64xbf16>, f32) -> (tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>)
  func.return %o, %lse : tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>
}

// -----

// Two of them, where O takes two warps already.

func.func @f(%q: tensor<?x?x2x64xbf16>, %k: tensor<?x?x1x64xbf16>, %v: tensor<?x?x1x256xbf16>, %scale: f32) -> (tensor<?x?x2x256xbf16>, tensor<?x2x?xf32>) {
  // expected-error @below {{'attn.mha' op expects q_tiles to be 1 with v_head_dim above 128, got 2}}
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%score: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%score) : (f32) -> ()
  }) {mask = #attn.null, attn.schedule = "mha-streaming", attn.config = {q_tiles = 2 : i32}}
    : (tensor<?x?x2x64xbf16>, tensor<?x?x1x64xbf16>, tensor<?x?x1x256xbf16>, f32) -> (tensor<?x?x2x256xbf16>, tensor<?x2x?xf32>)
  func.return %o, %lse : tensor<?x?x2x256xbf16>, tensor<?x2x?xf32>
}

// -----

// Query tiles along heads that a group does not have.

func.func @f(%q: tensor<?x?x2x64xbf16>, %k: tensor<?x?x1x64xbf16>, %v: tensor<?x?x1x64xbf16>, %scale: f32) -> (tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>) {
  // expected-error @below {{'attn.mha' op expects head_tiles to be 1, got 2}}
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%score: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%score) : (f32) -> ()
  }) {mask = #attn.null, attn.schedule = "mha-streaming", attn.config = {q_tiles = 2 : i32, head_tiles = 2 : i32}}
    : (tensor<?x?x2x64xbf16>, tensor<?x?x1x64xbf16>, tensor<?x?x1x64xbf16>, f32) -> (tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>)
  func.return %o, %lse : tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>
}
