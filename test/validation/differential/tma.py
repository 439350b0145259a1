"""TMA tile loads, stores and reductions of rank 1 to 5."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from attn_mlir.validation.differential.case import HEAD, Column, MapSpec, Program
from attn_mlir.validation.differential.tensormaps import ELEMENTS
from attn_mlir.validation.differential.values import Rng, draw

WINDOW = 0x3000  # bytes of shared memory that are filled and dumped
SHARED_BYTES = WINDOW + 1024
NAMES = {0: "u8", 1: "u16", 2: "u32", 3: "s32", 4: "u64", 5: "s64", 6: "f16", 7: "f32", 8: "f64",
          9: "bf16", 10: "f32.ftz", 11: "tf32", 12: "tf32.ftz"}  # fmt: skip
_FLOATS = (6, 7, 8, 9, 10, 11, 12)
RANK_LIMITS = {1: 1, 2: 64, 3: 10, 4: 5, 5: 3}  # of the outer box extents
SPAN = {0: 256, 1: 32, 2: 64, 3: 128}
REDUCTIONS = {  # element -> operations
    2: ("add", "min", "max", "inc", "dec", "and", "or", "xor"),
    3: ("add", "min", "max"),
    4: ("add", "min", "max", "and", "or", "xor"),
    5: ("min", "max"),
    6: ("add", "min", "max"),
    7: ("add",),
    9: ("add", "min", "max"),
    10: ("add",),
}


@dataclass(frozen=True)
class Box:
    """A tensor and how a map cuts it; dimension 0 is innermost."""

    element: int
    dims: tuple[int, ...]
    box: tuple[int, ...]
    steps: tuple[int, ...]
    swizzle: int
    fill: int
    padding: int

    @property
    def item(self) -> int:
        return ELEMENTS[self.element][1]

    @property
    def strides(self) -> tuple[int, ...]:
        pitch = -(-self.dims[0] * self.item // 16) * 16 + self.padding
        strides = list[int]()
        for extent in self.dims[1:]:
            strides.append(pitch)
            pitch *= extent
        return tuple(strides)

    @property
    def tensor_bytes(self) -> int:
        row = -(-self.dims[0] * self.item // 16) * 16 + self.padding
        return row * math.prod(self.dims[1:])

    @property
    def counts(self) -> tuple[int, ...]:
        return (
            self.box[0],
            *(-(-n // s) for n, s in zip(self.box[1:], self.steps[1:], strict=True)),
        )

    @property
    def tx_bytes(self) -> int:
        return self.item * math.prod(self.counts)

    @property
    def shared_bytes(self) -> int:
        """What the box takes in shared memory: rows at the pitch of the swizzle."""
        pitch = SPAN[self.swizzle] if self.swizzle else self.item * self.box[0]
        return pitch * math.prod(self.counts[1:])

    def spec(self, buffer: int, promotion: int = 0) -> MapSpec:
        return MapSpec(
            buffer, 0, self.element, self.dims, self.strides, self.box, self.steps,
            0, self.swizzle, promotion, self.fill,
        )  # fmt: skip

    def coordinates(self, rng: Rng, low: int) -> tuple[int, ...]:
        """A position in or around the tensor; the first is a multiple of 16 bytes."""
        where: list[int] = []
        for n, extent in zip(self.box, self.dims, strict=True):
            inside = rng.random() < 0.4
            start, end = (0, max(1, extent - n + 1)) if inside else (low * n, extent + n)
            where.append(int(rng.integers(start, end)))
        unit = max(1, 16 // self.item)
        where[0] = where[0] // unit * unit
        return tuple(where)


def random_box(rng: Rng, elements: tuple[int, ...], rank: int, swizzle: int) -> Box:
    """A box that fits the window, in a tensor of about its size."""
    element = int(rng.choice(elements))
    item = ELEMENTS[element][1]
    while True:
        inner = int(rng.integers(1, SPAN[swizzle] // 16 + 1)) * 16 // item
        if rng.random() < 0.4 and swizzle:
            inner = SPAN[swizzle] // item
        limit = RANK_LIMITS[rank]
        box = (inner, *(int(rng.integers(1, limit + 1)) for _ in range(rank - 1)))
        dims = tuple(int(rng.integers(1, 2 * b + 2)) for b in box)
        steps = (1, *(int(rng.choice([1, 1, 2, 3, 8])) for _ in range(rank - 1)))
        fill = int(rng.integers(0, 2)) if element in _FLOATS else 0
        made = Box(element, dims, box, steps, swizzle, fill, 16 * int(rng.integers(0, 3)))
        if made.shared_bytes <= WINDOW // 3 and made.tensor_bytes <= 8192:
            return made


def contents(rng: Rng, element: int, byte_count: int, special: bool) -> np.ndarray:
    """Bytes of a tensor; for reductions of floats, numbers of similar size."""
    item = ELEMENTS[element][1]
    tag = {6: "f16", 7: "f32", 8: "f64", 9: "bf16", 10: "f32", 11: "f32", 12: "f32"}.get(element)
    count = -(-byte_count // item)
    if tag and special:
        values = draw(rng, tag, count)
    elif tag in ("f16", "f32", "f64"):
        values = rng.standard_normal(count).astype(f"f{item}")
    elif tag == "bf16":
        values = (rng.standard_normal(count).astype("f4").view("u4") >> 16).astype("u2")
    else:
        values = rng.integers(0, 256, count * item, dtype=np.uint8)
    return np.ascontiguousarray(values).view(np.uint8)[:byte_count].copy()


def kernel(body: str, maps: int, prologue: str = "") -> str:
    """Fill the window, run `prologue` in every thread and `body` in thread 0, dump the window."""
    parameters = "".join(f", .param .align 64 .b8 map{i}[128]" for i in range(maps))
    addresses = "\n".join(
        f"  mov.b64 d{20 + i}, map{i}; cvta.param.u64 d{20 + i}, d{20 + i};" for i in range(maps)
    )
    return f"""{HEAD}
.extern .shared .align 1024 .b8 window[];
.visible .entry kernel(.param .u64 source, .param .u64 dump, .param .u64 target{parameters})
.reqntid 128, 1, 1
{{
  .reg .b32 r<40>; .reg .b64 d<40>; .reg .pred p<8>;
  ld.param.u64 d0, [source];
  ld.param.u64 d1, [dump];
  ld.param.u64 d2, [target];
{addresses}
  mov.u32 r1, %tid.x;
  shl.b32 r3, r1, 2;
  mov.u32 r2, window;
  add.u32 r10, r2, {WINDOW};
  add.u32 r4, r2, r3;
  mov.u32 r5, 0;
FILL:
  xor.b32 r6, r4, 0xEEEEEEEE;
  st.shared.b32 [r4], r6;
  add.u32 r4, r4, 512;
  add.u32 r5, r5, 512;
  setp.lt.u32 p1, r5, {WINDOW};
  @p1 bra FILL;
  setp.eq.u32 p2, r1, 0;
  @p2 mbarrier.init.shared::cta.b64 [r10], 1;
  fence.mbarrier_init.release.cluster;
  fence.proxy.async.shared::cta;
  bar.sync 0;
{prologue}
  @!p2 bra DUMP;
{body}
DUMP:
  bar.sync 0;
  add.u32 r4, r2, r3;
  cvt.u64.u32 d3, r3;
  add.u64 d1, d1, d3;
  mov.u32 r5, 0;
NEXT:
  ld.shared.b32 r7, [r4];
  st.global.b32 [d1], r7;
  add.u32 r4, r4, 512;
  add.u64 d1, d1, 512;
  add.u32 r5, r5, 512;
  setp.lt.u32 p1, r5, {WINDOW};
  @p1 bra NEXT;
  ret;
}}
"""


WAIT = """  mov.u32 r12, 0;
WAIT{n}:
  add.u32 r12, r12, 1;
  setp.gt.u32 p1, r12, 4000;
  @p1 trap;
  mbarrier.try_wait.parity.shared::cta.b64 p3, [r10], {parity};
  @!p3 bra WAIT{n};"""


def braced(values: tuple[int, ...]) -> str:
    return "{" + ", ".join(map(str, values)) + "}"


def load_text(rng: Rng, where: tuple[int, ...], tensor_map: str) -> str:
    """A tile load into [r9] that signals [r10]; d9 is a cache policy."""
    space = str(rng.choice(["shared::cluster", "shared::cta"]))
    tile = str(rng.choice(["", ".tile"]))
    hint = bool(rng.random() < 0.2)
    text = f"cp.async.bulk.tensor.{len(where)}d.{space}.global{tile}.mbarrier::complete_tx::bytes"
    tail = ""
    if hint:
        text += ".L2::cache_hint"
        tail = ", d9"
    return f"{text} [r9], [{tensor_map}, {braced(where)}], [r10]{tail};"


def _program(
    name: str, rng: Rng, box: Box, body: list[str], maps: list[MapSpec],
    source: np.ndarray, target: np.ndarray, covers: list[str],
) -> Program:  # fmt: skip
    ptx = kernel("\n".join(body), len(maps))
    columns = [Column("the window", 1, 0, WINDOW, "u1")]
    if target.size > 16:
        columns.append(Column("the target tensor", 2, 0, target.size, "u1"))
    dump = np.zeros(WINDOW, np.uint8)
    return Program(
        name, ptx, [source, dump, target], columns, covers,
        block=128, shared_bytes=SHARED_BYTES, maps=maps,
    )  # fmt: skip


def loads(seed: int, count: int) -> Iterator[Program]:
    """Two loads of one map into places whose swizzle pattern starts anywhere."""
    for number in range(count):
        rng = np.random.default_rng([seed, number])
        rank, swizzle = number % 5 + 1, number // 5 % 4
        box = random_box(rng, tuple(NAMES), rank, swizzle)
        body = ["  mov.b64 d9, 0x1000000000000000;"]
        covers: list[str] = []
        if rng.random() < 0.2:
            covers += [
                "prefetch.tensormap",
                f"cp.async.bulk.prefetch.tensor.{rank}d.L2.global.tile",
            ]
            near = braced(box.coordinates(rng, 0))
            body.append(f"  {covers[0]} [d20]; {covers[1]} [d20, {near}];")
        total = 2 * box.tx_bytes
        body.append(f"  mbarrier.arrive.expect_tx.shared::cta.b64 _, [r10], {total};")
        first = 128 * int(rng.integers(0, 8))
        span = -(-box.shared_bytes // 1024) * 1024
        for turn in range(2):
            at = first + turn * (span + 1024)
            body.append(f"  add.u32 r9, r2, {at};")
            text = load_text(rng, box.coordinates(rng, -1), "d20")
            covers.append(text.split()[0])
            body.append("  " + text)
        body.append(WAIT.format(n=0, parity=0))
        source = contents(rng, box.element, box.tensor_bytes, box.element in _FLOATS)
        spec = box.spec(0, int(rng.integers(0, 4)))
        yield _program(
            f"tma-load/{number}", rng, box, body, [spec], source, np.zeros(16, np.uint8), covers
        )


def stores(seed: int, count: int, reduce: bool, low: int = 0) -> Iterator[Program]:
    """A box loaded into the window goes to a second tensor, plain or reduced.

    Args:
      low: -1 lets boxes begin before the tensor.
    """
    for number in range(count):
        rng = np.random.default_rng([seed, number, int(reduce)])
        kind = "tma-before" if low else "tma-reduce" if reduce else "tma-store"
        rank, swizzle = number % 5 + 1, number // 5 % 4
        elements = tuple(REDUCTIONS) if reduce else tuple(NAMES)
        box = random_box(rng, elements, rank, swizzle)
        body: list[str] = []
        offset = 128 * int(rng.integers(0, 8))
        body.append(f"  add.u32 r9, r2, {offset};")
        body.append(f"  mbarrier.arrive.expect_tx.shared::cta.b64 _, [r10], {box.tx_bytes};")
        inside = tuple(0 for _ in box.dims)
        body.append(
            "  " + load_text(rng, inside, "d20").replace(".L2::cache_hint", "").replace(", d9", "")
        )
        body.append(WAIT.format(n=0, parity=0))
        where = box.coordinates(rng, low)
        tile = str(rng.choice(["", ".tile"]))
        if reduce:
            op = str(rng.choice(REDUCTIONS[box.element]))
            text = f"cp.reduce.async.bulk.tensor.{rank}d.global.shared::cta.{op}{tile}.bulk_group"
        else:
            text = f"cp.async.bulk.tensor.{rank}d.global.shared::cta{tile}.bulk_group"
        body.append(f"  {text} [d21, {braced(where)}], [r9];")
        body.append("  cp.async.bulk.commit_group;")
        body.append(
            f"  cp.async.bulk.wait_group{rng.choice(['', '.read'])} 0; cp.async.bulk.wait_group 0;"
        )
        special = bool(rng.integers(0, 2)) or not reduce
        source = contents(rng, box.element, box.tensor_bytes, special)
        target = contents(rng, box.element, box.tensor_bytes, special)
        maps = [box.spec(0), box.spec(2)]
        covers = [text, "cp.async.bulk.commit_group", "cp.async.bulk.wait_group"]
        yield _program(f"{kind}/{number}", rng, box, body, maps, source, target, covers)
