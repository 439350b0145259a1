"""Tensor maps that a kernel changes: tensormap.replace, its publication, and a load with the result."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from attn_mlir.validation.differential.case import Column, Program
from attn_mlir.validation.differential.tma import (
    NAMES,
    SHARED_BYTES,
    WAIT,
    WINDOW,
    Box,
    contents,
    kernel,
    load_text,
    random_box,
)
from attn_mlir.validation.differential.values import Rng

# CUtensorMapDataType -> PTX's number of the same type, where they differ
_ELEMTYPE = {8: 9, 9: 10, 10: 8}


def _reshaped(rng: Rng, box: Box) -> Box:
    """The same box of a tensor with other extents and strides, as grouped products need it."""
    while True:
        dims = tuple(int(rng.integers(1, 2 * b + 2)) for b in box.box)
        made = replace(box, dims=dims, padding=16 * int(rng.integers(0, 3)))
        if made.tensor_bytes <= 8192:
            return made


def _fields(box: Box, only_shape: bool) -> list[tuple[str, str, str]]:
    """(field, type, operands) of every tensormap.replace that leads to a box."""
    made = [("global_address", "b64", "d0")]
    made += [("global_dim", "b32", f"{i}, {n}") for i, n in enumerate(box.dims)]
    made += [("global_stride", "b64", f"{i}, {n}") for i, n in enumerate(box.strides)]
    if not only_shape:
        made += [("rank", "b32", str(len(box.dims) - 1))]
        made += [("box_dim", "b32", f"{i}, {n}") for i, n in enumerate(box.box)]
        made += [("element_stride", "b32", f"{i}, {n}") for i, n in enumerate(box.steps)]
        made += [("elemtype", "b32", str(_ELEMTYPE.get(box.element, box.element)))]
        made += [("swizzle_mode", "b32", str(box.swizzle)), ("fill_mode", "b32", str(box.fill))]
        made += [("interleave_layout", "b32", "0")]
    return made


def _prologue(rng: Rng, box: Box, only_shape: bool, place: str, covers: set[str]) -> str:
    """Warp 0 copies the parameter to shared or global memory, changes it there and publishes it."""
    at = "[r16]" if place == "shared::cta" else "[d2]"
    fields = _fields(box, only_shape)
    lines = [
        "setp.lt.u32 p4, r1, 32; @!p4 bra PUBLISHED;",
        "add.u32 r16, r10, 128; cvt.u64.u32 d10, r3; add.u64 d11, d20, d10; ld.b32 r15, [d11];",
        "add.u32 r17, r16, r3; add.u64 d12, d2, d10;",
        "st.shared.b32 [r17], r15;" if place == "shared::cta" else "st.global.b32 [d12], r15;",
        "bar.warp.sync -1;",
    ]
    for i in rng.permutation(len(fields)):
        field, kind, operands = fields[int(i)]
        opcode = f"tensormap.replace.tile.{field}.{place}.b1024.{kind}"
        covers.add(opcode)
        *ordinal, value = operands.split(", ")
        if kind == "b64" and value.isdigit():
            lines.append(f"mov.b64 d13, {value};")
            value = "d13"
        elif kind == "b32" and ordinal and rng.random() < 0.5:
            lines.append(f"mov.b32 r18, {value};")
            value = "r18"
        lines.append(f"@p2 {opcode} {', '.join([at, *ordinal, value])};")
    lines.append("bar.warp.sync -1;")
    if place == "shared::cta":
        publish = (
            "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned"
        )
        lines.append(f"{publish} [d2], [r16], 128;")
    else:
        publish = "fence.proxy.tensormap::generic.release.gpu"
        lines.append(f"{publish};")
    covers.add(publish)
    return "\n".join(f"  {line}" for line in [*lines, "PUBLISHED:", "bar.sync 0;"])


def made_maps(seed: int, count: int) -> Iterator[Program]:
    """A driver's map becomes another one; the map's bytes and a tile loaded with it are compared.

    Every other map only gets a tensor of another shape, the rest become maps of any other box.
    """
    for number in range(count):
        rng = np.random.default_rng([seed, number])
        rank = number % 5 + 1
        before = random_box(rng, tuple(NAMES), int(rng.integers(1, 6)), int(rng.integers(0, 4)))
        only_shape = number // 5 % 2 == 0
        after = (
            _reshaped(rng, before)
            if only_shape
            else random_box(rng, tuple(NAMES), rank, int(rng.integers(0, 4)))
        )
        covers = {"fence.proxy.tensormap::generic.acquire.gpu"}
        place = str(rng.choice(["shared::cta", "global"]))
        load = load_text(rng, after.coordinates(rng, -1), "d2")
        covers.add(load.split()[0])
        body = [
            "  mov.b64 d9, 0x1000000000000000;",
            "  fence.proxy.tensormap::generic.acquire.gpu [d2], 128;",
            f"  mbarrier.arrive.expect_tx.shared::cta.b64 _, [r10], {after.tx_bytes};",
            f"  add.u32 r9, r2, {128 * int(rng.integers(0, 8))};",
            "  " + load,
            WAIT.format(n=0, parity=0),
        ]
        ptx = kernel("\n".join(body), 1, _prologue(rng, after, only_shape, place, covers))
        span = max(before.tensor_bytes, after.tensor_bytes)
        source = contents(rng, after.element, span, False)
        columns = [
            Column("the window", 1, 0, WINDOW, "u1"),
            Column("the map behind its address", 2, 8, 120, "u1"),
        ]
        yield Program(
            f"tensormap/{number}", ptx,
            [source, np.zeros(WINDOW, np.uint8), np.zeros(128, np.uint8)], columns, sorted(covers),
            block=128, shared_bytes=SHARED_BYTES, maps=[before.spec(0)],
        )  # fmt: skip
