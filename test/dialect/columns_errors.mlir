// RUN: attn-opt --split-input-file --verify-diagnostics %s

func.func @f(%x: tensor<?x1x576xbf16>) {
  // expected-error @below {{'attn.columns' op expects source to stand for a tensor [batch, sequence, heads, columns], got tensor<?x1x576xbf16>}}
  %k = "attn.columns"(%x) {first = 512 : i64} : (tensor<?x1x576xbf16>)
    -> !attn.view<tensor<?x?x1x64xbf16>, tensor<?x1x576xbf16>>
  func.return
}

// -----

func.func @f(%x: tensor<?x?x1x?xbf16>) {
  // expected-error @below {{'attn.columns' op expects static columns of source, got tensor<?x?x1x?xbf16>}}
  %k = "attn.columns"(%x) {first = 512 : i64} : (tensor<?x?x1x?xbf16>)
    -> !attn.view<tensor<?x?x1x64xbf16>, tensor<?x?x1x?xbf16>>
  func.return
}

// -----

func.func @f(%x: tensor<?x?x1x576xbf16>) {
  // expected-error @below {{'attn.columns' op expects a result of static columns, got !attn.view<tensor<?x?x1x?xbf16>, tensor<?x?x1x576xbf16>>}}
  %k = "attn.columns"(%x) {first = 512 : i64} : (tensor<?x?x1x576xbf16>)
    -> !attn.view<tensor<?x?x1x?xbf16>, tensor<?x?x1x576xbf16>>
  func.return
}

// -----

func.func @f(%x: tensor<?x?x1x576xbf16>) {
  // expected-error @below {{'attn.columns' op expects a result of type !attn.view<tensor<?x?x1x64xbf16>, tensor<?x?x1x576xbf16>>, got !attn.view<tensor<?x?x2x64xbf16>, tensor<?x?x1x576xbf16>>}}
  %k = "attn.columns"(%x) {first = 512 : i64} : (tensor<?x?x1x576xbf16>)
    -> !attn.view<tensor<?x?x2x64xbf16>, tensor<?x?x1x576xbf16>>
  func.return
}

// -----

func.func @f(%x: tensor<?x?x1x576xbf16>) {
  // expected-error @below {{'attn.columns' op expects columns within 0..576, got 513..577}}
  %k = "attn.columns"(%x) {first = 513 : i64} : (tensor<?x?x1x576xbf16>)
    -> !attn.view<tensor<?x?x1x64xbf16>, tensor<?x?x1x576xbf16>>
  func.return
}

// -----

func.func @f(%x: tensor<?x?x1x576xbf16>) {
  // expected-error @below {{'attn.columns' op expects columns within 0..576, got -1..63}}
  %k = "attn.columns"(%x) {first = -1 : i64} : (tensor<?x?x1x576xbf16>)
    -> !attn.view<tensor<?x?x1x64xbf16>, tensor<?x?x1x576xbf16>>
  func.return
}
