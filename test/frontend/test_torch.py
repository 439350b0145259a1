"""`attn_mlir.torch` against PyTorch's own functions, on the emulator."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

import attn_mlir.torch as at  # noqa: E402
from attn_mlir.errors import SpecError  # noqa: E402

pytestmark = pytest.mark.slow
BATCH, HEADS, KV_HEADS, SQ, SK = 2, 4, 2, 40, 70


def operands(
    *, sq: int = SQ, sk: int = SK, kv_heads: int = HEADS, dtype: str = "bfloat16"
) -> tuple[Any, ...]:
    torch.manual_seed(sq + sk)
    shapes = ((HEADS, sq), (kv_heads, sk), (kv_heads, sk))
    return tuple(
        torch.randn(BATCH, heads, length, 64).to(getattr(torch, dtype)) for heads, length in shapes
    )


def close(made: Any, truth: Any) -> None:
    """Within the rounding of the operands' types; the numerics tests judge more strictly."""
    assert made.dtype in (torch.bfloat16, torch.float16) and made.shape == truth.shape
    tolerance = 0.02 if made.dtype == torch.bfloat16 else 0.003
    assert (made.double() - truth).abs().max() < tolerance


def truth(q: Any, k: Any, v: Any, **options: Any) -> Any:
    mask = options.pop("attn_mask", None)
    if mask is not None and mask.dtype != torch.bool:
        mask = mask.double()
    return torch.nn.functional.scaled_dot_product_attention(
        q.double(), k.double(), v.double(), attn_mask=mask, **options
    )


torch.manual_seed(0)
MASKS: dict[str, Any] = {
    "bool [q, k]": torch.rand(SQ, SK) > 0.3,
    "bool [batch, 1, 1, k]": torch.rand(BATCH, 1, 1, SK) > 0.3,
    "float [q, k]": torch.randn(SQ, SK),
    "bf16 [batch, heads, q, k]": torch.randn(BATCH, HEADS, SQ, SK).to(torch.bfloat16),
    "float [heads, q, k]": torch.randn(HEADS, SQ, SK),
    "expanded": torch.randn(SQ, SK).expand(BATCH, HEADS, SQ, SK),
}


@pytest.mark.parametrize("name", MASKS)
def test_attn_mask(name: str) -> None:
    q, k, v = operands()
    made = at.scaled_dot_product_attention(q, k, v, attn_mask=MASKS[name])
    close(made, truth(q, k, v, attn_mask=MASKS[name]))


@pytest.mark.parametrize("sizes", [(SQ, SQ), (SQ, SK), (SK, SQ)])
def test_causal_is_aligned_as_in_pytorch(sizes: tuple[int, int]) -> None:
    q, k, v = operands(sq=sizes[0], sk=sizes[1], dtype="float16")
    close(at.scaled_dot_product_attention(q, k, v, is_causal=True), truth(q, k, v, is_causal=True))


def test_grouped_heads_and_scale() -> None:
    q, k, v = operands(kv_heads=KV_HEADS)
    made = at.scaled_dot_product_attention(q, k, v, scale=0.3, enable_gqa=True)
    close(made, truth(q, k, v, scale=0.3, enable_gqa=True))


def test_views_are_neither_copied_nor_refused() -> None:
    packed = torch.randn(BATCH, SQ, 3, HEADS, 64).to(torch.bfloat16)
    q, k, v = (packed[:, :, i].transpose(1, 2) for i in range(3))
    made = at.scaled_dot_product_attention(q, k, v)
    close(made, truth(q, k, v))
    assert made.transpose(1, 2).is_contiguous()


def flex_truth(q: Any, k: Any, v: Any, score_mod: Any, mask_mod: Any) -> tuple[Any, Any]:
    """What the functions say, evaluated by PyTorch itself on index tensors."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1).double() for x in (k, v))
    scores = q.double() @ k.transpose(2, 3) / 8
    shape = scores.shape
    b, h, i, j = (
        torch.arange(n).reshape([-1 if a == axis else 1 for a in range(4)]).expand(shape)
        for axis, n in enumerate(shape)
    )
    if score_mod is not None:
        scores = score_mod(scores, b, h, i, j)
    if mask_mod is not None:
        scores = scores.masked_fill(~mask_mod(b, h, i, j), -float("inf"))
    return scores.softmax(-1).nan_to_num(0.0) @ v, scores.logsumexp(-1)


def test_flex_attention() -> None:
    q, k, v = operands(kv_heads=KV_HEADS)
    table = torch.randn(HEADS, SQ + SK)
    cap = torch.tensor(5.0)
    ids = torch.arange(SK) // 25

    def score_mod(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return cap * torch.tanh((score + table[h, q_idx - kv_idx + SK]) / cap)

    def mask_mod(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return (ids[q_idx] == ids[kv_idx]) & (q_idx >= kv_idx) & (q_idx != 3)

    o, lse = at.flex_attention(
        q, k, v, score_mod, mask_mod=mask_mod, enable_gqa=True, return_lse=True
    )
    expected, expected_lse = flex_truth(q, k, v, score_mod, mask_mod)
    close(o, expected)
    assert torch.isneginf(lse[:, :, 3]).all() and (o[:, :, 3] == 0).all()
    seen = torch.isfinite(expected_lse)
    assert (lse[seen] - expected_lse[seen]).abs().max() < 1e-3
    assert torch.equal(torch.isneginf(lse), ~seen)


def test_block_mask() -> None:
    from torch.nn.attention.flex_attention import create_block_mask  # pyright: ignore

    def mask_mod(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return (q_idx >= kv_idx) | (kv_idx < 10)

    q, k, v = operands()
    blocks = create_block_mask(mask_mod, BATCH, HEADS, SQ, SK, device="cpu")
    o = at.flex_attention(q, k, v, block_mask=blocks)
    close(o, flex_truth(q, k, v, None, mask_mod)[0])


def test_lists_of_a_block_mask_are_walked() -> None:
    """Blocks that a BlockMask leaves out do not count, whatever its predicate says of them."""
    from torch.nn.attention.flex_attention import BlockMask  # pyright: ignore

    q, k, v = operands(sq=200, sk=300)
    numbers = torch.tensor([[[2, 1]]], dtype=torch.int32)
    indices = torch.tensor([[[[2, 0, 0], [1, 0, 0]]]], dtype=torch.int32)
    blocks = BlockMask.from_kv_blocks(numbers, indices, seq_lengths=(200, 300))

    def listed(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return (q_idx < 128) ^ (kv_idx // 128 == 1)

    o = at.flex_attention(q, k, v, block_mask=blocks)
    close(o, flex_truth(q, k, v, None, listed)[0])
    with pytest.raises(SpecError, match=r"block_mask is for sq, sk = \(200, 300\)"):
        at.flex_attention(*operands(), block_mask=blocks)


def test_operator() -> None:
    q, k, v = (x.transpose(1, 2) for x in operands(kv_heads=KV_HEADS))
    arguments = (q, k, v, [], "", "full", 0.125)
    checks = ("test_schema", "test_faketensor")
    torch.library.opcheck(torch.ops.attn_mlir.attention.default, arguments, test_utils=checks)
    with torch.device("meta"):
        meta = [torch.empty_like(x, device="meta") for x in (q, k, v)]
    o, lse = torch.ops.attn_mlir.attention(*meta, [], "", "causal", 0.125)
    assert o.shape == q.shape and o.dtype == q.dtype and lse.dtype == torch.float32


def test_inside_a_compiled_function() -> None:
    q, k, v = operands()

    @torch.compile(backend="eager", fullgraph=True)
    def block(q: Any, k: Any, v: Any) -> Any:
        x = [t.transpose(1, 2) for t in (q * 2, k, v)]
        o, _ = torch.ops.attn_mlir.attention(*x, [], "", "full", 0.125)
        return o.transpose(1, 2) + 1

    close(block(q, k, v) - 1, truth(q * 2, k, v))


REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: at.scaled_dot_product_attention(*operands(), dropout_p=0.1), "dropout_p must be 0"),
    (
        lambda: at.scaled_dot_product_attention(
            *operands(), attn_mask=MASKS["bool [q, k]"], is_causal=True
        ),
        "attn_mask and is_causal exclude each other",
    ),
    (
        lambda: at.scaled_dot_product_attention(*operands(kv_heads=KV_HEADS)),
        "query has 4 heads, key has 2: pass enable_gqa=True",
    ),
    (
        lambda: at.scaled_dot_product_attention(*operands(dtype="float32")),
        "q has dtype f32, allowed are bf16, f16, e4m3, e5m2",
    ),
    (
        lambda: at.scaled_dot_product_attention(*(x[0] for x in operands())),
        "query must be [batch, heads, sequence, head_dim], got [4, 40, 64]",
    ),
    (
        lambda: at.scaled_dot_product_attention(*operands(), attn_mask=torch.randn(SK)),
        "attn_mask must have 2 to 4 dimensions, got [70]",
    ),
    (
        lambda: at.scaled_dot_product_attention(*operands(), attn_mask=torch.randn(SQ, SQ)),
        "bias has shape [40, 40], it must be [sq, sk] with sk = 70",
    ),
    (
        lambda: at.scaled_dot_product_attention(*operands(), attn_mask=torch.arange(SK)[None]),
        "bias must be of f32, bf16, f16, got i64",
    ),
    (lambda: at.scaled_dot_product_attention(*operands(), attn_mask=1), "attn_mask must be a"),
    (lambda: at.scaled_dot_product_attention(*operands(), scale=0.0), "scale must be finite"),
    (lambda: at.scaled_dot_product_attention(1, 2, 3), "query must be a tensor, got int"),
    (lambda: at.flex_attention(*operands(), block_mask=3), "block_mask must be a BlockMask"),
    (
        lambda: at.flex_attention(*operands(), kernel_options={"BLOCK_M": 64}),
        "kernel_options are not offered, got BLOCK_M",
    ),
    (
        lambda: at.flex_attention(*(x.requires_grad_() for x in operands())),
        "query requires a gradient",
    ),
]


@pytest.mark.parametrize(("call", "message"), REFUSED)
def test_refused(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(SpecError, match=re.escape(message)):
        call()
