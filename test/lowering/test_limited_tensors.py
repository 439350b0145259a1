"""`ws.limit`: copies that stop where a sequence ends, although its tensor goes on."""

from __future__ import annotations

import pytest

from attn_mlir.validation.ws.checks import check, copy, manifest, refused
from attn_mlir.validation.ws.kernels import run
from attn_mlir.validation.ws.pages import check_pages, copy_pages, pages
from attn_mlir.validation.ws.sequences import check_sequences, copy_sequences, sequences


@pytest.mark.parametrize("seed", [None, 1])
def test_copies_touch_no_row_of_a_neighbour(seed: int | None) -> None:
    call = sequences()
    run(copy_sequences(), *call.values(), seed=seed, most=128)
    check_sequences(**call)


def test_one_of_two_sequences_beyond_the_bound_is_not_visited() -> None:
    call = sequences()
    run(copy_sequences(), *call.values(), most=64)
    assert (call["tiles"][:, 1] == 7.0).all() and (call["tiles"][2, 0] != 7.0).any()


def test_the_recipe_of_a_limited_tensor() -> None:
    found = manifest(copy_sequences())
    assert found["grid"] == [["ceildiv", "most", 64], ["sub", "ends", 1], 1]
    assert {"name": "most", "dtype": "i32"} in found["scalars"]
    load = found["params"][0]
    assert load["box"] == [64, 64, 2, 1]
    assert load["dims"] == [
        {"extent": 64, "axis": 1, "step": 1},
        {"extent": 64, "axis": 0, "step": 1, "first": -64},
        {"extent": 2, "axis": 1, "step": 64},
        {"extent": ["add", "total", 1], "axis": 0, "step": 1},
    ]


def test_what_can_be_limited() -> None:
    def limited(dim: int, kind: str) -> str:
        text = f'%part = "ws.limit"(%x, %c1) {{dim = {dim} : i64}} : ({kind}, i32) -> {kind}\n    '
        return copy(before=text, tensor=kind).replace("(%x, %s", "(%part, %s")

    check(limited(0, "memref<?x64xbf16>"))
    expects = "'ws.copy_in' op expects a limit of dim 0, got one of 1"
    refused(limited(1, "memref<?x64xbf16>"), expects)


@pytest.mark.parametrize("heads_first", [False, True])
@pytest.mark.parametrize("seed", [None, 1])
def test_pages_outside_a_pool_are_zeros(seed: int | None, heads_first: bool) -> None:
    call = pages(heads_first=heads_first)
    run(copy_pages(), *call.values(), seed=seed)
    check_pages(**call)
