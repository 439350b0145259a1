"""mma.sync, ldmatrix, stmatrix, movmatrix."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from attn_mlir.validation.differential.case import HEAD, Column, Program
from attn_mlir.validation.differential.values import Rng

CASES = 4  # CTAs per program, each with its own operands

# (shape, D = C, A, B, registers of A, B and D)
FORMS = [
    ("m16n8k16", "f32", "bf16", "bf16", (4, 2, 4)),
    ("m16n8k16", "f32", "f16", "f16", (4, 2, 4)),
    ("m16n8k16", "f16", "f16", "f16", (4, 2, 2)),
    ("m16n8k8", "f32", "bf16", "bf16", (2, 1, 4)),
    ("m16n8k8", "f32", "f16", "f16", (2, 1, 4)),
    ("m16n8k8", "f16", "f16", "f16", (2, 1, 2)),
    ("m16n8k8", "f32", "tf32", "tf32", (4, 2, 4)),
    ("m16n8k4", "f32", "tf32", "tf32", (2, 1, 4)),
    *(("m16n8k32", "s32", a, b, (4, 2, 4)) for a in ("u8", "s8") for b in ("u8", "s8")),
    *(("m16n8k16", "s32", a, b, (2, 1, 4)) for a in ("u8", "s8") for b in ("u8", "s8")),
    *(("m16n8k32", "f32", a, b, (4, 2, 4)) for a in ("e4m3", "e5m2") for b in ("e4m3", "e5m2")),
]
WIDTH = {"f16": np.uint16, "bf16": np.uint16, "tf32": np.uint32, "f32": np.uint32}


def codes(rng: Rng, element: str, shape: tuple[int, ...], spread: int, special: bool) -> np.ndarray:
    """Operands of a matrix product, exponents over a range of 2 * spread, as unsigned integers."""
    if element in ("e4m3", "e5m2", "u8", "s8", "s32"):
        made = rng.integers(0, 256, shape, np.uint8)
        if not special and element == "e4m3":
            made[(made & 0x7F) == 0x7F] = 0
        if not special and element == "e5m2":
            made[(made & 0x7C) == 0x7C] = 0
        return made
    x = rng.standard_normal(shape) * 2.0 ** rng.integers(-spread, spread + 1, shape)
    x[rng.random(shape) < 0.1] = 0
    if special:
        for value in (np.inf, -np.inf, np.nan):
            x[rng.random(shape) < 0.004] = value
    with np.errstate(over="ignore"):
        if element == "f16":
            return x.astype(np.float16).view(np.uint16)
        bits = x.astype(np.float32).view(np.uint32)
    return (bits >> 16).astype(np.uint16) if element == "bf16" else bits


def words(rng: Rng, element: str, count: int, spread: int, special: bool) -> np.ndarray:
    """`count` 32-bit registers of operands."""
    per = 4 // np.dtype(WIDTH.get(element, np.uint8)).itemsize
    made = codes(rng, element, (count * per,), spread, special)
    return np.ascontiguousarray(made).view(np.uint32)


def _registers(first: int, count: int) -> str:
    return "{" + ", ".join(f"r{first + i}" for i in range(count)) + "}"


def products(seed: int, count: int) -> Iterator[Program]:
    """Two mma.sync in a row on one accumulator."""
    for number in range(count):
        rng = np.random.default_rng([seed, number])
        shape, d, a, b, (na, nb, nd) = FORMS[number % len(FORMS)]
        special, spread = number // len(FORMS) % 3 == 2, (2, 12, 20)[number // len(FORMS) % 3]
        total = 2 * (na + nb) + nd
        source = np.concatenate(
            [
                words(rng, element, n * 32, spread, special)
                for _ in range(CASES)
                for element, n in ((a, na), (b, nb), (a, na), (b, nb), (d, nd))
            ]
        )
        satfinite = ".satfinite" if d == "s32" and rng.random() < 0.5 else ""
        opcode = f"mma.sync.aligned.{shape}.row.col{satfinite}.{d}.{a}.{b}.{d}"
        loads = "\n".join(f"  ld.global.b32 r{10 + i}, [d3+{128 * i}];" for i in range(total))
        c = 10 + 2 * (na + nb)
        lines: list[str] = []
        for turn in range(2):
            first = 10 + turn * (na + nb)
            from_c = c if turn == 0 else 80
            lines.append(
                f"  {opcode} {_registers(80 + nd * turn, nd)}, {_registers(first, na)}, "
                f"{_registers(first + na, nb)}, {_registers(from_c, nd)};"
            )
        stores = "\n".join(f"  st.global.b32 [d5+{128 * i}], r{80 + i};" for i in range(2 * nd))
        ptx = f"""{HEAD}
.visible .entry kernel(.param .u64 inputs, .param .u64 outputs)
{{
  .reg .b32 r<120>; .reg .b64 d<8>;
  ld.param.u64 d1, [inputs];
  ld.param.u64 d2, [outputs];
  mov.u32 r1, %tid.x;
  mov.u32 r2, %ctaid.x;
  mul.wide.u32 d6, r1, 4;
  mad.wide.u32 d3, r2, {128 * total}, d1;
  add.u64 d3, d3, d6;
  mad.wide.u32 d5, r2, {256 * nd}, d2;
  add.u64 d5, d5, d6;
{loads}
{chr(10).join(lines)}
{stores}
  ret;
}}
"""
        kind = {"f32": "f4", "f16": "f2", "s32": "u4"}[d]
        size = int(kind[1])
        columns = [
            Column(opcode, 1, 256 * nd * case, 256 * nd // size, kind) for case in range(CASES)
        ]
        buffers = [source.view(np.uint8), np.zeros(256 * nd * CASES, np.uint8)]
        yield Program(f"mma/{number}", ptx, buffers, columns, [opcode], grid=CASES)


WINDOW = 2048


def moves(seed: int, count: int) -> Iterator[Program]:
    """stmatrix to random rows, ldmatrix from random rows, movmatrix."""
    for number in range(count):
        rng = np.random.default_rng([seed, number])
        lines: list[str] = []
        covers: list[str] = []
        rows = WINDOW // 16
        tables: list[np.ndarray] = []
        outputs: list[str] = []

        def table(
            values: np.ndarray, at: str, lines: list[str] = lines, tables: list[np.ndarray] = tables
        ) -> None:
            lines.append(f"  ld.global.b32 {at}, [d4+{128 * len(tables)}];")
            tables.append(values.astype(np.uint32))

        for turn in range(4):
            n = int(rng.choice([1, 2, 4]))
            trans = str(rng.choice(["", ".trans"]))
            space = str(rng.choice([".shared", ".shared::cta"]))
            names = "{" + ", ".join(f"r{20 + 4 * turn + i}" for i in range(n)) + "}"
            table(16 * rng.choice(rows, 32, replace=False), "r5")
            lines.append("  add.u32 r5, r5, r4;")
            if turn % 2 == 0:
                for i in range(n):
                    table(rng.integers(0, 2**32, 32, dtype=np.uint32), f"r{20 + 4 * turn + i}")
                covers.append(f"stmatrix.sync.aligned.m8n8.x{n}{trans}{space}.b16")
                lines.append(f"  {covers[-1]} [r5], {names};")
            else:
                covers.append(f"ldmatrix.sync.aligned.m8n8.x{n}{trans}{space}.b16")
                lines.append(f"  {covers[-1]} {names}, [r5];")
                outputs += [f"r{20 + 4 * turn + i}" for i in range(n)]
                covers.append("movmatrix.sync.aligned.m8n8.trans.b16")
                lines.append(f"  {covers[-1]} r{60 + turn}, r{20 + 4 * turn};")
                outputs.append(f"r{60 + turn}")
            lines.append("  bar.warp.sync 0xffffffff;")
        stores = "\n".join(f"  st.global.b32 [d3+{128 * i}], {r};" for i, r in enumerate(outputs))
        start = 128 * len(outputs)
        ptx = f"""{HEAD}
.visible .entry kernel(.param .u64 inputs, .param .u64 outputs)
{{
  .reg .b32 r<80>; .reg .b64 d<8>; .reg .pred p<2>;
  .shared .align 128 .b8 window[{WINDOW}];
  ld.param.u64 d1, [inputs];
  ld.param.u64 d2, [outputs];
  mov.u32 r1, %tid.x;
  mad.wide.u32 d4, r1, 4, d1;
  mad.wide.u32 d3, r1, 4, d2;
  add.u64 d5, d4, {{tables}};
  mov.u32 r4, window;
  mad.lo.u32 r6, r1, 4, r4;
  mov.u32 r7, 0;
FILL:
  ld.global.b32 r8, [d5];
  st.shared.b32 [r6], r8;
  add.u64 d5, d5, 128; add.u32 r6, r6, 128; add.u32 r7, r7, 128;
  setp.lt.u32 p1, r7, {WINDOW};
  @p1 bra FILL;
  bar.warp.sync 0xffffffff;
{chr(10).join(lines)}
{stores}
  add.u64 d5, d3, {start};
  mad.lo.u32 r6, r1, 4, r4;
  mov.u32 r7, 0;
DUMP:
  ld.shared.b32 r8, [r6];
  st.global.b32 [d5], r8;
  add.u64 d5, d5, 128; add.u32 r6, r6, 128; add.u32 r7, r7, 128;
  setp.lt.u32 p1, r7, {WINDOW};
  @p1 bra DUMP;
  ret;
}}
""".replace("{tables}", str(128 * len(tables)))
        fill = rng.integers(0, 2**32, WINDOW // 4, dtype=np.uint32)
        source = np.concatenate([*tables, fill]).view(np.uint8)
        columns = [
            Column(f"ldmatrix or movmatrix, result {i}", 1, 128 * i, 32, "u4")
            for i in range(len(outputs))
        ]
        columns.append(Column("the window", 1, start, WINDOW, "u1"))
        result = np.zeros(start + WINDOW, np.uint8)
        yield Program(f"matrix/{number}", ptx, [source, result], columns, sorted(set(covers)))
