// RUN: attn-opt --split-input-file --verify-diagnostics %s

// Declarations.

func.func @f() {
  // expected-error @below {{'ws.alloc_ring' op expects result 'ring' of !ws.ring, got}}
  %0 = "ws.alloc_ring"() {label_name = "r"} : () -> !ws.tile<vector<8x64xbf16>, "shared">
  func.return
}

// -----

func.func @f() {
  // expected-error @below {{'ws.alloc_buffer' op expects result 'buffer' of !ws.buffer, got}}
  %0 = "ws.alloc_buffer"() {label_name = "r"} : () -> !ws.ring<!ws.tile<vector<8x64xbf16>, "shared">, 2, 1>
  func.return
}

// -----

func.func @f() {
  // expected-error @below {{'ws.alloc_ring' op expects attribute 'label_name'}}
  %0 = "ws.alloc_ring"() : () -> !ws.ring<!ws.tile<vector<8x64xbf16>, "shared">, 2, 1>
  func.return
}

// -----

// Access.

func.func @f(%b: !ws.buffer<!ws.tile<vector<8x64xbf16>, "shared">, 2>, %g: i32) {
  // expected-error @below {{'ws.at' op expects a result of type !ws.tile<vector<8x64xbf16>, "shared">, got !ws.tile<vector<8x32xbf16>, "shared">}}
  %0 = "ws.at"(%b, %g) : (!ws.buffer<!ws.tile<vector<8x64xbf16>, "shared">, 2>, i32) -> !ws.tile<vector<8x32xbf16>, "shared">
  func.return
}

// -----

func.func @f(%r: !ws.ring<!ws.tile<vector<8x64xbf16>, "shared">, 2, 1>, %g: i32) {
  // expected-error @below {{'ws.acquire' op expects a slot of type !ws.tile<vector<8x64xbf16>, "shared">, got}}
  %0 = "ws.acquire"(%r, %g) : (!ws.ring<!ws.tile<vector<8x64xbf16>, "shared">, 2, 1>, i32) -> !ws.tile<vector<8x32xbf16>, "shared">
  func.return
}

// -----

func.func @f(%r: !ws.ring<!ws.tile<vector<8x64xbf16>, "shared">, 2, 1>, %g: i32) {
  // expected-error @below {{'ws.wait' op expects a slot of type !ws.tile<vector<8x64xbf16>, "shared">, got}}
  %0 = "ws.wait"(%r, %g) : (!ws.ring<!ws.tile<vector<8x64xbf16>, "shared">, 2, 1>, i32) -> !ws.tile<vector<8x32xbf16>, "shared">
  func.return
}

// -----

func.func @f(%r: !ws.buffer<!ws.tile<vector<8x64xbf16>, "shared">, 2>, %g: i32) {
  // expected-error @below {{'ws.wait' op expects operand 'ring' of !ws.ring, got !ws.buffer}}
  %0 = "ws.wait"(%r, %g) : (!ws.buffer<!ws.tile<vector<8x64xbf16>, "shared">, 2>, i32) -> !ws.tile<vector<8x64xbf16>, "shared">
  func.return
}

// -----

// Handover.

func.func @f(%s: !ws.tile<vector<8x64xbf16>, "shared">) {
  // expected-error @below {{'ws.commit' op expects a slot from ws.acquire}}
  "ws.commit"(%s) {by = "threads"} : (!ws.tile<vector<8x64xbf16>, "shared">) -> ()
  func.return
}

// -----

func.func @f(%s: !ws.tile<vector<8x64xbf16>, "shared">) {
  // expected-error @below {{'ws.release' op expects a slot from ws.wait}}
  "ws.release"(%s) {by = "threads"} : (!ws.tile<vector<8x64xbf16>, "shared">) -> ()
  func.return
}

// -----

func.func @f(%r: !ws.ring<!ws.tile<vector<8x64xbf16>, "shared">, 2, 1>, %g: i32) {
  %s = "ws.wait"(%r, %g) : (!ws.ring<!ws.tile<vector<8x64xbf16>, "shared">, 2, 1>, i32) -> !ws.tile<vector<8x64xbf16>, "shared">
  // expected-error @below {{'ws.commit' op expects a slot from ws.acquire}}
  "ws.commit"(%s) {by = "copy_engine"} : (!ws.tile<vector<8x64xbf16>, "shared">) -> ()
  func.return
}

// -----

func.func @f(%r: !ws.ring<!ws.tile<vector<8x64xbf16>, "shared">, 2, 1>, %g: i32) {
  %s = "ws.acquire"(%r, %g) : (!ws.ring<!ws.tile<vector<8x64xbf16>, "shared">, 2, 1>, i32) -> !ws.tile<vector<8x64xbf16>, "shared">
  // expected-error @below {{'ws.release' op expects a slot from ws.wait}}
  "ws.release"(%s) {by = "copy_engine"} : (!ws.tile<vector<8x64xbf16>, "shared">) -> ()
  func.return
}

// -----

func.func @f(%r: !ws.ring<!ws.tile<vector<8x64xbf16>, "shared">, 2, 1>, %g: i32) {
  %s = "ws.acquire"(%r, %g) : (!ws.ring<!ws.tile<vector<8x64xbf16>, "shared">, 2, 1>, i32) -> !ws.tile<vector<8x64xbf16>, "shared">
  // expected-error @below {{'ws.commit' op expects by of threads, warps, tensor_core, copy_engine, thread_copies, got host}}
  "ws.commit"(%s) {by = "host"} : (!ws.tile<vector<8x64xbf16>, "shared">) -> ()
  func.return
}

// -----

func.func @f(%r: !ws.ring<!ws.tile<vector<8x64xbf16>, "shared">, 2, 1>, %g: i32) {
  %s = "ws.wait"(%r, %g) : (!ws.ring<!ws.tile<vector<8x64xbf16>, "shared">, 2, 1>, i32) -> !ws.tile<vector<8x64xbf16>, "shared">
  // expected-error @below {{'ws.release' op expects by of threads, warps, tensor_core, copy_engine, got thread_copies}}
  "ws.release"(%s) {by = "thread_copies"} : (!ws.tile<vector<8x64xbf16>, "shared">) -> ()
  func.return
}

// -----

func.func @f(%r: !ws.ring<none, 1, 2>, %g: i32) {
  %s = "ws.acquire"(%r, %g) : (!ws.ring<none, 1, 2>, i32) -> none
  // expected-error @below {{'ws.commit' op expects by of threads, warps, tensor_core, got copy_engine}}
  "ws.commit"(%s) {by = "copy_engine"} : (none) -> ()
  func.return
}

// -----

func.func @f(%r: !ws.ring<none, 1, 2>, %g: i32) {
  // expected-error @below {{'ws.wait' op expects a slot of type none, got !ws.tile<vector<8x64xbf16>, "shared">}}
  %s = "ws.wait"(%r, %g) : (!ws.ring<none, 1, 2>, i32) -> !ws.tile<vector<8x64xbf16>, "shared">
  func.return
}

// -----

func.func @f() {
  // expected-error @below {{'ws.alloc_ring' op expects producers of threads, warps, tensor_core, copy_engine, thread_copies, got ['threads', 'host']}}
  %r = "ws.alloc_ring"() {label_name = "r", producers = ["threads", "host"]} : () -> !ws.ring<none, 1, 2>
  func.return
}

// -----

"ws.kernel"() ({
^bb0:
  // expected-error @below {{'ws.alloc_ring' op expects no empty_at of a ring without empty barriers (known_empty)}}
  %r = "ws.alloc_ring"() {label_name = "r", known_empty, empty_at = [array<i32: 0>, array<i32: 1>]} : () -> !ws.ring<none, 1, 2>
}) {sym_name = "k", arg_names = [], arg_roles = [], arg_dims = [], cluster = 2 : i64} : () -> ()

// -----

// What is there no sooner than a handover.

func.func @f(%r: !ws.ring<none, 1, 1>, %w: i32, %x: !ws.frag<vector<128xbf16>>) {
  %s = "ws.acquire"(%r, %w) : (!ws.ring<none, 1, 1>, i32) -> none
  "ws.commit"(%s) {by = "threads"} : (none) -> ()
  // expected-error @below {{'ws.behind' op expects a fragment of rank 1 and f32, got !ws.frag<vector<128xbf16>>}}
  %y = "ws.behind"(%x, %s) : (!ws.frag<vector<128xbf16>>, none) -> !ws.frag<vector<128xbf16>>
  func.return
}

// -----

func.func @f(%r: !ws.ring<none, 1, 1>, %w: i32, %x: !ws.frag<vector<128xf32>>) {
  %s = "ws.acquire"(%r, %w) : (!ws.ring<none, 1, 1>, i32) -> none
  "ws.commit"(%s) {by = "threads"} : (none) -> ()
  // expected-error @below {{'ws.behind' op expects a result of type !ws.frag<vector<128xf32>>, got !ws.frag<vector<64xf32>>}}
  %y = "ws.behind"(%x, %s) : (!ws.frag<vector<128xf32>>, none) -> !ws.frag<vector<64xf32>>
  func.return
}

// -----

func.func @f(%r: !ws.ring<none, 1, 1>, %w: i32, %x: !ws.frag<vector<128xf32>>) {
  %s = "ws.acquire"(%r, %w) : (!ws.ring<none, 1, 1>, i32) -> none
  // expected-error @below {{'ws.behind' op expects a slot that threads have committed before, in the same block}}
  %y = "ws.behind"(%x, %s) : (!ws.frag<vector<128xf32>>, none) -> !ws.frag<vector<128xf32>>
  "ws.commit"(%s) {by = "threads"} : (none) -> ()
  func.return
}

// -----

func.func @f(%r: !ws.ring<none, 1, 1>, %w: i32, %x: !ws.frag<vector<128xf32>>) {
  %s = "ws.acquire"(%r, %w) : (!ws.ring<none, 1, 1>, i32) -> none
  "ws.commit"(%s) {by = "warps"} : (none) -> ()
  // expected-error @below {{'ws.behind' op expects a slot that threads have committed before, in the same block}}
  %y = "ws.behind"(%x, %s) : (!ws.frag<vector<128xf32>>, none) -> !ws.frag<vector<128xf32>>
  func.return
}
