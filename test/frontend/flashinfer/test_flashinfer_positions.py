"""Positions in scores, ALiBi and Llama's rotation, and sinks by `jit_args`, against float64."""

from __future__ import annotations

from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from attn_mlir import flashinfer  # noqa: E402
from attn_mlir.errors import SpecError  # noqa: E402
from attn_mlir.mods import alibi_slopes  # noqa: E402
from attn_mlir.validation.hosts.flashinfer_cache import (  # noqa: E402
    BF16,
    BOTH,
    DIM,
    HEADS,
    KEYS,
    LENGTHS,
    PAGE,
    QUERIES,
    ROWS,
    SIZES,
    VALUES,
    WORKSPACE,
    check,
    offsets,
    split,
    truth,
)
from attn_mlir.validation.numerics.torch_operands import normal  # noqa: E402

SLOPES = torch.from_numpy(alibi_slopes(HEADS)).double()
THETA = 500.0
SINKS = torch.linspace(-1, 2, HEADS)
JIT: list[Any] = [
    "sink", BF16, BF16, BF16, torch.int32, DIM, DIM, ["sink"], ["float"], ["sm_scale"], ["double"],
    "AttentionSink", "struct AttentionSink {};",
]  # fmt: skip


def turned(x: Any, first: int, scale: float = 1.0, theta: float = THETA) -> Any:
    """Rows from position `first` on times complex numbers, whose parts lie half a row apart."""
    pairs = torch.complex(*x.double().chunk(2, -1))
    frequencies = theta ** -(torch.arange(DIM // 2).double() * 2 / DIM) / scale
    angles = torch.arange(first, first + len(x)).double()[:, None] * frequencies
    pairs = pairs * torch.polar(torch.ones_like(angles), angles)[:, None]
    return torch.cat([pairs.real, pairs.imag], -1).to(BF16)


def by_slope(queries: list[Any], keys: list[Any], values: list[Any]) -> tuple[Any, Any]:
    """O and LSE of causal attention whose scores gain slope x (key - query), by number."""
    results: list[tuple[Any, Any]] = []
    for q, k, v in zip(queries, keys, values, strict=True):
        k, v = (x.double().repeat_interleave(HEADS // k.shape[1], 1) for x in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q.double(), k) * DIM**-0.5
        distance = torch.arange(len(k))[None] - torch.arange(len(q))[:, None]
        scores = scores + SLOPES[:, None, None] * distance
        seen = distance <= len(k) - len(q)
        scores = scores.masked_fill(~seen, -torch.inf)
        o = torch.einsum("hqk,khd->qhd", scores.softmax(-1).nan_to_num(), v)
        results.append((o, scores.logsumexp(-1).T / torch.tensor(2.0).log()))
    o, lse = (torch.cat(x) for x in zip(*results, strict=True))
    return o, lse


def test_slopes_in_prefill_with_pages() -> None:
    wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(WORKSPACE)
    mode = {"causal": True, "pos_encoding_mode": "ALIBI"}
    wrapper.plan(offsets(QUERIES), *ROWS, *SIZES, PAGE, q_data_type=BF16, **mode)
    assert wrapper._pos_encoding_mode == "ALIBI"
    q = normal(sum(QUERIES), HEADS, DIM)
    check(wrapper.run(q, BOTH, return_lse=True), by_slope(split(q, QUERIES), KEYS, VALUES))


def test_slopes_of_one_query_grow_along_the_keys() -> None:
    """The query of decoding has number 0, so that LSE contains slope x key."""
    q, k, v = normal(1, HEADS, DIM), KEYS[0], VALUES[0]
    o, lse = flashinfer.single_decode_with_kv_cache(
        q[0], k, v, pos_encoding_mode="ALIBI", return_lse=True
    )
    check((o[None], lse[None]), by_slope([q], [k], [v]))


def test_rotation_of_ragged_keys() -> None:
    wrapper = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(WORKSPACE)
    rope = {"pos_encoding_mode": "ROPE_LLAMA", "rope_scale": 2.0, "rope_theta": THETA}
    wrapper.plan(offsets(QUERIES), offsets(LENGTHS), *SIZES, causal=True, q_data_type=BF16, **rope)
    q, k, v = normal(sum(QUERIES), HEADS, DIM), torch.cat(KEYS), torch.cat(VALUES)
    queries = [turned(x, n - len(x), 2.0) for x, n in zip(split(q, QUERIES), LENGTHS, strict=True)]
    keys = [turned(x, 0, 2.0) for x in KEYS]
    check(wrapper.run(q, k, v, return_lse=True), truth(queries, keys, VALUES, causal=True))
    found = wrapper.forward(q, k, v, True, "ROPE_LLAMA", return_lse=True)  # base 10^4, scale 1
    queries = [
        turned(x, n - len(x), 1.0, 1e4) for x, n in zip(split(q, QUERIES), LENGTHS, strict=True)
    ]
    keys = [turned(x, 0, 1.0, 1e4) for x in KEYS]
    check(found, truth(queries, keys, VALUES, causal=True))


def test_rotation_of_one_sequence() -> None:
    q, k, v = normal(3, HEADS, DIM), KEYS[3], VALUES[3]
    found = flashinfer.single_prefill_with_kv_cache(
        q, k, v, causal=True, pos_encoding_mode="ROPE_LLAMA", rope_theta=THETA, return_lse=True
    )
    check(found, truth([turned(q, len(k) - 3)], [turned(k, 0)], [v], causal=True))


@pytest.mark.parametrize("kind", ["ragged", "paged"])
def test_sinks_by_jit_args(kind: str) -> None:
    """They follow the operands by position, and with them the scale of the call."""
    q = normal(sum(QUERIES), HEADS, DIM)
    options: dict[str, Any] = {"backend": "fa2", "jit_args": JIT}
    options["jit_kwargs"] = {"use_sliding_window": True, "pos_encoding_mode": 0}
    planned: dict[str, Any] = {"causal": True, "window_left": 9, "q_data_type": BF16}
    if kind == "ragged":
        wrapper: Any = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(WORKSPACE, **options)
        wrapper.plan(offsets(QUERIES), offsets(LENGTHS), *SIZES, **planned)
        operands = (q, torch.cat(KEYS), torch.cat(VALUES))
    else:
        wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(WORKSPACE, **options)
        wrapper.plan(offsets(QUERIES), *ROWS, *SIZES, PAGE, **planned)
        operands = (q, BOTH)
    meaning: dict[str, Any] = {"causal": True, "window_left": 9, "sinks": SINKS, "scale": 0.3}
    found = wrapper.run(*operands, SINKS, 0.3, return_lse=True)
    check(found, truth(split(q, QUERIES), KEYS, VALUES, **meaning))
    with pytest.raises(SpecError, match="^sinks must be given: jit_args declare an attention"):
        wrapper.run(*operands)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"jit_kwargs": {}}, "^jit_kwargs are of jit_args, which are None"),
        ({"jit_args": JIT[:5]}, "^jit_args must be a list of FlashInfer's, got"),
        (
            {"jit_args": [*JIT[:11], "FlashSigmoid", ""]},
            r"^jit_args of 'FlashSigmoid' with \['sink'\] and \['sm_scale'\] has no kernel",
        ),
        (
            {"jit_args": JIT, "jit_kwargs": {"use_fp16_qk_reduction": True}},
            "^use_fp16_qk_reduction of jit_kwargs at True has no kernel",
        ),
    ],
)
def test_other_variants_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        flashinfer.BatchPrefillWithRaggedKVCacheWrapper(WORKSPACE, **options)


@pytest.mark.parametrize(
    ("planned", "message"),
    [
        ({"pos_encoding_mode": "rope"}, "^pos_encoding_mode must be NONE or ALIBI or ROPE_LLAMA"),
        ({"pos_encoding_mode": "ROPE_LLAMA"}, "ROPE_LLAMA of keys in pages has no kernel: rotate"),
        (
            {"pos_encoding_mode": "ALIBI", "logits_soft_cap": 3.0},
            "^pos_encoding_mode ALIBI with logits_soft_cap has no kernel",
        ),
    ],
)
def test_other_positions_are_refused(planned: dict[str, Any], message: str) -> None:
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(WORKSPACE)
    with pytest.raises(SpecError, match=message):
        wrapper.plan(*ROWS, *SIZES, PAGE, **planned)


@pytest.mark.parametrize(
    ("rope", "message"),
    [
        ({"rope_theta": 0.0}, "^rope_theta must be greater than 0, got 0"),
        ({"rope_scale": "1"}, "^rope_scale must be a finite number"),
    ],
)
def test_rotations_are_refused(rope: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        flashinfer.single_decode_with_kv_cache(
            normal(HEADS, DIM), KEYS[0], VALUES[0], pos_encoding_mode="ROPE_LLAMA", **rope
        )
