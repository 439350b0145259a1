// RUN: attn-opt --dialects=func,arith --split-input-file --verify-diagnostics %s

// With `--dialects`, whatever else occurs is an error: ours is unknown, upstream's is refused.

func.func @f(%a: f32, %b: f32) -> f32 {
  %0 = arith.addf %a, %b : f32
  func.return %0 : f32
}

// -----

func.func @f(%a: f32) {
  // expected-error @below {{operation being parsed with an unregistered dialect}}
  "attn.yield"(%a) : (f32) -> ()
}

// -----

func.func @f(%a: f32) -> f32 {
  // expected-error @below {{'math.exp2' op is not legal at stage '--dialects', which holds builtin, func, arith}}
  %0 = math.exp2 %a : f32
  func.return %0 : f32
}
