// RUN: attn-opt --split-input-file --verify-diagnostics %s

func.func @f(%a0: tensor<?x576xbf16>, %a1: tensor<?x576xbf16>, %a2: tensor<?x?xi32>, %a3: f32) {
  // expected-error @below {{'attn.sparse_mla' op expects q to be a tensor [sq, heads, head_dim], got tensor<?x576xbf16>}}
  %o, %l, %m = "attn.sparse_mla"(%a0, %a1, %a2, %a3) {operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0, 0, 0>}
    : (tensor<?x576xbf16>, tensor<?x576xbf16>, tensor<?x?xi32>, f32) -> (tensor<?x64x512xbf16>, tensor<?x64xf32>, tensor<?x64xf32>)
  func.return
}

// -----

func.func @f(%a0: tensor<?x64x576xbf16>, %a1: tensor<?x576xf16>, %a2: tensor<?x?xi32>, %a3: f32) {
  // expected-error @below {{'attn.sparse_mla' op expects kv elements of q's type bf16, got f16}}
  %o, %l, %m = "attn.sparse_mla"(%a0, %a1, %a2, %a3) {operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0, 0, 0>}
    : (tensor<?x64x576xbf16>, tensor<?x576xf16>, tensor<?x?xi32>, f32) -> (tensor<?x64x512xbf16>, tensor<?x64xf32>, tensor<?x64xf32>)
  func.return
}

// -----

func.func @f(%a0: tensor<?x64x576xbf16>, %a1: tensor<?x576xbf16>, %a2: tensor<?x?xi64>, %a3: f32) {
  // expected-error @below {{'attn.sparse_mla' op expects indices elements of type i32, got i64}}
  %o, %l, %m = "attn.sparse_mla"(%a0, %a1, %a2, %a3) {operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0, 0, 0>}
    : (tensor<?x64x576xbf16>, tensor<?x576xbf16>, tensor<?x?xi64>, f32) -> (tensor<?x64x512xbf16>, tensor<?x64xf32>, tensor<?x64xf32>)
  func.return
}

// -----

func.func @f(%a0: tensor<?x64x576xf32>, %a1: tensor<?x576xf32>, %a2: tensor<?x?xi32>, %a3: f32) {
  // expected-error @below {{'attn.sparse_mla' op expects q elements of type bf16, f16, f8E4M3FN, got f32}}
  %o, %l, %m = "attn.sparse_mla"(%a0, %a1, %a2, %a3) {operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0, 0, 0>}
    : (tensor<?x64x576xf32>, tensor<?x576xf32>, tensor<?x?xi32>, f32) -> (tensor<?x64x512xbf16>, tensor<?x64xf32>, tensor<?x64xf32>)
  func.return
}

// -----

func.func @f(%a0: tensor<?x64x576xbf16>, %a1: tensor<?x576xbf16>, %a2: tensor<?x?xi32>, %a3: f32) {
  // expected-error @below {{'attn.sparse_mla' op expects o elements of type bf16, f16, f32, got f8E4M3FN}}
  %o, %l, %m = "attn.sparse_mla"(%a0, %a1, %a2, %a3) {operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0, 0, 0>}
    : (tensor<?x64x576xbf16>, tensor<?x576xbf16>, tensor<?x?xi32>, f32) -> (tensor<?x64x512xf8E4M3FN>, tensor<?x64xf32>, tensor<?x64xf32>)
  func.return
}

// -----

func.func @f(%a0: tensor<?x64x576xbf16>, %a1: tensor<?x576xbf16>, %a2: tensor<?x?xi32>, %a3: f64) {
  // expected-error @below {{'attn.sparse_mla' op expects scale of type f32, got f64}}
  %o, %l, %m = "attn.sparse_mla"(%a0, %a1, %a2, %a3) {operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0, 0, 0>}
    : (tensor<?x64x576xbf16>, tensor<?x576xbf16>, tensor<?x?xi32>, f64) -> (tensor<?x64x512xbf16>, tensor<?x64xf32>, tensor<?x64xf32>)
  func.return
}

// -----

func.func @f(%a0: tensor<?x?x576xbf16>, %a1: tensor<?x576xbf16>, %a2: tensor<?x?xi32>, %a3: f32) {
  // expected-error @below {{'attn.sparse_mla' op expects heads of q to be static, got tensor<?x?x576xbf16>}}
  %o, %l, %m = "attn.sparse_mla"(%a0, %a1, %a2, %a3) {operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0, 0, 0>}
    : (tensor<?x?x576xbf16>, tensor<?x576xbf16>, tensor<?x?xi32>, f32) -> (tensor<?x64x512xbf16>, tensor<?x64xf32>, tensor<?x64xf32>)
  func.return
}

// -----

func.func @f(%a0: tensor<?x64x576xbf16>, %a1: tensor<?x512xbf16>, %a2: tensor<?x?xi32>, %a3: f32) {
  // expected-error @below {{'attn.sparse_mla' op expects head_dim of kv to be 576 as in q, got 512}}
  %o, %l, %m = "attn.sparse_mla"(%a0, %a1, %a2, %a3) {operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0, 0, 0>}
    : (tensor<?x64x576xbf16>, tensor<?x512xbf16>, tensor<?x?xi32>, f32) -> (tensor<?x64x512xbf16>, tensor<?x64xf32>, tensor<?x64xf32>)
  func.return
}

// -----

func.func @f(%a0: tensor<?x64x128xbf16>, %a1: tensor<?x128xbf16>, %a2: tensor<?x?xi32>, %a3: f32) {
  // expected-error @below {{'attn.sparse_mla' op expects head_dim of 576 or 512, got 128}}
  %o, %l, %m = "attn.sparse_mla"(%a0, %a1, %a2, %a3) {operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0, 0, 0>}
    : (tensor<?x64x128xbf16>, tensor<?x128xbf16>, tensor<?x?xi32>, f32) -> (tensor<?x64x512xbf16>, tensor<?x64xf32>, tensor<?x64xf32>)
  func.return
}

// -----

func.func @f(%a0: tensor<?x64x576xbf16>, %a1: tensor<?x576xbf16>, %a2: tensor<?x?xi32>, %a3: f32) {
  // expected-error @below {{'attn.sparse_mla' op expects v_head_dim of 512, got 576}}
  %o, %l, %m = "attn.sparse_mla"(%a0, %a1, %a2, %a3) {operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0, 0, 0>}
    : (tensor<?x64x576xbf16>, tensor<?x576xbf16>, tensor<?x?xi32>, f32) -> (tensor<?x64x576xbf16>, tensor<?x64xf32>, tensor<?x64xf32>)
  func.return
}

// -----

func.func @f(%a0: tensor<?x64x576xbf16>, %a1: tensor<?x576xbf16>, %a2: tensor<?x?xi32>, %a3: f32) {
  // expected-error @below {{'attn.sparse_mla' op expects heads of lse to be 64 as in q, got 32}}
  %o, %l, %m = "attn.sparse_mla"(%a0, %a1, %a2, %a3) {operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0, 0, 0>}
    : (tensor<?x64x576xbf16>, tensor<?x576xbf16>, tensor<?x?xi32>, f32) -> (tensor<?x64x512xbf16>, tensor<?x32xf32>, tensor<?x64xf32>)
  func.return
}

// -----

func.func @f(%a0: tensor<?x64x576xbf16>, %a1: tensor<?x576xbf16>, %a2: tensor<?x?xi32>, %a3: f32, %a4: tensor<32xf32>) {
  // expected-error @below {{'attn.sparse_mla' op expects heads of sinks to be 64 as in q, got 32}}
  %o, %l, %m = "attn.sparse_mla"(%a0, %a1, %a2, %a3, %a4) {operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 1, 0, 0>}
    : (tensor<?x64x576xbf16>, tensor<?x576xbf16>, tensor<?x?xi32>, f32, tensor<32xf32>) -> (tensor<?x64x512xbf16>, tensor<?x64xf32>, tensor<?x64xf32>)
  func.return
}

// -----

func.func @f(%a0: tensor<?x64x576xbf16>, %a1: tensor<?x576xbf16>, %a2: tensor<?x?xi32>, %a3: f32, %a4: tensor<?xi32>, %a5: tensor<?xi32>) {
  // expected-error @below {{'attn.sparse_mla' op expects at most one tensor as topk_length, got 2}}
  %o, %l, %m = "attn.sparse_mla"(%a0, %a1, %a2, %a3, %a4, %a5) {operandSegmentSizes = array<i32: 1, 1, 1, 1, 2, 0, 0, 0>}
    : (tensor<?x64x576xbf16>, tensor<?x576xbf16>, tensor<?x?xi32>, f32, tensor<?xi32>, tensor<?xi32>) -> (tensor<?x64x512xbf16>, tensor<?x64xf32>, tensor<?x64xf32>)
  func.return
}

// -----

func.func @f(%a0: tensor<?x64x576xbf16>, %a1: tensor<?x576xbf16>, %a2: tensor<?x?xi32>, %a3: f32, %a4: tensor<?x?xi32>) {
  // expected-error @below {{'attn.sparse_mla' op expects page_table, batch_of_query and attn.page_size together or none of them}}
  %o, %l, %m = "attn.sparse_mla"(%a0, %a1, %a2, %a3, %a4) {operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0, 1, 0>}
    : (tensor<?x64x576xbf16>, tensor<?x576xbf16>, tensor<?x?xi32>, f32, tensor<?x?xi32>) -> (tensor<?x64x512xbf16>, tensor<?x64xf32>, tensor<?x64xf32>)
  func.return
}

// -----

func.func @f(%a0: tensor<?x64x576xbf16>, %a1: tensor<?x576xbf16>, %a2: tensor<?x?xi32>, %a3: f32) {
  // expected-error @below {{'attn.sparse_mla' op expects page_table, batch_of_query and attn.page_size together or none of them}}
  %o, %l, %m = "attn.sparse_mla"(%a0, %a1, %a2, %a3) {attn.page_size = 4 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0, 0, 0>}
    : (tensor<?x64x576xbf16>, tensor<?x576xbf16>, tensor<?x?xi32>, f32) -> (tensor<?x64x512xbf16>, tensor<?x64xf32>, tensor<?x64xf32>)
  func.return
}

// -----

func.func @f(%a0: tensor<?x64x576xbf16>, %a1: tensor<?x576xbf16>, %a2: tensor<?x?xi32>, %a3: f32, %a4: tensor<?x?xi32>, %a5: tensor<?xi32>) {
  // expected-error @below {{'attn.sparse_mla' op expects attn.page_size of at least 1, got 0}}
  %o, %l, %m = "attn.sparse_mla"(%a0, %a1, %a2, %a3, %a4, %a5) {attn.page_size = 0 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0, 1, 1>}
    : (tensor<?x64x576xbf16>, tensor<?x576xbf16>, tensor<?x?xi32>, f32, tensor<?x?xi32>, tensor<?xi32>) -> (tensor<?x64x512xbf16>, tensor<?x64xf32>, tensor<?x64xf32>)
  func.return
}

// -----

func.func @f(%a0: tensor<?x64x576xbf16>, %a1: tensor<?x576xbf16>, %a2: tensor<?x?xi32>, %a3: f32, %a4: tensor<?xi32>, %a5: tensor<?xi32>) {
  // expected-error @below {{'attn.sparse_mla' op expects page_table to be a tensor [batch, pages], got tensor<?xi32>}}
  %o, %l, %m = "attn.sparse_mla"(%a0, %a1, %a2, %a3, %a4, %a5) {attn.page_size = 4 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0, 1, 1>}
    : (tensor<?x64x576xbf16>, tensor<?x576xbf16>, tensor<?x?xi32>, f32, tensor<?xi32>, tensor<?xi32>) -> (tensor<?x64x512xbf16>, tensor<?x64xf32>, tensor<?x64xf32>)
  func.return
}

// -----

func.func @f(%a0: tensor<?x64x576xbf16>, %a1: tensor<?x576xf8E4M3FN>, %a2: tensor<?x?xi32>, %a3: f32) {
  // expected-error @below {{'attn.sparse_mla' op expects kv elements of q's type bf16, got f8E4M3FN}}
  %o, %l, %m = "attn.sparse_mla"(%a0, %a1, %a2, %a3) {operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0, 0, 0>}
    : (tensor<?x64x576xbf16>, tensor<?x576xf8E4M3FN>, tensor<?x?xi32>, f32) -> (tensor<?x64x512xbf16>, tensor<?x64xf32>, tensor<?x64xf32>)
  func.return
}
