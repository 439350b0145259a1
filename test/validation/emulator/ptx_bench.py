"""Small PTX kernels for tests, and scalar oracles in exact arithmetic."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from attn_mlir.runtime.emulator import Emulator, Stats

BARRIER = ".shared .align 8 .b8 bar[64];\n.shared .align 16 .b8 buffer[1024];"


WAIT = """
    {{
    .reg .pred P1;
    LAB_WAIT:
    mbarrier.try_wait.parity.shared::cta.b64 P1, [{bar}], {parity};
    @P1 bra.uni DONE;
    bra.uni LAB_WAIT;
    DONE:
    }}
"""


def wait(bar: str, parity: object) -> str:
    """The compilers' wait loop, whose labels repeat."""
    return WAIT.format(bar=bar, parity=parity)


PRODUCER_CONSUMER = f"""
    mov.u32 r60, %tid.x; shr.u32 r61, r60, 5; mov.u32 r1, bar; mov.u32 r2, buffer; mov.u32 r10, 0;
    setp.eq.u32 p1, r60, 0; @!p1 bra READY;
    mbarrier.init.shared::cta.b64 [r1], 32; mbarrier.init.shared::cta.b64 [r1+8], 32;
    READY: bar.sync 0;
    and.b32 r3, r60, 31; mad.lo.u32 r4, r3, 4, r2; mov.u32 r5, 0; mov.u32 r6, 0;
    setp.eq.u32 p2, r61, 0; @p2 bra CONSUME;
    PRODUCE:
    xor.b32 r7, r5, 1; and.b32 r7, r7, 1;
    {wait("r1+8", "r7")}
    mad.lo.u32 r8, r5, 100, r3; st.shared.b32 [r4], r8;
    mbarrier.arrive.shared::cta.b64 _, [r1];
    add.u32 r5, r5, 1; setp.lt.u32 p3, r5, 7; @p3 bra PRODUCE;
    bra END;
    CONSUME:
    and.b32 r7, r5, 1;
    {wait("r1", "r7")}
    xor.b32 r9, r4, 4; ld.shared.b32 r8, [r9]; add.u32 r6, r6, r8;
    mbarrier.arrive.shared::cta.b64 _, [r1+8];
    add.u32 r5, r5, 1; setp.lt.u32 p3, r5, 7; @p3 bra CONSUME;
    mad.wide.u32 rd2, r3, 4, rd1; st.global.b32 [rd2], r6;
    END:
"""


Array = npt.NDArray[Any]

HEADER = ".version 8.8\n.target {target}\n.address_size 64\n"
SCRATCH = """
    .reg .pred p<8>;
    .reg .b16 h<16>;
    .reg .b32 r<64>;
    .reg .b64 rd<32>;
"""


def module(
    body: str,
    params: str = "",
    *,
    before: str = "",
    target: str = "sm_100a",
    directives: str = "",
) -> str:
    """A module with one entry `k`; the body may use the registers of SCRATCH."""
    head = HEADER.format(target=target)
    return f"{head}{before}\n.visible .entry k({params})\n{directives}\n{{{SCRATCH}\n{body}\n    ret;\n}}\n"


def lane_kernel(
    body: str, ins: Sequence[Array], outs: Sequence[Any], target: str = "sm_100a"
) -> str:
    """A kernel that loads `a`, `b`, `c`, .. of each thread, runs `body`, stores `x`, `y`, ..

    All registers are untyped, as compilers write them.
    """
    names = "abcdefgh"[: len(ins)], "xyzw"[: len(outs)]
    params: list[str] = []
    declare: list[str] = []
    load: list[str] = ["mov.u32 r60, %tid.x;"]
    store: list[str] = []
    for name, array in zip(names[0], ins, strict=True):
        width = array.dtype.itemsize
        params.append(f".param .u64 p_{name}")
        declare.append(f".reg .b{8 * width} {name};")
        load.append(f"ld.param.u64 rd30, [p_{name}]; mad.wide.u32 rd30, r60, {width}, rd30;")
        load.append(f"ld.global.b{8 * width} {name}, [rd30];")
    for name, dtype in zip(names[1], outs, strict=True):
        width = np.dtype(dtype).itemsize
        params.append(f".param .u64 p_{name}")
        declare.append(f".reg .b{8 * width} {name};")
        store.append(f"ld.param.u64 rd30, [p_{name}]; mad.wide.u32 rd30, r60, {width}, rd30;")
        store.append(f"st.global.b{8 * width} [rd30], {name};")
    text = "\n    ".join([*declare, *load, body, *store])
    return module("    " + text, ", ".join(params), target=target)


def run_lanes(
    body: str,
    ins: Sequence[Array],
    outs: Sequence[Any],
    *,
    target: str = "sm_100a",
    schedule: Any = "fair",
    seed: int = 0,
) -> list[Array]:
    """Run `lane_kernel` with one thread per element (at most 1024); the outputs."""
    count = ins[0].size
    assert all(array.size == count for array in ins)
    emulator = Emulator(target=target, schedule=schedule, seed=seed)  # type: ignore[arg-type]
    results = [np.zeros(count, dtype) for dtype in outs]
    params = [emulator.map(np.ascontiguousarray(array)) for array in ins]
    params += [emulator.map(array) for array in results]
    text = lane_kernel(body, ins, outs, target)
    emulator.launch(text, "k", grid=(1, 1, 1), block=(count, 1, 1), params=params)
    return results


def run_module(
    text: str,
    params: Sequence[Any],
    *,
    grid: Sequence[int] = (1, 1, 1),
    block: Sequence[int] = (32, 1, 1),
    cluster: Sequence[int] = (1, 1, 1),
    shared_bytes: int = 0,
    emulator: Emulator | None = None,
    **options: Any,
) -> Stats:
    """Launch entry `k`; arrays among the parameters are mapped."""
    emulator = emulator or Emulator(**options)
    values = [emulator.map(p) if isinstance(p, np.ndarray) else p for p in params]
    return emulator.launch(
        text, "k", grid=grid, block=block, cluster=cluster, shared_bytes=shared_bytes, params=values
    )


# ---- numbers


def f32(*values: float) -> Array:
    """float32 array."""
    return np.array(values, np.float32)


def bits_f32(*values: int) -> Array:
    """float32 array from bit patterns."""
    return np.array(values, np.uint32).view(np.float32)


SPECIAL_F32 = np.concatenate(
    [
        f32(0.0, -0.0, 1.0, -1.0, 0.5, 1.5, 2.5, 3.0, 1e10, -1e-10, 65504.0, 65520.0, 448.0, 0.1),
        f32(np.inf, -np.inf, np.nan, 3.4028235e38, -3.4028235e38, 1.17549435e-38, 5.9604645e-08),
        bits_f32(
            0x00000001, 0x80000001, 0x007FFFFF, 0x3F800001, 0x3F7FFFFF, 0x3F808000, 0x3F818000
        ),
        bits_f32(0x33800000, 0x4B000001, 0xCB000001, 0x477FF000),
    ]
)


def random_f32(rng: np.random.Generator, count: int, spread: int = 40) -> Array:
    """Random float32 of many magnitudes."""
    scale = np.exp2(rng.integers(-spread, spread, count)).astype(np.float32)
    return (rng.standard_normal(count).astype(np.float32) * scale).astype(np.float32)


def round_exact(
    value: Fraction, mode: str, precision: int = 24, least: int = -126, greatest: int = 127
) -> float:
    """A rational number rounded to a binary format, as a float; the sign of zero is lost.

    Args:
      precision: significand bits. least, greatest: exponents of the normal numbers.
    """
    if value == 0:
        return 0.0
    sign = -1 if value < 0 else 1
    size = abs(value)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    if Fraction(2) ** exponent > size:
        exponent -= 1
    unit = Fraction(2) ** (max(exponent, least) - precision + 1)
    whole, rest = divmod(size, unit)
    up = {
        "rz": False,
        "rm": rest > 0 and sign < 0,
        "rp": rest > 0 and sign > 0,
        "rn": rest * 2 > unit or (rest * 2 == unit and whole % 2 == 1),
        "rna": rest * 2 >= unit,
    }[mode]
    result = (whole + up) * unit
    largest = (2 - Fraction(2) ** (1 - precision)) * Fraction(2) ** greatest
    if result > largest:
        away = {"rz": False, "rm": sign < 0, "rp": sign > 0, "rn": True, "rna": True}[mode]
        return sign * (float("inf") if away else float(largest))
    return sign * float(result)


def same_f32(got: Array, want: Array) -> None:
    """Equal bits, where all NaN are equal and so are the zeros that `want` gives as +0."""
    got, want = got.astype(np.float32), want.astype(np.float32)
    equal = (got == want) | (np.isnan(got) & np.isnan(want))
    bad = np.flatnonzero(~equal)
    assert bad.size == 0, [(i, got[i], want[i]) for i in bad[:5].tolist()]


def as_int(value: Any, bits: int, signed: bool) -> int:
    """The low bits of an integer, as a signed or unsigned number."""
    raw = int(value) & ((1 << bits) - 1)
    return raw - (1 << bits) if signed and raw >> (bits - 1) else raw


def tensor_map_bytes(
    address: int,
    dims: Sequence[int],
    strides: Sequence[int],
    box: Sequence[int],
    *,
    element: int = 10,
    swizzle: int = 0,
) -> bytes:
    """A CUtensorMap by the bit table of spec-ptx 7.4.

    Args:
      dims, box: elements, fastest first. strides: bytes of dimensions 1 and up.
      element: hardware element code (7 f32, 10 bf16). swizzle: 0 none, 1 32B, 2 64B, 3 128B.
    """
    words = [0] * 32
    words[0], words[1] = address & 0xFFFF_FFFF, address >> 32
    words[2] = (len(dims) - 1) << 4 | element << 7 | swizzle << 13
    for i, stride in enumerate(strides):
        words[3 + i] = stride >> 4 & 0xFFFF_FFFF
        words[7] |= (stride >> 36 & 0xF) << 4 * i
    for i, extent in enumerate(dims):
        words[8 + i] = extent - 1
    words[13] = (box[0] - 1) << 24
    for i, extent in enumerate(box[1:]):
        words[14] |= (extent - 1) << 8 * i
    return struct.pack("<32I", *words)
