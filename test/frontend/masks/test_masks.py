"""The front end's masks: the functions that make them, and their text on a command line."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import attn_mlir as am
from attn_mlir import masks
from attn_mlir.dialect.attn.masks import KINDS, MASKS, PYTHON_NAMES, public
from attn_mlir.errors import SpecError
from attn_mlir.masks import Mask, causal, chunked, full, prefix_lm, sliding_window
from attn_mlir.masks import __all__ as PUBLIC
from attn_mlir.masks.text import parse_mask


def test_masks_are_those_of_the_dialect() -> None:
    from attn_mlir.dialect.attn import masks

    assert am.Mask is masks.Mask
    assert am.full() == masks.NullMask() and am.causal() == masks.CausalMask()
    assert am.sliding_window(127) == masks.WindowMask(127, 0)
    assert am.sliding_window(0, None) == masks.WindowMask(0, -1)
    assert am.chunked(512) == masks.ChunkedMask(512)
    assert am.prefix_lm(64) == masks.PrefixMask(64)


def test_masks_that_are_others() -> None:
    assert sliding_window(None, None) == full()
    assert sliding_window(None, 0) == causal() == prefix_lm(0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: sliding_window(-1), "left of a sliding window must be an integer of at least 0"),
        (lambda: sliding_window(0, -1), "right of a sliding window must be"),
        (lambda: sliding_window(1.0), "got 1.0"),  # pyright: ignore
        (lambda: sliding_window(2**31), "window left must be an integer from -1 to 1073741824"),
        (lambda: chunked(0), "chunk size must be an integer from 1"),
        (lambda: prefix_lm(-1), "prefix length must be an integer from 0"),
        (lambda: prefix_lm(False), "got False"),
    ],
)
def test_bad_parameters_are_refused(make: Any, message: str) -> None:
    with pytest.raises(SpecError, match=re.escape(message)):
        make()


@pytest.mark.parametrize(
    ("text", "mask"),
    [
        ("full", full()),
        ("null", full()),
        (" causal ", causal()),
        ("window:127", sliding_window(127, 0)),
        ("window:127,0", sliding_window(127, 0)),
        ("window:inf,5", sliding_window(None, 5)),
        ("prefix:64", prefix_lm(64)),
        ("sliding_window:127&prefix_lm:64", sliding_window(127) & prefix_lm(64)),
        ("causal&chunked:512", causal() & chunked(512)),
        ("causal & chunked:512 | prefix:3", (causal() & chunked(512)) | prefix_lm(3)),
        ("causal&(chunked:512|prefix:3)", causal() & (chunked(512) | prefix_lm(3))),
        ("~causal|~~window:1,1", ~causal() | sliding_window(1, 1)),
        ("~(causal&chunked:4)", ~(causal() & chunked(4))),
    ],
)
def test_text(text: str, mask: Mask) -> None:
    assert parse_mask(text) == mask
    assert parse_mask(str(mask)) == mask


def test_names_of_masks_elsewhere_are_told() -> None:
    constructors = set(PUBLIC) - {"Mask", "PYTHON_NAMES"}
    keywords = {mask.keyword for mask in MASKS}
    assert {PYTHON_NAMES.get(name, name) for name in constructors} <= keywords
    for ours, theirs in PYTHON_NAMES.items():
        assert ours in constructors
        with pytest.raises(AttributeError, match=f"no attribute '{theirs}': am.{ours}$"):
            getattr(am, theirs)
    with pytest.raises(AttributeError, match="no attribute 'mask'$"):
        am.mask  # noqa: B018
    with pytest.raises(SpecError, match=r"None for no limit \(-1 in #attn.window, inf on the comm"):
        sliding_window(-1)


def test_the_table_of_masks_says_all_of_them() -> None:
    """A mask's text, its function and its row of the page follow from its entry, or are held to it."""
    page = (Path(__file__).resolve().parents[3] / "docs" / "masks.md").read_text()
    for kind in public():
        assert kind.make is not None
        name = kind.make.__name__
        assert getattr(am, name) is kind.make is getattr(masks, name)
        assert parse_mask(str(kind.example)) == kind.example
        assert f"| `am.{name}(" in page and f"`#attn.{kind.mask.keyword}" in page
    assert {kind.mask for kind in KINDS.values()} == set(MASKS)
    assert set(PUBLIC) - {"Mask", "PYTHON_NAMES"} == {kind.make.__name__ for kind in public()}  # pyright: ignore


@pytest.mark.parametrize(
    "text",
    [
        *("", "diagonal", "window", "window:", "window:1,2,3", "window:1,,2", "window:-1,0"),
        *("window:1.5", "chunked", "chunked:5x", "chunked:inf", "causal:1", "causal!", "~"),
        *("causal&", "&causal", "(causal", "causal)", "causal causal"),
    ],
)
def test_text_that_is_no_mask(text: str) -> None:
    with pytest.raises(SpecError) as refused:
        parse_mask(text)
    message = str(refused.value)
    assert message.startswith(f"mask {text!r} has no kernel: supported") or "got None" in message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("~" * 3000 + "full", "has no kernel|at most 64"),
        ("(" * 3000 + "full" + ")" * 3000, "has no kernel|at most 64"),
        ("|".join(f"chunked:{size}" for size in range(2, 999)), "has no kernel|at most 64"),
        ("chunked:" + "9" * 5000, "has no kernel"),
        (None, "mask must be text, got None"),
        (b"full", "mask must be text, got b'full'"),
    ],
)
def test_texts_that_are_none(text: Any, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        parse_mask(text)


def test_numbers_of_the_most_digits() -> None:
    assert parse_mask("window:1073741824") == sliding_window(1 << 30)
