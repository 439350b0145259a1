// RUN: attn-opt --split-input-file --verify-diagnostics --convert-attn-to-ws %s

// expected-error @below {{'func.func' op expects one attn.append and an empty func.return, got attn.append, arith.constant, func.return}}
func.func @f(%k: tensor<?x16x2x64xbf16>, %v: tensor<?x16x2x64xbf16>, %kn: tensor<?x2x64xbf16>,
             %vn: tensor<?x2x64xbf16>, %slots: tensor<?xi32>) {
  "attn.append"(%k, %v, %kn, %vn, %slots) {operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 0, 0, 0, 0>}
    : (tensor<?x16x2x64xbf16>, tensor<?x16x2x64xbf16>, tensor<?x2x64xbf16>, tensor<?x2x64xbf16>, tensor<?xi32>) -> ()
  %c = arith.constant 0 : i32
  func.return
}

// -----

func.func @f(%k: tensor<?x16x2x64xbf16>, %v: tensor<?x16x2x64xbf16>, %kn: tensor<?x2x64xbf16>,
             %vn: tensor<?x2x64xbf16>, %slots: tensor<?xi32>) {
  // expected-error @below {{'attn.append' op expects the function's first arguments as its first operands, in order}}
  "attn.append"(%v, %k, %kn, %vn, %slots) {operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 0, 0, 0, 0>}
    : (tensor<?x16x2x64xbf16>, tensor<?x16x2x64xbf16>, tensor<?x2x64xbf16>, tensor<?x2x64xbf16>, tensor<?xi32>) -> ()
  func.return
}

// -----

func.func @f(%k: tensor<?x16x2x64xbf16>, %v: tensor<?x16x2x64xbf16>, %kn: tensor<?x2x64xbf16>,
             %vn: tensor<?x2x64xbf16>, %slots: tensor<?xi32>, %table: tensor<?x?xi32>) {
  %k0 = "attn.paged"(%k, %table) : (tensor<?x16x2x64xbf16>, tensor<?x?xi32>)
    -> !attn.view<tensor<?x?x2x64xbf16>, tensor<?x16x2x64xbf16>>
  // expected-error @below {{'attn.append' op expects slots of caches as they are stored}}
  "attn.append"(%k0, %v, %kn, %vn, %slots) {operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 0, 0, 0, 0>}
    : (!attn.view<tensor<?x?x2x64xbf16>, tensor<?x16x2x64xbf16>>, tensor<?x16x2x64xbf16>, tensor<?x2x64xbf16>, tensor<?x2x64xbf16>, tensor<?xi32>) -> ()
  func.return
}

// -----

func.func @f(%k: tensor<?x16x2x64xbf16>, %v: tensor<?x16x2x64xbf16>, %kn: tensor<?x?x2x64xbf16>,
             %vn: tensor<?x?x2x64xbf16>, %counts: tensor<?xi32>, %table: tensor<?x?xi32>) {
  %k0 = "attn.paged"(%k, %table) : (tensor<?x16x2x64xbf16>, tensor<?x?xi32>)
    -> !attn.view<tensor<?x?x2x64xbf16>, tensor<?x16x2x64xbf16>>
  %k1 = "attn.trimmed"(%k0, %counts) : (!attn.view<tensor<?x?x2x64xbf16>, tensor<?x16x2x64xbf16>>, tensor<?xi32>)
    -> !attn.view<tensor<?x?x2x64xbf16>, tensor<?x16x2x64xbf16>>
  // expected-error @below {{'attn.append' op expects sequences in pages to be neither selected nor trimmed}}
  "attn.append"(%k1, %v, %kn, %vn) {operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0, 0, 0, 0>}
    : (!attn.view<tensor<?x?x2x64xbf16>, tensor<?x16x2x64xbf16>>, tensor<?x16x2x64xbf16>, tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>) -> ()
  func.return
}

// -----

func.func @f(%k: tensor<?x?x2x64xbf16>, %v: tensor<?x?x2x64xbf16>, %kn: tensor<?x?x2x64xbf16>,
             %vn: tensor<?x?x2x64xbf16>, %counts: tensor<?xi32>) {
  %k0 = "attn.selected"(%k, %counts) : (tensor<?x?x2x64xbf16>, tensor<?xi32>)
    -> !attn.view<tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>>
  %k1 = "attn.selected"(%k0, %counts) : (!attn.view<tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>>, tensor<?xi32>)
    -> !attn.view<tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>>
  // expected-error @below {{'attn.append' op expects caches that each storage operation looks at once, not ragged}}
  "attn.append"(%k1, %v, %kn, %vn) {operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0, 0, 0, 0>}
    : (!attn.view<tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>>, tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>) -> ()
  func.return
}
