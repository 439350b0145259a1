// RUN: attn-opt --split-input-file --verify-diagnostics --attn-check-names %s

// A name that is missing.

// expected-error @below {{'func.func' op expects attn.name = "k" on argument 1, got none}}
func.func @f(%q: tensor<?x?x2x64xbf16> {attn.name = "q"}, %k: tensor<?x?x2x64xbf16>,
             %v: tensor<?x?x2x64xbf16> {attn.name = "v"}, %scale: f32 {attn.name = "scale"}) {
  func.return
}

// -----

// A captured tensor may have any name, but has to have one.

// expected-error @below {{'func.func' op expects attn.name = a name on argument 4, got none}}
func.func @f(%q: tensor<?x?x2x64xbf16> {attn.name = "q"}, %k: tensor<?x?x2x64xbf16> {attn.name = "k"},
             %v: tensor<?x?x2x64xbf16> {attn.name = "v"}, %scale: f32 {attn.name = "scale"},
             %table: tensor<?xf32>) {
  func.return
}

// -----

// One name twice.

// expected-error @below {{'func.func' op expects attn.name = "k" on argument 1, got "q"}}
func.func @f(%q: tensor<?x?x2x64xbf16> {attn.name = "q"}, %k: tensor<?x?x2x64xbf16> {attn.name = "q"},
             %v: tensor<?x?x2x64xbf16> {attn.name = "v"}, %scale: f32 {attn.name = "scale"}) {
  func.return
}

// -----

// expected-error @below {{'func.func' op expects different names, got attn.name = "t" on argument 5 and argument 4}}
func.func @f(%q: tensor<?x?x2x64xbf16> {attn.name = "q"}, %k: tensor<?x?x2x64xbf16> {attn.name = "k"},
             %v: tensor<?x?x2x64xbf16> {attn.name = "v"}, %scale: f32 {attn.name = "scale"},
             %s: tensor<?xf32> {attn.name = "t"}, %t: tensor<?xf32> {attn.name = "t"}) {
  func.return
}

// -----

// That of a result.

// expected-error @below {{'func.func' op expects different names, got attn.name = "o" on argument 4 and result 0}}
func.func @f(%q: tensor<?x?x2x64xbf16> {attn.name = "q"}, %k: tensor<?x?x2x64xbf16> {attn.name = "k"},
             %v: tensor<?x?x2x64xbf16> {attn.name = "v"}, %scale: f32 {attn.name = "scale"},
             %s: tensor<?xf32> {attn.name = "o"}) -> tensor<?x?x2x64xbf16> {
  func.return %q : tensor<?x?x2x64xbf16>
}

// -----

// expected-error @below {{'func.func' op expects attn.name = "o" on result 0, got "lse"}}
func.func @f(%q: tensor<?x?x2x64xbf16> {attn.name = "q"}) -> (tensor<?x?x2x64xbf16> {attn.name = "lse"}) {
  func.return %q : tensor<?x?x2x64xbf16>
}

// -----

// What messages and tables cannot print, and what is no name.

// expected-error @below {{'func.func' op expects attn.name on argument 0 to be a name of letters, digits, _ and ., got "q\0A"}}
func.func @f(%q: tensor<?x?x2x64xbf16> {attn.name = "q\0A"}) {
  func.return
}

// -----

// expected-error @below {{'func.func' op expects attn.name on argument 0 to be a name of letters, digits, _ and ., got 1 : i64}}
func.func @f(%q: tensor<?x?x2x64xbf16> {attn.name = 1}) {
  func.return
}

// -----

// A kernel's file is named after it.

// expected-error @below {{'func.func' op expects a symbol of letters, digits, _ and ., got '../f'}}
func.func @"../f"() {
  func.return
}
