// RUN: attn-opt --split-input-file --verify-diagnostics %s

func.func @f(%sums: tensor<?x?x2x16x32xf32>, %extremes: tensor<2x?x?x2x16xf32>, %arrived: tensor<?x2xi32>) {
  // expected-error @below {{'attn.join' op expects to be inside an attn operation, is inside 'func.func'}}
  "attn.join"(%sums, %extremes, %arrived)
    : (tensor<?x?x2x16x32xf32>, tensor<2x?x?x2x16xf32>, tensor<?x2xi32>) -> ()
  func.return
}

// -----

func.func @f(%sums: tensor<?x?x2x16xf32>, %extremes: tensor<2x?x?x2x16xf32>, %arrived: tensor<?x2xi32>) {
  // expected-error @below {{'attn.join' op expects sums to be a tensor [splits, tiles, pieces, rows, columns] of f32, got tensor<?x?x2x16xf32>}}
  "attn.join"(%sums, %extremes, %arrived)
    : (tensor<?x?x2x16xf32>, tensor<2x?x?x2x16xf32>, tensor<?x2xi32>) -> ()
  func.return
}

// -----

func.func @f(%sums: tensor<?x?x2x16x32xf32>, %extremes: tensor<2x?x?x2x16xf32>, %arrived: tensor<?x2xf32>) {
  // expected-error @below {{'attn.join' op expects arrived to be a tensor [tiles, copies] of i32, got tensor<?x2xf32>}}
  "attn.join"(%sums, %extremes, %arrived)
    : (tensor<?x?x2x16x32xf32>, tensor<2x?x?x2x16xf32>, tensor<?x2xf32>) -> ()
  func.return
}

// -----

func.func @f(%q: tensor<?x?x4x64xbf16>, %scale: f32, %sums: tensor<?x?x2x16x32xf32>,
             %extremes: tensor<2x?x?x2x16xf32>, %arrived: tensor<?x2xi32>)
    -> (tensor<?x?x4x64xf32>, tensor<2x?x4x?xf32>) {
  // expected-error @below {{'attn.mha' op expects no 'attn.join' together with attn.partial}}
  %o, %lse = "attn.mha"(%q, %q, %q, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.join"(%sums, %extremes, %arrived)
      : (tensor<?x?x2x16x32xf32>, tensor<2x?x?x2x16xf32>, tensor<?x2xi32>) -> ()
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.null, attn.partial}
    : (tensor<?x?x4x64xbf16>, tensor<?x?x4x64xbf16>, tensor<?x?x4x64xbf16>, f32)
      -> (tensor<?x?x4x64xf32>, tensor<2x?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x64xf32>, tensor<2x?x4x?xf32>
}

// -----

func.func @f(%q: tensor<?x?x4x64xbf16>, %scale: f32, %sums: tensor<?x?x2x16x32xf32>,
             %extremes: tensor<2x?x?x2x16xf32>, %arrived: tensor<?x2xi32>)
    -> (tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>) {
  %o, %lse = "attn.mha"(%q, %q, %q, %scale) ({
  ^bb0(%s: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    // expected-error @below {{'attn.join' op expects attn.part_keys of at least 1, got 0}}
    "attn.join"(%sums, %extremes, %arrived) {attn.part_keys = 0 : i64}
      : (tensor<?x?x2x16x32xf32>, tensor<2x?x?x2x16xf32>, tensor<?x2xi32>) -> ()
    "attn.yield"(%s) : (f32) -> ()
  }) {mask = #attn.null}
    : (tensor<?x?x4x64xbf16>, tensor<?x?x4x64xbf16>, tensor<?x?x4x64xbf16>, f32)
      -> (tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>)
  func.return %o, %lse : tensor<?x?x4x64xbf16>, tensor<?x4x?xf32>
}
