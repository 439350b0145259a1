"""Arguments of FlashInfer's names that are none, and what a refused `plan` leaves behind."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch: Any = pytest.importorskip("torch")

from attn_mlir import flashinfer  # noqa: E402
from attn_mlir.api import plan as plans  # noqa: E402
from attn_mlir.errors import SpecError  # noqa: E402
from attn_mlir.flash import flash_attn_combine  # noqa: E402
from attn_mlir.validation.numerics.torch_operands import i32  # noqa: E402

WORKSPACE = torch.empty(16)
FAR = 2**32  # 32 bits of it are 0
Q, POOL = torch.zeros(2, 4, 64).half(), torch.zeros(5, 2, 16, 2, 64).half()
STATE, SUMS = torch.zeros(3, 4, 64), torch.zeros(3, 4)


def i64(*numbers: int) -> Any:
    return torch.tensor(numbers)


ROWS: dict[str, Any] = {
    "indptr": i32(0, 2, 3),
    "indices": i32(3, 1, 0),
    "last_page_len": i32(5, 16),
    "num_qo_heads": 4,
    "num_kv_heads": 2,
    "head_dim": 64,
    "page_size": 16,
}


@pytest.fixture
def no_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise AssertionError("bad input must be refused before anything is compiled")

    monkeypatch.setattr(plans, "compile", fail)


def decode(planned: dict[str, Any], **run: Any) -> Any:
    """A call of the wrapper for decoding with some arguments changed."""
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(WORKSPACE)
    wrapper.plan(**{**ROWS, **planned})
    return wrapper.run(**{"q": Q, "paged_kv_cache": POOL, **run})


@pytest.mark.usefixtures("no_launch")
@pytest.mark.parametrize(
    ("planned", "run", "message"),
    [
        ({"sm_scale": "1"}, {}, "^sm_scale must be a number, got '1'"),
        ({"sm_scale": True}, {}, "^sm_scale must be a number, got True"),
        ({"sm_scale": 0.0}, {}, "^sm_scale must be finite and greater than 0"),
        ({}, {"q_scale": -2.0}, "^sm_scale . q_scale must be finite and greater than 0"),
        ({}, {"q_scale": 2.0, "k_scale": 0.0}, "^sm_scale . q_scale . k_scale must be finite"),
        ({"num_qo_heads": -3, "disable_split_kv": True}, {}, "^num_qo_heads must be an integer"),
        ({"num_qo_heads": 3, "disable_split_kv": True}, {}, "^kv_heads must divide heads"),
        ({"indptr": i64(FAR, FAR + 2, FAR + 3)}, {}, "^indptr goes from 2147483647"),
        ({"indices": i64(3, 1, FAR)}, {}, r"^indices\[2\] is 2147483647"),
        ({"last_page_len": i64(5, FAR + 1)}, {}, r"^last_page_len\[1\] is 2147483647"),
        ({}, {"window_left": 2**40}, "^window_left must be an integer from -1 to"),
        ({}, {"window_left": np.zeros(2)}, "^window_left must be -1 or more, got array"),
        ({}, {"v_scale": float("nan")}, "^v_scale must be a finite number, got nan"),
        ({}, {"sinks": np.zeros(4, np.float32)}, "^sinks must be a tensor of torch"),
        ({}, {"lse": torch.zeros(1, 4).expand(2, 4)}, "^lse is an output, but its elements share"),
        ({}, {"lse": torch.zeros(2, 4, requires_grad=True)}, "^lse requires a gradient"),
    ],
)
def test_decoding_is_refused(planned: dict[str, Any], run: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        decode(planned, **run)


@pytest.mark.usefixtures("no_launch")
@pytest.mark.parametrize(
    ("name", "changed", "message"),
    [
        ("append_indptr", i32(0, 2, 5).numpy(), "^seq_lens is of torch on cpu, append_indptr of"),
        ("append_indptr", i32(0, 2, 5) > 0, "^append_indptr must be of i32 or i64, got bool"),
        ("append_indptr", i32(0, 5, 2), r"^seq_lens\[0\] is 4: sequence 0 has 5 new tokens"),
        ("append_indptr", i32(0, 2, 1), "^append_indptr must not decrease: sequence 1 has -1"),
        ("append_indptr", i32(-1, 2, 5), "^append_indptr must begin at 0 or later, got -1"),
        ("seq_lens", i32(4, 3).float(), "^seq_lens must be of i32 or i64, got f32"),
        ("batch_indices", np.zeros(6, np.int32), "^batch_indices is of numpy on cpu"),
        ("positions", i32(0).expand(6), "^positions is an output, but its elements share memory"),
    ],
)
def test_positions_are_refused(name: str, changed: Any, message: str) -> None:
    right: dict[str, Any] = {"append_indptr": i32(0, 2, 5), "seq_lens": i32(4, 3), "nnz": 6}
    with pytest.raises(SpecError, match=message):
        flashinfer.get_batch_indices_positions(**{**right, name: changed})


@pytest.mark.usefixtures("no_launch")
@pytest.mark.parametrize("name", ["positions", "batch_indices"])
def test_what_does_not_fit_32_bits_is_no_index(name: str) -> None:
    places: dict[str, Any] = {"batch_indices": i32(0, 1, 1), "positions": i32(4, 1, 2)}
    places[name] = places[name].long() + FAR
    tokens = torch.zeros(3, 2, 64).half()
    with pytest.raises(SpecError, match="2147483647"):
        flashinfer.append_paged_kv_cache(
            tokens, tokens, *places.values(), POOL, *(ROWS[x] for x in ("indices", "indptr", "last_page_len"))
        )  # fmt: skip


@pytest.mark.usefixtures("no_launch")
@pytest.mark.parametrize("name", ["v", "s"])
def test_states_are_merged_into_memory_of_their_own(name: str) -> None:
    given: dict[str, Any] = {"v": STATE, "s": SUMS, "v_other": STATE, "s_other": SUMS}
    given[name] = given[name][:1].expand(given[name].shape)
    with pytest.raises(SpecError, match=f"^{name} is an output, but its elements share memory"):
        flashinfer.merge_state_in_place(**given)


def test_no_queries() -> None:
    keys = torch.zeros(9, 2, 64).half()
    o, lse = flashinfer.single_prefill_with_kv_cache(Q[:0], keys, keys, return_lse=True)
    assert (o.shape, lse.shape) == ((0, 4, 64), (0, 4))
    with pytest.raises(SpecError, match="^head_dim must be an integer from 1"):
        flashinfer.single_prefill_with_kv_cache(Q[..., :0], keys, keys)


@pytest.mark.usefixtures("no_launch")
def test_a_refused_plan_leaves_what_a_graph_reads() -> None:
    buffers = [i32(*[7] * count) for count in (3, 3, 2)]
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(WORKSPACE, "NHD", True, False, *buffers)
    wrapper.plan(**ROWS)
    before = [buffer.clone() for buffer in buffers]
    for changed in (
        {"indptr": i32(0, 1, 4), "indices": i32(0, 1, 2, 3)},
        {"indptr": i32(0, 1, 2), "fixed_split_size": 1},
    ):
        with pytest.raises(SpecError):
            wrapper.plan(**{**ROWS, **changed})
        assert all(map(torch.equal, buffers, before))


@pytest.mark.usefixtures("no_launch")
def test_a_refused_plan_of_one_level_is_a_plan_of_none() -> None:
    sizes = (4, 2, 64, 16)
    cascade = flashinfer.MultiLevelCascadeAttentionWrapper(2, WORKSPACE)
    levels: list[Any] = [
        [i32(0, 2)] * 2,
        [i32(0, 1), i32(0, 2)],
        [i32(2), i32(0, 1)],
        [i32(16), i32(5)],
    ]
    cascade.plan(*levels, *sizes)
    with pytest.raises(SpecError, match="paged_kv_last_page_len"):
        cascade.plan(*levels[:3], [i32(16), i32(17)], *sizes)
    with pytest.raises(SpecError, match="^plan has not been called, or was refused"):
        cascade.run(Q, POOL)


def test_functions_break_the_graphs_of_the_compiler() -> None:
    """They read index tensors and look at memory: the compiler calls them, and goes on behind them."""

    @torch.compile(backend="eager")
    def merged(o: Any, lse: Any) -> Any:
        merged, sums = flashinfer.merge_state(o + 1, lse, o + 1, lse)
        return merged * 2, sums + 1

    o, lse = merged(STATE, SUMS)
    assert (o == 2).all() and (lse == 2).all()
    wrappers = (
        flashinfer.BatchDecodeWithPagedKVCacheWrapper,
        flashinfer.BatchPrefillWithPagedKVCacheWrapper,
        flashinfer.BatchPrefillWithRaggedKVCacheWrapper,
        flashinfer.MultiLevelCascadeAttentionWrapper,
    )
    methods = [
        getattr(wrapper, name) for wrapper in wrappers for name in ("plan", "run", "forward")
    ]
    functions = [getattr(flashinfer, name) for name in ("merge_states", "merge_state_in_place")]
    single = (flashinfer.single_decode_with_kv_cache, flashinfer.single_prefill_with_kv_cache)
    for function in (*methods, *functions, *single, flash_attn_combine):
        assert getattr(function, "_torchdynamo_disable", False), function


@pytest.mark.parametrize(
    ("function", "given", "message"),
    [
        ("decode", {"kv_layout": {}}, "^kv_layout must be NHD or HND, got {}"),
        ("prefill", {"scale_q": "2"}, "^scale_q must be a finite number, got '2'"),
        ("prefill", {"scale_k": 0.0}, "^sm_scale . scale_k must be finite and greater than 0"),
        ("prefill", {"k_scale": 0.0}, "^sm_scale . k_scale must be finite and greater than 0"),
        ("prefill", {"scale_v": None, "v_scale": "2"}, "^v_scale must be a finite number, got '2'"),
    ],
)
def test_single_sequences_are_refused(function: str, given: dict[str, Any], message: str) -> None:
    """Scales have other names in prefill, and messages name what was passed."""
    keys = torch.zeros(16, 2, 64).half()
    call = getattr(flashinfer, f"single_{function}_with_kv_cache")
    with pytest.raises(SpecError, match=message):
        call(Q[0] if function == "decode" else Q, keys, keys, **given)


@pytest.mark.parametrize("name", ["scale_q", "scale_k", "scale_v"])
def test_tables_of_scales_are_named_as_they_were_given(name: str) -> None:
    bits = Q.float().to(torch.float8_e4m3fn), torch.zeros(16, 2, 64).to(torch.float8_e4m3fn)
    with pytest.raises(SpecError, match=rf"^{name} must be f32 of one element, \[2\] or"):
        flashinfer.single_prefill_with_kv_cache(
            bits[0], bits[1], bits[1], o_dtype=torch.float16, **{name: torch.ones(3)}
        )
