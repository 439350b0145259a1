"""wgmma: operand forms, descriptors, sizes, signs, chains of several on one accumulator."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from attn_mlir.validation.differential.case import HEAD, Column, Program
from attn_mlir.validation.differential.matrices import words
from attn_mlir.validation.differential.values import Rng

IMAGE = 0x8000  # bytes of shared memory that hold operands
BASE = 0x400  # the first address of a CTA's shared memory


@dataclass(frozen=True)
class Form:
    """Types of a wgmma."""

    d: str
    a: str
    b: str
    k: int


FORMS = [
    Form("f32", "bf16", "bf16", 16),
    Form("f32", "f16", "f16", 16),
    Form("f16", "f16", "f16", 16),
    Form("f32", "tf32", "tf32", 8),
    *(Form("f32", a, b, 32) for a in ("e4m3", "e5m2") for b in ("e4m3", "e5m2")),
    *(Form("f16", a, b, 32) for a in ("e4m3", "e5m2") for b in ("e4m3", "e5m2")),
    *(Form("s32", a, b, 32) for a in ("u8", "s8") for b in ("u8", "s8")),
]


def descriptor(start: int, lbo: int, sbo: int, code: int) -> int:
    """The 64 bits; code 0 none, 1 128B, 2 64B, 3 32B."""
    return code << 62 | (sbo >> 4) << 32 | (lbo >> 4) << 16 | start >> 4


@dataclass(frozen=True)
class Tile:
    """A descriptor and the bytes of the image, `start` to `end`, that it may reach."""

    descriptor: int
    start: int
    end: int


def k_major(rng: Rng, rows: int) -> Tile:
    """A descriptor of `rows` rows that stay in the image: any swizzle, stride, K step."""
    groups = rows // 8
    while True:
        code = int(rng.integers(0, 4))
        span = {0: 16, 1: 128, 2: 64, 3: 32}[code]
        sbo = 8 * span * int(rng.integers(1, 3)) if code else 16 * int(rng.integers(1, 40))
        lbo = 16 * int(rng.integers(0, 80))
        unit = 8 * span if code else 16
        last = (groups - 1) * sbo + 8 * span + (lbo if not code else 0)
        if last + unit <= IMAGE:
            break
    slot = int(rng.integers(0, (IMAGE - last) // unit))
    start, end = slot * unit, slot * unit + last + unit
    step = 32 * int(rng.integers(0, span // 32)) if code else 0
    made = descriptor(BASE + start + step, lbo, sbo, code)
    if code and rng.random() < 0.2 and not step:  # a tile that starts inside the pattern
        phase = int(rng.integers(0, span // 16))
        if end + 128 * phase <= IMAGE:
            made = descriptor(BASE + start + 128 * phase, lbo, sbo, code) | phase << 49
            end += 128 * phase
    return Tile(made, start, end)


def mn_major(rng: Rng, mn_bytes: int) -> Tile:
    """A descriptor of an MN-major operand with K = 16 that stays in the image."""
    while True:
        code = int(rng.integers(0, 4))
        span = {0: 16, 1: 128, 2: 64, 3: 32}[code]
        unit = 8 * span
        near, far = (unit * int(rng.integers(1, 5)) for _ in range(2))
        # without swizzle LBO steps over K and SBO over MN, with one the other way round
        lbo, sbo = (near, far) if code else (far, near)
        over_mn, over_k = (lbo, sbo) if code else (sbo, lbo)
        last = (max(mn_bytes // span, 1) - 1) * over_mn + over_k + unit
        if last + unit <= IMAGE and mn_bytes % span == 0:
            break
    slot = int(rng.integers(0, (IMAGE - last) // unit))
    made = descriptor(BASE + slot * unit, lbo, sbo, code)
    return Tile(made, slot * unit, slot * unit + last + unit)


def _registers(first: int, count: int) -> str:
    return "{" + ", ".join(f"r{first + i}" for i in range(count)) + "}"


def moved(tile: Tile, rng: Rng) -> Tile:
    """The tile, started in any row of its swizzle pattern, with any base offset."""
    least = -(-(tile.end - IMAGE) // 128)
    start = tile.descriptor & 0x3FFF
    rows = 128 * int(rng.integers(0, 8 if least < -8 else max(1, -least)))
    base_offset = int(rng.integers(0, 8)) if rng.random() < 0.6 else 0
    made = tile.descriptor & ~0x3FFF & ~(7 << 49) | start + (rows >> 4) | base_offset << 49
    # the XOR stays within 1024 bytes of the addresses before it
    return Tile(made, max(0, tile.start - 1024), min(IMAGE, tile.end + rows + 1024))


def products(seed: int, count: int, *, anywhere: bool = False) -> Iterator[Program]:
    """One to four wgmma on one accumulator, in one or two groups.

    Args:
      anywhere: tiles start in any row of their swizzle pattern.
    """
    for number in range(count):
        rng = np.random.default_rng([seed, number])
        form = FORMS[number % len(FORMS)]
        sizes = [8, 16, 24, 32, 64] if form.d == "s32" else [8, 16, 24, 32, 40, 64, 96]
        n = int(rng.choice(sizes))
        if rng.random() < 0.15:  # any of the larger ones
            step = 16 if form.d == "s32" else 8
            n = step * int(rng.integers(64 // step, 256 // step + 1))
        transposable = form.a in ("f16", "bf16")
        in_registers = bool(rng.integers(0, 2))
        special = bool(rng.random() < 0.2)
        spread = int(rng.choice([2, 12, 40 if special else 16]))
        d_count = n // 4 if form.d == "f16" else n // 2
        image = words(rng, form.a, IMAGE // 4, spread, special).view(np.uint8).copy()
        if form.a != form.b and form.a.startswith("e") and not special:
            image[(image & 0x7C) >= 0x78] = 0  # finite in either 8-bit format
        steps = int(rng.integers(1, 5))
        tiles: list[Tile] = []
        lines: list[str] = []
        opcode = f"wgmma.mma_async.sync.aligned.m64n{n}k{form.k}.{form.d}.{form.a}.{form.b}"
        if form.d == "s32" and rng.random() < 0.3:
            opcode += ".satfinite"
        for step in range(steps):
            trans = tuple(int(t) for t in rng.integers(0, 2, 2)) if transposable else (0, 0)
            if in_registers:
                trans = (0, trans[1])
            tiles.append(mn_major(rng, 128) if trans[0] else k_major(rng, 64))
            tiles.append(mn_major(rng, 2 * n) if trans[1] else k_major(rng, n))
            tail = ""
            if form.d != "s32":
                tail = f", {rng.choice([1, -1])}, {rng.choice([1, -1])}"
                if transposable:
                    tail += f", {trans[1]}" if in_registers else f", {trans[0]}, {trans[1]}"
            scale = str(rng.choice(["p1", "p2"])) if step == 0 else "p1"
            a = _registers(20, 4) if in_registers else f"d{12 + 2 * step}"
            lines.append(
                f"  {opcode} {_registers(30, d_count)}, {a}, d{13 + 2 * step}, {scale}{tail};"
            )
            if step == 1:
                lines.append("  wgmma.commit_group.sync.aligned;")
        if anywhere:
            tiles = [moved(tile, rng) for tile in tiles]
        reached = np.zeros(IMAGE, bool)
        for tile in tiles:
            reached[tile.start : tile.end] = True
        image[~reached] = 0  # so that recorded images take little room
        source = np.concatenate(
            [
                image,
                np.array([tile.descriptor for tile in tiles], np.uint64).view(np.uint8),
                words(rng, form.a, 4 * 128, spread, special).view(np.uint8),
                words(rng, form.d, d_count * 128, spread, special).view(np.uint8),
            ]
        )
        ptx = _kernel(len(tiles), d_count, "\n".join(lines))
        kind = {"f32": "f4", "f16": "f2", "s32": "u4"}[form.d]
        byte_count = 512 * d_count
        columns = [Column(opcode, 1, 0, byte_count // int(kind[1]), kind)]
        covers = [opcode, "wgmma.fence", "wgmma.commit_group", "wgmma.wait_group"]
        yield Program(
            f"wgmma{'-moved' if anywhere else ''}/{number}", ptx, [source, np.zeros(byte_count, np.uint8)], columns, covers,
            block=128, shared_bytes=IMAGE,
        )  # fmt: skip


def _kernel(entries: int, d_count: int, body: str) -> str:
    """Shared memory from the image; descriptors, A and D registers from what follows it."""
    tables = "\n".join(f"  ld.global.b64 d{12 + i}, [d1+{IMAGE + 8 * i}];" for i in range(entries))
    a_at = IMAGE + 8 * entries
    d_at = a_at + 4 * 512
    a = "\n".join(f"  ld.global.b32 r{20 + i}, [d3+{a_at + 512 * i}];" for i in range(4))
    d = "\n".join(f"  ld.global.b32 r{30 + i}, [d3+{d_at + 512 * i}];" for i in range(d_count))
    stores = "\n".join(f"  st.global.b32 [d4+{512 * i}], r{30 + i};" for i in range(d_count))
    return f"""{HEAD}
.extern .shared .align 1024 .b8 window[];
.visible .entry kernel(.param .u64 inputs, .param .u64 outputs)
.reqntid 128, 1, 1
{{
  .reg .b32 r<{30 + d_count}>; .reg .b64 d<24>; .reg .pred p<4>;
  ld.param.u64 d1, [inputs];
  ld.param.u64 d2, [outputs];
  mov.u32 r1, %tid.x;
  mad.wide.u32 d3, r1, 4, d1;
  mad.wide.u32 d4, r1, 4, d2;
  mov.u32 r4, window;
  mad.lo.u32 r4, r1, 4, r4;
  mov.b64 d5, d3;
  mov.u32 r5, 0;
COPY:
  ld.global.b32 r6, [d5];
  st.shared.b32 [r4], r6;
  add.u64 d5, d5, 512; add.u32 r4, r4, 512; add.u32 r5, r5, 512;
  setp.lt.u32 p3, r5, {IMAGE};
  @p3 bra COPY;
  fence.proxy.async.shared::cta;
  bar.sync 0;
{tables}
{a}
{d}
  setp.eq.u32 p1, r1, r1;
  setp.ne.u32 p2, r1, r1;
  wgmma.fence.sync.aligned;
{body}
  wgmma.commit_group.sync.aligned;
  wgmma.wait_group.sync.aligned 0;
{stores}
  ret;
}}
"""
