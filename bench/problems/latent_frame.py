"""The kernels of latent attention that the frame can make: schedules, formats of rows, heads, parts, masks.

Each has a name of what chooses its code, such as `mla-decode, 128 heads, model1, pages, parts`.
Extents that change no code but for numbers in it are left at one choice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

ROWS: Mapping[str, dict[str, Any]] = {
    "bf16": {},
    "bf16 of 512": {"head_dim": 512},
    "v32": {"kv_format": "v32"},
    "model1": {"kv_format": "model1", "head_dim": 512},
    "e4m3": {"kv_format": "e4m3"},
    "e4m3 by 32": {"kv_format": "e4m3", "kv_group": 32},
    "e4m3 by 64": {"kv_format": "e4m3", "kv_group": 64},
    "e4m3 by 576": {"kv_format": "e4m3", "kv_group": 576},
    "rope16 by 32": {"kv_format": "e4m3_rope16", "kv_group": 32},
    "rope16 by 128": {"kv_format": "e4m3_rope16", "kv_group": 128},
}  # of a cache, by what stores them
NARROW_QUERIES = {"kv_format": "e4m3", "dtype": "e4m3"}
PAGE = 64
SMALL_PAGE = 16
HEADS = (64, 128)  # a tile of one CTA, and of a pair, where rows have a kernel for it
ORDERS = ("single", "last_first", "persistent", "clc", "ragged")
HELD_ORDERS = ("single", "last_first", "persistent", "ragged")


@dataclass(frozen=True)
class FrameKernel:
    """A kernel of the frame.

    Attributes:
      target: the chip.
      make: its request.
    """

    target: str
    make: Callable[[], Any]


@cache
def kernels() -> Mapping[str, FrameKernel]:
    """All of them by name."""
    found: dict[str, FrameKernel] = {}
    for name, target, make in (*_lists(), *_decoding(), *_held_decoding(), *_dense()):
        assert name not in found, name
        found[name] = FrameKernel(target, make)
    return found


Entry = tuple[str, str, Callable[[], Any]]


def _lists() -> Iterator[Entry]:
    """Sparse attention, with all that lists may have, and with none of it."""
    from attn_mlir.compiling.sparse_mla import SparseMlaSpec

    for heads in HEADS:
        for form, options in (*ROWS.items(), ("e4m3 under e4m3", NARROW_QUERIES)):
            page = {"kv_page": PAGE} if form == "model1" else {}
            more = {"topk_length": True, "sinks": True, "page_size": PAGE if page else SMALL_PAGE}
            for name, own in (("plain", {}), ("lengths, sinks, pages", more)):
                chosen = {"heads": heads, **options, **page, **own}
                yield (
                    f"sparse-mla, {heads} heads, {form}, {name}",
                    "sm_100a",
                    lambda o=chosen: SparseMlaSpec(**o),
                )
    threads: dict[str, Any] = {"heads": 128, "schedule": "sparse-mla-pair-threads"}
    for name, own in (("plain", {}), ("lengths, sinks", {"topk_length": True, "sinks": True})):
        chosen = {**threads, **own}
        yield (
            f"sparse-mla-pair-threads, 128 heads, bf16, {name}",
            "sm_100a",
            lambda o=chosen: SparseMlaSpec(**o),
        )


def _walked() -> dict[str, dict[str, Any]]:
    """How sequences lie, with a mask: rows, pages of a table, and pages with all edges that masks have."""
    import attn_mlir as am
    from attn_mlir.dialect.attn.cache import Cache

    return {
        "rows": {"mask": am.causal()},
        "pages": {"mask": am.causal(), "cache": Cache(SMALL_PAGE, "table")},
        "edges": {"mask": _edges(), "cache": Cache(PAGE, "csr")},
    }


def _edges() -> Any:
    import attn_mlir as am

    return am.sliding_window(100, 0) | am.chunked(150)


def _decoding() -> Iterator[Entry]:
    """Decoding with sums in tensor memory."""
    import attn_mlir as am

    for heads in HEADS:
        for form, options in ROWS.items():
            page = {"kv_page": PAGE} if form == "model1" else {}
            kinds = {"lists": {"indices": True, "topk_length": True, **page}, **_walked()}
            for kind, own in kinds.items():
                for parts in ({"sinks": True}, {"partial": True}):
                    chosen = {"heads": heads, **options, **own, **parts}
                    yield (
                        f"mla-decode, {heads} heads, {form}, {kind}{', parts' if 'partial' in parts else ''}",
                        "sm_100a",
                        lambda o=chosen: am.MlaDecodeSpec(**o),
                    )


def _held_decoding() -> Iterator[Entry]:
    """Decoding with sums in registers."""
    import attn_mlir as am

    streaming = "mla-decode-streaming"
    for schedule in ("mla-decode-registers", streaming):
        lists = {"lists": {"indices": True, "topk_length": True}} if schedule == streaming else {}
        for target in ("sm_90a", "sm_100a") if schedule == streaming else ("sm_90a",):
            for kind, own in {**_walked(), **lists}.items():
                for parts in ({}, {"joined" if schedule == streaming else "partial": True}):
                    chosen = {"heads": 64, "schedule": schedule, **own, **parts}
                    yield (
                        f"{schedule}, {target}, {kind}{', parts' if parts else ''}",
                        target,
                        lambda o=chosen: am.MlaDecodeSpec(**o),
                    )


def _dense() -> Iterator[Entry]:
    """Before absorption."""
    import attn_mlir as am
    from attn_mlir.dialect.attn.cache import Cache
    from attn_mlir.dialect.attn.lengths import DENSE, Lengths
    from attn_mlir.dialect.targets.limits import target_named
    from attn_mlir.schedules.policy.tiling import has_tiling

    scaled: dict[str, Any] = {"scale_dtype": "bf16", "k_groups": 1, "v_groups": 1}
    narrow_rope = Cache(SMALL_PAGE, "csr", **scaled, own_scale_table=True)
    ragged = Lengths(ragged_q=True, ragged_k=True)
    plain: dict[str, dict[str, Any]] = {
        "bf16": {"mask": am.causal()},
        "bf16, edges": {"mask": _edges(), "cache": Cache(SMALL_PAGE, "csr")},
    }
    narrow: dict[str, dict[str, Any]] = {
        "rope of 8 bits": {"mask": am.causal(), "rope_dtype": "e4m3", "rope_factors": True},
        "rope of 8 bits, edges": {"mask": _edges(), "rope_dtype": "e4m3", "cache": narrow_rope},
        "e4m3": {"mask": am.causal(), "dtype": "e4m3"},
        "e4m3, edges": {"mask": _edges(), "dtype": "e4m3", "cache": Cache(SMALL_PAGE, "csr")},
    }
    sizes: dict[str, Any] = {"heads": 16, "nope_dim": 128, "rope_dim": 64}
    for target, orders, forms in (
        ("sm_100a", ORDERS, plain | narrow),
        ("sm_90a", HELD_ORDERS, plain),
    ):
        for form, options in forms.items():
            for order in orders:
                for tiles in (1, 2):
                    if order == "clc" and tiles > 1 and form in narrow:
                        continue  # no warp is left to claim work tiles
                    bits = 8 if options.get("dtype") == "e4m3" else 16
                    given: dict[str, Any] = {"tile_order": order, "element_bits": bits}
                    if target == "sm_100a" and not has_tiling(
                        target_named(target), 192, 128, q_tiles=tiles, **given
                    ):
                        continue  # no room for two query tiles
                    lengths = ragged if order == "ragged" else DENSE
                    chosen: dict[str, Any] = {**sizes, **options, "lengths": lengths}
                    chosen |= {"tile_order": order, "query_tiles": tiles}
                    yield (
                        f"mla, {target}, {form}, {order}, {tiles}",
                        target,
                        lambda o=chosen: am.MlaSpec(**o),
                    )
