// RUN: attn-opt --split-input-file --verify-diagnostics %s

func.func @f(%c: f32) {
  // expected-error @below {{'attn.slope' op expects to be inside an attn operation, is inside 'func.func'}}
  "attn.slope"(%c) : (f32) -> ()
  func.return
}

// -----

func.func @f(%c: i32) {
  // expected-error @below {{'attn.slope' op expects a value of type f32, got i32}}
  "attn.slope"(%c) : (i32) -> ()
  func.return
}
