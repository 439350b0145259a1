"""What serving engines do with FlashInfer's wrappers besides `plan` and `run`."""

from __future__ import annotations

import functools
import math
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

import attn_mlir as am  # noqa: E402
from attn_mlir import env, flashinfer  # noqa: E402
from attn_mlir.errors import SpecError  # noqa: E402
from attn_mlir.flashinfer import planned as planned_calls  # noqa: E402
from attn_mlir.validation.hosts.flashinfer_cache import (  # noqa: E402
    BF16,
    BOTH,
    DIM,
    HEADS,
    KEYS,
    KV_HEADS,
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
from attn_mlir.validation.numerics.torch_operands import i32, normal  # noqa: E402

SCALE = 0.08838834764831845  # 128 ** -0.5, which f32 does not hold
PLANNED: dict[str, Any] = {"window_left": 5, "logits_soft_cap": 2.0, "sm_scale": SCALE}
BATCH = len(LENGTHS)


def buffers() -> tuple[Any, Any, Any]:
    return torch.zeros(BATCH + 1).int(), torch.zeros(3000).int(), torch.zeros(BATCH).int()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The options of the last call of `attention`, which computes nothing."""
    options: dict[str, Any] = {}

    def attention(q: Any, *_: Any, **given: Any) -> Any:
        options.clear()
        options.update(given)
        lse = torch.zeros(HEADS, len(q)) if q.dim() == 3 else torch.zeros(len(q), HEADS, q.shape[1])
        return (q, lse) if given["return_lse"] else q

    monkeypatch.setattr(planned_calls, "_ATTENTION", attention)
    return options


def test_attributes_of_a_plan_are_those_that_vllm_compares() -> None:
    """Scales are compared exactly, with the number that the engine passed."""
    decode = flashinfer.BatchDecodeWithPagedKVCacheWrapper(WORKSPACE, use_tensor_cores=True)
    assert not hasattr(decode, "_window_left") and decode._paged_kv_indptr_buf is None
    decode.plan(*ROWS, *SIZES, PAGE, q_data_type=BF16, o_data_type=torch.float32, **PLANNED)
    assert (decode._window_left, decode._logits_soft_cap, decode._sm_scale) == (5, 2.0, SCALE)
    assert decode._use_tensor_cores and not decode._use_cuda_graph and decode._kv_layout == "NHD"
    assert (decode._num_qo_heads, decode._num_kv_heads) == (HEADS, KV_HEADS)
    assert (decode._cached_q_data_type, decode._cached_kv_data_type) == (BF16, BF16)
    assert decode._cached_o_data_type == torch.float32 and decode.device == WORKSPACE.device
    assert torch.equal(decode._paged_kv_indices_buf, ROWS[1])
    paged = flashinfer.BatchPrefillWithPagedKVCacheWrapper(WORKSPACE)
    paged.plan(offsets(QUERIES), *ROWS, *SIZES, PAGE, causal=True)
    assert paged._causal is True and paged._window_left == -1
    assert paged._logits_soft_cap == 0.0 and paged._sm_scale is None
    assert torch.equal(paged._qo_indptr_buf, offsets(QUERIES))
    ragged = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(WORKSPACE)
    ragged.plan(offsets(QUERIES), offsets(LENGTHS), *SIZES, causal=False, window_left=7)
    assert ragged._causal is False and ragged._window_left == 7
    assert torch.equal(ragged._kv_indptr_buf, offsets(LENGTHS))
    assert ragged._fixed_batch_size == 0


def test_attributes_cannot_be_set() -> None:
    """An engine that sets a score would find that `run` does not follow it."""
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(WORKSPACE)
    wrapper.plan(*ROWS, *SIZES, PAGE)
    for name in ("_window_left", "_sm_scale", "_logits_soft_cap"):
        with pytest.raises(AttributeError):
            setattr(wrapper, name, 1)


def test_the_buffers_of_a_wrapper_for_graphs_are_the_callers() -> None:
    indptr, indices, last = buffers()
    made = flashinfer.CUDAGraphBatchDecodeWithPagedKVCacheWrapper(
        WORKSPACE, indptr, indices, last, use_tensor_cores=True
    )
    assert made.is_cuda_graph_enabled and made.use_tensor_cores
    assert made._fixed_batch_size == BATCH and made._paged_kv_indices_buf is indices
    made.plan(*ROWS, *SIZES, PAGE, q_data_type=BF16)
    assert torch.equal(indptr, ROWS[0]) and torch.equal(last, ROWS[2])
    assert made._paged_kv_indptr_buf is indptr and made._paged_kv_last_page_len_buf is last
    with pytest.raises(SpecError, match="^paged_kv_indptr_buffer has 5 entries, plan was given 2"):
        made.plan(offsets([2]), i32(4, 1), i32(7), *SIZES, PAGE)
    with pytest.raises(SpecError, match="^kv_layout must be NHD or HND"):
        flashinfer.CUDAGraphBatchDecodeWithPagedKVCacheWrapper(*[WORKSPACE] * 4, "NDH")


def test_a_fast_plan_in_the_place_of_plan(asked: dict[str, Any]) -> None:
    """As SGLang replaces it, of index tensors that are the wrapper's own buffers."""
    own = buffers()
    wrapper = flashinfer.CUDAGraphBatchDecodeWithPagedKVCacheWrapper(WORKSPACE, *own)
    wrapper.plan(*ROWS, *SIZES, PAGE, q_data_type=BF16, o_data_type="float32")
    wrapper.begin_forward = functools.partial(flashinfer.fast_decode_plan, wrapper)
    own[2][0] = ROWS[2][0] - 1
    wrapper.begin_forward(
        own[0], own[1], own[2], *SIZES, PAGE, data_type=BF16, non_blocking=True,
        fixed_split_size=None, disable_split_kv=False, global_override_indptr_cpu=ROWS[0].cpu(),
        **PLANNED,
    )  # fmt: skip
    assert wrapper._window_left == 5 and wrapper._sm_scale == SCALE
    wrapper.run(normal(BATCH, HEADS, DIM), BOTH)
    assert asked["scale"] == pytest.approx(SCALE) and asked["out_dtype"] == "f32"
    with pytest.raises(SpecError, match="^rope_theta must be None"):
        wrapper.begin_forward(*own, *SIZES, PAGE, rope_theta=2.0)
    fresh = flashinfer.BatchDecodeWithPagedKVCacheWrapper(WORKSPACE)
    flashinfer.fast_decode_plan(fresh, *ROWS, *SIZES, PAGE)
    assert fresh._cached_q_data_type == torch.float16


@pytest.mark.parametrize("kind", ["paged", "ragged"])
@pytest.mark.parametrize("with_memory", [False, True])
def test_lse_of_both_bases_and_layouts(kind: str, with_memory: bool) -> None:
    q, tokens = normal(sum(QUERIES), HEADS, DIM), sum(QUERIES)
    if kind == "paged":
        wrapper: Any = flashinfer.BatchPrefillWithPagedKVCacheWrapper(WORKSPACE)
        wrapper.plan(offsets(QUERIES), *ROWS, *SIZES, PAGE, q_data_type=BF16)
        operands = [q, BOTH]
    else:
        wrapper = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(WORKSPACE)
        wrapper.plan(offsets(QUERIES), offsets(LENGTHS), *SIZES, q_data_type=BF16)
        operands = [q, torch.cat(KEYS), torch.cat(VALUES)]
    want = truth(split(q, QUERIES), KEYS, VALUES)
    check(wrapper.run_return_lse(*operands), want)
    for base in ("log2", "ln"):
        for layout in ("NH", "HN"):
            shape = (tokens, HEADS) if layout == "NH" else (HEADS, tokens)
            lse = torch.empty(shape) if with_memory else None
            options = {"lse_base": base, "lse_layout": layout, "lse": lse}
            _, found = wrapper.run_return_lse(*operands, **options)
            assert found.shape == shape and found.is_contiguous()
            assert lse is None or found is lse
            by_token = found if layout == "NH" else found.T
            check((want[0], by_token / (math.log(2) if base == "ln" else 1.0)), want)
    wrong = torch.empty(tokens, HEADS)
    for given, message in (
        ({"lse_base": "e"}, "^lse_base must be log2 or ln, got 'e'"),
        ({"lse_layout": "TH"}, "^lse_layout must be NH or HN, got 'TH'"),
        ({"lse_layout": "HN", "lse": wrong}, "^lse must"),
    ):
        with pytest.raises(SpecError, match=message):
            wrapper.run_return_lse(*operands, **given)


def prefill(**plan: Any) -> Any:
    """A wrapper for graphs that was planned for three queries of each sequence."""
    indptr, indices, last = buffers()
    wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(
        WORKSPACE, "NHD", True, torch.zeros(BATCH + 1).int(), indptr, indices, last
    )
    rows = offsets([3] * BATCH)
    wrapper.plan(rows, *ROWS, *SIZES, PAGE, q_data_type=BF16, **plan)
    return wrapper


@pytest.mark.parametrize(
    "hint, longest",
    [(3, 3), (torch.tensor(3), 3), (None, 3 * BATCH), (0, 3 * BATCH), (2, 3 * BATCH)],
)
def test_equal_numbers_of_queries_bound_the_launch_of_a_graph(
    hint: Any, longest: int, asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(env, "log", lambda level, text: said.append(text))
    wrapper = prefill(uniform_q_len=hint)
    wrapper.run(normal(3 * BATCH, HEADS, DIM), BOTH)
    assert asked["max_seqlen_q"] == longest
    assert bool(said) == (hint == 2)
    if longest == 3:  # which the graph was captured with
        with pytest.raises(SpecError, match="^uniform_q_len is 0, that of a wrapper .* stays 3"):
            other = offsets([1, 5, 3, 3])
            wrapper.plan(other, *ROWS, *SIZES, PAGE, q_data_type=BF16, uniform_q_len=3)


def test_numbers_of_queries_without_graphs_say_nothing(asked: dict[str, Any]) -> None:
    wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(WORKSPACE)
    wrapper.plan(offsets(QUERIES), *ROWS, *SIZES, PAGE, q_data_type=BF16, uniform_q_len=2)
    wrapper.run(normal(sum(QUERIES), HEADS, DIM), BOTH)
    assert asked["max_seqlen_q"] == max(QUERIES) and asked["mask"] == am.full()
    with pytest.raises(SpecError, match="^uniform_q_len must be an integer, got 'all'"):
        wrapper.plan(offsets(QUERIES), *ROWS, *SIZES, PAGE, uniform_q_len="all")


def test_a_backend_that_is_named_is_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one line in the log for each name."""
    said: list[tuple[str, str]] = []
    monkeypatch.setattr(env, "log", lambda *told: said.append(told))
    for name in ("auto", "cute-dsl-prims", "cute-dsl-prims"):
        flashinfer.BatchDecodeWithPagedKVCacheWrapper(WORKSPACE, backend=name)
    function = "BatchDecodeWithPagedKVCacheWrapper.__init__"
    text = f"{function} does not follow backend='cute-dsl-prims': kernels are this package's"
    assert said == [("info", text)]
    with pytest.raises(SpecError, match="^backend must be auto or fa2 or .*, got 'mine'"):
        flashinfer.BatchPrefillWithRaggedKVCacheWrapper(WORKSPACE, backend="mine")


def test_workspaces_need_no_room() -> None:
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(torch.empty(0))
    assert wrapper.workspace_size(*ROWS, *SIZES, PAGE, q_data_type=BF16) == (0, 0)


def test_parts_of_a_size_in_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages and lengths change in one table, whose columns end where a kernel has no more parts."""
    small = (torch.zeros(BATCH + 1).int(), torch.zeros(20).int(), torch.zeros(BATCH).int())
    parts: dict[str, Any] = {"q_data_type": BF16, "fixed_split_size": 8}
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(WORKSPACE, "NHD", True, False, *small)
    q = normal(BATCH, HEADS, DIM)
    wrapper.plan(i32(0, 1, 1, 1, 1), i32(0), i32(16, 0, 0, 0), *SIZES, PAGE, **parts)
    first = wrapper._pages._arrays
    wrapper.plan(*ROWS, *SIZES, PAGE, **parts)
    assert all(x is first[name] for name, x in wrapper._pages._arrays.items())
    check(wrapper.run(q, BOTH, return_lse=True), truth(split(q, [1] * BATCH), KEYS, VALUES))
    caches: list[Any] = []
    monkeypatch.setattr(planned_calls, "_ATTENTION", lambda q, k, *_, **__: caches.append(k) or q)
    large = (torch.zeros(BATCH + 1).int(), torch.zeros(3000).int(), torch.zeros(BATCH).int())
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(WORKSPACE, "NHD", True, False, *large)
    wrapper.plan(*ROWS, *SIZES, PAGE, **parts)
    wrapper.run(q, BOTH)
    assert caches[0].page_table.shape == (BATCH, 256 * 8)
    assert caches[0].seqused.tolist() == LENGTHS
    message = "make a table of 3000 columns, that of a wrapper for graphs stays 2048"
    with pytest.raises(SpecError, match=message):
        wrapper.plan(*ROWS, *SIZES, PAGE, **parts | {"fixed_split_size": 16})
