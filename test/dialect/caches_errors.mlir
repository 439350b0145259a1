// RUN: attn-opt --split-input-file --verify-diagnostics %s

func.func @f(%pool: tensor<?x?x4x64xbf16>, %table: tensor<?x?xi32>) {
  // expected-error @below {{'attn.paged' op expects pool to be a tensor [pages, page, heads, columns] with a static page, got tensor<?x?x4x64xbf16>}}
  %k = "attn.paged"(%pool, %table) : (tensor<?x?x4x64xbf16>, tensor<?x?xi32>)
    -> !attn.view<tensor<?x?x4x64xbf16>, tensor<?x?x4x64xbf16>>
  func.return
}

// -----

func.func @f(%pool: tensor<?x0x4x64xbf16>, %table: tensor<?x?xi32>) {
  // expected-error @below {{'attn.paged' op expects pool to be a tensor [pages, page, heads, columns] with a static page, got tensor<?x0x4x64xbf16>}}
  %k = "attn.paged"(%pool, %table) : (tensor<?x0x4x64xbf16>, tensor<?x?xi32>)
    -> !attn.view<tensor<?x?x4x64xbf16>, tensor<?x0x4x64xbf16>>
  func.return
}

// -----

func.func @f(%pool: tensor<?x16x64xbf16>, %table: tensor<?x?xi32>) {
  // expected-error @below {{'attn.paged' op expects pool to be a tensor [pages, page, heads, columns] with a static page, got tensor<?x16x64xbf16>}}
  %k = "attn.paged"(%pool, %table) : (tensor<?x16x64xbf16>, tensor<?x?xi32>)
    -> !attn.view<tensor<?x?x64xbf16>, tensor<?x16x64xbf16>>
  func.return
}

// -----

func.func @f(%pool: tensor<?x16x4x64xbf16>, %table: tensor<?xi32>) {
  // expected-error @below {{'attn.paged' op expects table to be a tensor [batch, columns] of i32, got tensor<?xi32>}}
  %k = "attn.paged"(%pool, %table) : (tensor<?x16x4x64xbf16>, tensor<?xi32>)
    -> !attn.view<tensor<?x?x4x64xbf16>, tensor<?x16x4x64xbf16>>
  func.return
}

// -----

func.func @f(%pool: tensor<?x16x4x64xbf16>, %table: tensor<?x?xi32>) {
  // expected-error @below {{'attn.paged' op expects a result of type !attn.view<tensor<?x?x4x64xbf16>, tensor<?x16x4x64xbf16>>, got !attn.view<tensor<?x16x4x64xbf16>, tensor<?x16x4x64xbf16>>}}
  %k = "attn.paged"(%pool, %table) : (tensor<?x16x4x64xbf16>, tensor<?x?xi32>)
    -> !attn.view<tensor<?x16x4x64xbf16>, tensor<?x16x4x64xbf16>>
  func.return
}

// -----

func.func @f(%pool: tensor<?x?x4x64xbf16>, %list: tensor<?xi32>) {
  // expected-error @below {{'attn.paged_csr' op expects pool to be a tensor [pages, page, heads, columns] with a static page, got tensor<?x?x4x64xbf16>}}
  %k = "attn.paged_csr"(%pool, %list, %list, %list)
    : (tensor<?x?x4x64xbf16>, tensor<?xi32>, tensor<?xi32>, tensor<?xi32>)
      -> !attn.view<tensor<?x?x4x64xbf16>, tensor<?x?x4x64xbf16>>
  func.return
}

// -----

func.func @f(%pool: tensor<?x16x4x64xbf16>, %list: tensor<?xi32>, %wide: tensor<?xi64>) {
  // expected-error @below {{'attn.paged_csr' op expects offsets to be a tensor [batch + 1] of i32, got tensor<?xi64>}}
  %k = "attn.paged_csr"(%pool, %wide, %list, %list)
    : (tensor<?x16x4x64xbf16>, tensor<?xi64>, tensor<?xi32>, tensor<?xi32>)
      -> !attn.view<tensor<?x?x4x64xbf16>, tensor<?x16x4x64xbf16>>
  func.return
}

// -----

func.func @f(%pool: tensor<?x16x4x64xbf16>, %list: tensor<?xi32>, %wide: tensor<?xi64>) {
  // expected-error @below {{'attn.paged_csr' op expects indices to be a tensor [pages] of i32, got tensor<?xi64>}}
  %k = "attn.paged_csr"(%pool, %list, %wide, %list)
    : (tensor<?x16x4x64xbf16>, tensor<?xi32>, tensor<?xi64>, tensor<?xi32>)
      -> !attn.view<tensor<?x?x4x64xbf16>, tensor<?x16x4x64xbf16>>
  func.return
}

// -----

func.func @f(%pool: tensor<?x16x4x64xbf16>, %list: tensor<?xi32>, %wide: tensor<?xi64>) {
  // expected-error @below {{'attn.paged_csr' op expects last to be a tensor [batch] of i32, got tensor<?xi64>}}
  %k = "attn.paged_csr"(%pool, %list, %list, %wide)
    : (tensor<?x16x4x64xbf16>, tensor<?xi32>, tensor<?xi32>, tensor<?xi64>)
      -> !attn.view<tensor<?x?x4x64xbf16>, tensor<?x16x4x64xbf16>>
  func.return
}

// -----

func.func @f(%pool: tensor<?x16x4x64xbf16>, %list: tensor<?xi32>) {
  // expected-error @below {{'attn.paged_csr' op expects a result of type !attn.view<tensor<?x?x4x64xbf16>, tensor<?x16x4x64xbf16>>, got !attn.view<tensor<?x?x4x64xbf16>, tensor<?x8x4x64xbf16>>}}
  %k = "attn.paged_csr"(%pool, %list, %list, %list)
    : (tensor<?x16x4x64xbf16>, tensor<?xi32>, tensor<?xi32>, tensor<?xi32>)
      -> !attn.view<tensor<?x?x4x64xbf16>, tensor<?x8x4x64xbf16>>
  func.return
}

// -----

func.func @f(%rows: tensor<?x4x64xbf16>, %list: tensor<?xi32>) {
  // expected-error @below {{'attn.selected' op expects source to stand for a tensor [batch, sequence, heads, columns], got tensor<?x4x64xbf16>}}
  %k = "attn.selected"(%rows, %list) : (tensor<?x4x64xbf16>, tensor<?xi32>)
    -> !attn.view<tensor<?x4x64xbf16>, tensor<?x4x64xbf16>>
  func.return
}

// -----

func.func @f(%rows: tensor<?x?x4x64xbf16>, %list: tensor<?x?xi32>) {
  // expected-error @below {{'attn.selected' op expects indices to be a tensor [batch] of i32, got tensor<?x?xi32>}}
  %k = "attn.selected"(%rows, %list) : (tensor<?x?x4x64xbf16>, tensor<?x?xi32>)
    -> !attn.view<tensor<?x?x4x64xbf16>, tensor<?x?x4x64xbf16>>
  func.return
}

// -----

func.func @f(%rows: tensor<?x?x4x64xbf16>, %list: tensor<?xi32>) {
  // expected-error @below {{'attn.selected' op expects a result of type !attn.view<tensor<?x?x4x64xbf16>, tensor<?x?x4x64xbf16>>, got !attn.view<tensor<?x?x4x64xbf16>, tensor<?x4x64xbf16>>}}
  %k = "attn.selected"(%rows, %list) : (tensor<?x?x4x64xbf16>, tensor<?xi32>)
    -> !attn.view<tensor<?x?x4x64xbf16>, tensor<?x4x64xbf16>>
  func.return
}

// -----

func.func @f(%rows: tensor<?x4x64xbf16>, %list: tensor<?xi32>) {
  // expected-error @below {{'attn.trimmed' op expects source to stand for a tensor [batch, sequence, heads, columns], got tensor<?x4x64xbf16>}}
  %k = "attn.trimmed"(%rows, %list) : (tensor<?x4x64xbf16>, tensor<?xi32>)
    -> !attn.view<tensor<?x4x64xbf16>, tensor<?x4x64xbf16>>
  func.return
}

// -----

func.func @f(%rows: tensor<?x?x4x64xbf16>, %list: tensor<?x?xi32>) {
  // expected-error @below {{'attn.trimmed' op expects counts to be a tensor [batch] of i32, got tensor<?x?xi32>}}
  %k = "attn.trimmed"(%rows, %list) : (tensor<?x?x4x64xbf16>, tensor<?x?xi32>)
    -> !attn.view<tensor<?x?x4x64xbf16>, tensor<?x?x4x64xbf16>>
  func.return
}

// -----

func.func @f(%rows: tensor<?x?x4x64xbf16>, %list: tensor<?xi32>) {
  // expected-error @below {{'attn.trimmed' op expects a result of type !attn.view<tensor<?x?x4x64xbf16>, tensor<?x?x4x64xbf16>>, got !attn.view<tensor<?x?x4x64xbf16>, tensor<?x4x64xbf16>>}}
  %k = "attn.trimmed"(%rows, %list) : (tensor<?x?x4x64xbf16>, tensor<?xi32>)
    -> !attn.view<tensor<?x?x4x64xbf16>, tensor<?x4x64xbf16>>
  func.return
}
