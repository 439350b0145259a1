// RUN: attn-opt --split-input-file --verify-diagnostics %s

func.func @f(%c: i1) {
  // expected-error @below {{'attn.keep' op expects to be inside an attn operation, is inside 'func.func'}}
  "attn.keep"(%c) : (i1) -> ()
  func.return
}

// -----

func.func @f(%c: i32) {
  // expected-error @below {{'attn.keep' op expects a condition of type i1, got i32}}
  "attn.keep"(%c) : (i32) -> ()
  func.return
}
