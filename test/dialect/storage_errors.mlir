// RUN: attn-opt --split-input-file --verify-diagnostics %s

func.func @f(%rows: tensor<?x?x4x64xbf16>, %offsets: tensor<?xi32>, %longest: i32) {
  // expected-error @below {{'attn.ragged' op expects rows to be a tensor [total, heads, columns], got tensor<?x?x4x64xbf16>}}
  %q = "attn.ragged"(%rows, %offsets, %longest) : (tensor<?x?x4x64xbf16>, tensor<?xi32>, i32)
    -> !attn.view<tensor<?x?x4x64xbf16>, tensor<?x?x4x64xbf16>>
  func.return
}

// -----

func.func @f(%rows: tensor<?x4x64xbf16>, %offsets: tensor<?xi64>, %longest: i32) {
  // expected-error @below {{'attn.ragged' op expects offsets to be a tensor [batch + 1] of i32, got tensor<?xi64>}}
  %q = "attn.ragged"(%rows, %offsets, %longest) : (tensor<?x4x64xbf16>, tensor<?xi64>, i32)
    -> !attn.view<tensor<?x?x4x64xbf16>, tensor<?x4x64xbf16>>
  func.return
}

// -----

func.func @f(%rows: tensor<?x4x64xbf16>, %offsets: tensor<?xi32>, %longest: i32) {
  // expected-error @below {{'attn.ragged' op expects a result of type !attn.view<tensor<?x?x4x64xbf16>, tensor<?x4x64xbf16>>, got !attn.view<tensor<?x?x8x64xbf16>, tensor<?x4x64xbf16>>}}
  %q = "attn.ragged"(%rows, %offsets, %longest) : (tensor<?x4x64xbf16>, tensor<?xi32>, i32)
    -> !attn.view<tensor<?x?x8x64xbf16>, tensor<?x4x64xbf16>>
  func.return
}

// -----

func.func @f(%x: tensor<?x4x64xbf16>, %lengths: tensor<?xi32>) {
  // expected-error @below {{'attn.limited' op expects source to stand for a tensor [batch, sequence, heads, columns], got tensor<?x4x64xbf16>}}
  %k = "attn.limited"(%x, %lengths) {counted = "all"} : (tensor<?x4x64xbf16>, tensor<?xi32>)
    -> !attn.view<tensor<?x4x64xbf16>, tensor<?x4x64xbf16>>
  func.return
}

// -----

func.func @f(%x: tensor<?x?x4x64xbf16>, %lengths: tensor<?x1xi32>) {
  // expected-error @below {{'attn.limited' op expects lengths to be a tensor [batch] of i32, got tensor<?x1xi32>}}
  %k = "attn.limited"(%x, %lengths) {counted = "all"} : (tensor<?x?x4x64xbf16>, tensor<?x1xi32>)
    -> !attn.view<tensor<?x?x4x64xbf16>, tensor<?x?x4x64xbf16>>
  func.return
}

// -----

func.func @f(%x: tensor<?x?x4x64xbf16>, %lengths: tensor<?xi32>) {
  // expected-error @below {{'attn.limited' op expects a result of type !attn.view<tensor<?x?x4x64xbf16>, tensor<?x?x4x64xbf16>>, got !attn.view<tensor<?x?x4x64xbf16>, tensor<?x4x64xbf16>>}}
  %k = "attn.limited"(%x, %lengths) {counted = "all"} : (tensor<?x?x4x64xbf16>, tensor<?xi32>)
    -> !attn.view<tensor<?x?x4x64xbf16>, tensor<?x4x64xbf16>>
  func.return
}

// -----

func.func @f(%x: tensor<?x?x4x64xbf16>, %lengths: tensor<?xi32>) {
  // expected-error @below {{'attn.limited' op expects attribute 'counted'}}
  %k = "attn.limited"(%x, %lengths) : (tensor<?x?x4x64xbf16>, tensor<?xi32>)
    -> !attn.view<tensor<?x?x4x64xbf16>, tensor<?x?x4x64xbf16>>
  func.return
}

// -----

func.func @f(%x: tensor<?x?x4x64xbf16>, %lengths: tensor<?xi32>) {
  // expected-error @below {{'attn.limited' op expects result 'view' a view to stand for a ranked tensor and to lie in one, got !attn.view<i32, i32>}}
  %k = "attn.limited"(%x, %lengths) {counted = "all"} : (tensor<?x?x4x64xbf16>, tensor<?xi32>)
    -> !attn.view<i32, i32>
  func.return
}

// -----

// Ragged queries have ragged results.

func.func @f(%rows: tensor<?x4x64xbf16>, %k: tensor<?x?x4x64xbf16>, %offsets: tensor<?xi32>, %longest: i32, %scale: f32) {
  %q = "attn.ragged"(%rows, %offsets, %longest) : (tensor<?x4x64xbf16>, tensor<?xi32>, i32)
    -> !attn.view<tensor<?x?x4x64xbf16>, tensor<?x4x64xbf16>>
  // expected-error @below {{'attn.mha' op expects o to be a tensor [total, heads, v_head_dim], got tensor<?x?x4x64xbf16>}}
  %o, %lse = "attn.mha"(%q, %k, %k, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.null}
    : (!attn.view<tensor<?x?x4x64xbf16>, tensor<?x4x64xbf16>>, tensor<?x?x4x64xbf16>, tensor<?x?x4x64xbf16>, f32)
      -> (tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>)
  func.return
}

// -----

// The shapes that views stand for are checked as any others.

func.func @f(%q: tensor<?x?x4x64xbf16>, %rows: tensor<?x3x64xbf16>, %offsets: tensor<?xi32>, %longest: i32, %scale: f32) {
  %k = "attn.ragged"(%rows, %offsets, %longest) : (tensor<?x3x64xbf16>, tensor<?xi32>, i32)
    -> !attn.view<tensor<?x?x3x64xbf16>, tensor<?x3x64xbf16>>
  // expected-error @below {{'attn.mha' op expects heads to be a multiple of kv_heads, got 4 and 3}}
  %o, %lse = "attn.mha"(%q, %k, %k, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.null}
    : (tensor<?x?x4x64xbf16>, !attn.view<tensor<?x?x3x64xbf16>, tensor<?x3x64xbf16>>, !attn.view<tensor<?x?x3x64xbf16>, tensor<?x3x64xbf16>>, f32)
      -> (tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>)
  func.return
}

// -----

func.func @f(%x: tensor<?x?x4x64xbf16>, %lengths: tensor<?xi32>) {
  // expected-error @below {{'attn.limited' op expects counted to be all or cached, got some}}
  %k = "attn.limited"(%x, %lengths) {counted = "some"} : (tensor<?x?x4x64xbf16>, tensor<?xi32>)
    -> !attn.view<tensor<?x?x4x64xbf16>, tensor<?x?x4x64xbf16>>
  func.return
}
