"""FlashAttention's functions as serving engines call them, and what these call beside attention."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from attn_mlir import env, flash
from attn_mlir.errors import SpecError
from attn_mlir.validation.effects import only_planned
from attn_mlir.validation.numerics.flash_formula import check, truth
from attn_mlir.validation.numerics.operands import i32

BF16, E4M3 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn
HEADS, KV_HEADS, DIM, BLOCK = 4, 2, 64, 16
TABLE = i32([3, 1, 5], [0, 2, 4], [8, 7, 6])
LENGTHS = i32(40, 17, 48)
ENDS = i32(0, 1, 6, 8)
OFFSETS = np.concatenate([[0], np.cumsum(LENGTHS)]).astype(np.int32)
SLOPES = np.array([0.5, 0.25, 0.125, 0.0625], np.float32)
RANDOM = np.random.default_rng(17)
ONE = np.ones(1, np.float32)


def normal(*shape: int) -> Any:
    return RANDOM.standard_normal(shape).astype(BF16)


POOL = normal(9, KV_HEADS, BLOCK, 2 * DIM)  # vLLM's: K and V side by side
K_PAGES, V_PAGES = (POOL.transpose(0, 2, 1, 3)[..., part] for part in np.s_[:DIM, DIM:])
QUERIES = normal(12, HEADS, DIM)  # of which 8 are there, as in a padded batch
BY_SEQUENCE = [QUERIES[i:j] for i, j in itertools.pairwise(ENDS)]


def rows(pages: Any) -> list[Any]:
    """The keys or values of each sequence."""
    return [pages[x].reshape(-1, *pages.shape[2:])[:n] for x, n in zip(TABLE, LENGTHS, strict=True)]


def vllm_call(key_cache: Any, value_cache: Any, **changed: Any) -> Any:
    """As vLLM's FlashAttention backend calls it, by its names."""
    spread = np.broadcast_to(ONE, (len(LENGTHS), KV_HEADS))
    plan = flash.get_scheduler_metadata(
        batch_size=len(LENGTHS), max_seqlen_q=5, max_seqlen_k=48, num_heads_q=HEADS,
        num_heads_kv=KV_HEADS, headdim=DIM, cache_seqlens=LENGTHS, qkv_dtype=BF16,
        cu_seqlens_q=ENDS, page_size=BLOCK, causal=True, window_size=(-1, -1), num_splits=0,
    )  # fmt: skip
    call: dict[str, Any] = {
        "q": QUERIES[:8],
        "k": key_cache,
        "v": value_cache,
        "out": np.full((12, HEADS, DIM), np.nan, BF16)[:8],
        "cu_seqlens_q": ENDS,
        "max_seqlen_q": 5,
        "seqused_k": LENGTHS,
        "max_seqlen_k": 48,
        "softmax_scale": DIM**-0.5,
        "causal": True,
        "alibi_slopes": None,
        "window_size": None,
        "block_table": TABLE,
        "softcap": 0.0,
        "return_softmax_lse": True,
        "scheduler_metadata": plan,
        "fa_version": 3,
        "q_descale": spread,
        "k_descale": spread,
        "v_descale": spread,
        "num_splits": 0,
        "s_aux": None,
    }
    given = {**call, **changed}
    result = flash.flash_attn_varlen_func(**given)
    assert not given["return_softmax_lse"] or result[0] is given["out"]
    return result


VLLM: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {"causal": True}),
    "window": ({"window_size": [9, 0]}, {"causal": True, "window_size": (9, 0)}),
    "slopes": ({"alibi_slopes": SLOPES}, {"causal": True, "alibi_slopes": SLOPES}),
    "parts": ({"num_splits": 2, "fa_version": 4, "softcap": 3.0}, {"causal": True, "softcap": 3.0}),
}


@pytest.mark.parametrize("name", VLLM)
@pytest.mark.long("window", "parts")
def test_as_vllm_calls_it(name: str) -> None:
    """Pages that lie as vLLM's; factors of 16 bits say nothing."""
    changed, meant = VLLM[name]
    check(
        vllm_call(K_PAGES, V_PAGES, **changed),
        truth(BY_SEQUENCE, rows(K_PAGES), rows(V_PAGES), **meant),
    )


@pytest.mark.parametrize("order", ["LBHNC", "LBNHC", "BHLNC"])
@pytest.mark.long("BHLNC")
def test_tensors_of_vllm(order: str) -> None:
    """Views of pools in torch whose axes lie in memory as its cache layouts say."""
    torch: Any = pytest.importorskip("torch")
    letters = "BHNC"  # blocks, heads, tokens of a block, columns of K and V; L are layers
    sizes = {"L": 3, **dict(zip(letters, POOL.shape, strict=True))}
    memory = torch.full([sizes[x] for x in order], torch.nan, dtype=torch.bfloat16)
    layer = memory.permute(*[order.index(x) for x in "L" + letters])[1]
    layer.copy_(torch.from_numpy(POOL.view(np.int16)).view(torch.bfloat16))
    key_cache, value_cache = layer.transpose(1, 2).split(DIM, dim=-1)
    scale = torch.ones(1).expand(len(LENGTHS), KV_HEADS)
    out = torch.full((12, HEADS, DIM), 7.0, dtype=torch.bfloat16)
    o, lse = vllm_call(
        key_cache, value_cache, q=torch.from_numpy(QUERIES.view(np.int16)).view(torch.bfloat16)[:8],
        out=out[:8], cu_seqlens_q=torch.from_numpy(ENDS), seqused_k=torch.from_numpy(LENGTHS),
        block_table=torch.from_numpy(TABLE), window_size=[-1, -1], q_descale=scale, k_descale=scale,
        v_descale=scale, fa_version=2,
    )  # fmt: skip
    want = truth(BY_SEQUENCE, rows(K_PAGES), rows(V_PAGES), causal=True)
    check((o.double().numpy(), lse.numpy()), want)
    assert (out[8:] == 7).all()


def test_lse_of_vllm_counts_sinks() -> None:
    sinks = np.array([1.0, -2.0, 0.5, 3.0], np.float32)
    want = truth(BY_SEQUENCE, rows(K_PAGES), rows(V_PAGES), causal=True)
    o, lse = vllm_call(K_PAGES, V_PAGES, s_aux=sinks)
    total = np.concatenate(want[1], 1)
    counted = np.logaddexp(total, sinks[:, None])
    share = np.exp(total - counted).T[..., None]
    assert abs(lse - counted).max() < 0.01
    assert abs(o.astype(np.float64) - np.concatenate(want[0]) * share).max() < 0.02


def test_a_cache_of_bytes_as_vllm_has_it() -> None:
    """Keys and values of 8 bits with factors of the layer, queries of 16."""
    narrow = [(x.astype(np.float32) / 2).astype(E4M3) for x in (K_PAGES, V_PAGES)]
    factor = np.broadcast_to(np.full(1, 2, np.float32), (3, KV_HEADS))
    found = vllm_call(*narrow, k_descale=factor, v_descale=factor)
    wide = [2 * x.astype(np.float64) for x in narrow]
    check(found, truth(BY_SEQUENCE, *map(rows, wide), causal=True))


def test_tables_with_offsets_of_keys() -> None:
    """As FlashAttention 2: offsets tell the lengths, and three results are returned."""
    *found, nothing = flash.flash_attn_varlen_func(
        QUERIES[:8], K_PAGES, V_PAGES, ENDS, OFFSETS, 5, 48, 0.0, None, False, (-1, -1), 0.0, SLOPES,
        False, True, TABLE,
    )  # fmt: skip
    assert nothing is None
    check(
        (found[0], found[1]), truth(BY_SEQUENCE, rows(K_PAGES), rows(V_PAGES), alibi_slopes=SLOPES)
    )


def test_slopes_of_dense_and_packed_sequences() -> None:
    q, k, v = normal(2, 3, HEADS, DIM), normal(2, 20, KV_HEADS, DIM), normal(2, 20, KV_HEADS, DIM)
    o, lse, _ = flash.flash_attn_func(q, k, v, alibi_slopes=SLOPES, return_attn_probs=True)
    check((o, lse), truth(list(q), list(k), list(v), alibi_slopes=SLOPES))
    lengths = i32(9, 20)
    found = flash.flash_attn_varlen_func(
        q, k, v, seqused_k=lengths, alibi_slopes=SLOPES, causal=True, return_softmax_lse=True
    )
    parts = [[x[b, : lengths[b]] for b in range(2)] for x in (k, v)]
    check(found, truth(list(q), *parts, alibi_slopes=SLOPES, causal=True))
    kv = np.stack(rows(K_PAGES)[:1] + rows(V_PAGES)[:1], 1)
    found = flash.flash_attn_varlen_kvpacked_func(
        QUERIES[:5], kv, i32(0, 5), i32(0, 40), 5, 40, alibi_slopes=SLOPES, return_lse=True
    )
    check(found, truth([QUERIES[:5]], [kv[:, 0]], [kv[:, 1]], alibi_slopes=SLOPES))


def test_as_sglang_calls_it() -> None:
    """Offsets of keys without keys, factors of the cache alone, sinks and a version."""
    narrow = [x.astype(E4M3) for x in (K_PAGES, V_PAGES)]
    q, factor = QUERIES[:8].astype(E4M3), np.broadcast_to(ONE * 2, (3, KV_HEADS))
    o, lse, *others = flash.flash_attn_with_kvcache(
        q=q, k_cache=narrow[0], v_cache=narrow[1], page_table=TABLE, cache_seqlens=LENGTHS,
        cu_seqlens_q=ENDS, cu_seqlens_k_new=OFFSETS, max_seqlen_q=5, softmax_scale=DIM**-0.5,
        causal=True, window_size=(-1, -1), softcap=0.0, k_descale=factor, v_descale=factor,
        return_softmax_lse=True, num_splits=0, pack_gqa=False, ver=3, rotary_seqlens=LENGTHS,
        attention_chunk=None, sinks=np.full(HEADS, -np.inf, np.float32),
    )  # fmt: skip
    queries = [q[i:j] for i, j in itertools.pairwise(ENDS)]
    wide = [2 * x.astype(np.float64) for x in narrow]
    want = truth(queries, *map(rows, wide), causal=True)
    assert others == [] and abs(lse - np.concatenate(want[1], 1)).max() < 0.01
    assert abs(o.astype(np.float64) - np.concatenate(want[0])).max() < 0.15  # P of 8 bits


def test_a_number_of_parts_is_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no kernel has parts, the keys are not split, and the log says so once."""
    env.log_once.cache_clear()
    lines: list[str] = []

    def log(level: str, text: str) -> None:
        assert level == "info"
        lines.append(text)

    monkeypatch.setattr(env, "log", log)
    with only_planned() as plans:
        for splits in (4, 4, 3):
            flash.flash_attn_func(*[normal(1, 300, 2, 256)] * 3, num_splits=splits)
    assert len(plans) == 3
    said = [x.partition(" needs")[0] for x in lines if "not split" in x]
    assert said == ["num_splits 4", "num_splits 3"]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"q_v": QUERIES}, "^q_v must be None"),
        ({"output_scale": ONE}, "^output_scale must be None"),
        ({"cp_world_size": 2}, "^cp_world_size must be 1, got 2"),
        ({"dynamic_causal": ONE}, "^dynamic_causal must be None"),
        ({"fa_version": 5}, "^fa_version must be 2 or 3 or 4 or None, got 5"),
        ({"page_table": TABLE}, "^page_table and block_table are two names"),
        ({"block_table": TABLE + 9}, r"^block_table\[0, 0\] is 12: k has pages 0 to 8"),
        ({"seqused_k": LENGTHS + 1}, r"^seqused_k\[2\] is 49: sequence 2 of k has 48"),
        ({"max_seqlen_k": "long"}, "^max_seqlen_k must be an integer"),
        (
            {"alibi_slopes": SLOPES, "seqused_k": LENGTHS[:2]},
            r"^seqused_k must be \[3\], got \[2\]",
        ),
        ({"k": K_PAGES[0]}, r"^k must be \[pages, page, heads, D\]"),
        ({"window_size": [1]}, r"^window_size must be \(left, right\)"),
    ],
)
def test_what_vllm_may_not_ask(changed: dict[str, Any], message: str) -> None:
    given = {"return_softmax_lse": False, **changed}
    with pytest.raises(SpecError, match=message):
        vllm_call(K_PAGES, V_PAGES, **given)


def test_a_plan_says_nothing() -> None:
    assert flash.get_scheduler_metadata(1, 1, 1, 1, 1, 64, LENGTHS).dtype == np.int32
    with pytest.raises(SpecError, match="^cache_seqlens must be an array of numpy, torch or cupy"):
        flash.get_scheduler_metadata(1, 1, 1, 1, 1, 64)


@pytest.mark.parametrize("dtype", ["auto", "fp8", "fp8_e5m2"])
@pytest.mark.long("fp8_e5m2")
def test_cache_writes(dtype: str) -> None:
    """Tokens beyond the slots are padding, as are slots below 0; nothing else is written."""
    key, value = normal(7, KV_HEADS, DIM), normal(7, KV_HEADS, DIM)
    pool = POOL.copy() if dtype == "auto" else np.zeros((9, KV_HEADS, BLOCK, 2 * DIM), np.uint8)
    kind = {"auto": BF16, "fp8": E4M3, "fp8_e5m2": ml_dtypes.float8_e5m2}[dtype]
    want = pool.view(kind).copy()
    slots = np.array([3, -1, 40, 143, 17], np.int64)
    scales = [np.full(1, 0.5, np.float32), np.full(1, 2, np.float32)]
    pages = pool.transpose(0, 2, 1, 3)
    flash.reshape_and_cache_flash(
        key, value, pages[..., :DIM], pages[..., DIM:], slots, dtype, *scales
    )
    for new, scale, part in zip((key, value), scales, np.s_[:DIM, DIM:], strict=True):
        divided = new.astype(np.float32) / (1 if dtype == "auto" else scale)
        for i, slot in enumerate(slots):
            if slot >= 0:
                want[slot // BLOCK, :, slot % BLOCK, part] = divided[i].astype(kind)
    assert (pool.view(kind).astype(np.float32) == want.astype(np.float32)).all()


WRITES: dict[str, tuple[dict[str, Any], str]] = {
    "slots": (
        {"slot_mapping": OFFSETS[:2].astype(np.float32)},
        "^slot_mapping must be .* of i32 or i64",
    ),
    "a slot": ({"slot_mapping": i32(999)}, r"^slot_mapping\[0\] is 999"),
    "few keys": (
        {"key": normal(1, KV_HEADS, DIM)},
        r"^key must be \[2 or more, kv_heads, head_dim\]",
    ),
    "heads": ({"value": normal(7, 1, DIM)}, "^value has 1 heads|^key and value must agree"),
    "a type": ({"kv_cache_dtype": "int4"}, "^kv_cache_dtype must be auto, .*, got 'int4'"),
    "another": (
        {"kv_cache_dtype": "float16"},
        "^key_cache is of bfloat16, kv_cache_dtype is float16",
    ),
    "wide": ({"kv_cache_dtype": "fp8"}, "^key_cache is of bfloat16, kv_cache_dtype is fp8"),
}


@pytest.mark.parametrize("name", WRITES)
def test_cache_writes_are_refused(name: str) -> None:
    changed, message = WRITES[name]
    call: dict[str, Any] = {
        "key": normal(7, KV_HEADS, DIM), "value": normal(7, KV_HEADS, DIM), "key_cache": K_PAGES.copy(),
        "value_cache": V_PAGES.copy(), "slot_mapping": i32(3, 4), "kv_cache_dtype": "auto",
        "k_scale": ONE, "v_scale": ONE,
    }  # fmt: skip
    with pytest.raises(SpecError, match=message):
        flash.reshape_and_cache_flash(**{**call, **changed})


@pytest.mark.parametrize("dtype", [BF16, np.float32])
@pytest.mark.parametrize("context", [None, 6, 0])
def test_merged_states(dtype: Any, context: int | None) -> None:
    """Natural logarithms; of a part without keys, at -inf or +inf, O is not looked at."""
    tokens = 9
    prefix, suffix = (normal(tokens, HEADS, DIM) for _ in range(2))
    sums = [3 * RANDOM.standard_normal((HEADS, tokens)).astype(np.float32) for _ in range(2)]
    prefix[1, 0] = np.nan
    sums[0][0, 1], sums[1][1, 2] = np.inf, -np.inf
    sums[0][2, 3], sums[1][2, 3] = np.inf, -np.inf
    parts = np.nan_to_num(np.stack([prefix, suffix]).astype(np.float64))
    weights = np.where(np.isinf(sums), -np.inf, np.array(sums, np.float64))
    if context is not None:
        weights[0, :, context:] = -np.inf
    total = np.logaddexp(*weights)
    with np.errstate(invalid="ignore"):
        shares = np.nan_to_num(np.exp(weights - total))
    want = (shares.swapaxes(-1, -2)[..., None] * parts).sum(0)
    if context is not None:
        want[context:] = parts[1, context:]
    o, lse = np.full(prefix.shape, np.nan, dtype), np.full((HEADS, tokens), np.nan, np.float32)
    flash.merge_attn_states(o, prefix, sums[0], suffix, sums[1], lse, context)
    assert abs(o.astype(np.float64) - want).max() < (0.02 if dtype is BF16 else 1e-5)
    some = np.isfinite(total)
    assert (np.isfinite(lse) == some).all() and abs(lse[some] - total[some]).max() < 1e-5


@pytest.mark.long
def test_in_a_graph() -> None:
    """Attention to pages and writes to them stay in the graph of `torch.compile`."""
    torch: Any = pytest.importorskip("torch")
    q, key, k_pages, v_pages = (
        torch.from_numpy(x.view(np.int16)).view(torch.bfloat16)
        for x in (QUERIES[:8].copy(), normal(4, KV_HEADS, DIM), K_PAGES.copy(), V_PAGES.copy())
    )
    index = {
        n: torch.from_numpy(x)
        for n, x in {"ends": ENDS, "lengths": LENGTHS, "table": TABLE}.items()
    }
    slots, one = torch.tensor([48, 3 * BLOCK + 1, -1]), torch.ones(1)

    def step(q: Any, key: Any) -> Any:
        flash.reshape_and_cache_flash(key, key, k_pages, v_pages, slots, "auto", one, one)
        return flash.flash_attn_varlen_func(
            q, k_pages, v_pages, index["ends"], None, 5, 48, causal=True, seqused_k=index["lengths"],
            block_table=index["table"], return_softmax_lse=True, q_descale=one, pack_gqa=True,
        )  # fmt: skip

    torch._dynamo.reset()
    o, lse = torch.compile(step, fullgraph=True, backend="aot_eager")(q, key)
    pages = [x.view(torch.int16).numpy().view(BF16) for x in (k_pages, v_pages)]
    assert all((x[3, :2] == key[:2].view(torch.int16).numpy().view(BF16)).all() for x in pages)
    check((o.double().numpy(), lse.numpy()), truth(BY_SEQUENCE, *map(rows, pages), causal=True))


def test_states_of_torch() -> None:
    torch: Any = pytest.importorskip("torch")
    prefix, suffix = torch.randn(2, 5, HEADS, DIM).bfloat16()
    sums = torch.randn(2, HEADS, 5)
    o, lse = torch.empty_like(suffix), torch.empty(HEADS, 5)
    flash.merge_attn_states(o, prefix, sums[0], suffix, sums[1], lse, 3)
    sums[0, :, 3:] = -torch.inf
    shares = sums.double().softmax(0).transpose(1, 2)[..., None]
    want = shares[0] * prefix.double() + shares[1] * suffix.double()
    assert (o.double() - want).abs().max() < 0.02
    assert (lse - sums.double().logsumexp(0)).abs().max() < 1e-5


STATES: dict[str, Any] = {
    "output": np.zeros((3, HEADS, DIM), BF16), "prefix_output": normal(3, HEADS, DIM),
    "prefix_lse": np.zeros((HEADS, 3), np.float32), "suffix_output": normal(3, HEADS, DIM),
    "suffix_lse": np.zeros((HEADS, 3), np.float32),
}  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"output": np.zeros((3, HEADS, DIM), np.int32)},
            r"^output must be \[tokens, heads, head_dim\]",
        ),
        (
            {"suffix_output": normal(2, HEADS, DIM)},
            r"^suffix_output must be \[3, 4, 64\].* as output",
        ),
        ({"prefix_lse": np.zeros((3, HEADS), np.float32)}, r"^prefix_lse must be \[4, 3\] of f32"),
        ({"output_lse": np.zeros((HEADS, 4), np.float32)}, "^output_lse must have shape"),
        ({"output_scale": ONE}, "^output_scale must be None"),
        ({"prefill_tokens_with_context": -1}, "^prefill_tokens_with_context must be an integer"),
    ],
)
def test_states_are_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        flash.merge_attn_states(**{**STATES, **changed})
