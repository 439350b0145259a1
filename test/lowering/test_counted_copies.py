"""Copies that branches and loops decide over: a slot is full when those that were made have landed."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from attn_mlir.errors import VerifyError
from attn_mlir.lowering.stages import ws_to_nvvm
from attn_mlir.validation.ws.kernels import copy_op, kernel, lowered, role, run

BF16 = ml_dtypes.bfloat16
SEEDS = [None, 1, 2]
TURNS = 5
X, W, Y = "memref<?x128xbf16>", "memref<?x64xbf16>", "memref<?x64x128xbf16>"
COMMIT = '"ws.commit"(%slot) {by = "copy_engine"} : (!t) -> ()'


def whole(row: str = "%row") -> str:
    """64 rows of x: 16 KiB."""
    return copy_op("copy_in", "%x", "%slot", f"{row}, %c0", "0, 1", f"{X}, !t")


def front(row: str = "%row") -> str:
    """64 rows of w for columns 0 .. 63: 8 KiB."""
    view = '%front = "ws.view"(%slot) : (!t) -> !front\n      '
    return view + copy_op("copy_in", "%w", "%front", f"{row}, %c0", "0, 1", f"{W}, !front")


def decided(fill: str, stages: int = 1) -> str:
    """Slot after slot is filled as `fill` says, of %kind = kinds[%i], and goes to y[%i]."""

    def each(body: str) -> str:
        return f"""%n = "ws.extent"(%kinds) {{dim = 0 : i64}} : (memref<?xi32>) -> i32
    scf.for %i = %c0 to %n step %c1 : i32 {{
      %row = arith.muli %i, %c64 : i32
      {body}
    }}"""

    load = f"""%kind = "ws.element"(%kinds, %i) {{operandSegmentSizes = array<i32: 1, 1>}}
        : (memref<?xi32>, i32) -> i32
      %some = arith.cmpi sgt, %kind, %c0 : i32
      %slot = "ws.acquire"(%ring, %c0) : (!ring, i32) -> !t
      {fill}"""
    store = f"""%slot = "ws.wait"(%ring, %c0) : (!ring, i32) -> !t
      {copy_op("copy_out", "%slot", "%y", "%i, %c0, %c0", "1, 2", f"!t, {Y}")}
      "ws.release"(%slot) {{by = "copy_engine"}} : (!t) -> ()"""
    return kernel(
        [
            ("x", "in", X, ("m", "")),
            ("w", "in", W, ("mw", "")),
            ("kinds", "in", "memref<?xi32>", ("n",)),
            ("y", "out", Y, ("ny", "", "")),
        ],
        '  %ring = "ws.alloc_ring"() {label_name = "r"} : () -> !ring'
        + role("load", each(load), first=0)
        + role("store", each(store), first=1),
        types='!t = !ws.tile<vector<64x128xbf16>, "shared">\n'
        '!front = !ws.tile<vector<64x64xbf16>, "shared">\n'
        f"!ring = !ws.ring<!t, {stages}, 1>\n",
    )


BRANCHES = {
    "a copy in each branch": f"scf.if %some {{ {whole()} }} else {{ {front()} }}\n{COMMIT}",
    "a copy and a commit in each branch": (
        f"scf.if %some {{ {whole()} {COMMIT} }} else {{ {front()} {COMMIT} }}"
    ),
    "a copy beside a branch": f"scf.if %some {{ {whole()} }}\nscf.if %none {{ {front()} }}\n{COMMIT}",
    "as often as a number says": (
        f"scf.for %j = %c0 to %kind step %c1 : i32 {{ {whole()} }}\n"
        f"scf.if %none {{ {front()} }}\n{COMMIT}"
    ),
}


@pytest.mark.parametrize(("target", "seed"), [("sm_100a", None), ("sm_100a", 1), ("sm_90a", 2)])
@pytest.mark.parametrize("fill", list(BRANCHES))
def test_branches_copy_different_numbers_of_bytes(fill: str, target: str, seed: int | None) -> None:
    negation = "%none = arith.cmpi sle, %kind, %c0 : i32\n      "
    text = decided(negation + BRANCHES[fill])
    kinds = np.array([1, 0, 1, 1, 0], np.int32)  # slots begin whole, as nothing is in them
    numbers = np.random.default_rng(0)
    x = numbers.standard_normal((64 * TURNS, 128)).astype(BF16)
    w = numbers.standard_normal((64 * TURNS, 64)).astype(BF16)
    y = np.full((TURNS, 64, 128), np.nan, BF16)
    run(text, x, w, kinds, y, seed=seed, target=target)
    wanted = x.reshape(TURNS, 64, 128).copy()
    for i in np.flatnonzero(kinds == 0):
        wanted[i] = wanted[i - 1]
        wanted[i, :, :64] = w[64 * i : 64 * (i + 1)]
    assert (y == wanted).all()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_path_that_copies_nothing_hands_over_what_is_there(seed: int | None) -> None:
    """The ring proof needs a commit on each path, and no copy."""
    text = decided(f"scf.if %some {{ {whole()} }}\n{COMMIT}")
    kinds = np.array([1, 0, 0, 1, 0], np.int32)
    x = np.random.default_rng(0).standard_normal((64 * TURNS, 128)).astype(BF16)
    y = np.full((TURNS, 64, 128), np.nan, BF16)
    run(text, x, np.zeros((64, 64), BF16), kinds, y, seed=seed)
    given = x.reshape(TURNS, 64, 128)
    assert (y == given[[0, 0, 0, 3, 3]]).all()


@pytest.mark.parametrize(
    ("fill", "message"),
    [
        (f"scf.if %some {{ {whole()} {COMMIT} }}", "depends on data"),
        (f"{COMMIT}\n{whole()}", "'ws.copy_in' op expects a slot that has not been committed"),
        (
            f"scf.if %some {{ {whole()} }}\n{COMMIT}\nscf.if %some {{ {whole()} }}",
            "expects a slot that has not been committed",
        ),
        (
            whole() + COMMIT.replace("copy_engine", "threads"),
            "expects a slot that is committed by copy_engine, got threads",
        ),
    ],
)
def test_paths_that_do_not_hand_over_what_they_copy(fill: str, message: str) -> None:
    with pytest.raises(VerifyError, match=message):
        lowered(decided(fill), ws_to_nvvm("sm_100a"))


def test_copies_beside_the_acquire_are_counted_once() -> None:
    """One arrival says the bytes of both; where a branch decides, each copy says its own."""
    beside = str(lowered(decided(f"{whole()}\n{front()}\n{COMMIT}"), ws_to_nvvm("sm_100a")))
    decides = str(
        lowered(decided(f"scf.if %some {{ {whole()} }}\n{COMMIT}"), ws_to_nvvm("sm_100a"))
    )
    assert beside.count("mbarrier.arrive.expect_tx") == 1
    assert "nvvm.mbarrier.expect_tx" not in beside
    assert decides.count("nvvm.mbarrier.expect_tx") == 1
    assert "mbarrier.arrive.expect_tx" not in decides
