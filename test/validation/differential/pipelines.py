"""Small matrix products as kernels are written: TMA loads into a ring of stages, wgmma, a TMA store.

A producer warp and a consumer warpgroup meet on full and empty mbarriers; a cluster of two shares B
by multicast, and its consumers free the stages of both CTAs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from attn_mlir.validation.differential.case import HEAD, Column, MapSpec, Program
from attn_mlir.validation.differential.matrices import codes
from attn_mlir.validation.differential.values import Rng

ROWS = 64  # of A and D that one CTA computes at a time
_SWIZZLE = {16: (1, 3), 32: (2, 2), 64: (3, 1)}  # elements of a row: code of maps, of descriptors
_ELEMENT = {"f16": 6, "bf16": 9, "f32": 7}


@dataclass(frozen=True)
class Shape:
    """What a product is cut into.

    Attributes:
      columns: N. depth: elements of K in one stage. steps: stages' worth of K.
      stages: of the ring. ctas: in a cluster. clusters: in the grid. tiles: of each CTA, in turn.
      lag: products in flight when a stage is freed.
      ending: how D leaves: "global", "store", "reduce" (f32) or "stmatrix" (16 bits).
    """

    element: str
    columns: int
    depth: int
    steps: int
    stages: int
    ctas: int
    clusters: int
    tiles: int
    lag: int
    ending: str

    @property
    def row_bytes(self) -> int:
        return 2 * self.depth

    @property
    def a_bytes(self) -> int:
        return ROWS * self.row_bytes

    @property
    def b_bytes(self) -> int:
        return self.columns * self.row_bytes

    @property
    def stage_bytes(self) -> int:
        return self.a_bytes + -(-self.b_bytes // 1024) * 1024

    @property
    def out_at(self) -> int:
        return self.stages * self.stage_bytes

    @property
    def full_at(self) -> int:
        return self.out_at + 4 * ROWS * self.columns

    @property
    def empty_at(self) -> int:
        return self.full_at + 8 * self.stages

    @property
    def shared_bytes(self) -> int:
        return self.empty_at + 8 * self.stages

    @property
    def grid(self) -> int:
        return self.ctas * self.clusters

    @property
    def out_element(self) -> str:
        return self.element if self.ending == "stmatrix" else "f32"


def draw_shape(rng: Rng) -> Shape:
    """Any shape; a stage that is freed late needs another one to go on with."""
    lag = int(rng.integers(0, 2))
    return Shape(
        element=str(rng.choice(["f16", "bf16"])),
        columns=int(rng.choice([16, 32, 48, 64])),
        depth=int(rng.choice([16, 32, 64])),
        steps=int(rng.integers(1, 8)),
        stages=int(rng.integers(1 + lag, 5)),
        ctas=int(rng.integers(1, 3)),
        clusters=int(rng.integers(1, 3)),
        tiles=int(rng.integers(1, 3)),
        lag=lag,
        ending=str(rng.choice(["global", "store", "reduce", "stmatrix"])),
    )


def _advance(s: Shape) -> str:
    """The next stage (r10) and the parity of its round (r11)."""
    return f"""  add.u32 r10, r10, 1; setp.eq.u32 p1, r10, {s.stages};
  @p1 xor.b32 r11, r11, 1; @p1 mov.u32 r10, 0;"""


def _spin(label: str, barrier: str, parity: str, scope: str) -> str:
    """Wait on an mbarrier; a million failures are a mistake, not patience."""
    return f"""  mov.u32 r30, 0;
{label}: add.u32 r30, r30, 1; setp.gt.u32 p7, r30, 1000000; @p7 trap;
  mbarrier.try_wait.parity.acquire.{scope}.shared::cta.b64 p6, [{barrier}], {parity};
  @!p6 bra {label};"""


def _producer(s: Shape) -> str:
    scope = "cluster" if s.ctas > 1 else "cta"
    part = s.columns // s.ctas
    load = "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
    multicast = ".multicast::cluster" if s.ctas > 1 else ""
    mask = ", h0" if s.ctas > 1 else ""
    return f"""  setmaxnreg.dec.sync.aligned.u32 40;
  setp.ne.u32 p1, r1, 4; @p1 bra DONE;
  elect.sync r31|p2, 0xffffffff; @!p2 bra PRODUCED;
  mov.u32 r10, 0; mov.u32 r11, 1; mov.u32 r12, 0; mov.b16 h0, {(1 << s.ctas) - 1};
P_TILE:
  mad.lo.u32 r13, r12, {s.grid}, r5; mul.lo.u32 r13, r13, {ROWS}; mov.u32 r14, 0;
P_STEP:
  mad.lo.u32 r15, r10, 8, r7;
  add.u32 r16, r15, {s.empty_at - s.full_at};
{_spin("EMPTY", "r16", "r11", scope)}
  mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [r15], {s.a_bytes + s.b_bytes};
  mad.lo.u32 r17, r10, {s.stage_bytes}, r4;
  {load} [r17], [d4, {{r14, r13}}], [r15];
  mul.lo.u32 r18, r3, {part}; mad.lo.u32 r19, r18, {s.row_bytes}, r17; add.u32 r19, r19, {s.a_bytes};
  {load}{multicast} [r19], [d5, {{r14, r18}}], [r15]{mask};
{_advance(s)}
  add.u32 r14, r14, {s.depth}; setp.lt.u32 p1, r14, {s.depth * s.steps}; @p1 bra P_STEP;
  add.u32 r12, r12, 1; setp.lt.u32 p1, r12, {s.tiles}; @p1 bra P_TILE;
PRODUCED:
  bar.warp.sync 0xffffffff;
  bra DONE;"""


def _free(s: Shape, stage: str) -> str:
    """One lane of each warp arrives on a stage's empty barrier of every CTA."""
    lines = [f"  mad.lo.u32 r20, {stage}, 8, r7; add.u32 r20, r20, {s.empty_at - s.full_at};"]
    for rank in range(s.ctas):
        lines.append(
            f"  mov.u32 r22, {rank}; mapa.shared::cluster.u32 r21, r20, r22;"
            "  @p0 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [r21];"
        )
    return "\n".join(lines)


def _consumer(s: Shape) -> str:
    count = s.columns // 2
    d = ", ".join(f"r{40 + i}" for i in range(count))
    code = _SWIZZLE[s.depth][1]
    upper = code << 62 | (8 * s.row_bytes >> 4) << 32 | 1 << 16
    products = "\n".join(
        f"  wgmma.mma_async.sync.aligned.m64n{s.columns}k16.f32.{s.element}.{s.element} "
        f"{{{d}}}, d6, d7, {'p3' if k == 0 else 'p4'}, 1, 1, 0, 0;\n"
        "  add.u64 d6, d6, 2; add.u64 d7, d7, 2;"
        for k in range(s.depth // 16)
    )
    freed = f"""  setp.eq.u32 p5, r14, 0; @p5 bra NOT_YET;
{_free(s, "r23")}
NOT_YET:
  mov.u32 r23, r10;"""
    return f"""  setmaxnreg.inc.sync.aligned.u32 200;
  and.b32 r31, r0, 31; setp.eq.u32 p0, r31, 0; setp.eq.u32 p4, r0, r0;
  mov.u32 r10, 0; mov.u32 r11, 0; mov.u32 r12, 0;
C_TILE:
  mad.lo.u32 r13, r12, {s.grid}, r5; mul.lo.u32 r13, r13, {ROWS}; mov.u32 r14, 0;
C_STEP:
  mad.lo.u32 r15, r10, 8, r7;
{_spin("FULL", "r15", "r11", "cta")}
  mad.lo.u32 r17, r10, {s.stage_bytes}, r4;
  add.u32 r18, r17, {s.a_bytes};
  shr.u32 r17, r17, 4; shr.u32 r18, r18, 4;
  cvt.u64.u32 d6, r17; or.b64 d6, d6, {upper};
  cvt.u64.u32 d7, r18; or.b64 d7, d7, {upper};
  setp.ne.u32 p3, r14, 0;
  wgmma.fence.sync.aligned;
{products}
  wgmma.commit_group.sync.aligned;
  wgmma.wait_group.sync.aligned {s.lag};
{freed if s.lag else _free(s, "r10")}
{_advance(s)}
  add.u32 r14, r14, 1; setp.lt.u32 p1, r14, {s.steps}; @p1 bra C_STEP;
  wgmma.wait_group.sync.aligned 0;
{_free(s, "r23") if s.lag else ""}
{_ENDINGS[s.ending](s)}
  add.u32 r12, r12, 1; setp.lt.u32 p1, r12, {s.tiles}; @p1 bra C_TILE;
  cp.async.bulk.wait_group 0;"""


def _fragment(s: Shape) -> str:
    """r24 = row, r25 = column of a thread's first element of D."""
    return """  shr.u32 r24, r31, 2; mad.lo.u32 r24, r1, 16, r24;
  and.b32 r25, r31, 3; shl.b32 r25, r25, 1;"""


def _to_global(s: Shape) -> str:
    lines = [_fragment(s), "  add.u32 r24, r24, r13;"]
    lines.append(f"  mad.lo.u32 r24, r24, {s.columns}, r25; mad.wide.u32 d8, r24, 4, d2;")
    for j in range(s.columns // 8):
        for half in range(2):
            at = 32 * j + 32 * half * s.columns
            r = 40 + 4 * j + 2 * half
            lines.append(f"  st.global.v2.b32 [d8+{at}], {{r{r}, r{r + 1}}};")
    return "\n".join(lines)


def _leave(text: str) -> str:
    """The staging area, written by all, goes out by thread 0."""
    return f"""  fence.proxy.async.shared::cta;
  bar.sync 1, 128;
  setp.ne.u32 p5, r0, 0; @p5 bra LEFT;
  {text} [d9, {{0, r13}}], [r26];
  cp.async.bulk.commit_group;
LEFT:"""


_REUSE = """  cp.async.bulk.wait_group.read 0;
  bar.sync 2, 128;"""


def _to_shared(s: Shape, text: str) -> str:
    lines = [_REUSE, _fragment(s), f"  add.u32 r26, r4, {s.out_at};"]
    lines.append(f"  mad.lo.u32 r27, r24, {s.columns}, r25; mad.lo.u32 r27, r27, 4, r26;")
    for j in range(s.columns // 8):
        for half in range(2):
            at = 32 * j + 32 * half * s.columns
            r = 40 + 4 * j + 2 * half
            lines.append(f"  st.shared.v2.b32 [r27+{at}], {{r{r}, r{r + 1}}};")
    return "\n".join([*lines, _leave(text)])


def _by_stmatrix(s: Shape) -> str:
    """Pairs of 8 columns: lanes 0..15 point at rows of the first matrices, 16..31 at the second."""
    lines = [_REUSE, f"  add.u32 r26, r4, {s.out_at}; and.b32 r24, r31, 15; shr.u32 r25, r31, 4;"]
    lines.append(f"  mad.lo.u32 r24, r1, 16, r24; mad.lo.u32 r27, r24, {2 * s.columns}, r26;")
    lines.append("  mad.lo.u32 r27, r25, 16, r27;")
    for j in range(0, s.columns // 8, 2):
        r = 40 + 4 * j
        for i in range(4):
            lines.append(f"  cvt.rn.{s.element}x2.f32 r{32 + i}, r{r + 2 * i + 1}, r{r + 2 * i};")
        lines.append(
            f"  stmatrix.sync.aligned.m8n8.x4.shared::cta.b16 [r27+{16 * j}], {{r32, r33, r34, r35}};"
        )
    return "\n".join([*lines, _leave("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group")])


_ENDINGS = {
    "global": _to_global,
    "store": lambda s: _to_shared(s, "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group"),
    "reduce": lambda s: _to_shared(
        s, "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group"
    ),
    "stmatrix": _by_stmatrix,
}


def kernel(s: Shape) -> str:
    """The PTX."""
    cluster = f".explicitcluster\n.reqnctapercluster {s.ctas}, 1, 1" if s.ctas > 1 else ""
    arrivals = 4 * s.ctas
    inits = "\n".join(
        f"  @p1 mbarrier.init.shared::cta.b64 [r7+{8 * i}], 1;"
        f" @p1 mbarrier.init.shared::cta.b64 [r7+{8 * i + s.empty_at - s.full_at}], {arrivals};"
        for i in range(s.stages)
    )
    meet = "barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;"
    parameters = ", ".join(f".param .align 64 .b8 map{i}[128]" for i in range(3))
    maps = "\n".join(
        f"  mov.b64 d{at}, map{i}; cvta.param.u64 d{at}, d{at};" for i, at in enumerate((4, 5, 9))
    )
    return f"""{HEAD}
.extern .shared .align 1024 .b8 window[];
.visible .entry kernel(.param .u64 a, .param .u64 b, .param .u64 d, {parameters})
.reqntid 256, 1, 1
.maxnreg 128
{cluster}
{{
  .reg .b16 h<2>; .reg .b32 r<80>; .reg .b64 d<12>; .reg .pred p<8>;
  ld.param.u64 d2, [d];
{maps}
  mov.u32 r0, %tid.x; shr.u32 r1, r0, 5;
  mov.u32 r3, %cluster_ctarank; mov.u32 r5, %ctaid.x;
  mov.u32 r4, window; add.u32 r7, r4, {s.full_at};
  setp.eq.u32 p1, r0, 0;
{inits}
  fence.mbarrier_init.release.cluster;
  bar.sync 0;
  {meet if s.ctas > 1 else ""}
  setp.lt.u32 p1, r0, 128; @p1 bra CONSUME;
{_producer(s)}
CONSUME:
{_consumer(s)}
DONE:
  bar.warp.sync 0xffffffff;
  {meet if s.ctas > 1 else ""}
  ret;
}}
"""


def _matrix_map(buffer: int, element: str, rows: int, columns: int, box: tuple[int, int],
                swizzle: int) -> MapSpec:  # fmt: skip
    pitch = columns * (4 if element == "f32" else 2)
    return MapSpec(buffer, 0, _ELEMENT[element], (columns, rows), (pitch,), box, (1, 1), 0, swizzle)


def pipelines(seed: int, count: int) -> Iterator[Program]:
    """D = A B^T, or D += A B^T, of any shape."""
    for number in range(count):
        rng = np.random.default_rng([seed, number])
        s = draw_shape(rng)
        rows, inner = ROWS * s.grid * s.tiles, s.depth * s.steps
        special, spread = bool(rng.random() < 0.15), int(rng.choice([2, 8]))
        a = codes(rng, s.element, (rows, inner), spread, special)
        b = codes(rng, s.element, (s.columns, inner), spread, special)
        kind = {"f16": "f2", "bf16": "bf16", "f32": "f4"}[s.out_element]
        item = 4 if kind == "f4" else 2
        d = np.zeros(rows * s.columns * item, np.uint8)
        if s.ending == "reduce":
            d = codes(rng, "f32", (rows * s.columns,), spread, special).view(np.uint8)
        swizzle = _SWIZZLE[s.depth][0]
        maps = [
            _matrix_map(0, s.element, rows, inner, (s.depth, ROWS), swizzle),
            _matrix_map(1, s.element, s.columns, inner, (s.depth, s.columns // s.ctas), swizzle),
            _matrix_map(2, s.out_element, rows, s.columns, (s.columns, ROWS), 0),
        ]
        ptx = kernel(s)
        covers = {
            word.rstrip(";")
            for line in ptx.splitlines()
            for word in line.split()
            if word.startswith(
                ("wgmma.", "cp.", "mbarrier.", "barrier.", "setmaxnreg.", "stmatrix")
            )
        }
        yield Program(
            f"pipeline/{number}", ptx,
            [np.ascontiguousarray(x).view(np.uint8).reshape(-1) for x in (a, b, d)],
            [Column(str(s), 2, 0, rows * s.columns, kind)], sorted(covers),
            grid=s.grid, block=256, shared_bytes=s.shared_bytes, maps=maps,
        )  # fmt: skip
