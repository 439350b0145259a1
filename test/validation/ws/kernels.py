"""Kernels written in `ws` text: down to PTX, machine code and, on the emulator, numbers.

Their text needs no compiler, which a machine with a GPU may lack: MLIR is imported where it is used.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from attn_mlir.runtime.devices.emulator import EmulatorDevice
from attn_mlir.runtime.kernel import Kernel, load
from attn_mlir.tools import makes_machine_code


def normal(*shape: int, dtype: Any, seed: int = 0) -> Any:
    """Small multiples of 1/4: products and sums of a few hundred of them are exact in f32."""
    numbers = np.random.default_rng(seed).integers(-8, 9, shape)
    return (numbers / 4).astype(dtype)


def copy_op(op: str, first: str, second: str, coords: str, dims: str, kinds: str) -> str:
    count = len(coords.split(","))
    return f""""ws.{op}"({first}, {second}, {coords})
      {{dims = array<i32: {dims}>, operandSegmentSizes = array<i32: 1, 1, {count}>}}
      : ({kinds}{", i32" * count}) -> ()"""


def product(
    element: str, k: int, n: int, layout: str, rounds: int = 1, *, a_columns: int = 0
) -> str:
    """y = rounds x (a b): a [128, k], or [k, a_columns] as `km`, and b come by the copy engine, D
    leaves through threads."""
    b_rows, b_columns = (n, k) if layout == "nk" else (k, n)
    a_rows, width = (k, a_columns) if a_columns else (128, k)
    order = 'a_layout = "km", ' if a_columns else ""
    load = role(
        "load",
        f"""%sa = "ws.acquire"(%as, %c0) : (!as, i32) -> !a
    {copy_op("copy_in", "%a", "%sa", "%c0, %c0", "0, 1", f"memref<?x{width}x{element}>, !a")}
    "ws.commit"(%sa) {{by = "copy_engine"}} : (!a) -> ()
    %sb = "ws.acquire"(%bs, %c0) : (!bs, i32) -> !b
    {copy_op("copy_in", "%b", "%sb", "%c0, %c0", "0, 1", f"memref<?x{b_columns}x{element}>, !b")}
    "ws.commit"(%sb) {{by = "copy_engine"}} : (!b) -> ()""",
        first=4,
    )
    turns = f"""%n = arith.constant {rounds} : i32
    scf.for %i = %c0 to %n step %c1 : i32 {{
      %more = arith.cmpi sgt, %i, %c0 : i32
      "ws.mma"(%d, %sa, %sb, %more) {{{order}b_layout = "{layout}"}} : (!acc, !a, !b, i1) -> ()
    }}"""
    mma = role(
        "mma",
        f"""%sa = "ws.wait"(%as, %c0) : (!as, i32) -> !a
    %sb = "ws.wait"(%bs, %c0) : (!bs, i32) -> !b
    %d = "ws.acquire"(%accs, %c0) : (!accs, i32) -> !acc
    {turns}
    "ws.release"(%sa) {{by = "tensor_core"}} : (!a) -> ()
    "ws.release"(%sb) {{by = "tensor_core"}} : (!b) -> ()
    "ws.commit"(%d) {{by = "tensor_core"}} : (!acc) -> ()""",
        first=5,
    )
    rows = threads(
        """%d = "ws.wait"(%accs, %c0) : (!accs, i32) -> !acc
    %f = "ws.load"(%d) : (!acc) -> !full
    "ws.release"(%d) {by = "threads"} : (!acc) -> ()
    "ws.store_global"(%f, %y, %c0, %c0)
      {dims = array<i32: 0, 1>, operandSegmentSizes = array<i32: 1, 1, 2>}
      : (!full, memref<?x?xf32>, i32, i32) -> ()"""
    )
    return kernel(
        [
            ("a", "in", f"memref<?x{width}x{element}>", ("m", "")),
            ("b", "in", f"memref<?x{b_columns}x{element}>", ("kn", "")),
            ("y", "out", "memref<?x?xf32>", ("my", "n")),
        ],
        """  %as = "ws.alloc_ring"() {label_name = "a"} : () -> !as
  %bs = "ws.alloc_ring"() {label_name = "b"} : () -> !bs
  %accs = "ws.alloc_ring"() {label_name = "acc"} : () -> !accs"""
        + load
        + mma
        + rows,
        types=f"""!a = !ws.tile<vector<{a_rows}x{width}x{element}>, "shared">
!b = !ws.tile<vector<{b_rows}x{b_columns}x{element}>, "shared">
!acc = !ws.tile<vector<128x{n}xf32>, "tensor">
!as = !ws.ring<!a, 1, 1>
!bs = !ws.ring<!b, 1, 1>
!accs = !ws.ring<!acc, 1, 1>
""",
        columns=n,
    )


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
    from attn_mlir.dialect._mlir import ir, make_context
    from attn_mlir.passes.infrastructure.pipeline import run_pipeline

    module = ir.Module.parse(text, make_context())
    run_pipeline(module, pipeline)
    return module


def bundle(text: str, target: str = "sm_100a") -> bytes:
    """The bundle file of a kernel; without machine code with ATTN_MLIR_PTXAS=none."""
    return made(text, target, makes_machine_code())


@functools.lru_cache(maxsize=64)
def made(text: str, target: str, assembles: bool) -> bytes:
    """What `bundle` gives, with machine code or without."""
    from attn_mlir.lowering.assemble import bundle_bytes, ptx_of
    from attn_mlir.lowering.convert import UPSTREAM
    from attn_mlir.lowering.manifest import attached
    from attn_mlir.lowering.ptxas import assemble
    from attn_mlir.lowering.stages import nvvm_to_ptx, ws_to_nvvm

    steps = f"{ws_to_nvvm(target)},{UPSTREAM},{nvvm_to_ptx()}"
    module = lowered(text, steps)
    ((name, ptx),) = ptx_of(module).items()
    return bundle_bytes(attached(module)[name], ptx, assemble(ptx, target) if assembles else None)


def compiled(text: str, target: str = "sm_100a") -> Kernel:
    """The kernel, ready to be called."""
    return load(bundle(text, target))


def run(
    text: str,
    *arrays: Any,
    seed: int | None = None,
    target: str = "sm_100a",
    **scalars: float,
) -> None:
    """Runs a kernel on the emulator; a seed chooses an adversarial schedule."""
    device = EmulatorDevice() if seed is None else EmulatorDevice("adversarial", seed)
    compiled(text, target)(*arrays, device=device, **scalars)


def poison(*shape: int, dtype: Any = np.float32) -> Any:
    """An output array in which an element that is not written cannot pass."""
    return np.full(shape, np.nan, dtype)
