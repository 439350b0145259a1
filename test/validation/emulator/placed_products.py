"""Operands placed for tcgen05.mma, and results read, cell by cell from the tables of the specification."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from attn_mlir.runtime.emulator.machine.formats import encode
from attn_mlir.runtime.emulator.machine.memory import SharedMemory
from attn_mlir.runtime.emulator.machine.tensorcore import Mma
from attn_mlir.runtime.emulator.machine.tmem import TensorMemory

MODES = ["float32", "fused"]


@dataclass
class FakeCta:
    shared: SharedMemory = field(default_factory=lambda: SharedMemory(0x20000))
    tmem: TensorMemory = field(default_factory=lambda: TensorMemory(track_initialised=True))

    def __post_init__(self) -> None:
        self.tmem.alloc(512)


def descriptor(start: int, lbo: int, sbo: int, swizzle: int) -> int:
    return swizzle << 61 | 1 << 46 | (sbo >> 4) << 32 | (lbo >> 4) << 16 | start >> 4


def idesc(m: int, n: int, d: int, a: int, b: int, **flags: int) -> int:
    value = d << 4 | a << 7 | b << 10 | (n >> 3) << 17 | (m >> 4) << 24
    shifts = {"neg_a": 13, "neg_b": 14, "tr_a": 15, "tr_b": 16, "sparse": 2, "saturate": 3}
    return value | sum(v << shifts[k] for k, v in flags.items())


def swizzled(address: int, bits: int) -> int:
    return address ^ (((address >> 7) & ((1 << bits) - 1)) << 4)


def place_k_major(
    shared: SharedMemory, rows: npt.NDArray[np.uint8], start: int, sbo: int, bits: int = 3
) -> None:
    """rows uint8[r, bytes], bytes <= swizzle span, as a K-major tile of the given swizzle."""
    pitch = 16 << bits
    for r in range(rows.shape[0]):
        for b in range(rows.shape[1]):
            at = start + r % 8 * pitch + r // 8 * sbo + b
            shared.data[swizzled(at, bits)] = rows[r, b]


def place_mn_major(
    shared: SharedMemory, by_k: npt.NDArray[np.uint8], start: int, lbo: int, sbo: int
) -> None:
    """by_k uint8[k, bytes of MN] as an MN-major tile with 128-byte swizzle."""
    for k in range(by_k.shape[0]):
        for x in range(by_k.shape[1]):
            at = start + k % 8 * 128 + k // 8 * sbo + x // 128 * lbo + x % 128
            shared.data[swizzled(at, 3)] = by_k[k, x]


def d_cell(layout: str, m: int, n: int, n_total: int) -> tuple[int, int, int]:
    """(CTA, lane, column) of element (m, n); the table of the specification."""
    half, quarter = n_total // 2, n_total // 4
    return {
        "A": lambda: (m // 128, m % 128, n),
        "B": lambda: (m // 64, m % 64 + 64 * (n >= half), n % half),
        "C": lambda: (m // 64, m % 16 + 32 * (m % 64 // 16), n),
        "D": lambda: (0, m, n),
        "E": lambda: (0, m + 64 * (n >= half), n % half),
        "F": lambda: (0, m % 16 + 32 * (m // 16), n),
        "G": lambda: (0, m + 32 * (n // quarter), n % quarter),
    }[layout]()


def read_d(ctas: list[FakeCta], layout: str, m: int, n: int, d: int) -> npt.NDArray[np.uint32]:
    out = np.zeros((m, n), np.uint32)
    for i in range(m):
        for j in range(n):
            cta, lane, column = d_cell(layout, i, j, n)
            out[i, j] = ctas[cta].tmem.cells[(d >> 16) + lane, (d & 0xFFFF) + column]
    return out


def write_d(ctas: list[FakeCta], layout: str, values: npt.NDArray[np.uint32], d: int) -> None:
    for i in range(values.shape[0]):
        for j in range(values.shape[1]):
            cta, lane, column = d_cell(layout, i, j, values.shape[1])
            where = ((d >> 16) + lane, (d & 0xFFFF) + column)
            ctas[cta].tmem.cells[where] = values[i, j]
            ctas[cta].tmem.written[where] = True


def bf16_bytes(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
    return encode("bf16", values).astype(np.uint16).view(np.uint8)


def small_integers(rng: np.random.Generator, *shape: int) -> npt.NDArray[np.float32]:
    return rng.integers(-4, 5, shape).astype(np.float32)


def bf16_setup(m: int, n: int, cta_group: int = 1, seed: int = 0, k: int = 16):
    """CTAs with A and B in shared memory (128B swizzle, K-major), and the matrices."""
    rng = np.random.default_rng(seed)
    a, b = small_integers(rng, m, k), small_integers(rng, n, k)
    ctas = [FakeCta() for _ in range(cta_group)]
    for r, cta in enumerate(ctas):
        rows, columns = m // cta_group, n // cta_group
        place_k_major(cta.shared, bf16_bytes(a[r * rows :][:rows]), 0x400, 1024)
        place_k_major(cta.shared, bf16_bytes(b[r * columns :][:columns]), 0x8400, 1024)
    a_desc, b_desc = descriptor(0x400, 16, 1024, 2), descriptor(0x8400, 16, 1024, 2)
    return ctas, a, b, a_desc, b_desc


def plain_op(**changes: object) -> Mma:
    values: dict[str, object] = {
        "kind": "f16", "idesc": idesc(128, 32, 1, 1, 1), "d": 0, "enable_d": False,
        "a": descriptor(0x400, 16, 1024, 2), "b": descriptor(0x8400, 16, 1024, 2),
    }  # fmt: skip
    return Mma(**(values | changes))  # type: ignore[arg-type]
