"""A kernel in PTX that copies boxes by any recipe and leaves them as shared memory holds them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from attn_mlir.runtime.file.fields import DTYPE_BYTES
from attn_mlir.runtime.file.recipes import SWIZZLE_BYTES
from attn_mlir.runtime.kernel import Kernel
from attn_mlir.validation.tiny import assembled, kernel_of_text

GATHERED = 4  # rows of a copy; PTX ISA, cp.async.bulk.tensor, tile::gather4
UNIT_BYTES = 16  # that a swizzle moves in one piece

# One thread of each CTA loads a box, then copies its bytes to the row of `y` that is the CTA's.
_PTX = """\
.version 8.6
.target TARGET
.address_size 64

.visible .entry move_boxes(
    .param .align 64 .b8 x[128], .param .u64 where, .param .u64 y)
.reqntid 32, 1, 1
{
    .reg .pred %p<3>;
    .reg .b32 %r<16>;
    .reg .b64 %rd<12>;
    .shared .align 1024 .b8 box[BYTES];
    .shared .align 8 .b64 arrived;
    mov.u32 %r1, %tid.x;
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra DONE;
    mov.b64 %rd1, x;
    cvta.param.u64 %rd2, %rd1;
    ld.param.u64 %rd3, [where];
    ld.param.u64 %rd4, [y];
    mov.u32 %r2, %ctaid.x;
    mul.wide.u32 %rd5, %r2, WIDTH;
    add.u64 %rd6, %rd3, %rd5;
    mul.wide.u32 %rd7, %r2, BYTES;
    add.u64 %rd8, %rd4, %rd7;
LOADS
    mov.u32 %r3, box;
    mov.u32 %r4, arrived;
    mbarrier.init.shared::cta.b64 [%r4], 1;
    fence.mbarrier_init.release.cluster;
    mbarrier.arrive.expect_tx.shared::cta.b64 %rd9, [%r4], BYTES;
    cp.async.bulk.tensor.RANKd.shared::cluster.global.MODE.mbarrier::complete_tx::bytes
        [%r3], [%rd2, {PLACE}], [%r4];
WAIT:
    mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r4], 0;
    @!%p2 bra WAIT;
    cp.async.bulk.global.shared::cta.bulk_group [%rd8], [%r3], BYTES;
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group 0;
DONE:
    ret;
}
"""


def byte_count(recipe: Mapping[str, Any], dtype: str, *, gathers: bool) -> int:
    """Bytes that a copy by a recipe brings."""
    copied = math.prod(recipe["box"]) * DTYPE_BYTES[recipe.get("dtype", dtype)]
    return GATHERED * copied if gathers else copied


def move_boxes(
    recipe: Mapping[str, Any], dtype: str, shape: Sequence[int | str], target: str, *, gathers: bool
) -> Kernel:
    """`move_boxes(x, where, y)`: box i of x begins at where[i] (i32), and its bytes go to y[i] (u8).

    Args:
      recipe: the fields `box`, `dims`, `swizzle` and so on of the tensor map.
      dtype, shape: of x; names are sizes of a call.
      gathers: the copies take four rows, at a column and four numbers of rows.
    """
    copied, rank = byte_count(recipe, dtype, gathers=gathers), len(recipe["box"])
    numbers = range(1 + GATHERED if gathers else rank)
    ptx = _PTX
    for word, text in {
        "BYTES": copied,
        "WIDTH": 4 * len(numbers),
        "LOADS": "\n".join(f"    ld.global.b32 %r{5 + n}, [%rd6+{4 * n}];" for n in numbers),
        "RANK": rank,
        "MODE": "tile::gather4" if gathers else "tile",
        "PLACE": ", ".join(f"%r{5 + n}" for n in numbers),
    }.items():
        ptx = ptx.replace(word, str(text))
    names = [extent for extent in shape if isinstance(extent, str)]
    manifest: dict[str, Any] = {
        "schema": 1,
        "entry": "move_boxes",
        "target": target,
        "block": [32, 1, 1],
        "cluster": [1, 1, 1],
        "smem_bytes": 0,
        "grid": ["boxes", 1, 1],
        "symbols": [*names, "boxes"],
        "tensors": [
            {"name": "x", "role": "in", "dtype": dtype, "shape": list(shape),
             "unit_stride_axis": len(shape) - 1, "alignment_bytes": 16},
            {"name": "where", "role": "in", "dtype": "i32", "shape": ["boxes", len(numbers)],
             "unit_stride_axis": 1, "alignment_bytes": 4},
            {"name": "y", "role": "out", "dtype": "u8", "shape": ["boxes", copied],
             "unit_stride_axis": 1, "alignment_bytes": 16},
        ],
        "scalars": [],
        "params": [
            {"kind": "tensor_map", "tensor": "x", **recipe},
            {"kind": "pointer", "tensor": "where"},
            {"kind": "pointer", "tensor": "y"},
        ],
        "report": {},
        "versions": {},
    }  # fmt: skip
    text = json.dumps(manifest) + ptx
    return kernel_of_text("move_boxes", text, target, lambda: assembled(manifest, ptx, target))


def unswizzled(raw: npt.NDArray[np.uint8], swizzle: str) -> npt.NDArray[np.uint8]:
    """Boxes [boxes, bytes] in the order of their elements, from where a swizzle puts 16-byte units.

    A unit at byte `a` of a box lies at `a` with bits 4 and up XORed with those from bit 7 on, as many
    as the swizzle's span has units.
    """
    if swizzle == "none":
        return raw
    per_span = SWIZZLE_BYTES[swizzle] // UNIT_BYTES
    units = [unit ^ (unit >> 3 & per_span - 1) for unit in range(raw.shape[1] // UNIT_BYTES)]
    return raw.reshape(len(raw), -1, UNIT_BYTES)[:, units].reshape(raw.shape)
