"""TMA and mbarriers on a Hopper GPU and on the emulator, bit for bit."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import pytest

from attn_mlir.validation.emulator.hopper_twin import (
    HEAD,
    SHARED_BYTES,
    Array,
    Hopper,
    both,
    differing,
)

pytestmark = pytest.mark.sm_90


# ---- TMA -----------------------------------------------------------------------------------


def tma_ptx(rank: int, tx_bytes: int, store: str) -> str:
    """Fill shared memory with 0xEE, load a box, dump the window; optionally store or reduce it."""
    coordinates = "{" + ", ".join(f"%r{20 + i}" for i in range(rank)) + "}"
    loads = "\n".join(f"  ld.param.b32 %r{20 + i}, [where+{4 * i}];" for i in range(rank))
    send = ""
    if store:
        send = (
            f"  @%p2 {store.format(rank=rank)} [%d8, {coordinates}], [%r9];\n"
            "  @%p2 cp.async.bulk.commit_group;\n  @%p2 cp.async.bulk.wait_group 0;"
        )
    return f"""{HEAD}
.extern .shared .align 1024 .b8 window[];
.visible .entry kernel(.param .u64 tensor, .param .u64 dump, .param .u64 target,
  .param .align 64 .b8 map[128], .param .align 64 .b8 map2[128],
  .param .align 4 .b8 where[20], .param .u32 offset)
.reqntid 128, 1, 1
{{
  .reg .b32 %r<40>;
  .reg .b64 %d<12>;
  .reg .pred %p<4>;
  ld.param.u64 %d1, [dump];
  mov.b64 %d2, map;
  cvta.param.u64 %d2, %d2;
  mov.b64 %d8, map2;
  cvta.param.u64 %d8, %d8;
{loads}
  ld.param.u32 %r8, [offset];
  mov.u32 %r1, %tid.x;
  shl.b32 %r3, %r1, 2;
  mov.u32 %r2, window;
  add.u32 %r9, %r2, %r8;
  add.u32 %r10, %r2, {SHARED_BYTES - 8};
  add.u32 %r4, %r2, %r3;
  mov.u32 %r5, 0;
  mov.u32 %r6, 0xEEEEEEEE;
FILL:
  st.shared.b32 [%r4], %r6;
  add.u32 %r4, %r4, 512;
  add.u32 %r5, %r5, 512;
  setp.lt.u32 %p1, %r5, {SHARED_BYTES - 512};
  @%p1 bra FILL;
  setp.eq.u32 %p2, %r1, 0;
  @%p2 mbarrier.init.shared::cta.b64 [%r10], 1;
  fence.mbarrier_init.release.cluster;
  fence.proxy.async.shared::cta;
  bar.sync 0;
  @%p2 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r10], {tx_bytes};
  @%p2 cp.async.bulk.tensor.{rank}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r9], [%d2, {coordinates}], [%r10];
  mov.u32 %r12, 0;
WAIT:
  add.u32 %r12, %r12, 1;
  setp.gt.u32 %p1, %r12, 2000;
  @%p1 trap;
  mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r10], 0;
  @!%p3 bra WAIT;
{send}
  bar.sync 0;
  add.u32 %r4, %r2, %r3;
  cvt.u64.u32 %d3, %r3;
  add.u64 %d1, %d1, %d3;
  mov.u32 %r5, 0;
DUMP:
  ld.shared.b32 %r7, [%r4];
  st.global.b32 [%d1], %r7;
  add.u32 %r4, %r4, 512;
  add.u64 %d1, %d1, 512;
  add.u32 %r5, %r5, 512;
  setp.lt.u32 %p1, %r5, {SHARED_BYTES - 512};
  @%p1 bra DUMP;
  ret;
}}
"""


TYPES = {  # name -> (CUtensorMapDataType, bytes)
    "u8": (0, 1), "f16": (6, 2), "bf16": (9, 2), "f32": (7, 4), "tf32": (11, 4),
    "u32": (2, 4), "u64": (4, 8), "f64": (8, 8), "s32": (3, 4),
}  # fmt: skip


@dataclass(frozen=True)
class Box:
    """A tensor of bytes and how a map cuts it."""

    element: str
    dims: tuple[int, ...]
    box: tuple[int, ...]
    steps: tuple[int, ...]
    swizzle: int
    nan: bool = False

    @property
    def row_bytes(self) -> int:
        return -(-self.dims[0] * TYPES[self.element][1] // 16) * 16

    @property
    def strides(self) -> tuple[int, ...]:
        strides, pitch = list[int](), self.row_bytes
        for extent in self.dims[1:]:
            strides.append(pitch)
            pitch *= extent
        return tuple(strides)

    @property
    def tx_bytes(self) -> int:
        total = self.box[0] * TYPES[self.element][1]
        for n, step in zip(self.box[1:], self.steps[1:], strict=True):
            total *= -(-n // step)
        return total

    @property
    def byte_count(self) -> int:
        total = self.row_bytes
        for extent in self.dims[1:]:
            total *= extent
        return total

    def aligned(self, coords: Iterable[int]) -> tuple[int, ...]:
        """Coordinates whose first is a multiple of 16 bytes: anything else stops the GPU."""
        first, *rest = coords
        step = 16 // TYPES[self.element][1]
        return (first // step * step, *rest)

    def encode(self, hopper: Hopper, address: int) -> bytes:
        """The driver's bytes of the map."""
        d = hopper.driver
        rank = len(self.dims)
        made = hopper.call(
            "cuTensorMapEncodeTiled",
            d.CUtensorMapDataType(TYPES[self.element][0]),
            rank,
            address,
            [d.cuuint64_t(x) for x in self.dims],
            [d.cuuint64_t(x) for x in self.strides] or [d.cuuint64_t(16)],
            [d.cuuint32_t(x) for x in self.box],
            [d.cuuint32_t(x) for x in self.steps],
            d.CUtensorMapInterleave(0),
            d.CUtensorMapSwizzle(self.swizzle),
            d.CUtensorMapL2promotion(0),
            d.CUtensorMapFloatOOBfill(1 if self.nan else 0),
        )
        return b"".join(struct.pack("<Q", int(word)) for word in made.opaque)


def random_box(rng: np.random.Generator) -> Box:
    rank = int(rng.integers(1, 6))
    swizzle = int(rng.integers(0, 4))
    element = str(rng.choice(["u8", "f16", "bf16", "f32", "u64", "tf32"]))
    size = TYPES[element][1]
    span = {0: 256, 1: 32, 2: 64, 3: 128}[swizzle]
    inner = int(rng.integers(1, min(span, 256 * size) // 16 + 1)) * 16 // size
    limit = {1: 1, 2: 100, 3: 10, 4: 5, 5: 3}[rank]
    box = (inner, *(int(rng.integers(1, limit + 1)) for _ in range(rank - 1)))
    dims = tuple(int(rng.integers(1, 2 * b + 2)) for b in box)
    steps = (1, *(int(rng.integers(1, 4)) for _ in range(rank - 1)))
    nan = element in ("f16", "bf16", "f32") and bool(rng.integers(0, 2))
    return Box(element, dims, box, steps, swizzle, nan)


def run_tma(
    hopper: Hopper, box: Box, coords: tuple[int, ...], offset: int, seed: int, store: str = ""
) -> str:
    rng = np.random.default_rng(seed)
    tensor = rng.integers(0, 256, box.byte_count, np.uint8)
    if box.element in ("f16", "bf16", "f32", "tf32", "f64"):
        # finite values; a few specials for the rounding of tf32
        kind = {"f16": np.float16, "f64": np.float64}.get(box.element, np.float32)
        values = rng.standard_normal(box.byte_count // np.dtype(kind).itemsize).astype(kind)
        if box.element == "tf32":
            values[rng.random(values.size) < 0.05] = np.nan
            values[rng.random(values.size) < 0.05] = np.inf
        tensor = values.view(np.uint8)
    target = rng.integers(0, 64, box.byte_count, np.uint8) if store else tensor[:16].copy()
    arrays: list[Array] = [
        tensor.copy(),
        np.zeros((SHARED_BYTES - 512) // 4, np.uint32),
        target.view(np.uint8).copy(),
    ]
    where = np.zeros(5, np.int32)
    where[: len(coords)] = coords
    extra: list[bytes | Callable[[list[int]], bytes]] = [
        lambda at: box.encode(hopper, at[0]),
        lambda at: box.encode(hopper, at[2]) if store else bytes(128),
        where.tobytes(),
        struct.pack("<I", offset),
    ]
    emulated = both(hopper, tma_ptx(len(coords), box.tx_bytes, store), 1, 128, arrays, extra)
    problem = differing(arrays[1], emulated[1])
    return problem or differing(arrays[2], emulated[2])


@pytest.mark.parametrize("seed", range(60))
def test_tma_loads(hopper: Hopper, seed: int):
    """Random boxes, coordinates in and out of bounds, every swizzle, destinations mid-pattern."""
    rng = np.random.default_rng(seed)
    box = random_box(rng)
    coords = box.aligned(
        int(rng.integers(-b, d + b)) for b, d in zip(box.box, box.dims, strict=True)
    )
    offset = 128 * int(rng.integers(0, 24))
    assert run_tma(hopper, box, coords, offset, seed) == "", f"{box} at {coords} to +{offset}"


STORE = "cp.async.bulk.tensor.{rank}d.global.shared::cta.tile.bulk_group"
REDUCE = "cp.reduce.async.bulk.tensor.{{rank}}d.global.shared::cta.{}.tile.bulk_group"


@pytest.mark.parametrize("seed", range(24))
def test_tma_stores(hopper: Hopper, seed: int):
    rng = np.random.default_rng(1000 + seed)
    box = random_box(rng)
    coords = box.aligned(int(rng.integers(0, d + 1)) for d in box.dims)
    assert run_tma(hopper, box, coords, 1024, seed, STORE) == "", f"{box} at {coords}"


@pytest.mark.parametrize(
    ("element", "operation"),
    [
        ("u32", "add"), ("s32", "min"), ("s32", "max"), ("u32", "inc"), ("u32", "dec"),
        ("u32", "and"), ("u64", "xor"), ("u64", "or"), ("f32", "add"), ("f16", "add"),
        ("bf16", "add"), ("f16", "min"), ("bf16", "max"),
    ],
)  # fmt: skip
def test_tma_reductions(hopper: Hopper, element: str, operation: str):
    size = TYPES[element][1]
    for tail in (0, 1):
        box = Box(element, (64 // size - tail, 20), (64 // size, 8), (1, 1), 2)
        check_reductions(hopper, box, operation)


def check_reductions(hopper: Hopper, box: Box, operation: str) -> None:
    size = TYPES[box.element][1]
    for seed, coords in enumerate(((0, 0), (0, 15), (16 // size, 3))):
        assert run_tma(hopper, box, coords, 0, seed, REDUCE.format(operation)) == ""


# ---- mbarrier ------------------------------------------------------------------------------

MBARRIER_STEPS = [
    "mbarrier.init.shared::cta.b64 [%r2], 5",
    "mbarrier.arrive.shared::cta.b64 {}, [%r2]",
    "mbarrier.arrive.expect_tx.shared::cta.b64 {}, [%r2], 48",
    "mbarrier.arrive.shared::cta.b64 {}, [%r2], 2",
    "mbarrier.arrive_drop.shared::cta.b64 {}, [%r2]",
    "mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%r2], 32",
    "mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%r2], 16",
    "mbarrier.arrive.shared::cta.b64 {}, [%r2], 3",
    "mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%r2], 4096",
    "mbarrier.arrive.expect_tx.shared::cta.b64 {}, [%r2], 4096",
    "mbarrier.arrive.shared::cta.b64 {}, [%r2]",
]


def mbarrier_ptx() -> str:
    """Each step's token, or 0."""
    body = ""
    for i, text in enumerate(MBARRIER_STEPS):
        body += f"""
  mov.b64 %d2, 0;
  {text.format("%d2")};
  st.global.b64 [%d1+{8 * i}], %d2;"""
    return f"""{HEAD}
.extern .shared .align 1024 .b8 window[];
.visible .entry kernel(.param .u64 dst)
.reqntid 32, 1, 1
{{
  .reg .b32 %r<8>;
  .reg .b64 %d<8>;
  .reg .pred %p<2>;
  ld.param.u64 %d1, [dst];
  mov.u32 %r1, %tid.x;
  setp.ne.u32 %p1, %r1, 0;
  @%p1 bra DONE;
  mov.u32 %r2, window;{body}
DONE:
  ret;
}}
"""


TOKEN_BITS = np.uint64(0xFFFFF80000000000)  # parity and pending arrivals; the rest is undefined


def test_mbarrier_tokens(hopper: Hopper):
    """Phase parity and pending arrivals in every token; the other bits are undefined."""
    arrays: list[Array] = [np.zeros(len(MBARRIER_STEPS), np.uint64)]
    emulated = both(hopper, mbarrier_ptx(), 1, 32, arrays)
    assert differing(arrays[0] & TOKEN_BITS, emulated[0] & TOKEN_BITS) == ""
