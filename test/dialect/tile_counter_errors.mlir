// RUN: attn-opt --split-input-file --verify-diagnostics %s

func.func @f(%counter: tensor<1xi32>) {
  // expected-error @below {{'attn.tile_counter' op expects to be inside an attn operation, is inside 'func.func'}}
  "attn.tile_counter"(%counter) : (tensor<1xi32>) -> ()
  func.return
}

// -----

func.func @f(%counter: tensor<?xi32>) {
  // expected-error @below {{'attn.tile_counter' op expects a counter of type tensor<1xi32>, got tensor<?xi32>}}
  "attn.tile_counter"(%counter) : (tensor<?xi32>) -> ()
  func.return
}
