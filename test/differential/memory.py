"""Loads, stores and atomics of every width, vector and state space."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from differential.case import HEAD, Column, Program
from differential.values import Rng, draw

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


def _region(rng: Rng) -> np.ndarray:
    return rng.integers(0, 256, REGION, dtype=np.uint8)


def _form(rng: Rng, most: int = 16) -> tuple[str, int, int]:
    """(vector and type, element bytes, count)."""
    width = int(rng.choice([1, 2, 4, 8]))
    counts = [c for c in (1, 2, 4) if c * width <= most]
    count = int(rng.choice(counts))
    vector = "" if count == 1 else f".v{count}"
    return f"{vector}.{rng.choice(_TYPES[width])}", width, count


def _braced(names: list[str]) -> str:
    return names[0] if len(names) == 1 else "{" + ", ".join(names) + "}"


def _offsets(t: Text, width: int, distinct: bool) -> str:
    """Register with an aligned offset into the region per thread."""
    slots = REGION // width
    picks = (
        t.rng.choice(slots, THREADS, replace=False)
        if distinct
        else t.rng.integers(0, slots, THREADS)
    )
    return t.load((picks * width).astype(np.uint32))


def _address(t: Text, space: str, offset: str) -> str:
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


def _word(space: str) -> str:
    return "" if space.startswith("generic") else f".{space}"


def _fill(t: Text, space: str) -> None:
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
        _fill(t, space)
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
            address = _address(t, space, _offsets(t, width * n, False))
            names = [t.fresh(width) for _ in range(n)]
            label = t.do(f"ld{order}{_word(space)}{after}{form} {_braced(names)}, [{address}];")
            for name in names:
                t.store(name, width, label)
            if width == 1:  # into a wider register: the sign matters
                wide = t.fresh(4)
                kind = str(rng.choice(["s8", "u8"]))
                label = t.do(f"ld{_word(space)}.{kind} {wide}, [{address}];")
                t.store(wide, 4, label)
        yield t.program(f"load/{number}", _region(rng), extra)


def stores(seed: int, count: int) -> Iterator[Program]:
    """Stores to distinct places, then a look at the whole region."""
    for number in range(count):
        rng = np.random.default_rng([seed, number])
        t = Text(rng)
        space = SPACES[number % len(SPACES)]
        _fill(t, space)
        for turn in range(4):
            form, width, n = _form(rng)
            cache = str(rng.choice(STORE_CACHE)) if space == "global" else ""
            order = cache if cache.startswith((".weak", ".vol", ".rel")) else ""
            address = _address(t, space, _offsets(t, width * n, True))
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
                f"st{order}{_word(space)}{'' if order else cache}{form} [{address}], {_braced(names)};"
            )
            t.lines.append(f"bar.sync {turn};")
        _read_back(t, space)
        yield t.program(f"store/{number}", _region(rng))


def _read_back(t: Text, space: str) -> None:
    """Every thread reads a slice of the window (its own stack for local memory)."""
    if "global" in space:
        return
    for at in range(0, REGION, 8 * THREADS):
        name, offset = t.fresh(8), t.fresh(4)
        t.lines.append(f"shl.b32 {offset}, r0, 3; add.u32 {offset}, {offset}, {at};")
        base = "local" if "local" in space else "shared"
        address = _address(t, base, offset)
        t.lines.append(f"ld.{base}.b64 {name}, [{address}];")
        t.store(name, 8, f"window at {at}")


# ---- atomics

INTEGER = ["add.u32", "add.s32", "add.u64", "min.s32", "min.u32", "max.s32", "max.u32", "min.s64",
           "max.u64", "min.u64", "max.s64", "inc.u32", "dec.u32", "and.b32", "or.b32", "xor.b32", "and.b64", "or.b64",
           "xor.b64", "exch.b32", "exch.b64", "cas.b32", "cas.b64", "cas.b16"]  # fmt: skip
FLOATING = ["add.f32", "add.f64", "add.noftz.f16", "add.noftz.f16x2", "add.noftz.bf16",
            "add.noftz.bf16x2"]  # fmt: skip
VECTOR = ["add.v2.f32", "add.v4.f32", "add.noftz.v2.f16", "add.noftz.v4.f16", "add.noftz.v8.f16",
          "add.noftz.v2.bf16", "add.noftz.v4.bf16", "add.noftz.v8.bf16", "add.noftz.v2.f16x2",
          "add.noftz.v4.f16x2", "add.noftz.v2.bf16x2", "add.noftz.v4.bf16x2", "min.noftz.v2.f16x2",
          "max.noftz.v4.bf16x2", "min.noftz.v8.f16", "max.noftz.v2.bf16"]  # fmt: skip
_TAG = {
    "f32": "f32",
    "f64": "f64",
    "f16": "f16",
    "f16x2": "f16x2",
    "bf16": "bf16",
    "bf16x2": "bf16x2",
}
_COMMUTES = ("add", "min", "max", "and", "or", "xor")


def _value_width(kind: str) -> int:
    return 4 if kind.endswith("x2") else int(kind.lstrip("busf")) // 8


def _operand(t: Text, kind: str) -> str:
    tag = _TAG.get(kind, f"i{kind[1:]}")
    values = draw(t.rng, tag, THREADS)
    if values.itemsize == 2:
        name, half = t.load(values.astype(np.uint32)), t.fresh(2)
        t.lines.append(f"cvt.u16.u32 {half}, {name};")
        return half
    return t.load(values)


def _typed_region(rng: Rng, kind: str) -> np.ndarray:
    """A region filled with values of a type, specials included."""
    tag = _TAG.get(kind, f"i{kind[1:]}")
    count = REGION // _value_width(kind)
    return np.ascontiguousarray(draw(rng, tag, count)).view(np.uint8)


def atomics(seed: int, count: int) -> Iterator[Program]:
    """atom on distinct places three times over; red, whose order does not matter, on shared ones."""
    scopes = [
        "",
        ".relaxed.gpu",
        ".acq_rel.cta",
        ".acquire.cluster",
        ".release.sys",
        ".relaxed.cta",
    ]
    for number in range(count):
        rng = np.random.default_rng([seed, number])
        t = Text(rng)
        table = (INTEGER, FLOATING, INTEGER, VECTOR)[number % 4]
        full = table[(number // 4) % len(table)]
        op, kind = full.split(".")[0], full.split(".")[-1]
        space = str(
            rng.choice(["global", "shared", "shared::cta", "generic global", "generic shared"])
        )
        vector = next((int(p[1:]) for p in full.split(".") if p in ("v2", "v4", "v8")), 1)
        if vector > 1:
            space = "global"
        width = _value_width(kind)
        _fill(t, space)
        address = _address(t, space, _offsets(t, width * vector, True))
        scope = str(rng.choice(scopes))
        for _ in range(3):
            names = [_operand(t, kind) for _ in range(vector)]
            results = [t.fresh(width) for _ in range(vector)]
            if op == "cas":  # half of the lanes compare with what is there
                there, p = t.fresh(max(2, width)), "p2"
                load = "ld" + _word(space)
                t.lines.append(
                    f"{load}.b{8 * width} {there}, [{address}]; and.b32 r1, r0, 1; setp.eq.u32 {p}, r1, 0;"
                )
                t.lines.append(f"selp.b{8 * width} {there}, {there}, {names[0]}, {p};")
                names = [there, names[0]]
                text = f"atom{scope}{_word(space)}.{full} {results[0]}, [{address}], {names[0]}, {names[1]};"
            else:
                text = f"atom{scope}{_word(space)}.{full} {_braced(results)}, [{address}], {_braced(names)};"
            label = t.do(text)
            for name in results:
                t.store(name, width, label)
        t.lines.append("bar.sync 0;")  # what follows may touch any thread's places
        if kind[0] in "usb" and kind != "bf16" and not kind.startswith("bf16") and op in _COMMUTES:
            slots = rng.integers(0, 8, THREADS) * width
            address = _address(t, space, t.load(slots.astype(np.uint32)))
            t.do(
                f"red{scope if 'acq' not in scope else ''}{_word(space)}.{full} [{address}], {_operand(t, kind)};"
            )
        t.lines.append("bar.sync 0;")
        _read_back(t, "shared" if "shared" in space else "global")
        yield t.program(f"atomic/{number}", _typed_region(rng, kind))
