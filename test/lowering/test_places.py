"""Two rings that share a place: what is made of the scores lies where they were, on the emulator."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from attn_mlir.runtime.file.bundle import Bundle
from attn_mlir.validation.ws.kernels import bundle, copy_op, kernel, poison, role, run, threads

TURNS = 3
N = 64  # columns of everything


def chain() -> str:
    """y = TURNS x bf16(2 A Bᵀ) B, twice: in each turn 2 S takes the place of S, and is A of a product.

    A token tells that the sums are complete, and that they have been read before the second time.
    """
    load = "\n    ".join(
        f"""%s{x} = "ws.acquire"(%{x}s, %c0) : (!{x}s, i32) -> !{x}
    {copy_op("copy_in", f"%{x}", f"%s{x}", "%c0, %c0", "0, 1", f"memref<?x{N}xbf16>, !{x}")}
    "ws.commit"(%s{x}) {{by = "copy_engine"}} : (!{x}) -> ()"""
        for x in "ab"
    )
    mma = f"""%n = arith.constant {TURNS} : i32
    %c2 = arith.constant 2 : i32
    %sa = "ws.wait"(%as, %c0) : (!as, i32) -> !a
    %sb = "ws.wait"(%bs, %c0) : (!bs, i32) -> !b
    %o = "ws.at"(%sums, %c0) : (!ws.buffer<!s, 1>, i32) -> !s
    scf.for %round = %c0 to %c2 step %c1 : i32 {{
    %done = "ws.acquire"(%finished, %c0) : (!tokens, i32) -> none
    scf.for %i = %c0 to %n step %c1 : i32 {{
      %more = arith.cmpi sgt, %i, %c0 : i32
      %s = "ws.acquire"(%ss, %c0) : (!ss, i32) -> !s
      "ws.mma"(%s, %sa, %sb, %no) {{b_layout = "nk"}} : (!s, !a, !b, i1) -> ()
      "ws.commit"(%s) {{by = "tensor_core"}} : (!s) -> ()
      %p = "ws.wait"(%ps, %c0) : (!ps, i32) -> !p
      "ws.mma"(%o, %p, %sb, %more) {{b_layout = "kn"}} : (!s, !p, !b, i1) -> ()
      "ws.release"(%p) {{by = "tensor_core"}} : (!p) -> ()
    }}
    "ws.commit"(%done) {{by = "tensor_core"}} : (none) -> ()
    }}
    "ws.release"(%sa) {{by = "tensor_core"}} : (!a) -> ()
    "ws.release"(%sb) {{by = "tensor_core"}} : (!b) -> ()"""
    rows = f"""%n = arith.constant {TURNS} : i32
    %c2 = arith.constant 2 : i32
    scf.for %round = %c0 to %c2 step %c1 : i32 {{
    scf.for %i = %c0 to %n step %c1 : i32 {{
      %s = "ws.wait"(%ss, %c0) : (!ss, i32) -> !s
      %f = "ws.load"(%s) : (!s) -> !full
      "ws.release"(%s) {{by = "threads"}} : (!s) -> ()
      %h = "ws.map"(%f) ({{
      ^bb0(%e: f32, %row: i32, %column: i32):
        %two = arith.addf %e, %e : f32
        %v = arith.truncf %two : f32 to bf16
        "ws.yield"(%v) : (bf16) -> ()
      }}) {{operandSegmentSizes = array<i32: 1>}} : (!full) -> !half
      %p = "ws.acquire"(%ps, %c0) : (!ps, i32) -> !p
      "ws.store"(%h, %p) : (!half, !p) -> ()
      "ws.commit"(%p) {{by = "threads"}} : (!p) -> ()
    }}
    %done = "ws.wait"(%finished, %c0) : (!tokens, i32) -> none
    %o = "ws.at"(%sums, %c0) : (!ws.buffer<!s, 1>, i32) -> !s
    %g2 = "ws.load"(%o) : (!s) -> !full
    "ws.release"(%done) {{by = "threads"}} : (none) -> ()
    "ws.store_global"(%g2, %y, %c0, %c0)
      {{dims = array<i32: 0, 1>, operandSegmentSizes = array<i32: 1, 1, 2>}}
      : (!full, memref<?x?xf32>, i32, i32) -> ()
    }}"""
    return kernel(
        [
            ("a", "in", f"memref<?x{N}xbf16>", ("m", "")),
            ("b", "in", f"memref<?x{N}xbf16>", ("k", "")),
            ("y", "out", "memref<?x?xf32>", ("my", "n")),
        ],
        """  %as = "ws.alloc_ring"() {label_name = "a"} : () -> !as
  %bs = "ws.alloc_ring"() {label_name = "b"} : () -> !bs
  %ss = "ws.alloc_ring"() {known_empty, label_name = "s"} : () -> !ss
  %ps = "ws.alloc_inside"(%ss) {known_empty, label_name = "p"} : (!ss) -> !ps
  %finished = "ws.alloc_ring"() {label_name = "finished"} : () -> !tokens
  %sums = "ws.alloc_buffer"() {label_name = "o"} : () -> !ws.buffer<!s, 1>"""
        + role("load", load, first=4)
        + role("mma", mma, first=5)
        + threads(rows),
        types=f"""!a = !ws.tile<vector<128x{N}xbf16>, "shared">
!b = !ws.tile<vector<{N}x{N}xbf16>, "shared">
!s = !ws.tile<vector<128x{N}xf32>, "tensor">
!p = !ws.tile<vector<128x{N}xbf16>, "tensor">
!half = !ws.frag<vector<128x{N}xbf16>>
!as = !ws.ring<!a, 1, 1>
!bs = !ws.ring<!b, 1, 1>
!ss = !ws.ring<!s, 1, 1>
!ps = !ws.ring<!p, 1, 1>
!tokens = !ws.ring<none, 1, 1>
""",
        columns=N,
    )


@pytest.mark.parametrize("seed", [None, 1, 2])
def test_what_is_made_of_scores_in_their_place(seed: int | None) -> None:
    """The checkers find a fence that is missing, be it of a place or of what a token guards."""
    numbers = np.random.default_rng(0)
    a, b = (numbers.integers(-1, 2, shape).astype(np.float32) for shape in ((128, N), (N, N)))
    y = poison(128, N)
    run(chain(), *(x.astype(ml_dtypes.bfloat16) for x in (a, b)), y, seed=seed)
    assert np.array_equal(y, TURNS * (2 * a @ b.T) @ b)  # small integers: exact


def test_a_shared_place_has_no_empty_barriers() -> None:
    made = Bundle.from_bytes(bundle(chain()))
    named = {run["name"] for run in made.report["barriers"]}
    assert named == {
        *(f"{ring} {side}" for ring in ("a", "b", "finished") for side in ("full", "empty")),
        *("s full", "p full"),
    }
    assert made.ptx.count("mbarrier.init") == len(named)
