// RUN: attn-opt --split-input-file --verify-diagnostics %s

func.func @f(%counts: tensor<?x?x?x2xi32>, %indices: tensor<?x?x?x?xi32>) {
  // expected-error @below {{'attn.blocks' op expects to be inside an attn operation, is inside 'func.func'}}
  "attn.blocks"(%counts, %indices) {block = array<i32: 256, 1, 128>} : (tensor<?x?x?x2xi32>, tensor<?x?x?x?xi32>) -> ()
  func.return
}

// -----

func.func @f(%counts: tensor<?x?x?x3xi32>, %indices: tensor<?x?x?x?xi32>) {
  // expected-error @below {{'attn.blocks' op expects counts to be a tensor [batch, head blocks, query blocks, 2] of i32, got tensor<?x?x?x3xi32>}}
  "attn.blocks"(%counts, %indices) {block = array<i32: 256, 1, 128>} : (tensor<?x?x?x3xi32>, tensor<?x?x?x?xi32>) -> ()
  func.return
}

// -----

func.func @f(%counts: tensor<?x?x?x2xi32>, %indices: tensor<?x?x?xi32>) {
  // expected-error @below {{'attn.blocks' op expects indices to be a tensor [batch, head blocks, query blocks, key blocks] of i32, got tensor<?x?x?xi32>}}
  "attn.blocks"(%counts, %indices) {block = array<i32: 256, 1, 128>} : (tensor<?x?x?x2xi32>, tensor<?x?x?xi32>) -> ()
  func.return
}

// -----

func.func @f(%counts: tensor<?x?x?x2xi32>, %indices: tensor<?x?x?x?xi32>) {
  // expected-error @below {{'attn.blocks' op expects a block of (positions, heads, keys), each at least 1, got [256, 0, 128]}}
  "attn.blocks"(%counts, %indices) {block = array<i32: 256, 0, 128>} : (tensor<?x?x?x2xi32>, tensor<?x?x?x?xi32>) -> ()
  func.return
}

// -----

func.func @f(%counts: tensor<?x?x?x2xi32>, %indices: tensor<?x?x?x?xi32>) {
  // expected-error @below {{'attn.blocks' op expects a block of (positions, heads, keys), each at least 1, got [256, 128]}}
  "attn.blocks"(%counts, %indices) {block = array<i32: 256, 128>} : (tensor<?x?x?x2xi32>, tensor<?x?x?x?xi32>) -> ()
  func.return
}

// -----

func.func @f(%q: tensor<?x?x4x64xbf16>, %k: tensor<?x?x2x64xbf16>, %v: tensor<?x?x2x64xbf16>, %scale: f32,
             %counts: tensor<?x?x?x2xi32>, %indices: tensor<?x?x?x?xi32>)
    -> (tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>) {
  // expected-error @below {{'attn.mha' op expects at most one 'attn.blocks' in score_mod, got 2}}
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.blocks"(%counts, %indices) {block = array<i32: 256, 1, 128>} : (tensor<?x?x?x2xi32>, tensor<?x?x?x?xi32>) -> ()
    "attn.blocks"(%counts, %indices) {block = array<i32: 256, 1, 128>} : (tensor<?x?x?x2xi32>, tensor<?x?x?x?xi32>) -> ()
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
  // expected-error @below {{'attn.mha' op expects blocks of heads that divide a group of 2, got 4}}
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.blocks"(%counts, %indices) {block = array<i32: 32, 4, 128>} : (tensor<?x?x?x2xi32>, tensor<?x?x?x?xi32>) -> ()
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.null}
    : (tensor<?x?x4x64xbf16>, tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, f32)
      -> (tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>
}
