// RUN: attn-opt --split-input-file --verify-diagnostics --attn-configure=target=sm_90a %s

// Queries are the rows of the product that makes dQ, and keys are those of two groups.

func.func @f(%q: tensor<?x?x4x64xbf16>, %k: tensor<?x?x2x64xbf16>, %rows: tensor<?x4x?xf32>,
    %scale: f32, %accum: tensor<?x?x4x64xf32>) {
  // expected-error @below {{'attn.gradients' op expects tile_n to be 64, got 32}}
  %dk, %dv = "attn.gradients"(%q, %k, %k, %q, %rows, %rows, %scale, %accum) ({}) {mask = #attn.null, attn.config = {tile_n = 32 : i32}}
    : (tensor<?x?x4x64xbf16>, tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, tensor<?x?x4x64xbf16>,
       tensor<?x4x?xf32>, tensor<?x4x?xf32>, f32, tensor<?x?x4x64xf32>)
      -> (tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>)
  func.return
}

// -----

func.func @f(%q: tensor<?x?x4x64xbf16>, %k: tensor<?x?x2x64xbf16>, %rows: tensor<?x4x?xf32>,
    %scale: f32, %accum: tensor<?x?x4x64xf32>) {
  // expected-error @below {{'attn.gradients' op expects q_tiles to be 2, got 1}}
  %dk, %dv = "attn.gradients"(%q, %k, %k, %q, %rows, %rows, %scale, %accum) ({}) {mask = #attn.null, attn.config = {q_tiles = 1 : i32}}
    : (tensor<?x?x4x64xbf16>, tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, tensor<?x?x4x64xbf16>,
       tensor<?x4x?xf32>, tensor<?x4x?xf32>, f32, tensor<?x?x4x64xf32>)
      -> (tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>)
  func.return
}
