"""Products of fragments: which are refused, and others executed for both targets."""

from __future__ import annotations

import pytest

from attn_mlir.runtime.devices.emulator import EmulatorDevice
from attn_mlir.validation.ws.checks import refused
from attn_mlir.validation.ws.dots import CASES, Case, misfit, operands, text
from attn_mlir.validation.ws.kernels import compiled, kernel, role


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.long("f16-*-sm_100a", "f8*-sm_100a", "bf16-*-kn-sm_100a")
def test_dot(case: Case, target: str) -> None:
    product = compiled(text(case), target)
    for device in (EmulatorDevice(), EmulatorDevice("adversarial", 0)):
        arrays = operands(case)
        product(*arrays, device=device)
        assert not misfit(case, arrays)


def dot(m: int, n: int, k: int, element: str, warps: int = 1, a: str = "") -> str:
    """A product of fragments; `a` makes %a, a fill where it is absent."""
    d, x, y = (f"!ws.frag<vector<{shape}>>" for shape in (
        f"{m}x{n}xf32", f"{m}x{k}x{element}", f"{n}x{k}x{element}"))  # fmt: skip
    a = a or f'%a = "ws.fill"(%e) : ({element}) -> {x}'
    body = f"""%z = arith.constant 0.0 : f32
    %e = arith.constant 0.0 : {element}
    %d = "ws.fill"(%z) : (f32) -> {d}
    {a}
    %b = "ws.fill"(%e) : ({element}) -> {y}
    %r = "ws.dot"(%d, %a, %b) {{b_layout = "nk"}} : ({d}, {x}, {y}) -> {d}"""
    return kernel([], role("r", body, first=0, warps=warps, lanes=32))


@pytest.mark.parametrize(
    ("m", "n", "k", "element", "warps", "message"),
    [
        (16, 8, 16, "f32", 1, "'ws.dot' op expects a and b of bf16 or f16 or f8E4M3FN or f8E5M2"),
        (16, 8, 16, "bf16", 4, "'ws.dot' op expects a role whose groups are one warp, got 4"),
        (24, 8, 16, "bf16", 1, "expects rows in multiples of 16 of accumulator in registers"),
        (16, 12, 16, "bf16", 1, "expects columns in multiples of 8 of accumulator in registers"),
        (16, 8, 24, "f16", 1, "expects columns in multiples of 16 of operand B of 16 bits, nk"),
        (16, 8, 48, "f8E5M2", 1, "expects columns in multiples of 32 of operand A of 8 bits"),
    ],
)
def test_products_of_a_warp(m: int, n: int, k: int, element: str, warps: int, message: str) -> None:
    refused(dot(m, n, k, element, warps), message)


def test_sums_of_8_bits_are_no_operand() -> None:
    """The threads have other columns of them than A wants."""
    narrow = """%a = "ws.map"(%d) ({
    ^bb0(%x: f32, %i: i32, %j: i32):
      %y = arith.truncf %x : f32 to f8E4M3FN
      "ws.yield"(%y) : (f8E4M3FN) -> ()
    }) {operandSegmentSizes = array<i32: 1>} : (!ws.frag<vector<16x32xf32>>) -> !ws.frag<vector<16x32xf8E4M3FN>>"""
    expects = r"'ws.dot' op expects a fragment of \[16, 32\] as operand A of 8 bits, where another"
    refused(dot(16, 32, 32, "f8E4M3FN", a=narrow), expects)
