"""Tiny bundles from hand-written PTX, so that the runtime is tested without the compiler."""

from __future__ import annotations

import copy
import hashlib
import io
import json
import os
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from attn_mlir.tools import find_ptxas

# Tests neither fill nor trust the cache of whoever runs them.
ROOT = Path(__file__).resolve().parent.parent
os.environ["ATTN_MLIR_CACHE_DIR"] = str(ROOT / "build" / "test-cache")
# Every kernel that a test runs on the emulator device is checked for races and the like.
os.environ.setdefault("ATTN_MLIR_CHECK", "all")

SCALE_PTX = """\
.version 8.6
.target TARGET
.address_size 64

.visible .entry scale_rows(
    .param .u64 x, .param .u64 y, .param .u64 x_stride, .param .u64 y_stride,
    .param .u32 cols, .param .f32 factor)
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
    ld.param.f32 %f1, [factor];
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


def pack_bundle(manifest: dict[str, Any], ptx: str, cubin: bytes, **changes: object) -> bytes:
    """The bytes of a bundle file, hashes filled in; `changes` replace fields afterwards."""
    fields = copy.deepcopy(manifest)
    fields["sha256"] = hashlib.sha256(cubin).hexdigest()
    fields["sha256_ptx"] = hashlib.sha256(ptx.encode()).hexdigest()
    fields.update(changes)
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("kernel.cubin", cubin)
        archive.writestr("kernel.ptx", ptx)
        archive.writestr("bundle.json", json.dumps(fields))
    return stream.getvalue()


def assemble(ptx: str, target: str, folder: Path) -> bytes:
    """Machine code by ptxas: the PTX of these tests is real."""
    source, result = folder / "kernel.ptx", folder / "kernel.cubin"
    source.write_text(ptx)
    subprocess.run([find_ptxas(), f"-arch={target}", source, "-o", result], check=True)
    return result.read_bytes()


def _bundles(
    factory: pytest.TempPathFactory, manifest: dict[str, Any], template: str
) -> dict[str, bytes]:
    made: dict[str, bytes] = {}
    for target in ("sm_90a", "sm_100a"):
        ptx = template.replace("TARGET", target)
        cubin = assemble(ptx, target, factory.mktemp(target))
        made[target] = pack_bundle(manifest, ptx, cubin, target=target)
    return made


@pytest.fixture(scope="session")
def scale_bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Bundle files of a kernel that multiplies f32[rows, cols], by target."""
    return _bundles(tmp_path_factory, SCALE_MANIFEST, SCALE_PTX)


@pytest.fixture(scope="session")
def tma_bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Bundle files of a kernel that copies f16[rows, cols] by TMA, by target."""
    return _bundles(tmp_path_factory, TMA_MANIFEST, TMA_PTX)


@pytest.fixture
def scale_manifest() -> dict[str, Any]:
    """A fresh copy of the scale kernel's manifest, complete with hashes."""
    fields = copy.deepcopy(SCALE_MANIFEST)
    return {**fields, "sha256": "0" * 64, "sha256_ptx": "0" * 64}


@pytest.fixture
def tma_manifest() -> dict[str, Any]:
    """A fresh copy of the TMA kernel's manifest, complete with hashes."""
    fields = copy.deepcopy(TMA_MANIFEST)
    return {**fields, "sha256": "0" * 64, "sha256_ptx": "0" * 64}


@pytest.fixture
def pack() -> Pack:
    """`pack_bundle` for a scale kernel with fields replaced, without machine code."""

    def make(**changes: object) -> bytes:
        ptx = SCALE_PTX.replace("TARGET", str(changes.get("target", "sm_100a")))
        return pack_bundle(SCALE_MANIFEST, ptx, b"no machine code", **changes)

    return make
