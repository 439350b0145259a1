"""Which attention FlashInfer's wrappers ask for, and what they refuse by FlashInfer's names."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

torch: Any = pytest.importorskip("torch")

import attn_mlir as am  # noqa: E402
from attn_mlir import flashinfer  # noqa: E402
from attn_mlir.api import plan as plans  # noqa: E402
from attn_mlir.errors import SpecError  # noqa: E402
from attn_mlir.flashinfer import planned as planned_calls  # noqa: E402
from attn_mlir.validation.hosts.flashinfer_cache import (  # noqa: E402
    BF16,
    BOTH,
    DIM,
    HEADS,
    INDICES,
    INDPTR,
    K_PAGES,
    KEYS,
    KV_HEADS,
    LAST,
    LENGTHS,
    PAGE,
    QUERIES,
    ROWS,
    SIZES,
    VALUES,
    WORKSPACE,
    offsets,
)
from attn_mlir.validation.numerics.torch_operands import i32, normal  # noqa: E402


@pytest.mark.parametrize(
    ("given", "dtypes"),
    [
        ({"data_type": "float8_e4m3fn", "q_data_type": "float16"}, ("f16", "e4m3")),
        ({"data_type": BF16, "q_data_type": None}, ("bf16", "bf16")),
        ({"data_type": BF16, "q_data_type": None, "kv_data_type": "float8_e5m2"}, ("bf16", "e5m2")),
        ({"q_data_type": BF16}, ("bf16", "bf16")),
        ({}, ("f16", "f16")),
    ],
)
def test_one_type_fills_what_is_left_out(given: dict[str, Any], dtypes: tuple[str, str]) -> None:
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(WORKSPACE)
    wrapper.plan(*ROWS, *SIZES, PAGE, **given)
    problem = vars(wrapper)["_problem"]
    assert (problem.dtype, problem.kv_dtype) == dtypes


@pytest.mark.parametrize("kind", [int, np.int64, np.array, torch.tensor])
def test_windows_are_numbers_of_any_library(kind: Any, asked: Asked) -> None:
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(WORKSPACE)
    plan = (*ROWS, *SIZES, PAGE)
    options: dict[str, Any] = {"q_data_type": BF16, "q_len_per_req": kind(3)}
    wrapper.plan(*plan, window_left=kind(5), window_right=kind(2), **options)
    wrapper.run(normal(12, HEADS, DIM), BOTH)
    assert asked["mask"] == am.sliding_window(5, 2)
    for wrong in (kind(-2), True, None, "1", 1.0):
        for name in ("window_left", "window_right"):
            if wrong is not None or name == "window_left":
                with pytest.raises(SpecError, match=f"^{name} must be -1 or more, got "):
                    wrapper.plan(*plan, **options, **{name: wrong})


@pytest.mark.parametrize(("cap", "meaning"), [(-1.0, 0.0), (0, 0.0), (None, 0.0), (2.5, 2.5)])
def test_soft_caps_that_are_none(cap: float | None, meaning: float) -> None:
    """FlashInfer's kernels cap where the number is greater than 0."""
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(WORKSPACE)
    wrapper.plan(*ROWS, *SIZES, PAGE, logits_soft_cap=cap)
    assert vars(wrapper)["_problem"].cap == meaning


@pytest.fixture
def no_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise AssertionError("bad input must be refused before anything is compiled")

    monkeypatch.setattr(plans, "compile", fail)


def decode(made: dict[str, Any], planned: dict[str, Any], run: dict[str, Any]) -> None:
    """A call of the wrapper for decoding with some arguments changed."""
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
        **{"float_workspace_buffer": WORKSPACE, **made}
    )
    if "plan" not in planned:
        rows = dict(zip(("indptr", "indices", "last_page_len"), ROWS, strict=True))
        sizes = {
            "num_qo_heads": HEADS,
            "num_kv_heads": KV_HEADS,
            "head_dim": DIM,
            "page_size": PAGE,
        }
        wrapper.plan(**{**rows, **sizes, "q_data_type": BF16, **planned})
    wrapper.run(**{"q": normal(4, HEADS, DIM), "paged_kv_cache": BOTH, **run})


REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any], str]] = {
    "backend": ({"backend": "fa9"}, {}, {}, "^backend must be auto or fa2 or .*, got 'fa9'"),
    "kernels of the caller": ({"jit_args": []}, {}, {}, "^jit_args must be None"),
    "layout": ({"kv_layout": "NDH"}, {}, {}, "^kv_layout must be NHD or HND, got 'NDH'"),
    "workspace": ({"float_workspace_buffer": None}, {}, {}, "^float_workspace_buffer must be a tensor"),
    "no buffers": ({"use_cuda_graph": True}, {}, {}, "^paged_kv_indptr_buffer must be a tensor"),
    "rotation": ({}, {"pos_encoding_mode": "ROPE_LLAMA"}, {}, "^pos_encoding_mode ROPE_LLAMA of keys"),
    "theta": ({}, {"rope_theta": 1e6}, {}, "^rope_theta must be None or 10000.0"),
    "size of parts": ({}, {"fixed_split_size": 4}, {}, "^fixed_split_size must be a multiple of 8 pages of 16"),
    "many parts": (
        {}, {"fixed_split_size": 8, "indptr": i32(0, *[2100] * 4), "indices": i32(*[0] * 2100),
             "last_page_len": i32(1, 0, 0, 0)},
        {}, "^fixed_split_size 8 makes 263 parts of 33585 keys, allowed are 256"),
    "a table": ({}, {"block_tables": INDPTR}, {}, "^block_tables must be None"),
    "offsets that fall": ({}, {"indptr": i32(0, 3, 2, 4, 8)}, {}, "^indptr must not decrease"),
    "offsets beyond": ({}, {"indptr": i32(0, 3, 4, 4, 9)}, {}, "^indptr goes from 0 to 9"),
    "a batch": ({}, {"last_page_len": i32(1, 2)}, {}, "^last_page_len has 2 entries"),
    "a last page": ({}, {"last_page_len": i32(8, 17, 0, 1)}, {}, r"^last_page_len\[1\] is 17"),
    "floats as indices": ({}, {"indices": INDICES.float()}, {}, "^indices must be of int32"),
    "no page size": ({}, {"page_size": 0}, {}, "^page_size must be an integer from 1"),
    "a dtype": ({}, {"q_data_type": torch.float64}, {}, "^q_data_type"),
    "a window": ({}, {"window_left": -2}, {}, "^window_left must be -1 or more"),
    "no plan": ({}, {"plan": None}, {}, "^plan has not been called"),
    "rows of q": ({}, {}, {"q": normal(3, HEADS, DIM)}, "^q has 3 rows, plan was told 4:"),
    "heads of q": ({}, {}, {"q": normal(4, 8, DIM)}, r"^q must be \[tokens, 4, 64\] as planned"),
    "another dtype": ({}, {"q_data_type": "float16"}, {}, "^q is torch.bfloat16, plan was told"),
    "heads of the cache": ({}, {"num_kv_heads": 4}, {}, "^paged_kv_cache has 2 heads of 64, plan was told 4"),
    "pages of the cache": ({}, {"page_size": 32}, {}, "^paged_kv_cache has pages of 16, plan was told 32"),
    "another window": ({}, {}, {"window_left": -2}, "^window_left must be -1 or more, got -2"),
    "other queries": ({}, {}, {"q_len_per_req": 2}, "^q_len_per_req is 2, plan was told 1"),
    "4 bits": ({}, {}, {"kv_cache_sf": BOTH}, "^kv_cache_sf must be None"),
    "scores left out": (
        {}, {}, {"skip_softmax_threshold_scale_factor": 1.0}, "^skip_softmax_threshold_scale_factor must"),
    "one pool": ({}, {}, {"paged_kv_cache": K_PAGES}, "^paged_kv_cache must be a tensor of rank 5"),
    "three pools": ({}, {}, {"paged_kv_cache": (K_PAGES,) * 3}, "^paged_kv_cache must be a tensor or a pair"),
    "memory for LSE": ({}, {}, {"lse": torch.empty(3, 4), "return_lse": True}, r"^lse must have shape \[4, 4\], got \[3, 4\]"),
}  # fmt: skip


@pytest.mark.usefixtures("no_launch")
@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    made, planned, run, message = REFUSED[name]
    with pytest.raises(SpecError, match=message):
        decode(made, planned, run)


@pytest.mark.usefixtures("no_launch")
def test_prefills_are_refused() -> None:
    wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(WORKSPACE)
    plan = (offsets(QUERIES), *ROWS, *SIZES, PAGE)
    for given, message in (
        ({"custom_mask": torch.ones(3, dtype=torch.bool)}, r"^custom_mask must be \[412\]"),
        ({"custom_mask": torch.ones(412)}, "^custom_mask must be a tensor of rank 1 of bool"),
        ({"use_fp16_qk_reduction": True}, "^use_fp16_qk_reduction must be False"),
        ({"prefix_len_ptr": INDPTR}, "^prefix_len_ptr must be None"),
    ):
        with pytest.raises(SpecError, match=message):
            wrapper.plan(*plan, q_data_type=BF16, **given)
    with pytest.raises(SpecError, match="^qo_indptr has 1 sequences, those of keys are 4"):
        wrapper.plan(offsets([3]), *plan[1:])
    wrapper.plan(*plan, q_data_type=BF16)
    with pytest.raises(SpecError, match="^q has 3 rows, plan was told 12"):
        wrapper.run(normal(3, HEADS, DIM), BOTH)
    with pytest.raises(SpecError, match="Wrapper.run takes at most 4 arguments by position, got 5"):
        wrapper.run(normal(12, HEADS, DIM), BOTH, None, None, 1.0)
    with pytest.raises(SpecError, match="^sm_scale is an argument of plan; run takes it with jit"):
        wrapper.run(normal(12, HEADS, DIM), BOTH, None, 1.0)
    with pytest.raises(SpecError, match="^custom_mask_buf must be None"):
        flashinfer.BatchPrefillWithPagedKVCacheWrapper(WORKSPACE, custom_mask_buf=INDPTR)
    with pytest.raises(SpecError, match="^scale_k and k_scale are two names"):
        flashinfer.single_prefill_with_kv_cache(
            normal(3, HEADS, DIM), KEYS[0], VALUES[0], scale_k=1.0, k_scale=1.0
        )
    with pytest.raises(SpecError, match=r"^s must be \[2, 3, 4\] as v"):
        flashinfer.merge_states(normal(2, 3, 4, 64), torch.zeros(2, 3, 5))
    with pytest.raises(SpecError, match="^v has 0 parts, allowed are 1 to 256"):
        flashinfer.merge_states(normal(2, 0, 4, 64), torch.zeros(2, 0, 4))
    with pytest.raises(SpecError, match="^qo_indptr_arr must be a list of 2"):
        cascade = flashinfer.MultiLevelCascadeAttentionWrapper(2, WORKSPACE)
        cascade.plan([INDPTR], [INDPTR], [INDICES], [LAST], *SIZES, PAGE)


Asked = dict[str, Any]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """The options of the last call of `attention`, which computes nothing."""
    options: Asked = {}

    def attention(q: Any, *_: Any, **given: Any) -> Any:
        options.update(given)
        lse = torch.zeros(HEADS, len(q)) if q.dim() == 3 else torch.zeros(len(q), HEADS, q.shape[1])
        return (q, lse) if given["return_lse"] else q

    monkeypatch.setattr(planned_calls, "_ATTENTION", attention)
    return options


PLANNED: dict[str, Any] = {"window_left": 5, "logits_soft_cap": 2.0, "sm_scale": 0.5}


def planned(kind: str) -> tuple[Any, list[Any]]:
    """A wrapper with scores of its own, and the operands of its calls."""
    if kind == "decode":
        wrapper: Any = flashinfer.BatchDecodeWithPagedKVCacheWrapper(WORKSPACE)
        wrapper.plan(*ROWS, *SIZES, PAGE, q_data_type=BF16, **PLANNED)
        return wrapper, [normal(4, HEADS, DIM), BOTH]
    q = normal(sum(QUERIES), HEADS, DIM)
    if kind == "paged":
        wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(WORKSPACE)
        wrapper.plan(
            offsets(QUERIES), *ROWS, *SIZES, PAGE, q_data_type=BF16, causal=True, **PLANNED
        )
        return wrapper, [q, BOTH]
    wrapper = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(WORKSPACE)
    rows = (offsets(QUERIES), offsets(LENGTHS))
    wrapper.plan(*rows, *SIZES, q_data_type=BF16, causal=True, **PLANNED)
    return wrapper, [q, torch.cat(KEYS), torch.cat(VALUES)]


@pytest.mark.parametrize("kind", ["decode", "paged", "ragged"])
def test_forward_has_scores_of_its_own(kind: str, asked: Asked) -> None:
    """As FlashInfer's: what it is not told is the default, and `run` keeps what it was told."""
    wrapper, operands = planned(kind)
    assert isinstance(wrapper.forward(*operands), torch.Tensor)
    assert asked["mask"] == am.full() and asked["score_mod"] is None
    assert asked["scale"] == DIM**-0.5
    causal = {} if kind == "decode" else {"causal": True}
    scores = {"window_left": 3, "logits_soft_cap": 4.0, "sm_scale": 0.25, **causal}
    _, lse = wrapper.forward_return_lse(*operands, pos_encoding_mode="NONE", **scores)
    assert lse.shape == (len(operands[0]), HEADS)
    for call in (lambda: None, lambda: wrapper.run(*operands)):
        call()
        assert asked["mask"] == am.sliding_window(3, 0 if causal else None)
        assert asked["scale"] == 0.25 and asked["score_mod"] is not None
    message = "^rope_theta must be " + ("greater than 0" if kind == "ragged" else "None or 10000.0")
    mode = {"pos_encoding_mode": "ROPE_LLAMA"} if kind == "ragged" else {}
    with pytest.raises(SpecError, match=message):
        wrapper.forward(*operands, rope_theta=-5.0, **mode)
    wrapper.forward(*operands, **scores)
    with pytest.raises(SpecError, match="^window_left must be -1 or more"):
        wrapper.forward(*operands, window_left=-3)
    wrapper.run(*operands)
    assert asked["mask"] == am.sliding_window(3, 0 if causal else None)


def test_forward_counts_scales(asked: Asked) -> None:
    wrapper, operands = planned("decode")
    wrapper.forward(*operands, q_scale=2.0, k_scale=3.0)
    assert asked["scale"] == pytest.approx(6 * DIM**-0.5)
    wrapper, operands = planned("paged")
    wrapper.forward(*operands, k_scale=3.0, sm_scale=0.5)
    assert asked["scale"] == pytest.approx(1.5)


@pytest.mark.parametrize("kind", ["decode", "paged"])
def test_windows_of_one_call(kind: str, asked: Asked) -> None:
    wrapper, operands = planned(kind)
    right = None if kind == "decode" else 0
    for window, left in ((9, 9), (None, 5), (5, 5), (-1, None)):
        wrapper.run(*operands, window_left=window)
        assert asked["mask"] == am.sliding_window(left, right)


@pytest.mark.parametrize(
    ("given", "mask"),
    [({}, am.causal()), ({"is_causal": True}, am.causal()), ({"is_causal": False}, am.full())],
)
def test_whether_several_tokens_are_causal(
    given: dict[str, Any], mask: am.Mask, asked: Asked
) -> None:
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(WORKSPACE, use_tensor_cores=True)
    wrapper.plan(*ROWS, *SIZES, PAGE, q_data_type=BF16, q_len_per_req=3, **given)
    wrapper.run(normal(12, HEADS, DIM), BOTH)
    assert asked["mask"] == mask and wrapper.use_tensor_cores is True


def test_positions_are_those_of_flashinfer() -> None:
    def names(function: Any, count: int) -> list[str]:
        return list(inspect.signature(function).parameters)[1 : count + 1]

    decode, prefill = (
        flashinfer.BatchDecodeWithPagedKVCacheWrapper,
        flashinfer.BatchPrefillWithPagedKVCacheWrapper,
    )
    assert names(decode.plan, 9) == [
        *(
            "indptr",
            "indices",
            "last_page_len",
            "num_qo_heads",
            "num_kv_heads",
            "head_dim",
            "page_size",
        ),
        *("pos_encoding_mode", "window_left"),
    ]
    assert names(prefill.plan, 12) == [
        *("qo_indptr", "paged_kv_indptr", "paged_kv_indices", "paged_kv_last_page_len"),
        *("num_qo_heads", "num_kv_heads", "head_dim_qk", "page_size", "head_dim_vo", "custom_mask"),
        *("packed_custom_mask", "causal"),
    ]
    ragged = flashinfer.BatchPrefillWithRaggedKVCacheWrapper
    assert names(ragged.plan, 6) == [
        *("qo_indptr", "kv_indptr", "num_qo_heads", "num_kv_heads", "head_dim_qk", "head_dim_vo"),
    ]
    for wrapper in (decode, prefill, ragged):
        assert {"out", "lse", "return_lse", "enable_pdl"} <= set(
            inspect.signature(wrapper.run).parameters
        )
