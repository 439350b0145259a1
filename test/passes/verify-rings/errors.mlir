// RUN: attn-opt --split-input-file --verify-diagnostics --ws-verify-rings %s

// Counts.

!t = !ws.tile<vector<8x64xbf16>, "shared">
!ring = !ws.ring<!t, 2, 1>
"ws.kernel"() ({
^bb0(%in: memref<?x64xbf16>):
  // expected-error @below {{'ws.alloc_ring' op needs a wait by role use for each commit of ring r[0] by role load: with keys = 77, use waits for 0 slots of 1}}
  // expected-note @below {{role use waits for ceildiv(keys, 128) - 1 slots}}
  // expected-note @below {{role load commits ceildiv(keys, 128) slots}}
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
    scf.for %i = %one to %tiles step %one : i32 {
      %u0 = "ws.wait"(%r, %zero) : (!ring, i32) -> !t
      "ws.release"(%u0) {by = "copy_engine"} : (!t) -> ()
    }
  }) {label_name = "use", warps = array<i32: 4, 1>, groups = 1 : i64, lanes = 1 : i64, registers = 24 : i64} : () -> ()
}) {sym_name = "k", arg_names = ["in"], arg_roles = ["in"], arg_dims = [["keys", ""]]} : () -> ()

// -----

// A constant against a loop.

!t = !ws.tile<vector<8x64xbf16>, "shared">
!ring = !ws.ring<!t, 2, 1>
"ws.kernel"() ({
^bb0(%in: memref<?x64xbf16>):
  // expected-error @below {{'ws.alloc_ring' op needs a wait by role use for each commit of ring r[0] by role load: with keys = 0, use waits for 1 slots of 0}}
  // expected-note @below {{role use waits for 1 slots}}
  // expected-note @below {{role load commits ceildiv(keys, 128) slots}}
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
    %u0 = "ws.wait"(%r, %zero) : (!ring, i32) -> !t
    "ws.release"(%u0) {by = "copy_engine"} : (!t) -> ()
  }) {label_name = "use", warps = array<i32: 4, 1>, groups = 1 : i64, lanes = 1 : i64, registers = 24 : i64} : () -> ()
}) {sym_name = "k", arg_names = ["in"], arg_roles = ["in"], arg_dims = [["keys", ""]]} : () -> ()

// -----

// One side under a condition.

!t = !ws.tile<vector<8x64xbf16>, "shared">
!ring = !ws.ring<!t, 2, 1>
"ws.kernel"() ({
^bb0(%in: memref<?x64xbf16>):
  // expected-error @below {{'ws.alloc_ring' op needs a wait by role use for each commit of ring r[0] by role load: with keys = 0, use waits for 0 slots of 1}}
  // expected-note @below {{role use waits for [ceildiv(keys, 128) > 1] slots}}
  // expected-note @below {{role load commits 1 slots}}
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

// Nobody fills the ring.

!t = !ws.tile<vector<8x64xbf16>, "shared">
!ring = !ws.ring<!t, 2, 1>
"ws.kernel"() ({
^bb0(%in: memref<?x64xbf16>):
  // expected-error @below {{'ws.alloc_ring' op needs one role that fills slots of ring r[0], or to state its producers, got none}}
  %r = "ws.alloc_ring"() {label_name = "r"} : () -> !ring
  "ws.role"() ({
  ^bb0(%g: i32):
    %zero = arith.constant 0 : i32
    %one = arith.constant 1 : i32
    %keys = "ws.extent"(%in) {dim = 0 : i64} : (memref<?x64xbf16>) -> i32
    %width = arith.constant 128 : i32
    %tiles = arith.ceildivsi %keys, %width : i32
    %u0 = "ws.wait"(%r, %zero) : (!ring, i32) -> !t
    "ws.release"(%u0) {by = "copy_engine"} : (!t) -> ()
  }) {label_name = "use", warps = array<i32: 0, 1>, groups = 1 : i64, lanes = 1 : i64, registers = 24 : i64} : () -> ()
}) {sym_name = "k", arg_names = ["in"], arg_roles = ["in"], arg_dims = [["keys", ""]]} : () -> ()

// -----

// Two roles fill the ring.

!t = !ws.tile<vector<8x64xbf16>, "shared">
!ring = !ws.ring<!t, 2, 1>
"ws.kernel"() ({
^bb0(%in: memref<?x64xbf16>):
  // expected-error @below {{'ws.alloc_ring' op needs one role that fills slots of ring r[0], or to state its producers, got load, other}}
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
  }) {label_name = "load", warps = array<i32: 0, 1>, groups = 1 : i64, lanes = 1 : i64, registers = 24 : i64} : () -> ()
  "ws.role"() ({
  ^bb0(%g: i32):
    %zero = arith.constant 0 : i32
    %one = arith.constant 1 : i32
    %keys = "ws.extent"(%in) {dim = 0 : i64} : (memref<?x64xbf16>) -> i32
    %width = arith.constant 128 : i32
    %tiles = arith.ceildivsi %keys, %width : i32
    %s1 = "ws.acquire"(%r, %zero) : (!ring, i32) -> !t
    "ws.commit"(%s1) {by = "copy_engine"} : (!t) -> ()
  }) {label_name = "other", warps = array<i32: 4, 1>, groups = 1 : i64, lanes = 1 : i64, registers = 24 : i64} : () -> ()
  "ws.role"() ({
  ^bb0(%g: i32):
    %zero = arith.constant 0 : i32
    %one = arith.constant 1 : i32
    %keys = "ws.extent"(%in) {dim = 0 : i64} : (memref<?x64xbf16>) -> i32
    %width = arith.constant 128 : i32
    %tiles = arith.ceildivsi %keys, %width : i32
    %u0 = "ws.wait"(%r, %zero) : (!ring, i32) -> !t
    "ws.release"(%u0) {by = "copy_engine"} : (!t) -> ()
  }) {label_name = "use", warps = array<i32: 8, 1>, groups = 1 : i64, lanes = 1 : i64, registers = 24 : i64} : () -> ()
}) {sym_name = "k", arg_names = ["in"], arg_roles = ["in"], arg_dims = [["keys", ""]]} : () -> ()

// -----

// Nobody reads the ring.

!t = !ws.tile<vector<8x64xbf16>, "shared">
!ring = !ws.ring<!t, 2, 1>
"ws.kernel"() ({
^bb0(%in: memref<?x64xbf16>):
  // expected-error @below {{'ws.alloc_ring' op needs a role that reads slots of ring r[0], got none}}
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
  }) {label_name = "load", warps = array<i32: 0, 1>, groups = 1 : i64, lanes = 1 : i64, registers = 24 : i64} : () -> ()
}) {sym_name = "k", arg_names = ["in"], arg_roles = ["in"], arg_dims = [["keys", ""]]} : () -> ()

// -----

// A slot that is taken and kept.

!t = !ws.tile<vector<8x64xbf16>, "shared">
!ring = !ws.ring<!t, 2, 1>
"ws.kernel"() ({
^bb0(%in: memref<?x64xbf16>):
  // expected-error @below {{'ws.alloc_ring' op needs an acquire by role load for each commit of ring r[0] by role load: load acquires 2 slots of 1}}
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
    %t = "ws.acquire"(%r, %zero) : (!ring, i32) -> !t
  }) {label_name = "load", warps = array<i32: 0, 1>, groups = 1 : i64, lanes = 1 : i64, registers = 24 : i64} : () -> ()
  "ws.role"() ({
  ^bb0(%g: i32):
    %zero = arith.constant 0 : i32
    %one = arith.constant 1 : i32
    %keys = "ws.extent"(%in) {dim = 0 : i64} : (memref<?x64xbf16>) -> i32
    %width = arith.constant 128 : i32
    %tiles = arith.ceildivsi %keys, %width : i32
    %u0 = "ws.wait"(%r, %zero) : (!ring, i32) -> !t
    "ws.release"(%u0) {by = "copy_engine"} : (!t) -> ()
  }) {label_name = "use", warps = array<i32: 4, 1>, groups = 1 : i64, lanes = 1 : i64, registers = 24 : i64} : () -> ()
}) {sym_name = "k", arg_names = ["in"], arg_roles = ["in"], arg_dims = [["keys", ""]]} : () -> ()

// -----

// A slot that is read and kept.

!t = !ws.tile<vector<8x64xbf16>, "shared">
!ring = !ws.ring<!t, 2, 1>
"ws.kernel"() ({
^bb0(%in: memref<?x64xbf16>):
  // expected-error @below {{'ws.alloc_ring' op needs a release of ring r[0] by role use, which waits for its slots}}
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
  }) {label_name = "load", warps = array<i32: 0, 1>, groups = 1 : i64, lanes = 1 : i64, registers = 24 : i64} : () -> ()
  "ws.role"() ({
  ^bb0(%g: i32):
    %zero = arith.constant 0 : i32
    %one = arith.constant 1 : i32
    %keys = "ws.extent"(%in) {dim = 0 : i64} : (memref<?x64xbf16>) -> i32
    %width = arith.constant 128 : i32
    %tiles = arith.ceildivsi %keys, %width : i32
    %u = "ws.wait"(%r, %zero) : (!ring, i32) -> !t
  }) {label_name = "use", warps = array<i32: 4, 1>, groups = 1 : i64, lanes = 1 : i64, registers = 24 : i64} : () -> ()
}) {sym_name = "k", arg_names = ["in"], arg_roles = ["in"], arg_dims = [["keys", ""]]} : () -> ()

// -----

// A slot that is released less often than it is waited for.

!t = !ws.tile<vector<8x64xbf16>, "shared">
!ring = !ws.ring<!t, 2, 1>
"ws.kernel"() ({
^bb0(%in: memref<?x64xbf16>):
  // expected-error @below {{'ws.alloc_ring' op needs a release by role use for each commit of ring r[0] by role load: use releases 1 slots of 2}}
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
    %s1 = "ws.acquire"(%r, %zero) : (!ring, i32) -> !t
    "ws.commit"(%s1) {by = "copy_engine"} : (!t) -> ()
  }) {label_name = "load", warps = array<i32: 0, 1>, groups = 1 : i64, lanes = 1 : i64, registers = 24 : i64} : () -> ()
  "ws.role"() ({
  ^bb0(%g: i32):
    %zero = arith.constant 0 : i32
    %one = arith.constant 1 : i32
    %keys = "ws.extent"(%in) {dim = 0 : i64} : (memref<?x64xbf16>) -> i32
    %width = arith.constant 128 : i32
    %tiles = arith.ceildivsi %keys, %width : i32
    %u0 = "ws.wait"(%r, %zero) : (!ring, i32) -> !t
    "ws.release"(%u0) {by = "copy_engine"} : (!t) -> ()
    %v = "ws.wait"(%r, %zero) : (!ring, i32) -> !t
  }) {label_name = "use", warps = array<i32: 4, 1>, groups = 1 : i64, lanes = 1 : i64, registers = 24 : i64} : () -> ()
}) {sym_name = "k", arg_names = ["in"], arg_roles = ["in"], arg_dims = [["keys", ""]]} : () -> ()

// -----

// An instance that the ring does not have.

!t = !ws.tile<vector<8x64xbf16>, "shared">
!ring = !ws.ring<!t, 2, 1>
"ws.kernel"() ({
^bb0(%in: memref<?x64xbf16>):
  // expected-error @below {{'ws.alloc_ring' op ring r has instances 0..0, a role uses instance 1}}
  %r = "ws.alloc_ring"() {label_name = "r"} : () -> !ring
  "ws.role"() ({
  ^bb0(%g: i32):
    %zero = arith.constant 0 : i32
    %one = arith.constant 1 : i32
    %keys = "ws.extent"(%in) {dim = 0 : i64} : (memref<?x64xbf16>) -> i32
    %width = arith.constant 128 : i32
    %tiles = arith.ceildivsi %keys, %width : i32
    %s = "ws.acquire"(%r, %one) : (!ring, i32) -> !t
    "ws.commit"(%s) {by = "copy_engine"} : (!t) -> ()
  }) {label_name = "load", warps = array<i32: 0, 1>, groups = 1 : i64, lanes = 1 : i64, registers = 24 : i64} : () -> ()
  "ws.role"() ({
  ^bb0(%g: i32):
    %zero = arith.constant 0 : i32
    %one = arith.constant 1 : i32
    %keys = "ws.extent"(%in) {dim = 0 : i64} : (memref<?x64xbf16>) -> i32
    %width = arith.constant 128 : i32
    %tiles = arith.ceildivsi %keys, %width : i32
    %u = "ws.wait"(%r, %one) : (!ring, i32) -> !t
    "ws.release"(%u) {by = "copy_engine"} : (!t) -> ()
  }) {label_name = "use", warps = array<i32: 4, 1>, groups = 1 : i64, lanes = 1 : i64, registers = 24 : i64} : () -> ()
}) {sym_name = "k", arg_names = ["in"], arg_roles = ["in"], arg_dims = [["keys", ""]]} : () -> ()

// -----

// Turns: the second slot is handed over first.

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
    %x = "ws.acquire"(%r, %zero) : (!ring, i32) -> !t
    %y = "ws.acquire"(%r, %zero) : (!ring, i32) -> !t
    // expected-error @below {{'ws.commit' op in role load hands over a slot of ring r that is out of turn: its turn is 1, the ring's next is 0}}
    "ws.commit"(%y) {by = "copy_engine"} : (!t) -> ()
    "ws.commit"(%x) {by = "copy_engine"} : (!t) -> ()
  }) {label_name = "load", warps = array<i32: 0, 1>, groups = 1 : i64, lanes = 1 : i64, registers = 24 : i64} : () -> ()
  "ws.role"() ({
  ^bb0(%g: i32):
    %zero = arith.constant 0 : i32
    %one = arith.constant 1 : i32
    %keys = "ws.extent"(%in) {dim = 0 : i64} : (memref<?x64xbf16>) -> i32
    %width = arith.constant 128 : i32
    %tiles = arith.ceildivsi %keys, %width : i32
    %u0 = "ws.wait"(%r, %zero) : (!ring, i32) -> !t
    "ws.release"(%u0) {by = "copy_engine"} : (!t) -> ()
    %u1 = "ws.wait"(%r, %zero) : (!ring, i32) -> !t
    "ws.release"(%u1) {by = "copy_engine"} : (!t) -> ()
  }) {label_name = "use", warps = array<i32: 4, 1>, groups = 1 : i64, lanes = 1 : i64, registers = 24 : i64} : () -> ()
}) {sym_name = "k", arg_names = ["in"], arg_roles = ["in"], arg_dims = [["keys", ""]]} : () -> ()

// -----

// Turns: the same slot is handed over twice.

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
    %s1 = "ws.acquire"(%r, %zero) : (!ring, i32) -> !t
    "ws.commit"(%s1) {by = "copy_engine"} : (!t) -> ()
  }) {label_name = "load", warps = array<i32: 0, 1>, groups = 1 : i64, lanes = 1 : i64, registers = 24 : i64} : () -> ()
  "ws.role"() ({
  ^bb0(%g: i32):
    %zero = arith.constant 0 : i32
    %one = arith.constant 1 : i32
    %keys = "ws.extent"(%in) {dim = 0 : i64} : (memref<?x64xbf16>) -> i32
    %width = arith.constant 128 : i32
    %tiles = arith.ceildivsi %keys, %width : i32
    %x = "ws.wait"(%r, %zero) : (!ring, i32) -> !t
    %y = "ws.wait"(%r, %zero) : (!ring, i32) -> !t
    "ws.release"(%x) {by = "copy_engine"} : (!t) -> ()
    // expected-error @below {{'ws.release' op in role use hands over a slot of ring r that is already handed over: its turn is 0, the ring's next is 1}}
    "ws.release"(%x) {by = "copy_engine"} : (!t) -> ()
  }) {label_name = "use", warps = array<i32: 4, 1>, groups = 1 : i64, lanes = 1 : i64, registers = 24 : i64} : () -> ()
}) {sym_name = "k", arg_names = ["in"], arg_roles = ["in"], arg_dims = [["keys", ""]]} : () -> ()

// -----

// Progress: each waits for the other.

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
    // expected-error @below {{'ws.wait' op never returns: role left needs a full slot of ring b[0], which right commits; role right needs a full slot of ring a[0], which left commits}}
    %u0 = "ws.wait"(%b, %zero) : (!ring, i32) -> !t
    "ws.release"(%u0) {by = "copy_engine"} : (!t) -> ()
    %s0 = "ws.acquire"(%a, %zero) : (!ring, i32) -> !t
    "ws.commit"(%s0) {by = "copy_engine"} : (!t) -> ()
  }) {label_name = "left", warps = array<i32: 0, 1>, groups = 1 : i64, lanes = 1 : i64, registers = 24 : i64} : () -> ()
  "ws.role"() ({
  ^bb0(%g: i32):
    %zero = arith.constant 0 : i32
    %one = arith.constant 1 : i32
    %keys = "ws.extent"(%in) {dim = 0 : i64} : (memref<?x64xbf16>) -> i32
    %width = arith.constant 128 : i32
    %tiles = arith.ceildivsi %keys, %width : i32
    %u1 = "ws.wait"(%a, %zero) : (!ring, i32) -> !t
    "ws.release"(%u1) {by = "copy_engine"} : (!t) -> ()
    %s1 = "ws.acquire"(%b, %zero) : (!ring, i32) -> !t
    "ws.commit"(%s1) {by = "copy_engine"} : (!t) -> ()
  }) {label_name = "right", warps = array<i32: 4, 1>, groups = 1 : i64, lanes = 1 : i64, registers = 24 : i64} : () -> ()
}) {sym_name = "k", arg_names = ["in"], arg_roles = ["in"], arg_dims = [["keys", ""]]} : () -> ()

// -----

// Progress: more slots are wanted at once than the ring has.

!t = !ws.tile<vector<8x64xbf16>, "shared">
!ring = !ws.ring<!t, 1, 1>
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
    %x = "ws.acquire"(%r, %zero) : (!ring, i32) -> !t
    // expected-error @below {{'ws.acquire' op never returns: role load needs an empty slot of ring r[0], which use releases; role use needs a full slot of ring r[0], which load commits}}
    %y = "ws.acquire"(%r, %zero) : (!ring, i32) -> !t
    "ws.commit"(%x) {by = "copy_engine"} : (!t) -> ()
    "ws.commit"(%y) {by = "copy_engine"} : (!t) -> ()
  }) {label_name = "load", warps = array<i32: 0, 1>, groups = 1 : i64, lanes = 1 : i64, registers = 24 : i64} : () -> ()
  "ws.role"() ({
  ^bb0(%g: i32):
    %zero = arith.constant 0 : i32
    %one = arith.constant 1 : i32
    %keys = "ws.extent"(%in) {dim = 0 : i64} : (memref<?x64xbf16>) -> i32
    %width = arith.constant 128 : i32
    %tiles = arith.ceildivsi %keys, %width : i32
    %u0 = "ws.wait"(%r, %zero) : (!ring, i32) -> !t
    "ws.release"(%u0) {by = "copy_engine"} : (!t) -> ()
    %u1 = "ws.wait"(%r, %zero) : (!ring, i32) -> !t
    "ws.release"(%u1) {by = "copy_engine"} : (!t) -> ()
  }) {label_name = "use", warps = array<i32: 4, 1>, groups = 1 : i64, lanes = 1 : i64, registers = 24 : i64} : () -> ()
}) {sym_name = "k", arg_names = ["in"], arg_roles = ["in"], arg_dims = [["keys", ""]]} : () -> ()

// -----

// Progress: found only when the key count passes what the ring can hold.

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
    scf.for %i = %zero to %tiles step %one : i32 {
      // expected-error @below {{'ws.acquire' op never returns with keys = 384: role load needs an empty slot of ring a[0], which use releases; role use needs a full slot of ring b[0], which load commits}}
      %x = "ws.acquire"(%a, %zero) : (!ring, i32) -> !t
      "ws.commit"(%x) {by = "copy_engine"} : (!t) -> ()
    }
    %s0 = "ws.acquire"(%b, %zero) : (!ring, i32) -> !t
    "ws.commit"(%s0) {by = "copy_engine"} : (!t) -> ()
  }) {label_name = "load", warps = array<i32: 0, 1>, groups = 1 : i64, lanes = 1 : i64, registers = 24 : i64} : () -> ()
  "ws.role"() ({
  ^bb0(%g: i32):
    %zero = arith.constant 0 : i32
    %one = arith.constant 1 : i32
    %keys = "ws.extent"(%in) {dim = 0 : i64} : (memref<?x64xbf16>) -> i32
    %width = arith.constant 128 : i32
    %tiles = arith.ceildivsi %keys, %width : i32
    %u0 = "ws.wait"(%b, %zero) : (!ring, i32) -> !t
    "ws.release"(%u0) {by = "copy_engine"} : (!t) -> ()
    scf.for %i = %zero to %tiles step %one : i32 {
      %u1 = "ws.wait"(%a, %zero) : (!ring, i32) -> !t
      "ws.release"(%u1) {by = "copy_engine"} : (!t) -> ()
    }
  }) {label_name = "use", warps = array<i32: 4, 1>, groups = 1 : i64, lanes = 1 : i64, registers = 24 : i64} : () -> ()
}) {sym_name = "k", arg_names = ["in"], arg_roles = ["in"], arg_dims = [["keys", ""]]} : () -> ()

// -----

// Control that depends on data cannot be proved.

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
    %x = arith.constant 1.0 : f32
    // expected-error @below {{'arith.fptosi' op decides over ring operations, but depends on data}}
    %n = arith.fptosi %x : f32 to i32
    scf.for %i = %zero to %n step %one : i32 {
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
}) {sym_name = "k", arg_names = ["in"], arg_roles = ["in"], arg_dims = [["keys", ""]]} : () -> ()

// -----

// Two roles that read different elements of an input.

!t = !ws.tile<vector<8x64xbf16>, "shared">
!ring = !ws.ring<!t, 2, 1>
"ws.kernel"() ({
^bb0(%ends: memref<?xi32>, %most: i32):
  // expected-error @below {{'ws.alloc_ring' op needs a wait by role use for each commit of ring r[0] by role load: with ends[tile0 + 1] = 77, ends[tile0] = 0, most = 717, use waits for 0 slots of 1}}
  // expected-note @below {{role use waits for min(0, most) slots}}
  // expected-note @below {{role load commits min(max(ceildiv(ends[tile0 + 1] - ends[tile0], 128), 0), most) slots}}
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
      %end = "ws.element"(%ends, %sequence) {operandSegmentSizes = array<i32: 1, 1>} : (memref<?xi32>, i32) -> i32
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

// -----

// What the kernel itself writes decides over nothing.

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
      // expected-error @below {{'ws.element' op decides over ring operations, but depends on data}}
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
}) {sym_name = "k", arg_names = ["ends", "most"], arg_roles = ["out", "scalar"], arg_dims = [["batch"], []]} : () -> ()

// -----

// Nothing that a call decides: there is one run, and it is made.

!t = !ws.tile<vector<8x64xbf16>, "shared">
!ring = !ws.ring<!t, 1, 1>
"ws.kernel"() ({
^bb0:
  %a = "ws.alloc_ring"() {label_name = "a"} : () -> !ring
  %b = "ws.alloc_ring"() {label_name = "b"} : () -> !ring
  "ws.role"() ({
  ^bb0(%g: i32):
    %zero = arith.constant 0 : i32
    // expected-error @below {{'ws.wait' op never returns: role first needs a full slot of ring b[0], which second commits; role second needs a full slot of ring a[0], which first commits}}
    %u = "ws.wait"(%b, %zero) : (!ring, i32) -> !t
    "ws.release"(%u) {by = "threads"} : (!t) -> ()
    %s = "ws.acquire"(%a, %zero) : (!ring, i32) -> !t
    "ws.commit"(%s) {by = "threads"} : (!t) -> ()
  }) {label_name = "first", warps = array<i32: 0, 1>, groups = 1 : i64, lanes = 32 : i64, registers = 24 : i64} : () -> ()
  "ws.role"() ({
  ^bb0(%g: i32):
    %zero = arith.constant 0 : i32
    %u = "ws.wait"(%a, %zero) : (!ring, i32) -> !t
    "ws.release"(%u) {by = "threads"} : (!t) -> ()
    %s = "ws.acquire"(%b, %zero) : (!ring, i32) -> !t
    "ws.commit"(%s) {by = "threads"} : (!t) -> ()
  }) {label_name = "second", warps = array<i32: 4, 1>, groups = 1 : i64, lanes = 32 : i64, registers = 24 : i64} : () -> ()
}) {sym_name = "k", arg_names = [], arg_roles = [], arg_dims = []} : () -> ()
