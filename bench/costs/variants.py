"""The cost of masks, modifiers and configurations in code: one kernel per row, compared with the plain one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from attn_mlir.bench.machine_code.same import differing_lines, softmax_loop
from attn_mlir.bench.measuring.stats import BUILD
from attn_mlir.bench.sass import Column, measure

HEADS, KV_HEADS, HEAD_DIM = 16, 4, 128
TARGET = "sm_100a"
TILES_AND_ORDERS = [(2, "last_first"), (2, "clc"), (2, "ragged"), (1, "last_first")]
CONFIGURATIONS = [(64, 64), (80, 80), (96, 96), (128, 128), (192, 128), (256, 256)]


def _variants() -> dict[str, dict[str, Any]]:
    """Options of `mha` by name; the first one is what the others are compared with."""
    import numpy as np

    import attn_mlir as am
    from attn_mlir import mods

    masks = [
        am.full(),
        am.causal(),
        am.prefix_lm(150),
        am.sliding_window(127),
        am.sliding_window(200, 40),
        am.sliding_window(None, 64),
        am.chunked(512),
        am.chunked(512) & am.causal(),
        am.prefix_lm(150) & am.sliding_window(300),
        ~am.causal(),
        ~am.chunked(150) | am.sliding_window(20, 20),
    ]
    ids = np.zeros((1, 1), np.int32)
    return {
        **{str(mask): {"mask": mask} for mask in masks},
        "sinks": {"sinks": np.zeros(HEADS, np.float32)},
        "causal, sinks": {"mask": am.causal(), "sinks": np.zeros(HEADS, np.float32)},
        "softcap": {"score_mod": mods.softcap(30.0)},
        "ALiBi, causal": {"mask": am.causal(), "score_mod": mods.alibi(HEADS)},
        "documents, causal": {"mask": am.causal(), "mask_mod": mods.document(ids)},
    }


def _compiled(name: str, **options: Any) -> Column:
    """A kernel's code, measured."""
    import attn_mlir as am

    bundle = am.compile(am.mha(**options), target=TARGET)
    folder = BUILD / "variants"
    folder.mkdir(parents=True, exist_ok=True)
    cubin = folder / ("".join(c if c.isalnum() else "_" for c in name) + ".cubin")
    cubin.write_bytes(bundle.cubin)
    cubin.with_suffix(".ptx").write_text(bundle.ptx)
    return measure(name, cubin, TARGET)


def _ptx(column: Column) -> list[str]:
    return softmax_loop(column.cubin.with_suffix(".ptx").read_text())


def mask_records() -> Iterator[dict[str, Any]]:
    """Per mask or modifier: how its loop without tests differs, and what a tested tile costs."""
    plain: Column | None = None
    for name, options in variants():
        column = _compiled(name, **options)
        plain = plain or column
        loop, masked = column.loop, column.masked_loop
        modified = options.keys() & {"score_mod", "mask_mod"}
        is_comparable = loop is not None and plain.loop is not None and not modified
        yield {
            "name": name,
            "ptx_lines": len(_ptx(column)) if is_comparable else None,
            "ptx_differing": differing_lines(_ptx(plain), _ptx(column)) if is_comparable else None,
            "sass_instructions": len(loop.instructions) if loop else None,
            "sass_added": _added(column, plain) if is_comparable else None,
            "per_score": loop.per_score if loop else None,
            "masked_per_score": masked.per_score if masked else None,
            "spill_bytes": column.spill_bytes,
        }


def _work(column: Column) -> dict[str, int]:
    """The loop's opcodes; instructions that only move a register are left out."""
    assert column.loop is not None
    counts: dict[str, int] = {}
    for item in column.loop.instructions:
        if "MOV" in item.opcode.split(".") or ", RZ, RZ, " in item.operands:
            continue
        counts[item.base] = counts.get(item.base, 0) + 1
    return counts


def _added(column: Column, plain: Column) -> int:
    """Instructions that one loop has and the other has not, by opcode, moves left out."""
    own, other = _work(column), _work(plain)
    return sum(abs(own.get(name, 0) - other.get(name, 0)) for name in own.keys() | other.keys())


@dataclass(frozen=True)
class Peer:
    """FlashAttention-4's kernels; `cubin` is given a head size."""

    cubin: Callable[[int], Path]
    head_dims: tuple[int, ...]


def variants() -> Iterator[tuple[str, dict[str, Any]]]:
    """Arguments of `mha` for every mask and modifier, by name."""
    for name, options in _variants().items():
        plain = {"heads": HEADS, "kv_heads": KV_HEADS, "head_dim": HEAD_DIM, "query_tiles": 2}
        yield name, {**plain, **options}


def configurations() -> Iterator[tuple[str, dict[str, Any]]]:
    """Arguments of `mha` per head size, query tiles and tile order, by name; causal bf16."""
    for d, dv in CONFIGURATIONS:
        for tiles, order in _tiles_and_orders(d, dv):
            yield f"D={d} {dv} {tiles} {order}", _configuration(d, dv, tiles, order)


def _tiles_and_orders(d: int, dv: int) -> Iterator[tuple[int, str]]:
    """Those that there is a kernel for: wide heads have no room for two query tiles."""
    from attn_mlir.dialect.targets.limits import target_named
    from attn_mlir.schedules.policy.tiling import has_tiling

    for tiles, order in TILES_AND_ORDERS:
        if has_tiling(target_named(TARGET), d, dv, q_tiles=tiles, tile_order=order):
            yield tiles, order


def _configuration(d: int, dv: int, tiles: int, order: str) -> dict[str, Any]:
    import attn_mlir as am
    from attn_mlir.dialect.attn.lengths import DENSE, Lengths

    is_ragged = order == "ragged"
    return {
        "heads": HEADS, "kv_heads": KV_HEADS, "head_dim": d, "v_head_dim": dv,
        "mask": am.causal(), "query_tiles": tiles, "tile_order": order,
        "lengths": Lengths(ragged_q=True, ragged_k=True) if is_ragged else DENSE,
    }  # fmt: skip


def configuration_records(peer: Peer | None) -> Iterator[dict[str, Any]]:
    """Per head size, query tiles and tile order: registers, spills, memory; causal bf16."""
    import attn_mlir as am

    for d, dv in CONFIGURATIONS:
        for tiles, order in _tiles_and_orders(d, dv):
            options = _configuration(d, dv, tiles, order)
            bundle = am.compile(am.mha(**options), target=TARGET)
            report = cast("Any", bundle.report)
            roles: dict[str, Any] = {entry["role"]: entry for entry in report["roles"]}
            column = _compiled(f"D={d} {tiles} {order}", **options)
            regions: list[dict[str, Any]] = report["memory_map"]
            yield {
                "name": f"{d}" if d == dv else f"{d}, {dv}",
                "query_tiles": tiles,
                "order": order,
                "registers": column.usage.registers,
                "budgets": [roles[r]["registers"] for r in ("softmax", "correction", "mma")],
                "spill_bytes": column.spill_bytes,
                "smem_bytes": bundle.manifest.smem_bytes,
                "tensor_cols": max(r["end"] for r in regions if r["space"] == "tensor"),
                "per_score": column.loop.per_score if column.loop else None,
            }
        if peer is not None and d == dv and d in peer.head_dims:
            column = measure(f"FA4 {d}", peer.cubin(d), TARGET)
            yield {
                "name": f"FA4 {d}",
                "registers": column.usage.registers,
                "spill_bytes": column.spill_bytes,
                "per_score": column.loop.per_score if column.loop else None,
            }
