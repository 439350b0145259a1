"""Products of fragments of one warp: y = a b, in turns of a loop along K, and chained.

`python -m attn_mlir.validation.ws.dots DIR --write` makes the bundles where the compiler is, and
with `DIR` alone runs them where the GPU is, with numpy and ml_dtypes.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from attn_mlir.validation.ws.on_gpu import OnGpu, main

DTYPES = {
    "bf16": ml_dtypes.bfloat16,
    "f16": np.float16,
    "f8E4M3FN": ml_dtypes.float8_e4m3fn,
    "f8E5M2": ml_dtypes.float8_e5m2,
}


@dataclass(frozen=True)
class Case:
    """One product.

    Attributes:
      element: type of a and b.
      m, n, k: extents of one `ws.dot`.
      b_layout: how b lies.
      turns: of the loop along K; the whole K is as many times k.
      narrow: whether the sums go through another product, with a third matrix [n, n].
      first_column: of a part of a tile of b that is twice as wide.
      stored: element type of b in memory, of 8 bits, if it is widened in registers.
    """

    element: str
    m: int
    n: int
    k: int
    b_layout: str
    turns: int = 1
    narrow: bool = False
    first_column: int = 0
    stored: str = ""

    @property
    def name(self) -> str:
        """For files and messages."""
        extra = "-narrow" * self.narrow + f"-from{self.first_column}" * bool(self.first_column)
        extra += f"-of-{self.stored}" * bool(self.stored)
        return f"{self.element}-{self.m}x{self.n}x{self.k}x{self.turns}-{self.b_layout}{extra}"


CASES = [
    Case("bf16", 16, 8, 16, "nk"),
    Case("bf16", 16, 8, 16, "kn"),
    Case("bf16", 16, 64, 64, "nk", turns=3),
    Case("bf16", 16, 64, 64, "kn", turns=3),
    Case("bf16", 16, 24, 48, "nk", turns=2),
    Case("bf16", 16, 40, 80, "kn", turns=2),
    Case("bf16", 32, 128, 128, "nk"),
    Case("bf16", 48, 72, 144, "kn"),
    Case("f16", 16, 64, 64, "nk", turns=2),
    Case("f16", 16, 64, 128, "kn", turns=2),
    Case("bf16", 16, 64, 64, "kn", narrow=True),
    Case("f16", 16, 32, 64, "nk", narrow=True),
    Case("bf16", 16, 8, 16, "kn", first_column=8),
    Case("bf16", 16, 64, 32, "kn", first_column=64),
    Case("bf16", 16, 24, 48, "kn", first_column=24),
    Case("f8E4M3FN", 16, 8, 32, "nk"),
    Case("f8E4M3FN", 32, 64, 128, "nk", turns=2),
    Case("f8E5M2", 16, 24, 96, "nk", turns=2),
    Case("f8E4M3FN", 16, 32, 64, "kn"),
    Case("f16", 16, 8, 16, "nk", stored="f8E4M3FN"),
    Case("f16", 16, 32, 128, "nk", turns=2, stored="f8E4M3FN"),
    Case("f16", 16, 40, 80, "nk", stored="f8E5M2"),
    Case("f16", 16, 16, 16, "kn", stored="f8E4M3FN"),
    Case("f16", 16, 64, 32, "kn", turns=3, stored="f8E4M3FN"),
    Case("f16", 32, 48, 48, "kn", stored="f8E5M2"),
    Case("f16", 16, 32, 32, "kn", first_column=32, stored="f8E4M3FN"),
]


def text(case: Case) -> str:
    """The kernel: one role copies, one warp multiplies."""
    from attn_mlir.validation.ws.kernels import copy_op, kernel, role  # needs the compiler

    element, m, n, k = case.element, case.m, case.n, case.k
    is_kn = case.b_layout == "kn"
    b_shape = (k, n) if is_kn else (n, k)
    stored = case.stored or element
    slot_shape = (b_shape[0], b_shape[1] * (1 + bool(case.first_column)))
    types = f"""
!fd = !ws.frag<vector<{m}x{n}xf32>>
!fn = !ws.frag<vector<{m}x{n}x{element}>>
!fa = !ws.frag<vector<{m}x{k}x{element}>>
!fb = !ws.frag<vector<{b_shape[0]}x{b_shape[1]}x{element}>>
!fs = !ws.frag<vector<{b_shape[0]}x{b_shape[1]}x{stored}>>
!fc = !ws.frag<vector<{n}x{n}x{element}>>
!a = !ws.tile<vector<{m}x{k}x{element}>, "shared">
!b = !ws.tile<vector<{slot_shape[0]}x{slot_shape[1]}x{stored}>, "shared">
!bp = !ws.tile<vector<{b_shape[0]}x{b_shape[1]}x{stored}>, "shared">
!c = !ws.tile<vector<{n}x{n}x{element}>, "shared">
!as = !ws.ring<!a, 2, 1>
!bs = !ws.ring<!b, 2, 1>
!cs = !ws.ring<!c, 1, 1>
"""
    matrix = f"memref<?x?x{element}>"
    matrices = {"a": matrix, "b": f"memref<?x?x{stored}>", "c": matrix}

    def fill(name: str, coords: str) -> str:
        return f"""%s{name} = "ws.acquire"(%{name}s, %c0) : (!{name}s, i32) -> !{name}
    {copy_op("copy_in", f"%{name}", f"%s{name}", coords, "0, 1", f"{matrices[name]}, !{name}")}
    "ws.commit"(%s{name}) {{by = "copy_engine"}} : (!{name}) -> ()
    """

    def take(name: str, kind: str) -> str:
        part = kind
        cut = ""
        if name == "b" and case.first_column:
            part = "bp"
            cut = f"""%sbp = "ws.columns"(%sb) {{first = {case.first_column} : i64}} : (!b) -> !bp
      """
        tile = "%sbp" if cut else f"%s{name}"
        loaded = f"""%f{name} = "ws.load"({tile}) : (!{part}) -> !f{name}"""
        if name == "b" and case.stored:
            loaded = f"""%fs = "ws.load"({tile}) : (!{part}) -> !fs
      %fb = "ws.map"(%fs) ({{
    ^bb0(%x: {stored}, %row: i32, %column: i32):
      %wide = arith.extf %x : {stored} to {element}
      "ws.yield"(%wide) : ({element}) -> ()
    }}) {{operandSegmentSizes = array<i32: 1>}} : (!fs) -> !fb"""
        return f"""%s{name} = "ws.wait"(%{name}s, %c0) : (!{name}s, i32) -> !{name}
      {cut}{loaded}
      "ws.release"(%s{name}) {{by = "threads"}} : (!{name}) -> ()
      """

    loop = f"""%turns = arith.constant {case.turns} : i32
    %step = arith.constant {k} : i32
    """
    load = f"""{loop}scf.for %i = %c0 to %turns step %c1 : i32 {{
      %at = arith.muli %i, %step : i32
      {fill("a", "%c0, %at")}{fill("b", "%at, %c0" if is_kn else "%c0, %at")}
    }}
    {fill("c", "%c0, %c0") if case.narrow else ""}"""
    result = "%total"
    chained = ""
    if case.narrow:
        result = "%second"
        chained = f"""%narrow = "ws.map"(%total) ({{
    ^bb0(%x: f32, %i: i32, %j: i32):
      %less = arith.truncf %x : f32 to {element}
      "ws.yield"(%less) : ({element}) -> ()
    }}) {{operandSegmentSizes = array<i32: 1>}} : (!fd) -> !fn
    {take("c", "c")}%second = "ws.dot"(%none, %narrow, %fc) {{b_layout = "{case.b_layout}"}} : (!fd, !fn, !fc) -> !fd
    """
    widened = ", widened" if case.stored else ""
    multiply = f"""{loop}%zero = arith.constant 0.0 : f32
    %none = "ws.fill"(%zero) : (f32) -> !fd
    %total = scf.for %i = %c0 to %turns step %c1 iter_args(%sums = %none) -> (!fd) : i32 {{
      {take("a", "a")}{take("b", "b")}%next = "ws.dot"(%sums, %fa, %fb) {{b_layout = "{case.b_layout}"{widened}}} : (!fd, !fa, !fb) -> !fd
      scf.yield %next : !fd
    }}
    {chained}"ws.store_global"({result}, %y, %c0, %c0)
      {{dims = array<i32: 0, 1>, operandSegmentSizes = array<i32: 1, 1, 2>}}
      : (!fd, memref<?x?xf32>, i32, i32) -> ()"""
    names = "abc" if case.narrow else "ab"
    rings = "".join(
        f'  %{name}s = "ws.alloc_ring"() {{label_name = "{name}"}} : () -> !{name}s\n'
        for name in names
    )
    return kernel(
        [
            *((name, "in", matrices[name], (f"m{name}", f"n{name}")) for name in names),
            ("y", "out", "memref<?x?xf32>", ("my", "ny")),
        ],
        rings
        + role("load", load, first=1)
        + role("multiply", multiply, first=0, warps=1, lanes=32),
        types=types,
    )


def operands(case: Case) -> list[Any]:
    """a, b, with `narrow` c, and a poisoned y: numbers whose products and sums are exact."""
    random = np.random.default_rng(case.m + case.n + case.k)
    k = case.k * case.turns

    def drawn(rows: int, columns: int, most: int, element: str = "") -> Any:
        dtype = DTYPES[element or case.element]
        return random.integers(-most, most + 1, (rows, columns)).astype(dtype)

    most = 1 if case.narrow else 3
    is_kn = case.b_layout == "kn"
    columns = case.n * (1 + bool(case.first_column))
    b = drawn(*((k, columns) if is_kn else (case.n, k)), most, case.stored)
    c = [drawn(case.n, case.n, most)] if case.narrow else []
    return [drawn(case.m, k, most), b, *c, np.full((case.m, case.n), np.nan, np.float32)]


def misfit(case: Case, arrays: list[Any]) -> str:
    """What is wrong with the result of a kernel."""
    a, b, *c, y = (array.astype(np.float64) for array in arrays)
    b = b if case.b_layout == "kn" else b.T
    truth = a @ b[:, case.first_column : case.first_column + case.n]
    if c:
        narrow = truth.astype(DTYPES[case.element]).astype(np.float64)
        truth = narrow @ (c[0] if case.b_layout == "kn" else c[0].T)
    wrong = np.argwhere(~(y == truth))
    return f"y differs at {wrong[:4].tolist()}, {len(wrong)} of {y.size}" if len(wrong) else ""


def on_gpu(case: Case) -> OnGpu:
    """The case as a file for a GPU."""
    return OnGpu(lambda: text(case), lambda: operands(case), lambda arrays: misfit(case, arrays))


if __name__ == "__main__":
    cases = {name: on_gpu(case) for name, case in {case.name: case for case in CASES}.items()}
    sys.exit(main(__doc__.partition("\n")[0], cases))
