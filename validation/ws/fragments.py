"""One kernel per layout of fragments, which puts a fragment through everything that `ws` has for it.

    y = keep(2^(x - row maximum), w), also through shared memory in 32 and 16 bits
    z = 1 + sum of y over a row

so that a wrong place of any element shows in y or z. `python -m attn_mlir.validation.ws.fragments`
with `--write DIR` makes the bundles where the compiler is, and with `DIR` runs them where the GPU
is, with numpy alone.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

HIDDEN = np.float32(-7.0)


@dataclass(frozen=True)
class Case:
    """A fragment's extents and the warps that hold it, from which its layout follows.

    Attributes:
      rows, columns: of the fragment.
      first, warps: of the role.
    """

    rows: int
    columns: int
    first: int
    warps: int


CASES = {
    "one row per thread": Case(128, 96, 0, 4),
    "one row per thread, a warp": Case(32, 40, 3, 1),
    "wgmma accumulator": Case(64, 80, 4, 4),
    "wgmma accumulator, 8 columns": Case(64, 8, 0, 4),
    "mma.sync accumulator": Case(16, 64, 2, 1),
}

ARGUMENTS = [
    ("x", "in", "memref<?x?xf32>", ("m", "n")),
    ("w", "in", "memref<?x?xi32>", ("mw", "nw")),
    ("y", "out", "memref<?x?xf32>", ("my", "ny")),
    ("h", "out", "memref<?x?xf16>", ("mh", "nh")),
    ("z", "out", "memref<?xf32>", ("mz",)),
]


def text(case: Case) -> str:
    """The kernel; y and z are written from row 3 on, so that rows at the end are left out."""
    from attn_mlir.validation.ws.kernels import kernel, role  # needs the compiler

    rows, columns = case.rows, case.columns
    words = -(-columns // 32)
    types = f"""
!f = !ws.frag<vector<{rows}x{columns}xf32>>
!n = !ws.frag<vector<{rows}x{columns}xf16>>
!r = !ws.frag<vector<{rows}xf32>>
!b = !ws.frag<vector<{rows}x{words}xi32>>
!t = !ws.tile<vector<{rows}x{columns}xf32>, "shared">
!tn = !ws.tile<vector<{rows}x{columns}xf16>, "shared">
!tr = !ws.tile<vector<{rows}xf32>, "shared">
"""
    buffers = "".join(
        f'  %b{kind} = "ws.alloc_buffer"() {{label_name = "{kind}"}} : () -> !ws.buffer<!{kind}, 1>\n'
        for kind in ("t", "tn", "tr")
    )

    def element(tensor: str, kind: str, fragment: str) -> str:
        return f"""%{tensor}f = "ws.map"() ({{
    ^bb0(%i: i32, %j: i32):
      %v = "ws.element"(%{tensor}, %i, %j) {{operandSegmentSizes = array<i32: 1, 2>}} : (memref<?x?x{kind}>, i32, i32) -> {kind}
      "ws.yield"(%v) : ({kind}) -> ()
    }}) {{operandSegmentSizes = array<i32: 0>}} : () -> {fragment}
    """

    def through(kind: str, fragment: str, name: str) -> str:
        return f"""%p{kind} = "ws.at"(%b{kind}, %c0) : (!ws.buffer<!{kind}, 1>, i32) -> !{kind}
    "ws.store"(%{name}, %p{kind}) : ({fragment}, !{kind}) -> ()
    "ws.barrier"() : () -> ()
    %{name}2 = "ws.load"(%p{kind}) : (!{kind}) -> {fragment}
    """

    def out(name: str, tensor: str, kind: str, fragment: str) -> str:
        return f""""ws.store_global"(%{name}, %{tensor}, %c3, %c0)
      {{dims = array<i32: 0, 1>, operandSegmentSizes = array<i32: 1, 1, 2>}}
      : ({fragment}, memref<?x?x{kind}>, i32, i32) -> ()
    """

    body = f"""%c3 = arith.constant 3 : i32
    %zero = arith.constant 0.0 : f32
    %one = arith.constant 1.0 : f32
    %hidden = arith.constant {HIDDEN} : f32
    %minus_inf = arith.constant 0xFF800000 : f32
    {element("x", "f32", "!f")}{element("w", "i32", "!b")}
    %low = "ws.fill"(%minus_inf) : (f32) -> !r
    %top = "ws.reduce"(%xf, %low) {{kind = "max"}} : (!f, !r) -> !r
    {through("tr", "!r", "top")}
    %tops = "ws.broadcast"(%top2) : (!r) -> !f
    %less = "ws.map"(%xf, %tops) ({{
    ^bb0(%a: f32, %c: f32, %i: i32, %j: i32):
      %d = arith.subf %a, %c : f32
      "ws.yield"(%d) : (f32) -> ()
    }}) {{operandSegmentSizes = array<i32: 2>}} : (!f, !f) -> !f
    %p = "ws.exp2"(%less) {{fma_period = 0 : i64, fma_count = 0 : i64, fma_begin = 0 : i64, fma_end = 0 : i64}} : (!f) -> !f
    %k = "ws.keep"(%p, %wf, %hidden) : (!f, !b, f32) -> !f
    {through("t", "!f", "k")}
    %ones = "ws.fill"(%one) : (f32) -> !r
    %sum = "ws.reduce"(%k2, %ones) {{kind = "add"}} : (!f, !r) -> !r
    %half = "ws.map"(%k2) ({{
    ^bb0(%a: f32, %i: i32, %j: i32):
      %d = arith.truncf %a : f32 to f16
      "ws.yield"(%d) : (f16) -> ()
    }}) {{operandSegmentSizes = array<i32: 1>}} : (!f) -> !n
    {through("tn", "!n", "half")}
    {out("k2", "y", "f32", "!f")}{out("half2", "h", "f16", "!n")}
    "ws.store_global"(%sum, %z, %c3) {{dims = array<i32: 0>, operandSegmentSizes = array<i32: 1, 1, 1>}}
      : (!r, memref<?xf32>, i32) -> ()"""
    roles = role("rows", body, first=case.first, warps=case.warps, lanes=32)
    return kernel(ARGUMENTS, buffers + roles, types=types)


def operands(case: Case) -> list[Any]:
    """x, w, and poisoned y, h and z."""
    random = np.random.default_rng(case.rows * case.columns)
    x = random.standard_normal((case.rows, case.columns)).astype(np.float32)
    w = random.integers(-(2**31), 2**31, (case.rows, -(-case.columns // 32))).astype(np.int32)
    y = np.full(x.shape, np.nan, np.float32)
    return [x, w, y, y.astype(np.float16), y[:, 0].copy()]


def misfit(x: Any, w: Any, y: Any, h: Any, z: Any) -> str:
    """What is wrong with the results of a kernel."""
    columns = x.shape[1]
    bits = np.unpackbits(w.view(np.uint8), axis=1, bitorder="little")[:, :columns]
    power = np.exp2((x - x.max(axis=1, keepdims=True)).astype(np.float64))
    truth = np.where(bits == 1, power, np.float64(HIDDEN))
    total = 1.0 + truth.sum(axis=1)
    if not (
        np.isnan(y[:3]).all() and np.isnan(h[:3].astype(np.float32)).all() and np.isnan(z[:3]).all()
    ):
        return "rows in front of the first are written"
    y, h, z = y[3:], h[3:].astype(np.float32), z[3:]
    truth, total = truth[:-3], total[:-3]
    eps = np.finfo(np.float32).eps
    if not (np.abs(y - truth) <= 4 * eps * np.abs(truth)).all():
        return (
            f"y differs at {np.argwhere(np.abs(y - truth) > 4 * eps * np.abs(truth))[:4].tolist()}"
        )
    if not (h == y.astype(np.float16).astype(np.float32)).all():
        return (
            f"h differs at {np.argwhere(h != y.astype(np.float16).astype(np.float32))[:4].tolist()}"
        )
    scale = eps * (1.0 + np.abs(truth).sum(axis=1))
    if not (np.abs(z - total) <= 8 * scale).all():
        return f"z differs at {np.argwhere(np.abs(z - total) > 8 * scale)[:4].tolist()}"
    return ""


def write(folder: Path, target: str) -> None:
    """Writes a bundle per case."""
    from attn_mlir.validation.ws.kernels import bundle  # needs the compiler

    folder.mkdir(parents=True, exist_ok=True)
    for name, case in CASES.items():
        (folder / f"{name.replace(' ', '_')}.attn").write_bytes(bundle(text(case), target))


def run(folder: Path) -> int:
    """Runs the bundles of a folder on the first GPU; returns how many are wrong."""
    from attn_mlir.runtime.kernel import load

    wrong = 0
    for name, case in CASES.items():
        arrays = operands(case)
        load(folder / f"{name.replace(' ', '_')}.attn")(*arrays, device="cuda")
        found = misfit(*arrays)
        print(f"{name}: {found or 'right'}")
        wrong += bool(found)
    return wrong


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="of the bundles")
    parser.add_argument("--write", action="store_true", help="make the bundles; needs the compiler")
    parser.add_argument("--target", default="sm_90a")
    options = parser.parse_args()
    if options.write:
        write(options.folder, options.target)
        return 0
    return run(options.folder)


if __name__ == "__main__":
    sys.exit(main())
