// RUN: attn-opt --split-input-file --verify-diagnostics %s

// Claimed work tiles.

"ws.kernel"() ({
^bb0:
  %r = "ws.alloc_ring"() {label_name = "r"} : () -> !ws.ring<!ws.tile<vector<4xi32>, "shared">, 2, 1>
  "ws.role"() ({
  ^bb0(%g: i32):
    // expected-error @below {{'ws.tiles' op of order clc expects 1 ws.next_tile, got 0}}
    "ws.tiles"(%g) ({
    ^bb0(%t: i32):
    }) {operandSegmentSizes = array<i32: 1, 0, 0>, order = "clc"} : (i32) -> ()
  }) {label_name = "r", warps = array<i32: 0, 1>, groups = 1 : i64, lanes = 1 : i64, registers = 0 : i64} : () -> ()
}) {sym_name = "k", arg_names = [], arg_roles = [], arg_dims = []} : () -> ()

// -----

"ws.kernel"() ({
^bb0:
  %r = "ws.alloc_ring"() {label_name = "r"} : () -> !ws.ring<!ws.tile<vector<4xi32>, "shared">, 2, 1>
  "ws.role"() ({
  ^bb0(%g: i32):
    // expected-error @below {{'ws.tiles' op of order clc expects 1 ws.next_tile, got 2}}
    "ws.tiles"(%g) ({
    ^bb0(%t: i32):
      %s = "ws.wait"(%r, %g) : (!ws.ring<!ws.tile<vector<4xi32>, "shared">, 2, 1>, i32) -> !ws.tile<vector<4xi32>, "shared">
      "ws.next_tile"(%s) : (!ws.tile<vector<4xi32>, "shared">) -> ()
      "ws.next_tile"(%s) : (!ws.tile<vector<4xi32>, "shared">) -> ()
    }) {operandSegmentSizes = array<i32: 1, 0, 0>, order = "clc"} : (i32) -> ()
  }) {label_name = "r", warps = array<i32: 0, 1>, groups = 1 : i64, lanes = 1 : i64, registers = 0 : i64} : () -> ()
}) {sym_name = "k", arg_names = [], arg_roles = [], arg_dims = []} : () -> ()

// -----

"ws.kernel"() ({
^bb0:
  %r = "ws.alloc_ring"() {label_name = "r"} : () -> !ws.ring<!ws.tile<vector<4xi32>, "shared">, 2, 1>
  "ws.role"() ({
  ^bb0(%g: i32):
    // expected-error @below {{'ws.tiles' op of order persistent expects 0 ws.next_tile, got 1}}
    "ws.tiles"(%g) ({
    ^bb0(%t: i32):
      %s = "ws.wait"(%r, %g) : (!ws.ring<!ws.tile<vector<4xi32>, "shared">, 2, 1>, i32) -> !ws.tile<vector<4xi32>, "shared">
      "ws.next_tile"(%s) : (!ws.tile<vector<4xi32>, "shared">) -> ()
    }) {operandSegmentSizes = array<i32: 1, 0, 0>, order = "persistent"} : (i32) -> ()
  }) {label_name = "r", warps = array<i32: 0, 1>, groups = 1 : i64, lanes = 1 : i64, registers = 0 : i64} : () -> ()
}) {sym_name = "k", arg_names = [], arg_roles = [], arg_dims = []} : () -> ()

// -----

"ws.kernel"() ({
^bb0:
  %r = "ws.alloc_ring"() {label_name = "r"} : () -> !ws.ring<!ws.tile<vector<4xi32>, "shared">, 2, 1>
  "ws.role"() ({
  ^bb0(%g: i32):
    %s = "ws.wait"(%r, %g) : (!ws.ring<!ws.tile<vector<4xi32>, "shared">, 2, 1>, i32) -> !ws.tile<vector<4xi32>, "shared">
    // expected-error @below {{'ws.next_tile' op expects ws.tiles as parent}}
    "ws.next_tile"(%s) : (!ws.tile<vector<4xi32>, "shared">) -> ()
  }) {label_name = "r", warps = array<i32: 0, 1>, groups = 1 : i64, lanes = 1 : i64, registers = 0 : i64} : () -> ()
}) {sym_name = "k", arg_names = [], arg_roles = [], arg_dims = []} : () -> ()

// -----

"ws.kernel"() ({
^bb0:
  %r = "ws.alloc_ring"() {label_name = "r"} : () -> !ws.ring<!ws.tile<vector<8xi32>, "shared">, 2, 1>
  "ws.role"() ({
  ^bb0(%g: i32):
    "ws.tiles"(%g) ({
    ^bb0(%t: i32):
      %s = "ws.wait"(%r, %g) : (!ws.ring<!ws.tile<vector<8xi32>, "shared">, 2, 1>, i32) -> !ws.tile<vector<8xi32>, "shared">
      // expected-error @below {{'ws.next_tile' op expects a shared tile of 4 x i32, got !ws.tile<vector<8xi32>, "shared">}}
      "ws.next_tile"(%s) : (!ws.tile<vector<8xi32>, "shared">) -> ()
    }) {operandSegmentSizes = array<i32: 1, 0, 0>, order = "clc"} : (i32) -> ()
  }) {label_name = "r", warps = array<i32: 0, 1>, groups = 1 : i64, lanes = 1 : i64, registers = 0 : i64} : () -> ()
}) {sym_name = "k", arg_names = [], arg_roles = [], arg_dims = []} : () -> ()

// -----

"ws.kernel"() ({
^bb0:
  %r = "ws.alloc_ring"() {label_name = "r"} : () -> !ws.ring<!ws.tile<vector<4xi32>, "shared">, 2, 1>
  "ws.role"() ({
  ^bb0(%g: i32):
    "ws.tiles"(%g) ({
    ^bb0(%t: i32):
      %s = "ws.acquire"(%r, %g) : (!ws.ring<!ws.tile<vector<4xi32>, "shared">, 2, 1>, i32) -> !ws.tile<vector<4xi32>, "shared">
      // expected-error @below {{'ws.next_tile' op expects a slot from ws.wait}}
      "ws.next_tile"(%s) : (!ws.tile<vector<4xi32>, "shared">) -> ()
    }) {operandSegmentSizes = array<i32: 1, 0, 0>, order = "clc"} : (i32) -> ()
  }) {label_name = "r", warps = array<i32: 0, 1>, groups = 1 : i64, lanes = 1 : i64, registers = 0 : i64} : () -> ()
}) {sym_name = "k", arg_names = [], arg_roles = [], arg_dims = []} : () -> ()

// -----

"ws.kernel"() ({
^bb0:
  %r = "ws.alloc_ring"() {label_name = "r"} : () -> !ws.ring<!ws.tile<vector<4xf32>, "shared">, 2, 1>
  "ws.role"() ({
  ^bb0(%g: i32):
    %s = "ws.acquire"(%r, %g) : (!ws.ring<!ws.tile<vector<4xf32>, "shared">, 2, 1>, i32) -> !ws.tile<vector<4xf32>, "shared">
    // expected-error @below {{'ws.claim' op expects a shared tile of 4 x i32, got !ws.tile<vector<4xf32>, "shared">}}
    "ws.claim"(%s) : (!ws.tile<vector<4xf32>, "shared">) -> ()
  }) {label_name = "r", warps = array<i32: 0, 1>, groups = 1 : i64, lanes = 1 : i64, registers = 0 : i64} : () -> ()
}) {sym_name = "k", arg_names = [], arg_roles = [], arg_dims = []} : () -> ()

// -----

"ws.kernel"() ({
^bb0:
  %r = "ws.alloc_ring"() {label_name = "r"} : () -> !ws.ring<!ws.tile<vector<4xi32>, "shared">, 2, 1>
  "ws.role"() ({
  ^bb0(%g: i32):
    %s = "ws.wait"(%r, %g) : (!ws.ring<!ws.tile<vector<4xi32>, "shared">, 2, 1>, i32) -> !ws.tile<vector<4xi32>, "shared">
    // expected-error @below {{'ws.claim' op expects a slot from ws.acquire}}
    "ws.claim"(%s) : (!ws.tile<vector<4xi32>, "shared">) -> ()
  }) {label_name = "r", warps = array<i32: 0, 1>, groups = 1 : i64, lanes = 1 : i64, registers = 0 : i64} : () -> ()
}) {sym_name = "k", arg_names = [], arg_roles = [], arg_dims = []} : () -> ()

// -----

// Ragged tile spaces.

"ws.kernel"() ({
^bb0(%x: memref<?xi32>):
  "ws.role"() ({
  ^bb0(%g: i32):
    // expected-error @below {{'ws.tiles' op of order ragged expects ends and packing by count, rows, size, got 0 and 0 operands}}
    "ws.tiles"(%g, %g, %g) ({
    ^bb0(%a: i32, %b: i32, %c: i32):
    }) {order = "ragged", operandSegmentSizes = array<i32: 3, 0, 0>} : (i32, i32, i32) -> ()
  }) {label_name = "r", warps = array<i32: 0, 1>, groups = 1 : i64, lanes = 1 : i64, registers = 0 : i64} : () -> ()
}) {sym_name = "k", arg_names = ["x"], arg_roles = ["in"], arg_dims = [["n"]]} : () -> ()

// -----

"ws.kernel"() ({
^bb0(%x: memref<?xi32>):
  "ws.role"() ({
  ^bb0(%g: i32):
    // expected-error @below {{'ws.tiles' op of order single expects no ends and no packing, got 1 and 3 operands}}
    "ws.tiles"(%g, %x, %g, %g, %g) ({
    ^bb0(%a: i32):
    }) {order = "single", operandSegmentSizes = array<i32: 1, 1, 3>} : (i32, memref<?xi32>, i32, i32, i32) -> ()
  }) {label_name = "r", warps = array<i32: 0, 1>, groups = 1 : i64, lanes = 1 : i64, registers = 0 : i64} : () -> ()
}) {sym_name = "k", arg_names = ["x"], arg_roles = ["in"], arg_dims = [["n"]]} : () -> ()

// -----

"ws.kernel"() ({
^bb0(%x: memref<?xi32>):
  "ws.role"() ({
  ^bb0(%g: i32):
    // expected-error @below {{'ws.tiles' op of order ragged expects three extents, got 1}}
    "ws.tiles"(%g, %x, %g, %g, %g) ({
    ^bb0(%a: i32):
    }) {order = "ragged", operandSegmentSizes = array<i32: 1, 1, 3>} : (i32, memref<?xi32>, i32, i32, i32) -> ()
  }) {label_name = "r", warps = array<i32: 0, 1>, groups = 1 : i64, lanes = 1 : i64, registers = 0 : i64} : () -> ()
}) {sym_name = "k", arg_names = ["x"], arg_roles = ["in"], arg_dims = [["n"]]} : () -> ()

// -----

"ws.kernel"() ({
^bb0(%x: memref<?x?xi32>):
  "ws.role"() ({
  ^bb0(%g: i32):
    // expected-error @below {{'ws.tiles' op expects ends to be a memref of one dimension of i32, got memref<?x?xi32>}}
    "ws.tiles"(%g, %g, %g, %x, %g, %g, %g) ({
    ^bb0(%a: i32, %b: i32, %c: i32):
    }) {order = "ragged", operandSegmentSizes = array<i32: 3, 1, 3>} : (i32, i32, i32, memref<?x?xi32>, i32, i32, i32) -> ()
  }) {label_name = "r", warps = array<i32: 0, 1>, groups = 1 : i64, lanes = 1 : i64, registers = 0 : i64} : () -> ()
}) {sym_name = "k", arg_names = ["x"], arg_roles = ["in"], arg_dims = [["n", "m"]]} : () -> ()

// -----

// Work tiles from a counter.

"ws.kernel"() ({
^bb0(%x: memref<1xi32>):
  %r = "ws.alloc_ring"() {label_name = "r"} : () -> !ws.ring<!ws.tile<vector<4xi32>, "shared">, 1, 1>
  "ws.role"() ({
  ^bb0(%g: i32):
    // expected-error @below {{'ws.tiles' op of order counter expects no ends and packing by section, got 0 and 0 operands}}
    "ws.tiles"(%g) ({
    ^bb0(%a: i32):
      %s = "ws.wait"(%r, %g) : (!ws.ring<!ws.tile<vector<4xi32>, "shared">, 1, 1>, i32) -> !ws.tile<vector<4xi32>, "shared">
      "ws.next_tile"(%s) : (!ws.tile<vector<4xi32>, "shared">) -> ()
    }) {order = "counter", operandSegmentSizes = array<i32: 1, 0, 0>} : (i32) -> ()
  }) {label_name = "r", warps = array<i32: 0, 1>, groups = 1 : i64, lanes = 1 : i64, registers = 0 : i64} : () -> ()
}) {sym_name = "k", arg_names = ["x"], arg_roles = ["inout"], arg_dims = [[""]]} : () -> ()

// -----

"ws.kernel"() ({
^bb0(%x: memref<1xi32>):
  %r = "ws.alloc_ring"() {label_name = "r"} : () -> !ws.ring<!ws.tile<vector<4xi32>, "shared">, 1, 1>
  "ws.role"() ({
  ^bb0(%g: i32):
    %s = "ws.acquire"(%r, %g) : (!ws.ring<!ws.tile<vector<4xi32>, "shared">, 1, 1>, i32) -> !ws.tile<vector<4xi32>, "shared">
    // expected-error @below {{'ws.draw' op expects ws.tiles of order counter as parent}}
    "ws.draw"(%s, %x) : (!ws.tile<vector<4xi32>, "shared">, memref<1xi32>) -> ()
  }) {label_name = "r", warps = array<i32: 0, 1>, groups = 1 : i64, lanes = 1 : i64, registers = 0 : i64} : () -> ()
}) {sym_name = "k", arg_names = ["x"], arg_roles = ["inout"], arg_dims = [[""]]} : () -> ()

// -----

"ws.kernel"() ({
^bb0(%x: memref<?xi32>):
  %r = "ws.alloc_ring"() {label_name = "r"} : () -> !ws.ring<!ws.tile<vector<4xi32>, "shared">, 1, 1>
  "ws.role"() ({
  ^bb0(%g: i32):
    "ws.tiles"(%g, %g) ({
    ^bb0(%a: i32):
      %s = "ws.acquire"(%r, %g) : (!ws.ring<!ws.tile<vector<4xi32>, "shared">, 1, 1>, i32) -> !ws.tile<vector<4xi32>, "shared">
      // expected-error @below {{'ws.draw' op expects a counter of type memref<1xi32>, got memref<?xi32>}}
      "ws.draw"(%s, %x) : (!ws.tile<vector<4xi32>, "shared">, memref<?xi32>) -> ()
      %w = "ws.wait"(%r, %g) : (!ws.ring<!ws.tile<vector<4xi32>, "shared">, 1, 1>, i32) -> !ws.tile<vector<4xi32>, "shared">
      "ws.next_tile"(%w) : (!ws.tile<vector<4xi32>, "shared">) -> ()
    }) {order = "counter", operandSegmentSizes = array<i32: 1, 0, 1>} : (i32, i32) -> ()
  }) {label_name = "r", warps = array<i32: 0, 1>, groups = 1 : i64, lanes = 1 : i64, registers = 0 : i64} : () -> ()
}) {sym_name = "k", arg_names = ["x"], arg_roles = ["inout"], arg_dims = [["n"]]} : () -> ()
