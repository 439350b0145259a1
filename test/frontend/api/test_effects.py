"""Every argument of this package's functions does something, or is refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import attn_mlir as am
from attn_mlir.dialect.attn.cache import Cache
from attn_mlir.dialect.attn.coordinates import Offsets
from attn_mlir.dialect.attn.lengths import Lengths
from attn_mlir.validation.effects import (
    Change,
    Subject,
    complaint,
    effect_tests,
    parameters,
)
from attn_mlir.validation.numerics.operands import i32

BF16: Any = ml_dtypes.bfloat16
E4M3: Any = ml_dtypes.float8_e4m3fn
NO_CALL = {
    "compile": "test_compiler",
    "load": "test/runtime",
    "supports": "test_supports",
}  # functions that carry out no plan, and where they are tested


def normal(*shape: int, seed: int = 0, dtype: Any = BF16) -> Any:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(dtype)


def ones(*shape: int, value: float = 1.0) -> Any:
    return np.full(shape, value, np.float32)


def half(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return score * 0.5


def distinct(b: Any, h: Any, q: Any, k: Any) -> Any:
    return q != k


EMULATOR = am.EmulatorDevice(seed=3)
WARPGROUPS = {"device": am.EmulatorDevice(target="sm_90a")}
ON = {"device": Change(EMULATOR, every=True), "stream": Change(7, every=True)}
BATCH, SQ, SK, HEADS, KV, D = 2, 3, 70, 4, 2, 64
TOTAL_Q, TOTAL_K = BATCH * SQ, BATCH * SK
CU_Q, CU_K = i32(0, 2, TOTAL_Q), i32(0, 30, TOTAL_K)
LENGTHS = i32(20, 33)


def dense() -> dict[str, Any]:
    return {
        "q": normal(BATCH, SQ, HEADS, D),
        "k": normal(BATCH, SK, KV, D),
        "v": normal(BATCH, SK, KV, D, seed=1),
    }


def other(name: str, seed: int = 9) -> Any:
    """Other elements for an operand of `dense`."""
    return normal(*dense()[name].shape, seed=seed)


RAGGED_Q = {"q": normal(TOTAL_Q, HEADS, D), "cu_seqlens_q": CU_Q, "max_seqlen_q": 5}
RAGGED = {
    **RAGGED_Q,
    "k": normal(TOTAL_K, KV, D),
    "v": normal(TOTAL_K, KV, D, seed=1),
    "cu_seqlens_k": CU_K,
    "max_seqlen_k": 120,
}
NARROW = {name: array.astype(E4M3) for name, array in dense().items()}
SCALES = {f"{name}_descale": ones(1) for name in "qkv"}
NARROWED = {**NARROW, **SCALES}
LENGTH_CHANGES = {
    "cu_seqlens_q": Change(i32(0, 3, TOTAL_Q), RAGGED),
    "cu_seqlens_k": Change(i32(0, 31, TOTAL_K), RAGGED),
    "max_seqlen_q": Change(6, RAGGED),
    "max_seqlen_k": Change(121, RAGGED),
    "seqused_q": Change(i32(1, 2)),
    "seqused_k": Change(LENGTHS),
    "cache_seqlens": Change(LENGTHS),
    "cache_counts_new": Change(True, {"cache_seqlens": LENGTHS}),
}
ATTENTION = {
    "q": Change(other("q")),
    "k": Change(other("k")),
    "v": Change(other("v")),
    "mask": Change(am.causal()),
    "score_mod": Change(half),
    "mask_mod": Change(distinct),
    "block_mask": Change(am.block_mask(distinct, BATCH, HEADS, SQ, SK)),
    "sinks": Change(ones(HEADS)),
    "scale": Change(0.5),
    "return_lse": Change(True),
    "out_dtype": Change("f32"),
    **LENGTH_CHANGES,
    **{f"{name}_descale": Change(ones(1, value=2), NARROWED) for name in "qkv"},
    "q_offset": Change(5, {"q_offset": 4}),
    "k_offset": Change(i32(1, 2), {"k_offset": i32(2, 1)}),
    "head_offset": Change(3, {"score_mod": half}),
    "query_tiles": Change(2),
    "tile_order": Change("persistent"),
    "schedule": Change("mha-streaming"),
    "num_splits": Change(2),
    "split_size": Change(128, {"schedule": "mha-streaming"}),
    "sm_margin": Change(2, every=True),
    "deterministic": Change(True, nothing=True),  # of gradients
    "out": Change(np.zeros((BATCH, SQ, HEADS, D), BF16)),
    **ON,
}

O_SHAPE, LSE_SHAPE = (BATCH, SQ, HEADS, D), (BATCH, HEADS, SQ)


def backward() -> dict[str, Any]:
    rows = {"o": normal(*O_SHAPE), "do": normal(*O_SHAPE, seed=1)}
    return {**dense(), **rows, "lse": ones(*LSE_SHAPE)}


BACKWARD_RAGGED = {
    **RAGGED,
    "o": normal(TOTAL_Q, HEADS, D),
    "do": normal(TOTAL_Q, HEADS, D, seed=1),
    "lse": ones(HEADS, TOTAL_Q),
}
BACKWARD = {
    **{name: ATTENTION[name] for name in ("q", "k", "v", "mask", "scale")},
    **{name: ATTENTION[name] for name in ("score_mod", "mask_mod", "block_mask", "sinks")},
    "wanted": Change(("q",)),
    "captured": Change(("slopes",), {"score_mod": am.mods.alibi(ones(HEADS)), **WARPGROUPS}),
    "o": Change(normal(*O_SHAPE, seed=9)),
    "do": Change(normal(*O_SHAPE, seed=9)),
    "lse": Change(ones(*LSE_SHAPE, value=2)),
    "dlse": Change(ones(*LSE_SHAPE)),
    **{
        name: Change(x.value, BACKWARD_RAGGED if x.given is RAGGED else x.given)
        for name, x in LENGTH_CHANGES.items()
        if not name.startswith("cache")
    },
    "dq_dtype": Change("f32", refused=True),
    "deterministic": Change(False, WARPGROUPS),
    **ON,
}

NOPE, ROPE = 64, 32


def latent() -> dict[str, Any]:
    return {
        "q_nope": normal(BATCH, SQ, HEADS, NOPE),
        "q_rope": normal(BATCH, SQ, HEADS, ROPE),
        "k_nope": normal(BATCH, SK, HEADS, NOPE),
        "k_rope": normal(BATCH, SK, 1, ROPE),
        "v": normal(BATCH, SK, HEADS, NOPE),
        "scale": 0.1,
    }


LATENT_RAGGED = {
    **{name: x.reshape(-1, *x.shape[2:]) for name, x in latent().items() if name != "scale"},
    "cu_seqlens_q": CU_Q,
    "cu_seqlens_k": CU_K,
    "max_seqlen_q": 5,
    "max_seqlen_k": 120,
}
WIDE = {
    **latent(),
    "q_nope": normal(BATCH, SQ, HEADS, 128),
    "k_nope": normal(BATCH, SK, HEADS, 128),
}
LATENT_NARROW = {
    **{name: x.astype(E4M3) for name, x in WIDE.items() if name != "scale"},
    "q_descale": ones(BATCH, SQ),
    "k_descale": ones(BATCH, SK),
    "v_descale": ones(1),
}
LATENT_PACKED = {
    "q_rope": normal(BATCH, SQ, HEADS, 64),
    "k_rope": am.PagedKV(np.zeros((4, 64, 1, 640), np.uint8), None, i32([0, 1], [2, 3])),
    "kv_format": "e4m3_rope16",
}
MLA = {
    **{name: Change(normal(*x.shape, seed=9)) for name, x in latent().items() if name != "scale"},
    "mask": Change(am.causal()),
    "scale": Change(0.2),
    "return_lse": Change(True),
    "out_dtype": Change("f32"),
    **{
        name: Change(x.value, LATENT_RAGGED if x.given is RAGGED else x.given)
        for name, x in LENGTH_CHANGES.items()
    },
    "q_descale": Change(ones(BATCH, SQ, value=2), LATENT_NARROW),
    "k_descale": Change(ones(BATCH, SK, value=2), LATENT_NARROW),
    "v_descale": Change(ones(1, value=2), LATENT_NARROW),
    "k_rope_descale": Change(ones(BATCH, SK, value=2), {"k_rope": latent()["k_rope"].astype(E4M3)}),
    "kv_format": Change("v32", LATENT_PACKED, refused=True),
    "query_tiles": Change(2),
    "tile_order": Change("persistent"),
    "num_qk_stages": Change(2),
    "num_pv_stages": Change(2),
    "ordered_softmax": Change(True, {"query_tiles": 2}),
    "sm_margin": Change(2, every=True),
    "out": Change(np.zeros((BATCH, SQ, HEADS, NOPE), BF16)),
    **ON,
}

LATENT_RESULTS = {
    "o": normal(BATCH, SQ, HEADS, NOPE),
    "lse": ones(BATCH, HEADS, SQ),
    "do": normal(BATCH, SQ, HEADS, NOPE, seed=1),
}


def latent_backward() -> dict[str, Any]:
    return {**latent(), **LATENT_RESULTS}


LATENT_RAGGED_RESULTS = {
    **{name: x.reshape(-1, *x.shape[2:]) for name, x in LATENT_RESULTS.items()},
    "lse": ones(HEADS, BATCH * SQ),
}
MLA_BACKWARD = {
    **{name: MLA[name] for name in (*latent(), "mask")},
    "o": Change(normal(BATCH, SQ, HEADS, NOPE, seed=9)),
    "do": Change(normal(BATCH, SQ, HEADS, NOPE, seed=9)),
    "lse": Change(ones(BATCH, HEADS, SQ, value=2)),
    "dlse": Change(ones(BATCH, HEADS, SQ)),
    "wanted": Change(("q_nope",)),
    **{
        name: Change(
            x.value, {**LATENT_RAGGED, **LATENT_RAGGED_RESULTS} if x.given is RAGGED else x.given
        )
        for name, x in LENGTH_CHANGES.items()
        if not name.startswith("cache")
    },
    **ON,
}

ROW = 576
LISTS, EXTRA_LISTS = np.zeros((BATCH, 1, 5), np.int32), np.zeros((BATCH, 1, 3), np.int32)
TABLE = i32([0, 1], [2, 3])


def decode() -> dict[str, Any]:
    cache = am.PagedKV(normal(4, 64, 1, ROW), None, TABLE, LENGTHS)
    return {"q": normal(BATCH, 1, 16, ROW), "cache": cache, "scale": 0.1}


LISTED = {"indices": LISTS, "cache": am.ContiguousKV(normal(4, 64, 1, ROW), None, None)}
EXTRA = {**LISTED, "extra_kv": normal(4, 16, 1, ROW), "extra_indices": EXTRA_LISTS}
PACKED = {
    "indices": LISTS,
    "kv_format": "e4m3",
    "cache": am.ContiguousKV(np.zeros((4, 64, 1, ROW), np.uint8), None, None),
}
PACKED_EXTRA = {
    **PACKED,
    "extra_kv": np.zeros((4, 16, 1, ROW), np.uint8),
    "extra_indices": EXTRA_LISTS,
}
MLA_DECODE = {
    "q": Change(normal(BATCH, 1, 16, ROW, seed=9)),
    "cache": Change(am.PagedKV(normal(4, 64, 1, ROW, seed=9), None, TABLE, LENGTHS)),
    "scale": Change(0.2),
    "mask": Change(am.causal()),
    "indices": Change(LISTS + 1, LISTED),
    "topk_length": Change(np.full((BATCH, 1), 2, np.int32), LISTED),
    "sinks": Change(ones(16)),
    "num_splits": Change(2),
    "kv_format": Change("v32", PACKED, refused=True),
    "kv_scale": Change(ones(4, 64, 1), PACKED),
    "extra_kv": Change(normal(4, 16, 1, ROW, seed=9), EXTRA),
    "extra_indices": Change(EXTRA_LISTS + 1, EXTRA),
    "extra_topk_length": Change(np.full((BATCH, 1), 2, np.int32), EXTRA),
    "extra_kv_scale": Change(ones(4, 16, 1), PACKED_EXTRA),
    "sm_margin": Change(2, every=True),
    "out": Change(np.zeros((BATCH, 1, 16, 512), BF16)),
    **ON,
}  # fmt: skip
SPARSE_Q = 6


def sparse() -> dict[str, Any]:
    return {
        "q": normal(SPARSE_Q, 64, ROW),
        "kv": normal(128, 1, ROW),
        "indices": np.zeros((SPARSE_Q, 5), np.int32),
        "scale": 0.1,
    }


IN_PAGES = {
    "kv": normal(2, 64, 1, ROW),
    "page_table": i32([0, 1]),
    "batch_of_query": np.zeros(SPARSE_Q, np.int32),
}
SPARSE_PACKED = {"kv": np.zeros((128, 1, ROW), np.uint8), "kv_format": "e4m3"}
SPARSE_MLA = {
    "q": Change(normal(SPARSE_Q, 64, ROW, seed=9)),
    "kv": Change(normal(128, 1, ROW, seed=9)),
    "indices": Change(np.ones((SPARSE_Q, 5), np.int32)),
    "scale": Change(0.2),
    "v_dim": Change(256, refused=True),
    "topk_length": Change(np.full(SPARSE_Q, 2, np.int32)),
    "sinks": Change(ones(64)),
    "page_table": Change(i32([1, 0]), IN_PAGES),
    "batch_of_query": Change(np.ones(SPARSE_Q, np.int32), IN_PAGES),
    "kv_format": Change("v32", SPARSE_PACKED, refused=True),
    "kv_scale": Change(ones(128, 1), SPARSE_PACKED),
    "out_dtype": Change("f32"),
    "out": Change(np.zeros((SPARSE_Q, 64, 512), BF16)),
    **ON,
}


def append() -> dict[str, Any]:
    cache = am.PagedKV(normal(4, 64, KV, D), normal(4, 64, KV, D), TABLE, LENGTHS)
    new = normal(BATCH, 2, KV, D)
    return {"cache": cache, "k_new": new, "v_new": new}


FLAT = {"k_new": normal(4, KV, D), "v_new": normal(4, KV, D)}
ANGLES = (ones(80, 16), ones(80, 16), False)
APPEND = {
    "cache": Change(am.PagedKV(normal(4, 64, KV, D), normal(4, 64, KV, D), TABLE, LENGTHS + 1)),
    "k_new": Change(normal(BATCH, 2, KV, D, seed=9)),
    "v_new": Change(normal(BATCH, 2, KV, D, seed=9)),
    "positions": Change(i32([1, 2], [3, 4])),
    "batch_indices": Change(i32(0, 0, 1, 1), {**FLAT, "positions": i32(1, 2, 3, 4), "batch_indices": i32(0, 1, 0, 1)}),
    "cu_seqlens": Change(i32(0, 1, 4), {**FLAT, "cu_seqlens": i32(0, 2, 4)}),
    "slot_mapping": Change(i32(1, 2, 3, 5), {**FLAT, "slot_mapping": i32(1, 2, 3, 4)}),
    "rotary": Change((*ANGLES[:2], True), {"rotary": ANGLES}),
    **ON,
}  # fmt: skip


def paged(q: Any, **fields: Any) -> Any:
    return am.attention(q, am.PagedKV(**fields))


def in_rows(q: Any, **fields: Any) -> Any:
    return am.attention(q, am.ContiguousKV(**fields))


def appended(k_new: Any, v_new: Any, **fields: Any) -> Any:
    is_paged = "k_pages" in fields
    am.append_kv((am.PagedKV if is_paged else am.ContiguousKV)(**fields), k_new, v_new)


def pages() -> dict[str, Any]:
    return {
        "q": dense()["q"],
        "k_pages": normal(4, 64, KV, D),
        "v_pages": normal(4, 64, KV, D),
        "page_table": TABLE,
        "seqused": LENGTHS,
    }


def rows() -> dict[str, Any]:
    return {**dense(), "seqused": LENGTHS}


CSR = {
    "page_table": None,
    "seqused": None,
    "indptr": i32(0, 1, 3),
    "indices": i32(0, 1, 2),
    "last_page_len": i32(5, 6),
}
NARROW_PAGES = {
    "k_pages": normal(4, 64, KV, D).astype(E4M3),
    "v_pages": normal(4, 64, KV, D).astype(E4M3),
    "k_scale": ones(1),
    "v_scale": ones(1),
    "q": dense()["q"],
}
BY_POSITION = {
    **NARROW_PAGES,
    "k_scale": ones(4, 64, KV, 1),
    "v_scale": ones(4, 64, KV, 1),
    "scale_table": TABLE,
}
PAGED = {
    "k_pages": Change(normal(4, 64, KV, D, seed=9)),
    "v_pages": Change(normal(4, 64, KV, D, seed=9)),
    "page_table": Change(TABLE[::-1].copy()),
    "seqused": Change(LENGTHS + 1),
    "layout": Change(
        "HND",
        {
            "k_pages": normal(4, 64, 64, D),
            "v_pages": normal(4, 64, 64, D),
            "q": normal(BATCH, SQ, 64, D),
        },
    ),
    "indptr": Change(i32(0, 2, 3), CSR),
    "indices": Change(i32(0, 1, 3), CSR),
    "last_page_len": Change(i32(5, 7), CSR),
    "counts_new": Change(False),
    "k_scale": Change(ones(1, value=2), NARROW_PAGES),
    "v_scale": Change(ones(1, value=2), NARROW_PAGES),
    "scale_table": Change(TABLE[::-1].copy(), BY_POSITION),
}
NARROW_ROWS = {"k": NARROW["k"], "v": NARROW["v"], "k_scale": ones(1), "v_scale": ones(1)}
IN_ROWS = {
    "k": Change(other("k")),
    "v": Change(other("v")),
    "seqused": Change(LENGTHS + 1),
    "batch_idx": Change(i32(1, 0)),
    "leftpad": Change(i32(3, 4)),
    "counts_new": Change(False),
    "k_scale": Change(ones(1, value=2), NARROW_ROWS),
    "v_scale": Change(ones(1, value=2), NARROW_ROWS),
}
VALUES: dict[str, Any] = {
    "mha": Subject(am.mha, lambda: {"heads": 4, "head_dim": 64}, {
        "heads": Change(8),
        "head_dim": Change(128),
        "v_head_dim": Change(128),
        "kv_heads": Change(2),
        "dtype": Change("f16"),
        "kv_dtype": Change("e4m3", {"schedule": "mha-streaming"}),
        "mask": Change(am.causal()),
        "score_mod": Change(half),
        "mask_mod": Change(distinct),
        "sinks": Change(ones(4)),
        "modifier": Change(am.mha(heads=4, head_dim=64, score_mod=half).modifier),
        "query_tiles": Change(2),
        "tile_order": Change("persistent"),
        "num_qk_stages": Change(1),
        "num_pv_stages": Change(2),
        "ordered_softmax": Change(True),
        "schedule": Change("mha-streaming"),
        "out_dtype": Change("f32"),
        "return_lse": Change(False),
        "lengths": Change(Lengths(used_k=True)),
        "cache": Change(Cache(page_size=64, pages="table")),
        "partial": Change(True, {"out_dtype": "f32"}),
        "joined": Change(True, {"schedule": "mha-streaming"}),
        "split_size": Change(128, {"schedule": "mha-streaming", "joined": True}),
        "block": Change((128, 1, 128)),
        "offsets": Change(Offsets(("q_offset",))),
    }),
    "block_mask": Subject(am.block_mask, lambda: {"mask_mod": distinct, "batch": 2, "heads": 2, "sq": 300, "sk": 300}, {
        "mask_mod": Change(lambda b, h, q, k: (q >= k) & (h == 0) & (b == 0)),  # pyright: ignore[reportUnknownLambdaType]
        "batch": Change(3),
        "heads": Change(3),
        "sq": Change(301),
        "sk": Change(301),
        "mask": Change(am.causal()),
        "block_size": Change(64),
        "q_offset": Change(5),
        "k_offset": Change(5),
        "head_offset": Change(5),
    }),
    "pack_latent": Subject(am.pack_latent, lambda: {"kv": normal(3, 1, ROW), "kv_format": "e4m3"}, {
        "kv": Change(normal(3, 1, ROW, seed=9)),
        "kv_format": Change("v32"),
        "group": Change(64),
    }),
    "unpack_latent": Subject(am.unpack_latent, lambda: {"kv": np.ones((3, 1, ROW), np.uint8), "kv_format": "e4m3"}, {
        "kv": Change(np.full((3, 1, ROW), 2, np.uint8)),
        "kv_format": Change("e4m3_rope16", refused=True),
        "kv_scale": Change(ones(3, 1, value=2)),
    }),
    "chunked": Subject(am.chunked, lambda: {"size": 8}, {"size": Change(16)}),
    "prefix_lm": Subject(am.prefix_lm, lambda: {"length": 8}, {"length": Change(16)}),
    "sliding_window": Subject(am.sliding_window, lambda: {"left": 8, "right": 1}, {"left": Change(16), "right": Change(2)}),
    "causal": Subject(am.causal, dict, {}),
    "full": Subject(am.full, dict, {}),
}  # fmt: skip
OURS = {
    "attention": Subject(am.attention, dense, ATTENTION),
    "attention_backward": Subject(am.attention_backward, backward, BACKWARD),
    "plan": Subject(am.plan, dense, ATTENTION),
    "mla": Subject(am.mla, latent, MLA),
    "mla_backward": Subject(am.mla_backward, latent_backward, MLA_BACKWARD),
    "mla_decode": Subject(am.mla_decode, decode, MLA_DECODE),
    "sparse_mla": Subject(am.sparse_mla, sparse, SPARSE_MLA),
    "append_kv": Subject(am.append_kv, append, APPEND),
    **VALUES,
}
CACHES = {
    "PagedKV": Subject(paged, pages, PAGED),
    "ContiguousKV": Subject(in_rows, rows, IN_ROWS),
}
NEW = {"k_new": normal(BATCH, 2, KV, D), "v_new": normal(BATCH, 2, KV, D)}
MORE_HEADS = {"k_new": normal(BATCH, 2, 64, D), "v_new": normal(BATCH, 2, 64, D)}


def for_append(right: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call of attention as those of one that appends."""
    kept = {name: value for name, value in right.items() if name != "q"}
    return {**(MORE_HEADS if "q" in right and right["q"].shape[2] == 64 else {}), **kept}


def changes_for_append(changes: Mapping[str, Change]) -> dict[str, Change]:
    """The same changes for a call that appends."""
    return {n: replace(x, given=for_append(x.given)) for n, x in changes.items()}


APPENDED = {
    "PagedKV": Subject(appended, lambda: {**NEW, **for_append(pages())}, changes_for_append(PAGED)),
    "ContiguousKV": Subject(
        appended, lambda: {**NEW, **for_append(rows())}, changes_for_append(IN_ROWS)
    ),
}
SUBJECTS: Mapping[str, Mapping[str, Subject]] = {
    "am": OURS,
    "attended": CACHES,
    "appended": APPENDED,
}
test_an_argument_does_something, test_what_is_nothing_is_refused_by_its_name = effect_tests(
    SUBJECTS,
    taken={"stream"},  # the launch alone looks at it
)


def test_every_function_has_its_rows() -> None:
    functions = {
        n for n in am.__all__ if callable(getattr(am, n)) and not isinstance(getattr(am, n), type)
    }
    assert functions | {"mha"} == set(OURS) | set(NO_CALL)


@pytest.mark.parametrize("name", OURS)
def test_every_argument_has_a_row(name: str) -> None:
    assert sorted(parameters(getattr(am, name))) == sorted(OURS[name].changes)


@pytest.mark.parametrize("name", CACHES)
def test_every_field_of_a_cache_has_a_row(name: str) -> None:
    assert sorted(parameters(getattr(am, name))) == sorted(CACHES[name].changes)


def drops(q: Any, k: Any, v: Any, *, scale: float, stream: object, mask: Any = None) -> Any:
    """A function that passes neither its mask on, nor, to the second call, its stream."""
    am.attention(q, k, v, scale=scale, stream=stream)
    return am.attention(q, k, v, scale=scale)


@pytest.mark.parametrize(
    ("argument", "change", "told"),
    [
        ("scale", Change(0.5), ""),
        ("scale", Change(0.5, every=True), ""),
        ("scale", Change(0.5, nothing=True), "something changes"),
        ("scale", Change(-1.0, refused=True), ""),
        ("scale", Change(0.5, refused=True), "it is not refused"),
        ("mask", Change(am.causal()), "nothing changes"),
        ("stream", Change(7), ""),
        ("stream", Change(7, every=True), "launch [1] stays as it was"),
        ("q", Change(other("q"), every=True), ""),
    ],
)
def test_what_is_dropped_is_told(argument: str, change: Change, told: str) -> None:
    subject = Subject(drops, lambda: {**dense(), "scale": 1.0, "stream": None}, {argument: change})
    assert complaint(subject, argument) == told
