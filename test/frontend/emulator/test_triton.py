"""Kernels of Triton on the emulator: what its launcher passes beside the arguments."""

from __future__ import annotations

import json
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from attn_mlir import emulator
from attn_mlir.errors import SpecError

# out[program, thread] = 2 * thread, by way of 4 bytes of scratch for each thread of a program
PTX = """
.version 8.6
.target sm_90a
.address_size 64
.extern .shared .align 16 .b8 global_smem[];
.visible .entry doubled(
  .param .u64 .ptr .global .align 1 doubled_param_0,
  .param .u32 doubled_param_1,
  .param .u64 .ptr .global .align 1 doubled_param_2,
  .param .u64 .ptr .global .align 1 doubled_param_3
)
.maxntid 64
{
  .reg .b32 %r<12>;
  .reg .b64 %rd<12>;
  ld.param.u64 %rd1, [doubled_param_0];
  ld.param.u32 %r1, [doubled_param_1];
  ld.param.u64 %rd2, [doubled_param_2];
  mov.u32 %r2, %tid.x;
  mov.u32 %r3, %ctaid.x;
  mad.lo.u32 %r4, %r3, 64, %r2;
  mul.wide.u32 %rd3, %r4, 4;
  add.s64 %rd4, %rd2, %rd3;
  st.global.u32 [%rd4], %r2;
  ld.global.u32 %r5, [%rd4];
  shl.b32 %r6, %r2, 2;
  mov.u32 %r7, global_smem;
  add.u32 %r7, %r7, %r6;
  st.shared.u32 [%r7], %r5;
  ld.shared.u32 %r8, [%r7];
  mul.lo.u32 %r9, %r8, %r1;
  add.s64 %rd5, %rd1, %rd3;
  st.global.u32 [%rd5], %r9;
  ret;
}
"""
METADATA: dict[str, Any] = {
    "name": "doubled", "num_warps": 2, "num_ctas": 1, "cluster_dims": [1, 1, 1], "shared": 256,
    "global_scratch_size": 256, "profile_scratch_size": 0,
}  # fmt: skip
WANTED = np.tile(2 * np.arange(64, dtype=np.uint32), 3)


def compiled(**changed: Any) -> Any:
    fields = METADATA | changed
    metadata = namedtuple("KernelMetadata", fields)(**fields)
    return SimpleNamespace(asm={"ptx": PTX}, metadata=metadata)


@pytest.mark.parametrize("kind", ["object", "cache"])
def test_hidden_parameters(kind: str, tmp_path: Path) -> None:
    source: Any = compiled()
    if kind == "cache":
        source = tmp_path / "doubled.json"
        source.write_text(json.dumps(METADATA))
        source.with_suffix(".ptx").write_text(PTX)
    kernel = emulator.load_triton(source)
    assert (kernel.block, kernel.cluster, kernel.shared_bytes) == (64, (1, 1, 1), 256)
    out = np.zeros(3 * 64, np.uint32)
    report = kernel.launch(out, 2, grid=(3,))
    assert report.error is None and not report.findings
    assert np.array_equal(out, WANTED)


def test_programs_of_several_ctas() -> None:
    """The grid of the hardware counts CTAs, that of Triton programs; scratch is of each CTA."""
    kernel = emulator.load_triton(compiled(num_ctas=2, cluster_dims=[2, 1, 1]))
    out = np.zeros(4 * 64, np.uint32)
    assert kernel.launch(out, 2, grid=2).error is None
    assert np.array_equal(out, np.tile(WANTED[:64], 4))


def test_too_little_scratch_is_found() -> None:
    """The checkers see what a wrong launcher would have broken."""
    kernel = emulator.load_triton(compiled(global_scratch_size=128))
    report = kernel.launch(np.zeros(64, np.uint32), 2, grid=1)
    assert report.error is not None or report.findings


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (None, "^expected a kernel that Triton compiled, or the path of its .json, got None"),
        (compiled(name=3), "^Triton's metadata have no name, got 3"),
        (compiled(shared=None), "^shared of Triton's metadata must be an integer, got None"),
        (compiled(cluster_dims=[1]), "^cluster_dims of Triton's metadata must be 3"),
        ("nowhere.json", "^cannot read Triton's kernel nowhere.json"),
    ],
)
def test_other_things_are_refused(source: Any, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        emulator.load_triton(source)


@pytest.mark.parametrize("count", [1, 5])
def test_other_numbers_of_arguments_are_refused(count: int) -> None:
    kernel = emulator.load_triton(compiled())
    with pytest.raises(SpecError, match=f"got {count} arguments; leave constants out"):
        kernel.launch(*[1] * count, grid=1)
