// RUN: attn-opt --split-input-file --verify-diagnostics %s

// What the parser lets pass, or refuses without a word, still gets an error with its place.

// Operations of ours have no form of their own.

// expected-error @below {{'attn.mha' op expects the generic form}}
%0 = attn.mha : i32

// -----

func.func @custom_within(%q: f32) {
  // expected-error @below {{'attn.yield' op expects the generic form, "attn.yield"(operands)}}
  func.return attn.yield %q : f32
}

// -----

func.func @custom_after_sound_types(%x: !ws.tile<vector<4xf32>, "shared">, %y: f32 {attn.name = "y"}) {
  "ws.barrier"() {ws.note = #attn.causal} : () -> ()
  // expected-error @below {{'ws.kernel' op expects the generic form}}
  ws.kernel @k
}

// -----

// Segments that are no counts.

func.func @segments_of_another_kind(%n: i32) {
  // expected-error @below {{'ws.tiles' op expects attribute 'operandSegmentSizes' with an i32 count for each of extents (any), ends (any), packing (any), got {}}}
  "ws.tiles"(%n) ({
  ^bb0(%i: i32):
    "ws.barrier"() : () -> ()
  }) {order = "single", operandSegmentSizes = {}} : (i32) -> ()
  func.return
}

// -----

func.func @segments_of_another_width(%n: i32) {
  // expected-error @below {{'ws.tiles' op expects attribute 'operandSegmentSizes' with an i32 count for each of extents (any), ends (any), packing (any), got array<i64: 1, 0, 0>}}
  "ws.tiles"(%n) ({
  ^bb0(%i: i32):
    "ws.barrier"() : () -> ()
  }) {order = "single", operandSegmentSizes = array<i64: 1, 0, 0>} : (i32) -> ()
  func.return
}

// -----

func.func @segments_below_zero(%n: i32) {
  // expected-error @below {{'ws.tiles' op expects attribute 'operandSegmentSizes' with an i32 count for each of extents (any), ends (any), packing (any), got array<i32: 2, -1, 0>}}
  "ws.tiles"(%n) ({
  ^bb0(%i: i32):
    "ws.barrier"() : () -> ()
  }) {order = "single", operandSegmentSizes = array<i32: 2, -1, 0>} : (i32) -> ()
  func.return
}

// -----

func.func @segments_as_text(%n: i32) {
  // expected-error @below {{'ws.tiles' op expects attribute 'operandSegmentSizes' with an i32 count for each of extents (any), ends (any), packing (any), got "1"}}
  "ws.tiles"(%n) ({
  ^bb0(%i: i32):
    "ws.barrier"() : () -> ()
  }) {order = "single", operandSegmentSizes = "1"} : (i32) -> ()
  func.return
}

// -----

// Attributes that the binding has no class for.

func.func @location(%q: tensor<?x?x2x64xbf16>, %scale: f32) {
  // expected-error @below {{'attn.mha' op expects mask to be one of #attn.null, #attn.causal, #attn.window, #attn.chunked, #attn.prefix, #attn.and, #attn.or, #attn.not, got loc("x":1:2)}}
  %o, %lse = "attn.mha"(%q, %q, %q, %scale) ({
  ^bb0(%score: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%score) : (f32) -> ()
  }) {mask = loc("x":1:2)}
    : (tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, f32)
      -> (tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>)
  func.return
}

// -----

func.func @location_in_a_declared_class(%d: !ws.tile<vector<128x64xf32>, "tensor">,
                                        %a: !ws.tile<vector<128x64xbf16>, "shared">,
                                        %b: !ws.tile<vector<64x64xbf16>, "shared">, %more: i1) {
  // expected-error @below {{'ws.mma' op expects attribute 'b_layout' of StringAttr, got loc(unknown)}}
  "ws.mma"(%d, %a, %b, %more) {b_layout = loc(unknown)}
    : (!ws.tile<vector<128x64xf32>, "tensor">, !ws.tile<vector<128x64xbf16>, "shared">,
       !ws.tile<vector<64x64xbf16>, "shared">, i1) -> ()
  func.return
}

// -----

func.func @complex_elements(%x: memref<?xf32>) {
  // expected-error @below {{'ws.extent' op expects attribute 'dim' of IntegerAttr, got dense<(1.000000e+00,2.000000e+00)> : tensor<1xcomplex<f32>>}}
  %n = "ws.extent"(%x) {dim = dense<(1.0, 2.0)> : tensor<1xcomplex<f32>>} : (memref<?xf32>) -> i32
  func.return
}

// -----

// Attributes that may be absent.

func.func @partial(%q: tensor<?x?x2x64xbf16>, %scale: f32) {
  // expected-error @below {{'attn.mha' op expects attribute 'attn.partial' of UnitAttr, got 3 : i64}}
  %o, %lse = "attn.mha"(%q, %q, %q, %scale) ({
  ^bb0(%score: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%score) : (f32) -> ()
  }) {mask = #attn.null, attn.partial = 3 : i64}
    : (tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, f32)
      -> (tensor<?x?x2x64xf32>, tensor<?x2x?xf32>)
  func.return
}

// -----

// expected-error @below {{'ws.kernel' op expects attribute 'ws.defaults' of DictAttr, got "scale"}}
"ws.kernel"() ({
^bb0(%scale: f32):
}) {sym_name = "k", arg_names = ["scale"], arg_roles = ["scalar"], arg_dims = [[]], ws.defaults = "scale"} : () -> ()

// -----

// expected-error @below {{'ws.kernel' op expects floats in ws.defaults, got loc("x":1:2) for scale}}
"ws.kernel"() ({
^bb0(%scale: f32):
}) {sym_name = "k", arg_names = ["scale"], arg_roles = ["scalar"], arg_dims = [[]], ws.defaults = {scale = loc("x":1:2)}} : () -> ()

// -----

func.func @no_source(%d: !ws.tile<vector<64x128xbf16>, "shared">, %m: memref<?x128xbf16>, %row: i32) {
  // expected-error @below {{'ws.copy_out' op expects attribute 'operandSegmentSizes' with an i32 count for each of}}
  "ws.copy_out"(%d, %m, %row, %row) {dims = array<i32: 0, 1>, operandSegmentSizes = array<i32: 0, 2, 2>}
    : (!ws.tile<vector<64x128xbf16>, "shared">, memref<?x128xbf16>, i32, i32) -> ()
  func.return
}
