"""Checks of attention on a GPU through `attn_mlir`, judged as on the emulator."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

import attn_mlir as am
from attn_mlir.compiling.combination import CombineSpec
from attn_mlir.runtime.devices.launchplan import LaunchPlan
from attn_mlir.validation.gpu.check import BLACKWELL, Machine, check, module

SHAPES = ((1, 513), (129, 257), (300, 77), (640, 640), (2048, 2048))  # queries, keys
FACTORS, KEYS = (1.0, -2.0), 700  # of `functions_of_calls_that_come_again`
KINDS = tuple(itertools.product((64, 128), ("bf16", "f16"), (am.full(), am.causal())))


def _spec(kind: tuple[int, str, am.Mask]) -> am.MhaSpec:
    head_dim, dtype, mask = kind
    return am.mha(heads=8, kv_heads=2, head_dim=head_dim, dtype=dtype, mask=mask)


def _dense(target: str) -> list[am.Bundle]:
    """Kernels for every kind of dense attention."""
    return [am.compile(_spec(kind), target=target) for kind in KINDS]


@check(targets=(BLACKWELL,), asks=_dense)
def dense_attention(machine: Machine) -> None:
    """Every element of O and LSE, for every kind and shape."""
    module("ml_dtypes")
    from attn_mlir.cli.experiment import run_attention

    for kind, (sq, sk) in itertools.product(KINDS, SHAPES):
        bundle = am.compile(_spec(kind), target=machine.target)
        trial = run_attention(bundle, batch=2, sq=sq, sk=sk, device="cuda")
        assert trial.comparison.ok, f"{kind}, {sq} queries, {sk} keys: {trial.comparison}"


def _combination() -> CombineSpec:
    return CombineSpec(heads=4, v_head_dim=64, out_dtype="f32", return_lse=True)


@check(asks=lambda target: am.compile(_combination(), target=target))
def parts_become_the_whole(machine: Machine) -> None:
    """The combination of three parts, the second of which saw no key and holds NaN."""
    random = np.random.default_rng(1)
    parts = random.standard_normal((3, 2, 130, 4, 64), np.float32)
    lses = 4 * random.standard_normal((3, 2, 4, 130), np.float32)
    parts[1], lses[1] = np.nan, -np.inf
    o = np.full(parts.shape[1:], np.nan, np.float32)
    lse = np.full(lses.shape[1:], np.nan, np.float32)
    kernel = am.Kernel(am.compile(_combination(), target=machine.target))
    kernel(parts=parts, lses=lses, o=o, lse=lse, device="cuda")
    mass = np.exp(lses[::2].astype(np.float64))
    weights = (mass / mass.sum(0)).transpose(0, 1, 3, 2)[..., None]
    assert np.abs(o - (parts[::2] * weights).sum(0)).max() < 1e-5
    assert np.abs(lse - np.log(mass.sum(0))).max() < 1e-5


def _operands(sq: int, sk: int) -> Any:
    ml_dtypes = module("ml_dtypes")
    random = np.random.default_rng(0)
    shapes = ((1, sq, 2, 64), (1, sk, 1, 64), (1, sk, 1, 64))
    return [random.standard_normal(shape).astype(ml_dtypes.bfloat16) for shape in shapes]


def _in_one_part(target: str) -> am.Plan:
    """The call of `the_emulator_and_the_gpu_agree`, asked for and not judged."""
    plan = am.plan(*_operands(150, 150), mask=am.causal(), return_lse=True, device="emulator")
    for step in plan.steps:
        am.compile(step.request, target=target)
    return plan


@check(targets=(BLACKWELL,), asks=_in_one_part)
def the_emulator_and_the_gpu_agree(machine: Machine) -> None:
    """One call on both, compared with float64 and with each other."""
    operands = _operands(150, 150)
    results: list[Any] = []
    for device in ("cuda", "emulator"):
        o, lse = am.attention(*operands, mask=am.causal(), return_lse=True, device=device)
        assert am.reference.check_attention(*operands, o, lse, mask=am.causal()).ok, device
        results.append((o.astype(np.float64), lse))
    assert np.abs(results[0][0] - results[1][0]).max() < 0.02
    assert np.abs(results[0][1] - results[1][1]).max() < 1e-3


def _in_two_parts(target: str) -> None:
    """The call of `attention_where_no_compiler_is`, whatever GPU is there."""
    for step in am.plan(*_operands(20, 300), num_splits=2, device="emulator").steps:
        am.compile(step.request)


@check(asks=_in_two_parts)
def attention_where_no_compiler_is(machine: Machine) -> None:
    """`am.attention` finds its kernels and runs them, on the emulator where the GPU has none."""
    operands = _operands(20, 300)
    device = "cuda" if machine.target == BLACKWELL else "emulator"
    o = am.attention(*operands, num_splits=2, device=device)
    verdict = am.reference.check_attention(*operands, o, None, mask=am.full())
    assert verdict.ok, str(verdict)


def _of_torch(target: str) -> None:
    """Asks for the kernel of `torch_on_its_stream`."""
    spec = am.mha(heads=8, kv_heads=2, head_dim=128, mask=am.causal(), return_lse=False)
    am.compile(spec, target=target)


@check(targets=(BLACKWELL,), asks=_of_torch)
def torch_on_its_stream(machine: Machine) -> None:
    """Tensors of torch, in and out, on the stream that torch is on."""
    torch = module("torch")
    q, k, v = (
        torch.randn(2, 300, heads, 128, device="cuda", dtype=torch.bfloat16) for heads in (8, 2, 2)
    )
    with torch.cuda.stream(torch.cuda.Stream()):
        o = am.attention(q, k, v, mask=am.causal())
    torch.cuda.synchronize()
    assert o.is_cuda and torch.isfinite(o.float()).all()


DECODED = (2, 4096)  # sequences, tokens that their caches have room for
LENGTHS = ((4096, 1), (1, 3000), (0, 4096))


def _decode(call: Callable[..., Any], q: Any, k: Any, v: Any, used: Any) -> Any:
    """`am.attention` or `am.plan` of keys in parts, which the kernel puts together."""
    return call(
        *(q, k, v),
        mask=am.causal(),
        cache_seqlens=used,
        cache_counts_new=True,
        num_splits=16,
        return_lse=True,
        schedule="mha-streaming",
    )


def _in_joined_parts(target: str) -> None:
    """Asks for the kernel of `graphs_with_other_lengths`."""
    ml_dtypes = module("ml_dtypes")
    q, k = (np.zeros((1, 1, heads, 128), ml_dtypes.bfloat16) for heads in (16, 2))
    (step,) = _decode(am.plan, q, k, k, np.zeros(1, np.int32)).steps
    am.compile(step.request, target=target)


@check(asks=_in_joined_parts)
def graphs_with_other_lengths(machine: Machine) -> None:
    """A recorded launch is replayed with other lengths, on two streams beside each other and eager calls.

    Each has counters of its own, so that all give the bits of a call that is alone. All but the first
    calls are made by plans.
    """
    torch = module("torch")
    batch, room = DECODED
    streams = [torch.cuda.Stream() for _ in range(3)]
    torch.manual_seed(1)
    used = torch.zeros(batch, dtype=torch.int32, device="cuda")
    operands = [
        [
            torch.randn(batch, n, heads, 128, device="cuda", dtype=torch.bfloat16)
            for n, heads in ((1, 16), (room, 2), (room, 2))
        ]
        for _ in streams
    ]
    graphs: list[Any] = []
    recorded: list[Any] = []
    for stream, given in zip(streams[:2], operands[:2], strict=True):
        with torch.cuda.stream(stream):
            _decode(am.attention, *given, used)
        torch.cuda.synchronize()
        graphs.append(torch.cuda.CUDAGraph())
        with torch.cuda.graph(graphs[-1], stream=stream):
            recorded.append(_decode(am.attention, *given, used))
    for lengths in LENGTHS:
        used.copy_(torch.tensor(lengths, dtype=torch.int32))
        alone = [_decode(am.attention, *given, used) for given in operands]
        torch.cuda.synchronize()
        for _ in range(20):
            for stream, graph in zip(streams, graphs, strict=False):
                with torch.cuda.stream(stream):
                    graph.replay()
            with torch.cuda.stream(streams[2]):
                eager = _decode(am.attention, *operands[2], used)
        torch.cuda.synchronize()
        for found, expected in zip((*recorded, eager), alone, strict=True):
            for x, y in zip(found, expected, strict=True):
                assert torch.equal(x, y), lengths
        for (q, k, v), (o, lse) in zip(operands, alone, strict=True):
            for b, n in enumerate(lengths):
                _check_row(torch, q[b, 0], k[b, :n], v[b, :n], o[b, 0], lse[b, :, 0])


def _check_row(torch: Any, q: Any, k: Any, v: Any, o: Any, lse: Any) -> None:
    """O and LSE of one token against float64."""
    group = q.shape[0] // k.shape[1]
    k, v = (x.double().repeat_interleave(group, 1) for x in (k, v))
    scores = torch.einsum("hd,khd->hk", q.double(), k) * q.shape[-1] ** -0.5
    if not len(k):
        assert not o.any() and (lse == -torch.inf).all()
        return
    truth = torch.einsum("hk,khd->hd", scores.softmax(-1), v)
    assert (o.double() - truth).abs().max() < 2**-6
    assert (lse.double() - scores.logsumexp(-1)).abs().max() < 1e-3


def _shifted(call: Callable[..., Any], q: Any, k: Any, v: Any, table: Any, factor: float) -> Any:
    """`am.attention` or `am.plan` with a function made for this call, and keys in parts."""

    def shifted(score: Any, b: Any, h: Any, query: Any, key: Any) -> Any:
        return score + table[key] * factor

    return call(q, k, v, score_mod=shifted, num_splits=4, schedule="mha-streaming")


def _shifts(target: str) -> None:
    """Asks for the kernels of `functions_of_calls_that_come_again`."""
    ml_dtypes = module("ml_dtypes")
    q, k = (np.zeros((1, n, h, 128), ml_dtypes.bfloat16) for n, h in ((1, 16), (KEYS, 2)))
    for factor in FACTORS:
        (step,) = _shifted(am.plan, q, k, k, np.zeros(KEYS, np.float32), factor).steps
        am.compile(step.request, target=target)


@check(asks=_shifts)
def functions_of_calls_that_come_again(machine: Machine) -> None:
    """Plans launch new functions with other tables, and see a captured number that has changed."""
    torch = module("torch")
    torch.manual_seed(2)
    q, k, v = (
        torch.randn(1, n, h, 128, device="cuda", dtype=torch.bfloat16)
        for n, h in ((1, 16), (KEYS, 2), (KEYS, 2))
    )
    keys, values = (x.double().repeat_interleave(8, 2) for x in (k, v))
    planned: list[object] = []
    watched = LaunchPlan.launch

    def launch(*arguments: Any) -> Any:
        planned.append(watched(*arguments))
        return planned[-1]

    LaunchPlan.launch = launch
    try:
        for turn in range(12):
            table, factor = torch.randn(KEYS, device="cuda"), FACTORS[turn // 2 % 2]
            o = _shifted(am.attention, q, k, v, table, factor)
            scores = torch.einsum("bqhd,bkhd->bhqk", q.double(), keys) * 128**-0.5
            weights = (scores + table.double() * factor).softmax(-1)
            truth = torch.einsum("bhqk,bkhd->bqhd", weights, values)
            assert (o.double() - truth).abs().max() < 2.0**-6, (turn, factor)
    finally:
        LaunchPlan.launch = watched
    assert len(planned) == 8 and None not in planned
