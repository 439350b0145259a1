"""Block masks and functions of `mods` are copied and pickled with their arrays."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import attn_mlir as am
from attn_mlir import mods
from attn_mlir.block_masks.blocks import BlockMask
from attn_mlir.dialect.attn.block import Block
from attn_mlir.trace import trace

RANDOM = np.random.default_rng(3)
TABLE = RANDOM.standard_normal((2, 9)).astype(np.float32)
IDS = RANDOM.integers(0, 3, (2, 8)).astype(np.int32)
LENGTHS = np.array([5, 8], np.int32)
SQUARE = RANDOM.random((4, 4)) < 0.5
TABLES: dict[str, Callable[[], Any]] = {  # every constructor of `mods`
    "softcap": lambda: mods.softcap(20.0),
    "softcap, large": lambda: mods.softcap(1e5),
    "alibi": lambda: mods.alibi(2, offset=LENGTHS),
    "relative_bias": lambda: mods.relative_bias(TABLE),
    "relative_logits": lambda: mods.relative_logits(np.zeros((2, 8, 2, 3), np.float32)),
    "bias": lambda: mods.bias(np.zeros((2, 1, 8), np.float32)),
    "visible_where": lambda: mods.visible_where(SQUARE),
    "document": lambda: mods.document(IDS),
    "key_padding": lambda: mods.key_padding(LENGTHS),
    "tree": lambda: mods.tree(SQUARE, LENGTHS),
    "causal_from_top": lambda: mods.causal_from_top,
    "and_masks": lambda: mods.and_masks(mods.document(IDS), mods.causal_from_top),
    "or_masks": lambda: mods.or_masks(mods.key_padding(LENGTHS), mods.document(IDS)),
    "not_mask": lambda: mods.not_mask(mods.tree(SQUARE, 4)),
    "compose": lambda: mods.compose(mods.softcap(3.0), mods.relative_bias(TABLE)),
}  # fmt: skip
WAYS: dict[str, Callable[[Any], Any]] = {
    "pickle": lambda value: pickle.loads(pickle.dumps(value)),
    "deepcopy": copy.deepcopy,
    "copy": copy.copy,
}


def traced(mod: Any) -> tuple[Any, dict[str, Any]]:
    takes_score = "score" in inspect.signature(mod).parameters
    return trace(mod) if takes_score else trace(None, mod)


def test_every_constructor_is_here() -> None:
    public = {
        name for name, value in vars(mods).items()
        if inspect.isfunction(value) and value.__module__ == mods.__name__ and name[0] != "_"
    }  # fmt: skip
    assert public - {"check_extents", "extents_of", "alibi_slopes"} == {
        name.partition(",")[0] for name in TABLES
    }


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", TABLES)
def test_functions_of_mods(name: str, way: str) -> None:
    """The copy is traced to the same program, of arrays of its own unless it is a shallow copy."""
    mod = TABLES[name]()
    again = WAYS[way](mod)
    program, arrays = traced(mod)
    copied, own = traced(again)
    assert copied == program
    assert list(own) == list(arrays)
    for key, array in arrays.items():
        np.testing.assert_array_equal(own[key], array)
        assert way == "copy" or not np.shares_memory(own[key], array)
    assert mods.extents_of(again) == mods.extents_of(mod)
    with_softcap = mods.compose if name == "compose" else None
    if with_softcap is not None:  # what is combined is flattened after a copy as well
        joined = with_softcap(again, mods.softcap(2.0))
        assert len(joined.keywords["mods"]) == 3


@pytest.mark.parametrize("way", ["pickle", "deepcopy"])
def test_block_masks(way: str) -> None:
    """With what they are made of; lists that were made for kernels stay behind."""
    blocks = am.block_mask(mods.document(IDS), 2, None, 8, 8, block_size=4, mask=am.causal())
    block = Block(4, 1, 4)
    before = blocks.lists(block)
    again = WAYS[way](blocks)
    assert isinstance(again, BlockMask)
    assert not vars(again)["_made"] and vars(blocks)["_made"]
    assert (again.shape, again.block_size, again.mask) == (blocks.shape, (4, 4), am.causal())
    for made, was in zip(again.lists(block), before, strict=True):
        np.testing.assert_array_equal(made, was)
    assert traced(again.mask_mod)[0] == traced(blocks.mask_mod)[0]
    mod = WAYS[way](blocks.as_mask_mod())
    assert traced(mod)[0] == traced(blocks.as_mask_mod())[0]


@pytest.mark.parametrize("mask", [am.full(), am.causal() & ~am.chunked(4), am.prefix_lm(3)])
def test_masks(mask: Any) -> None:
    for way in WAYS.values():
        assert way(mask) == mask


def test_what_torch_saves(tmp_path: Any) -> None:
    torch = pytest.importorskip("torch")
    mod = mods.document(torch.from_numpy(IDS))
    blocks = am.block_mask(mod, 2, None, 8, 8, block_size=4)
    torch.save({"mod": mod, "blocks": blocks}, tmp_path / "saved.pt")
    found = torch.load(tmp_path / "saved.pt", weights_only=False)
    np.testing.assert_array_equal(found["blocks"].kinds, blocks.kinds)
    assert torch.equal(traced(found["mod"])[1]["ids_q"], torch.from_numpy(IDS))
