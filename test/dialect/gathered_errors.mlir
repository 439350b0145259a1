// RUN: attn-opt --split-input-file --verify-diagnostics %s

func.func @f(%rows: tensor<?x1x576xbf16>, %indices: tensor<?x?x?xi32>) {
  // expected-error @below {{'attn.gathered' op expects rows to be a tensor [rows, columns], got tensor<?x1x576xbf16>}}
  %view = "attn.gathered"(%rows, %indices) {operandSegmentSizes = array<i32: 1, 1, 0>}
    : (tensor<?x1x576xbf16>, tensor<?x?x?xi32>) -> !attn.view<tensor<?x?x1x576xbf16>, tensor<?x576xbf16>>
  func.return
}

// -----

func.func @f(%rows: tensor<?x576xbf16>, %indices: tensor<?x?xi32>) {
  // expected-error @below {{'attn.gathered' op expects lists to be tensors [batch, sq, topk] of i32, got tensor<?x?xi32>}}
  %view = "attn.gathered"(%rows, %indices) {operandSegmentSizes = array<i32: 1, 1, 0>}
    : (tensor<?x576xbf16>, tensor<?x?xi32>) -> !attn.view<tensor<?x?x1x576xbf16>, tensor<?x576xbf16>>
  func.return
}

// -----

func.func @f(%rows: tensor<?x576xbf16>, %indices: tensor<?x?x?xi32>, %l0: tensor<?xi32>) {
  // expected-error @below {{'attn.gathered' op expects lists to be tensors [batch, sq] of i32, got tensor<?xi32>}}
  %view = "attn.gathered"(%rows, %indices, %l0) {operandSegmentSizes = array<i32: 1, 1, 1>}
    : (tensor<?x576xbf16>, tensor<?x?x?xi32>, tensor<?xi32>) -> !attn.view<tensor<?x?x1x576xbf16>, tensor<?x576xbf16>>
  func.return
}

// -----

func.func @f(%rows: tensor<?x576xbf16>, %indices: tensor<?x?x?xi32>, %l0: tensor<?x?xi32>, %l1: tensor<?x?xi32>) {
  // expected-error @below {{'attn.gathered' op expects at most one tensor as lengths, got 2}}
  %view = "attn.gathered"(%rows, %indices, %l0, %l1) {operandSegmentSizes = array<i32: 1, 1, 2>}
    : (tensor<?x576xbf16>, tensor<?x?x?xi32>, tensor<?x?xi32>, tensor<?x?xi32>) -> !attn.view<tensor<?x?x1x576xbf16>, tensor<?x576xbf16>>
  func.return
}

// -----

func.func @f(%rows: tensor<?x512xbf16>, %indices: tensor<?x?x?xi32>) {
  // expected-error @below {{'attn.gathered' op expects a result of type !attn.view<tensor<?x?x1x512xbf16>, tensor<?x512xbf16>>, got !attn.view<tensor<?x?x1x576xbf16>, tensor<?x576xbf16>>}}
  %view = "attn.gathered"(%rows, %indices) {operandSegmentSizes = array<i32: 1, 1, 0>}
    : (tensor<?x512xbf16>, tensor<?x?x?xi32>) -> !attn.view<tensor<?x?x1x576xbf16>, tensor<?x576xbf16>>
  func.return
}
