"""Tracing: what a function computes on numbers is what its program computes."""

from __future__ import annotations

import functools
import json
import operator
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attn_mlir import trace as tr
from attn_mlir.arrays import host_arrays
from attn_mlir.dialect.attn.programs.evaluation import evaluate
from attn_mlir.dialect.attn.programs.program import Program, never_negative
from attn_mlir.errors import SpecError

Array = npt.NDArray[Any]

SIZES = {"batch": 2, "head": 3, "q": 5, "k": 7}
TABLE = np.random.default_rng(1).standard_normal((3, 16)).astype(np.float32)
NUMBERS = np.arange(7, dtype=np.int32) * 3 - 4
GAIN = np.array(0.5, np.float32)


def coordinates() -> dict[str, Array]:
    """score [2, 3, 5, 7] in float64 and index arrays that broadcast to it."""
    shape = tuple(SIZES.values())
    values: dict[str, Array] = {
        name: np.arange(extent).reshape([-1 if n == axis else 1 for n in range(4)])
        for axis, (name, extent) in enumerate(SIZES.items())
    }
    values["score"] = np.random.default_rng(0).standard_normal(shape)
    return values


def evaluated(program: Program, arrays: dict[str, Any]) -> Any:
    return evaluate(program, coordinates(), host_arrays(arrays))


def modified(function: Any) -> Any:
    """The modified scores by the program."""
    program, arrays = tr.trace(function)
    assert program is not None
    return evaluated(program, arrays).score


def directly(function: Callable[..., Any]) -> Any:
    """The modified scores by the function itself, on arrays."""
    at = coordinates()
    return function(at["score"], at["batch"], at["head"], at["q"], at["k"])


def check(function: Callable[..., Any]) -> None:
    np.testing.assert_allclose(modified(function), directly(function), rtol=1e-13)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "identity": lambda s, b, h, q, k: s,
    "numbers": lambda s, b, h, q, k: (2 * s - 1) / (s * s + 3.0) + (1 - s),
    "coordinates": lambda s, b, h, q, k: s * (b + 1) - h * q + k,
    "negation": lambda s, b, h, q, k: -s + (-q) + abs(s) + abs(q - k) + (+s),
    "division": lambda s, b, h, q, k: s + (q - 2) / (k + 1),
    "floor": lambda s, b, h, q, k: s + (q - k) // 2 + (k - q) % 3 + 100 // (k + 1) + 9 % (q + 1),
    "bits": lambda s, b, h, q, k: s + ((q & 3) | (k ^ 1)) + (q << 2) + (k >> 1) + (1 << h) + ~q,
    "powers": lambda s, b, h, q, k: s**3 + s**2.0 + (q - k) ** 2,
    "numpy": lambda s, b, h, q, k: np.tanh(s) + np.exp(-np.abs(s)) + np.square(s) + np.negative(q),
    "numpy log": lambda s, b, h, q, k: np.log(np.abs(s) + 1) + np.log2(s * s + 1) + np.exp2(-q),
    "numpy root": lambda s, b, h, q, k: np.sqrt(np.abs(s)) + np.floor(s) - np.ceil(s * 2),
    "numpy extrema": lambda s, b, h, q, k: np.minimum(s, 0.5) + np.maximum(q, k),
    "numpy where": lambda s, b, h, q, k: np.where(q >= k, s, -np.inf),
    "numpy clip": lambda s, b, h, q, k: np.clip(s, -0.5, 0.5) + np.clip(q, 1, None),
    "numpy names": lambda s, b, h, q, k: np.where(
        np.logical_and(np.greater(q, k), np.logical_not(np.equal(h, 1))),
        np.multiply(s, np.float32(2)), np.subtract(np.add(s, 1), np.divide(s, 4.0)),
    ),
    "numpy integers": lambda s, b, h, q, k: s + np.remainder(q, 3) + np.floor_divide(k, 2),
    "comparisons": lambda s, b, h, q, k: s * (q < k) + (q <= k) * 2 + (q != k) + (s > 0) + (s >= q),
    "truth values": lambda s, b, h, q, k: np.where(
        ((q > k) | (h == 1)) & ~(b == 0) ^ (k < 3), s, 1.0
    ),
    "reflected": lambda s, b, h, q, k: 3 - q + 2.0 / (k + 1) + 7 // (q + 1) + (5 & k) + (s < 0) * 1,
    "doubly": lambda s, b, h, q, k: (lambda x: x + x * x)(s + q),
    "captured": lambda s, b, h, q, k: s + TABLE[h, q + 2] * NUMBERS[k],
    "captured rank 0": lambda s, b, h, q, k: s * GAIN + GAIN,
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_program_computes_what_the_function_does(name: str) -> None:
    check(FUNCTIONS[name])


def test_our_own_functions() -> None:
    def ours(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        x = tr.where(q > k, tr.tanh(s), tr.exp(-abs(s)))
        y = tr.minimum(s, 0.0) + tr.maximum(q, k) + tr.sqrt(abs(s)) + tr.sigmoid(s)
        return x + y + tr.log(s * s + 1) + tr.log2(abs(s) + 1) + tr.exp2(s) + tr.clip(s, -1, 1)

    at = coordinates()
    s, q, k = at["score"], at["q"], at["k"]
    truth = np.where(q > k, np.tanh(s), np.exp(-abs(s))) + np.minimum(s, 0) + np.maximum(q, k)
    truth += np.sqrt(abs(s)) + 1 / (1 + np.exp(-s)) + np.log(s * s + 1) + np.log2(abs(s) + 1)
    truth += np.exp2(s) + np.clip(s, -1, 1)
    np.testing.assert_allclose(modified(ours), truth, rtol=1e-14)
    floors = modified(lambda s, b, h, q, k: tr.floor(s) + tr.ceil(s))
    np.testing.assert_array_equal(floors, np.floor(s) + np.ceil(s))


def test_methods_of_tensors() -> None:
    def methods(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        x = s.tanh() + s.exp() + s.clamp(min=-1.0).clamp(max=1.0) + s.abs().sqrt() + q.float()
        y = s.to(int) + s.int() + (q - 1).bool().to(float) + s.pow(2) + s.relu() + s.square()
        return x + y + q.gt(k).to(np.float32) + s.sigmoid() + (s * s + 1).rsqrt()

    at = coordinates()
    s, q, k = at["score"], at["q"], at["k"]
    truth = np.tanh(s) + np.exp(s) + np.clip(s, -1, 1) + np.sqrt(abs(s)) + q + 2 * np.trunc(s)
    truth += (q != 1) * 1.0 + 2 * s**2 + np.maximum(s, 0) + (q > k) + 1 / (1 + np.exp(-s))
    truth += 1 / np.sqrt(s * s + 1)
    np.testing.assert_allclose(modified(methods), truth, rtol=1e-14)


def test_truth_values_are_ordered_as_0_and_1() -> None:
    check(lambda s, b, h, q, k: s + np.where((q > 2) < (k > 2), 1.0, 0.0))


def test_equal_nodes_are_one_and_zeros_differ() -> None:
    program, _ = tr.trace(lambda s, b, h, q, k: (s + q) * (s + q) + 0.0 + (-0.0))
    assert program is not None
    constants = [str(node.value) for node in program.nodes if node.op == "constant"]
    assert constants == ["0.0", "-0.0"]
    assert [node.op for node in program.nodes].count("cast") == 1


LEAVES = ("s", "q", "k", "h", "(q + 2)", "(-1 - k)", "(0.5 * h)", "TABLE[h, q - k]", "NUMBERS[k]")
BINARIES = ("+", "-", "*", "<", ">=", "==", "&", "|")
CALLS = ("np.tanh({})", "np.abs({})", "np.minimum({}, 1.5)", "np.where({} > 0, s, q)", "-({})")


def combined(children: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    pairs = st.tuples(children, st.sampled_from(BINARIES), children)
    calls = st.tuples(st.sampled_from(CALLS), children)
    return st.one_of(
        pairs.map(lambda t: f"({t[0]} {t[1]} {t[2]})"), calls.map(lambda t: t[0].format(t[1]))
    )


@settings(max_examples=300, deadline=None)
@given(st.recursive(st.sampled_from(LEAVES), combined, max_leaves=12))
def test_random_expressions(text: str) -> None:
    """Truth values are integers next to numbers; among themselves sums and products are truth values, as in numpy."""
    at = coordinates()
    inside: dict[str, Any] = {"TABLE": Indexed(TABLE), "NUMBERS": Indexed(NUMBERS)}
    direct = eval(text, {"np": np, **inside}, {"s": Direct(at["score"]), "q": Direct(at["q"]),
                                              "k": Direct(at["k"]), "h": Direct(at["head"])})  # fmt: skip
    scope: dict[str, Any] = {"np": np, "TABLE": TABLE, "NUMBERS": NUMBERS}
    function = eval(f"lambda s, b, h, q, k: {text}", scope)
    try:
        made = modified(function)
    except SpecError as error:
        assert "to a float" in str(error)  # & and | of floats, which numpy refuses as well
        assert isinstance(direct, Direct) and direct.value is None
        return
    value = direct.value if isinstance(direct, Direct) else direct
    np.testing.assert_allclose(made, np.asarray(value, np.float64), rtol=1e-12)


class Direct:
    """Arrays with Python's arithmetic: the independent meaning of the random expressions.

    A value of None stands for an expression that has none (bits of a float).
    """

    __array_priority__ = 1000

    def __init__(self, value: Any):
        self.value = value

    def _apply(self, function: Callable[..., Any], *operands: Any) -> Direct:
        values = [x.value if isinstance(x, Direct) else x for x in operands]
        if any(value is None for value in values):
            return Direct(None)
        kinds = [np.asarray(value).dtype.kind for value in values]
        if set(kinds) == {"b"} and function in (operator.add, operator.mul):
            return Direct(function(*values))
        if function in (operator.and_, operator.or_):
            if "f" in kinds:
                return Direct(None)
            return Direct(function(*values))
        values = [
            np.asarray(v).astype(np.int64) if np.asarray(v).dtype == bool else v for v in values
        ]
        return Direct(function(*values))

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        return self._apply(ufunc, *inputs)

    def __array_function__(self, function: Any, kinds: Any, args: Any, options: Any) -> Any:
        condition, *choices = [x.value if isinstance(x, Direct) else x for x in args]
        if condition is None or any(choice is None for choice in choices):
            return Direct(None)
        return Direct(np.where(condition, *choices))


def _direct(function: Callable[..., Any], reflected: bool = False) -> Callable[..., Direct]:
    def apply(self: Direct, *others: Any) -> Direct:
        operands = (*others, self) if reflected else (self, *others)
        return self._apply(function, *operands)  # pyright: ignore[reportPrivateUsage]

    return apply


for _name in ("add", "sub", "mul", "and_", "or_", "lt", "le", "gt", "ge", "eq", "neg"):
    _plain = _name.strip("_")
    setattr(Direct, f"__{_plain}__", _direct(getattr(operator, _name)))
    setattr(Direct, f"__r{_plain}__", _direct(getattr(operator, _name), reflected=True))


class Indexed:
    """An array whose indices count from the end below 0, and are then moved into it."""

    def __init__(self, array: Array):
        self.array = array

    def __getitem__(self, index: Any) -> Any:
        coords = index if isinstance(index, tuple) else (index,)
        values = [c.value if isinstance(c, Direct) else c for c in coords]
        inside = [
            np.clip(np.where(c < 0, c + n, c), 0, n - 1)
            for c, n in zip(values, self.array.shape, strict=True)
        ]
        picked = self.array[tuple(inside)]
        return Direct(picked.astype(np.float64 if picked.dtype.kind == "f" else np.int64))


class Bias:
    def __init__(self, table: Array):
        self.table = table
        self.scale = 2.0

    def mod(self, s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return s + self.scale * self.table[h, q]

    def __call__(self, s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return self.mod(s, b, h, q, k)


def helper(x: Any, at: Any) -> Any:
    return x + TABLE[0, at]


def with_helper(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return helper(s, q) + helper(0.0, k)


def test_arrays_are_found_wherever_they_are() -> None:
    table = TABLE * 2
    numbers = [TABLE[0], {"row": TABLE[1]}]

    def outer(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        def inner(x: Any) -> Any:
            return x + table[h, q]

        return inner(s) + sum(inner(0.0) for _ in range(2))

    def default(s: Any, b: Any, h: Any, q: Any, k: Any, t: Any = TABLE, *, u: Any = table) -> Any:
        return s + t[h, q] + u[h, k]

    def listed(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return s + numbers[0][q] + numbers[1]["row"][k]  # pyright: ignore

    def given_table(t: Any, s: Any, b: Any, h: Any, q: Any, k: Any, u: Any) -> Any:
        return s + t[h, q] + u[h, k]

    bias = Bias(TABLE)
    for function in (outer, default, listed, bias.mod, bias, with_helper):
        check(function)
    check(functools.partial(given_table, TABLE, u=table))
    rows = modified(lambda s, b, h, q, k: s + TABLE[h][q])
    np.testing.assert_array_equal(rows, directly(lambda s, b, h, q, k: s + TABLE[h, q]))


def test_an_array_is_one_argument_under_its_first_name_and_only_when_it_is_read() -> None:
    unused = np.zeros(3, np.float32)
    q_like = np.ones(8, np.float32)

    def twice(s: Any, b: Any, h: Any, q: Any, k: Any, other: Any = TABLE) -> Any:
        return s + TABLE[h, q] + other[h, k] + (0 if unused is None else NUMBERS[k])

    program, arrays = tr.trace(twice)
    assert program is not None
    assert list(arrays) == ["TABLE", "NUMBERS"] and arrays["TABLE"] is TABLE
    assert [(t.dtype, t.rank) for t in program.tensors] == [("f32", 2), ("i32", 1)]

    def shadow(scale: Array, lse: Array) -> Any:
        return lambda s, b, h, q, k: s + scale[q] + lse[k]

    _, arrays = tr.trace(shadow(q_like, q_like * 2))
    assert list(arrays) == ["scale_c1", "lse_c1"]


@pytest.mark.parametrize(
    ("dtype", "ours", "kind"),
    [(np.float32, "f32", "f32"), (np.float16, "f16", "f32"), (ml_dtypes.bfloat16, "bf16", "f32"),
     (np.int32, "i32", "i32"), (np.int64, "i64", "i64"), (np.bool_, "bool", "i1")],
)  # fmt: skip
def test_dtypes_of_captured_arrays(dtype: Any, ours: str, kind: str) -> None:
    array = np.array([0, 1, 2, 3, 4, 5, 6, 7]).astype(dtype)
    program, arrays = tr.trace(lambda s, b, h, q, k: s + array[q] * 1)
    assert program is not None
    assert program.tensors[0].dtype == ours
    assert next(node.type for node in program.nodes if node.op == "load") == kind
    score = evaluated(program, arrays).score
    at = coordinates()
    np.testing.assert_array_equal(score, at["score"] + array.astype(np.float64)[at["q"]])


def test_integers_of_64_bits() -> None:
    """Ids keep their bits, whatever they meet; coordinates have 32 of them as long as they can."""
    ids = np.array([1, 2**32 + 1, 2**33, -5, 0, 3, 2**40, 7])
    at = coordinates()
    q, k = (at[name].astype(np.int64) for name in "qk")
    truth = (ids[q] * 3 - k == 3 * 2**32 + 3) | (ids[k] > 2**33) | (q << 40 == 2**40)
    program, arrays = tr.trace(
        None,
        lambda b, h, q, k: (
            (ids[q] * 3 - k == 3 * 2**32 + 3) | (ids[k] > 2**33) | (q.long() << 40 == 2**40)
        ),
    )
    assert program is not None
    kept = np.broadcast_to(evaluated(program, arrays).kept, at["score"].shape)
    np.testing.assert_array_equal(kept, np.broadcast_to(truth, kept.shape))
    narrow, _ = tr.trace(None, lambda b, h, q, k: (q + 1) * 3 > k)
    assert narrow is not None and {node.type for node in narrow.nodes} == {"f32", "i32", "i1"}


def test_what_cannot_be_below_0() -> None:
    """An index that counts from the end costs instructions, which others do not pay."""
    row, signs = np.arange(9.0, dtype=np.float32), np.array([3, -2], np.int32)
    never: list[Callable[..., Any]] = [
        lambda s, b, h, q, k: row[q + 3 * k],
        lambda s, b, h, q, k: row[abs(q - k)],
        lambda s, b, h, q, k: row[tr.clip(q - k, 0, 8)],
        lambda s, b, h, q, k: row[(q - k) % 5] + row[(q - k) & 7] + row[q // 2] + row[q >> 1],
        lambda s, b, h, q, k: row[np.where(q > k, q, 2)] + row[(q > k).long()],
    ]
    perhaps: list[Callable[..., Any]] = [
        lambda s, b, h, q, k: row[q - 1],
        lambda s, b, h, q, k: row[q * signs[0]],
        lambda s, b, h, q, k: row[s.to(int)],
        lambda s, b, h, q, k: row[q % signs[1]] + row[np.minimum(q, -1)] + row[~q],
    ]
    for function in (*never, *perhaps):
        program, _ = tr.trace(function)
        assert program is not None
        known = never_negative(program.nodes)
        loads = [node for node in program.nodes if node.op == "load" and node.type == "f32"]
        assert all(known[number] for node in loads for number in node.args) == (function in never)


def test_masks() -> None:
    program, _ = tr.trace(None, lambda b, h, q, k: (q >= k) & (b != 1))
    assert program is not None and program.score == 0
    at = coordinates()
    np.testing.assert_array_equal(
        evaluated(program, {}).kept, (at["q"] >= at["k"]) & (at["batch"] != 1)
    )
    everything, _ = tr.trace(None, lambda b, h, q, k: True)
    assert everything is not None and evaluated(everything, {}).kept


def test_numbers_made_like_others() -> None:
    check(lambda s, b, h, q, k: s + np.ones_like(s) - np.zeros_like(q))
    program, _ = tr.trace(None, lambda b, h, q, k: b.new_ones((), dtype=bool, device=b.device))
    assert program is not None and evaluated(program, {}).kept


def test_functions_of_a_library_that_call_ours() -> None:
    """PyTorch's `and_masks` returns such a one; what ours capture is found through it."""

    def both(*mods: Any) -> Any:
        def both_of(b: Any, h: Any, q: Any, k: Any) -> Any:
            seen = b.new_ones((), dtype=bool)
            for mod in mods:
                seen = seen & mod(b, h, q, k)
            return seen

        both_of.__module__ = "torch.nn.attention.flex_attention"
        return both_of

    def positive(b: Any, h: Any, q: Any, k: Any) -> Any:
        return TABLE[h, q] > 0

    program, arrays = tr.trace(None, both(both(positive), lambda b, h, q, k: q >= k))
    assert program is not None and list(arrays) == ["TABLE"]
    at = coordinates()
    truth = (TABLE[at["head"], at["q"]] > 0) & (at["q"] >= at["k"])
    np.testing.assert_array_equal(evaluated(program, arrays).kept, truth)


def test_both_share_what_they_have_in_common() -> None:
    program, arrays = tr.trace(
        lambda s, b, h, q, k: s + TABLE[h, q - k], lambda b, h, q, k: TABLE[h, q - k] > 0
    )
    assert program is not None and list(arrays) == ["TABLE"]
    assert [node.op for node in program.nodes].count("load") == 1


def test_sinks() -> None:
    sinks = np.array([0.5, -1.0, 2.0], ml_dtypes.bfloat16)
    program, arrays = tr.trace(sinks=sinks)
    assert program is not None and arrays == {"sinks": sinks}
    sink = evaluated(program, arrays).sink
    np.testing.assert_array_equal(sink[0, :, 0, 0], sinks.astype(np.float64))
    with pytest.raises(SpecError, match=r"sinks must be \[heads\], got 2 dimensions"):
        tr.trace(sinks=TABLE)


def test_nothing_to_trace() -> None:
    assert tr.trace() == (None, {})


def test_programs_as_text() -> None:
    sinks = np.ones(3, np.float32)
    program, _ = tr.trace(
        lambda s, b, h, q, k: np.where(k > 2, s + TABLE[h, q], -np.inf),
        lambda b, h, q, k: q >= k,
        sinks,
    )
    assert program is not None
    assert Program.from_json(program.canonical()) == program
    json.loads(program.canonical())
    for text in ("", "{}", '{"nodes": 3}', "null"):
        with pytest.raises(SpecError, match="no program of a score modifier"):
            Program.from_json(text)


def test_torch() -> None:
    torch: Any = pytest.importorskip("torch")
    table = torch.from_numpy(TABLE)
    gain = torch.tensor(0.5)

    def mod(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        x = torch.where(q >= k, s, -float("inf")) + torch.tanh(s) * gain + table[h, q - k + 7]
        y = torch.maximum(s, torch.tensor(0.0)) + torch.clamp(s, min=-1.0) + torch.sigmoid(s)
        z = torch.logical_and(q > k, ~(h == 1)) | torch.eq(q, 2)
        return x + y + torch.abs(s) + torch.exp(-torch.square(s)) + z.to(torch.float32) * 3

    program, arrays = tr.trace(mod)
    assert program is not None and set(arrays) == {"gain", "table"}
    at = coordinates()
    operands = [torch.from_numpy(at[name]) for name in ("score", "batch", "head", "q", "k")]
    truth = mod(*operands).numpy()
    np.testing.assert_allclose(evaluated(program, arrays).score, truth, rtol=1e-6)
