"""`sparse_mla` and FlashMLA's function: what does not belong together is refused by the caller's names."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import attn_mlir as am
from attn_mlir.api.latent.sparse_mla import sparse_mla
from attn_mlir.api.planners import only_planned
from attn_mlir.compiling.sparse_mla import SparseMlaSpec
from attn_mlir.errors import SpecError
from attn_mlir.flash_mla import flash_mla_sparse_fwd
from attn_mlir.runtime.call.tensors import host_array, view

BF16: Any = ml_dtypes.bfloat16

SHARED = np.zeros((2, 16, 576), BF16)
PAGED: dict[str, Any] = {
    "kv": np.zeros((4, 5, 1, 576), BF16),
    "page_table": np.zeros((1, 1), np.int32),
    "batch_of_query": np.zeros(2, np.int32),
}


def given(**changed: Any) -> dict[str, Any]:
    """A call that is right but for what is changed."""
    right = {
        "q": np.zeros((2, 16, 576), BF16),
        "kv": np.zeros((5, 1, 576), BF16),
        "indices": np.zeros((2, 3), np.int32),
        "scale": 1.0,
    }
    return right | changed


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"q": np.zeros((2, 576), BF16)}, r"q must be \[s_q, heads, d_qk\], got \[2, 576\]"),
        ({"q": np.zeros((2, 16, 64), BF16)}, "q must have 576 or 512 columns, got 64"),
        ({"q": np.zeros((2, 16, 576), np.float32)}, "q must be bf16 or f16 or e4m3, got f32"),
        ({"q": np.zeros((2, 16, 576), np.float16)}, "kv is bf16, q is f16: both must be the same"),
        ({"kv": np.zeros((5, 1, 576), np.float16)}, "kv is f16, q is bf16: both must be the same"),
        (
            {
                "q": np.zeros((2, 16, 576), np.float16),
                "kv": np.zeros((5, 1, 656), np.uint8),
                "kv_format": "v32",
            },
            "q must be bf16 for kv_format 'v32', got f16",
        ),
        ({"out_dtype": "e4m3"}, "out_dtype 'e4m3' has no kernel: supported are bf16, f16, f32"),
        ({"out": np.zeros((2, 16, 512), np.float64)}, "out has dtype f64, allowed are bf16, f16"),
        ({"out": np.zeros((2, 16, 512), BF16), "out_dtype": "f16"}, "out must be f16, got bf16"),
        ({"out": np.zeros((2, 16, 576), BF16)}, r"out must have shape \[2, 16, 512\], got"),
        ({"q": SHARED, "out": SHARED[..., :512]}, "out .* q"),
        ({"q": np.zeros((2, 12, 576), BF16)}, "heads must be a multiple of 8 up to 64, or of 64"),
        ({"q": np.zeros((2, 72, 576), BF16)}, "heads must be a multiple of 8 up to 64, or of 64"),
        ({"kv": np.zeros((5, 576), BF16)}, r"kv must be \[s_kv, 1, d_qk\], got \[5, 576\]"),
        ({"kv": np.zeros((5, 1, 512), BF16)}, r"kv must be \[s_kv, 1, 576\] .* got \[5, 1, 512\]"),
        ({"kv": np.zeros((5, 2, 576), BF16)}, r"kv must be \[s_kv, 1, 576\] .* got \[5, 2, 576\]"),
        ({"kv": np.zeros((0, 1, 576), BF16)}, r"with 1 to 2147483647 rows .* got \[0, 1, 576\]"),
        ({"indices": np.zeros((3, 3), np.int32)}, r"indices must be \[2, topk\] .* got \[3, 3\]"),
        ({"indices": np.zeros((2, 0), np.int32)}, r"with an entry at least .* got \[2, 0\]"),
        ({"indices": np.zeros((2, 3), np.int64)}, "indices must be i32 or u32, got i64"),
        ({"scale": 0.0}, "scale must be"),
        ({"scale": None}, "scale must be a number: it is the model's"),
        ({"v_dim": 576}, "v_dim must be 512, got 576"),
        ({"topk_length": np.zeros(3, np.int32)}, r"topk_length must be \[2\] of i32, got \[3\]"),
        (
            {"topk_length": np.array([3, 4], np.int32)},
            r"topk_length\[1\] is 4: lists have 3 entries",
        ),
        ({"topk_length": np.array([-1, 0], np.int32)}, r"topk_length\[0\] is -1: .* so 0 to 3 of"),
        (
            {"topk_length": np.array([2**32 - 1, 0], np.uint32)},
            r"topk_length\[0\] is 4294967295: l",
        ),
        ({"sinks": np.zeros(16, BF16)}, r"sinks must be \[16\] of f32, got \[16\] of bf16"),
        ({"page_table": np.zeros((1, 1), np.int32)}, "go together, batch_of_query is None"),
        ({"batch_of_query": np.zeros(2, np.int32)}, "go together, page_table is None"),
        (PAGED | {"kv": np.zeros((5, 1, 576), BF16)}, r"kv must be \[pages, page, 1, d_qk\] with"),
        (PAGED | {"page_table": np.zeros((1, 0), np.int32)}, r"page_table must be .* got \[1, 0\]"),
        (PAGED | {"batch_of_query": np.zeros(3, np.int32)}, r"batch_of_query must be \[2\] of i32"),
        (
            PAGED | {"kv": np.zeros((4, 8, 1, 576), BF16)[:, :5]},
            "one behind the other, 2880 .* 4608",
        ),
        ({"kv_format": "v32"}, r"kv must be \[s_kv, 1, 656\] or .* got \[5, 1, 576\]"),
        ({"kv_format": "fp4"}, "kv_format must be one of bf16, v32, model1, e4m3, e4m3_rope16"),
        ({"kv_scale": np.ones(1)}, "kv_scale must be None for kv_format 'bf16'"),
    ],
    ids=str,
)
def test_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        am.sparse_mla(**given(**changed), device="emulator")


def test_flash_mla_has_a_head_axis_in_its_lists() -> None:
    call = given()
    with pytest.raises(SpecError, match=r"indices must be \[s_q, 1, topk\], got \[2, 3\]"):
        flash_mla_sparse_fwd(call["q"], call["kv"], call["indices"], 1.0, device="emulator")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"d_v": 256}, "^d_v must be 512, got 256"),
        ({"sm_scale": float("nan")}, "^sm_scale must be finite and greater than 0"),
        ({"attn_sink": np.zeros(8, np.float32)}, r"^attn_sink must be \[16\] of f32, got \[8\]"),
        ({"topk_length": np.array([-1, 0], np.int32)}, r"^topk_length\[0\] is -1"),
        ({"indexer_topk": 512}, "^indexer_topk must be 0, got 512: there is no LSE of the first"),
    ],
)
def test_flash_mla_refuses_by_its_own_names(changed: dict[str, Any], message: str) -> None:
    call = given()
    arguments: dict[str, Any] = {"q": call["q"], "kv": call["kv"]}
    arguments |= {"indices": call["indices"][:, None], "sm_scale": 1.0}
    with pytest.raises(SpecError, match=message):
        flash_mla_sparse_fwd(**arguments | changed, device="emulator")


def test_what_a_kernel_is_called() -> None:
    assert SparseMlaSpec(heads=64).kernel_name == "attn_sparse_mla_bf16_h64_d576"
    spec = SparseMlaSpec(heads=8, head_dim=512, sinks=True, topk_length=True)
    assert spec.kernel_name == "attn_sparse_mla_bf16_h8_d512_topk_length_sinks"
    spec = SparseMlaSpec(heads=8, dtype="f16", out_dtype="f32")
    assert spec.kernel_name == "attn_sparse_mla_f16_of32_h8_d576"
    assert SparseMlaSpec(heads=8, dtype="e4m3", kv_format="e4m3").out_dtype == "bf16"
    with pytest.raises(SpecError, match="dtype must be bf16 or f16 or e4m3, got 'f32'"):
        SparseMlaSpec(heads=8, dtype="f32")
    with pytest.raises(SpecError, match="dtype must be bf16 with kv_format 'v32', got f16"):
        SparseMlaSpec(heads=8, dtype="f16", kv_format="v32")


UNSIGNED = ("indices", "topk_length", "page_table", "batch_of_query")


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_lists_and_lengths_of_unsigned_words(library: str) -> None:
    """Kernels get the same words as i32: 2^32 - 1 is -1, which is no row; nothing is copied."""
    lists = np.array([[3, 2**32 - 1, 0], [2**31, 1, 2]], np.uint32)
    call = given(**PAGED) | {
        "indices": lists,
        "topk_length": np.array([3, 2], np.uint32),
        "page_table": np.array([[1, 0]], np.uint32),
        "batch_of_query": np.zeros(2, np.uint32),
    }
    if library == "torch":
        torch: Any = pytest.importorskip("torch")
        call |= {name: torch.from_numpy(call[name]) for name in UNSIGNED}
    (step,) = only_planned(sparse_mla)(**call, device="emulator").steps
    for name in UNSIGNED:
        seen = view(step.arguments[name], name)
        assert seen.dtype == "i32" and seen.address == view(call[name], name).address
    found = host_array(view(step.arguments["indices"], "indices"))
    assert found.tolist() == [[3, -1, 0], [-(2**31), 1, 2]]


def test_flash_mla_with_tensors_of_pytorch() -> None:
    """Strided ones, as FlashMLA's tests have them; the second query has no entry that counts."""
    torch: Any = pytest.importorskip("torch")
    torch.manual_seed(0)
    q, kv = (
        (torch.randn(shape) / 4).bfloat16()[..., :512] for shape in ((2, 8, 600), (100, 1, 520))
    )
    indices = torch.stack([torch.randperm(100)[:64] for _ in range(2)])[:, None].int()
    lengths, sinks = torch.tensor([50, 0], dtype=torch.int32), torch.randn(8)
    out, max_logits, lse = flash_mla_sparse_fwd(
        q, kv, indices, 0.3, attn_sink=sinks, topk_length=lengths, device="emulator"
    )
    keys = kv[indices[0, 0, :50].long(), 0].float()
    scores = 0.3 * (q[0].float() @ keys.T)
    wanted = torch.logsumexp(scores, 1)
    share = (torch.softmax(scores, 1) @ keys) * torch.sigmoid(wanted - sinks)[:, None]
    assert (out[0].float() - share).abs().max() < 3e-3
    assert (lse[0] - wanted).abs().max() < 1e-5
    assert (max_logits[0] - scores.max(1).values).abs().max() < 1e-5
    assert not out[1].any() and (lse[1] == torch.inf).all() and (max_logits[1] == -torch.inf).all()
