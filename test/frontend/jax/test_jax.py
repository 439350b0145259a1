"""Attention of jax on the emulator: values and gradients are those of `jax.nn.dot_product_attention` in float32."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

jax: Any = pytest.importorskip("jax", minversion="0.10")

import attn_mlir as am  # noqa: E402
from attn_mlir import env  # noqa: E402
from attn_mlir.errors import SpecError  # noqa: E402
from attn_mlir.jax import attention, dot_product_attention, host  # noqa: E402
from attn_mlir.jax import callbacks as ways  # noqa: E402
from attn_mlir.runtime.call.dlpack import Export  # noqa: E402
from attn_mlir.runtime.devices.idle import IdleDevice  # noqa: E402
from attn_mlir.runtime.kernel import launching_on  # noqa: E402

jnp: Any = jax.numpy
sparse: Any = importlib.import_module("jax.experimental.sparse")
truth: Any = jax.nn.dot_product_attention

B, T, S, N, K, H = 2, 24, 40, 4, 2, 64


def normal(seed: int, *shape: int, dtype: Any = jnp.bfloat16) -> Any:
    return jax.random.normal(jax.random.key(seed), shape, jnp.float32).astype(dtype)


def operands(s: int = S) -> list[Any]:
    return [normal(0, B, T, N, H), normal(1, B, s, K, H), normal(2, B, s, K, H)]


def wide(values: list[Any]) -> list[Any]:
    return [x.astype(jnp.float32) for x in values]


def near(ours: Any, known: Any, most: float = 0.02) -> None:
    """Within the rounding of bfloat16, of numbers around 1 or as large as the largest."""
    assert ours.shape == known.shape
    exact = np.asarray(known, np.float32)
    error = np.abs(np.asarray(ours, np.float32) - exact).max()
    assert 0 < error < most * max(1, np.abs(exact).max()), error


LENGTHS = {"query_seq_lengths": jnp.array([20, 7]), "key_value_seq_lengths": jnp.array([33, 40])}
SHORTER = {**LENGTHS, "key_value_seq_lengths": jnp.array([11, 24])}
BIAS = normal(3, 1, N, T, S, dtype=jnp.float32)
MASK = jax.random.uniform(jax.random.key(4), (B, 1, T, S)) > 0.2
CASES: dict[str, tuple[int, dict[str, Any]]] = {
    "plain": (S, {}),
    "causal": (T, {"is_causal": True}),
    "bias and mask": (S, {"bias": BIAS, "mask": MASK}),
    "lengths, causal": (S, {"is_causal": True, **LENGTHS}),
    "lengths, causal, as many keys": (T, {"is_causal": True, **SHORTER}),
    "causal, more keys": (S, {"is_causal": True, "scale": 0.05}),
    "window": (T, {"local_window_size": 3}),
    "window, causal, lengths": (S, {"local_window_size": (5, 2), "is_causal": True, **LENGTHS}),
    "window, mask": (S, {"local_window_size": (30, 20), "mask": MASK}),
}


@pytest.mark.long("causal, more*", "window*")
@pytest.mark.parametrize("name", CASES)
def test_values_are_those_of_jax(name: str) -> None:
    s, options = CASES[name]
    arrays = {x: y for x, y in options.items() if isinstance(y, jax.Array)}
    others = {x: y for x, y in options.items() if x not in arrays}
    tensors = operands(s)

    def ours(tensors: list[Any], arrays: dict[str, Any]) -> Any:
        return dot_product_attention(*tensors, **arrays, **others, return_residual=True)

    o, lse = jax.jit(ours)(tensors, arrays)
    known, known_lse = truth(*wide(tensors), **options, return_residual=True)
    near(o, known)
    assert o.dtype == lse.dtype == jnp.bfloat16 and lse.shape == (B, T, N)
    inside = (
        jnp.arange(T)[:, None] < options.get("query_seq_lengths", jnp.array([T, T]))[:, None, None]
    )
    near(jnp.where(inside, lse, 0), jnp.where(inside, known_lse, 0))
    assert np.asarray(jnp.where(inside, -jnp.inf, lse) == -jnp.inf).all()


def gradients(function: Any, tensors: list[Any], options: dict[str, Any]) -> Any:
    weights = normal(5, H, dtype=jnp.float32)

    def loss(*tensors: Any) -> Any:
        return (function(*tensors, **options).astype(jnp.float32) * weights).sum()

    return jax.grad(loss, tuple(range(len(tensors))))(*tensors)


@pytest.mark.slow
@pytest.mark.long("lengths*", "causal, more*", "window*", "bias*")
@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_jax(name: str) -> None:
    s, options = CASES[name]
    options = dict(options)
    tensors = operands(s) + ([options.pop("bias")] if "bias" in options else [])
    made = gradients(dot_product_attention, tensors, options)
    for x, y, given in zip(made, gradients(truth, wide(tensors), options), tensors, strict=True):
        assert x.dtype == given.dtype
        near(x, y)


def test_only_what_is_differentiated_has_gradients() -> None:
    """The gradient of a bias that all sequences share is not deterministic unless requested."""
    tensors = operands()
    shared = jnp.zeros((1, 1, 1, S))

    def loss(q: Any, bias: Any) -> Any:
        return dot_product_attention(q, *tensors[1:], bias).astype(jnp.float32).sum()

    made = jax.make_jaxpr(jax.grad(loss))(tensors[0], shared)
    assert [str(x) for x in made.out_avals] == [f"bfloat16[{B},{T},{N},{H}]"]
    whole = jax.make_jaxpr(jax.grad(loss, (0, 1)))(tensors[0], shared)
    assert str(whole.out_avals[1]) == f"float32[1,1,1,{S}]"


@pytest.mark.parametrize("axes", [(0, None, None), (0, 0, 0), (2, None, 1)], ids=str)
def test_vmap_is_a_call_for_each_sample(axes: tuple[int | None, ...]) -> None:
    tensors = [
        x if axis is None else jnp.stack([x, x * 2, x * 0.5], axis)
        for x, axis in zip(operands(), axes, strict=True)
    ]
    made = jax.vmap(dot_product_attention, axes)(*tensors)
    near(made, jax.vmap(truth, axes)(*wide(tensors)))


def test_vmap_with_a_bias_inside_of_another_one() -> None:
    """Samples are launched one after the other: a bias has no batch to join."""
    q, k, v = operands()
    queries, biases = jnp.stack([q, q * 2]), jnp.stack([BIAS, BIAS * 2, BIAS * 3])

    def mapped(function: Any) -> Any:
        inner = jax.vmap(lambda q, bias: function(q, bias), (0, None))
        return jax.vmap(lambda bias: inner(queries, bias))(biases)

    made = mapped(lambda q, bias: dot_product_attention(q, k, v, bias))
    near(made, mapped(lambda q, bias: truth(*wide([q, k, v]), bias)))


@pytest.mark.long
def test_vmap_of_gradients() -> None:
    q, k, v = operands()

    def of(function: Any) -> Any:
        return lambda q: gradients(lambda q: function(q, k, v), [q], {})[0]

    queries = jnp.stack([q, q * 2])
    near(jax.vmap(of(dot_product_attention))(queries), jax.vmap(of(truth))(queries))


def test_a_call_is_traced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    planned = ways.Operation.planned

    def counted(self: Any, arrays: Any, stream: Any = None) -> Any:
        made.append("traced" if not next(iter(arrays.values())).has_memory else "run")
        return planned(self, arrays, stream)

    monkeypatch.setattr(ways.Operation, "planned", counted)
    tensors = operands()
    scale = 0.125 + 2.0**-20  # of no other test
    for _ in range(2):
        attention(*tensors, scale=scale, score_mod=am.mods.softcap(30.0)).block_until_ready()
    assert made == ["traced", "run", "run"]


def test_buffers_are_read_and_written_where_they_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    """The path of a GPU on the host, where jax has buffers as well; also under vmap, and empty."""
    tensors = operands()
    usual = jax.jit(attention, static_argnames="return_lse")(*tensors, return_lse=True)
    mapped = jax.vmap(lambda q: attention(q, *tensors[1:]))(jnp.stack([tensors[0]] * 2))
    monkeypatch.setattr(ways, "BY_BUFFERS", {"cpu", "cuda"})
    jax.clear_caches()
    text = str(jax.make_jaxpr(lambda *x: attention(*x))(*tensors))
    assert "buffer_callback" in text and "pure_callback" not in text
    for x, y in zip(attention(*tensors, return_lse=True), usual, strict=True):
        assert np.array_equal(x, y)
    again = jax.vmap(lambda q: attention(q, *tensors[1:]))(jnp.stack([tensors[0]] * 2))
    assert np.array_equal(again, mapped)
    nothing = attention(tensors[0][:, :0], *tensors[1:])
    assert nothing.shape == (B, 0, N, H)
    jax.clear_caches()


class Recorder(IdleDevice):
    """A device that launches nothing, and records its arguments."""

    launches: list[Any]

    def launch(self, bundle: Any, bound: Any, stream: Any) -> Any:
        self.launches.append((bound, stream))
        return super().launch(bundle, bound, stream)


class Buffer:
    """`Buffer` of jax on a GPU, of which nothing is read: a dense array at an address."""

    def __init__(self, address: int, dtype: str, shape: tuple[int, ...]):
        made = Export(self, address, device="cuda", index=1, dtype=dtype, shape=shape)
        self.__dlpack__, self.__dlpack_device__ = made.__dlpack__, made.__dlpack_device__


class OldBuffer:
    """A buffer that has only the older protocol."""

    def __init__(self, address: int, dtype: str, shape: tuple[int, ...]):
        form = {"f16": "<f2", "f32": "<f4"}[dtype]
        self.__cuda_array_interface__ = {
            "shape": shape, "typestr": form, "data": (address, False), "version": 3, "strides": None,
        }  # fmt: skip


@pytest.mark.parametrize("kind, dtype", [(Buffer, "bf16"), (Buffer, "f16"), (OldBuffer, "f16")])
def test_buffers_of_a_gpu_are_passed_on_by_their_addresses(kind: Any, dtype: str) -> None:
    """No GPU is here: what is launched is looked at, on a device that launches nothing."""
    operation = ways.Operation("attention", (("return_lse", True),))
    shapes = {"q": (B, T, N, H), "k": (B, S, K, H), "v": (B, S, K, H)}
    given = [kind(0x10000 * (1 + i), dtype, shape) for i, shape in enumerate(shapes.values())]
    made = [kind(0x50000, dtype, shapes["q"]), kind(0x60000, "f32", (B, N, T))]
    device = Recorder("sm_90a")
    object.__setattr__(device, "launches", [])
    with launching_on(device):
        ways.launched(operation, dict.fromkeys(shapes, 4), given, made, 0xABC0)
    [(bound, stream)] = device.launches
    assert stream == 0xABC0
    found = {name: (x.address, x.device, x.shape) for name, x in bound.tensors.items()}
    addresses = dict(zip("qkv", (0x10000, 0x20000, 0x30000), strict=True))
    assert found == {
        **{name: (address, "cuda", shapes[name]) for name, address in addresses.items()},
        "o": (0x50000, "cuda", shapes["q"]),
        "lse": (0x60000, "cuda", (B, N, T)),
    }


def test_a_gpu_gets_buffers_and_other_devices_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are traced, and the platform chooses."""
    monkeypatch.setattr(ways, "_has_gpu", lambda: True)
    jax.clear_caches()
    with launching_on(IdleDevice("sm_90a")):
        text = str(jax.make_jaxpr(lambda *x: attention(*x))(*operands()))
    jax.clear_caches()
    assert text.count("buffer_callback") and text.count("pure_callback")
    assert "platform_index" in text and "cuda" in text


def test_packed_sequences_and_rows_of_none() -> None:
    """Rows past the last sequence are 0, and their LSE -inf; so are gradients."""
    q, k, v = (normal(i, 40, heads, H) for i, heads in ((0, N), (1, K), (2, K)))
    offsets = jnp.array([0, 9, 31], jnp.int32)
    lengths = {"cu_seqlens_q": offsets, "cu_seqlens_k": offsets, "mask": am.causal()}
    lengths |= {"max_seqlen_q": 22, "max_seqlen_k": 22, "return_lse": True}
    o, lse = attention(q, k, v, **lengths)
    for first, end in ((0, 9), (9, 31)):
        rows = [x[None, first:end] for x in (q, k, v)]
        near(o[None, first:end], truth(*wide(rows), is_causal=True))
    assert not np.asarray(o[31:], np.float32).any() and (np.asarray(lse[:, 31:]) == -np.inf).all()


def test_modifiers_read_traced_arrays() -> None:
    q, k, v = operands(T)

    @jax.jit
    def biased(slopes: Any, cap: Any, sinks: Any) -> Any:
        def score_mod(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
            return am.trace.tanh(score / cap) * cap + slopes[h] * (k - q)

        return attention(q, k, v, score_mod=score_mod, sinks=sinks)

    slopes, sinks = normal(6, N, dtype=jnp.float32), normal(7, N, dtype=jnp.float32)
    made = biased(slopes, jnp.float32(5.0), sinks)
    qf, kf, vf = (np.asarray(x, np.float32) for x in (q, k, v))
    scores = np.einsum("bqhd,bkhd->bhqk", qf, kf.repeat(2, 2)) * H**-0.5
    distance = np.arange(T)[None, :] - np.arange(T)[:, None]
    scores = np.tanh(scores / 5) * 5 + np.asarray(slopes)[:, None, None] * distance
    weights = np.exp(scores)
    sums = weights.sum(-1, keepdims=True) + np.exp(np.asarray(sinks))[:, None, None]
    near(made, np.einsum("bhqk,bkhd->bqhd", weights / sums, vf.repeat(2, 2)))


INTEGERS = np.arange(N)
REFUSED: dict[str, Any] = {
    "query has dtype f32": lambda q, k, v: dot_product_attention(*wide([q, k, v])),
    "mask must be of bool": lambda q, k, v: dot_product_attention(q, k, v, mask=BIAS),
    r"bias has shape \[1, 4, 24, 39\]": lambda q, k, v: dot_product_attention(
        q, k, v, BIAS[..., :39]
    ),
    "query must be an array of jax or numpy": lambda q, k, v: dot_product_attention([1], k, v),
    "query must have at most 4 dimensions": lambda q, k, v: dot_product_attention(q[None], k, v),
    "local_window_size must be one or two": lambda q, k, v: dot_product_attention(
        q, k, v, local_window_size=(1, 2, 3)
    ),
    "local_window_size must be an integer from 0 to": lambda q, k, v: dot_product_attention(
        q, k, v, local_window_size=-1
    ),
    "value must be an array of jax or numpy, got None": lambda q, k, v: dot_product_attention(
        q, k, None
    ),
    "return_lse must be True or False, got 1": lambda q, k, v: attention(q, k, v, return_lse=1),
    "sm_margin must be known when jax traces the call, got tensor": lambda q, k, v: attention(
        q, k, v, sm_margin=pytest.importorskip("torch").tensor(3)
    ),
    "q_offset must be an array of jax or numpy, got tensor": lambda q, k, v: attention(
        q, k, v, q_offset=pytest.importorskip("torch").tensor(3)
    ),
    "implementation must be None or xla or cudnn": lambda q, k, v: dot_product_attention(
        q, k, v, implementation="mosaic"
    ),
    "query_seq_lengths has batch 3, query has 2": lambda q, k, v: dot_product_attention(
        q, k, v, query_seq_lengths=jnp.ones(3, jnp.int32)
    ),
    "key_value_seq_lengths must be an array of jax or numpy": lambda q, k, v: dot_product_attention(
        q, k, v, key_value_seq_lengths=[S, S]
    ),
    "has no argument dropout": lambda q, k, v: dot_product_attention(q, k, v, dropout=0.1),
    "out is not offered for arrays of jax": lambda q, k, v: attention(q, k, v, out=np.zeros(1)),
    "device is not offered": lambda q, k, v: attention(q, k, v, device="emulator"),
    "k is a PagedKV": lambda q, k, v: attention(q, am.PagedKV(k, v, page_table=k)),
    "scale must be known when jax traces": lambda q, k, v: attention(q, k, v, scale=jnp.ones(())),
    "gradients are those of attention without it": lambda q, k, v: jax.grad(
        lambda q: attention(q, k, v, q_offset=3).astype(jnp.float32).sum()
    )(q),
    "table is int64, which jax makes int32": lambda q, k, v: attention(
        q, k, v, score_mod=lambda score, b, h, i, j, table=INTEGERS: score + table[h]
    ),
}


ONE = {name: jnp.ones((1, 8, 2, 16), jnp.bfloat16) for name in "qkv"}
CALLS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "attention": (
        attention,
        {**ONE, "sinks": jnp.ones(2), "seqused_q": jnp.array([8]), "seqused_k": jnp.array([8])},
    ),
    "attention, packed": (
        lambda **x: attention(**x, max_seqlen_q=8, max_seqlen_k=8),
        {**{x: y[0] for x, y in ONE.items()}, **dict.fromkeys(("cu_seqlens_q", "cu_seqlens_k"), jnp.array([0, 8]))},
    ),
    "dot_product_attention": (
        dot_product_attention,
        {
            **dict.fromkeys(("query", "key", "value"), ONE["q"]),
            "bias": jnp.ones((1, 2, 8, 8)), "mask": jnp.ones((1, 2, 8, 8), jnp.bool_),
            "query_seq_lengths": jnp.array([8]), "key_value_seq_lengths": jnp.array([8]),
        },
    ),
}  # fmt: skip


class Named(np.ndarray[Any, Any]):
    """An array with a meaning of its own."""


KINDS: dict[str, Callable[[Any], Any]] = {
    "must be an array of jax or numpy": lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype),
    "must be an array of jax or numpy, got .*BCOO": lambda x: sparse.BCOO.fromdense(x * 1.0),
    "Named, which means more than its memory": lambda x: np.asarray(x).view(Named),
    "is a masked array": lambda x: np.ma.masked_array(np.asarray(x)),
    "has dtype object": lambda x: np.asarray(x).astype(object),
    "has dtype >f4": lambda x: np.asarray(x, np.float32).astype(">f4"),
}


@pytest.mark.parametrize("name", CALLS)
def test_arrays_that_are_not_what_they_look_like(name: str) -> None:
    function, arrays = CALLS[name]
    jax.eval_shape(lambda: function(**arrays))
    for argument, array in arrays.items():
        for message, make in KINDS.items():
            with pytest.raises(SpecError, match=f"^{argument} .*{message}"):
                function(**{**arrays, argument: make(array)})


@pytest.mark.parametrize("message", REFUSED)
def test_what_is_not_offered_is_refused_when_jax_traces(message: str) -> None:
    with pytest.raises(SpecError, match=message):
        jax.eval_shape(REFUSED[message], *operands())


def test_true_is_not_one_where_jax_knows_the_call_with_one() -> None:
    jax.eval_shape(lambda: attention(*operands(), sm_margin=1))
    with pytest.raises(SpecError, match="sm_margin must be an integer"):
        jax.eval_shape(lambda: attention(*operands(), sm_margin=True))


def test_an_unknown_argument_is_an_error_of_python() -> None:
    with pytest.raises(TypeError, match=r"mask=am.causal\(\)"):
        attention(*operands(), is_causal=True)


def test_another_implementation_is_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(env, "log_once", lambda _, text: said.append(text))
    made = [dot_product_attention(*operands(), implementation=x) for x in (None, "cudnn")]
    assert np.array_equal(*made)
    assert said == [
        "dot_product_attention does not follow implementation='cudnn': kernels of this package"
    ]


def test_operands_of_one_sequence_and_values_of_fewer_elements() -> None:
    q, k, v = (x[0] for x in operands())
    o, lse = dot_product_attention(q, k, v[..., :32], return_residual=True)
    near(o, truth(*wide([q, k, v]))[..., :32])
    assert o.shape == (T, N, 32) and lse.shape == (T, N)


@pytest.mark.parametrize("version, fits", [("0.9.2", False), ("0.11.9", True), ("0.12.0", False)])
def test_other_versions_are_refused(
    version: str, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jax, "__version__", version)
    host.implementation.cache_clear()
    try:
        if fits:
            assert host.implementation()
        else:
            with pytest.raises(ImportError, match=f"jax 0.10 or newer, below 0.12, got {version}"):
                dot_product_attention(*operands())
    finally:
        host.implementation.cache_clear()
