"""FlashInfer's single sequences, merged states and cascades against their documented meaning."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from attn_mlir import flashinfer  # noqa: E402
from attn_mlir.errors import SpecError  # noqa: E402
from attn_mlir.flashinfer import merging  # noqa: E402
from attn_mlir.flashinfer import planned as planned_calls  # noqa: E402
from attn_mlir.validation.hosts.flashinfer_cache import (  # noqa: E402
    BF16,
    BOTH,
    DIM,
    HEADS,
    K_PAGES,
    KEYS,
    KV_HEADS,
    PAGE,
    SIZES,
    V_PAGES,
    VALUES,
    WORKSPACE,
    check,
    offsets,
    sequence,
    split,
    truth,
)
from attn_mlir.validation.numerics.torch_operands import i32, normal  # noqa: E402


def test_single_sequences() -> None:
    k, v = KEYS[0], VALUES[0]
    q = normal(7, HEADS, DIM)
    one = flashinfer.single_decode_with_kv_cache(q[0], k, v, return_lse=True)
    check([x[None] for x in one], truth([q[:1]], [k], [v]))
    turned = (k.transpose(0, 1).contiguous(), v.transpose(0, 1).contiguous())
    hnd = flashinfer.single_decode_with_kv_cache(q[0], *turned, "HND", return_lse=True)
    assert all(torch.equal(x, y) for x, y in zip(hnd, one, strict=True))
    found = flashinfer.single_prefill_with_kv_cache(q, k, v, causal=True, return_lse=True)
    check(found, truth([q], [k], [v], causal=True))
    mask = torch.rand(7, 40) < 0.5
    found = flashinfer.single_prefill_with_kv_cache(q, k, v, custom_mask=mask, return_lse=True)
    check(found, truth([q], [k], [v], masks=[mask]))


def test_merged_states() -> None:
    """States of parts become that of the whole; a mask keeps rows as they are."""
    k, v, q = KEYS[3], VALUES[3], normal(6, HEADS, DIM)
    ends = [0, 20, 20, 49]
    parts = [truth([q], [k[i:j]], [v[i:j]]) for i, j in itertools.pairwise(ends)]
    states = [(o.to(BF16), s.float()) for o, s in parts]
    want = truth([q], [k], [v])
    outputs, sums = (torch.stack(x, 1) for x in zip(*states, strict=True))
    check(flashinfer.merge_states(outputs, sums), want)
    pair = (*states[0], *states[2])
    check(flashinfer.merge_state(*pair), want)
    o, s = (x.clone() for x in states[0])
    mask = torch.tensor([True, False] * 3)
    flashinfer.merge_state_in_place(o, s, *states[2], mask)
    check((o[mask], s[mask]), (want[0][mask], want[1][mask]))
    assert torch.equal(o[~mask], states[0][0][~mask]) and torch.equal(s[~mask], states[0][1][~mask])


def test_merged_states_without_keys() -> None:
    """Parts that saw none, with the LSE of our kernels or of FlashMLA's; O of such a part is not read."""
    sums = torch.tensor(
        [[1.0, -torch.inf, torch.inf, torch.inf], [-torch.inf, 2.0, 3.0, -torch.inf]]
    )
    outputs = torch.arange(2.0)[:, None, None].expand(2, HEADS, DIM) + 1
    outputs = torch.where(sums.isinf()[..., None], torch.nan, outputs)
    found = flashinfer.merge_state(outputs[0][None], sums[0][None], outputs[1][None], sums[1][None])
    assert found[0][0, :, 0].tolist() == [1.0, 2.0, 2.0, 0.0]
    assert found[1][0].tolist() == [1.0, 2.0, 3.0, -torch.inf]


@pytest.mark.parametrize("largest", [0.0, 6e4, 3.5e5, -3.5e5])
def test_merged_states_with_large_sums(largest: float) -> None:
    """A part of twice the weight of the other one, wherever their sums lie."""
    outputs = torch.stack([torch.zeros(1, HEADS, DIM), torch.ones(1, HEADS, DIM)], 1)
    sums = torch.tensor([largest, largest - 1])[None, :, None].expand(1, 2, HEADS)
    o, lse = flashinfer.merge_states(outputs, sums)
    assert (o.double() - 1 / 3).abs().max() < 1e-6
    assert torch.equal(lse, torch.full((1, HEADS), largest + math.log2(1.5)))


def test_cascade() -> None:
    """Two levels: pages that all share, and pages of each."""
    shared, own = [8, 7], [[3, 1], [0]]
    lengths, counts = [25, 9], [3, 2]
    wrapper = flashinfer.MultiLevelCascadeAttentionWrapper(2, WORKSPACE)
    wrapper.plan(
        [offsets([5]), offsets(counts)],
        [offsets([2]), offsets([2, 1])],
        [i32(*shared), i32(3, 1, 0)],
        [i32(PAGE), i32(9, 9)],
        *SIZES,
        PAGE,
        causal=True,
        q_data_type=BF16,
    )
    q = normal(5, HEADS, DIM)
    keys, values = (
        [
            torch.cat([sequence(pool, shared, 32), sequence(pool, pages, n)])
            for pages, n in zip(own, lengths, strict=True)
        ]
        for pool in (K_PAGES, V_PAGES)
    )
    o = wrapper.run(q, BOTH)
    assert o.dtype == BF16
    want, _ = truth(split(q, counts), keys, values, causal=True)
    assert (o.double() - want).abs().max() < 0.02


@pytest.mark.parametrize(
    ("q_dtype", "head_dim", "of_levels", "of_o"),
    [
        ("bfloat16", 256, None, BF16),
        ("bfloat16", 192, "f32", BF16),
        ("float8_e4m3fn", 128, "f32", BF16),
    ],
)
def test_types_of_levels(
    q_dtype: str, head_dim: int, of_levels: str | None, of_o: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Levels keep O in f32 where there is a kernel for it; O is q's, or bf16 where q has 8 bits."""
    seen: list[Any] = []

    def attend(problem: Any, q: Any, *_: Any, **__: Any) -> Any:
        seen.append(problem.out_dtype)
        return q.float(), q.float()[..., 0]

    monkeypatch.setattr(planned_calls.Problem, "attend", attend)
    monkeypatch.setattr(
        merging, "flash_attn_combine", lambda o, s, out_dtype: (o[0].to(out_dtype), s[0])
    )
    wrapper = flashinfer.MultiLevelCascadeAttentionWrapper(2, WORKSPACE)
    rows = ([offsets([1])] * 2, [offsets([1])] * 2, [i32(0), i32(1)], [i32(PAGE)] * 2)
    wrapper.plan(*rows, HEADS, KV_HEADS, head_dim, PAGE, q_data_type=q_dtype)
    dtype = getattr(torch, q_dtype)
    q, pool = (torch.zeros(*n, head_dim).to(dtype) for n in ((1, HEADS), (2, 2, PAGE, KV_HEADS)))
    assert wrapper.run(q, pool).dtype == of_o and seen == [of_levels] * 2


def test_windows_over_levels_are_refused() -> None:
    """Each level would count the window over its own keys; one level has all keys."""
    for count in (1, 2):
        wrapper = flashinfer.MultiLevelCascadeAttentionWrapper(count, WORKSPACE)
        rows = [[offsets([1])] * count, [offsets([1])] * count, [i32(0)] * count, [i32(9)] * count]
        wrapper.plan(*rows, *SIZES, PAGE)
        if count == 1:
            wrapper.plan(*rows, *SIZES, PAGE, window_left=3)
            continue
        with pytest.raises(SpecError, match="^window_left must be -1 with 2 levels, got 3: each"):
            wrapper.plan(*rows, *SIZES, PAGE, window_left=3)
