// RUN: attn-opt --split-input-file --verify-diagnostics --attn-configure %s

// Scales of positions are for keys and values of 8 bits, both of them, where keys stream.

// Elements of 16 bits.

func.func @f(%q: tensor<?x?x2x64xbf16>, %k: tensor<?x?x1x64xbf16>, %v: tensor<?x?x1x64xbf16>, %scale: f32, %f: tensor<?x?x1x1xf32>, %g: tensor<?x?x1x1xf32>)
    -> (tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>) {
  %keys = "attn.scaled"(%k, %f) {block = array<i32: 1, 64>} : (tensor<?x?x1x64xbf16>, tensor<?x?x1x1xf32>) -> !attn.view<tensor<?x?x1x64xbf16>, tensor<?x?x1x64xbf16>>
  %values = "attn.scaled"(%v, %g) {block = array<i32: 1, 64>} : (tensor<?x?x1x64xbf16>, tensor<?x?x1x1xf32>) -> !attn.view<tensor<?x?x1x64xbf16>, tensor<?x?x1x64xbf16>>
  // expected-error @below {{'attn.mha' op has no kernel: mha-streaming: k's element type must be e4m3 or e5m2, got bf16}}
  %o, %lse = "attn.mha"(%q, %keys, %values, %scale) ({
  ^bb0(%score: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%score) : (f32) -> ()
  }) {mask = #attn.null, attn.schedule = "mha-streaming"}
    : (tensor<?x?x2x64xbf16>, !attn.view<tensor<?x?x1x64xbf16>, tensor<?x?x1x64xbf16>>, !attn.view<tensor<?x?x1x64xbf16>, tensor<?x?x1x64xbf16>>, f32) -> (tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>)
  func.return %o, %lse : tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>
}

// -----

// Groups of 16 columns.

func.func @f(%q: tensor<?x?x2x64xbf16>, %k: tensor<?x?x1x64xf8E4M3FN>, %v: tensor<?x?x1x64xf8E4M3FN>, %scale: f32, %f: tensor<?x?x1x2xf32>, %g: tensor<?x?x1x4xf32>)
    -> (tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>) {
  %keys = "attn.scaled"(%k, %f) {block = array<i32: 1, 32>} : (tensor<?x?x1x64xf8E4M3FN>, tensor<?x?x1x2xf32>) -> !attn.view<tensor<?x?x1x64xf8E4M3FN>, tensor<?x?x1x64xf8E4M3FN>>
  %values = "attn.scaled"(%v, %g) {block = array<i32: 1, 16>} : (tensor<?x?x1x64xf8E4M3FN>, tensor<?x?x1x4xf32>) -> !attn.view<tensor<?x?x1x64xf8E4M3FN>, tensor<?x?x1x64xf8E4M3FN>>
  // expected-error @below {{'attn.mha' op has no kernel: mha-streaming: v_groups must be one to a row, or up to 4 (2 above 128 columns) of a multiple of 32 columns each, got 4}}
  %o, %lse = "attn.mha"(%q, %keys, %values, %scale) ({
  ^bb0(%score: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%score) : (f32) -> ()
  }) {mask = #attn.null, attn.schedule = "mha-streaming"}
    : (tensor<?x?x2x64xbf16>, !attn.view<tensor<?x?x1x64xf8E4M3FN>, tensor<?x?x1x64xf8E4M3FN>>, !attn.view<tensor<?x?x1x64xf8E4M3FN>, tensor<?x?x1x64xf8E4M3FN>>, f32) -> (tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>)
  func.return %o, %lse : tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>
}

// -----

// Blocks of 3 positions.

func.func @f(%q: tensor<?x?x2x64xbf16>, %k: tensor<?x?x1x64xf8E4M3FN>, %v: tensor<?x?x1x64xf8E4M3FN>, %scale: f32, %f: tensor<?x?x1x2xf32>, %g: tensor<?x?x1x2xf32>)
    -> (tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>) {
  %keys = "attn.scaled"(%k, %f) {block = array<i32: 3, 32>} : (tensor<?x?x1x64xf8E4M3FN>, tensor<?x?x1x2xf32>) -> !attn.view<tensor<?x?x1x64xf8E4M3FN>, tensor<?x?x1x64xf8E4M3FN>>
  %values = "attn.scaled"(%v, %g) {block = array<i32: 3, 32>} : (tensor<?x?x1x64xf8E4M3FN>, tensor<?x?x1x2xf32>) -> !attn.view<tensor<?x?x1x64xf8E4M3FN>, tensor<?x?x1x64xf8E4M3FN>>
  // expected-error @below {{'attn.mha' op has no kernel: mha-streaming: positions that share a scale must be 1, 2, 4, 8, 16, 32, 64 or 128, got 3}}
  %o, %lse = "attn.mha"(%q, %keys, %values, %scale) ({
  ^bb0(%score: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%score) : (f32) -> ()
  }) {mask = #attn.null, attn.schedule = "mha-streaming"}
    : (tensor<?x?x2x64xbf16>, !attn.view<tensor<?x?x1x64xf8E4M3FN>, tensor<?x?x1x64xf8E4M3FN>>, !attn.view<tensor<?x?x1x64xf8E4M3FN>, tensor<?x?x1x64xf8E4M3FN>>, f32) -> (tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>)
  func.return %o, %lse : tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>
}

// -----

// The kernel of many queries.

func.func @f(%q: tensor<?x?x2x64xbf16>, %k: tensor<?x?x1x64xbf16>, %v: tensor<?x?x1x64xbf16>, %scale: f32, %f: tensor<?x?x1x1xf32>, %g: tensor<?x?x1x1xf32>)
    -> (tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>) {
  %keys = "attn.scaled"(%k, %f) {block = array<i32: 1, 64>} : (tensor<?x?x1x64xbf16>, tensor<?x?x1x1xf32>) -> !attn.view<tensor<?x?x1x64xbf16>, tensor<?x?x1x64xbf16>>
  %values = "attn.scaled"(%v, %g) {block = array<i32: 1, 64>} : (tensor<?x?x1x64xbf16>, tensor<?x?x1x1xf32>) -> !attn.view<tensor<?x?x1x64xbf16>, tensor<?x?x1x64xbf16>>
  // expected-error @below {{ mha: scales of positions must be left out}}
  %o, %lse = "attn.mha"(%q, %keys, %values, %scale) ({
  ^bb0(%score: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%score) : (f32) -> ()
  }) {mask = #attn.null}
    : (tensor<?x?x2x64xbf16>, !attn.view<tensor<?x?x1x64xbf16>, tensor<?x?x1x64xbf16>>, !attn.view<tensor<?x?x1x64xbf16>, tensor<?x?x1x64xbf16>>, f32) -> (tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>)
  func.return %o, %lse : tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>
}
