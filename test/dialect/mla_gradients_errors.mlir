// RUN: attn-opt --split-input-file --verify-diagnostics %s

func.func @f(%q: tensor<1x8x4x64xbf16>, %qr: tensor<1x8x4x16xbf16>, %k: tensor<1x8x2x64xbf16>, %kr: tensor<1x8x1x16xbf16>,
    %do: tensor<1x8x4x64xbf16>, %r: f32, %s: f32) {
  // expected-error @below {{'attn.mla_kv_gradients' op expects lse to be a tensor [batch, heads, sq], got f32}}
  %dk, %parts, %dv = "attn.mla_kv_gradients"(%q, %qr, %k, %kr, %k, %do, %r, %r, %s) {mask = #attn.causal}
    : (tensor<1x8x4x64xbf16>, tensor<1x8x4x16xbf16>, tensor<1x8x2x64xbf16>, tensor<1x8x1x16xbf16>, tensor<1x8x2x64xbf16>,
       tensor<1x8x4x64xbf16>, f32, f32, f32)
      -> (tensor<1x8x2x64xbf16>, tensor<1x8x2x16xf32>, tensor<1x8x2x64xbf16>)
  func.return
}

// -----

func.func @f(%q: tensor<1x8x4x64xf32>, %qr: tensor<1x8x4x16xbf16>, %k: tensor<1x8x2x64xbf16>, %kr: tensor<1x8x1x16xbf16>,
    %do: tensor<1x8x4x64xbf16>, %r: tensor<1x4x8xf32>, %s: f32) {
  // expected-error @below {{'attn.mla_kv_gradients' op expects q_nope elements of type bf16, f16, got f32}}
  %dk, %parts, %dv = "attn.mla_kv_gradients"(%q, %qr, %k, %kr, %k, %do, %r, %r, %s) {mask = #attn.causal}
    : (tensor<1x8x4x64xf32>, tensor<1x8x4x16xbf16>, tensor<1x8x2x64xbf16>, tensor<1x8x1x16xbf16>, tensor<1x8x2x64xbf16>,
       tensor<1x8x4x64xbf16>, tensor<1x4x8xf32>, tensor<1x4x8xf32>, f32)
      -> (tensor<1x8x2x64xbf16>, tensor<1x8x2x16xf32>, tensor<1x8x2x64xbf16>)
  func.return
}

// -----

func.func @f(%q: tensor<1x8x4x64xbf16>, %qr: tensor<1x8x4x16xf16>, %k: tensor<1x8x2x64xbf16>, %kr: tensor<1x8x1x16xbf16>,
    %do: tensor<1x8x4x64xbf16>, %r: tensor<1x4x8xf32>, %s: f32) {
  // expected-error @below {{'attn.mla_kv_gradients' op expects q_rope elements of q_nope's type bf16, got f16}}
  %dk, %parts, %dv = "attn.mla_kv_gradients"(%q, %qr, %k, %kr, %k, %do, %r, %r, %s) {mask = #attn.causal}
    : (tensor<1x8x4x64xbf16>, tensor<1x8x4x16xf16>, tensor<1x8x2x64xbf16>, tensor<1x8x1x16xbf16>, tensor<1x8x2x64xbf16>,
       tensor<1x8x4x64xbf16>, tensor<1x4x8xf32>, tensor<1x4x8xf32>, f32)
      -> (tensor<1x8x2x64xbf16>, tensor<1x8x2x16xf32>, tensor<1x8x2x64xbf16>)
  func.return
}

// -----

func.func @f(%q: tensor<1x8x4x64xbf16>, %qr: tensor<1x8x4x16xbf16>, %k: tensor<1x8x2x64xbf16>, %kr: tensor<1x8x1x16xbf16>,
    %do: tensor<1x8x4x64xbf16>, %r: tensor<1x4x8xf32>, %s: f32) {
  // expected-error @below {{'attn.mla_kv_gradients' op expects dk_rope_parts elements of type f32, got bf16}}
  %dk, %parts, %dv = "attn.mla_kv_gradients"(%q, %qr, %k, %kr, %k, %do, %r, %r, %s) {mask = #attn.causal}
    : (tensor<1x8x4x64xbf16>, tensor<1x8x4x16xbf16>, tensor<1x8x2x64xbf16>, tensor<1x8x1x16xbf16>, tensor<1x8x2x64xbf16>,
       tensor<1x8x4x64xbf16>, tensor<1x4x8xf32>, tensor<1x4x8xf32>, f32)
      -> (tensor<1x8x2x64xbf16>, tensor<1x8x2x16xbf16>, tensor<1x8x2x64xbf16>)
  func.return
}

// -----

func.func @f(%q: tensor<1x8x4x64xbf16>, %qr: tensor<1x8x4x16xbf16>, %k: tensor<1x8x2x64xbf16>, %kr: tensor<1x8x1x16xbf16>,
    %do: tensor<1x8x4x64xbf16>, %r: tensor<1x4x8xf32>, %s: bf16) {
  // expected-error @below {{'attn.mla_kv_gradients' op expects scale of type f32, got bf16}}
  %dk, %parts, %dv = "attn.mla_kv_gradients"(%q, %qr, %k, %kr, %k, %do, %r, %r, %s) {mask = #attn.causal}
    : (tensor<1x8x4x64xbf16>, tensor<1x8x4x16xbf16>, tensor<1x8x2x64xbf16>, tensor<1x8x1x16xbf16>, tensor<1x8x2x64xbf16>,
       tensor<1x8x4x64xbf16>, tensor<1x4x8xf32>, tensor<1x4x8xf32>, bf16)
      -> (tensor<1x8x2x64xbf16>, tensor<1x8x2x16xf32>, tensor<1x8x2x64xbf16>)
  func.return
}

// -----

func.func @f(%q: tensor<1x8x4x64xbf16>, %qr: tensor<1x8x4x16xbf16>, %k: tensor<1x8x2x64xbf16>, %kr: tensor<1x8x1x32xbf16>,
    %do: tensor<1x8x4x64xbf16>, %r: tensor<1x4x8xf32>, %s: f32) {
  // expected-error @below {{'attn.mla_kv_gradients' op expects rope of k_rope to be 16 as in q_rope, got 32}}
  %dk, %parts, %dv = "attn.mla_kv_gradients"(%q, %qr, %k, %kr, %k, %do, %r, %r, %s) {mask = #attn.causal}
    : (tensor<1x8x4x64xbf16>, tensor<1x8x4x16xbf16>, tensor<1x8x2x64xbf16>, tensor<1x8x1x32xbf16>, tensor<1x8x2x64xbf16>,
       tensor<1x8x4x64xbf16>, tensor<1x4x8xf32>, tensor<1x4x8xf32>, f32)
      -> (tensor<1x8x2x64xbf16>, tensor<1x8x2x16xf32>, tensor<1x8x2x64xbf16>)
  func.return
}

// -----

func.func @f(%q: tensor<1x8x4x64xbf16>, %qr: tensor<1x8x4x16xbf16>, %k: tensor<1x8x2x64xbf16>, %kr: tensor<1x8x2x16xbf16>,
    %do: tensor<1x8x4x64xbf16>, %r: tensor<1x4x8xf32>, %s: f32) {
  // expected-error @below {{'attn.mla_kv_gradients' op expects k_rope of 1 head, got 2}}
  %dk, %parts, %dv = "attn.mla_kv_gradients"(%q, %qr, %k, %kr, %k, %do, %r, %r, %s) {mask = #attn.causal}
    : (tensor<1x8x4x64xbf16>, tensor<1x8x4x16xbf16>, tensor<1x8x2x64xbf16>, tensor<1x8x2x16xbf16>, tensor<1x8x2x64xbf16>,
       tensor<1x8x4x64xbf16>, tensor<1x4x8xf32>, tensor<1x4x8xf32>, f32)
      -> (tensor<1x8x2x64xbf16>, tensor<1x8x2x16xf32>, tensor<1x8x2x64xbf16>)
  func.return
}

// -----

func.func @f(%q: tensor<1x8x4x64xbf16>, %qr: tensor<1x8x4x16xbf16>, %k: tensor<1x8x3x64xbf16>, %kr: tensor<1x8x1x16xbf16>,
    %do: tensor<1x8x4x64xbf16>, %r: tensor<1x4x8xf32>, %s: f32) {
  // expected-error @below {{'attn.mla_kv_gradients' op expects heads to be a multiple of kv_heads, got 4 and 3}}
  %dk, %parts, %dv = "attn.mla_kv_gradients"(%q, %qr, %k, %kr, %k, %do, %r, %r, %s) {mask = #attn.causal}
    : (tensor<1x8x4x64xbf16>, tensor<1x8x4x16xbf16>, tensor<1x8x3x64xbf16>, tensor<1x8x1x16xbf16>, tensor<1x8x3x64xbf16>,
       tensor<1x8x4x64xbf16>, tensor<1x4x8xf32>, tensor<1x4x8xf32>, f32)
      -> (tensor<1x8x3x64xbf16>, tensor<1x8x3x16xf32>, tensor<1x8x3x64xbf16>)
  func.return
}

// -----

func.func @f(%q: tensor<1x8x4x64xbf16>, %qr: tensor<1x8x4x16xbf16>, %k: tensor<1x8x2x64xbf16>, %kr: tensor<1x8x1x16xbf16>,
    %do: tensor<1x8x4x64xbf16>, %r: tensor<1x4x8xf32>, %s: f32) {
  // expected-error @below {{'attn.mla_kv_gradients' op expects }}
  %dk, %parts, %dv = "attn.mla_kv_gradients"(%q, %qr, %k, %kr, %k, %do, %r, %r, %s) {mask = 1 : i32}
    : (tensor<1x8x4x64xbf16>, tensor<1x8x4x16xbf16>, tensor<1x8x2x64xbf16>, tensor<1x8x1x16xbf16>, tensor<1x8x2x64xbf16>,
       tensor<1x8x4x64xbf16>, tensor<1x4x8xf32>, tensor<1x4x8xf32>, f32)
      -> (tensor<1x8x2x64xbf16>, tensor<1x8x2x16xf32>, tensor<1x8x2x64xbf16>)
  func.return
}
