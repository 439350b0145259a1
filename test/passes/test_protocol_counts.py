"""The ring protocol: counts of steps as formulas over sizes, and what may decide over them."""

from __future__ import annotations

from collections import Counter

import pytest

from attn_mlir.errors import SpecError, VerifyError
from attn_mlir.passes.analysis.protocol import sums
from attn_mlir.passes.analysis.protocol.counts import Counting
from attn_mlir.passes.analysis.protocol.skeleton import (
    step_count,
    steps,
    tally,
    trips,
    turning,
)
from attn_mlir.validation.ws.ring_texts import Kernel, fill, role, use


def test_sums() -> None:
    x, one = Counter({("x",): 1}), sums.constant(1)
    assert sums.add(x, x, -1) == Counter()
    assert sums.constant(0) == Counter()
    assert sums.multiply(sums.add(x, one), sums.add(x, one, -1)) == Counter({("x", "x"): 1, (): -1})
    assert sums.text(sums.add(sums.add(x, x), one)) == "2 x + 1"
    assert sums.text(Counter()) == "0"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (fill("a"), "1"),
        (f"scf.for %i = %c0 to %m step %c1 : i32 {{ {fill('a')} }}", "m"),
        (f"scf.for %i = %c1 to %m step %c1 : i32 {{ {fill('a')} }}", "m - 1"),
        (f"scf.for %i = %c0 to %four step %c1 : i32 {{ {fill('a')} }}", "4"),
        (
            f"scf.for %i = %c0 to %m step %c1 : i32 {{ scf.for %j = %c0 to %n step %c1 : i32 {{"
            f" {fill('a')} }} }}",
            "m n",
        ),
        (
            "%t = arith.ceildivsi %m, %c128 : i32\n"
            f"scf.for %i = %c0 to %t step %c1 : i32 {{ {fill('a')} }}",
            "ceildiv(m, 128)",
        ),
        (
            "%t = arith.muli %m, %c2 : i32\n%u = arith.subi %t, %m : i32\n"
            f"scf.for %i = %c0 to %u step %c1 : i32 {{ {fill('a')} }}",
            "m",
        ),
        (
            "%some = arith.cmpi sgt, %m, %c0 : i32\n"
            f"scf.if %some {{ {fill('a')} }}",
            "[m > 0]",
        ),
        (
            "%some = arith.cmpi sgt, %m, %c0 : i32\n"
            f"scf.if %some {{ scf.for %i = %c0 to %m step %c1 : i32 {{ {fill('a')} }} }}",
            "m",
        ),
        (
            "%some = arith.cmpi sgt, %m, %c0 : i32\n"
            f"scf.if %some {{ {fill('a')} scf.for %i = %c1 to %m step %c1 : i32 {{ {fill('a')} }} }}",
            "m",
        ),
        (
            "%some = arith.cmpi slt, %m, %n : i32\n"
            f"scf.if %some {{ {fill('a')} }} else {{ {fill('a')} {fill('a')} }}",
            "2 - [m < n]",
        ),
    ],
)  # fmt: skip
def test_counts_are_formulas_over_sizes(body: str, expected: str) -> None:
    kernel = Kernel(role("fill", body, first=0))
    assert kernel.count("acquire") == kernel.count("commit") == expected


PLAIN = '{ws.operands = "nonnegative"}'
"""What marks a division of the schedules."""


def halved(operation: str, mark: str = "") -> Kernel:
    """Both roles go through (m - n) / 2 + 4 slots, divided as `operation` says."""
    count = f"""%mn = arith.subi %m, %n : i32
    %half = arith.{operation} %mn, %c2 {mark} : i32
    %four_up = arith.addi %half, %four : i32
    """

    def body(inner: str) -> str:
        return f"{count}scf.for %i = %c0 to %four_up step %c1 : i32 {{ {inner} }}"

    return Kernel(role("fill", body(fill("a")), first=0), role("use", body(use("a")), first=1))


@pytest.mark.parametrize(("operation", "slots"), [("floordivsi", 2), ("ceildivsi", 3)])
def test_signed_divisions_round_as_they_say(operation: str, slots: int) -> None:
    kernel = halved(operation)  # (2 - 5) / 2 + 4
    found = kernel.run(m=2, n=5).events[kernel.rings["a"], 0]
    assert sum(event.kind == "commit" for event in found) == slots


@pytest.mark.parametrize("operation", ["floordivsi", "ceildivsi"])
def test_a_promised_dividend_is_not_negative(operation: str) -> None:
    kernel = halved(operation, PLAIN)
    assert kernel.run(m=5, n=5).events
    with pytest.raises(SpecError, match="promised operands of at least 0 and 1, got -1 and 2"):
        kernel.run(m=4, n=5)


@pytest.mark.parametrize("operation", ["minsi", "addi", "floordivsi"])
def test_a_count_may_be_computed_of_numbers_alone(operation: str) -> None:
    def body(inner: str) -> str:
        return f"""%count = arith.{operation} %four, %c2 : i32
    scf.for %i = %c0 to %count step %c1 : i32 {{ {inner} }}"""

    kernel = Kernel(role("fill", body(fill("a")), first=0), role("use", body(use("a")), first=1))
    found = kernel.run().events[kernel.rings["a"], 0]
    expected = {"minsi": 2, "addi": 6, "floordivsi": 2}[operation]
    assert sum(event.kind == "commit" for event in found) == expected


def test_a_divisor_below_zero_is_unsigned_as_in_code() -> None:
    """m - 1 sequences of a call that names no end: nothing is to do, and that is proved."""

    def body(inner: str) -> str:
        return f"""%less = arith.subi %m, %c1 : i32
    %share = arith.floordivsi %four, %less {PLAIN} : i32
    scf.for %i = %c0 to %share step %c1 : i32 {{ {inner} }}"""

    kernel = Kernel(role("fill", body(fill("a")), first=0), role("use", body(use("a")), first=1))
    assert not kernel.run(m=0).events
    assert kernel.run(m=3).events


def test_promises_are_kept_apart() -> None:
    """The two agree on what is promised alone."""
    assert halved("floordivsi").count("commit") != halved("floordivsi", PLAIN).count("commit")


def test_a_group_uses_its_instance() -> None:
    kernel = Kernel(
        role("fill", fill("a", instance="%g"), first=0, warps=2, groups=2, lanes=32), instances=2
    )
    assert [member.label for member in kernel.members] == ["fill[0]", "fill[1]"]
    for number, member in enumerate(kernel.members):
        found = Counting(kernel.op, member).steps()
        assert [instance for _, instance, _ in found] == [number, number]


def test_an_instance_must_be_known() -> None:
    kernel = Kernel(role("fill", fill("a", instance="%m"), first=0))
    with pytest.raises(
        VerifyError, match="expects an instance that is constant or the role's group"
    ):
        kernel.count("acquire")


def test_bounds_of_a_loop_in_a_loop_are_not_counted() -> None:
    body = (
        "scf.for %i = %c0 to %m step %c1 : i32 {"
        f"  scf.for %j = %c0 to %i step %c1 : i32 {{ {fill('a')} }} }}"
    )
    with pytest.raises(VerifyError, match="'ws.role' op has a loop bound that depends on a loop"):
        Kernel(role("fill", body, first=0)).count("acquire")


@pytest.mark.parametrize(
    ("step", "m", "turns"), [("%c2", 0, 0), ("%c2", 5, 3), ("%c2", 6, 3), ("%c128", 129, 2)]
)
def test_loops_may_count_in_steps(step: str, m: int, turns: int) -> None:
    """The formula, the simulation, the tally and the number of turns agree."""
    lines = ("scf.for %i = %c0 to %m step", ": i32 {")
    kernel = Kernel(
        role("fill", f"{lines[0]} {step} {lines[1]} {fill('a')} }}", first=0),
        role("use", f"{lines[0]} {step} {lines[1]} {use('a')} }}", first=1),
    )
    assert kernel.count("acquire") == f"ceildiv(m, {step.removeprefix('%c')})"
    filler = kernel.members[0]
    assert trips(filler.body, {"m": m}) == turns
    assert tally(filler.body, {"m": m})["commit", kernel.rings["a"], 0] == turns
    assert step_count(filler.body, {"m": m}) == 2 * turns
    ((body, count),) = turning(kernel.members)
    assert (trips(body, {"m": m}), count) == (turns, 2)
    events = kernel.run(m=m).events[kernel.rings["a"], 0]
    assert Counter(event.kind for event in events)["release"] == turns


@pytest.mark.parametrize(("step", "got"), [("%c0", "0"), ("%n", "n")])
def test_steps_of_loops_are_constants(step: str, got: str) -> None:
    body = f"scf.for %i = %c0 to %m step {step} : i32 {{ {fill('a')} }}"
    with pytest.raises(
        VerifyError,
        match=f"'scf.for' op expects a constant step of at least 1 around ring operations, got {got}",
    ):
        Kernel(role("fill", body, first=0))


@pytest.mark.parametrize(
    ("division", "dividend", "count"),
    [
        ("floordivsi", "%m", "floordiv(m, 128)"),
        ("divui", "%m", "floordiv(m, 128)"),
        ("ceildivui", "%m", "ceildiv(m, 128)"),
        ("divui", "%less", "divui(m - 2, 128)"),
    ],
)
def test_unsigned_divisions_count_as_plain_ones_of_sizes(
    division: str, dividend: str, count: str
) -> None:
    body = (
        f"%less = arith.subi %m, %c2 : i32\n%t = arith.{division} {dividend}, %c128 : i32\n"
        f"scf.for %i = %c0 to %t step %c1 : i32 {{ {fill('a')} }}"
    )
    assert Kernel(role("fill", body, first=0)).count("acquire") == count


@pytest.mark.parametrize("predicate", ["ult", "uge"])
def test_unsigned_comparisons_do_not_decide(predicate: str) -> None:
    body = f"%some = arith.cmpi {predicate}, %m, %c2 : i32\nscf.if %some {{ {fill('a')} }}"
    with pytest.raises(VerifyError, match="'arith.cmpi' op decides over ring operations, but"):
        Kernel(role("fill", body, first=0))


@pytest.mark.parametrize("where", ["%g", "%i"])
def test_elements_that_decide_stay_in_one_place(where: str) -> None:
    """One name stands for one value: not for what groups or turns find in different places."""
    header, column = "operandSegmentSizes = array<i32: 1, 3>", "memref<?x?x4xbf16>, i32, i32, i32"
    body = f"""scf.for %i = %c0 to %m step %c1 : i32 {{
      %e = "ws.element"(%x, {where}, %c0, %c0) {{{header}}} : ({column}) -> bf16
      %some = arith.cmpi sgt, %w, %c0 : i32
      scf.if %some {{ {fill("a")} }} }}"""
    body = body.replace("%some =", "%w = arith.fptosi %e : bf16 to i32\n%some =")
    with pytest.raises(VerifyError, match="depends on data"):
        Kernel(role("fill", body, first=0))


def test_sizes_that_decide_are_known() -> None:
    body = f"scf.for %i = %c0 to %m step %c1 : i32 {{ {fill('a')} }}\n{fill('b')}"
    kernel = Kernel(role("fill", body, first=0), role("use", use("a") + use("b"), first=1))
    assert [set(member.sizes) for member in kernel.members] == [{"m"}, set()]
    assert [step.kind for step in steps(kernel.members[1])].count("wait") == 2


def decided(then: str, otherwise: str) -> str:
    """A slot of `a` handed back by one of two branches; data decide."""
    return f"""%slot = "ws.wait"(%a, %c0) : (!ring, i32) -> !t
    %e = "ws.element"(%x, %c0, %c0, %c0) {{operandSegmentSizes = array<i32: 1, 3>}}
      : (memref<?x?x4xbf16>, i32, i32, i32) -> bf16
    %none = arith.constant 0.0 : bf16
    %given = arith.cmpf ogt, %e, %none : bf16
    scf.if %given {{ {then} }} else {{ {otherwise} }}
    """


def test_data_may_decide_between_the_same_handovers() -> None:
    back = '"ws.release"(%slot) {by = "threads"} : (!t) -> ()'
    kernel = Kernel(role("fill", fill("a"), first=0), role("use", decided(back, back), first=1))
    assert sorted(step.kind for step in steps(kernel.members[1])) == ["release", "wait"]
    assert kernel.members[1].sizes == frozenset()


@pytest.mark.parametrize(
    ("then", "otherwise"),
    [
        ('"ws.release"(%slot) {by = "threads"} : (!t) -> ()', ""),
        (
            '"ws.release"(%slot) {by = "threads"} : (!t) -> ()',
            '"ws.release"(%slot) {by = "tensor_core"} : (!t) -> ()',
        ),
        (use("b"), use("b")),  # slots of their own: what is taken where depends on the branch
    ],
)
def test_data_may_not_decide_otherwise(then: str, otherwise: str) -> None:
    with pytest.raises(VerifyError, match="depends on data"):
        Kernel(role("fill", fill("a"), first=0), role("use", decided(then, otherwise), first=1))
