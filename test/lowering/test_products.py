"""Products into registers, executed: operands from everywhere, forms, several in flight."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import arith, ir
from attn_mlir.errors import VerifyError
from attn_mlir.lowering.compile import compile_kernel
from attn_mlir.runtime.devices.emulator import EmulatorDevice
from attn_mlir.runtime.kernel import Kernel, load
from attn_mlir.schedules import emit as b

ROWS = 64  # of a product
DTYPES = {
    "bf16": ml_dtypes.bfloat16,
    "f16": np.float16,
    "f32": np.float32,
    "f8E4M3FN": ml_dtypes.float8_e4m3fn,
    "f8E5M2": ml_dtypes.float8_e5m2,
}
SEEDS = [None, 0, 1]

Multiply = Callable[..., b.Value]


def compiled(
    shapes: Sequence[tuple[int, int]],
    element: str,
    columns: int,
    multiply: Multiply,
    *,
    warps: int = 4,
    target: str = "sm_90a",
) -> Kernel:
    """A kernel of matrices, each copied whole into a ring, and of y [rows, columns], f32.

    Args:
      shapes: of the matrices, `x0`, `x1` and so on.
      element: their type.
      columns: of the result.
      multiply: given the tensors and their rings, what 128 threads compute.
      warps: of the role that does it.
    """

    def build() -> None:
        kind = ir.Type.parse(element)
        inputs = [ir.MemRefType.get([rows, count], kind) for rows, count in shapes]
        output = ir.MemRefType.get([ROWS, columns], ir.F32Type.get())
        arguments = [b.Argument(f"x{i}", "in", x, ("", "")) for i, x in enumerate(inputs)]
        kernel = b.declare_kernel("k", [*arguments, b.Argument("y", "out", output, ("", ""))])
        with ir.InsertionPoint(kernel.body.blocks[0]):
            *sources, y = kernel.body.blocks[0].arguments
            rings = [
                b.Ring(f"x{i}", b.tile(shape, kind, "shared")) for i, shape in enumerate(shapes)
            ]
            with b.role("load", first=4, warps=1, lanes=1):
                for source, ring in zip(sources, rings, strict=True):
                    slot = ring.acquire()
                    b.copy_in(source, slot, [0, 0], [0, 1])
                    b.commit(slot, "copy_engine")
            with b.role("multiply", first=0, warps=warps):
                slots = [ring.wait() for ring in rings]
                result = multiply(*slots)
                for slot in slots:
                    b.release(slot, "threads")
                b.store_global(result, y, [0, 0], [0, 1])

    return load(compile_kernel("k", build, target=target))


def drawn(rows: int, columns: int, element: str, seed: int) -> Any:
    """Small numbers, whose products and sums are exact, also in the sums of 8-bit products."""
    most = 2 if element.startswith("f8") else 8
    scale = 1 if element.startswith("f8") else 4
    numbers = np.random.default_rng(seed).integers(-most, most + 1, (rows, columns))
    return (numbers / scale).astype(DTYPES[element])


def run(kernel: Kernel, columns: int, *inputs: Any, seed: int | None = None) -> Any:
    """What a kernel computes; a seed chooses an adversarial schedule."""
    y = np.full((ROWS, columns), np.nan, np.float32)
    device = EmulatorDevice() if seed is None else EmulatorDevice("adversarial", seed)
    kernel(*inputs, y, device=device)
    return y


def zeros(columns: int) -> b.Value:
    return b.fill([ROWS, columns], b.f32_constant(0.0))


def wide(x: Any) -> Any:
    return x.astype(np.float64)


@pytest.mark.parametrize("a_from", ["shared", "registers"])
@pytest.mark.parametrize(
    ("element", "k", "n", "b_layout"),
    [
        ("bf16", 64, 64, "nk"),
        ("bf16", 128, 256, "kn"),
        ("f16", 16, 8, "kn"),
        ("f16", 80, 72, "nk"),
        ("f8E4M3FN", 160, 64, "nk"),
        ("f8E5M2", 32, 24, "nk"),
    ],
)
def test_shapes_and_types(element: str, k: int, n: int, b_layout: str, a_from: str) -> None:
    def multiply(a: b.Value, right: b.Value) -> b.Value:
        left = a if a_from == "shared" else b.load(a)
        return b.wait_product(b.product(zeros(n), left, right, accumulate=False, b_layout=b_layout))

    right_shape = (n, k) if b_layout == "nk" else (k, n)
    kernel = compiled([(ROWS, k), right_shape], element, n, multiply)
    a, right = drawn(ROWS, k, element, 0), drawn(*right_shape, element, 1)
    exact = wide(a) @ (wide(right).T if b_layout == "nk" else wide(right))
    assert (run(kernel, n, a, right) == exact).all()


@pytest.mark.parametrize("element", ["bf16", "f16"])
@pytest.mark.parametrize("b_layout", ["nk", "kn"])
@pytest.mark.parametrize("k", [16, 64, 128])
def test_a_may_lie_transposed(element: str, b_layout: str, k: int) -> None:
    def multiply(a: b.Value, right: b.Value) -> b.Value:
        product = b.product(zeros(96), a, right, accumulate=False, a_layout="km", b_layout=b_layout)
        return b.wait_product(product)

    right_shape = (96, k) if b_layout == "nk" else (k, 96)
    kernel = compiled([(k, ROWS), right_shape], element, 96, multiply)
    a, right = drawn(k, ROWS, element, 0), drawn(*right_shape, element, 1)
    exact = wide(a).T @ (wide(right).T if b_layout == "nk" else wide(right))
    assert (run(kernel, 96, a, right) == exact).all()


@pytest.mark.parametrize("accumulate", ["never", "always", "later"])
def test_sums_that_go_on(accumulate: str) -> None:
    """Three products into sums of ones, which the first reads or not, as a number of the call says."""

    def multiply(a: b.Value, right: b.Value) -> b.Value:
        def turn(number: b.Value, sums: b.Value) -> list[b.Value]:
            more = {
                "never": False, "always": True, "later": b.compare("ne", number, 0)
            }[accumulate]  # fmt: skip
            return [b.wait_product(b.product(sums, a, right, accumulate=more, b_layout="kn"))]

        ones = b.fill([ROWS, 64], b.f32_constant(1.0))
        (sums,) = b.loop(0, b.INT.add(b.constant(1), 2), [ones], turn)
        return sums

    kernel = compiled([(ROWS, 64), (64, 64)], "bf16", 64, multiply)
    a, right = drawn(ROWS, 64, "bf16", 0), drawn(64, 64, "bf16", 1)
    once = wide(a) @ wide(right)
    expected = {"never": once, "always": 1 + 3 * once, "later": 3 * once}
    assert (run(kernel, 64, a, right) == expected[accumulate]).all()


@pytest.mark.parametrize("seed", SEEDS)
def test_sums_of_one_product_are_an_operand_of_the_next(seed: int | None) -> None:
    """(x0 x1) x2 with a product of its own under way meanwhile, whose sums are used before."""

    def multiply(a: b.Value, first: b.Value, second: b.Value) -> b.Value:
        before = b.product(zeros(32), a, first, accumulate=False, b_layout="kn")
        beside = b.product(zeros(32), a, first, accumulate=False, b_layout="kn")
        left = b.wait_product(before, newest=1)
        rounded = b.map_elements(
            lambda x: b.truncate(x, ir.BF16Type.get()), left, element=ir.BF16Type.get()
        )
        last = b.product(zeros(32), rounded, second, accumulate=False, b_layout="nk")
        beside = b.wait_product(beside, newest=1)
        return b.map_elements(b.fadd, b.wait_product(last), beside)

    kernel = compiled([(ROWS, 16), (16, 32), (32, 32)], "bf16", 32, multiply)
    rng = np.random.default_rng(0)
    a, first, second = (
        rng.integers(-2, 3, shape).astype(DTYPES["bf16"])
        for shape in ((ROWS, 16), (16, 32), (32, 32))
    )
    left = wide(a) @ wide(first)
    assert (run(kernel, 32, a, first, second, seed=seed) == left @ wide(second).T + left).all()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_product_goes_on_with_pending_sums(seed: int | None) -> None:
    """Of two halves of K, with another product between them, which is settled first."""

    def multiply(a: b.Value, right: b.Value) -> b.Value:
        halves = [(b.columns(a, first, 64), b.columns(right, first, 64)) for first in (0, 64)]
        both = b.product(zeros(32), *halves[0], accumulate=False, b_layout="nk")
        one = b.product(zeros(32), *halves[1], accumulate=False, b_layout="nk")
        both = b.product(both, *halves[1], accumulate=True, b_layout="nk")
        one = b.wait_product(one, newest=1)
        return b.map_elements(b.fadd, b.wait_product(both), one)

    kernel = compiled([(ROWS, 128), (32, 128)], "bf16", 32, multiply)
    a, right = drawn(ROWS, 128, "bf16", 0), drawn(32, 128, "bf16", 1)
    exact = wide(a) @ wide(right).T + wide(a)[:, 64:] @ wide(right)[:, 64:].T
    assert (run(kernel, 32, a, right, seed=seed) == exact).all()


@pytest.mark.parametrize("seed", SEEDS)
def test_operands_that_threads_have_written(seed: int | None) -> None:
    """A tile that a warpgroup stores and another one multiplies by itself: [64, 64] squared."""
    square = [ROWS, ROWS]

    def build() -> None:
        kind, f32 = ir.BF16Type.get(), ir.F32Type.get()
        x = b.Argument("x", "in", ir.MemRefType.get(square, kind), ("", ""))
        y = b.Argument("y", "out", ir.MemRefType.get(square, f32), ("", ""))
        kernel = b.declare_kernel("k", [x, y])
        with ir.InsertionPoint(kernel.body.blocks[0]):
            source, target = kernel.body.blocks[0].arguments
            ring = b.Ring("x", b.tile(square, kind, "shared"))
            with b.role("fill", first=4, warps=4):
                slot = ring.acquire()
                element = b.generate(
                    lambda row, column: b.element(source, [row, column]), square, kind
                )
                b.store(element, slot)
                b.commit(slot, "threads")
            with b.role("multiply", first=0, warps=4):
                slot = ring.wait()
                sums = b.wait_product(
                    b.product(zeros(ROWS), slot, slot, accumulate=False, b_layout="kn")
                )
                b.release(slot, "threads")
                b.store_global(sums, target, [0, 0], [0, 1])

    x = drawn(ROWS, ROWS, "bf16", 0)
    kernel = load(compile_kernel("k", build, target="sm_90a"))
    assert (run(kernel, ROWS, x, seed=seed) == wide(x) @ wide(x)).all()


@pytest.mark.parametrize("seed", SEEDS)
def test_an_operand_that_the_same_threads_have_written(seed: int | None) -> None:
    """A slot overwritten by those who multiply it: a proxy fence stands before their barrier."""

    def multiply(a: b.Value, right: b.Value) -> b.Value:
        kind = ir.BF16Type.get()

        def difference(row: b.Value, column: b.Value) -> b.Value:
            number = arith.SIToFPOp(ir.F32Type.get(), b.INT.sub(row, column)).result
            return b.truncate(number, kind)

        b.store(b.generate(difference, [ROWS, 64], kind), a)
        ws.BarrierOp()
        return b.wait_product(b.product(zeros(32), a, right, accumulate=False, b_layout="kn"))

    kernel = compiled([(ROWS, 64), (64, 32)], "bf16", 32, multiply)
    a, right = drawn(ROWS, 64, "bf16", 0), drawn(64, 32, "bf16", 1)
    rows, columns = np.indices((ROWS, 64))
    assert (run(kernel, 32, a, right, seed=seed) == (rows - columns) @ wide(right)).all()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("element", "k", "n"), [("f8E4M3FN", 64, 48), ("f8E5M2", 192, 32)])
def test_an_operand_of_8_bits_that_threads_transpose(
    element: str, k: int, n: int, seed: int | None
) -> None:
    """Both operands interleaved along K: nothing moves between threads, and the product is the same."""
    kind = DTYPES[element]

    def multiply(right: b.Value, turned: b.Value) -> b.Value:
        wanted = ir.Type.parse(f"{element}")

        def number(row: b.Value, column: b.Value) -> b.Value:
            small = arith.AndIOp(b.INT.add(row, b.INT.mul(column, 3)), b.constant(3)).result
            return arith.SIToFPOp(ir.F32Type.get(), small).result

        part = b.interleaved(b.load(right), "rows")
        b.store(b.transposed(part), turned)
        ws.BarrierOp()
        left = b.rounded(b.generate(number, [ROWS, k], ir.F32Type.get()), wanted)
        return b.wait_product(
            b.product(zeros(n), b.interleaved(left), turned, accumulate=False, b_layout="nk")
        )

    kernel = compiled([(k, n), (n, k)], element, n, multiply)
    right = drawn(k, n, element, 0)
    rows, columns = np.indices((ROWS, k))
    left = (rows + 3 * columns & 3).astype(np.float64)
    assert (run(kernel, n, right, np.zeros((n, k), kind), seed=seed) == left @ wide(right)).all()


def test_a_product_of_some_rows_of_a_slot() -> None:
    """An operand whose columns are K may be some rows of a slot, also where these have two lines."""

    def multiply(a: b.Value, right: b.Value) -> b.Value:
        part = b.rows(right, 16, 32)
        return b.wait_product(b.product(zeros(32), a, part, accumulate=False, b_layout="nk"))

    kernel = compiled([(ROWS, 128), (64, 128)], "bf16", 32, multiply)
    a, right = drawn(ROWS, 128, "bf16", 0), drawn(64, 128, "bf16", 1)
    assert (run(kernel, 32, a, right) == wide(a) @ wide(right)[16:48].T).all()


@pytest.mark.parametrize("b_layout", ["kn", "nk"])
def test_a_product_of_some_columns_of_slots(b_layout: str) -> None:
    """Operands may begin with any line of a slot, whether their columns are K or their rows."""

    def multiply(a: b.Value, right: b.Value) -> b.Value:
        pair = b.columns(a, 128, 64), b.columns(right, 64, 64)
        return b.wait_product(b.product(zeros(64), *pair, accumulate=False, b_layout=b_layout))

    kernel = compiled([(ROWS, 192), (64, 192)], "bf16", 64, multiply)
    a, right = drawn(ROWS, 192, "bf16", 0), drawn(64, 192, "bf16", 1)
    part = wide(right)[:, 64:128]
    exact = wide(a)[:, 128:] @ (part if b_layout == "kn" else part.T)
    assert (run(kernel, 64, a, right) == exact).all()


def test_operands_begin_with_a_line() -> None:
    def multiply(a: b.Value, right: b.Value) -> b.Value:
        part = b.columns(right, 32, 64)
        return b.wait_product(b.product(zeros(64), a, part, accumulate=False, b_layout="kn"))

    with pytest.raises(VerifyError, match="from a multiple of 64 columns on, got one from 32"):
        compiled([(ROWS, 64), (64, 128)], "bf16", 64, multiply)


def test_sums_are_pinned() -> None:
    """What is computed stays where it is, and what it is."""

    def multiply(a: b.Value, right: b.Value) -> b.Value:
        first = b.wait_product(b.product(zeros(32), a, right, accumulate=False, b_layout="nk"))
        doubled = b.opaque(b.map_elements(b.fadd, first, first))
        again = b.wait_product(b.product(zeros(32), a, right, accumulate=False, b_layout="nk"))
        return b.map_elements(b.fadd, doubled, again)

    kernel = compiled([(ROWS, 64), (32, 64)], "bf16", 32, multiply)
    a, right = drawn(ROWS, 64, "bf16", 0), drawn(32, 64, "bf16", 1)
    assert (run(kernel, 32, a, right) == 3 * wide(a) @ wide(right).T).all()


@pytest.mark.parametrize("first", [0, 64])
def test_k_may_be_some_rows_of_slots(first: int) -> None:
    """Of A and of B, in as many columns as two lines have."""

    def multiply(a: b.Value, right: b.Value) -> b.Value:
        left, part = b.rows(a, first, 64), b.rows(right, first, 64)
        product = b.product(zeros(128), left, part, accumulate=False, a_layout="km", b_layout="kn")
        return b.wait_product(product)

    kernel = compiled([(128, ROWS), (128, 128)], "bf16", 128, multiply)
    a, right = drawn(128, ROWS, "bf16", 0), drawn(128, 128, "bf16", 1)
    rows = slice(first, first + 64)
    assert (run(kernel, 128, a, right) == wide(a[rows]).T @ wide(right[rows])).all()


@pytest.mark.parametrize("number", [0, 1])
def test_columns_of_b_may_be_computed(number: int) -> None:
    """A line of columns of two, that a loop counts to."""

    def multiply(a: b.Value, right: b.Value) -> b.Value:
        def iteration(index: b.Value, _: b.Value) -> list[b.Value]:
            part = b.columns_at(right, b.INT.mul(index, 64), 64)
            product = b.product(zeros(64), a, part, accumulate=False, b_layout="kn")
            return [b.wait_product(product)]

        (found,) = b.loop(0, number + 1, [zeros(64)], iteration)
        return found

    kernel = compiled([(ROWS, 64), (64, 128)], "bf16", 64, multiply)
    a, right = drawn(ROWS, 64, "bf16", 0), drawn(64, 128, "bf16", 1)
    columns = slice(64 * number, 64 * number + 64)
    assert (run(kernel, 64, a, right) == wide(a) @ wide(right[:, columns])).all()


def refused(message: str, **changes: Any) -> None:
    """A product with something wrong is refused by name."""
    given: dict[str, Any] = {"rows": ROWS, "k": 64, "n": 64, "element": "bf16", "b_layout": "kn"}
    rest = {key: changes.pop(key) for key in ("warps", "target") if key in changes}
    given |= changes
    rows, k, n = given["rows"], given["k"], given["n"]
    shape = (k, n) if given["b_layout"] == "kn" else (n, k)

    def multiply(a: b.Value, right: b.Value) -> b.Value:
        sums = b.fill([rows, n], b.f32_constant(0.0))
        product = b.product(sums, a, right, accumulate=False, b_layout=given["b_layout"])
        return b.wait_product(product)

    with pytest.raises(VerifyError, match=message):
        compiled([(rows, k), shape], given["element"], n, multiply, **rest)


def test_what_there_is_no_product_for() -> None:
    refused("'ws.product' op expects M of 64, got 128", rows=128)
    refused("'ws.product' op expects N of at most 256, got 264", n=264)
    refused("'ws.product' op expects columns in multiples of 8 .*, got", n=12)
    refused("'ws.product' op expects K a multiple of 16, got 24", k=24)
    refused(
        "'ws.product' op expects K a multiple of 32, got 16", element="f8E5M2", b_layout="nk", k=16
    )
    refused(
        "'ws.product' op expects a of 8 bits as mk and b as nk, got mk and kn", element="f8E4M3FN"
    )
    refused("'ws.product' op expects a and b of bf16 or f16 or .*, got f32", element="f32")
    refused("'ws.product' op expects a product in a role whose groups are 4 warps", warps=2)
    refused(
        "'ws.product' op needs asynchronous products of warpgroups, sm_100a has none",
        target="sm_100a",
    )
