"""What functions capture: arrays are found in whatever holds them, and nothing that is captured can be written."""

from __future__ import annotations

import argparse
import collections
import dataclasses
import functools
import re
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest

from attn_mlir import mods
from attn_mlir import trace as tr
from attn_mlir.arrays import host_arrays
from attn_mlir.dialect.attn.programs.evaluation import evaluate
from attn_mlir.errors import SpecError
from attn_mlir.masks import chunked, sliding_window

Array = npt.NDArray[Any]

SIZES = (2, 3, 5, 7)  # batch, heads, sq, sk
SCORES = np.random.default_rng(0).standard_normal(SIZES)
AT = [np.arange(n).reshape([-1 if a == i else 1 for a in range(4)]) for i, n in enumerate(SIZES)]
TABLE = np.random.default_rng(1).standard_normal((3, 16)).astype(np.float32)
ROW = TABLE[0].copy()


def scored(mod: Any) -> Array:
    """The modified scores, by the program that tracing makes."""
    program, arrays = tr.trace(mod)
    assert program is not None
    at = dict(zip(("score", "batch", "head", "q", "k"), (SCORES, *AT), strict=True))
    return evaluate(program, at, host_arrays(arrays)).score


def check(mod: Callable[..., Any]) -> None:
    """What a function computes by its program is what it computes on arrays."""
    np.testing.assert_allclose(scored(mod), mod(SCORES, *AT), rtol=1e-5)


class Pair(NamedTuple):
    table: Any
    scale: float

    @property
    def doubled(self) -> float:
        return 2 * self.scale


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    table: Any
    scale: float = 0.5


class Config:
    TABLE = TABLE
    SCALE = 3.0


class Attention:
    """A model's layer: its score modifier is a closure over `self`."""

    def __init__(self) -> None:
        self.bias = TABLE
        self.tables = [TABLE[0], {"row": TABLE[1]}]
        self.config = argparse.Namespace(scale=0.25, row=TABLE[2])
        self.inner = Frozen(TABLE * 2)

    @property
    def halved(self) -> Array:
        return self.bias / 2

    def helper(self, x: Any, at: Any) -> Any:
        return x + self.bias[0, at] * self.config.scale

    def __call__(self, at: Any) -> Any:
        return self.bias[1, at]

    def forward(self) -> Callable[..., Any]:
        def mod(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
            x = s + self.bias[h, q] * self.config.scale + self.config.row[k]
            x = self.helper(x, q) + self.halved[h, k] + self(k)
            return x + self.tables[0][q] + self.tables[1]["row"][k] + self.inner.table[h, q]

        return mod


PAIR = Pair(TABLE, 2.0)
SPACE = types.SimpleNamespace(table=TABLE, inner=types.SimpleNamespace(row=ROW))
ORDERED = collections.OrderedDict(x=TABLE, y=[ROW, {"z": TABLE[1]}])
DEFAULTS = collections.defaultdict(lambda: TABLE, {"a": TABLE})
MODULE = types.ModuleType("tables")
MODULE.bias = TABLE  # pyright: ignore[reportAttributeAccessIssue]
FROZEN = Frozen(TABLE)
QUEUE = collections.deque([ROW, TABLE[1]])
CACHED = functools.lru_cache(lambda x: x * 2)
HOLDERS: dict[str, Callable[..., Any]] = {
    "namespace": lambda s, b, h, q, k: s + SPACE.table[h, q] + SPACE.inner.row[k],
    "named tuple": lambda s, b, h, q, k: s + PAIR.table[h, q] * PAIR.scale + PAIR[0][h, k],
    "property of a named tuple": lambda s, b, h, q, k: s * PAIR.doubled + PAIR.table[0, q],
    "ordered dictionary": lambda s, b, h, q, k: s + ORDERED["x"][h, q] + ORDERED["y"][0][k],
    "nested": lambda s, b, h, q, k: s + ORDERED["y"][1]["z"][k] + ORDERED.get("x")[h, q],
    "loop over a dictionary": lambda s, b, h, q, k: s + sum(v[h, q] for v in DEFAULTS.values()),
    "length and membership": lambda s, b, h, q, k: s * len(ORDERED) + ("x" in ORDERED),
    "dataclass": lambda s, b, h, q, k: s + FROZEN.table[h, q] * FROZEN.scale,
    "class": lambda s, b, h, q, k: s + Config.TABLE[h, q] * Config.SCALE,
    "module": lambda s, b, h, q, k: s + MODULE.bias[h, q],
    "deque": lambda s, b, h, q, k: s + QUEUE[1][q] + sum(row[k] for row in QUEUE),
    "cached helper": lambda s, b, h, q, k: s + CACHED(q),
    "rest of an array": lambda s, b, h, q, k: s + TABLE[h][q] + TABLE[:, 2][h] + TABLE[..., 3][h],
    "slices": lambda s, b, h, q, k: s + TABLE[h, 2:9][q] + TABLE[1:, ::3][0, q] + TABLE[h, ::-1][k],
    "new axis": lambda s, b, h, q, k: s + TABLE[None, h][0, q] + TABLE[h, None, :][0, q],
    "shape": lambda s, b, h, q, k: s + TABLE.shape[1] + len(TABLE) * TABLE.ndim + TABLE.size,
}  # fmt: skip


@pytest.mark.parametrize("name", HOLDERS)
def test_arrays_are_found_in(name: str) -> None:
    mod = HOLDERS[name]
    truth = [mod(SCORES[at], *at) for at in np.ndindex(SIZES)]  # element by element, as it is meant
    np.testing.assert_allclose(scored(mod).ravel(), np.array(truth), rtol=1e-5)


def test_self_of_a_layer() -> None:
    layer = Attention()
    check(layer.forward())
    _, arrays = tr.trace(layer.forward())
    assert list(arrays) == ["bias", "row", "halved", "tables_0", "tables_1_row", "table"]


def test_arrays_of_one_element_are_numbers() -> None:
    one, number, unused = np.full((1, 1), 3, np.float32), np.array(2.0), np.array(1 + 2j)
    check(lambda s, b, h, q, k: s * one[0, 0] + number)
    made = scored(
        lambda s, b, h, q, k: (one - s * np.exp(number)).tanh() + (0 if unused is None else 1)
    )
    np.testing.assert_allclose(made, np.tanh(3 - SCORES * np.exp(2.0)) + 1, rtol=1e-6)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16, np.float64])
def test_small_integers_and_doubles(dtype: Any) -> None:
    low = np.iinfo(dtype).min if np.dtype(dtype).kind in "iu" else -1e300
    array = np.array([low, 1, 2, 3, 4], dtype)
    check(lambda s, b, h, q, k: s + array[q])


def test_a_slice_keeps_indices_within_itself() -> None:
    part = TABLE[:, 3:6]
    made = scored(lambda s, b, h, q, k: s + TABLE[h, 3:6][k])
    np.testing.assert_array_equal(made, SCORES + part[AT[1], np.clip(AT[3], 0, 2)])
    made = scored(lambda s, b, h, q, k: s + TABLE[h, 3:6][k - 3] + TABLE[1:, 3:6][-1][-2])
    at = np.where(AT[3] < 3, AT[3], np.minimum(AT[3] - 3, 2))
    np.testing.assert_allclose(made, SCORES + part[AT[1], at] + part[2, 1])


class Counter:
    def __init__(self) -> None:
        self.count = 0
        self.seen: list[Any] = []

    def mod(self, s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        self.count += 1
        return s

    def listing(self, s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        self.seen.append(q)
        return s


def local_counter() -> Callable[..., Any]:
    count = 0

    def mod(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        nonlocal count
        count += 1
        return s

    return mod


def global_counter(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    global calls
    calls = calls + 1
    return s


calls = 0
SEEN: list[Any] = []
MEMO: dict[str, Any] = {}
NAMES: set[str] = set()


def writing(s: Any, table: Any, value: Any) -> Any:
    table[0] = value
    return s


REFUSED: dict[str, tuple[Any, str]] = {
    "list": (lambda s, b, h, q, k: (SEEN.append(q), s)[1], "calls SEEN.append()"),
    "dictionary": (lambda s, b, h, q, k: writing(s, MEMO, q), "writes into MEMO"),
    "default": (lambda s, b, h, q, k: DEFAULTS.setdefault("b", s), "calls DEFAULTS.setdefault()"),
    "set": (lambda s, b, h, q, k: (NAMES.add("q"), s)[1], "calls NAMES.add()"),
    "ordered": (lambda s, b, h, q, k: writing(s, ORDERED, q), "writes into ORDERED"),
    "array": (lambda s, b, h, q, k: writing(s, TABLE, q), "writes into TABLE"),
    "attribute": (Counter().mod, "sets self.count"),
    "list in an object": (Counter().listing, "calls seen.append()"),
    "variable around it": (local_counter(), "mod assigns to count, a variable outside itself"),
    "global": (global_counter, "global_counter assigns to calls, a variable outside itself"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_writing_is_refused(name: str) -> None:
    function, what = REFUSED[name]
    with pytest.raises(SpecError, match=f"{re.escape(__file__)}:[0-9]+: .*{re.escape(what)}"):
        tr.trace(function)
    assert not SEEN and not MEMO and not NAMES and calls == 0 and "b" not in DEFAULTS


COMPLEX = np.ones(3, np.complex64)
NO_NUMBERS: dict[str, tuple[Any, str]] = {
    "dtype": (lambda s, b, h, q, k: s + COMPLEX[q], "an array that no kernel reads: COMPLEX has"),
    "key": (lambda s, b, h, q, k: s + {0: 1.0, 1: 2.0}[h], "looks a traced value up in a dictionary"),
    "slice of a traced value": (lambda s, b, h, q, k: s + TABLE[h, :q][k], "the bounds of a slice"),
    "empty slice": (lambda s, b, h, q, k: s + TABLE[h, 20:][k], "nothing of 16 is left"),
    "two dots": (lambda s, b, h, q, k: s + TABLE[..., 0, ...], "more than one ..."),
}  # fmt: skip


@pytest.mark.parametrize("name", NO_NUMBERS)
def test_what_cannot_be_read_is_refused(name: str) -> None:
    function, what = NO_NUMBERS[name]
    with pytest.raises(SpecError, match=re.escape(what)):
        tr.trace(function)


def test_long_chains() -> None:
    many: list[Any] = [lambda b, h, q, k, i=i: q >= k - i for i in range(400)]
    program, _ = tr.trace(None, functools.reduce(mods.and_masks, many))
    assert program is not None and len(program.keeps) == 1
    program, _ = tr.trace(functools.reduce(mods.compose, [mods.softcap(9.0)] * 400))
    assert program is not None and len(program.nodes) > 400

    def nested(mod: Any) -> Any:
        return lambda b, h, q, k: mod(b, h, q, k) & (q > k)

    with pytest.raises(SpecError, match="functions in functions too deep to be traced"):
        tr.trace(None, functools.reduce(lambda mod, _: nested(mod), range(5000), many[0]))


def test_masks_of_many_parts() -> None:
    def joined(count: int) -> Any:
        parts = [sliding_window(i + 1) for i in range(count - 1)]
        return functools.reduce(lambda a, b: a | b, parts, ~chunked(9))

    assert str(joined(64))
    with pytest.raises(SpecError, match=r"a mask of 65 parts has no kernel: at most 64"):
        joined(400)


def test_modules_of_torch() -> None:
    torch: Any = pytest.importorskip("torch")

    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bias = torch.nn.Parameter(torch.from_numpy(TABLE.copy()))
            self.emb = torch.nn.Embedding(16, 3)
            self.gains = torch.nn.ParameterList([torch.nn.Parameter(torch.tensor([2.0]))])
            self.register_buffer("buf", torch.from_numpy(ROW.copy()))

        def forward(self) -> Any:
            def mod(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
                x = s + self.bias[h, ...][q] + self.buf[k] + self.emb.weight[q, h] * self.gains[0]
                return x + self.emb(k)[..., h] + torch.nn.functional.embedding(q, self.bias.T)[h]

            return mod

    layer = Layer()
    bias = layer.bias
    at = [torch.from_numpy(axis + np.zeros(SIZES, int)) for axis in AT]
    _, h, q, k = at
    truth = torch.from_numpy(SCORES) + bias[h, q] + layer.buf[k] + layer.emb.weight[q, h] * 2
    truth = (truth + layer.emb.weight[k, h] + bias[h, q]).detach().numpy()

    def plain(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return s + bias[h, q]

    with torch.no_grad():
        np.testing.assert_allclose(scored(layer.forward()), truth, rtol=1e-6)
        for mod in (plain, lambda s, b, h, q, k: s + bias[h][q]):
            np.testing.assert_allclose(scored(mod), SCORES + bias.numpy()[AT[1], AT[2]], rtol=1e-6)
    with torch.inference_mode():
        assert scored(layer.forward()).shape == SIZES
    with pytest.raises(SpecError, match=r"bias requires a gradient.*call under torch.no_grad"):
        tr.trace(lambda s, b, h, q, k: s + bias[h, q])


def test_a_module_of_torch_as_a_modifier() -> None:
    torch: Any = pytest.importorskip("torch")

    class Biased(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Parameter(torch.from_numpy(TABLE.copy()))

        def forward(self, s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
            return s + self.table[h, q]

    with torch.no_grad():
        made = scored(Biased())
    np.testing.assert_allclose(made, SCORES + TABLE[AT[1], AT[2]], rtol=1e-6)
