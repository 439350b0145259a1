// RUN: attn-opt --split-input-file --ws-verify-rings --ws-verify-rings %s | FileCheck %s

// What agrees is left as it is.

// CHECK: "ws.kernel"
// CHECK: "ws.commit"
// CHECK: // -----
// CHECK: "ws.kernel"
// CHECK: // -----
// CHECK: "ws.kernel"
// CHECK: scf.if
// CHECK: // -----
// CHECK: "ws.kernel"
// CHECK: // -----
// CHECK: "ws.element"

// One producer, two consumers, as many slots as there are tiles.

!t = !ws.tile<vector<8x64xbf16>, "shared">
!ring = !ws.ring<!t, 2, 1>
"ws.kernel"() ({
^bb0(%in: memref<?x64xbf16>):
  %r = "ws.alloc_ring"() {label_name = "r"} : () -> !ring
  "ws.role"() ({
  ^bb0(%g: i32):
    %zero = arith.constant 0 : i32
    %one = arith.constant 1 : i32
    %keys = "ws.extent"(%in) {dim = 0 : i64} : (memref<?x64xbf16>) -> i32
    %width = arith.constant 128 : i32
    %tiles = arith.ceildivsi %keys, %width : i32
    scf.for %i = %zero to %tiles step %one : i32 {
      %s0 = "ws.acquire"(%r, %zero) : (!ring, i32) -> !t
      "ws.commit"(%s0) {by = "copy_engine"} : (!t) -> ()
    }
  }) {label_name = "load", warps = array<i32: 0, 1>, groups = 1 : i64, lanes = 1 : i64, registers = 24 : i64} : () -> ()
  "ws.role"() ({
  ^bb0(%g: i32):
    %zero = arith.constant 0 : i32
    %one = arith.constant 1 : i32
    %keys = "ws.extent"(%in) {dim = 0 : i64} : (memref<?x64xbf16>) -> i32
    %width = arith.constant 128 : i32
    %tiles = arith.ceildivsi %keys, %width : i32
    scf.for %i = %zero to %tiles step %one : i32 {
      %u0 = "ws.wait"(%r, %zero) : (!ring, i32) -> !t
      "ws.release"(%u0) {by = "copy_engine"} : (!t) -> ()
    }
  }) {label_name = "use", warps = array<i32: 4, 1>, groups = 1 : i64, lanes = 1 : i64, registers = 24 : i64} : () -> ()
  "ws.role"() ({
  ^bb0(%g: i32):
    %zero = arith.constant 0 : i32
    %one = arith.constant 1 : i32
    %keys = "ws.extent"(%in) {dim = 0 : i64} : (memref<?x64xbf16>) -> i32
    %width = arith.constant 128 : i32
    %tiles = arith.ceildivsi %keys, %width : i32
    scf.for %i = %zero to %tiles step %one : i32 {
      %u1 = "ws.wait"(%r, %zero) : (!ring, i32) -> !t
      "ws.release"(%u1) {by = "tensor_core"} : (!t) -> ()
    }
  }) {label_name = "also", warps = array<i32: 8, 1>, groups = 1 : i64, lanes = 1 : i64, registers = 24 : i64} : () -> ()
}) {sym_name = "k", arg_names = ["in"], arg_roles = ["in"], arg_dims = [["keys", ""]]} : () -> ()

// -----

// Peeled loops and loops that run the other way count the same.

!t = !ws.tile<vector<8x64xbf16>, "shared">
!ring = !ws.ring<!t, 2, 1>
"ws.kernel"() ({
^bb0(%in: memref<?x64xbf16>):
  %r = "ws.alloc_ring"() {label_name = "r"} : () -> !ring
  "ws.role"() ({
  ^bb0(%g: i32):
    %zero = arith.constant 0 : i32
    %one = arith.constant 1 : i32
    %keys = "ws.extent"(%in) {dim = 0 : i64} : (memref<?x64xbf16>) -> i32
    %width = arith.constant 128 : i32
    %tiles = arith.ceildivsi %keys, %width : i32
    %s0 = "ws.acquire"(%r, %zero) : (!ring, i32) -> !t
    "ws.commit"(%s0) {by = "copy_engine"} : (!t) -> ()
    scf.for %i = %zero to %tiles step %one : i32 {
      %s1 = "ws.acquire"(%r, %zero) : (!ring, i32) -> !t
      "ws.commit"(%s1) {by = "copy_engine"} : (!t) -> ()
    }
  }) {label_name = "load", warps = array<i32: 0, 1>, groups = 1 : i64, lanes = 1 : i64, registers = 24 : i64} : () -> ()
  "ws.role"() ({
  ^bb0(%g: i32):
    %zero = arith.constant 0 : i32
    %one = arith.constant 1 : i32
    %keys = "ws.extent"(%in) {dim = 0 : i64} : (memref<?x64xbf16>) -> i32
    %width = arith.constant 128 : i32
    %tiles = arith.ceildivsi %keys, %width : i32
    scf.for %i = %zero to %tiles step %one : i32 {
      %u0 = "ws.wait"(%r, %zero) : (!ring, i32) -> !t
      "ws.release"(%u0) {by = "copy_engine"} : (!t) -> ()
    }
    %u1 = "ws.wait"(%r, %zero) : (!ring, i32) -> !t
    "ws.release"(%u1) {by = "copy_engine"} : (!t) -> ()
  }) {label_name = "use", warps = array<i32: 4, 1>, groups = 1 : i64, lanes = 1 : i64, registers = 24 : i64} : () -> ()
}) {sym_name = "k", arg_names = ["in"], arg_roles = ["in"], arg_dims = [["keys", ""]]} : () -> ()

// -----

// A branch that both sides take under one condition.

!t = !ws.tile<vector<8x64xbf16>, "shared">
!ring = !ws.ring<!t, 2, 1>
"ws.kernel"() ({
^bb0(%in: memref<?x64xbf16>):
  %r = "ws.alloc_ring"() {label_name = "r"} : () -> !ring
  "ws.role"() ({
  ^bb0(%g: i32):
    %zero = arith.constant 0 : i32
    %one = arith.constant 1 : i32
    %keys = "ws.extent"(%in) {dim = 0 : i64} : (memref<?x64xbf16>) -> i32
    %width = arith.constant 128 : i32
    %tiles = arith.ceildivsi %keys, %width : i32
    %some = arith.cmpi sgt, %tiles, %one : i32
    scf.if %some {
      %s0 = "ws.acquire"(%r, %zero) : (!ring, i32) -> !t
      "ws.commit"(%s0) {by = "copy_engine"} : (!t) -> ()
    }
  }) {label_name = "load", warps = array<i32: 0, 1>, groups = 1 : i64, lanes = 1 : i64, registers = 24 : i64} : () -> ()
  "ws.role"() ({
  ^bb0(%g: i32):
    %zero = arith.constant 0 : i32
    %one = arith.constant 1 : i32
    %keys = "ws.extent"(%in) {dim = 0 : i64} : (memref<?x64xbf16>) -> i32
    %width = arith.constant 128 : i32
    %tiles = arith.ceildivsi %keys, %width : i32
    %some = arith.cmpi sgt, %tiles, %one : i32
    scf.if %some {
      %u0 = "ws.wait"(%r, %zero) : (!ring, i32) -> !t
      "ws.release"(%u0) {by = "copy_engine"} : (!t) -> ()
    }
  }) {label_name = "use", warps = array<i32: 4, 1>, groups = 1 : i64, lanes = 1 : i64, registers = 24 : i64} : () -> ()
}) {sym_name = "k", arg_names = ["in"], arg_roles = ["in"], arg_dims = [["keys", ""]]} : () -> ()

// -----

// A producer may run ahead by the stages of the ring.

!t = !ws.tile<vector<8x64xbf16>, "shared">
!ring = !ws.ring<!t, 2, 1>
"ws.kernel"() ({
^bb0(%in: memref<?x64xbf16>):
  %a = "ws.alloc_ring"() {label_name = "a"} : () -> !ring
  %b = "ws.alloc_ring"() {label_name = "b"} : () -> !ring
  "ws.role"() ({
  ^bb0(%g: i32):
    %zero = arith.constant 0 : i32
    %one = arith.constant 1 : i32
    %keys = "ws.extent"(%in) {dim = 0 : i64} : (memref<?x64xbf16>) -> i32
    %width = arith.constant 128 : i32
    %tiles = arith.ceildivsi %keys, %width : i32
    %x = "ws.acquire"(%a, %zero) : (!ring, i32) -> !t
    %y = "ws.acquire"(%a, %zero) : (!ring, i32) -> !t
    "ws.commit"(%x) {by = "copy_engine"} : (!t) -> ()
    "ws.commit"(%y) {by = "copy_engine"} : (!t) -> ()
    %u0 = "ws.wait"(%b, %zero) : (!ring, i32) -> !t
    "ws.release"(%u0) {by = "copy_engine"} : (!t) -> ()
  }) {label_name = "load", warps = array<i32: 0, 1>, groups = 1 : i64, lanes = 1 : i64, registers = 24 : i64} : () -> ()
  "ws.role"() ({
  ^bb0(%g: i32):
    %zero = arith.constant 0 : i32
    %one = arith.constant 1 : i32
    %keys = "ws.extent"(%in) {dim = 0 : i64} : (memref<?x64xbf16>) -> i32
    %width = arith.constant 128 : i32
    %tiles = arith.ceildivsi %keys, %width : i32
    %u1 = "ws.wait"(%a, %zero) : (!ring, i32) -> !t
    "ws.release"(%u1) {by = "copy_engine"} : (!t) -> ()
    %u2 = "ws.wait"(%a, %zero) : (!ring, i32) -> !t
    "ws.release"(%u2) {by = "copy_engine"} : (!t) -> ()
    %s0 = "ws.acquire"(%b, %zero) : (!ring, i32) -> !t
    "ws.commit"(%s0) {by = "copy_engine"} : (!t) -> ()
  }) {label_name = "use", warps = array<i32: 4, 1>, groups = 1 : i64, lanes = 1 : i64, registers = 24 : i64} : () -> ()
}) {sym_name = "k", arg_names = ["in"], arg_roles = ["in"], arg_dims = [["keys", ""]]} : () -> ()

// -----

// Counts that depend on elements of an input and on a scalar of the call: lengths of sequences.

!t = !ws.tile<vector<8x64xbf16>, "shared">
!ring = !ws.ring<!t, 2, 1>
"ws.kernel"() ({
^bb0(%ends: memref<?xi32>, %most: i32):
  %r = "ws.alloc_ring"() {label_name = "r"} : () -> !ring
  "ws.role"() ({
  ^bb0(%g: i32):
    %zero = arith.constant 0 : i32
    %one = arith.constant 1 : i32
    %two = arith.constant 2 : i32
    "ws.tiles"(%two) ({
    ^bb0(%sequence: i32):
      %next = arith.addi %sequence, %one : i32
      %begin = "ws.element"(%ends, %sequence) {operandSegmentSizes = array<i32: 1, 1>} : (memref<?xi32>, i32) -> i32
      %end = "ws.element"(%ends, %next) {operandSegmentSizes = array<i32: 1, 1>} : (memref<?xi32>, i32) -> i32
      %keys = arith.subi %end, %begin : i32
      %width = arith.constant 128 : i32
      %some = arith.ceildivsi %keys, %width : i32
      %tiles = arith.maxsi %some, %zero : i32
      %last = arith.minsi %tiles, %most : i32
      scf.for %i = %zero to %last step %one : i32 {
        %s0 = "ws.acquire"(%r, %zero) : (!ring, i32) -> !t
        "ws.commit"(%s0) {by = "copy_engine"} : (!t) -> ()
      }
    }) {order = "single", operandSegmentSizes = array<i32: 1, 0, 0>} : (i32) -> ()
  }) {label_name = "load", warps = array<i32: 0, 1>, groups = 1 : i64, lanes = 1 : i64, registers = 24 : i64} : () -> ()
  "ws.role"() ({
  ^bb0(%g: i32):
    %zero = arith.constant 0 : i32
    %one = arith.constant 1 : i32
    %two = arith.constant 2 : i32
    "ws.tiles"(%two) ({
    ^bb0(%sequence: i32):
      %next = arith.addi %sequence, %one : i32
      %begin = "ws.element"(%ends, %sequence) {operandSegmentSizes = array<i32: 1, 1>} : (memref<?xi32>, i32) -> i32
      %end = "ws.element"(%ends, %next) {operandSegmentSizes = array<i32: 1, 1>} : (memref<?xi32>, i32) -> i32
      %keys = arith.subi %end, %begin : i32
      %width = arith.constant 128 : i32
      %some = arith.ceildivsi %keys, %width : i32
      %tiles = arith.maxsi %some, %zero : i32
      %last = arith.minsi %tiles, %most : i32
      scf.for %i = %zero to %last step %one : i32 {
        %u0 = "ws.wait"(%r, %zero) : (!ring, i32) -> !t
        "ws.release"(%u0) {by = "copy_engine"} : (!t) -> ()
      }
    }) {order = "single", operandSegmentSizes = array<i32: 1, 0, 0>} : (i32) -> ()
  }) {label_name = "use", warps = array<i32: 4, 1>, groups = 1 : i64, lanes = 1 : i64, registers = 24 : i64} : () -> ()
}) {sym_name = "k", arg_names = ["ends", "most"], arg_roles = ["in", "scalar"], arg_dims = [["batch"], []]} : () -> ()
