// RUN: attn-opt --attn-check-names %s | FileCheck %s

// Names that are right stay as they are; so do functions without arguments.

// CHECK-LABEL: func.func @f(
// CHECK-SAME: attn.name = "q"
// CHECK-SAME: attn.name = "slopes"
func.func @f(%q: tensor<?x?x2x64xbf16> {attn.name = "q"}, %k: tensor<?x?x2x64xbf16> {attn.name = "k"},
             %v: tensor<?x?x2x64xbf16> {attn.name = "v"}, %scale: f32 {attn.name = "scale"},
             %s: tensor<?xf32> {attn.name = "slopes"}) -> (tensor<?x?x2x64xbf16> {attn.name = "o"}) {
  func.return %q : tensor<?x?x2x64xbf16>
}

// CHECK-LABEL: func.func @nothing()
func.func @nothing() {
  func.return
}
