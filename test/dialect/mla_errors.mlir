// RUN: attn-opt --split-input-file --verify-diagnostics %s

func.func @f(%q_nope: tensor<?x?x4x128xbf16>, %q_rope: tensor<?x4x64xbf16>, %k_nope: tensor<?x?x4x128xbf16>, %k_rope: tensor<?x?x1x64xbf16>, %v: tensor<?x?x4x128xbf16>, %scale: f32)
    -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>) {
  // expected-error @below {{'attn.mla' op expects q_rope to be a tensor [batch, sq, heads, rope], got tensor<?x4x64xbf16>}}
  %o, %lse = "attn.mla"(%q_nope, %q_rope, %k_nope, %k_rope, %v, %scale) {mask = #attn.causal}
    : (tensor<?x?x4x128xbf16>, tensor<?x4x64xbf16>, tensor<?x?x4x128xbf16>, tensor<?x?x1x64xbf16>, tensor<?x?x4x128xbf16>, f32) -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>
}

// -----

func.func @f(%q_nope: tensor<?x?x4x128xbf16>, %q_rope: tensor<?x?x4x64xbf16>, %k_nope: tensor<?x?x4x128xbf16>, %k_rope: tensor<?x?x1x64xbf16>, %v: tensor<?x?x4x128xbf16>, %scale: f32)
    -> (tensor<?x?x4x128xbf16>, tensor<?x?x4x?xf32>) {
  // expected-error @below {{'attn.mla' op expects lse to be a tensor [batch, heads, sq], got tensor<?x?x4x?xf32>}}
  %o, %lse = "attn.mla"(%q_nope, %q_rope, %k_nope, %k_rope, %v, %scale) {mask = #attn.causal}
    : (tensor<?x?x4x128xbf16>, tensor<?x?x4x64xbf16>, tensor<?x?x4x128xbf16>, tensor<?x?x1x64xbf16>, tensor<?x?x4x128xbf16>, f32) -> (tensor<?x?x4x128xbf16>, tensor<?x?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x128xbf16>, tensor<?x?x4x?xf32>
}

// -----

func.func @f(%q_nope: tensor<?x?x4x128xf32>, %q_rope: tensor<?x?x4x64xf32>, %k_nope: tensor<?x?x4x128xf32>, %k_rope: tensor<?x?x1x64xf32>, %v: tensor<?x?x4x128xf32>, %scale: f32)
    -> (tensor<?x?x4x128xf32>, tensor<?x4x?xf32>) {
  // expected-error @below {{'attn.mla' op expects q_nope elements of type bf16, f16, f8E4M3FN, f8E5M2, got f32}}
  %o, %lse = "attn.mla"(%q_nope, %q_rope, %k_nope, %k_rope, %v, %scale) {mask = #attn.causal}
    : (tensor<?x?x4x128xf32>, tensor<?x?x4x64xf32>, tensor<?x?x4x128xf32>, tensor<?x?x1x64xf32>, tensor<?x?x4x128xf32>, f32) -> (tensor<?x?x4x128xf32>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x128xf32>, tensor<?x4x?xf32>
}

// -----

func.func @f(%q_nope: tensor<?x?x4x128xbf16>, %q_rope: tensor<?x?x4x64xbf16>, %k_nope: tensor<?x?x4x128xbf16>, %k_rope: tensor<?x?x1x64xf16>, %v: tensor<?x?x4x128xbf16>, %scale: f32)
    -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>) {
  // expected-error @below {{'attn.mla' op expects k_rope elements of q_nope's type bf16 or f8E4M3FN, got f16}}
  %o, %lse = "attn.mla"(%q_nope, %q_rope, %k_nope, %k_rope, %v, %scale) {mask = #attn.causal}
    : (tensor<?x?x4x128xbf16>, tensor<?x?x4x64xbf16>, tensor<?x?x4x128xbf16>, tensor<?x?x1x64xf16>, tensor<?x?x4x128xbf16>, f32) -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>
}

// -----

func.func @f(%q_nope: tensor<?x?x4x128xbf16>, %q_rope: tensor<?x?x4x64xbf16>, %k_nope: tensor<?x?x4x128xbf16>, %k_rope: tensor<?x?x1x64xbf16>, %v: tensor<?x?x4x128xbf16>, %scale: f32)
    -> (tensor<?x?x4x128xf64>, tensor<?x4x?xf32>) {
  // expected-error @below {{'attn.mla' op expects o elements of type bf16, f16, f32, got f64}}
  %o, %lse = "attn.mla"(%q_nope, %q_rope, %k_nope, %k_rope, %v, %scale) {mask = #attn.causal}
    : (tensor<?x?x4x128xbf16>, tensor<?x?x4x64xbf16>, tensor<?x?x4x128xbf16>, tensor<?x?x1x64xbf16>, tensor<?x?x4x128xbf16>, f32) -> (tensor<?x?x4x128xf64>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x128xf64>, tensor<?x4x?xf32>
}

// -----

func.func @f(%q_nope: tensor<?x?x4x128xbf16>, %q_rope: tensor<?x?x4x64xbf16>, %k_nope: tensor<?x?x4x128xbf16>, %k_rope: tensor<?x?x1x64xbf16>, %v: tensor<?x?x4x128xbf16>, %scale: f32)
    -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf16>) {
  // expected-error @below {{'attn.mla' op expects lse elements of type f32, got f16}}
  %o, %lse = "attn.mla"(%q_nope, %q_rope, %k_nope, %k_rope, %v, %scale) {mask = #attn.causal}
    : (tensor<?x?x4x128xbf16>, tensor<?x?x4x64xbf16>, tensor<?x?x4x128xbf16>, tensor<?x?x1x64xbf16>, tensor<?x?x4x128xbf16>, f32) -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf16>)
  func.return %o, %lse : tensor<?x?x4x128xbf16>, tensor<?x4x?xf16>
}

// -----

func.func @f(%q_nope: tensor<?x?x4x128xbf16>, %q_rope: tensor<?x?x4x64xbf16>, %k_nope: tensor<?x?x4x128xbf16>, %k_rope: tensor<?x?x1x64xbf16>, %v: tensor<?x?x4x128xbf16>, %scale: f64)
    -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>) {
  // expected-error @below {{'attn.mla' op expects scale of type f32, got f64}}
  %o, %lse = "attn.mla"(%q_nope, %q_rope, %k_nope, %k_rope, %v, %scale) {mask = #attn.causal}
    : (tensor<?x?x4x128xbf16>, tensor<?x?x4x64xbf16>, tensor<?x?x4x128xbf16>, tensor<?x?x1x64xbf16>, tensor<?x?x4x128xbf16>, f64) -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>
}

// -----

func.func @f(%q_nope: tensor<?x?x4x128xbf16>, %q_rope: tensor<?x?x4x64xbf16>, %k_nope: tensor<?x?x4x128xbf16>, %k_rope: tensor<?x?x4x64xbf16>, %v: tensor<?x?x4x128xbf16>, %scale: f32)
    -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>) {
  // expected-error @below {{'attn.mla' op expects k_rope of 1 head, got 4}}
  %o, %lse = "attn.mla"(%q_nope, %q_rope, %k_nope, %k_rope, %v, %scale) {mask = #attn.causal}
    : (tensor<?x?x4x128xbf16>, tensor<?x?x4x64xbf16>, tensor<?x?x4x128xbf16>, tensor<?x?x4x64xbf16>, tensor<?x?x4x128xbf16>, f32) -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>
}

// -----

func.func @f(%q_nope: tensor<?x?x4x128xbf16>, %q_rope: tensor<?x?x4x64xbf16>, %k_nope: tensor<?x?x4x128xbf16>, %k_rope: tensor<?x?x1x32xbf16>, %v: tensor<?x?x4x128xbf16>, %scale: f32)
    -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>) {
  // expected-error @below {{'attn.mla' op expects rope of k_rope to be 64 as in q_rope, got 32}}
  %o, %lse = "attn.mla"(%q_nope, %q_rope, %k_nope, %k_rope, %v, %scale) {mask = #attn.causal}
    : (tensor<?x?x4x128xbf16>, tensor<?x?x4x64xbf16>, tensor<?x?x4x128xbf16>, tensor<?x?x1x32xbf16>, tensor<?x?x4x128xbf16>, f32) -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>
}

// -----

func.func @f(%q_nope: tensor<?x?x4x128xbf16>, %q_rope: tensor<?x?x4x64xbf16>, %k_nope: tensor<?x?x4x64xbf16>, %k_rope: tensor<?x?x1x64xbf16>, %v: tensor<?x?x4x128xbf16>, %scale: f32)
    -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>) {
  // expected-error @below {{'attn.mla' op expects nope of k_nope to be 128 as in q_nope, got 64}}
  %o, %lse = "attn.mla"(%q_nope, %q_rope, %k_nope, %k_rope, %v, %scale) {mask = #attn.causal}
    : (tensor<?x?x4x128xbf16>, tensor<?x?x4x64xbf16>, tensor<?x?x4x64xbf16>, tensor<?x?x1x64xbf16>, tensor<?x?x4x128xbf16>, f32) -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>
}

// -----

func.func @f(%q_nope: tensor<?x?x4x128xbf16>, %q_rope: tensor<?x?x4x64xbf16>, %k_nope: tensor<?x?x3x128xbf16>, %k_rope: tensor<?x?x1x64xbf16>, %v: tensor<?x?x3x128xbf16>, %scale: f32)
    -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>) {
  // expected-error @below {{'attn.mla' op expects heads to be a multiple of kv_heads, got 4 and 3}}
  %o, %lse = "attn.mla"(%q_nope, %q_rope, %k_nope, %k_rope, %v, %scale) {mask = #attn.causal}
    : (tensor<?x?x4x128xbf16>, tensor<?x?x4x64xbf16>, tensor<?x?x3x128xbf16>, tensor<?x?x1x64xbf16>, tensor<?x?x3x128xbf16>, f32) -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>
}

// -----

func.func @f(%q_nope: tensor<?x?x4x128xbf16>, %q_rope: tensor<?x?x4x64xbf16>, %k_nope: tensor<?x?x4x128xbf16>, %k_rope: tensor<?x?x1x64xbf16>, %v: tensor<?x?x2x128xbf16>, %scale: f32)
    -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>) {
  // expected-error @below {{'attn.mla' op expects kv_heads of v to be 4 as in k_nope, got 2}}
  %o, %lse = "attn.mla"(%q_nope, %q_rope, %k_nope, %k_rope, %v, %scale) {mask = #attn.causal}
    : (tensor<?x?x4x128xbf16>, tensor<?x?x4x64xbf16>, tensor<?x?x4x128xbf16>, tensor<?x?x1x64xbf16>, tensor<?x?x2x128xbf16>, f32) -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>
}

// -----

func.func @f(%q_nope: tensor<?x?x4x128xbf16>, %q_rope: tensor<?x?x4x64xbf16>, %k_nope: tensor<?x?x4x128xbf16>, %k_rope: tensor<?x?x1x64xbf16>, %v: tensor<?x?x4x?xbf16>, %scale: f32)
    -> (tensor<?x?x4x?xbf16>, tensor<?x4x?xf32>) {
  // expected-error @below {{'attn.mla' op expects v_head_dim of v to be static, got tensor<?x?x4x?xbf16>}}
  %o, %lse = "attn.mla"(%q_nope, %q_rope, %k_nope, %k_rope, %v, %scale) {mask = #attn.causal}
    : (tensor<?x?x4x128xbf16>, tensor<?x?x4x64xbf16>, tensor<?x?x4x128xbf16>, tensor<?x?x1x64xbf16>, tensor<?x?x4x?xbf16>, f32) -> (tensor<?x?x4x?xbf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x?xbf16>, tensor<?x4x?xf32>
}

// -----

func.func @f(%q_nope: tensor<?x?x4x128xbf16>, %q_rope: tensor<?x?x4x64xbf16>, %k_nope: tensor<?x?x4x128xbf16>, %k_rope: tensor<?x?x1x64xbf16>, %v: tensor<?x?x4x128xbf16>, %scale: f32)
    -> (tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>) {
  // expected-error @below {{'attn.mla' op expects v_head_dim of o to be 128 as in v, got 64}}
  %o, %lse = "attn.mla"(%q_nope, %q_rope, %k_nope, %k_rope, %v, %scale) {mask = #attn.causal}
    : (tensor<?x?x4x128xbf16>, tensor<?x?x4x64xbf16>, tensor<?x?x4x128xbf16>, tensor<?x?x1x64xbf16>, tensor<?x?x4x128xbf16>, f32) -> (tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>
}

// -----

func.func @f(%q_nope: tensor<?x?x4x128xbf16>, %q_rope: tensor<?x?x4x64xbf16>, %k_nope: tensor<?x?x4x128xbf16>, %k_rope: tensor<?x?x1x64xbf16>, %v: tensor<?x?x4x128xbf16>, %scale: f32)
    -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>) {
  // expected-error @below {{'attn.mla' op expects a mask that exists: window left must be an integer from -1 to 1073741824, got -2}}
  %o, %lse = "attn.mla"(%q_nope, %q_rope, %k_nope, %k_rope, %v, %scale) {mask = #attn.window<-2, 0>}
    : (tensor<?x?x4x128xbf16>, tensor<?x?x4x64xbf16>, tensor<?x?x4x128xbf16>, tensor<?x?x1x64xbf16>, tensor<?x?x4x128xbf16>, f32) -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>
}

// -----

func.func @f(%q_nope: tensor<?x?x4x128xbf16>, %q_rope: tensor<?x?x4x64xbf16>, %k_nope: tensor<?x?x4x128xbf16>, %k_rope: tensor<?x?x1x64xbf16>, %v: tensor<?x?x4x128xbf16>, %scale: f32)
    -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>) {
  // expected-error @below {{'attn.mla' op expects mask to be one of #attn.null, #attn.causal, #attn.window, #attn.chunked, #attn.prefix, #attn.and, #attn.or, #attn.not, got 1 : i32}}
  %o, %lse = "attn.mla"(%q_nope, %q_rope, %k_nope, %k_rope, %v, %scale) {mask = 1 : i32}
    : (tensor<?x?x4x128xbf16>, tensor<?x?x4x64xbf16>, tensor<?x?x4x128xbf16>, tensor<?x?x1x64xbf16>, tensor<?x?x4x128xbf16>, f32) -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>
}

// -----

func.func @f(%q_nope: tensor<?x?x4x128xf16>, %q_rope: tensor<?x?x4x64xf16>, %k_nope: tensor<?x?x4x128xf16>, %k_rope: tensor<?x?x1x64xf8E4M3FN>, %v: tensor<?x?x4x128xf16>, %scale: f32)
    -> (tensor<?x?x4x128xf16>, tensor<?x4x?xf32>) {
  // expected-error @below {{'attn.mla' op expects k_rope elements of q_nope's type f16, got f8E4M3FN}}
  %o, %lse = "attn.mla"(%q_nope, %q_rope, %k_nope, %k_rope, %v, %scale) {mask = #attn.causal}
    : (tensor<?x?x4x128xf16>, tensor<?x?x4x64xf16>, tensor<?x?x4x128xf16>, tensor<?x?x1x64xf8E4M3FN>, tensor<?x?x4x128xf16>, f32) -> (tensor<?x?x4x128xf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x128xf16>, tensor<?x4x?xf32>
}

// -----

func.func @f(%q_nope: tensor<?x?x4x128xf8E4M3FN>, %q_rope: tensor<?x?x4x64xbf16>, %k_nope: tensor<?x?x4x128xf8E4M3FN>, %k_rope: tensor<?x?x1x64xf8E4M3FN>, %v: tensor<?x?x4x128xf8E4M3FN>, %scale: f32)
    -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>) {
  // expected-error @below {{'attn.mla' op expects k_rope elements of q_rope's type bf16, got f8E4M3FN}}
  %o, %lse = "attn.mla"(%q_nope, %q_rope, %k_nope, %k_rope, %v, %scale) {mask = #attn.causal}
    : (tensor<?x?x4x128xf8E4M3FN>, tensor<?x?x4x64xbf16>, tensor<?x?x4x128xf8E4M3FN>, tensor<?x?x1x64xf8E4M3FN>, tensor<?x?x4x128xf8E4M3FN>, f32) -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>
}

// -----

func.func @f(%q_nope: tensor<?x?x4x128xf8E5M2>, %q_rope: tensor<?x?x4x64xbf16>, %k_nope: tensor<?x?x4x128xf8E5M2>, %k_rope: tensor<?x?x1x64xbf16>, %v: tensor<?x?x4x128xf8E5M2>, %scale: f32)
    -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>) {
  // expected-error @below {{'attn.mla' op expects q_rope elements of q_nope's type f8E5M2, got bf16}}
  %o, %lse = "attn.mla"(%q_nope, %q_rope, %k_nope, %k_rope, %v, %scale) {mask = #attn.causal}
    : (tensor<?x?x4x128xf8E5M2>, tensor<?x?x4x64xbf16>, tensor<?x?x4x128xf8E5M2>, tensor<?x?x1x64xbf16>, tensor<?x?x4x128xf8E5M2>, f32) -> (tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x128xbf16>, tensor<?x4x?xf32>
}
