"""One small problem for each family of our attention kernels, for runs under many schedules."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
from mha_cases import Schedule
from mha_check import TARGET, poisoned

import attn_mlir as am
from attn_mlir.reference import check_attention
from attn_mlir.runtime.devices.emulator import EmulatorDevice
from attn_mlir.runtime.kernel import Kernel

DTYPES: dict[str, Any] = {
    "bf16": ml_dtypes.bfloat16,
    "f16": np.float16,
    "f32": np.float32,
    "e4m3": ml_dtypes.float8_e4m3fn,
}


@dataclass(frozen=True)
class Family:
    """A kernel and a launch of it.

    Attributes:
      sq, sk: queries and keys.
      options: further arguments of `am.mha`.
      multiprocessors: of the device; one makes persistent CTAs take every tile.
    """

    title: str
    head_dim: int
    v_head_dim: int
    mask: am.Mask
    dtype: str = "bf16"
    sq: int = 140
    sk: int = 300
    heads: int = 1
    kv_heads: int = 1
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    multiprocessors: int = 8

    @property
    def name(self) -> str:
        """What the kernel is and what it is given, in one line."""
        d = str(self.head_dim)
        d += f"/{self.v_head_dim}" if self.v_head_dim != self.head_dim else ""
        heads = f"H={self.heads}"
        heads += f" on {self.kv_heads}" if self.kv_heads != self.heads else ""
        extra = f", {self.title}" if self.title else ""
        return f"D={d} {self.mask}, {heads} S={self.sq}x{self.sk}, {self.dtype}{extra}"


def _family(
    title: str, head_dim: int, mask: am.Mask, *, v_head_dim: int | None = None, **rest: Any
) -> Family:
    return Family(title, head_dim, v_head_dim or head_dim, mask, **rest)


FAMILIES: tuple[Family, ...] = (
    _family("", 64, am.causal()),
    _family("", 64, am.full(), dtype="f16"),
    _family("", 128, am.causal(), dtype="f16"),
    _family("", 128, am.full()),
    _family("", 128, am.sliding_window(70, 20)),
    _family("", 128, am.prefix_lm(150)),
    _family("", 192, am.causal(), v_head_dim=128),
    _family("", 256, am.causal(), sk=200),
    _family("1 query tile", 128, am.causal(), options={"query_tiles": 1}),
    _family("2 query tiles", 128, am.causal(), options={"query_tiles": 2}),
    _family("packed heads", 64, am.causal(), sq=40, heads=8, kv_heads=2),
    _family(
        "persistent", 64, am.causal(), sq=300, heads=2, kv_heads=2,
        options={"tile_order": "persistent"}, multiprocessors=1,
    ),
    _family(
        "persistent, packed heads", 128, am.full(), sq=70, heads=8, kv_heads=2,
        options={"tile_order": "persistent"}, multiprocessors=1,
    ),
    _family(
        "cluster launch control", 64, am.full(), heads=2, kv_heads=2, options={"tile_order": "clc"}
    ),
    _family("no LSE", 128, am.causal(), options={"return_lse": False}),
    _family("O in f32", 64, am.causal(), options={"out_dtype": "f32"}),
    _family("O in bf16", 128, am.causal(), dtype="e4m3"),
)  # fmt: skip


@functools.lru_cache(maxsize=4)
def _kernel(number: int) -> Kernel:
    family = FAMILIES[number]
    spec = am.mha(
        heads=family.heads, kv_heads=family.kv_heads, head_dim=family.head_dim,
        v_head_dim=family.v_head_dim, dtype=family.dtype, mask=family.mask, **family.options,
    )  # fmt: skip
    return am.load(am.compile(spec, target=TARGET))


def ptx_lines(number: int) -> int:
    """Of the family's kernel."""
    return _kernel(number).bundle.ptx.count("\n")


def run(number: int, schedule: Schedule, check: str = "all") -> tuple[str, int]:
    """Launch a family's kernel: what is wrong with the numbers, or nothing, and warp-instructions.

    Raises:
      LaunchError: a finding of a checker among others.
    """
    family = FAMILIES[number]
    random = np.random.default_rng(number)
    q, k, v = (
        random.standard_normal((1, length, heads, d)).astype(DTYPES[family.dtype])
        for length, heads, d in (
            (family.sq, family.heads, family.head_dim),
            (family.sk, family.kv_heads, family.head_dim),
            (family.sk, family.kv_heads, family.v_head_dim),
        )
    )
    default = "bf16" if family.dtype == "e4m3" else family.dtype
    out_dtype = DTYPES[family.options.get("out_dtype", default)]
    o = poisoned((*q.shape[:3], family.v_head_dim), np.dtype(out_dtype))
    lse = poisoned((1, family.heads, family.sq), np.dtype(np.float32))
    outputs = [o, lse] if family.options.get("return_lse", True) else [o]
    device = EmulatorDevice(
        schedule.kind, schedule.seed, multiprocessors=family.multiprocessors, check=check
    )
    done = _kernel(number)(q, k, v, *outputs, device=device)
    judged = lse if len(outputs) == 2 else None
    verdict = check_attention(q, k, v, o, judged, mask=family.mask)
    return "" if verdict.ok else str(verdict), done.warp_instructions or 0
