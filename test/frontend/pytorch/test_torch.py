"""`attn_mlir.torch` against PyTorch's own functions, on the emulator."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch: Any = pytest.importorskip("torch")

from torch.nn.attention.bias import causal_lower_right, causal_upper_left  # noqa: E402 # pyright: ignore
from torch.nn.attention.flex_attention import AuxRequest  # noqa: E402 # pyright: ignore

import attn_mlir as am  # noqa: E402
import attn_mlir.torch as at  # noqa: E402
from attn_mlir import env  # noqa: E402
from attn_mlir.errors import SpecError  # noqa: E402
from attn_mlir.mods import bias  # noqa: E402
from attn_mlir.runtime.kernel import launching_on  # noqa: E402
from attn_mlir.trace import trace  # noqa: E402

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
@pytest.mark.long("float [q, k]", "float [heads, q, k]", "bool [q, k]", "expanded")
def test_attn_mask(name: str) -> None:
    q, k, v = operands()
    made = at.scaled_dot_product_attention(q, k, v, attn_mask=MASKS[name])
    close(made, truth(q, k, v, attn_mask=MASKS[name]))


@pytest.mark.parametrize("sizes", [(SQ, SQ), (SQ, SK), (SK, SQ)])
@pytest.mark.long("sizes0", "sizes1")
def test_causal_is_aligned_as_in_pytorch(sizes: tuple[int, int]) -> None:
    q, k, v = operands(sq=sizes[0], sk=sizes[1], dtype="float16")
    close(at.scaled_dot_product_attention(q, k, v, is_causal=True), truth(q, k, v, is_causal=True))


@pytest.mark.parametrize("made", [causal_lower_right, causal_upper_left])
def test_causal_bias(made: Callable[..., Any], graphs_afresh: None) -> None:
    """PyTorch's answer to unequal lengths, whose own memory holds nothing."""
    q, k, v = operands(sq=16, sk=24)
    bias = made(16, 24)
    sdpa = at.scaled_dot_product_attention
    wanted = truth(q, k, v, attn_mask=bias._materialize())
    close(sdpa(q, k, v, bias), wanted)
    close(torch.compile(sdpa, backend="eager", fullgraph=True)(q, k, v, bias), wanted)


def test_hints_for_other_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Are left out, with one line in the log for all that there are."""
    q, k, v = operands(sq=16, sk=24)
    hints: dict[str, Any] = {"BLOCK_M": 64, "bwd_BLOCK_M1": 32, "num_warps": 4, "num_stages": 2}
    hints |= {"PRESCALE_QK": True, "ROWS_GUARANTEED_SAFE": True, "USE_TMA": False, "WRITE_DQ": True}
    said: list[tuple[str, str]] = []
    monkeypatch.setattr(env, "log", lambda *told: said.append(told))
    made = [at.flex_attention(q, k, v, kernel_options=hints) for _ in range(2)]
    names = ", ".join(hints)
    line = f"flex_attention leaves out kernel_options {names}: hints for kernels of Triton"
    assert said.count(("info", line)) == 1
    assert torch.equal(made[1], at.flex_attention(q, k, v))


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


@pytest.mark.parametrize("lead", [(), (3,), (2, 1, 2)])
@pytest.mark.long("lead2")
def test_ranks(lead: tuple[int, ...]) -> None:
    """Heads of rank 3 and less are single ones: a kernel for one head serves them all."""
    q, k = (torch.randn(*lead, length, 64).to(torch.bfloat16) for length in (9, 20))
    mask = torch.rand(*lead[:-1], 1, 9, 20) < 0.7 if lead else None
    made = at.scaled_dot_product_attention(q, k, k, attn_mask=mask)
    close(made, truth(q, k, k, attn_mask=mask))


def test_repeated_batch_and_strides() -> None:
    """One key for all of the batch, and masks whatever their strides."""
    q, k, v = operands()
    turned, steps = torch.randn(SK, SQ).T, torch.randn(HEADS, SQ, 3 * SK)[..., ::3]
    for mask in (turned, steps, torch.randn(SQ, 1).expand(SQ, SK)):
        made = at.scaled_dot_product_attention(q, k[:1], v[:1, :1], attn_mask=mask)
        close(made, truth(q, k[:1], v[:1, :1], attn_mask=mask))


def test_autocast() -> None:
    """Operands in float32 are converted where PyTorch converts them."""
    q, k, v = (x.float() for x in operands())
    with torch.autocast("cpu"):
        made = at.scaled_dot_product_attention(q, k, v)
    close(made, truth(q, k, v))


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


def test_auxiliary_results() -> None:
    q, k, v = operands()
    o, aux = at.flex_attention(q, k, v, return_aux=AuxRequest(lse=True))
    close(o, truth(q, k, v))
    assert (
        aux.max_scores is None and (aux.lse - flex_truth(q, k, v, None, None)[1]).abs().max() < 1e-3
    )
    _, nothing = at.flex_attention(q, k, v, return_aux=AuxRequest())
    assert nothing.lse is None and nothing.max_scores is None


def test_indices_and_ids_as_in_pytorch() -> None:
    """Below 0 they count from the end, ids have 64 bits, and outside a tensor there is nothing."""
    q, k, v = operands()
    table, ids = torch.randn(HEADS, SQ + SK), (torch.arange(SK) // 25) << 32

    def score_mod(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return score + table[h, q_idx - kv_idx] + table[-1, -h]

    def mask_mod(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return ids[q_idx] == ids[kv_idx]

    o = at.flex_attention(q, k, v, score_mod, mask_mod=mask_mod)
    close(o, flex_truth(q, k, v, score_mod, mask_mod)[0])
    short = table[:, : SK - 2]
    with pytest.raises(SpecError, match="short is indexed with -69 along axis 1, which has 68"):
        at.flex_attention(q, k, v, lambda s, b, h, i, j: s + short[h, i - j])


def test_block_mask() -> None:
    from torch.nn.attention.flex_attention import create_block_mask  # pyright: ignore

    def mask_mod(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return (q_idx >= kv_idx) | (kv_idx < 10)

    q, k, v = operands()
    blocks = create_block_mask(mask_mod, BATCH, HEADS, SQ, SK, device="cpu")
    o = at.flex_attention(q, k, v, block_mask=blocks)
    close(o, flex_truth(q, k, v, None, mask_mod)[0])


@pytest.mark.parametrize("target", ["sm_100a", "sm_90a"])
@pytest.mark.long("sm_90a")
def test_lists_of_a_block_mask_are_walked(target: str) -> None:
    """Blocks that a BlockMask leaves out do not count, whatever its predicate says of them."""
    from torch.nn.attention.flex_attention import BlockMask  # pyright: ignore

    q, k, v = operands(sq=200, sk=300)
    numbers = torch.tensor([[[2, 1]]], dtype=torch.int32)
    indices = torch.tensor([[[[2, 0, 0], [1, 0, 0]]]], dtype=torch.int32)
    blocks = BlockMask.from_kv_blocks(numbers, indices, seq_lengths=(200, 300))

    def listed(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return (q_idx < 128) ^ (kv_idx // 128 == 1)

    with launching_on(am.EmulatorDevice(target=target)):
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


def fake(*shape: int, dtype: Any = torch.bfloat16) -> Any:
    return torch.empty(shape, dtype=dtype, device="meta")


BIAS = trace(bias(np.zeros((SQ, SK), np.float32)))[0]
BIASED = "" if BIAS is None else BIAS.canonical()
FAKES: list[tuple[dict[str, Any], str]] = [
    ({"q": fake(2, 40, 4, 64, dtype=torch.float32)}, "q has dtype f32"),
    ({"k": fake(2, 70, 4, 64, dtype=torch.float16)}, "k is f16, q is bf16"),
    ({"q": fake(2, 40, 256)}, "q must be [batch, sequence, heads, head_dim]"),
    ({"k": fake(2, 70, 4, 72)}, "k has head_dim 72, q has 64"),
    ({"v": fake(2, 71, 4, 64)}, "k and v must agree but for head_dim"),
    ({"k": fake(2, 70, 3, 64), "v": fake(2, 70, 3, 64)}, "kv_heads must divide heads"),
    ({"q": fake(2, 40, 4, 60), "k": fake(2, 70, 4, 60)}, "head_dim 60 has no kernel"),
    ({"mask": "triangle"}, "mask 'triangle' has no kernel"),
    ({"scale": 0.0}, "scale must be finite and greater than 0"),
    ({"modifier": "{}"}, "no program of a score modifier"),
    ({"captured": [fake(3)]}, "captured must hold 0 tensors (none), got 1"),
    ({"modifier": BIASED}, "captured must hold 1 tensors (tensor), got 0"),
    (
        {"modifier": BIASED, "captured": [fake(40, 70)]},
        "captured tensor must be f32 of 2 dimensions, got bf16 of shape [40, 70]",
    ),
    (
        {"modifier": BIASED, "captured": [fake(0, 70, dtype=torch.float32)]},
        "tensor is captured and indexed, but has no element",
    ),
    ({"block": [128, 1, 128]}, "captured must hold 2 tensors (block_counts, block_indices), got 0"),
]


@pytest.mark.parametrize(("changes", "message"), FAKES)
def test_fake_kernel_refuses(changes: dict[str, Any], message: str) -> None:
    """What the operator refuses, before a graph with it is run."""
    q, k = fake(2, 40, 4, 64), fake(2, 70, 4, 64)
    arguments = {"q": q, "k": k, "v": k, "captured": [], "modifier": "", "mask": "full", "scale": 1}
    with pytest.raises(SpecError, match=re.escape(message)):
        torch.ops.attn_mlir.attention(**(arguments | changes))


def test_inside_a_compiled_function() -> None:
    q, k, v = operands()

    @torch.compile(backend="eager", fullgraph=True)
    def block(q: Any, k: Any, v: Any) -> Any:
        x = [t.transpose(1, 2) for t in (q * 2, k, v)]
        o, _ = torch.ops.attn_mlir.attention(*x, [], "", "full", 0.125)
        return o.transpose(1, 2) + 1

    close(block(q, k, v) - 1, truth(q * 2, k, v))


def mixed(*, dtype: str = "bfloat16", head_dim: int = 64) -> tuple[Any, ...]:
    """Operands of which the key is of another dtype or head size."""
    q, k, v = operands()
    return q, torch.zeros(*k.shape[:3], head_dim, dtype=getattr(torch, dtype)), v


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
        "batch and heads must agree or be 1, got query [2, 4, 40, 64], key [2, 2, 70, 64], value "
        "[2, 2, 70, 64]; enable_gqa=True lets heads be a multiple",
    ),
    (
        lambda: at.scaled_dot_product_attention(*operands(dtype="float32")),
        "query is torch.float32, allowed are torch.bfloat16, torch.float16: convert query, key and "
        "value with .to(torch.bfloat16)",
    ),
    (
        lambda: at.scaled_dot_product_attention(*(x[0, 0, 0] for x in operands())),
        "query must be [..., sequence, head_dim], got [64]",
    ),
    (
        lambda: at.scaled_dot_product_attention(*(x[..., :0] for x in operands())),
        "query of head_dim 0 has no kernel: a row has an element at least",
    ),
    (
        lambda: at.scaled_dot_product_attention(*(x.to(torch.float8_e5m2) for x in operands())),
        "attn_mlir.attention takes 8 bits, with their scales",
    ),
    (
        lambda: at.scaled_dot_product_attention(*(x.to_sparse() for x in operands())),
        "query must be a dense tensor, got one of layout torch.sparse_coo",
    ),
    (
        lambda: at.scaled_dot_product_attention(*mixed(dtype="float16")),
        "key is torch.float16, query is torch.bfloat16: convert one of them",
    ),
    (
        lambda: at.scaled_dot_product_attention(*mixed(head_dim=72)),
        "key has head_dim 72, query has 64",
    ),
    (
        lambda: at.scaled_dot_product_attention(*operands(), attn_mask=torch.randn(SQ, SQ)),
        "attn_mask has shape [40, 40]: it must have 2 to 4 dimensions, each 1 or that of the scores",
    ),
    (
        lambda: at.scaled_dot_product_attention(*operands(), attn_mask=torch.arange(SK)[None]),
        "attn_mask is torch.int64, allowed are torch.bool, torch.float32, torch.bfloat16",
    ),
    (
        lambda: at.scaled_dot_product_attention(
            *operands(), attn_mask=torch.zeros(SQ, SK, requires_grad=True)
        ),
        "attn_mask requires a gradient",
    ),
    (
        lambda: at.flex_attention(*(x[0] for x in operands())),
        "query must be [batch, heads, sequence, head_dim], got [4, 40, 64]",
    ),
    (
        lambda: at.flex_attention(*operands(), return_aux=AuxRequest(max_scores=True)),
        "return_aux.max_scores is not offered, only lse",
    ),
    (
        lambda: at.flex_attention(*operands(), return_aux=AuxRequest(), return_lse=True),
        "return_lse and return_aux exclude each other",
    ),
    (
        lambda: at.scaled_dot_product_attention(*operands()[:1], *on_meta()),
        "key is on meta, query is on cpu",
    ),
    (lambda: at.flex_attention(*operands()[:1], *on_meta()), "key is on meta, query is on cpu"),
    (
        lambda: am.attention(*in_our_layout()[:2], in_our_layout()[2].to("meta")),
        "v is a torch.Tensor that is traced, transformed or on meta, and has no elements here",
    ),
    (lambda: at.scaled_dot_product_attention(*operands(), attn_mask=1), "attn_mask must be a"),
    (lambda: at.scaled_dot_product_attention(*operands(), scale=0.0), "scale must be finite"),
    (lambda: at.scaled_dot_product_attention(1, 2, 3), "query must be a tensor, got int"),
    (lambda: at.flex_attention(*operands(), block_mask=3), "block_mask must be a BlockMask"),
    (
        lambda: at.flex_attention(*operands(), kernel_options={"SM_SCALE": 2.0}),
        "kernel_options['SM_SCALE'] says what is computed and is PyTorch's own: leave it out",
    ),
    (
        lambda: at.flex_attention(*operands(), kernel_options={"fwd_BLOCK_Q": 64}),
        "kernel_options['fwd_BLOCK_Q'] is no option of flex_attention: hints are BACKEND, BLOCKS_ARE",
    ),
    (
        lambda: at.flex_attention(*operands(), kernel_options={"num_warps": "4"}),
        "kernel_options['num_warps'] must be an integer from 1 to 2147483647, got '4'",
    ),
    (
        lambda: at.flex_attention(*operands(), kernel_options={"BACKEND": "CUDNN"}),
        "kernel_options['BACKEND'] must be one of AUTO, TRITON, FLASH, TRITON_DECODE, got 'CUDNN'",
    ),
    (
        lambda: at.flex_attention(*operands(), kernel_options=np.zeros(2)),
        "kernel_options must be a dict or None",
    ),
    (
        lambda: at.flex_attention(*operands(), scale=torch.nn.Parameter(torch.ones(()))),
        "scale requires a gradient, which it has none of here",
    ),
    (
        lambda: at.scaled_dot_product_attention(
            *operands(), attn_mask=causal_lower_right(SQ, SK + 1)
        ),
        f"attn_mask is a CausalBias for sq, sk = ({SQ}, {SK + 1}), the call has ({SQ}, {SK})",
    ),
    (
        lambda: at.flex_attention(*operands(), return_aux=True),
        "return_aux must be PyTorch's AuxReq",
    ),
    (lambda: at.flex_attention(*operands(), return_lse="yes"), "return_lse must be True or False"),
    (lambda: at.flex_attention(*operands(), enable_gqa=1), "enable_gqa must be True or False"),
    (
        lambda: at.scaled_dot_product_attention(*operands(), is_causal="no"),
        "is_causal must be True or",
    ),
    (
        lambda: at.scaled_dot_product_attention(*operands(), dropout_p=None),
        "dropout_p must be 0, got None",
    ),
    (
        lambda: at.flex_attention(*(torch.zeros(1, 2, 8, 256, requires_grad=True).bfloat16(),) * 3),
        "query requires a gradient, which this call has none of: sm_100a has no kernel: ",
    ),
]


def on_meta() -> list[Any]:
    """Keys and values of which there are only shapes."""
    return [x.to("meta") for x in operands()[1:]]


def in_our_layout() -> list[Any]:
    """Operands as `am.attention` takes them."""
    return [x.transpose(1, 2) for x in operands()]


@pytest.mark.parametrize(("call", "message"), REFUSED)
def test_refused(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(SpecError, match=re.escape(message)):
        call()
