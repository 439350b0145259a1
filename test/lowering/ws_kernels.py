"""Kernels written in `ws` text: down to PTX, machine code and, on the emulator, numbers."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from attn_mlir.dialect._mlir import ir, make_context
from attn_mlir.lowering.assemble import bundle_bytes, ptx_of
from attn_mlir.lowering.convert import UPSTREAM
from attn_mlir.lowering.manifest import attached
from attn_mlir.lowering.pipelines import nvvm_to_ptx, ws_to_nvvm
from attn_mlir.lowering.ptxas import assemble
from attn_mlir.passes.infrastructure.pipeline import run_pipeline
from attn_mlir.runtime.devices.emulator import EmulatorDevice
from attn_mlir.runtime.kernel import Kernel, load

ROWS = 128  # rows of a fragment: one per thread of four warps

TYPES = """
!full = !ws.frag<vector<128x{columns}xf32>>
!row = !ws.frag<vector<128xf32>>
!cond = !ws.frag<vector<128xi1>>
"""


def role(
    label: str, body: str, *, first: int, warps: int = 1, lanes: int = 1, groups: int = 1
) -> str:
    """A `ws.role` whose body sees %g, its group, and constants %c0, %c1, %c64."""
    return f"""
  "ws.role"() ({{
  ^bb0(%g: i32):
    %c0 = arith.constant 0 : i32
    %c1 = arith.constant 1 : i32
    %c64 = arith.constant 64 : i32
    %no = arith.constant false
    %yes = arith.constant true
    {body}
  }}) {{label_name = "{label}", warps = array<i32: {first}, {warps}>, groups = {groups} : i64,
      lanes = {lanes} : i64, registers = 0 : i64}} : () -> ()"""


def threads(body: str) -> str:
    """A role of 128 threads, a fragment row each."""
    return role("rows", body, first=0, warps=4, lanes=32)


def kernel(
    arguments: Sequence[tuple[str, str, str, Sequence[str]]],
    body: str,
    *,
    types: str = "",
    columns: int = 64,
) -> str:
    """A module of one kernel `k`.

    Args:
      arguments: name, role, type and run-time size names of each.
      body: declarations and roles.
      types: further type aliases; !full, !row and !cond are there.
      columns: of !full.
    """

    def quoted(texts: Sequence[str]) -> str:
        return "[" + ", ".join(f'"{text}"' for text in texts) + "]"

    block = ", ".join(f"%{name}: {kind}" for name, _, kind, _ in arguments)
    dims = ", ".join(quoted(dims) for *_, dims in arguments)
    return f"""{TYPES.format(columns=columns)}{types}
"ws.kernel"() ({{
^bb0({block}):
{body}
}}) {{sym_name = "k", arg_names = {quoted([a[0] for a in arguments])},
    arg_roles = {quoted([a[1] for a in arguments])}, arg_dims = [{dims}]}} : () -> ()
"""


def lowered(text: str, pipeline: str) -> Any:
    """The module after a pipeline; keep it while its operations are in use."""
    module = ir.Module.parse(text, make_context())
    run_pipeline(module, pipeline)
    return module


@functools.lru_cache(maxsize=64)
def bundle(text: str, target: str = "sm_100a") -> bytes:
    """The bundle file of a kernel, machine code by ptxas included."""
    steps = f"{ws_to_nvvm(target)},{UPSTREAM},{nvvm_to_ptx()}"
    module = lowered(text, steps)
    ((name, ptx),) = ptx_of(module).items()
    return bundle_bytes(attached(module)[name], ptx, assemble(ptx, target))


def compiled(text: str, target: str = "sm_100a") -> Kernel:
    """The kernel, ready to be called."""
    return load(bundle(text, target))


def run(text: str, *arrays: Any, seed: int | None = None, **scalars: float) -> None:
    """Runs a kernel on the emulator; a seed chooses an adversarial schedule."""
    device = EmulatorDevice() if seed is None else EmulatorDevice("adversarial", seed)
    compiled(text)(*arrays, device=device, **scalars)


def poison(*shape: int, dtype: Any = np.float32) -> Any:
    """An output array in which an element that is not written cannot pass."""
    return np.full(shape, np.nan, dtype)
