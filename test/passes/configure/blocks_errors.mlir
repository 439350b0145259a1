// RUN: attn-opt --split-input-file --verify-diagnostics --attn-configure %s

// Whole blocks are walked, so they decide over tiles; some have no kernel.

func.func @f(%q: tensor<?x?x4x64xbf16>, %k: tensor<?x?x2x64xbf16>, %v: tensor<?x?x2x64xbf16>, %scale: f32,
             %counts: tensor<?x?x?x2xi32>, %indices: tensor<?x?x?x?xi32>)
    -> (tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>) {
  // expected-error @below {{ mha: a block must be 128 or 256 rows (positions x heads) and 64 or 128 keys, got 64 x 1 x 128}}
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
  // expected-error @below {{ mha: a block must be 128 or 256 rows (positions x heads) and 64 or 128 keys, got 256 x 1 x 100}}
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
  // expected-error @below {{'attn.mha' op has no kernel: mha: two key tiles of 128 keys of head_dim 256 and v_head_dim 256 and what is staged of Q and O of 16 bits for 2 query tiles exceed shared memory, or S and O the tensor memory of sm_100a}}
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.blocks"(%counts, %indices) {block = array<i32: 256, 1, 128>} : (tensor<?x?x?x2xi32>, tensor<?x?x?x?xi32>) -> ()
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.null}
    : (tensor<?x?x4x256xbf16>, tensor<?x?x2x256xbf16>, tensor<?x?x2x256xbf16>, f32)
      -> (tensor<?x?x4x256xbf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x256xbf16>, tensor<?x4x?xf32>
}
