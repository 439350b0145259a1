// RUN: attn-opt %s --attn-to-ws --canonicalize --cse | FileCheck %s

// An index below 0 counts from the end of a captured tensor, whose extent the region reads.

// CHECK: ^bb0({{.*}}: memref<?x2x?xf32>, %{{.*}}: f32, %[[TABLE:[^ ]+]]: memref<?xf32>):
// CHECK: "ws.map"
// CHECK: ^bb0(%[[X:.*]]: f32, %[[I:.*]]: i32, %[[J:.*]]: i32):
// CHECK: %[[N:.*]] = "ws.extent"(%[[TABLE]]) {dim = 0 : i64}
// CHECK: %[[END:.*]] = arith.addi %[[AT:.*]], %[[N]]
// CHECK: %[[INDEX:.*]] = arith.select %{{.*}}, %[[END]], %[[AT]]
// CHECK: "ws.element"(%[[TABLE]], %[[INDEX]])
func.func @from_end(%q: tensor<?x?x2x64xbf16>, %k: tensor<?x?x2x64xbf16>, %v: tensor<?x?x2x64xbf16>, %scale: f32,
    %table: tensor<?xf32> {attn.name = "table"}) -> (tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>) {
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
  ^bb0(%score: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    %distance = arith.subi %i, %j : i32
    %first = arith.constant 0 : index
    %n = tensor.dim %table, %first : tensor<?xf32>
    %entries = arith.index_cast %n : index to i32
    %zero = arith.constant 0 : i32
    %below = arith.cmpi slt, %distance, %zero : i32
    %end = arith.addi %distance, %entries : i32
    %at = arith.select %below, %end, %distance : i32
    %index = arith.index_cast %at : i32 to index
    %bias = tensor.extract %table[%index] : tensor<?xf32>
    %sum = arith.addf %score, %bias : f32
    "attn.yield"(%sum) : (f32) -> ()
  }) {mask = #attn.null}
    : (tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, f32)
      -> (tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>)
  func.return %o, %lse : tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>
}
