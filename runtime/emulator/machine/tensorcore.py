"""tcgen05.mma: fetch operands, multiply, accumulate into tensor memory (spec-ptx 2, 3 and 15.5).

An instruction does all its work when it is called. Numeric modes:
  - "float32": operands are exact in float32 and one float32 matrix product is added to D. The order
    of additions is numpy's. This is the fast mode, and the default.
  - "fused": bit-exact model of the hardware's dot product (`numerics`).

Ambiguities resolved here:
  - spec 2.6: a column masked to zero by .ws contributes zero products, so D = D there.
  - spec 2.1, .ashift: rows move within the CTA, the last row is kept.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from . import numerics
from .faults import Fault
from .instruction import (
    BLOCK_SCALED,
    SCALE_VECTORS,
    Instruction,
    Kind,
    decode_instruction,
)
from .memory import SharedMemory
from .operands import F32, lane_view, scale_operand, smem_operand, tmem_operand, watch_rows
from .products import row_blocked
from .sparsity import expand_sparse, read_metadata
from .tmem import TensorMemory

Numeric = Literal["float32", "fused"]
OPERAND_K_BYTES = 32  # K of a dense operand per instruction; spec-ptx 2.1


class Cta(Protocol):
    """The memories of a CTA that the tensor core reads and writes."""

    @property
    def shared(self) -> SharedMemory: ...

    @property
    def tmem(self) -> TensorMemory: ...


@dataclass(frozen=True, slots=True)
class Mma:
    """One tcgen05.mma with the values of its operands.

    Attributes:
      idesc: instruction descriptor. d: tensor-memory address of D.
      a: shared-memory descriptor, or tensor-memory address if `a_in_tmem`. b: descriptor.
      enable_d: D is also an input. scale_d: the immediate; D enters as D * 2^-scale_d.
      lane_mask: 4 (or 8 for cta_group 2) 32-bit words; a set bit keeps that lane of D unwritten.
      zero_mask: zero-column mask descriptor of .ws. metadata: address of sparse metadata.
      sfa, sfb: addresses of block scales; scale_vec: scales per row (1, 2 or 4), 0 for default.
    """

    kind: Kind
    idesc: int
    d: int
    a: int
    b: int
    enable_d: bool = True
    a_in_tmem: bool = False
    cta_group: int = 1
    scale_d: int = 0
    lane_mask: tuple[int, ...] = ()
    ws: bool = False
    zero_mask: int = 0
    ashift: bool = False
    sparse: bool = False
    metadata: int = 0
    sfa: int = 0
    sfb: int = 0
    scale_vec: int = 0

    def is_plain(self) -> bool:
        """No mask, scale, shift, sparsity or block scale: K-steps of it can be joined."""
        return not (
            self.scale_d
            or self.lane_mask
            or self.zero_mask
            or self.ashift
            or self.sparse
            or self.kind in BLOCK_SCALED
        )


class TensorCore:
    """The tensor core of one SM (or of the two SMs of a CTA pair).

    Attributes:
      numeric: "float32" or "fused".
      mma_count: instructions executed so far.
    """

    def __init__(self, numeric: Numeric = "float32"):
        self.numeric: Numeric = numeric
        self.mma_count = 0

    def mma(self, op: Mma, ctas: Sequence[Cta]) -> None:
        """Execute one instruction.

        Args:
          ctas: the issuing CTA, or the even and the odd CTA of the pair for cta_group 2.

        Raises:
          Fault: a descriptor, an address or the form is not legal; nothing was written.
        """
        self._run((op,), ctas)

    def mma_sequence(self, ops: Sequence[Mma], ctas: Sequence[Cta]) -> None:
        """Execute instructions in order; K-steps on one accumulator share their operand fetches.

        The result equals that of `mma` one by one, bit for bit.
        """
        first = 0
        while first < len(ops):
            last = first + 1
            if self.numeric == "float32" and ops[first].is_plain():
                while last < len(ops) and _continues(ops[first], ops[last]):
                    last += 1
                if last > first + 1 and _accumulator_overlaps_a(ops[first:last], ctas):
                    last = first + 1
            self._run(tuple(ops[first:last]), ctas)
            first = last

    def _run(self, ops: tuple[Mma, ...], ctas: Sequence[Cta]) -> None:
        """Execute `ops`: one instruction, or plain K-steps on one accumulator."""
        op = ops[0]
        ins = decode_instruction(op.idesc, op.kind, op.cta_group, op.ws, op.sparse)
        if len(ctas) != op.cta_group:
            raise Fault("tmem", f"cta_group::{op.cta_group} got {len(ctas)} CTA(s)")
        _check_operands(op, ins)
        b = _fetch_b(ops, ins, ctas)
        results = [
            self._product(ops, ins, ctas, rank, b, _accumulator(op, ins, cta))
            for rank, cta in enumerate(ctas)
        ]
        for rank, (cta, result) in enumerate(zip(ctas, results, strict=True)):
            _write(op, ins, cta, rank, result)
        self.mma_count += len(ops)

    def _product(
        self,
        ops: tuple[Mma, ...],
        ins: Instruction,
        ctas: Sequence[Cta],
        rank: int,
        b: F32,
        c: npt.NDArray[np.uint32] | None,
    ) -> npt.NDArray[np.uint32]:
        """Bits of the new D of one CTA: [banks, rows, N / banks]."""
        op, cta = ops[0], ctas[rank]
        a = _fetch_a(ops, ins, cta)
        if ins.negate_a != ins.negate_b:
            a = -a
        b = b.reshape(ins.banks, -1, b.shape[-1]) if ins.banks > 1 else b[None]
        scales = _fetch_scales(op, ins, cta) if op.kind in BLOCK_SCALED else None
        if ins.d_format == "s32":
            return _integer_product(a, b, c, ins.saturate)
        c_values = None if c is None else _c_values(c, ins.d_format, op.scale_d)
        if self.numeric == "fused":
            return _fused_product(ins, a, b, c_values, scales)
        return _float32_product(ins, a, b, c_values, scales, steps=len(ops))


def _continues(first: Mma, op: Mma) -> bool:
    return (
        op.enable_d
        and op.is_plain()
        and (op.kind, op.idesc, op.d, op.a_in_tmem, op.cta_group, op.ws)
        == (first.kind, first.idesc, first.d, first.a_in_tmem, first.cta_group, first.ws)
        and (not op.a_in_tmem or op.a >> 16 == first.a >> 16)
    )


def _accumulator_overlaps_a(ops: Sequence[Mma], ctas: Sequence[Cta]) -> bool:
    """Does a later step read, as A, columns of D that an earlier one wrote?"""
    op = ops[0]
    if not op.a_in_tmem:
        return False
    ins = decode_instruction(op.idesc, op.kind, op.cta_group, op.ws, op.sparse)
    low = op.d & 0xFFFF
    high = low + ins.n // ins.banks
    return any(low < (o.a & 0xFFFF) + 8 and (o.a & 0xFFFF) < high for o in ops)


def _check_operands(op: Mma, ins: Instruction) -> None:
    """Legality that is not in the instruction descriptor alone; spec-ptx 2.1 and 3.1."""
    d_lane = op.d >> 16
    allowed = (0, 16) if ins.layout in ("C", "F") else (0,)
    if d_lane not in allowed:
        raise Fault(
            "tmem",
            f"D of layout {ins.layout} (M={ins.m}) starts at lane {d_lane}; allowed: "
            f"{' or '.join(map(str, allowed))}",
            address=op.d,
        )
    if op.a_in_tmem:
        if ins.transpose_a:
            raise Fault("descriptor", "A in tensor memory must be K-major (bit 15 set)")
        if op.a >> 16 != d_lane:
            raise Fault(
                "tmem", f"A is at lane {op.a >> 16} and D at lane {d_lane}: they must agree"
            )
    if op.ashift and not (op.a_in_tmem and ins.m in (128, 256)):
        raise Fault("tmem", f".ashift needs A in tensor memory and M of 128 or 256, got M={ins.m}")
    if op.scale_d and op.kind not in ("f16", "tf32"):
        raise Fault("descriptor", f"scale-input-d is for kinds f16 and tf32, got {op.kind}")
    if not 0 <= op.scale_d <= 15:
        raise Fault("descriptor", f"scale-input-d must be 0..15, got {op.scale_d}")
    words = 4 * op.cta_group
    if op.lane_mask and len(op.lane_mask) != words:
        raise Fault("tmem", f"the lane mask has {len(op.lane_mask)} words, {words} are needed")


def _fetch_a(ops: tuple[Mma, ...], ins: Instruction, cta: Cta) -> F32:
    """A of one CTA: [banks or 1, rows, K * len(ops)]."""
    op = ops[0]
    packed = op.kind in ("mxf4", "mxf4nvf4")
    steps = tuple(o.a for o in ops)
    if op.a_in_tmem:
        a = tmem_operand(cta.tmem, ins, steps, packed_4_bit=packed)
        if op.ashift:
            a = np.concatenate([a[:, 1:], a[:, -1:]], axis=1)
    else:
        a = smem_operand(
            cta.shared,
            steps,
            architecture="sm_100",
            element=ins.a_format,
            mn_major=ins.transpose_a,
            mn_count=ins.rows_per_cta,
            k_bytes=OPERAND_K_BYTES,
            what="operand A",
            packed_4_bit=packed,
        )[None]
    if op.sparse:
        codes = read_metadata(cta.tmem, op.metadata, op.kind, ins)
        a = expand_sparse(a, codes, op.kind)
    return a


def _fetch_b(ops: tuple[Mma, ...], ins: Instruction, ctas: Sequence[Cta]) -> F32:
    """All of B: [N, K * len(ops)]; with a pair, CTA r holds columns r * N/2 onwards."""
    op = ops[0]
    columns = ins.n // len(ctas)
    mask = _ZeroMask.decode(op.zero_mask, ins) if op.ws and op.zero_mask else None
    fetched = columns + (mask.shift if mask else 0)
    steps = tuple(o.b for o in ops)
    parts = [
        smem_operand(
            cta.shared,
            steps,
            architecture="sm_100",
            element=ins.b_format,
            mn_major=ins.transpose_b,
            mn_count=-(-fetched // 8) * 8,
            k_bytes=OPERAND_K_BYTES * (2 if op.sparse else 1),
            what="operand B",
            packed_4_bit=op.kind in ("mxf4", "mxf4nvf4"),
        )
        for cta in ctas
    ]
    if mask is not None:
        shifted = parts[0][mask.shift : mask.shift + columns]
        return np.where(mask.zero_columns[:, None], np.float32(0), shifted)
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


@dataclass(frozen=True)
class _ZeroMask:
    """Zero-column mask of .ws, spec-ptx 2.3: columns that contribute nothing, and a shift of B."""

    zero_columns: npt.NDArray[np.bool_]
    shift: int

    @staticmethod
    def decode(descriptor: int, ins: Instruction) -> "_ZeroMask":
        bank_columns = ins.n // {128: 1, 64: 2, 32: 4}[ins.m]
        shift = (descriptor >> 56) & 0x3F
        largest = min(ins.max_shift, 16) if ins.m == 32 else ins.max_shift
        if shift > largest:
            raise Fault("descriptor", f"column shift {shift} exceeds the largest, {largest}")
        zero = np.zeros(ins.n, np.bool_)
        if (descriptor >> 39) & 1:
            skip = ((descriptor >> 40) & 0xFF) + 1
            use = ((descriptor >> 48) & 0xFF) + 1
            for n in range(ins.n):
                bank = n // bank_columns
                skip_first = (descriptor >> (32 + bank)) & 1
                start = min((descriptor >> (8 * bank)) & 0xFF, (skip if skip_first else use) - 1)
                p = (n % bank_columns + start) % (use + skip)
                zero[n] = p < skip if skip_first else p >= use
        return _ZeroMask(zero, shift)


def _fetch_scales(op: Mma, ins: Instruction, cta: Cta) -> tuple[F32, F32]:
    """Block scales of A [rows, per_row] and of B [N, per_row] as this CTA sees them."""
    per_row = op.scale_vec or SCALE_VECTORS[op.kind][0]
    if per_row not in SCALE_VECTORS[op.kind]:
        raise Fault("descriptor", f"scale_vec::{per_row}X is not legal for kind::{op.kind}")
    for name, first in (("A", ins.sfa_id), ("B", ins.sfb_id)):
        if first + per_row > 4 or (per_row == 2 and first not in (0, 2)):
            raise Fault("descriptor", f"scale id {first} of {name} with scale_vec::{per_row}X")

    def fetch(
        address: int,
        first_byte: int,
        count: int,
        lane: int,
        reads: npt.NDArray[np.bool_],
        what: str,
    ) -> F32:
        return scale_operand(
            cta.tmem,
            address,
            first_byte=first_byte,
            count=count,
            per_row=per_row,
            scale_format=ins.scale_format,
            first_lane=lane,
            reads=reads,
            what=what,
        )

    columns = -(-ins.rows_per_cta // 32)
    own_quarter = np.ones((4, columns), np.bool_)
    if ins.layout in ("A", "B", "D"):  # rows 32 c and up lie in quarter c, and in c + 2 of layout B
        own_quarter = np.arange(4)[:, None] % columns == np.arange(columns)
    a = fetch(op.sfa, ins.sfa_id, ins.rows_per_cta, 0, own_quarter, "scales of A")
    parts = 2 if ins.layout == "B" else 1
    all_of = np.ones((4 // parts, -(-ins.n // parts // 32)), np.bool_)
    b = [
        fetch(op.sfb, ins.sfb_id, ins.n // parts, lane, all_of, "scales of B")
        for lane in range(0, 128, 128 // parts)
    ]
    return a, np.concatenate(b)


def _accumulator(op: Mma, ins: Instruction, cta: Cta) -> npt.NDArray[np.uint32] | None:
    """D's cells as an input, [banks, rows, N / banks], or None; checks the columns either way."""
    columns = ins.n // ins.banks
    start = op.d & 0xFFFF
    cta.tmem.check_columns(start, columns, what="accumulator D")
    if not op.enable_d:
        return None
    lane = op.d >> 16
    watch_rows(cta.tmem, ins.layout, lane, start, columns, is_write=False)
    cells = lane_view(cta.tmem.cells, ins.layout, lane, start, columns)
    return cells.reshape(ins.banks, -1, columns)


def _c_values(cells: npt.NDArray[np.uint32], d_format: str, scale_d: int) -> F32:
    if d_format == "f16":
        values = cells.astype(np.uint16).view(np.float16).astype(np.float32)
    else:
        values = cells.view(np.float32)
    return np.ldexp(values, -scale_d) if scale_d else values


def _float32_product(
    ins: Instruction,
    a: F32,
    b: F32,
    c: F32 | None,
    scales: tuple[F32, F32] | None,
    *,
    steps: int,
) -> npt.NDArray[np.uint32]:
    """A product per K-step, added up in order, so that joining steps changes no bit."""
    width = a.shape[-1] // steps
    product = c
    with np.errstate(over="ignore", invalid="ignore"):
        for first in range(0, a.shape[-1], width):
            part = slice(first, first + width)
            if scales is None:
                step = row_blocked(a[..., part], b[..., part].transpose(0, 2, 1))
            else:
                step = _scaled_product(a, b, *scales)
            product = step if product is None else np.add(step, product, out=step)
        assert product is not None
        if ins.d_format == "f16":
            return product.astype(np.float16).view(np.uint16).astype(np.uint32)
    return product.view(np.uint32)


def _scaled_product(a: F32, b: F32, a_scale: F32, b_scale: F32) -> F32:
    """Block-scaled product in float64, because a scaled operand can leave float32's range."""
    repeat = a.shape[-1] // a_scale.shape[-1]
    scaled_a = a * np.repeat(a_scale.astype(np.float64), repeat, axis=-1)
    repeated_b = np.repeat(b_scale.astype(np.float64), repeat, axis=-1)
    scaled_b = b * repeated_b.reshape(b.shape)
    return (scaled_a @ scaled_b.transpose(0, 2, 1)).astype(np.float32)


def _fused_product(
    ins: Instruction, a: F32, b: F32, c: F32 | None, scales: tuple[F32, F32] | None
) -> npt.NDArray[np.uint32]:
    banks = ins.banks
    columns = b.shape[1]
    packed = ins.kind in ("mxf4", "mxf4nvf4")
    results: list[npt.NDArray[np.uint32]] = []
    for q in range(banks):
        a_q = a[q % a.shape[0]]
        c_q = np.zeros((a_q.shape[0], columns), np.float32) if c is None else c[q]
        exact = numerics.fused_dot(
            a_q,
            b[q],
            c_q,
            a_format=ins.a_format,
            b_format=ins.b_format,
            c_format=ins.d_format,
            align_bits=numerics.ALIGN_BITS_MXF4 if packed else numerics.ALIGN_BITS,
            a_scale=None if scales is None else scales[0],
            b_scale=None if scales is None else scales[1][q * columns : (q + 1) * columns],
            scale_format=ins.scale_format,
            group=16 if packed else 1,
        )
        bits = numerics.to_f16_bits(exact) if ins.d_format == "f16" else numerics.to_f32_bits(exact)
        results.append(bits)
    return np.stack(results)


def _integer_product(
    a: F32, b: F32, c: npt.NDArray[np.uint32] | None, saturate: bool
) -> npt.NDArray[np.uint32]:
    """int32 accumulation; float64 holds every sum of 8-bit products exactly."""
    total = (a.astype(np.float64) @ b.astype(np.float64).transpose(0, 2, 1)).astype(np.int64)
    if c is not None:
        total += c.view(np.int32)
    if saturate:
        total = np.clip(total, -(1 << 31), (1 << 31) - 1)
    return total.astype(np.int32).view(np.uint32)


def _write(op: Mma, ins: Instruction, cta: Cta, rank: int, result: npt.NDArray[np.uint32]) -> None:
    """Store D through its layout, except for masked lanes.

    Sums with cells that were never written are undefined as well.
    """
    columns = ins.n // ins.banks
    lane, start = op.d >> 16, op.d & 0xFFFF
    cells = lane_view(cta.tmem.cells, ins.layout, lane, start, columns)
    written = lane_view(cta.tmem.written, ins.layout, lane, start, columns)
    result = result.reshape(cells.shape)
    watch_rows(cta.tmem, ins.layout, lane, start, columns, is_write=True)
    if not any(op.lane_mask):
        cells[...] = result
        written[...] |= not op.enable_d
        return
    words = np.array(op.lane_mask[4 * rank : 4 * rank + 4], np.uint32)
    masked_out = np.unpackbits(words.view(np.uint8), bitorder="little").astype(np.bool_)
    masked_rows = lane_view(masked_out[:, None], ins.layout, lane, 0, 1)
    cells[...] = np.where(masked_rows, cells, result)
    written[...] |= ~masked_rows & (not op.enable_d)
