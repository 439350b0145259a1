"""Fetching tensor-core operands: from shared or tensor memory to arrays of values.

Values are float32 in logical order: A is [banks, rows, K], B is [columns, K] (both may be
transposed views). `i8` operands are float32 too; their products stay exact.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from .descriptors import Architecture, operand_gather
from .faults import Fault
from .formats import decode, unpack_4_bit, unpack_6_bit
from .instruction import Instruction, Layout
from .memory import SharedMemory
from .tmem import TensorMemory

F32 = npt.NDArray[np.float32]

# bytes of one element's container in shared memory; mxf4 kinds pack two e2m1 per byte instead
_CONTAINER_BYTES = {"bf16": 2, "f16": 2, "tf32": 4}

# bytes of 16 that 4- and 6-bit elements fill, sixteen to a unit; the rest is padding
_BYTES_PER_UNIT = {"e2m1": 8, "e2m3": 12, "e3m2": 12}


def decode_bytes(units: npt.NDArray[np.uint64], element: str, packed_4_bit: bool = False) -> F32:
    """Values of 16-byte units: [..., units, 2] (uint64 halves) to [..., elements].

    Args:
      element: a format name, "u8" or "s8".
      packed_4_bit: e2m1 as two per byte without padding (mxf4 kinds).
    """
    lead = units.shape[:-2]
    if element in ("bf16", "f16"):
        return decode(element, units.view(np.uint16).reshape(*lead, -1))
    if element == "tf32":
        return decode(element, units.view(np.uint32).reshape(*lead, -1))
    data = units.view(np.uint8)
    if element == "u8":
        return data.reshape(*lead, -1).astype(np.float32)
    if element == "s8":
        return data.view(np.int8).reshape(*lead, -1).astype(np.float32)
    if element == "e2m1":
        codes = unpack_4_bit(data if packed_4_bit else data[..., :8])
        return decode(element, codes.reshape(*lead, -1))
    if element in ("e2m3", "e3m2"):
        return decode(element, unpack_6_bit(data).reshape(*lead, -1))
    return decode(element, data.reshape(*lead, -1))


def decode_cells(cells: npt.NDArray[np.uint32], element: str, packed_4_bit: bool = False) -> F32:
    """Values of tensor-memory words [..., columns] to [..., elements]; spec-ptx 3.2 and 2.7."""
    words = np.ascontiguousarray(cells)
    if element in ("bf16", "f16"):
        return decode(element, words.view(np.uint16))
    if element == "tf32":
        return decode(element, words)
    data = words.view(np.uint8)
    if element == "u8":
        return data.astype(np.float32)
    if element == "s8":
        return data.view(np.int8).astype(np.float32)
    if element == "e2m1":
        if packed_4_bit:
            return decode(element, unpack_4_bit(data))
        return decode(element, (data >> np.uint8(2)) & np.uint8(0xF))
    if element in ("e2m3", "e3m2"):
        return decode(element, data & np.uint8(0x3F))
    return decode(element, data)


def smem_operand(
    shared: SharedMemory,
    descriptors: tuple[int, ...],
    *,
    architecture: Architecture,
    element: str,
    mn_major: bool,
    mn_count: int,
    k_bytes: int,
    what: str,
    packed_4_bit: bool = False,
    is_by_warp: bool = False,
) -> F32:
    """Values [mn_count, K * len(descriptors)] of a shared-memory operand.

    Args:
      descriptors: one per K-step.
      mn_count: rows of A or columns of B in this CTA.
      k_bytes: bytes of K per step when K-major (32 for dense operands); for MN-major operands the
        number of K indices is k_bytes / container bytes.
      what: "operand A" or "operand B", for faults.
      is_by_warp: each of four warps uses a quarter of the rows (A of wgmma).
    """
    container = _CONTAINER_BYTES.get(element, 1)
    gather = operand_gather(
        descriptors, architecture, mn_major, mn_count, k_bytes // container, container
    )
    shared.check_units(gather.low, gather.high, what=what)
    quarters = (1 if mn_major else 0) if is_by_warp else None
    shared.check_units_written(
        gather.units,
        what=what,
        quarters=quarters,
        bytes_per_unit=16 if packed_4_bit else _BYTES_PER_UNIT.get(element, 16),
    )
    values = decode_bytes(shared.units.take(gather.units, axis=0), element, packed_4_bit)
    return values.T if mn_major else values


def lane_view(
    array: npt.NDArray[Any], layout: Layout, lane: int, column: int, columns: int
) -> npt.NDArray[Any]:
    """View of tensor memory (cells or flags) that a layout's rows occupy, spec-ptx 3.1.

    Args:
      array: [128, 512].
      lane: 0, or 16 for layouts C and F.
      columns: columns per lane.

    Returns:
      [banks, rows, columns] for A, B, D, E, G; [4, 16, columns] (row = 16 i + j) for C and F. A
      product [banks, rows, columns] is brought to this shape by `reshape`.
    """
    span = slice(column, column + columns)
    if layout in ("A", "D"):
        return array[None, :, span]
    if layout in ("B", "E"):
        return array.reshape(2, 64, -1)[:, :, span]
    if layout == "G":
        return array.reshape(4, 32, -1)[:, :, span]
    return array.reshape(4, 32, -1)[:, lane : lane + 16, span]


def watch_rows(
    tmem: TensorMemory, layout: Layout, lane: int, column: int, columns: int, *, is_write: bool
) -> None:
    """Tell the watch, if there is one, of an access to the lanes that a layout's rows occupy."""
    if tmem.watch is None:
        return
    if layout not in ("C", "F"):
        tmem.watch.cells(0, 128, column, columns, is_write)
        return
    for partition in range(0, 128, 32):
        tmem.watch.cells(partition + lane, 16, column, columns, is_write)


def tmem_operand(
    tmem: TensorMemory,
    instruction: Instruction,
    addresses: tuple[int, ...],
    *,
    packed_4_bit: bool = False,
) -> F32:
    """Values [banks, rows, K * len(addresses)] of A in tensor memory: 8 columns per K-step."""
    layout, banks = instruction.layout, instruction.banks
    starts = [a & 0xFFFF for a in addresses]
    lane = addresses[0] >> 16
    if all(s == starts[0] + 8 * i for i, s in enumerate(starts)):
        runs = [(starts[0], 8 * len(starts))]
    else:
        runs = [(s, 8) for s in starts]
    parts: list[npt.NDArray[np.uint32]] = []
    for start, columns in runs:
        tmem.check_columns(start, columns, what="operand A")
        watch_rows(tmem, layout, lane, start, columns, is_write=False)
        written = lane_view(tmem.written, layout, lane, start, columns)
        tmem.check_written(written, start, columns, what="operand A")
        cells = lane_view(tmem.cells, layout, lane, start, columns)
        parts.append(cells.reshape(banks, -1, columns))
    cells = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=-1)
    return decode_cells(cells, instruction.a_format, packed_4_bit)


def scale_operand(
    tmem: TensorMemory,
    address: int,
    *,
    first_byte: int,
    count: int,
    per_row: int,
    scale_format: str,
    first_lane: int,
    reads: npt.NDArray[np.bool_],
    what: str,
) -> F32:
    """Block scales [count, per_row] from tensor memory; spec-ptx 2.8.

    PTX wants them in every quarter of the lanes. The watch is told where a quarter that does not
    read them has none, or others.

    Args:
      address: column of rows 0..31; bits 30 and 31 select a byte elsewhere and are ignored here.
      first_byte: scale-factor id of the instruction descriptor.
      count: rows of A, or columns of B. per_row: scales per row.
      reads: bool[quarters of the lanes from `first_lane` on, columns of 32 scales]: who reads
        which.

    Raises:
      Fault: cells that are read are not allocated or never written, or replicas differ among them.
    """
    column = address & 0xFFFF
    partitions, columns = int(reads.shape[0]), int(reads.shape[1])
    tmem.check_columns(column, columns, what=what)
    if tmem.watch is not None:
        _watch_scales(tmem, reads, first_lane, column)
    lanes = slice(first_lane, first_lane + 32 * partitions)
    window = np.s_[lanes, column : column + columns]
    rows_here = np.arange(columns * 32).reshape(columns, 32).T < count
    shape = (partitions, 32, columns)
    used = rows_here & np.expand_dims(reads, 1)
    written = tmem.written[window].reshape(shape)
    tmem.check_written(written | ~used, column, columns, what=what)
    words = np.ascontiguousarray(tmem.cells[window]).reshape(shape)
    data = words.view(np.uint8).reshape(*shape, 4)[..., first_byte : first_byte + per_row]
    from_reader = data[reads.argmax(axis=0), :, np.arange(columns)]  # [columns, 32, per_row]
    differs = (data != from_reader.transpose(1, 0, 2)).any(axis=-1)
    if (differs & used).any():
        raise Fault("tmem", f"{what}: lane partitions hold different scales", address=column)
    if tmem.watch is not None and ((differs | ~written) & rows_here & ~used).any():
        tmem.watch.unpromised(
            f"the {what} are not in every quarter of the lanes, which PTX asks for: a row's is "
            "read from the quarter that has the row",
            column,
            columns,
        )
    return decode(scale_format, from_reader.reshape(columns * 32, per_row)[:count])


def _watch_scales(
    tmem: TensorMemory, reads: npt.NDArray[np.bool_], first_lane: int, column: int
) -> None:
    assert tmem.watch is not None
    partitions, columns = reads.shape
    if reads.all():
        tmem.watch.cells(first_lane, 32 * partitions, column, columns, False)
        return
    for partition, part in np.argwhere(reads).tolist():
        tmem.watch.cells(first_lane + 32 * partition, 32, column + part, 1, False)
