// RUN: attn-opt --split-input-file --verify-diagnostics --attn-configure=target=sm_100a --convert-attn-to-ws %s

func.func @f(%q: tensor<?x72x512xbf16>, %kv: tensor<?x512xbf16>, %i: tensor<?x?xi32>, %scale: f32)
    -> (tensor<?x72x512xbf16>, tensor<?x72xf32>, tensor<?x72xf32>) {
  // expected-error @below {{ sparse-mla: heads must be a multiple of 8 up to 64 or of 64, got 72}}
  %o, %l, %m = "attn.sparse_mla"(%q, %kv, %i, %scale) {operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0, 0, 0>}
    : (tensor<?x72x512xbf16>, tensor<?x512xbf16>, tensor<?x?xi32>, f32)
      -> (tensor<?x72x512xbf16>, tensor<?x72xf32>, tensor<?x72xf32>)
  func.return %o, %l, %m : tensor<?x72x512xbf16>, tensor<?x72xf32>, tensor<?x72xf32>
}

// -----

func.func @f(%q: tensor<?x64x512xbf16>, %kv: tensor<?x512xbf16>, %i: tensor<?x?xi32>, %scale: f32)
    -> (tensor<?x64x512xbf16>, tensor<?x64xf32>, tensor<?x64xf32>) {
  // expected-error @below {{'attn.sparse_mla' op has no kernel: sparse-mla-pair: heads must be a multiple of 128, got 64}}
  %o, %l, %m = "attn.sparse_mla"(%q, %kv, %i, %scale) {attn.schedule = "sparse-mla-pair", operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0, 0, 0>}
    : (tensor<?x64x512xbf16>, tensor<?x512xbf16>, tensor<?x?xi32>, f32)
      -> (tensor<?x64x512xbf16>, tensor<?x64xf32>, tensor<?x64xf32>)
  func.return %o, %l, %m : tensor<?x64x512xbf16>, tensor<?x64xf32>, tensor<?x64xf32>
}

// -----

func.func @f(%q: tensor<?x8x512xbf16>, %kv: tensor<?x512xbf16>, %i: tensor<?x?xi32>, %scale: f32)
    -> tensor<?x8x512xbf16> {
  %o, %l, %m = "attn.sparse_mla"(%q, %kv, %i, %scale) {operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0, 0, 0>}
    : (tensor<?x8x512xbf16>, tensor<?x512xbf16>, tensor<?x?xi32>, f32)
      -> (tensor<?x8x512xbf16>, tensor<?x8xf32>, tensor<?x8xf32>)
  // expected-error @below {{'func.return' op expects to return the results of the attn.sparse_mla}}
  func.return %o : tensor<?x8x512xbf16>
}

// -----

func.func @f(%kv: tensor<?x512xbf16>, %q: tensor<?x8x512xbf16>, %i: tensor<?x?xi32>, %scale: f32)
    -> (tensor<?x8x512xbf16>, tensor<?x8xf32>, tensor<?x8xf32>) {
  // expected-error @below {{'attn.sparse_mla' op expects the function's arguments as its operands, in order}}
  %o, %l, %m = "attn.sparse_mla"(%q, %kv, %i, %scale) {operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0, 0, 0>}
    : (tensor<?x8x512xbf16>, tensor<?x512xbf16>, tensor<?x?xi32>, f32)
      -> (tensor<?x8x512xbf16>, tensor<?x8xf32>, tensor<?x8xf32>)
  func.return %o, %l, %m : tensor<?x8x512xbf16>, tensor<?x8xf32>, tensor<?x8xf32>
}

// -----

// expected-error @below {{'func.func' op expects one attn.sparse_mla and func.return, got}}
func.func @f(%q: tensor<?x8x512xbf16>, %kv: tensor<?x512xbf16>, %i: tensor<?x?xi32>, %scale: f32)
    -> (tensor<?x8x512xbf16>, tensor<?x8xf32>, tensor<?x8xf32>) {
  %twice = arith.addf %scale, %scale : f32
  %o, %l, %m = "attn.sparse_mla"(%q, %kv, %i, %twice) {operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0, 0, 0>}
    : (tensor<?x8x512xbf16>, tensor<?x512xbf16>, tensor<?x?xi32>, f32)
      -> (tensor<?x8x512xbf16>, tensor<?x8xf32>, tensor<?x8xf32>)
  func.return %o, %l, %m : tensor<?x8x512xbf16>, tensor<?x8xf32>, tensor<?x8xf32>
}
