"""2:4 structured sparsity of tcgen05.mma.sp: metadata in tensor memory (spec-ptx 2.9).

Half of A's elements are stored; one 4-bit code per chunk says where they belong. A code holds two
2-bit positions, low bits first: 0b1001 puts the first stored element at 1 and the second at 2.

Ambiguities resolved here:
  - spec 2.9 gives the nibble map of kind f16 and of the 8-bit kinds only. tf32 (8 codes per row)
    uses the map of f16; the mxf4 kinds (16 codes per row, positions count pairs of elements) use
    the map of the 8-bit kinds.
  - spec 2.9 describes 128 rows per CTA; other row counts fault as unsupported.
"""

import numpy as np
import numpy.typing as npt

from .faults import Fault
from .instruction import Instruction
from .tmem import TensorMemory

F32 = npt.NDArray[np.float32]
Codes = npt.NDArray[np.uint8]

_LEGAL_CODES = (0x4, 0x6, 0x8, 0x9, 0xC, 0xD, 0xE)
_ROWS = 128


def read_metadata(tmem: TensorMemory, address: int, kind: str, ins: Instruction) -> Codes:
    """Codes uint8[128, chunks] of one CTA's rows.

    Raises:
      Fault: the columns are not allocated or written, or a code is not legal.
    """
    if ins.rows_per_cta != _ROWS:
        raise Fault("unsupported", f"sparse A with {ins.rows_per_cta} rows per CTA")
    column = address & 0xFFFF
    if column % 2:
        raise Fault("tmem", f"the metadata's column must be even, got {column}", address=address)
    row = np.arange(_ROWS)[:, None]
    if kind in ("f16", "tf32"):
        chunk = np.arange(8)[None, :]
        lane = row // 32 * 32 + row % 8 + 16 * (row % 32 // 16) + 8 * (chunk // 4)
        cell_column = column + ins.sparsity_selector + 0 * lane
        nibble = 4 * (row % 16 // 8) + chunk % 4
    else:
        chunk = np.arange(16)[None, :]
        lane = row + 0 * chunk
        cell_column = column + chunk // 8 + 0 * row
        nibble = chunk % 8 + 0 * row
    first = int(cell_column.min())
    columns = int(cell_column.max()) - first + 1
    tmem.check_columns(first, columns, what="sparse metadata")
    written = tmem.written[lane, cell_column]
    tmem.check_written(written, address, columns, what="sparse metadata")
    words = tmem.cells[lane, cell_column]
    codes = ((words >> (4 * nibble).astype(np.uint32)) & 0xF).astype(np.uint8)
    legal = (0x4, 0xE) if kind == "tf32" else _LEGAL_CODES
    bad = ~np.isin(codes, legal)
    if bad.any():
        r, c = (int(x[0]) for x in np.nonzero(bad))
        raise Fault("tmem", f"sparse metadata 0x{codes[r, c]:X} of row {r}, chunk {c} is not legal")
    return codes


def expand_sparse(a: F32, codes: Codes, kind: str) -> F32:
    """Dense A [1, rows, 2 * stored] from the stored elements [1, rows, stored]."""
    _, rows, stored = a.shape
    if kind == "tf32":
        dense = np.zeros((rows, stored, 2), np.float32)
        np.put_along_axis(dense, (codes >> 3)[..., None].astype(np.intp), a[0][..., None], axis=2)
        return dense.reshape(1, rows, 2 * stored)
    width = 2 if kind in ("mxf4", "mxf4nvf4") else 1
    values = a[0].reshape(rows, -1, 2, width)
    positions = np.stack([codes & 3, codes >> 2], axis=-1)[..., None].astype(np.intp)
    dense = np.zeros((rows, values.shape[1], 4, width), np.float32)
    np.put_along_axis(dense, np.broadcast_to(positions, values.shape), values, axis=2)
    return dense.reshape(1, rows, 2 * stored)
