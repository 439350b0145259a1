"""Clusters: positions, distributed shared memory, remote arrivals, multicast."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from attn_mlir.validation.differential.case import HEAD, Column, MapSpec, Program
from attn_mlir.validation.differential.ops import opcodes_of
from attn_mlir.validation.differential.tma import Box
from attn_mlir.validation.differential.values import Rng, draw

WORDS = 128  # 32-bit words of each CTA's window
SHAPES = [
    (2, 1, 1),
    (4, 1, 1),
    (8, 1, 1),
    (1, 2, 1),
    (2, 2, 1),
    (1, 1, 2),
    (2, 1, 2),
    (2, 2, 2),
    (3, 1, 1),
    (1, 4, 1),
]
BLOCK = 64

SHARED_REDUCTIONS = [
    *("add.u32", "add.s32", "add.u64", "min.u32", "min.s32", "max.u32", "max.s32"),
    *("inc.u32", "dec.u32", "and.b32", "or.b32", "xor.b32"),
]
PLACED = ["add.u32", "min.s32", "max.u32", "inc.u32", "dec.u32", "exch.b32", "cas.b32", "xor.b32",
          "add.f32", "add.u64", "exch.b64", "max.s64"]  # fmt: skip
# What only computes addresses and predicates
SCENERY = frozenset("add and bra cvt mad mov rem selp setp shl shr".split())


class Cluster:
    """A kernel whose CTAs each fill a window and a table of barriers, do `body`, dump the window."""

    def __init__(self, rng: Rng, shape: tuple[int, int, int], grid: tuple[int, int, int]):
        self.rng = rng
        self.shape = shape
        self.grid = grid
        self.size = shape[0] * shape[1] * shape[2]
        self.ctas = grid[0] * grid[1] * grid[2]
        self.body: list[str] = []
        self.covers: set[str] = {"barrier.cluster.arrive", "barrier.cluster.wait"}
        self.outputs: list[tuple[str, str]] = []
        self.labels = 0

    def do(self, text: str) -> None:
        """A line under test."""
        self.body.append("  " + text)
        self.covers |= {o for o in opcodes_of(text) if o.split(".")[0] not in SCENERY}

    def sync(self) -> None:
        """All threads of the cluster."""
        arrive = str(self.rng.choice(["", ".release", ".aligned", ".release.aligned"]))
        wait = str(self.rng.choice(["", ".acquire"])) + (".aligned" if "aligned" in arrive else "")
        if self.rng.random() < 0.2:
            self.do("fence.acq_rel.cluster;")
            arrive = ".relaxed"
        self.do(f"barrier.cluster.arrive{arrive}; barrier.cluster.wait{wait};")

    def output(self, name: str, label: str) -> None:
        """A 32-bit result of every thread."""
        self.outputs.append((name, label))

    def wait(self, parity: int) -> None:
        """Spin on the own CTA's barrier."""
        label, self.labels = f"SPIN{self.labels}", self.labels + 1
        self.body.append(
            f"  mov.u32 r39, 0;\n{label}: add.u32 r39, r39, 1; setp.gt.u32 p5, r39, 100000; @p5 trap;"
        )
        self.do(f"mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p4, [r10], {parity};")
        self.body.append(f"  @!p4 bra {label};")

    def program(
        self, name: str, count: int, source: np.ndarray, maps: list[MapSpec] | None = None
    ) -> Program:
        """The finished program.

        Args:
          count: arrivals of each CTA's barrier.
        """
        threads = self.ctas * BLOCK
        stores = "\n".join(
            f"  st.global.b32 [d8+{4 * threads * i}], {register};"
            for i, (register, _) in enumerate(self.outputs)
        )
        window_at = 4 * threads * len(self.outputs)
        nx, ny, nz = self.grid
        maps = maps or []
        parameters = "".join(f", .param .align 64 .b8 map{i}[128]" for i in range(len(maps)))
        body = "\n".join(self.body)
        ptx = f"""{HEAD}
.visible .entry kernel(.param .u64 source, .param .u64 outputs{parameters})
.reqntid {BLOCK}, 1, 1
.explicitcluster
.reqnctapercluster {self.shape[0]}, {self.shape[1]}, {self.shape[2]}
{{
  .reg .pred p<8>; .reg .b32 r<100>; .reg .b64 d<40>;
  .shared .align 1024 .b8 window[{4 * WORDS}];
  .shared .align 8 .b64 bar;
  ld.param.u64 d0, [source];
  ld.param.u64 d1, [outputs];
  mov.u32 r0, %tid.x;
  mov.u32 r1, %ctaid.x;
  mov.u32 r2, %cluster_ctarank;
  mov.u32 r3, %cluster_nctarank;
  mov.u32 r4, window;
  mov.u32 r10, bar;
  // CTA number by rank and cluster, whatever the shape: the linear id of the grid
  mov.u32 r5, %ctaid.y; mov.u32 r6, %ctaid.z; mad.lo.u32 r5, r6, {ny}, r5; mad.lo.u32 r5, r5, {nx}, r1;
  mad.lo.u32 r7, r5, {BLOCK}, r0;
  mad.wide.u32 d8, r7, 4, d1;
  // the window: each thread two words
  mul.lo.u32 r8, r7, 8;
  cvt.u64.u32 d2, r8;
  add.u64 d2, d0, d2;
  ld.global.v2.b32 {{r20, r21}}, [d2];
  shl.b32 r9, r0, 3;
  add.u32 r9, r9, r4;
  st.shared.v2.b32 [r9], {{r20, r21}};
  setp.eq.u32 p0, r0, 0;
  @p0 mbarrier.init.shared::cta.b64 [r10], {count};
  fence.mbarrier_init.release.cluster;
  fence.proxy.async.shared::cta;
  barrier.cluster.arrive; barrier.cluster.wait;
{body}
  barrier.cluster.arrive; barrier.cluster.wait;
{stores}
  add.u64 d3, d1, {window_at};
  add.u64 d3, d3, d2;
  sub.u64 d3, d3, d0;
  ld.shared.v2.b32 {{r20, r21}}, [r9];
  st.global.v2.b32 [d3], {{r20, r21}};
  ret;
}}
"""
        columns = [
            Column(label, 1, 4 * threads * i, threads, "u4")
            for i, (_, label) in enumerate(self.outputs)
        ]
        columns.append(Column("the windows", 1, window_at, 8 * threads, "u1"))
        outputs = np.zeros(window_at + 8 * threads, np.uint8)
        return Program(
            name, ptx, [source, outputs], columns, sorted(self.covers),
            grid=nx, grid_y=ny, grid_z=nz, block=BLOCK, maps=maps,
        )  # fmt: skip


def _start(rng: Rng, number: int) -> Cluster:
    shape = SHAPES[number % len(SHAPES)]
    grid = tuple(int(rng.integers(1, 3)) * n for n in shape)
    return Cluster(rng, shape, (grid[0], grid[1], grid[2]))


def _source(c: Cluster) -> np.ndarray:
    return draw(c.rng, "i32", 2 * BLOCK * c.ctas).view(np.uint8)


POSITIONS = [
    *(f"%{name}.{axis}" for name in ("cluster_ctaid", "cluster_nctaid", "clusterid", "nclusterid", "ctaid", "nctaid", "ntid", "tid") for axis in "xyz"),
    *("%cluster_ctarank", "%cluster_nctarank"),
]  # fmt: skip


def positions(seed: int, count: int) -> Iterator[Program]:
    """Every special register of position, for every cluster shape."""
    for number in range(count):
        c = _start(np.random.default_rng([seed, number]), number)
        for i, name in enumerate(POSITIONS):
            c.do(f"mov.u32 r{50 + i}, {name};")
            c.covers.add(f"mov {name}")
            c.output(f"r{50 + i}", name)
        yield c.program(f"position/{number}", 1, _source(c))


def _peer(c: Cluster, distance: int) -> None:
    """r11 = rank of another CTA, r12 = its window, r13 = its barrier."""
    c.do(f"add.u32 r11, r2, {distance}; rem.u32 r11, r11, r3;")
    c.do("mapa.shared::cluster.u32 r12, r4, r11; mapa.shared::cluster.u32 r13, r10, r11;")


def remote(seed: int, count: int) -> Iterator[Program]:
    """Loads, stores and atomics in windows of other CTAs."""
    for number in range(count):
        rng = np.random.default_rng([seed, number])
        c = _start(rng, number)
        _peer(c, int(rng.integers(0, c.size + 1)))
        used = 50
        for _ in range(3):
            width = int(rng.choice([1, 2, 4]))
            offset = 4 * width * int(rng.integers(0, WORDS // width))
            vector = {1: "", 2: ".v2", 4: ".v4"}[width]
            names = [f"r{used + i}" for i in range(width)]
            text = "{" + ", ".join(names) + "}" if width > 1 else names[0]
            order = str(rng.choice(["", ".relaxed.cluster", ".weak", ".volatile"]))
            c.do(f"ld{order}.shared::cluster{vector}.b32 {text}, [r12+{offset}];")
            for name in names:
                c.output(name, f"ld from rank +n at {offset}")
            used += width
        c.do(f"getctarank.shared::cluster.u32 r{used}, r13;")
        c.output(f"r{used}", "getctarank")
        used += 1
        c.do("mov.b64 d14, {r20, r21};")
        # generic addresses
        c.do(
            "cvta.shared.u64 d10, window; mapa.u64 d11, d10, r11; ld.b32 r40, [d11+8]; getctarank.u64 r41, d11;"
        )
        c.output("r40", "ld of a mapa.u64 address")
        c.output("r41", "getctarank.u64")
        c.do(
            "isspacep.shared::cluster p1, d11; isspacep.shared::cta p2, d10; isspacep.global p3, d11;"
        )
        c.do("selp.b32 r42, 1, 0, p1; selp.b32 r43, 1, 0, p2; selp.b32 r44, 1, 0, p3;")
        for i in (42, 43, 44):
            c.output(f"r{i}", f"isspacep {i - 42}")
        c.sync()
        op = str(
            rng.choice(["add.u32", "min.s32", "max.u32", "and.b32", "or.b32", "xor.b32", "add.u64"])
        )
        wide = op.endswith("64")
        slot = 8 * int(rng.integers(0, 8))
        if wide:
            c.do("cvt.u64.u32 d12, r20;")
        c.do(
            f"red{rng.choice(['', '.relaxed.cluster'])}.shared::cluster.{op} [r12+{slot}], {'d12' if wide else 'r20'};"
        )
        c.sync()
        c.do(
            f"atom.relaxed.cluster.shared::cluster.exch.b32 r45, [r12+{256}], 5;"
            if c.size < 2
            else f"@p0 atom.relaxed.cluster.shared::cluster.exch.b32 r45, [r12+256], {number};"
        )
        c.sync()
        c.do(
            "shl.b32 r14, r0, 2; add.u32 r14, r14, r12; st.shared::cluster.b32 [r14+256], r21;"
            if rng.random() < 0.5
            else "mov.u32 r46, 1;"
        )
        c.sync()
        # a place of its own for every thread, in the window of the one peer
        op = str(rng.choice(PLACED))
        scope = str(rng.choice(["", ".relaxed.cluster", ".acq_rel.cluster"]))
        c.do("shl.b32 r15, r0, 3; add.u32 r15, r15, r12;")
        if op.endswith("64"):
            c.do(f"atom{scope}.shared::cluster.{op} d13, [r15], d14; mov.b64 {{r47, r48}}, d13;")
            c.output("r48", f"high word of atom {op}")
        elif op.startswith("cas"):
            c.do(f"atom{scope}.shared::cluster.{op} r47, [r15], r20, r21;")
        else:
            c.do(f"atom{scope}.shared::cluster.{op} r47, [r15], r21;")
        c.output("r47", f"atom {op}")
        yield c.program(f"remote/{number}", 1, _source(c))


def signals(seed: int, count: int) -> Iterator[Program]:
    """Remote arrivals, st.async, red.async and bulk copies that signal in another CTA."""
    for number in range(count):
        rng = np.random.default_rng([seed, number])
        c = _start(rng, number)
        _peer(c, int(rng.integers(0, c.size)))
        what = number % 4
        if what == 0:
            share = int(rng.integers(1, 4))
            c.do(
                f"mbarrier.arrive{rng.choice(['', '.release.cluster'])}.shared::cluster.b64 _, [r13]{'' if share == 1 else f', {share}'};"
            )
            c.wait(0)
            count_of = BLOCK * share
            c.sync()
            c.do("@p0 mbarrier.arrive.expect_tx.release.cluster.shared::cluster.b64 _, [r13], 64;")
            c.do("@p0 mbarrier.complete_tx.relaxed.cluster.shared::cluster.b64 [r13], 64;")
            c.do("mbarrier.test_wait.parity.shared::cta.b64 p3, [r10], 1; selp.b32 r45, 1, 0, p3;")
            c.output("r45", "parity 1 after one phase")
        elif what == 1:
            count_of = 1
            form, operand, size = [
                ("b32", "r20", 4), ("b64", "d14", 8), ("v2.b32", "{r20, r21}", 8),
                ("v4.b32", "{r20, r21, r20, r0}", 16), ("v2.b64", "{d14, d14}", 16), ("u32", "r20", 4),
            ][int(rng.integers(0, 6))]  # fmt: skip
            c.do(
                f"@p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [r10], {size * (BLOCK if size <= 8 else BLOCK // 2)};"
            )
            if size > 8:
                c.do("setp.lt.u32 p6, r0, 32;")
            else:
                c.do("setp.eq.u32 p6, r0, r0;")
            c.do(f"mov.b64 d14, {{r20, r21}}; mad.lo.u32 r14, r0, {size}, r12; bar.sync 0;")
            c.sync()
            c.do(
                f"@p6 st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.{form} [r14], {operand}, [r13];"
            )
            c.wait(0)
        elif what == 2:
            count_of = 1
            op = str(
                rng.choice(
                    [
                        "add.u32",
                        "add.s32",
                        "min.u32",
                        "min.s32",
                        "max.u32",
                        "max.s32",
                        "inc.u32",
                        "dec.u32",
                        "and.b32",
                        "or.b32",
                        "xor.b32",
                        "add.u64",
                    ]
                )
            )
            size = 8 if op.endswith("64") else 4
            c.do(f"@p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [r10], {size * BLOCK};")
            c.sync()
            c.do(f"mov.b64 d14, {{r20, r21}}; mad.lo.u32 r14, r0, {size}, r12;")
            c.do(
                f"red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.{op} [r14], {'d14' if size == 8 else 'r20'}, [r13];"
            )
            c.wait(0)
        else:
            count_of = 1
            size = 16 * int(rng.integers(1, 9))
            at, to = 16 * int(rng.integers(0, 8)), 256 + 16 * int(rng.integers(0, 8))
            c.do(f"@p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [r10], {size};")
            c.do(f"add.u32 r15, r4, {at}; add.u32 r16, r12, {to};")
            c.sync()
            form = str(rng.choice(["copy", *SHARED_REDUCTIONS]))
            head, tail = ("cp", "") if form == "copy" else ("cp.reduce", f".{form}")
            c.do(
                f"@p0 {head}.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes{tail} [r16], [r15], {size}, [r13];"
            )
            c.wait(0)
        yield c.program(f"signal/{number}", count_of, _source(c))


def multicasts(seed: int, count: int) -> Iterator[Program]:
    """Bulk and tensor loads by one CTA into several."""
    for number in range(count):
        rng = np.random.default_rng([seed, number])
        c = _start(rng, number)
        issuer = int(rng.integers(0, c.size))
        mask = int(rng.integers(1, 1 << c.size))
        c.do(
            f"shr.u32 r11, {mask}, r2; and.b32 r11, r11, 1; setp.eq.u32 p1, r11, 1; and.pred p2, p0, p1;"
        )
        c.do(f"setp.eq.u32 p3, r2, {issuer}; and.pred p3, p3, p0;")
        source = _source(c)
        if number % 2:
            size, at = 16 * int(rng.integers(1, 17)), 16 * int(rng.integers(0, 8))
            start = 16 * int(rng.integers(0, 8))
            c.do(f"@p2 mbarrier.arrive.expect_tx.shared::cta.b64 _, [r10], {size};")
            c.do(f"add.u32 r15, r4, {at}; add.u64 d9, d0, {start}; mov.b16 h0, {mask};")
            c.sync()
            c.do(
                f"@p3 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [r15], [d9], {size}, [r10], h0;"
            )
            maps: list[MapSpec] = []
        else:
            box = Box(2, (16, 8), (8, 4), (1, 1), 1, 0, 0)
            c.do(f"@p2 mbarrier.arrive.expect_tx.shared::cta.b64 _, [r10], {box.tx_bytes};")
            where = box.coordinates(rng, -1)
            c.do(f"mov.b64 d9, map0; cvta.param.u64 d9, d9; mov.b16 h0, {mask};")
            c.sync()
            c.do(
                f"@p3 cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [r4], [d9, {{{where[0]}, {where[1]}}}], [r10], h0;"
            )
            maps = [box.spec(0)]
        label, c.labels = f"SKIP{c.labels}", c.labels + 1
        c.do(f"@!p1 bra {label};")
        c.wait(0)
        c.body.append(f"{label}:")
        program = c.program(f"multicast/{number}", 1, source, maps)
        program.ptx = program.ptx.replace(".reg .b64 d<40>;", ".reg .b64 d<40>; .reg .b16 h<2>;")
        yield program
