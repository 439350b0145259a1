// RUN: attn-opt --split-input-file --verify-diagnostics --attn-configure=target=sm_90a --convert-attn-to-ws %s

// The kernel writes both gradients.

func.func @f(%q: tensor<?x?x4x64xbf16>, %k: tensor<?x?x2x64xbf16>, %v: tensor<?x?x2x64xbf16>,
    %do: tensor<?x?x4x64xbf16>, %lse: tensor<?x4x?xf32>, %delta: tensor<?x4x?xf32>, %scale: f32)
    -> tensor<?x?x2x64xbf16> {
  %dk, %dv = "attn.kv_gradients"(%q, %k, %v, %do, %lse, %delta, %scale) ({}) {mask = #attn.causal}
    : (tensor<?x?x4x64xbf16>, tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, tensor<?x?x4x64xbf16>,
       tensor<?x4x?xf32>, tensor<?x4x?xf32>, f32) -> (tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>)
  // expected-error @below {{'func.return' op expects to return dk and dv of the attn.kv_gradients}}
  func.return %dk : tensor<?x?x2x64xbf16>
}

// -----

// Several sequences may read the same rows of a cache: nobody could add up their gradients.

func.func @f(%q: tensor<?x?x4x64xbf16>, %k: tensor<?x?x2x64xbf16>, %v: tensor<?x?x2x64xbf16>,
    %do: tensor<?x?x4x64xbf16>, %lse: tensor<?x4x?xf32>, %delta: tensor<?x4x?xf32>, %scale: f32,
    %rows: tensor<?xi32>) -> (tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>) {
  %ks = "attn.selected"(%k, %rows) : (tensor<?x?x2x64xbf16>, tensor<?xi32>) -> !attn.view<tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>>
  %vs = "attn.selected"(%v, %rows) : (tensor<?x?x2x64xbf16>, tensor<?xi32>) -> !attn.view<tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>>
  // expected-error @below {{'attn.kv_gradients' op expects k to be no cache: neither paged, selected nor trimmed}}
  %dk, %dv = "attn.kv_gradients"(%q, %ks, %vs, %do, %lse, %delta, %scale) ({}) {mask = #attn.causal}
    : (tensor<?x?x4x64xbf16>, !attn.view<tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>>, !attn.view<tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>>,
       tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>, tensor<?x4x?xf32>, f32)
      -> (tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>)
  func.return %dk, %dv : tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>
}

// -----

// A sum of a row does not know one key.

func.func @f(%q: tensor<?x?x4x64xbf16>, %k: tensor<?x?x2x64xbf16>, %v: tensor<?x?x2x64xbf16>,
    %do: tensor<?x?x4x64xbf16>, %lse: tensor<?x4x?xf32>, %delta: tensor<?x4x?xf32>, %scale: f32,
    %sums: tensor<?xf32>) -> tensor<?x?x4x64xbf16> {
  %dq = "attn.q_gradients"(%q, %k, %v, %do, %lse, %delta, %scale) ({
  ^bb0(%score: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    // expected-error @below {{'attn.adjoint' op expects values that depend on batch, head, q alone}}
    "attn.adjoint"(%score, %sums, %j)
      {mode = "store", operandSegmentSizes = array<i32: 1, 1, 1>, per = "row"}
      : (f32, tensor<?xf32>, i32) -> ()
    "attn.yield"(%score) : (f32) -> ()
  }) {mask = #attn.null}
    : (tensor<?x?x4x64xbf16>, tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, tensor<?x?x4x64xbf16>,
       tensor<?x4x?xf32>, tensor<?x4x?xf32>, f32) -> tensor<?x?x4x64xbf16>
  func.return %dq : tensor<?x?x4x64xbf16>
}
