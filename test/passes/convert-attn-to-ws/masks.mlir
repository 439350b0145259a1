// RUN: attn-opt --attn-to-ws --canonicalize --cse %s -o %t.mlir
// RUN: FileCheck %s --input-file=%t.mlir
// RUN: attn-opt --ws-verify-rings %t.mlir -o %t.same.mlir

// Every mask at the `ws` stage: what the softmax role does in its loops over tiles. The first loop
// tests its tiles, the second one has no trace of the mask, and a third one is there only for masks
// with a left edge. The rings of each kernel are proved by the last command.

// Nothing but the end of the sequence.
// CHECK: "ws.kernel"
// CHECK: scf.for
// CHECK-NEXT: "ws.wait"
// CHECK-NEXT: "ws.load"
// CHECK: "ws.map"() ({
// CHECK: arith.shrui
// CHECK: "ws.yield"
// CHECK-NEXT: }) {operandSegmentSizes = array<i32: 0>} : () -> !ws.frag<vector<128x4xi32>>
// CHECK-NEXT: "ws.keep"
// CHECK: scf.yield
// CHECK: scf.for
// CHECK-NEXT: "ws.wait"
// CHECK-NEXT: "ws.load"
// CHECK-NOT: "ws.keep"
// CHECK: scf.yield
// CHECK-NOT: scf.for
// CHECK: label_name = "softmax"
// CHECK-NOT: "ws.keep"
// CHECK: sym_name = "null"
func.func @null(%q: tensor<?x?x2x64xbf16>, %k: tensor<?x?x2x64xbf16>, %v: tensor<?x?x2x64xbf16>, %scale: f32)
    -> (tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>) {
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%score: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%score) : (f32) -> ()
  }) {mask = #attn.null}
    : (tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, f32)
      -> (tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>)
  func.return %o, %lse : tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>
}

// The last column is the row's diagonal element or that of the sequence.
// CHECK: "ws.kernel"
// CHECK: scf.for
// CHECK-NEXT: "ws.wait"
// CHECK-NEXT: "ws.load"
// CHECK: "ws.map"() ({
// CHECK: %[[D:.*]] = arith.addi %{{.*}}, %c1_i32
// CHECK: %[[END:.*]] = arith.minsi %[[D]], %{{.*}}
// CHECK: arith.subi %[[END]], %{{.*}}
// CHECK: arith.shrui
// CHECK: "ws.yield"
// CHECK-NEXT: }) {operandSegmentSizes = array<i32: 0>} : () -> !ws.frag<vector<128x4xi32>>
// CHECK-NEXT: "ws.keep"
// CHECK: scf.yield
// CHECK: scf.for
// CHECK-NEXT: "ws.wait"
// CHECK-NEXT: "ws.load"
// CHECK-NOT: "ws.keep"
// CHECK: scf.yield
// CHECK-NOT: scf.for
// CHECK: label_name = "softmax"
// CHECK-NOT: "ws.keep"
// CHECK: sym_name = "causal"
func.func @causal(%q: tensor<?x?x2x64xbf16>, %k: tensor<?x?x2x64xbf16>, %v: tensor<?x?x2x64xbf16>, %scale: f32)
    -> (tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>) {
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%score: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%score) : (f32) -> ()
  }) {mask = #attn.causal}
    : (tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, f32)
      -> (tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>)
  func.return %o, %lse : tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>
}

// Columns position - 127 ... position + 5; of the left edge only the first.
// CHECK: "ws.kernel"
// CHECK: scf.for
// CHECK-NEXT: "ws.wait"
// CHECK-NEXT: "ws.load"
// CHECK: "ws.map"() ({
// CHECK: arith.subi %{{.*}}, %c127_i32
// CHECK: arith.addi %{{.*}}, %c6_i32
// CHECK: arith.shrui
// CHECK: arith.andi
// CHECK: "ws.yield"
// CHECK-NEXT: }) {operandSegmentSizes = array<i32: 0>} : () -> !ws.frag<vector<128x4xi32>>
// CHECK-NEXT: "ws.keep"
// CHECK: scf.yield
// CHECK: scf.for
// CHECK-NEXT: "ws.wait"
// CHECK-NEXT: "ws.load"
// CHECK-NOT: "ws.keep"
// CHECK: scf.yield
// CHECK: scf.for
// CHECK-NEXT: "ws.wait"
// CHECK-NEXT: "ws.load"
// CHECK: "ws.map"() ({
// CHECK: arith.subi %{{.*}}, %c127_i32
// CHECK: arith.maxsi
// CHECK: arith.shli
// CHECK: "ws.yield"
// CHECK-NEXT: }) {operandSegmentSizes = array<i32: 0>} : () -> !ws.frag<vector<128x4xi32>>
// CHECK-NEXT: "ws.keep"
// CHECK: scf.yield
// CHECK-NOT: scf.for
// CHECK: label_name = "softmax"
// CHECK-NOT: "ws.keep"
// CHECK: sym_name = "window"
func.func @window(%q: tensor<?x?x2x64xbf16>, %k: tensor<?x?x2x64xbf16>, %v: tensor<?x?x2x64xbf16>, %scale: f32)
    -> (tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>) {
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%score: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%score) : (f32) -> ()
  }) {mask = #attn.window<127, 5>}
    : (tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, f32)
      -> (tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>)
  func.return %o, %lse : tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>
}

// Without a limit on the right the first loop still meets the end of the sequence.
// CHECK: "ws.kernel"
// CHECK: scf.for
// CHECK-NEXT: "ws.wait"
// CHECK-NEXT: "ws.load"
// CHECK: "ws.map"() ({
// CHECK: arith.subi %{{.*}}, %c127_i32
// CHECK: arith.shrui
// CHECK: arith.andi
// CHECK: "ws.yield"
// CHECK-NEXT: }) {operandSegmentSizes = array<i32: 0>} : () -> !ws.frag<vector<128x4xi32>>
// CHECK-NEXT: "ws.keep"
// CHECK: scf.yield
// CHECK: scf.for
// CHECK-NEXT: "ws.wait"
// CHECK-NEXT: "ws.load"
// CHECK-NOT: "ws.keep"
// CHECK: scf.yield
// CHECK: scf.for
// CHECK-NEXT: "ws.wait"
// CHECK-NEXT: "ws.load"
// CHECK: "ws.map"() ({
// CHECK: arith.subi %{{.*}}, %c127_i32
// CHECK: arith.shli
// CHECK: "ws.yield"
// CHECK-NEXT: }) {operandSegmentSizes = array<i32: 0>} : () -> !ws.frag<vector<128x4xi32>>
// CHECK-NEXT: "ws.keep"
// CHECK: scf.yield
// CHECK-NOT: scf.for
// CHECK: label_name = "softmax"
// CHECK-NOT: "ws.keep"
// CHECK: sym_name = "window_left"
func.func @window_left(%q: tensor<?x?x2x64xbf16>, %k: tensor<?x?x2x64xbf16>, %v: tensor<?x?x2x64xbf16>, %scale: f32)
    -> (tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>) {
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%score: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%score) : (f32) -> ()
  }) {mask = #attn.window<127, -1>}
    : (tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, f32)
      -> (tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>)
  func.return %o, %lse : tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>
}

// Without a limit on the left there is no third loop.
// CHECK: "ws.kernel"
// CHECK: scf.for
// CHECK-NEXT: "ws.wait"
// CHECK-NEXT: "ws.load"
// CHECK: "ws.map"() ({
// CHECK: arith.addi %{{.*}}, %c6_i32
// CHECK: arith.minsi
// CHECK: arith.shrui
// CHECK: "ws.yield"
// CHECK-NEXT: }) {operandSegmentSizes = array<i32: 0>} : () -> !ws.frag<vector<128x4xi32>>
// CHECK-NEXT: "ws.keep"
// CHECK: scf.yield
// CHECK: scf.for
// CHECK-NEXT: "ws.wait"
// CHECK-NEXT: "ws.load"
// CHECK-NOT: "ws.keep"
// CHECK: scf.yield
// CHECK-NOT: scf.for
// CHECK: label_name = "softmax"
// CHECK-NOT: "ws.keep"
// CHECK: sym_name = "window_right"
func.func @window_right(%q: tensor<?x?x2x64xbf16>, %k: tensor<?x?x2x64xbf16>, %v: tensor<?x?x2x64xbf16>, %scale: f32)
    -> (tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>) {
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%score: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%score) : (f32) -> ()
  }) {mask = #attn.window<-1, 5>}
    : (tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, f32)
      -> (tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>)
  func.return %o, %lse : tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>
}

// The chunk's end is the position's next multiple of its size.
// CHECK: "ws.kernel"
// CHECK: scf.for
// CHECK-NEXT: "ws.wait"
// CHECK-NEXT: "ws.load"
// CHECK: "ws.map"() ({
// CHECK: %[[C:.*]] = arith.ceildivsi %{{.*}}, %c512_i32
// CHECK: %[[E:.*]] = arith.muli %[[C]], %c512_i32
// CHECK: arith.subi %[[E]], %c512_i32
// CHECK: arith.andi
// CHECK: "ws.yield"
// CHECK-NEXT: }) {operandSegmentSizes = array<i32: 0>} : () -> !ws.frag<vector<128x4xi32>>
// CHECK-NEXT: "ws.keep"
// CHECK: scf.yield
// CHECK: scf.for
// CHECK-NEXT: "ws.wait"
// CHECK-NEXT: "ws.load"
// CHECK-NOT: "ws.keep"
// CHECK: scf.yield
// CHECK: scf.for
// CHECK-NEXT: "ws.wait"
// CHECK-NEXT: "ws.load"
// CHECK: "ws.map"() ({
// CHECK: arith.ceildivsi %{{.*}}, %c512_i32
// CHECK: arith.shli
// CHECK: "ws.yield"
// CHECK-NEXT: }) {operandSegmentSizes = array<i32: 0>} : () -> !ws.frag<vector<128x4xi32>>
// CHECK-NEXT: "ws.keep"
// CHECK: scf.yield
// CHECK-NOT: scf.for
// CHECK: label_name = "softmax"
// CHECK-NOT: "ws.keep"
// CHECK: sym_name = "chunked"
func.func @chunked(%q: tensor<?x?x2x64xbf16>, %k: tensor<?x?x2x64xbf16>, %v: tensor<?x?x2x64xbf16>, %scale: f32)
    -> (tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>) {
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%score: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%score) : (f32) -> ()
  }) {mask = #attn.chunked<512>}
    : (tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, f32)
      -> (tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>)
  func.return %o, %lse : tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>
}

// The intersection of two intervals is one: the later begin, the earlier end.
// CHECK: "ws.kernel"
// CHECK: scf.for
// CHECK-NEXT: "ws.wait"
// CHECK-NEXT: "ws.load"
// CHECK: "ws.map"() ({
// CHECK: arith.minsi
// CHECK: arith.ceildivsi %{{.*}}, %c512_i32
// CHECK: arith.minsi
// CHECK: arith.minsi
// CHECK: arith.andi
// CHECK: "ws.yield"
// CHECK-NEXT: }) {operandSegmentSizes = array<i32: 0>} : () -> !ws.frag<vector<128x4xi32>>
// CHECK-NEXT: "ws.keep"
// CHECK: scf.yield
// CHECK: scf.for
// CHECK-NEXT: "ws.wait"
// CHECK-NEXT: "ws.load"
// CHECK-NOT: "ws.keep"
// CHECK: scf.yield
// CHECK: scf.for
// CHECK-NEXT: "ws.wait"
// CHECK-NEXT: "ws.load"
// CHECK: "ws.map"() ({
// CHECK: arith.ceildivsi %{{.*}}, %c512_i32
// CHECK: arith.shli
// CHECK: "ws.yield"
// CHECK-NEXT: }) {operandSegmentSizes = array<i32: 0>} : () -> !ws.frag<vector<128x4xi32>>
// CHECK-NEXT: "ws.keep"
// CHECK: scf.yield
// CHECK-NOT: scf.for
// CHECK: label_name = "softmax"
// CHECK-NOT: "ws.keep"
// CHECK: sym_name = "chunked_causal"
func.func @chunked_causal(%q: tensor<?x?x2x64xbf16>, %k: tensor<?x?x2x64xbf16>, %v: tensor<?x?x2x64xbf16>, %scale: f32)
    -> (tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>) {
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%score: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%score) : (f32) -> ()
  }) {mask = #attn.and<#attn.causal, #attn.chunked<512>>}
    : (tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, f32)
      -> (tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>)
  func.return %o, %lse : tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>
}

// At least the prefix.
// CHECK: "ws.kernel"
// CHECK: scf.for
// CHECK-NEXT: "ws.wait"
// CHECK-NEXT: "ws.load"
// CHECK: "ws.map"() ({
// CHECK: %[[D:.*]] = arith.maxsi %{{.*}}, %c64_i32
// CHECK: arith.minsi %[[D]], %{{.*}}
// CHECK: arith.shrui
// CHECK: "ws.yield"
// CHECK-NEXT: }) {operandSegmentSizes = array<i32: 0>} : () -> !ws.frag<vector<128x4xi32>>
// CHECK-NEXT: "ws.keep"
// CHECK: scf.yield
// CHECK: scf.for
// CHECK-NEXT: "ws.wait"
// CHECK-NEXT: "ws.load"
// CHECK-NOT: "ws.keep"
// CHECK: scf.yield
// CHECK-NOT: scf.for
// CHECK: label_name = "softmax"
// CHECK-NOT: "ws.keep"
// CHECK: sym_name = "prefix"
func.func @prefix(%q: tensor<?x?x2x64xbf16>, %k: tensor<?x?x2x64xbf16>, %v: tensor<?x?x2x64xbf16>, %scale: f32)
    -> (tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>) {
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%score: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%score) : (f32) -> ()
  }) {mask = #attn.prefix<64>}
    : (tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, f32)
      -> (tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>)
  func.return %o, %lse : tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>
}

// The union of two intervals is one: the earlier begin, the later end.
// CHECK: "ws.kernel"
// CHECK: scf.for
// CHECK-NEXT: "ws.wait"
// CHECK-NEXT: "ws.load"
// CHECK: "ws.map"() ({
// CHECK: arith.ceildivsi %{{.*}}, %c512_i32
// CHECK: arith.subi %{{.*}}, %c127_i32
// CHECK: arith.minsi
// CHECK: arith.maxsi
// CHECK: arith.andi
// CHECK: "ws.yield"
// CHECK-NEXT: }) {operandSegmentSizes = array<i32: 0>} : () -> !ws.frag<vector<128x4xi32>>
// CHECK-NEXT: "ws.keep"
// CHECK: scf.yield
// CHECK: scf.for
// CHECK-NEXT: "ws.wait"
// CHECK-NEXT: "ws.load"
// CHECK-NOT: "ws.keep"
// CHECK: scf.yield
// CHECK: scf.for
// CHECK-NEXT: "ws.wait"
// CHECK-NEXT: "ws.load"
// CHECK: "ws.map"() ({
// CHECK: arith.subi %{{.*}}, %c127_i32
// CHECK: arith.shli
// CHECK: "ws.yield"
// CHECK-NEXT: }) {operandSegmentSizes = array<i32: 0>} : () -> !ws.frag<vector<128x4xi32>>
// CHECK-NEXT: "ws.keep"
// CHECK: scf.yield
// CHECK-NOT: scf.for
// CHECK: label_name = "softmax"
// CHECK-NOT: "ws.keep"
// CHECK: sym_name = "union"
func.func @union(%q: tensor<?x?x2x64xbf16>, %k: tensor<?x?x2x64xbf16>, %v: tensor<?x?x2x64xbf16>, %scale: f32)
    -> (tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>) {
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%score: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%score) : (f32) -> ()
  }) {mask = #attn.or<#attn.chunked<512>, #attn.window<127, 0>>}
    : (tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, f32)
      -> (tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>)
  func.return %o, %lse : tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>
}

// What a window hides: a truth value per column, 32 of them in a word.
// CHECK: "ws.kernel"
// CHECK: scf.for
// CHECK-NEXT: "ws.wait"
// CHECK-NEXT: "ws.load"
// CHECK: "ws.map"() ({
// CHECK: arith.subi %{{.*}}, %c127_i32
// CHECK: %[[W:.*]] = arith.andi
// CHECK: %[[N:.*]] = arith.xori %[[W]], %c-1_i32
// CHECK: arith.andi %{{.*}}, %[[N]]
// CHECK: "ws.yield"
// CHECK-NEXT: }) {operandSegmentSizes = array<i32: 0>} : () -> !ws.frag<vector<128x4xi32>>
// CHECK-NEXT: "ws.keep"
// CHECK: scf.yield
// CHECK: scf.for
// CHECK-NEXT: "ws.wait"
// CHECK-NEXT: "ws.load"
// CHECK-NOT: "ws.keep"
// CHECK: scf.yield
// CHECK-NOT: scf.for
// CHECK: label_name = "softmax"
// CHECK-NOT: "ws.keep"
// CHECK: sym_name = "complement"
func.func @complement(%q: tensor<?x?x2x64xbf16>, %k: tensor<?x?x2x64xbf16>, %v: tensor<?x?x2x64xbf16>, %scale: f32)
    -> (tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>) {
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%score: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%score) : (f32) -> ()
  }) {mask = #attn.not<#attn.window<127, 0>>}
    : (tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, f32)
      -> (tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>)
  func.return %o, %lse : tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>
}
