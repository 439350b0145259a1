"""Recipes of tensor maps: their numbers, the boxes that they bring, and operands that they refuse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attn_mlir.errors import SpecError
from attn_mlir.runtime.call.binding import bind, parameters
from attn_mlir.runtime.call.tensormap import MapDescription, describe, encode
from attn_mlir.runtime.call.tensors import view
from attn_mlir.runtime.file.fields import Reader
from attn_mlir.runtime.file.recipes import MapDim, TensorMapParam, read_tensor_map
from attn_mlir.validation.recipes.table import INSTANCES, PAGE, PAGES, Instance

NAMES = list(INSTANCES)


def target_of(instance: Instance) -> str:
    """A chip that has its copies."""
    return "sm_100a" if instance.gathers else "sm_90a"


def described(name: str, x: Any) -> MapDescription:
    """The tensor map of a call with `x` at 2^32."""
    instance, found = INSTANCES[name], list[MapDescription]()

    def note(description: MapDescription) -> bytes:
        found.append(description)
        return encode(description)

    _, where, y = instance.call()
    manifest = instance.kernel(target_of(instance)).bundle.manifest
    addresses: dict[str, int] = dict.fromkeys(("x", "where", "y"), 1 << 32)
    parameters(bind(manifest, (x, where, y), {}), addresses, note)
    return found[0]


@pytest.mark.parametrize("name", NAMES)
def test_the_numbers_of_a_map(name: str) -> None:
    instance = INSTANCES[name]
    found = described(name, instance.operand())
    assert found.extents == instance.numbers.dims
    assert found.strides_bytes == instance.numbers.strides_bytes
    assert found.address == (1 << 32) + instance.numbers.base
    assert list(found.box) == instance.recipe["box"]
    assert found.l2 == instance.recipe.get("l2", "128B")


@pytest.mark.parametrize("name", NAMES)
def test_boxes_arrive(name: str) -> None:
    instance = INSTANCES[name]
    x, where, y = instance.call()
    instance.kernel(target_of(instance))(x, where, y, device="emulator")
    instance.check(x, y)


def test_a_pool_of_one_page_or_none() -> None:
    one = described("folded", np.zeros((1, PAGE, 2, 128), np.float16))
    assert one.extents == (64, PAGE, 2, 2)
    none = described("folded", np.zeros((0, PAGE, 2, 128), np.float16))
    assert none.extents == (64, 1, 2, 2)


def _strided(name: str, *strides: int) -> Any:
    """An operand of a name's shape with other strides, in elements."""
    x = INSTANCES[name].operand()
    memory = np.zeros(sum((n - 1) * s for n, s in zip(x.shape, strides, strict=True)) + 1, x.dtype)
    return np.lib.stride_tricks.as_strided(memory, x.shape, [s * x.itemsize for s in strides])


@pytest.mark.parametrize(
    ("name", "strides", "words"),
    [
        ("plain", (40 * 192 + 8, 192, 96, 1), r"15376 and 384 bytes along the axes 0 and 1"),
        ("folded by 8 rows", (20 * 256, 256, 128, 1), "16 steps along axis 1 and 20 to the next"),
        ("rope", (16 * 664, 664, 664, 1), "stride of 664 elements along axis 1: .* multiple of 16"),
        ("scales", (42, 1), "stride of 42 elements along axis 0: TMA needs .* got 168 bytes"),
        ("gather4", (16 * 580, 580, 1), "stride of 580 elements along axis 1"),
    ],
)
def test_operands_that_no_map_describes(name: str, strides: tuple[int, ...], words: str) -> None:
    with pytest.raises(SpecError, match=rf"^x has .*{words}"):
        described(name, _strided(name, *strides))


def test_more_rows_than_coordinates() -> None:
    """Views whose memory nobody looks at."""
    x = view(INSTANCES["gather4"].operand(), "x")
    pitch = (2**31 - PAGE) // (PAGES - 1)
    most = x.reshaped(x.shape, (pitch * 576 - 576, 576, 1))
    assert described("gather4", most).extents[1] == (PAGES - 1) * (pitch - 1) + PAGE
    with pytest.raises(SpecError, match=r"^x has 21474836\d\d steps along the axes 0 and 1"):
        described("gather4", x.reshaped(x.shape, (pitch * 576, 576, 1)))


def test_rows_of_a_part_of_an_element() -> None:
    recipe = TensorMapParam("x", (2, 1), "none", (MapDim(2, 1, 1), MapDim("n", 0, 1)), dtype="i64")
    seen = view(np.zeros((3, 32), np.uint8)[:, :20], "x")
    with pytest.raises(
        SpecError, match="^x has rows of 20 bytes, its tensor map takes .* of 8: pad"
    ):
        describe(recipe, seen, {"n": 3}, 0)


def test_a_map_of_a_part_says_what_it_leaves_out() -> None:
    """A recipe that ends before its tensor, or behind it, is damaged."""
    seen = view(np.zeros((3, 656), np.uint8), "x")
    for first, rest in ((264, 1), (256, 0), (0, 0)):
        dims = (MapDim(64, 1, 1, first, rest), MapDim("n", 0, 1))
        recipe = TensorMapParam("x", (64, 1), "128B", dims, dtype="bf16")
        with pytest.raises(
            SpecError, match=r"ends with element \d+ along axis 1, the tensor with 327"
        ):
            describe(recipe, seen, {"n": 3}, 0)


def _from(recipe: dict[str, Any], name: str) -> MapDescription:
    """What a recipe makes of an operand at 2^32."""
    instance = INSTANCES[name]
    seen = view(instance.operand(), "x")
    named = [extent for extent in instance.shape if isinstance(extent, str)]
    axes = len(instance.shape)
    param = read_tensor_map(Reader(recipe, "params[0]"), "x", instance.dtype, axes, axes - 1, named)
    sizes = dict(
        zip(
            named,
            [n for n, extent in zip(seen.shape, instance.shape, strict=True) if extent in named],
            strict=True,
        )
    )
    return describe(param, seen, sizes, 1 << 32)


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_with_one_number_changed_is_refused(name: str) -> None:
    """Or the map is the same, but for steps along a dimension of one element."""
    whole = json.dumps(INSTANCES[name].recipe)
    right = _from(json.loads(whole), name)
    for number in range(len(right.extents)):
        for field in ("extent", "axis", "step", "first", "rest"):
            for change in (-1, 1, 8):
                recipe = json.loads(whole)
                dim = recipe["dims"][number]
                old = dim.get(field, 0)
                dim[field] = ["add", old, change] if isinstance(old, str | list) else old + change
                try:
                    found = _from(recipe, name)
                except SpecError:
                    continue
                strides = zip(
                    right.extents[1:], right.strides_bytes, found.strides_bytes, strict=True
                )
                assert (found.extents, found.address) == (right.extents, right.address), dim
                assert all(extent == 1 or old == new for extent, old, new in strides), dim


def test_the_page_has_every_recipe() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "bundle.md").read_text()
    assert [name for name in INSTANCES if f"\n| {name} | " not in page] == []
