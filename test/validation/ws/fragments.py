"""One kernel per layout of fragments, which puts a fragment through everything that `ws` has for it.

    s = x + u, a value per column
    y = keep(2^(s - row maximum), w), also through shared memory in 32 and fewer bits
    z = 1 + sum of y over a row
    v = u + sum of y over a column, t = max(u, maximum of y over a column)

so that a wrong place of any element shows in one of them. Where several warps hold a column, v and t
are u. `python -m attn_mlir.validation.ws.fragments`
with `--write DIR` makes the bundles where the compiler is, and with `DIR` runs them where the GPU
is, with numpy and ml_dtypes.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from attn_mlir.validation.ws.on_gpu import OnGpu, main

NARROW = {"f16": np.float16, "f8E4M3FN": ml_dtypes.float8_e4m3fn}
HIDDEN = np.float32(-7.0)


@dataclass(frozen=True)
class Case:
    """A fragment's extents and the warps that hold it, from which its layout follows.

    Attributes:
      rows, columns: of the fragment.
      first, warps: of the role.
      narrow: the element type of what is stored beside f32.
    """

    rows: int
    columns: int
    first: int
    warps: int
    narrow: str = "f16"

    @property
    def arguments(self) -> list[tuple[str, str, str, tuple[str, ...]]]:
        """As `kernels.kernel` takes them."""
        return [
            ("x", "in", "memref<?x?xf32>", ("m", "n")),
            ("w", "in", "memref<?x?xi32>", ("mw", "nw")),
            ("u", "in", "memref<?xf32>", ("nu",)),
            ("y", "out", "memref<?x?xf32>", ("my", "ny")),
            ("h", "out", f"memref<?x?x{self.narrow}>", ("mh", "nh")),
            ("z", "out", "memref<?xf32>", ("mz",)),
            ("v", "out", "memref<?xf32>", ("nv",)),
            ("t", "out", "memref<?xf32>", ("nt",)),
        ]


CASES = {
    "one row per thread": Case(128, 96, 0, 4),
    "one row per thread, a warp": Case(32, 40, 3, 1),
    "wgmma accumulator": Case(64, 80, 4, 4),
    "wgmma accumulator, 8 columns": Case(64, 8, 0, 4),
    "mma.sync accumulator": Case(16, 64, 2, 1),
    "mma.sync accumulator, 8 bits": Case(16, 80, 2, 1, "f8E4M3FN"),
    "one row per thread, 8 bits": Case(32, 48, 0, 1, "f8E4M3FN"),
}


def text(case: Case) -> str:
    """The kernel; y and z are written from row 3 on, so that rows at the end are left out."""
    from attn_mlir.validation.ws.kernels import kernel, role  # needs the compiler

    rows, columns = case.rows, case.columns
    words = -(-columns // 32)
    types = f"""
!f = !ws.frag<vector<{rows}x{columns}xf32>>
!n = !ws.frag<vector<{rows}x{columns}x{case.narrow}>>
!r = !ws.frag<vector<{rows}xf32>>
!c = !ws.frag<vector<{columns}xf32>>
!b = !ws.frag<vector<{rows}x{words}xi32>>
!t = !ws.tile<vector<{rows}x{columns}xf32>, "shared">
!tn = !ws.tile<vector<{rows}x{columns}x{case.narrow}>, "shared">
!tr = !ws.tile<vector<{rows}xf32>, "shared">
!tc = !ws.tile<vector<{columns}xf32>, "shared">
"""
    buffers = "".join(
        f'  %b{kind} = "ws.alloc_buffer"() {{label_name = "{kind}"}} : () -> !ws.buffer<!{kind}, 1>\n'
        for kind in ("t", "tn", "tr", "tc")
    )

    def element(tensor: str, kind: str, fragment: str) -> str:
        return f"""%{tensor}f = "ws.map"() ({{
    ^bb0(%i: i32, %j: i32):
      %e = "ws.element"(%{tensor}, %i, %j) {{operandSegmentSizes = array<i32: 1, 2>}} : (memref<?x?x{kind}>, i32, i32) -> {kind}
      "ws.yield"(%e) : ({kind}) -> ()
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

    def over_rows(kind: str, name: str) -> str:
        total = "%uf2"
        reduction = ""
        if case.warps == 1:
            total = f"%{name}_total"
            reduction = f"""{total} = "ws.reduce"(%k2, %uf2) {{axis = "rows", kind = "{kind}"}} : (!f, !c) -> !c
    """
        return f"""{reduction}"ws.store_global"({total}, %{name}, %c0) {{dims = array<i32: 0>, operandSegmentSizes = array<i32: 1, 1, 1>}}
      : (!c, memref<?xf32>, i32) -> ()
    """

    body = f"""%c3 = arith.constant 3 : i32
    %zero = arith.constant 0.0 : f32
    %one = arith.constant 1.0 : f32
    %hidden = arith.constant {HIDDEN} : f32
    %minus_inf = arith.constant 0xFF800000 : f32
    {element("x", "f32", "!f")}{element("w", "i32", "!b")}
    %uf = "ws.map"() ({{
    ^bb0(%j: i32):
      %e = "ws.element"(%u, %j) {{operandSegmentSizes = array<i32: 1, 1>}} : (memref<?xf32>, i32) -> f32
      "ws.yield"(%e) : (f32) -> ()
    }}) {{operandSegmentSizes = array<i32: 0>}} : () -> !c
    {through("tc", "!c", "uf")}
    %us = "ws.broadcast"(%uf2) {{axis = "rows"}} : (!c) -> !f
    %sf = "ws.map"(%xf, %us) ({{
    ^bb0(%a: f32, %c: f32, %i: i32, %j: i32):
      %d = arith.addf %a, %c : f32
      "ws.yield"(%d) : (f32) -> ()
    }}) {{operandSegmentSizes = array<i32: 2>}} : (!f, !f) -> !f
    %low = "ws.fill"(%minus_inf) : (f32) -> !r
    %top = "ws.reduce"(%sf, %low) {{kind = "max"}} : (!f, !r) -> !r
    {through("tr", "!r", "top")}
    %tops = "ws.broadcast"(%top2) : (!r) -> !f
    %less = "ws.map"(%sf, %tops) ({{
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
      %d = arith.truncf %a : f32 to {case.narrow}
      "ws.yield"(%d) : ({case.narrow}) -> ()
    }}) {{operandSegmentSizes = array<i32: 1>}} : (!f) -> !n
    {through("tn", "!n", "half")}
    {over_rows("add", "v")}{over_rows("max", "t")}
    {out("k2", "y", "f32", "!f")}{out("half2", "h", case.narrow, "!n")}
    "ws.store_global"(%sum, %z, %c3) {{dims = array<i32: 0>, operandSegmentSizes = array<i32: 1, 1, 1>}}
      : (!r, memref<?xf32>, i32) -> ()"""
    roles = role("rows", body, first=case.first, warps=case.warps, lanes=32)
    return kernel(case.arguments, buffers + roles, types=types)


def operands(case: Case) -> list[Any]:
    """x, w, u, and poisoned y, h, z, v and t."""
    random = np.random.default_rng(case.rows * case.columns)
    x = random.standard_normal((case.rows, case.columns)).astype(np.float32)
    w = random.integers(-(2**31), 2**31, (case.rows, -(-case.columns // 32))).astype(np.int32)
    u = random.standard_normal(case.columns).astype(np.float32)
    y = np.full(x.shape, np.nan, np.float32)
    return [x, w, u, y, y.astype(NARROW[case.narrow]), y[:, 0].copy(), y[0].copy(), y[0].copy()]


def misfit(case: Case, x: Any, w: Any, u: Any, y: Any, h: Any, z: Any, v: Any, t: Any) -> str:
    """What is wrong with the results of a kernel."""
    x, columns = x + u, x.shape[1]
    bits = np.unpackbits(w.view(np.uint8), axis=1, bitorder="little")[:, :columns]
    power = np.exp2((x - x.max(axis=1, keepdims=True)).astype(np.float64))
    truth = np.where(bits == 1, power, np.float64(HIDDEN))
    total = 1.0 + truth.sum(axis=1)
    eps = np.finfo(np.float32).eps
    if case.warps > 1:
        if not ((v == u).all() and (t == u).all()):
            return "a value per column has moved"
    else:
        scale = eps * (np.abs(u) + np.abs(truth).sum(axis=0))
        if not (np.abs(v - u - truth.sum(axis=0)) <= 8 * scale).all():
            return f"v differs: {v} for {u + truth.sum(axis=0)}"
        top = np.maximum(u, truth.max(axis=0))
        if not (np.abs(t - top) <= 4 * eps * np.abs(top)).all():
            return f"t differs: {t} for {top}"
    if not (
        np.isnan(y[:3]).all() and np.isnan(h[:3].astype(np.float32)).all() and np.isnan(z[:3]).all()
    ):
        return "rows in front of the first are written"
    y, h, z = y[3:], h[3:].astype(np.float32), z[3:]
    truth, total = truth[:-3], total[:-3]
    narrow = y.astype(NARROW[case.narrow]).astype(np.float32)
    if not (np.abs(y - truth) <= 4 * eps * np.abs(truth)).all():
        return (
            f"y differs at {np.argwhere(np.abs(y - truth) > 4 * eps * np.abs(truth))[:4].tolist()}"
        )
    if not (h == narrow).all():
        return f"h differs at {np.argwhere(h != narrow)[:4].tolist()}"
    scale = eps * (1.0 + np.abs(truth).sum(axis=1))
    if not (np.abs(z - total) <= 8 * scale).all():
        return f"z differs at {np.argwhere(np.abs(z - total) > 8 * scale)[:4].tolist()}"
    return ""


def on_gpu(case: Case) -> OnGpu:
    """The case as a file for a GPU."""
    return OnGpu(lambda: text(case), lambda: operands(case), lambda arrays: misfit(case, *arrays))


if __name__ == "__main__":
    cases = {name: on_gpu(case) for name, case in CASES.items()}
    sys.exit(main(__doc__.partition("\n")[0], cases))
