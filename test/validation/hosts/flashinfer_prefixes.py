"""Calls of FlashInfer's wrappers whose sequences share a prefix, and changes of their arguments."""

from __future__ import annotations

from attn_mlir.validation.effects import Change, refused
from attn_mlir.validation.hosts.flashinfer_calls import (
    CACHE,
    HEADS,
    HND_POOL,
    KV,
    PAGE,
    PAGES,
    POOL,
    PREFILL_PAGES,
    Q2,
    SCORES,
    SIZES,
    TOKENS,
    WORKSPACE,
    D,
    Q,
    init,
    named,
    square,
)
from attn_mlir.validation.numerics.torch_operands import changed, drawn, i32

LEVELS = {
    "qo_indptr_arr": [i32(0, 5), i32(0, 2, 5)],
    "paged_kv_indptr_arr": [i32(0, 1), i32(0, 2, 3)],
    "paged_kv_indices_arr": [i32(4), i32(3, 1, 0)],
    "paged_kv_last_page_len": [i32(16), i32(5, 16)],
}
CASCADE_BUFFERS = {
    "qo_indptr_buf_arr": [i32(0, 0), i32(0, 0, 0)],
    "paged_kv_indptr_buf_arr": [i32(0, 0), i32(0, 0, 0)],
    "paged_kv_indices_buf_arr": [i32(0), i32(0, 0, 0)],
    "paged_kv_last_page_len_buf_arr": [i32(0), i32(0, 0)],
}
CASCADE_RIGHT = {
    **named("init", {"num_levels": 2, "float_workspace_buffer": WORKSPACE}),
    **named("plan", {**LEVELS, **SIZES, "head_dim": D, "page_size": PAGE}),
    **named("run", {"q": Q, "paged_kv_cache": POOL}),
}
ONE_LEVEL = {
    "init.num_levels": 1,
    **named("plan", {name: levels[1:] for name, levels in LEVELS.items()}),
}
CASCADE = {
    **{name: x for name, x in init(CASCADE_BUFFERS, square(TOKENS)).items() if name not in ("init.backend", "init.jit_args")},
    "init.num_levels": Change(1, refused=True),
    **named("plan", {
        "qo_indptr_arr": Change([i32(0, 5), i32(0, 3, 5)]),
        "paged_kv_indptr_arr": Change([i32(0, 1), i32(0, 1, 3)]),
        "paged_kv_indices_arr": Change([i32(2), i32(3, 1, 0)]),
        "paged_kv_last_page_len": Change([i32(15), i32(5, 16)]),
        "head_dim": Change(128, refused=True),
        "page_size": Change(32, refused=True),
        "causal": Change(True),
        "use_fp16_qk_reduction": Change(True, refused=True),
    }),
    **{n: x for n, x in SCORES.items() if n not in ("plan.non_blocking", "plan.o_data_type")},
    "plan.window_left": Change(5, ONE_LEVEL),
    "run.q": Change(drawn(TOKENS, HEADS, D, seed=9)),
    "run.paged_kv_cache": Change(drawn(5, 2, PAGE, KV, D, seed=9)),
}  # fmt: skip
TABLE_ROWS = {"num_qo_heads": HEADS, "num_kv_heads": KV, "head_dim": D, "page_size": PAGE}
SHARED = {"k_shared": drawn(21, KV, D), "v_shared": drawn(21, KV, D, seed=1)}
OWN_POOL = {"unique_kv_cache": POOL}
SHARED_INIT = named("init", {
    "float_workspace_buffer": Change(None, refused=True),
    "kv_layout": Change("HND", {**named("plan", {"num_qo_heads": PAGE, "num_kv_heads": PAGE}), **named("run", {
        "q": drawn(2, PAGE, D), "k_shared": drawn(PAGE, PAGE, D), "v_shared": drawn(PAGE, PAGE, D, seed=1),
        "unique_kv_cache": HND_POOL,
    })}),
})  # fmt: skip
SHARED_SIZES = refused(
    num_qo_heads=8, num_kv_heads=4, head_dim=128, page_size=32, data_type="bfloat16"
)
SHARED_RUN = named("run", changed({"q": Q2, **SHARED, **OWN_POOL}, "q", *SHARED, *OWN_POOL))
DECODE_SHARED_RIGHT = {
    **named("init", {"float_workspace_buffer": WORKSPACE}),
    **named("plan", {**{f"unique_kv_{name}": x for name, x in PAGES.items()}, **TABLE_ROWS}),
    **named("run", {"q": Q2, **SHARED, **OWN_POOL}),
}
PAGE_CHANGES = {name: change for name, change in CACHE.items() if name != "plan.page_size"}
DECODE_SHARED = {
    **SHARED_INIT,
    **{name.replace("plan.", "plan.unique_kv_"): x for name, x in PAGE_CHANGES.items()},
    **named("plan", SHARED_SIZES),
    **SHARED_RUN,
}
PREFILL_SHARED_RIGHT = {
    **named("init", {"float_workspace_buffer": WORKSPACE}),
    **named("plan", {"qo_indptr": i32(0, 1, 2), **PREFILL_PAGES, **TABLE_ROWS}),
    **named("run", {"q": Q2, **SHARED, **OWN_POOL}),
}
PREFILL_SHARED = {
    **SHARED_INIT,
    "plan.qo_indptr": Change(i32(0, 2, 2)),
    **{name.replace("plan.", "plan.paged_kv_"): x for name, x in PAGE_CHANGES.items()},
    **named("plan", SHARED_SIZES),
    **SHARED_RUN,
    **named("run", {
        "causal": Change(True),
        "sm_scale": Change(0.5),
        **refused(use_fp16_qk_reduction=True, rope_scale=2.0, rope_theta=1e5),
    }),
}  # fmt: skip
