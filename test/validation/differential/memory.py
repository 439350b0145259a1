"""Loads and stores of every width, vector and state space."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from attn_mlir.validation.differential.case import HEAD, Column, Program
from attn_mlir.validation.differential.values import Rng, draw

THREADS = 64
REGION = 2048  # bytes that a program's threads read and write
_TYPES = {1: ("b8", "u8", "s8"), 2: ("b16", "u16", "s16"), 4: ("b32", "u32", "s32", "f32"),
          8: ("b64", "u64", "s64", "f64")}  # fmt: skip
LOAD_CACHE = ["", ".ca", ".cg", ".cs", ".lu", ".cv", ".weak", ".volatile", ".relaxed.gpu",
              ".acquire.sys", ".L1::no_allocate", ".L1::evict_last", ".L2::128B", ".L1::evict_first.L2::64B",
              ".nc", ".nc.L1::no_allocate", ".nc.L2::256B", ".relaxed.cta"]  # fmt: skip
STORE_CACHE = ["", ".wb", ".cg", ".cs", ".wt", ".weak", ".volatile", ".relaxed.gpu", ".release.sys",
               ".L1::no_allocate", ".L1::evict_first"]  # fmt: skip


class Text:
    """A kernel under construction: offsets per thread come from the first buffer."""

    def __init__(self, rng: Rng):
        self.rng = rng
        self.lines: list[str] = []
        self.inputs: list[bytes] = []
        self.columns: list[Column] = []
        self.covers: set[str] = set()
        self.output_bytes = 0
        self.used = 0

    def load(self, values: np.ndarray) -> str:
        """A register with a 32- or 64-bit operand of each thread."""
        width = values.itemsize
        start = sum(map(len, self.inputs))
        self.inputs.append(values.tobytes())
        name = self.fresh(width)
        base = "da" if width == 4 else "db"
        self.lines.append(f"ld.global.b{8 * width} {name}, [{base}+{start}];")
        return name

    def fresh(self, width: int) -> str:
        """A new register of 1, 2 (both 16 bits), 4 or 8 bytes."""
        self.used += 1
        return f"{ {1: 'h', 2: 'h', 4: 'r', 8: 'd'}[width] }{self.used + 9}"

    def store(self, name: str, width: int, label: str) -> None:
        """Store a register in a column; 1-byte values with the sign that they were loaded with."""
        width = max(width, 2)
        start = -(-self.output_bytes // 8) * 8
        self.output_bytes = start + width * THREADS
        self.lines.append(f"st.global.b{8 * width} [o{width}+{start}], {name};")
        self.columns.append(Column(label, 1, start, THREADS, f"u{width}"))

    def do(self, text: str) -> str:
        """A line under test."""
        self.lines.append(text)
        self.covers.add(text.split()[1] if text.startswith("@") else text.split()[0])
        return text

    def program(self, name: str, region: np.ndarray, extra: str = "") -> Program:
        """The finished program; buffer 2 is the region in global memory."""
        body = "\n  ".join(self.lines)
        ptx = f"""{HEAD}
{extra}
.visible .entry kernel(.param .u64 inputs, .param .u64 outputs, .param .u64 region)
{{
  .reg .pred p<10>; .reg .b16 h<200>; .reg .b32 r<200>; .reg .b64 d<200>; .reg .b128 q<8>;
  .reg .b64 da, db, o2, o4, o8, region_at;
  .shared .align 128 .b8 window[{REGION}];
  .local .align 16 .b8 stack[{REGION}];
  ld.param.u64 d0, [inputs];
  ld.param.u64 d1, [outputs];
  ld.param.u64 region_at, [region];
  cvta.to.global.u64 region_at, region_at;
  mov.u32 r0, %tid.x;
  mad.wide.u32 da, r0, 4, d0;
  mad.wide.u32 db, r0, 8, d0;
  mad.wide.u32 o2, r0, 2, d1;
  mad.wide.u32 o4, r0, 4, d1;
  mad.wide.u32 o8, r0, 8, d1;
  {body}
  ret;
}}
"""
        inputs = np.frombuffer(b"".join(self.inputs) or bytes(16), np.uint8).copy()
        columns = [*self.columns, Column("the region afterwards", 2, 0, REGION, "u1")]
        outputs = np.zeros(max(16, self.output_bytes), np.uint8)
        return Program(
            name, ptx, [inputs, outputs, region], columns, sorted(self.covers), block=THREADS
        )


def random_region(rng: Rng) -> np.ndarray:
    return rng.integers(0, 256, REGION, dtype=np.uint8)


def _form(rng: Rng, most: int = 16) -> tuple[str, int, int]:
    """(vector and type, element bytes, count)."""
    width = int(rng.choice([1, 2, 4, 8]))
    counts = [c for c in (1, 2, 4) if c * width <= most]
    count = int(rng.choice(counts))
    vector = "" if count == 1 else f".v{count}"
    return f"{vector}.{rng.choice(_TYPES[width])}", width, count


def braced(names: list[str]) -> str:
    return names[0] if len(names) == 1 else "{" + ", ".join(names) + "}"


def offsets(t: Text, width: int, distinct: bool) -> str:
    """Register with an aligned offset into the region per thread."""
    slots = REGION // width
    picks = (
        t.rng.choice(slots, THREADS, replace=False)
        if distinct
        else t.rng.integers(0, slots, THREADS)
    )
    return t.load((picks * width).astype(np.uint32))


def address_of(t: Text, space: str, offset: str) -> str:
    """An address register in a state space, or a generic one."""
    wide = t.fresh(8)
    if space in ("shared", "shared::cta", "shared::cluster"):
        narrow = t.fresh(4)
        t.lines.append(f"mov.u32 {narrow}, window; add.u32 {narrow}, {narrow}, {offset};")
        return narrow
    if space == "local":
        t.lines.append(
            f"mov.u64 {wide}, stack; cvt.u64.u32 d9, {offset}; add.u64 {wide}, {wide}, d9;"
        )
    elif space == "generic shared":
        t.lines.append(
            f"cvta.shared.u64 {wide}, window; cvt.u64.u32 d9, {offset}; add.u64 {wide}, {wide}, d9;"
        )
    elif space == "generic local":
        t.lines.append(
            f"cvta.local.u64 {wide}, stack; cvt.u64.u32 d9, {offset}; add.u64 {wide}, {wide}, d9;"
        )
    elif space == "const":
        t.lines.append(
            f"mov.u64 {wide}, table; cvt.u64.u32 d9, {offset}; add.u64 {wide}, {wide}, d9;"
        )
    else:
        t.lines.append(f"cvt.u64.u32 d9, {offset}; add.u64 {wide}, region_at, d9;")
        if space == "generic global":
            t.lines.append(f"cvta.global.u64 {wide}, {wide};")
    return wide


SPACES = ("global", "shared", "shared::cta", "shared::cluster", "local", "generic global",
          "generic shared", "generic local")  # fmt: skip


def word(space: str) -> str:
    return "" if space.startswith("generic") else f".{space}"


def fill(t: Text, space: str) -> None:
    """Copy the region of global memory into a window or a thread's stack."""
    if "shared" in space:
        t.lines.append(
            "mov.u32 r1, window; shl.b32 r2, r0, 4; add.u32 r1, r1, r2; cvt.u64.u32 d2, r2; add.u64 d2, region_at, d2;"
        )
        for at in range(0, REGION, 16 * THREADS):
            t.lines.append(
                f"ld.global.v4.b32 {{r3, r4, r5, r6}}, [d2+{at}]; st.shared.v4.b32 [r1+{at}], {{r3, r4, r5, r6}};"
            )
        t.lines.append("bar.sync 0;")
    elif "local" in space:
        t.lines.append("mov.u64 d2, stack; mov.u64 d3, region_at; mov.u32 r1, 0;")
        t.lines.append(
            "COPY: ld.global.v4.b32 {r3, r4, r5, r6}, [d3]; st.local.v4.b32 [d2], {r3, r4, r5, r6};"
        )
        t.lines.append(
            f"add.u64 d2, d2, 16; add.u64 d3, d3, 16; add.u32 r1, r1, 16; setp.lt.u32 p1, r1, {REGION}; @p1 bra COPY;"
        )


def loads(seed: int, count: int) -> Iterator[Program]:
    """Loads at random places, in every space."""
    spaces = (*SPACES, "const")
    for number in range(count):
        rng = np.random.default_rng([seed, number])
        t = Text(rng)
        space = spaces[number % len(spaces)]
        fill(t, space)
        extra = ""
        if space == "const":
            data = ", ".join(str(int(x)) for x in rng.integers(0, 256, REGION))
            extra = f".const .align 16 .b8 table[{REGION}] = {{{data}}};"
        for _ in range(6):
            form, width, n = _form(rng)
            cache = str(rng.choice(LOAD_CACHE)) if space == "global" else ""
            if space.startswith(("shared", "generic")) and rng.random() < 0.3:
                cache = str(rng.choice([".volatile", ".relaxed.cta", ".weak", ".acquire.cta"]))
            order = cache if cache.startswith((".weak", ".vol", ".rel", ".acq")) else ""
            after = "" if order else cache
            address = address_of(t, space, offsets(t, width * n, False))
            names = [t.fresh(width) for _ in range(n)]
            label = t.do(f"ld{order}{word(space)}{after}{form} {braced(names)}, [{address}];")
            for name in names:
                t.store(name, width, label)
            if width == 1:  # into a wider register: the sign matters
                wide = t.fresh(4)
                kind = str(rng.choice(["s8", "u8"]))
                label = t.do(f"ld{word(space)}.{kind} {wide}, [{address}];")
                t.store(wide, 4, label)
        yield t.program(f"load/{number}", random_region(rng), extra)


def stores(seed: int, count: int) -> Iterator[Program]:
    """Stores to distinct places, then a look at the whole region."""
    for number in range(count):
        rng = np.random.default_rng([seed, number])
        t = Text(rng)
        space = SPACES[number % len(SPACES)]
        fill(t, space)
        for turn in range(4):
            form, width, n = _form(rng)
            cache = str(rng.choice(STORE_CACHE)) if space == "global" else ""
            order = cache if cache.startswith((".weak", ".vol", ".rel")) else ""
            address = address_of(t, space, offsets(t, width * n, True))
            if width == 8:
                names = [t.load(draw(rng, "i64", THREADS)) for _ in range(n)]
            else:
                names = [t.load(draw(rng, "i32", THREADS)) for _ in range(n)]
            if width < 4:
                halves = [t.fresh(2) for _ in names]
                for half, name in zip(halves, names, strict=True):
                    t.lines.append(f"cvt.u16.u32 {half}, {name};")
                names = halves
            t.do(
                f"st{order}{word(space)}{'' if order else cache}{form} [{address}], {braced(names)};"
            )
            t.lines.append(f"bar.sync {turn};")
        read_back(t, space)
        yield t.program(f"store/{number}", random_region(rng))


def read_back(t: Text, space: str) -> None:
    """Every thread reads a slice of the window (its own stack for local memory)."""
    if "global" in space:
        return
    for at in range(0, REGION, 8 * THREADS):
        name, offset = t.fresh(8), t.fresh(4)
        t.lines.append(f"shl.b32 {offset}, r0, 3; add.u32 {offset}, {offset}, {at};")
        base = "local" if "local" in space else "shared"
        address = address_of(t, base, offset)
        t.lines.append(f"ld.{base}.b64 {name}, [{address}];")
        t.store(name, 8, f"window at {at}")
