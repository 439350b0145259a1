// RUN: attn-opt --split-input-file --verify-diagnostics --convert-attn-to-ws %s

// The configuration comes first.

func.func @f(%q: tensor<?x?x2x64xbf16>, %k: tensor<?x?x2x64xbf16>, %v: tensor<?x?x2x64xbf16>, %scale: f32)
    -> (tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>) {
  // expected-error @below {{'attn.mha' op has no 'attn.config': run attn-configure first}}
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%score: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%score) : (f32) -> ()
  }) {mask = #attn.null}
    : (tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, f32)
      -> (tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>)
  func.return %o, %lse : tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>
}

// -----

// A function is one attention operation and nothing else.

// expected-error @below {{'func.func' op expects one attn.append or attn.combine or attn.delta or attn.gradients or attn.kv_gradients or attn.mha or attn.mla or attn.mla_decode or attn.mla_kv_gradients or attn.mla_q_gradients or attn.q_gradients or attn.round_rows or attn.sink_delta or attn.sparse_mla or attn.sum_parts or attn.sum_rows or attn.zero_rows and func.return, got func.return}}
func.func @f(%x: f32) -> f32 {
  func.return %x : f32
}

// -----

// expected-error @below {{'func.func' op expects one attn.mha and func.return, got arith.addf, attn.mha, func.return}}
func.func @f(%q: tensor<?x?x2x64xbf16>, %k: tensor<?x?x2x64xbf16>, %v: tensor<?x?x2x64xbf16>, %scale: f32)
    -> (tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>) {
  %twice = arith.addf %scale, %scale : f32
  %o, %lse = "attn.mha"(%q, %k, %v, %twice) ({
  ^bb0(%score: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%score) : (f32) -> ()
  }) {mask = #attn.null, attn.config = {}}
    : (tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, f32)
      -> (tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>)
  func.return %o, %lse : tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>
}

// -----

func.func @f(%k: tensor<?x?x2x64xbf16>, %q: tensor<?x?x2x64xbf16>, %v: tensor<?x?x2x64xbf16>, %scale: f32)
    -> (tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>) {
  // expected-error @below {{'attn.mha' op expects the function's first arguments as its operands, in order}}
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%score: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%score) : (f32) -> ()
  }) {mask = #attn.null, attn.config = {}}
    : (tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, f32)
      -> (tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>)
  func.return %o, %lse : tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>
}

// -----

func.func @f(%q: tensor<?x?x2x64xbf16>, %k: tensor<?x?x2x64xbf16>, %v: tensor<?x?x2x64xbf16>, %scale: f32)
    -> tensor<?x2x?xf32> {
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%score: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%score) : (f32) -> ()
  }) {mask = #attn.null, attn.config = {}}
    : (tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, f32)
      -> (tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>)
  // expected-error @below {{'func.return' op expects to return o, or o and lse, of the attn.mha}}
  func.return %lse : tensor<?x2x?xf32>
}

// -----

// A score modifier works on one element.

func.func @f(%q: tensor<?x?x2x64xbf16>, %k: tensor<?x?x2x64xbf16>, %v: tensor<?x?x2x64xbf16>, %scale: f32)
    -> (tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>) {
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%score: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    %no = arith.constant false
    // expected-error @below {{'scf.if' op is not element-wise, so a score_mod cannot hold it}}
    %x = scf.if %no -> f32 {
      scf.yield %score : f32
    } else {
      scf.yield %score : f32
    }
    "attn.yield"(%x) : (f32) -> ()
  }) {mask = #attn.null, attn.config = {}}
    : (tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, f32)
      -> (tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>)
  func.return %o, %lse : tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>
}

// -----

func.func @f(%q: tensor<?x?x2x64xbf16>, %k: tensor<?x?x2x64xbf16>, %v: tensor<?x?x2x64xbf16>, %scale: f32, %t: tensor<?xf32>)
    -> (tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>) {
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%score: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    // expected-error @below {{'tensor.rank' op is not element-wise, so a score_mod cannot hold it}}
    %n = tensor.rank %t : tensor<?xf32>
    %rows = arith.index_cast %n : index to i32
    %size = arith.sitofp %rows : i32 to f32
    %y = arith.mulf %score, %size : f32
    "attn.yield"(%y) : (f32) -> ()
  }) {mask = #attn.null, attn.config = {}}
    : (tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, f32)
      -> (tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>)
  func.return %o, %lse : tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>
}

// -----

func.func @f(%q: tensor<?x?x2x64xbf16>, %k: tensor<?x?x2x64xbf16>, %v: tensor<?x?x2x64xbf16>, %scale: f32, %t: tensor<?xf32>)
    -> (tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>) {
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%score: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    %axis = arith.index_cast %b : i32 to index
    // expected-error @below {{'tensor.dim' op expects a constant dimension}}
    %n = tensor.dim %t, %axis : tensor<?xf32>
    %rows = arith.index_cast %n : index to i32
    %size = arith.sitofp %rows : i32 to f32
    %y = arith.mulf %score, %size : f32
    "attn.yield"(%y) : (f32) -> ()
  }) {mask = #attn.null, attn.config = {}}
    : (tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, f32)
      -> (tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>)
  func.return %o, %lse : tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>
}

// -----

// A sink is one per row.

func.func @f(%q: tensor<?x?x2x64xbf16>, %k: tensor<?x?x2x64xbf16>, %v: tensor<?x?x2x64xbf16>, %scale: f32)
    -> (tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>) {
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%score: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    // expected-error @below {{'attn.sink' op expects values that depend on batch, head, q alone}}
    "attn.sink"(%score) : (f32) -> ()
    "attn.yield"(%score) : (f32) -> ()
  }) {mask = #attn.null, attn.config = {}}
    : (tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, f32)
      -> (tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>)
  func.return %o, %lse : tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>
}

// -----

// Keys and values lie alike.

func.func @f(%q: tensor<?x?x4x64xbf16>, %k: tensor<?x?x2x64xbf16>, %v: tensor<?x?x2x64xbf16>, %scale: f32,
             %a: tensor<?xi32>, %b: tensor<?xi32>) -> (tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>) {
  %queries = "attn.limited"(%q, %a) {counted = "all"} : (tensor<?x?x4x64xbf16>, tensor<?xi32>) -> !attn.view<tensor<?x?x4x64xbf16>, tensor<?x?x4x64xbf16>>
  %keys = "attn.limited"(%k, %a) {counted = "all"} : (tensor<?x?x2x64xbf16>, tensor<?xi32>) -> !attn.view<tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>>
  %values = "attn.limited"(%v, %b) {counted = "all"} : (tensor<?x?x2x64xbf16>, tensor<?xi32>) -> !attn.view<tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>>
  // expected-error @below {{'attn.mha' op expects k and v to be stored alike, by the same offsets and lengths}}
  %o, %lse = "attn.mha"(%queries, %keys, %values, %scale) ({
  ^bb0(%s: f32, %n: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.causal, attn.config = {}}
    : (!attn.view<tensor<?x?x4x64xbf16>, tensor<?x?x4x64xbf16>>, !attn.view<tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>>, !attn.view<tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>>, f32) -> (tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>
}

// -----

func.func @f(%q: tensor<?x?x4x64xbf16>, %k: tensor<?x?x2x64xbf16>, %v: tensor<?x?x2x64xbf16>, %scale: f32,
             %a: tensor<?xi32>, %b: tensor<?xi32>) -> (tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>) {
  %queries = "attn.limited"(%q, %a) {counted = "cached"} : (tensor<?x?x4x64xbf16>, tensor<?xi32>) -> !attn.view<tensor<?x?x4x64xbf16>, tensor<?x?x4x64xbf16>>
  %keys = "attn.limited"(%k, %a) {counted = "all"} : (tensor<?x?x2x64xbf16>, tensor<?xi32>) -> !attn.view<tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>>
  %values = "attn.limited"(%v, %a) {counted = "all"} : (tensor<?x?x2x64xbf16>, tensor<?xi32>) -> !attn.view<tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>>
  // expected-error @below {{'attn.mha' op expects the lengths of q to count the queries}}
  %o, %lse = "attn.mha"(%queries, %keys, %values, %scale) ({
  ^bb0(%s: f32, %n: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.causal, attn.config = {}}
    : (!attn.view<tensor<?x?x4x64xbf16>, tensor<?x?x4x64xbf16>>, !attn.view<tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>>, !attn.view<tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>>, f32) -> (tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>
}

// -----

// expected-error @below {{'func.func' op expects one attn.mha and func.return, got arith.constant, tensor.cast, attn.mha, func.return}}
func.func @f(%q: tensor<?x?x4x64xbf16>, %k: tensor<?x?x2x64xbf16>, %v: tensor<?x?x2x64xbf16>, %scale: f32,
             %b: tensor<?xi32>) -> (tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>) {
  %fixed = arith.constant dense<5> : tensor<2xi32>
  %a = tensor.cast %fixed : tensor<2xi32> to tensor<?xi32>
  %queries = "attn.limited"(%q, %a) {counted = "all"} : (tensor<?x?x4x64xbf16>, tensor<?xi32>) -> !attn.view<tensor<?x?x4x64xbf16>, tensor<?x?x4x64xbf16>>
  %keys = "attn.limited"(%k, %a) {counted = "all"} : (tensor<?x?x2x64xbf16>, tensor<?xi32>) -> !attn.view<tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>>
  %values = "attn.limited"(%v, %a) {counted = "all"} : (tensor<?x?x2x64xbf16>, tensor<?xi32>) -> !attn.view<tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>>
  %o, %lse = "attn.mha"(%queries, %keys, %values, %scale) ({
  ^bb0(%s: f32, %n: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.causal}
    : (!attn.view<tensor<?x?x4x64xbf16>, tensor<?x?x4x64xbf16>>, !attn.view<tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>>, !attn.view<tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>>, f32) -> (tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>
}

// -----

// Lists name the kernel's own work tiles.

func.func @f(%q: tensor<?x?x4x64xbf16>, %k: tensor<?x?x2x64xbf16>, %v: tensor<?x?x2x64xbf16>, %scale: f32,
             %counts: tensor<?x?x?x2xi32>, %indices: tensor<?x?x?x?xi32>)
    -> (tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>) {
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    // expected-error @below {{'attn.blocks' op expects blocks of (positions, heads, keys) = (64, 2, 128), the kernel's work tiles, got (128, 1, 128)}}
    "attn.blocks"(%counts, %indices) {block = array<i32: 128, 1, 128>} : (tensor<?x?x?x2xi32>, tensor<?x?x?x?xi32>) -> ()
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.null, attn.config = {q_tiles = 1 : i32, packed_heads = 2 : i32}}
    : (tensor<?x?x4x64xbf16>, tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, f32)
      -> (tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>
}

// -----

// Names may be missing here, but those that are there belong to their operands.

// expected-error @below {{'func.func' op expects attn.name = "v" on argument 2, got "k"}}
func.func @f(%q: tensor<?x?x2x64xbf16>, %k: tensor<?x?x2x64xbf16>,
             %v: tensor<?x?x2x64xbf16> {attn.name = "k"}, %scale: f32)
    -> (tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>) {
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%score: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%score) : (f32) -> ()
  }) {mask = #attn.null}
    : (tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, f32)
      -> (tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>)
  func.return %o, %lse : tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>
}

// -----

// expected-error @below {{'func.func' op expects attn.default on argument 3 to be a finite float above 0, got "1"}}
func.func @f(%q: tensor<?x?x2x64xbf16>, %k: tensor<?x?x2x64xbf16>, %v: tensor<?x?x2x64xbf16>,
             %scale: f32 {attn.default = "1"})
    -> (tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>) {
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%score: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%score) : (f32) -> ()
  }) {mask = #attn.null}
    : (tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, f32)
      -> (tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>)
  func.return %o, %lse : tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>
}

// -----

// expected-error @below {{'func.func' op expects attn.name on argument 4 to be a name of letters, digits, _ and ., got loc("x":1:2)}}
func.func @f(%q: tensor<?x?x2x64xbf16>, %k: tensor<?x?x2x64xbf16>, %v: tensor<?x?x2x64xbf16>,
             %scale: f32, %bias: tensor<2xf32> {attn.name = loc("x":1:2)}) -> tensor<?x?x2x64xbf16> {
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%score: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%score) : (f32) -> ()
  }) {mask = #attn.null}
    : (tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, f32)
      -> (tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>)
  func.return %o : tensor<?x?x2x64xbf16>
}

// -----

// Caches: k and v lie alike, q is none, and pages are not trimmed.

func.func @f(%q: tensor<?x?x4x64xbf16>, %k: tensor<?x64x2x64xbf16>, %v: tensor<?x?x2x64xbf16>, %scale: f32,
             %table: tensor<?x?xi32>) -> (tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>) {
  %keys = "attn.paged"(%k, %table) : (tensor<?x64x2x64xbf16>, tensor<?x?xi32>) -> !attn.view<tensor<?x?x2x64xbf16>, tensor<?x64x2x64xbf16>>
  // expected-error @below {{'attn.mha' op expects k and v to be stored alike, by the same offsets and lengths}}
  %o, %lse = "attn.mha"(%q, %keys, %v, %scale) ({
  ^bb0(%s: f32, %n: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.causal, attn.config = {}}
    : (tensor<?x?x4x64xbf16>, !attn.view<tensor<?x?x2x64xbf16>, tensor<?x64x2x64xbf16>>, tensor<?x?x2x64xbf16>, f32) -> (tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>
}

// -----

func.func @f(%q: tensor<?x?x4x64xbf16>, %k: tensor<?x?x2x64xbf16>, %v: tensor<?x?x2x64xbf16>, %scale: f32,
             %rows: tensor<?xi32>) -> (tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>) {
  %queries = "attn.selected"(%q, %rows) : (tensor<?x?x4x64xbf16>, tensor<?xi32>) -> !attn.view<tensor<?x?x4x64xbf16>, tensor<?x?x4x64xbf16>>
  // expected-error @below {{'attn.mha' op expects q to be no cache: neither paged, selected nor trimmed}}
  %o, %lse = "attn.mha"(%queries, %k, %v, %scale) ({
  ^bb0(%s: f32, %n: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.causal, attn.config = {}}
    : (!attn.view<tensor<?x?x4x64xbf16>, tensor<?x?x4x64xbf16>>, tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, f32) -> (tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>
}

// -----

func.func @f(%q: tensor<?x?x4x64xbf16>, %k: tensor<?x64x2x64xbf16>, %v: tensor<?x64x2x64xbf16>, %scale: f32,
             %table: tensor<?x?xi32>, %padding: tensor<?xi32>) -> (tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>) {
  %k0 = "attn.paged"(%k, %table) : (tensor<?x64x2x64xbf16>, tensor<?x?xi32>) -> !attn.view<tensor<?x?x2x64xbf16>, tensor<?x64x2x64xbf16>>
  %keys = "attn.trimmed"(%k0, %padding) : (!attn.view<tensor<?x?x2x64xbf16>, tensor<?x64x2x64xbf16>>, tensor<?xi32>) -> !attn.view<tensor<?x?x2x64xbf16>, tensor<?x64x2x64xbf16>>
  %v0 = "attn.paged"(%v, %table) : (tensor<?x64x2x64xbf16>, tensor<?x?xi32>) -> !attn.view<tensor<?x?x2x64xbf16>, tensor<?x64x2x64xbf16>>
  %values = "attn.trimmed"(%v0, %padding) : (!attn.view<tensor<?x?x2x64xbf16>, tensor<?x64x2x64xbf16>>, tensor<?xi32>) -> !attn.view<tensor<?x?x2x64xbf16>, tensor<?x64x2x64xbf16>>
  // expected-error @below {{'attn.mha' op expects sequences in pages to begin with a page: they are trimmed}}
  %o, %lse = "attn.mha"(%q, %keys, %values, %scale) ({
  ^bb0(%s: f32, %n: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.causal, attn.config = {}}
    : (tensor<?x?x4x64xbf16>, !attn.view<tensor<?x?x2x64xbf16>, tensor<?x64x2x64xbf16>>, !attn.view<tensor<?x?x2x64xbf16>, tensor<?x64x2x64xbf16>>, f32) -> (tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>
}

// -----

func.func @f(%q: tensor<?x?x1x64xbf16>, %k: tensor<?x?x1x576xbf16>, %v: tensor<?x?x1x64xbf16>, %scale: f32)
    -> (tensor<?x?x1x64xbf16>, tensor<?x1x?xf32>) {
  %keys = "attn.columns"(%k) {first = 512 : i64} : (tensor<?x?x1x576xbf16>) -> !attn.view<tensor<?x?x1x64xbf16>, tensor<?x?x1x576xbf16>>
  // expected-error @below {{'attn.mha' op expects k to be whole rows, got columns of them}}
  %o, %lse = "attn.mha"(%q, %keys, %v, %scale) ({
  ^bb0(%s: f32, %n: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.causal, attn.config = {}}
    : (tensor<?x?x1x64xbf16>, !attn.view<tensor<?x?x1x64xbf16>, tensor<?x?x1x576xbf16>>, tensor<?x?x1x64xbf16>, f32) -> (tensor<?x?x1x64xbf16>, tensor<?x1x?xf32>)
  func.return %o, %lse : tensor<?x?x1x64xbf16>, tensor<?x1x?xf32>
}

// -----

// Scales that 16 positions share, where sequences may begin within 16.

func.func @f(%q: tensor<?x?x4x64xbf16>, %k: tensor<?x?x2x64xf8E4M3FN>, %scale: f32, %scales: tensor<?x?x2x1xf32>,
             %padding: tensor<?xi32>) -> (tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>) {
  %rows = "attn.trimmed"(%k, %padding) : (tensor<?x?x2x64xf8E4M3FN>, tensor<?xi32>) -> !attn.view<tensor<?x?x2x64xf8E4M3FN>, tensor<?x?x2x64xf8E4M3FN>>
  %own = "attn.trimmed"(%scales, %padding) : (tensor<?x?x2x1xf32>, tensor<?xi32>) -> !attn.view<tensor<?x?x2x1xf32>, tensor<?x?x2x1xf32>>
  %keys = "attn.scaled"(%rows, %own) {block = array<i32: 16, 64>} : (!attn.view<tensor<?x?x2x64xf8E4M3FN>, tensor<?x?x2x64xf8E4M3FN>>, !attn.view<tensor<?x?x2x1xf32>, tensor<?x?x2x1xf32>>) -> !attn.view<tensor<?x?x2x64xf8E4M3FN>, tensor<?x?x2x64xf8E4M3FN>>
  // expected-error @below {{'attn.mha' op expects sequences of k to begin with a block of 16 positions}}
  %o, %lse = "attn.mha"(%q, %keys, %keys, %scale) ({
  ^bb0(%s: f32, %n: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.causal, attn.config = {}}
    : (tensor<?x?x4x64xbf16>, !attn.view<tensor<?x?x2x64xf8E4M3FN>, tensor<?x?x2x64xf8E4M3FN>>, !attn.view<tensor<?x?x2x64xf8E4M3FN>, tensor<?x?x2x64xf8E4M3FN>>, f32) -> (tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>
}
