// RUN: attn-opt --split-input-file --verify-diagnostics --attn-configure %s

// Whole blocks are walked, so they decide over tiles; some have no kernel.

func.func @f(%q: tensor<?x?x4x64xbf16>, %k: tensor<?x?x2x64xbf16>, %v: tensor<?x?x2x64xbf16>, %scale: f32,
             %counts: tensor<?x?x?x2xi32>, %indices: tensor<?x?x?x?xi32>)
    -> (tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>) {
  // expected-error @below {{'attn.mha' op expects blocks of 128 or 256 rows (positions x heads) and 64 or 128 keys, got 64 x 1 and 128}}
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.blocks"(%counts, %indices) {block = array<i32: 64, 1, 128>} : (tensor<?x?x?x2xi32>, tensor<?x?x?x?xi32>) -> ()
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.null}
    : (tensor<?x?x4x64xbf16>, tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, f32)
      -> (tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>
}

// -----

func.func @f(%q: tensor<?x?x4x64xbf16>, %k: tensor<?x?x2x64xbf16>, %v: tensor<?x?x2x64xbf16>, %scale: f32,
             %counts: tensor<?x?x?x2xi32>, %indices: tensor<?x?x?x?xi32>)
    -> (tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>) {
  // expected-error @below {{'attn.mha' op expects blocks of 128 or 256 rows (positions x heads) and 64 or 128 keys, got 256 x 1 and 100}}
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.blocks"(%counts, %indices) {block = array<i32: 256, 1, 100>} : (tensor<?x?x?x2xi32>, tensor<?x?x?x?xi32>) -> ()
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.null}
    : (tensor<?x?x4x64xbf16>, tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, f32)
      -> (tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>
}

// -----

func.func @f(%q: tensor<?x?x4x256xbf16>, %k: tensor<?x?x2x256xbf16>, %v: tensor<?x?x2x256xbf16>, %scale: f32,
             %counts: tensor<?x?x?x2xi32>, %indices: tensor<?x?x?x?xi32>)
    -> (tensor<?x?x4x256xbf16>, tensor<?x4x?xf32>) {
  // expected-error @below {{'attn.mha' op has no kernel: head_dim 256 with v_head_dim 256 and an output of 16 bits has no kernel with 2 query tiles and key tiles of 128: two key tiles and what is staged of Q and O exceed shared memory}}
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.blocks"(%counts, %indices) {block = array<i32: 256, 1, 128>} : (tensor<?x?x?x2xi32>, tensor<?x?x?x?xi32>) -> ()
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.null}
    : (tensor<?x?x4x256xbf16>, tensor<?x?x2x256xbf16>, tensor<?x?x2x256xbf16>, f32)
      -> (tensor<?x?x4x256xbf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x256xbf16>, tensor<?x4x?xf32>
}
