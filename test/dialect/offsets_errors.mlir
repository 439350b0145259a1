// RUN: attn-opt --split-input-file --verify-diagnostics %s

func.func @f(%at: i32) {
  // expected-error @below {{'attn.offsets' op expects to be inside an attn.mha, is inside 'func.func'}}
  "attn.offsets"(%at) {operandSegmentSizes = array<i32: 1, 0, 0>} : (i32) -> ()
  func.return
}

// -----

func.func @f() {
  // expected-error @below {{'attn.offsets' op expects an offset, got none}}
  "attn.offsets"() {operandSegmentSizes = array<i32: 0, 0, 0>} : () -> ()
  func.return
}

// -----

func.func @f(%at: i32) {
  // expected-error @below {{'attn.offsets' op expects at most one q, got 2}}
  "attn.offsets"(%at, %at) {operandSegmentSizes = array<i32: 2, 0, 0>} : (i32, i32) -> ()
  func.return
}

// -----

func.func @f(%at: i64) {
  // expected-error @below {{'attn.offsets' op expects k of type i32 or tensor<?xi32>, got i64}}
  "attn.offsets"(%at) {operandSegmentSizes = array<i32: 0, 1, 0>} : (i64) -> ()
  func.return
}

// -----

func.func @f(%at: tensor<?xi32>) {
  // expected-error @below {{'attn.offsets' op expects head of type i32, got tensor<?xi32>}}
  "attn.offsets"(%at) {operandSegmentSizes = array<i32: 0, 0, 1>} : (tensor<?xi32>) -> ()
  func.return
}

// -----

func.func @f(%q: tensor<?x?x4x64xbf16>, %scale: f32, %at: i32)
    -> (tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>) {
  // expected-error @below {{'attn.mha' op expects at most one 'attn.offsets' in score_mod, got 2}}
  %o, %lse = "attn.mha"(%q, %q, %q, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.offsets"(%at) {operandSegmentSizes = array<i32: 1, 0, 0>} : (i32) -> ()
    "attn.offsets"(%at) {operandSegmentSizes = array<i32: 1, 0, 0>} : (i32) -> ()
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.causal}
    : (tensor<?x?x4x64xbf16>, tensor<?x?x4x64xbf16>, tensor<?x?x4x64xbf16>, f32)
      -> (tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>
}
