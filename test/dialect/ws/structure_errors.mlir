// RUN: attn-opt --split-input-file --verify-diagnostics %s

// Kernel.

// expected-error @below {{'ws.kernel' op expects one block, got 0}}
"ws.kernel"() ({}) {sym_name = "k", arg_names = ["q", "n"], arg_roles = ["in", "scalar"], arg_dims = [["sq", ""], []]} : () -> ()

// -----

// expected-error @below {{'ws.kernel' op expects 2 entries in arg_names, got 1}}
"ws.kernel"() ({
^bb0(%q: memref<?x4xbf16>, %n: f32):
}) {sym_name = "k", arg_names = ["q"], arg_roles = ["in", "scalar"], arg_dims = [["sq", ""], []]} : () -> ()

// -----

// expected-error @below {{'ws.kernel' op expects 2 entries in arg_roles, got 3}}
"ws.kernel"() ({
^bb0(%q: memref<?x4xbf16>, %n: f32):
}) {sym_name = "k", arg_names = ["q", "n"], arg_roles = ["in", "scalar", "scalar"], arg_dims = [["sq", ""], []]} : () -> ()

// -----

// expected-error @below {{'ws.kernel' op expects 2 entries in arg_dims, got 0}}
"ws.kernel"() ({
^bb0(%q: memref<?x4xbf16>, %n: f32):
}) {sym_name = "k", arg_names = ["q", "n"], arg_roles = ["in", "scalar"], arg_dims = []} : () -> ()

// -----

// expected-error @below {{'ws.kernel' op expects argument roles of in, out, inout, scalar, got both}}
"ws.kernel"() ({
^bb0(%q: memref<?x4xbf16>, %n: f32):
}) {sym_name = "k", arg_names = ["q", "n"], arg_roles = ["both", "scalar"], arg_dims = [["sq", ""], []]} : () -> ()

// -----

// expected-error @below {{'ws.kernel' op argument of type memref<?x4xbf16> cannot have role scalar}}
"ws.kernel"() ({
^bb0(%q: memref<?x4xbf16>, %n: f32):
}) {sym_name = "k", arg_names = ["q", "n"], arg_roles = ["scalar", "scalar"], arg_dims = [["sq", ""], []]} : () -> ()

// -----

// expected-error @below {{'ws.kernel' op argument of type f32 cannot have role out}}
"ws.kernel"() ({
^bb0(%q: memref<?x4xbf16>, %n: f32):
}) {sym_name = "k", arg_names = ["q", "n"], arg_roles = ["in", "out"], arg_dims = [["sq", ""], []]} : () -> ()

// -----

// expected-error @below {{'ws.kernel' op expects 2 names in arg_dims, got 1}}
"ws.kernel"() ({
^bb0(%q: memref<?x4xbf16>, %n: f32):
}) {sym_name = "k", arg_names = ["q", "n"], arg_roles = ["in", "scalar"], arg_dims = [["sq"], []]} : () -> ()

// -----

// expected-error @below {{'ws.kernel' op expects 0 names in arg_dims, got 1}}
"ws.kernel"() ({
^bb0(%q: memref<?x4xbf16>, %n: f32):
}) {sym_name = "k", arg_names = ["q", "n"], arg_roles = ["in", "scalar"], arg_dims = [["sq", ""], ["x"]]} : () -> ()

// -----

// expected-error @below {{'ws.kernel' op warp 3 belongs to role a and to role b}}
"ws.kernel"() ({
^bb0(%q: memref<?x4xbf16>, %n: f32):
  "ws.role"() ({
  ^bb0(%g: i32):
  }) {label_name = "a", warps = array<i32: 0, 4>, groups = 1 : i64, lanes = 32 : i64, registers = 64 : i64} : () -> ()
  "ws.role"() ({
  ^bb0(%g: i32):
  }) {label_name = "b", warps = array<i32: 3, 1>, groups = 1 : i64, lanes = 32 : i64, registers = 64 : i64} : () -> ()
}) {sym_name = "k", arg_names = ["q", "n"], arg_roles = ["in", "scalar"], arg_dims = [["sq", ""], []]} : () -> ()

// -----

// expected-error @below {{'ws.kernel' op expects attribute 'arg_dims'}}
"ws.kernel"() ({
^bb0:
}) {sym_name = "k", arg_names = [], arg_roles = []} : () -> ()

// -----

// Role.

// expected-error @below {{'ws.role' op expects ws.kernel as parent}}
"ws.role"() ({
^bb0(%g: i32):
}) {label_name = "r", warps = array<i32: 0, 4>, groups = 1 : i64, lanes = 32 : i64, registers = 64 : i64} : () -> ()

// -----

"ws.kernel"() ({
^bb0(%q: memref<?x4xbf16>, %n: f32):
  // expected-error @below {{'ws.role' op expects one block with one i32 argument, the group}}
  "ws.role"() ({}) {label_name = "r", warps = array<i32: 0, 4>, groups = 1 : i64, lanes = 32 : i64, registers = 64 : i64} : () -> ()
}) {sym_name = "k", arg_names = ["q", "n"], arg_roles = ["in", "scalar"], arg_dims = [["sq", ""], []]} : () -> ()

// -----

"ws.kernel"() ({
^bb0(%q: memref<?x4xbf16>, %n: f32):
  // expected-error @below {{'ws.role' op expects one block with one i32 argument, the group}}
  "ws.role"() ({
  ^bb0(%g: index):
  }) {label_name = "r", warps = array<i32: 0, 4>, groups = 1 : i64, lanes = 32 : i64, registers = 64 : i64} : () -> ()
}) {sym_name = "k", arg_names = ["q", "n"], arg_roles = ["in", "scalar"], arg_dims = [["sq", ""], []]} : () -> ()

// -----

"ws.kernel"() ({
^bb0(%q: memref<?x4xbf16>, %n: f32):
  // expected-error @below {{'ws.role' op expects warps of first and count, count at least 1}}
  "ws.role"() ({
  ^bb0(%g: i32):
  }) {label_name = "r", warps = array<i32: 0>, groups = 1 : i64, lanes = 32 : i64, registers = 64 : i64} : () -> ()
}) {sym_name = "k", arg_names = ["q", "n"], arg_roles = ["in", "scalar"], arg_dims = [["sq", ""], []]} : () -> ()

// -----

"ws.kernel"() ({
^bb0(%q: memref<?x4xbf16>, %n: f32):
  // expected-error @below {{'ws.role' op expects warps of first and count, count at least 1}}
  "ws.role"() ({
  ^bb0(%g: i32):
  }) {label_name = "r", warps = array<i32: -1, 4>, groups = 1 : i64, lanes = 32 : i64, registers = 64 : i64} : () -> ()
}) {sym_name = "k", arg_names = ["q", "n"], arg_roles = ["in", "scalar"], arg_dims = [["sq", ""], []]} : () -> ()

// -----

"ws.kernel"() ({
^bb0(%q: memref<?x4xbf16>, %n: f32):
  // expected-error @below {{'ws.role' op expects warps of first and count, count at least 1}}
  "ws.role"() ({
  ^bb0(%g: i32):
  }) {label_name = "r", warps = array<i32: 0, 0>, groups = 1 : i64, lanes = 32 : i64, registers = 64 : i64} : () -> ()
}) {sym_name = "k", arg_names = ["q", "n"], arg_roles = ["in", "scalar"], arg_dims = [["sq", ""], []]} : () -> ()

// -----

"ws.kernel"() ({
^bb0(%q: memref<?x4xbf16>, %n: f32):
  // expected-error @below {{'ws.role' op expects groups to divide 4 warps, got 3}}
  "ws.role"() ({
  ^bb0(%g: i32):
  }) {label_name = "r", warps = array<i32: 0, 4>, groups = 3 : i64, lanes = 32 : i64, registers = 64 : i64} : () -> ()
}) {sym_name = "k", arg_names = ["q", "n"], arg_roles = ["in", "scalar"], arg_dims = [["sq", ""], []]} : () -> ()

// -----

"ws.kernel"() ({
^bb0(%q: memref<?x4xbf16>, %n: f32):
  // expected-error @below {{'ws.role' op expects groups to divide 4 warps, got 0}}
  "ws.role"() ({
  ^bb0(%g: i32):
  }) {label_name = "r", warps = array<i32: 0, 4>, groups = 0 : i64, lanes = 32 : i64, registers = 64 : i64} : () -> ()
}) {sym_name = "k", arg_names = ["q", "n"], arg_roles = ["in", "scalar"], arg_dims = [["sq", ""], []]} : () -> ()

// -----

"ws.kernel"() ({
^bb0(%q: memref<?x4xbf16>, %n: f32):
  // expected-error @below {{'ws.role' op expects lanes of 1 or 32, got 16}}
  "ws.role"() ({
  ^bb0(%g: i32):
  }) {label_name = "r", warps = array<i32: 0, 4>, groups = 1 : i64, lanes = 16 : i64, registers = 64 : i64} : () -> ()
}) {sym_name = "k", arg_names = ["q", "n"], arg_roles = ["in", "scalar"], arg_dims = [["sq", ""], []]} : () -> ()

// -----

"ws.kernel"() ({
^bb0(%q: memref<?x4xbf16>, %n: f32):
  // expected-error @below {{'ws.role' op expects one warp when lanes is 1, got 4}}
  "ws.role"() ({
  ^bb0(%g: i32):
  }) {label_name = "r", warps = array<i32: 0, 4>, groups = 1 : i64, lanes = 1 : i64, registers = 64 : i64} : () -> ()
}) {sym_name = "k", arg_names = ["q", "n"], arg_roles = ["in", "scalar"], arg_dims = [["sq", ""], []]} : () -> ()

// -----

"ws.kernel"() ({
^bb0(%q: memref<?x4xbf16>, %n: f32):
  // expected-error @below {{'ws.role' op expects registers of 0 or a multiple of 8 in 24..256, got 60}}
  "ws.role"() ({
  ^bb0(%g: i32):
  }) {label_name = "r", warps = array<i32: 0, 4>, groups = 1 : i64, lanes = 32 : i64, registers = 60 : i64} : () -> ()
}) {sym_name = "k", arg_names = ["q", "n"], arg_roles = ["in", "scalar"], arg_dims = [["sq", ""], []]} : () -> ()

// -----

"ws.kernel"() ({
^bb0(%q: memref<?x4xbf16>, %n: f32):
  // expected-error @below {{'ws.role' op expects registers of 0 or a multiple of 8 in 24..256, got 16}}
  "ws.role"() ({
  ^bb0(%g: i32):
  }) {label_name = "r", warps = array<i32: 0, 4>, groups = 1 : i64, lanes = 32 : i64, registers = 16 : i64} : () -> ()
}) {sym_name = "k", arg_names = ["q", "n"], arg_roles = ["in", "scalar"], arg_dims = [["sq", ""], []]} : () -> ()

// -----

"ws.kernel"() ({
^bb0(%q: memref<?x4xbf16>, %n: f32):
  // expected-error @below {{'ws.role' op expects registers of 0 or a multiple of 8 in 24..256, got 264}}
  "ws.role"() ({
  ^bb0(%g: i32):
  }) {label_name = "r", warps = array<i32: 0, 4>, groups = 1 : i64, lanes = 32 : i64, registers = 264 : i64} : () -> ()
}) {sym_name = "k", arg_names = ["q", "n"], arg_roles = ["in", "scalar"], arg_dims = [["sq", ""], []]} : () -> ()

// -----

// Tiles.

"ws.kernel"() ({
^bb0(%q: memref<?x4xbf16>, %n: f32):
  "ws.role"() ({
  ^bb0(%g: i32):
    // expected-error @below {{'ws.tiles' op expects one to three extents, got 0}}
    "ws.tiles"() ({
    ^bb0():
    }) {operandSegmentSizes = array<i32: 0, 0, 0>, order = "single"} : () -> ()
  }) {label_name = "r", warps = array<i32: 0, 4>, groups = 1 : i64, lanes = 32 : i64, registers = 64 : i64} : () -> ()
}) {sym_name = "k", arg_names = ["q", "n"], arg_roles = ["in", "scalar"], arg_dims = [["sq", ""], []]} : () -> ()

// -----

"ws.kernel"() ({
^bb0(%q: memref<?x4xbf16>, %n: f32):
  "ws.role"() ({
  ^bb0(%g: i32):
    // expected-error @below {{'ws.tiles' op expects one to three extents, got 4}}
    "ws.tiles"(%g, %g, %g, %g) ({
    ^bb0(%t0: i32, %t1: i32, %t2: i32, %t3: i32):
    }) {operandSegmentSizes = array<i32: 4, 0, 0>, order = "single"} : (i32, i32, i32, i32) -> ()
  }) {label_name = "r", warps = array<i32: 0, 4>, groups = 1 : i64, lanes = 32 : i64, registers = 64 : i64} : () -> ()
}) {sym_name = "k", arg_names = ["q", "n"], arg_roles = ["in", "scalar"], arg_dims = [["sq", ""], []]} : () -> ()

// -----

"ws.kernel"() ({
^bb0(%q: memref<?x4xbf16>, %n: f32):
  "ws.role"() ({
  ^bb0(%g: i32):
    // expected-error @below {{'ws.tiles' op expects one block with 2 i32 arguments}}
    "ws.tiles"(%g, %g) ({
    ^bb0(%t: i32):
    }) {operandSegmentSizes = array<i32: 2, 0, 0>, order = "single"} : (i32, i32) -> ()
  }) {label_name = "r", warps = array<i32: 0, 4>, groups = 1 : i64, lanes = 32 : i64, registers = 64 : i64} : () -> ()
}) {sym_name = "k", arg_names = ["q", "n"], arg_roles = ["in", "scalar"], arg_dims = [["sq", ""], []]} : () -> ()

// -----

"ws.kernel"() ({
^bb0(%q: memref<?x4xbf16>, %n: f32):
  "ws.role"() ({
  ^bb0(%g: i32):
    // expected-error @below {{'ws.tiles' op expects one block with 1 i32 arguments}}
    "ws.tiles"(%g) ({}) {operandSegmentSizes = array<i32: 1, 0, 0>, order = "single"} : (i32) -> ()
  }) {label_name = "r", warps = array<i32: 0, 4>, groups = 1 : i64, lanes = 32 : i64, registers = 64 : i64} : () -> ()
}) {sym_name = "k", arg_names = ["q", "n"], arg_roles = ["in", "scalar"], arg_dims = [["sq", ""], []]} : () -> ()

// -----

"ws.kernel"() ({
^bb0(%q: memref<?x4xbf16>, %n: f32):
  "ws.role"() ({
  ^bb0(%g: i32):
    // expected-error @below {{'ws.tiles' op expects order of single, last_first, persistent, clc, ragged, counter, got zigzag}}
    "ws.tiles"(%g) ({
    ^bb0(%t0: i32):
    }) {operandSegmentSizes = array<i32: 1, 0, 0>, order = "zigzag"} : (i32) -> ()
  }) {label_name = "r", warps = array<i32: 0, 4>, groups = 1 : i64, lanes = 32 : i64, registers = 64 : i64} : () -> ()
}) {sym_name = "k", arg_names = ["q", "n"], arg_roles = ["in", "scalar"], arg_dims = [["sq", ""], []]} : () -> ()

// -----

"ws.kernel"() ({
^bb0(%q: memref<?x4xbf16>, %n: f32):
  "ws.role"() ({
  ^bb0(%g: i32):
    // expected-error @below {{'ws.tiles' op expects attribute 'operandSegmentSizes'}}
    "ws.tiles"(%g) ({
    ^bb0(%t: i32):
    }) {order = "single"} : (i32) -> ()
  }) {label_name = "r", warps = array<i32: 0, 4>, groups = 1 : i64, lanes = 32 : i64, registers = 64 : i64} : () -> ()
}) {sym_name = "k", arg_names = ["q", "n"], arg_roles = ["in", "scalar"], arg_dims = [["sq", ""], []]} : () -> ()

// -----

// Extent.

func.func @f(%x: f32) {
  // expected-error @below {{'ws.extent' op expects a memref, got f32}}
  %0 = "ws.extent"(%x) {dim = 0 : i64} : (f32) -> i32
  func.return
}

// -----

func.func @f(%x: memref<?x4xf32>) {
  // expected-error @below {{'ws.extent' op expects dim in 0..1, got 2}}
  %0 = "ws.extent"(%x) {dim = 2 : i64} : (memref<?x4xf32>) -> i32
  func.return
}

// -----

func.func @f(%x: memref<?x4xf32>) {
  // expected-error @below {{'ws.extent' op expects dim in 0..1, got -1}}
  %0 = "ws.extent"(%x) {dim = -1 : i64} : (memref<?x4xf32>) -> i32
  func.return
}

// -----

func.func @f(%x: memref<?x4xf32>) {
  // expected-error @below {{'ws.extent' op expects result 'size' of i32, got i64}}
  %0 = "ws.extent"(%x) {dim = 0 : i64} : (memref<?x4xf32>) -> i64
  func.return
}

// -----

// Names.

// expected-error @below {{'ws.kernel' op expects strings in arg_names, arg_roles and the lists of arg_dims}}
"ws.kernel"() ({
^bb0(%x: memref<?xf32>):
}) {sym_name = "k", arg_names = ["x"], arg_roles = ["in"], arg_dims = [3]} : () -> ()

// -----

// expected-error @below {{'ws.kernel' op expects strings in arg_names, arg_roles and the lists of arg_dims}}
"ws.kernel"() ({
^bb0(%x: memref<?xf32>):
}) {sym_name = "k", arg_names = [7], arg_roles = ["in"], arg_dims = [["m"]]} : () -> ()

// -----

// expected-error @below {{'ws.kernel' op expects distinct arg_names, got x, x}}
"ws.kernel"() ({
^bb0(%x: memref<?xf32>, %y: memref<?xf32>):
}) {sym_name = "k", arg_names = ["x", "x"], arg_roles = ["in", "in"], arg_dims = [["m"], ["m"]]} : () -> ()

// -----

// expected-error @below {{'ws.kernel' op expects names for run-time dimensions, x has run-time dimension 1 and name ''}}
"ws.kernel"() ({
^bb0(%x: memref<4x?xf32>):
}) {sym_name = "k", arg_names = ["x"], arg_roles = ["in"], arg_dims = [["", ""]]} : () -> ()

// -----

// expected-error @below {{'ws.kernel' op expects names for run-time dimensions, x has static dimension 0 and name 'm'}}
"ws.kernel"() ({
^bb0(%x: memref<4x?xf32>):
}) {sym_name = "k", arg_names = ["x"], arg_roles = ["in"], arg_dims = [["m", "n"]]} : () -> ()
