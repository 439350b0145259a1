"""Two tiny kernels in hand-written PTX with their manifests: bundles that need ptxas and no compiler."""

from __future__ import annotations

import copy
import hashlib
import io
import json
import zipfile
from collections.abc import Callable
from typing import Any

from attn_mlir.compiling.compiler import cached
from attn_mlir.files import scratch_folder
from attn_mlir.runtime.kernel import Kernel
from attn_mlir.tools import find_ptxas, makes_machine_code, run_tool

TARGETS = ("sm_90a", "sm_100a")  # that they are assembled for

SCALE_PTX = """\
.version 8.6
.target TARGET
.address_size 64

.visible .entry scale_rows(
    .param .u64 x, .param .u64 y, .param .u64 x_stride, .param .u64 y_stride,
    .param .u32 cols, .param .f32 scale)
.reqntid 128, 1, 1
{
    .reg .pred %p<3>;
    .reg .b32 %r<8>;
    .reg .b64 %rd<16>;
    .reg .f32 %f<4>;
    ld.param.u64 %rd1, [x];
    ld.param.u64 %rd2, [y];
    ld.param.u64 %rd3, [x_stride];
    ld.param.u64 %rd4, [y_stride];
    ld.param.u32 %r1, [cols];
    ld.param.f32 %f1, [scale];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %tid.x;
    cvt.u64.u32 %rd5, %r2;
    mul.lo.u64 %rd6, %rd5, %rd3;
    mul.lo.u64 %rd7, %rd5, %rd4;
LOOP:
    setp.ge.u32 %p1, %r3, %r1;
    @%p1 bra DONE;
    cvt.u64.u32 %rd8, %r3;
    add.u64 %rd9, %rd6, %rd8;
    shl.b64 %rd10, %rd9, 2;
    add.u64 %rd11, %rd1, %rd10;
    ld.global.f32 %f2, [%rd11];
    mul.f32 %f3, %f2, %f1;
    add.u64 %rd12, %rd7, %rd8;
    shl.b64 %rd13, %rd12, 2;
    add.u64 %rd14, %rd2, %rd13;
    st.global.f32 [%rd14], %f3;
    add.u32 %r3, %r3, 128;
    bra LOOP;
DONE:
    ret;
}
"""

SCALE_MANIFEST: dict[str, Any] = {
    "schema": 1,
    "entry": "scale_rows",
    "target": "sm_100a",
    "block": [128, 1, 1],
    "cluster": [1, 1, 1],
    "smem_bytes": 0,
    "grid": ["rows", 1, 1],
    "symbols": ["rows", "cols"],
    "tensors": [
        {"name": "x", "role": "in", "dtype": "f32", "shape": ["rows", "cols"],
         "unit_stride_axis": 1, "alignment_bytes": 4},
        {"name": "y", "role": "out", "dtype": "f32", "shape": ["rows", "cols"],
         "unit_stride_axis": 1, "alignment_bytes": 4},
    ],
    "scalars": [{"name": "scale", "dtype": "f32", "default": 2.0, "min_exclusive": 0.0}],
    "params": [
        {"kind": "pointer", "tensor": "x"},
        {"kind": "pointer", "tensor": "y"},
        {"kind": "stride", "tensor": "x", "axis": 0, "type": "i64"},
        {"kind": "stride", "tensor": "y", "axis": 0, "type": "i64"},
        {"kind": "symbol", "symbol": "cols", "type": "i32"},
        {"kind": "scalar", "scalar": "scale", "type": "f32"},
    ],
    "report": {"registers": 12, "spill_bytes": 0, "stages": []},
    "versions": {"attn_mlir": "0.1.0", "ptxas": "13.5.37"},
}  # fmt: skip

# One CTA moves one box of 8 rows and 64 columns of f16: TMA in, TMA out, in one thread.
TMA_PTX = """\
.version 8.6
.target TARGET
.address_size 64

.visible .entry copy_boxes(
    .param .align 64 .b8 source[128], .param .align 64 .b8 destination[128])
.reqntid 32, 1, 1
{
    .reg .pred %p<4>;
    .reg .b32 %r<8>;
    .reg .b64 %rd<8>;
    .shared .align 1024 .b8 tile[1024];
    .shared .align 8 .b64 arrived;
    mov.u32 %r1, %tid.x;
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra DONE;
    mov.b64 %rd1, source;
    mov.b64 %rd2, destination;
    cvta.param.u64 %rd3, %rd1;
    cvta.param.u64 %rd4, %rd2;
    mov.u32 %r2, tile;
    mov.u32 %r3, arrived;
    mov.u32 %r4, %ctaid.x;
    shl.b32 %r5, %r4, 6;
    mov.u32 %r6, %ctaid.y;
    shl.b32 %r7, %r6, 3;
    mbarrier.init.shared::cta.b64 [%r3], 1;
    fence.mbarrier_init.release.cluster;
    mbarrier.arrive.expect_tx.shared::cta.b64 %rd5, [%r3], 1024;
    cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes
        [%r2], [%rd3, {%r5, %r7}], [%r3];
WAIT:
    mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r3], 0;
    @!%p2 bra WAIT;
    fence.proxy.async.shared::cta;
    cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%rd4, {%r5, %r7}], [%r2];
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group 0;
DONE:
    ret;
}
"""


def _boxes(tensor: str) -> dict[str, Any]:
    return {
        "kind": "tensor_map", "tensor": tensor, "box": [64, 8], "swizzle": "128B",
        "dims": [{"extent": "cols", "axis": 1, "step": 1}, {"extent": "rows", "axis": 0, "step": 1}],
    }  # fmt: skip


TMA_MANIFEST: dict[str, Any] = {
    "schema": 1,
    "entry": "copy_boxes",
    "target": "sm_100a",
    "block": [32, 1, 1],
    "cluster": [1, 1, 1],
    "smem_bytes": 0,
    "grid": [["ceildiv", "cols", 64], ["ceildiv", "rows", 8], 1],
    "symbols": ["rows", "cols"],
    "tensors": [
        {"name": "source", "role": "in", "dtype": "f16", "shape": ["rows", "cols"],
         "unit_stride_axis": 1, "alignment_bytes": 16},
        {"name": "destination", "role": "out", "dtype": "f16", "shape": ["rows", "cols"],
         "unit_stride_axis": 1, "alignment_bytes": 16},
    ],
    "scalars": [],
    "params": [_boxes("source"), _boxes("destination")],
    "report": {},
    "versions": {},
}  # fmt: skip

Pack = Callable[..., bytes]


def pack_bundle(
    manifest: dict[str, Any], ptx: str, cubin: bytes | None, **changes: object
) -> bytes:
    """The bytes of a bundle file, hashes filled in; `changes` replace fields afterwards."""
    fields = copy.deepcopy(manifest)
    fields["sha256"] = None if cubin is None else hashlib.sha256(cubin).hexdigest()
    fields["sha256_ptx"] = hashlib.sha256(ptx.encode()).hexdigest()
    fields.update(changes)
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
        if cubin is not None:
            archive.writestr("kernel.cubin", cubin)
        archive.writestr("kernel.ptx", ptx)
        archive.writestr("bundle.json", json.dumps(fields))
    return stream.getvalue()


def assembled(manifest: dict[str, Any], template: str, target: str) -> bytes:
    """The bundle file of a kernel for a target; without machine code with ATTN_MLIR_PTXAS=none.

    Raises:
      TargetError: there is no ptxas.
    """
    ptx = template.replace("TARGET", target)
    if not makes_machine_code():
        return pack_bundle(manifest, ptx, None, target=target, report={}, versions={})
    with scratch_folder() as folder:
        source, result = folder / "kernel.ptx", folder / "kernel.cubin"
        source.write_text(ptx)
        done = run_tool([find_ptxas(), f"-arch={target}", source, "-o", result])
        assert done.returncode == 0, done.stderr
        return pack_bundle(manifest, ptx, result.read_bytes(), target=target)


def scale_kernel(target: str) -> Kernel:
    """`scale_rows(x, y, scale=2)`: y = scale x, f32 [rows, cols]; made here or looked up."""
    return kernel_of_text(
        "scale_rows", SCALE_PTX, target, lambda: assembled(SCALE_MANIFEST, SCALE_PTX, target)
    )


def copy_kernel(target: str) -> Kernel:
    """`copy_boxes(source, destination)`: f16 [rows, cols] by TMA; made here or looked up."""
    return kernel_of_text(
        "copy_boxes", TMA_PTX, target, lambda: assembled(TMA_MANIFEST, TMA_PTX, target)
    )


def kernel_of_text(entry: str, text: str, target: str, make: Callable[[], bytes]) -> Kernel:
    """A kernel that no request describes, from the cache or, without a compiler, ATTN_MLIR_BUNDLES.

    Args:
      entry: its entry point.
      text: what it is made of: another text is another kernel.
      make: gives the bytes of the bundle file.
    """
    digest = hashlib.sha256(text.encode()).hexdigest()
    request = json.dumps({"op": "text", "sha256": digest}, sort_keys=True, separators=(",", ":"))
    return Kernel(cached(entry, request, target, make))
