// RUN: attn-opt --split-input-file --verify-diagnostics --convert-attn-to-ws %s

// Storage that there is no source for.

func.func @f(%q_nope: tensor<?x?x4x128xbf16>, %q_rope: tensor<?x?x4x64xbf16>, %k_nope: tensor<?x?x4x128xbf16>, %k_rope: tensor<?x?x1x64xbf16>, %v: tensor<?x?x4x128xbf16>, %scale: f32, %list: tensor<?xi32>, %table: tensor<?x?xi32>)
    -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>) {
  %q_nope_v = "attn.limited"(%q_nope, %list) {counted = "all"} : (tensor<?x?x4x128xbf16>, tensor<?xi32>) -> !attn.view<tensor<?x?x4x128xbf16>, tensor<?x?x4x128xbf16>>
  // expected-error @below {{'attn.mla' op expects q_nope and q_rope to be stored alike, by the same offsets and lengths}}
  %o, %lse = "attn.mla"(%q_nope_v, %q_rope, %k_nope, %k_rope, %v, %scale) {mask = #attn.null, attn.config = {}}
    : (!attn.view<tensor<?x?x4x128xbf16>, tensor<?x?x4x128xbf16>>, tensor<?x?x4x64xbf16>, tensor<?x?x4x128xbf16>, tensor<?x?x1x64xbf16>, tensor<?x?x4x128xbf16>, f32) -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>
}

// -----

func.func @f(%q_nope: tensor<?x?x4x128xbf16>, %q_rope: tensor<?x?x4x64xbf16>, %k_nope: tensor<?x?x4x128xbf16>, %k_rope: tensor<?x?x1x64xbf16>, %v: tensor<?x?x4x128xbf16>, %scale: f32, %list: tensor<?xi32>, %table: tensor<?x?xi32>)
    -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>) {
  %k_nope_v = "attn.limited"(%k_nope, %list) {counted = "all"} : (tensor<?x?x4x128xbf16>, tensor<?xi32>) -> !attn.view<tensor<?x?x4x128xbf16>, tensor<?x?x4x128xbf16>>
  // expected-error @below {{'attn.mla' op expects k_nope and v to be stored alike, by the same offsets and lengths}}
  %o, %lse = "attn.mla"(%q_nope, %q_rope, %k_nope_v, %k_rope, %v, %scale) {mask = #attn.null, attn.config = {}}
    : (tensor<?x?x4x128xbf16>, tensor<?x?x4x64xbf16>, !attn.view<tensor<?x?x4x128xbf16>, tensor<?x?x4x128xbf16>>, tensor<?x?x1x64xbf16>, tensor<?x?x4x128xbf16>, f32) -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>
}

// -----

func.func @f(%q_nope: tensor<?x?x4x128xbf16>, %q_rope: tensor<?x?x4x64xbf16>, %k_nope: tensor<?x?x4x128xbf16>, %k_rope: tensor<?x?x1x64xbf16>, %v: tensor<?x?x4x128xbf16>, %scale: f32, %list: tensor<?xi32>, %table: tensor<?x?xi32>)
    -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>) {
  %q_nope_v = "attn.selected"(%q_nope, %list) : (tensor<?x?x4x128xbf16>, tensor<?xi32>) -> !attn.view<tensor<?x?x4x128xbf16>, tensor<?x?x4x128xbf16>>
  %q_rope_v = "attn.selected"(%q_rope, %list) : (tensor<?x?x4x64xbf16>, tensor<?xi32>) -> !attn.view<tensor<?x?x4x64xbf16>, tensor<?x?x4x64xbf16>>
  // expected-error @below {{'attn.mla' op expects q_nope to be no cache: neither paged, selected nor trimmed}}
  %o, %lse = "attn.mla"(%q_nope_v, %q_rope_v, %k_nope, %k_rope, %v, %scale) {mask = #attn.null, attn.config = {}}
    : (!attn.view<tensor<?x?x4x128xbf16>, tensor<?x?x4x128xbf16>>, !attn.view<tensor<?x?x4x64xbf16>, tensor<?x?x4x64xbf16>>, tensor<?x?x4x128xbf16>, tensor<?x?x1x64xbf16>, tensor<?x?x4x128xbf16>, f32) -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>
}

// -----

func.func @f(%q_nope: tensor<?x?x4x128xbf16>, %q_rope: tensor<?x?x4x64xbf16>, %k_nope: tensor<?x64x4x128xbf16>, %k_rope: tensor<?x?x1x64xbf16>, %v: tensor<?x64x4x128xbf16>, %scale: f32, %list: tensor<?xi32>, %table: tensor<?x?xi32>)
    -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>) {
  %k_nope_v = "attn.paged"(%k_nope, %table) : (tensor<?x64x4x128xbf16>, tensor<?x?xi32>) -> !attn.view<tensor<?x?x4x128xbf16>, tensor<?x64x4x128xbf16>>
  %v_v = "attn.paged"(%v, %table) : (tensor<?x64x4x128xbf16>, tensor<?x?xi32>) -> !attn.view<tensor<?x?x4x128xbf16>, tensor<?x64x4x128xbf16>>
  // expected-error @below {{'attn.mla' op expects k_nope and v as tensors, not in pages}}
  %o, %lse = "attn.mla"(%q_nope, %q_rope, %k_nope_v, %k_rope, %v_v, %scale) {mask = #attn.null, attn.config = {}}
    : (tensor<?x?x4x128xbf16>, tensor<?x?x4x64xbf16>, !attn.view<tensor<?x?x4x128xbf16>, tensor<?x64x4x128xbf16>>, tensor<?x?x1x64xbf16>, !attn.view<tensor<?x?x4x128xbf16>, tensor<?x64x4x128xbf16>>, f32) -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>
}

// -----

func.func @f(%q_nope: tensor<?x?x4x128xbf16>, %q_rope: tensor<?x?x4x64xbf16>, %k_nope: tensor<?x?x4x128xbf16>, %k_rope: tensor<?x?x1x64xbf16>, %v: tensor<?x?x4x192xbf16>, %scale: f32, %list: tensor<?xi32>, %table: tensor<?x?xi32>)
    -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>) {
  %v_v = "attn.columns"(%v) {first = 64 : i64} : (tensor<?x?x4x192xbf16>) -> !attn.view<tensor<?x?x4x128xbf16>, tensor<?x?x4x192xbf16>>
  // expected-error @below {{'attn.mla' op expects v to be whole rows, got columns of them}}
  %o, %lse = "attn.mla"(%q_nope, %q_rope, %k_nope, %k_rope, %v_v, %scale) {mask = #attn.null, attn.config = {}}
    : (tensor<?x?x4x128xbf16>, tensor<?x?x4x64xbf16>, tensor<?x?x4x128xbf16>, tensor<?x?x1x64xbf16>, !attn.view<tensor<?x?x4x128xbf16>, tensor<?x?x4x192xbf16>>, f32) -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>
}

// Scales that no kernel multiplies by.

// -----

func.func @f(%q_nope: tensor<?x?x4x128xbf16>, %q_rope: tensor<?x?x4x64xbf16>, %k_nope: tensor<?x?x4x128xbf16>, %k_rope: tensor<?x?x1x64xbf16>, %v: tensor<?x?x4x128xbf16>, %scale: f32, %x: tensor<?x?x4x1xf32>)
    -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>) {
  %q_nope_v = "attn.scaled"(%q_nope, %x) {block = array<i32: 1, 128>} : (tensor<?x?x4x128xbf16>, tensor<?x?x4x1xf32>) -> !attn.view<tensor<?x?x4x128xbf16>, tensor<?x?x4x128xbf16>>
  // expected-error @below {{'attn.mla' op expects the same scales of q_nope and q_rope}}
  %o, %lse = "attn.mla"(%q_nope_v, %q_rope, %k_nope, %k_rope, %v, %scale) {mask = #attn.null, attn.config = {}}
    : (!attn.view<tensor<?x?x4x128xbf16>, tensor<?x?x4x128xbf16>>, tensor<?x?x4x64xbf16>, tensor<?x?x4x128xbf16>, tensor<?x?x1x64xbf16>, tensor<?x?x4x128xbf16>, f32) -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>
}

// -----

func.func @f(%q_nope: tensor<?x?x4x128xbf16>, %q_rope: tensor<?x?x4x64xbf16>, %k_nope: tensor<?x?x4x128xbf16>, %k_rope: tensor<?x?x1x64xbf16>, %v: tensor<?x?x4x128xbf16>, %scale: f32, %x: tensor<?x?x4x1xf32>)
    -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>) {
  %q_nope_v = "attn.scaled"(%q_nope, %x) {block = array<i32: 1, 128>} : (tensor<?x?x4x128xbf16>, tensor<?x?x4x1xf32>) -> !attn.view<tensor<?x?x4x128xbf16>, tensor<?x?x4x128xbf16>>
  %q_rope_v = "attn.scaled"(%q_rope, %x) {block = array<i32: 1, 64>} : (tensor<?x?x4x64xbf16>, tensor<?x?x4x1xf32>) -> !attn.view<tensor<?x?x4x64xbf16>, tensor<?x?x4x64xbf16>>
  // expected-error @below {{'attn.mla' op expects scales of rows for queries and keys, or for neither}}
  %o, %lse = "attn.mla"(%q_nope_v, %q_rope_v, %k_nope, %k_rope, %v, %scale) {mask = #attn.null, attn.config = {}}
    : (!attn.view<tensor<?x?x4x128xbf16>, tensor<?x?x4x128xbf16>>, !attn.view<tensor<?x?x4x64xbf16>, tensor<?x?x4x64xbf16>>, tensor<?x?x4x128xbf16>, tensor<?x?x1x64xbf16>, tensor<?x?x4x128xbf16>, f32) -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>
}

// -----

func.func @f(%q_nope: tensor<?x?x4x128xbf16>, %q_rope: tensor<?x?x4x64xbf16>, %k_nope: tensor<?x?x4x128xbf16>, %k_rope: tensor<?x?x1x64xbf16>, %v: tensor<?x?x4x128xbf16>, %scale: f32, %x: tensor<?x?x4x2xf32>)
    -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>) {
  %q_nope_v = "attn.scaled"(%q_nope, %x) {block = array<i32: 1, 64>} : (tensor<?x?x4x128xbf16>, tensor<?x?x4x2xf32>) -> !attn.view<tensor<?x?x4x128xbf16>, tensor<?x?x4x128xbf16>>
  %q_rope_v = "attn.scaled"(%q_rope, %x) {block = array<i32: 1, 32>} : (tensor<?x?x4x64xbf16>, tensor<?x?x4x2xf32>) -> !attn.view<tensor<?x?x4x64xbf16>, tensor<?x?x4x64xbf16>>
  // expected-error @below {{'attn.mla' op expects one scale of q_nope for all columns of a row}}
  %o, %lse = "attn.mla"(%q_nope_v, %q_rope_v, %k_nope, %k_rope, %v, %scale) {mask = #attn.null, attn.config = {}}
    : (!attn.view<tensor<?x?x4x128xbf16>, tensor<?x?x4x128xbf16>>, !attn.view<tensor<?x?x4x64xbf16>, tensor<?x?x4x64xbf16>>, tensor<?x?x4x128xbf16>, tensor<?x?x1x64xbf16>, tensor<?x?x4x128xbf16>, f32) -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>
}

// -----

func.func @f(%q_nope: tensor<?x?x4x128xbf16>, %q_rope: tensor<?x?x4x64xbf16>, %k_nope: tensor<?x?x4x128xbf16>, %k_rope: tensor<?x?x1x64xbf16>, %v: tensor<?x?x4x128xbf16>, %scale: f32, %x: tensor<?x?xf32>)
    -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>) {
  %k_nope_v = "attn.scaled"(%k_nope, %x) {block = array<i32: 0, 128>} : (tensor<?x?x4x128xbf16>, tensor<?x?xf32>) -> !attn.view<tensor<?x?x4x128xbf16>, tensor<?x?x4x128xbf16>>
  // expected-error @below {{'attn.mla' op expects scales of positions for k_nope}}
  %o, %lse = "attn.mla"(%q_nope, %q_rope, %k_nope_v, %k_rope, %v, %scale) {mask = #attn.null, attn.config = {}}
    : (tensor<?x?x4x128xbf16>, tensor<?x?x4x64xbf16>, !attn.view<tensor<?x?x4x128xbf16>, tensor<?x?x4x128xbf16>>, tensor<?x?x1x64xbf16>, tensor<?x?x4x128xbf16>, f32) -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>
}

// -----

func.func @f(%q_nope: tensor<?x?x4x128xbf16>, %q_rope: tensor<?x?x4x64xbf16>, %k_nope: tensor<?x?x4x128xbf16>, %k_rope: tensor<?x?x1x64xbf16>, %v: tensor<?x?x4x128xbf16>, %scale: f32, %x: tensor<?x?x4x1xf32>)
    -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>) {
  %v_v = "attn.scaled"(%v, %x) {block = array<i32: 1, 128>} : (tensor<?x?x4x128xbf16>, tensor<?x?x4x1xf32>) -> !attn.view<tensor<?x?x4x128xbf16>, tensor<?x?x4x128xbf16>>
  // expected-error @below {{'attn.mla' op expects scales of sequences and heads for v}}
  %o, %lse = "attn.mla"(%q_nope, %q_rope, %k_nope, %k_rope, %v_v, %scale) {mask = #attn.null, attn.config = {}}
    : (tensor<?x?x4x128xbf16>, tensor<?x?x4x64xbf16>, tensor<?x?x4x128xbf16>, tensor<?x?x1x64xbf16>, !attn.view<tensor<?x?x4x128xbf16>, tensor<?x?x4x128xbf16>>, f32) -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>
}

// -----

func.func @f(%q_nope: tensor<?x?x4x128xbf16>, %q_rope: tensor<?x?x4x64xbf16>, %k_nope: tensor<?x?x4x128xbf16>, %k_rope: tensor<?x?x1x64xf8E4M3FN>, %v: tensor<?x?x4x128xbf16>, %scale: f32, %x: tensor<?x?x4x1xf32>)
    -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>) {
  %q_nope_v = "attn.scaled"(%q_nope, %x) {block = array<i32: 1, 128>} : (tensor<?x?x4x128xbf16>, tensor<?x?x4x1xf32>) -> !attn.view<tensor<?x?x4x128xbf16>, tensor<?x?x4x128xbf16>>
  %q_rope_v = "attn.scaled"(%q_rope, %x) {block = array<i32: 1, 64>} : (tensor<?x?x4x64xbf16>, tensor<?x?x4x1xf32>) -> !attn.view<tensor<?x?x4x64xbf16>, tensor<?x?x4x64xbf16>>
  // expected-error @below {{'attn.mla' op expects no scales of q_nope where k_rope alone has 8 bits}}
  %o, %lse = "attn.mla"(%q_nope_v, %q_rope_v, %k_nope, %k_rope, %v, %scale) {mask = #attn.null, attn.config = {}}
    : (!attn.view<tensor<?x?x4x128xbf16>, tensor<?x?x4x128xbf16>>, !attn.view<tensor<?x?x4x64xbf16>, tensor<?x?x4x64xbf16>>, tensor<?x?x4x128xbf16>, tensor<?x?x1x64xf8E4M3FN>, tensor<?x?x4x128xbf16>, f32) -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>
}
