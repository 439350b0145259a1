"""The ring protocol in Python: formulas of counts, and which step precedes which."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import ir, make_context
from attn_mlir.errors import SpecError, VerifyError
from attn_mlir.passes.analysis.protocol import sums
from attn_mlir.passes.analysis.protocol.counts import Counting
from attn_mlir.passes.analysis.protocol.simulate import Network, Trace, precedes
from attn_mlir.passes.analysis.protocol.skeleton import processes, steps, tally, trips
from attn_mlir.passes.plan_memory import arrivals
from attn_mlir.passes.verify_rings import prove

HEADER = """
!t = !ws.tile<vector<8x64xbf16>, "shared">
!ring = !ws.ring<!t, {stages}, {ways}>
"ws.kernel"() ({{
^bb0(%x: memref<?x?x4xbf16>):
  %a = "ws.alloc_ring"() {{label_name = "a"{producers}}} : () -> !ring
  %b = "ws.alloc_ring"() {{label_name = "b"}} : () -> !ring
  %c = "ws.alloc_ring"() {{label_name = "c"}} : () -> !ring
{roles}
}}) {{sym_name = "k", arg_names = ["x"], arg_roles = ["in"], arg_dims = [["m", "n", ""]]}} : () -> ()
"""
ROLE = """
  "ws.role"() ({{
  ^bb0(%g: i32):
    %c0 = arith.constant 0 : i32
    %c1 = arith.constant 1 : i32
    %c2 = arith.constant 2 : i32
    %c128 = arith.constant 128 : i32
    %m = "ws.extent"(%x) {{dim = 0 : i64}} : (memref<?x?x4xbf16>) -> i32
    %n = "ws.extent"(%x) {{dim = 1 : i64}} : (memref<?x?x4xbf16>) -> i32
    %four = "ws.extent"(%x) {{dim = 2 : i64}} : (memref<?x?x4xbf16>) -> i32
    {body}
  }}) {{label_name = "{label}", warps = array<i32: {first}, {warps}>, groups = {groups} : i64,
      lanes = {lanes} : i64, registers = 0 : i64}} : () -> ()
"""


def role(
    label: str, body: str, *, first: int, warps: int = 1, groups: int = 1, lanes: int = 1
) -> str:
    return ROLE.format(label=label, body=body, first=first, warps=warps, groups=groups, lanes=lanes)


NUMBERS = itertools.count()  # slots are named apart


def fill(ring: str, by: str = "copy_engine", way: str = "%c0") -> str:
    slot = f"%s{next(NUMBERS)}"
    return f"""{slot} = "ws.acquire"(%{ring}, {way}) : (!ring, i32) -> !t
    "ws.commit"({slot}) {{by = "{by}"}} : (!t) -> ()
    """


def use(ring: str, by: str = "threads", way: str = "%c0") -> str:
    slot = f"%s{next(NUMBERS)}"
    return f"""{slot} = "ws.wait"(%{ring}, {way}) : (!ring, i32) -> !t
    "ws.release"({slot}) {{by = "{by}"}} : (!t) -> ()
    """


class Kernel:
    """A parsed kernel, with its rings by label; holds the module, which nothing else does."""

    def __init__(self, *roles: str, stages: int = 1, ways: int = 1, producers: str = ""):
        stated = f", {producers}" if producers else ""
        text = HEADER.format(stages=stages, ways=ways, roles="".join(roles), producers=stated)
        self.module = ir.Module.parse(text, make_context())
        (self.op,) = ir.get_ops_of_type(self.module, ws.KernelOp)
        declared = self.op.body.blocks[0].operations
        self.rings = {op.label: op.ring for op in declared if isinstance(op, ws.AllocRingOp)}
        self.members = processes(self.op)

    def count(self, kind: str, ring: str = "a", way: int = 0) -> str:
        """How often the first process does a step, as text."""
        found = Counting(self.op, self.members[0]).steps()
        return sums.text(found[self.rings[ring], way, kind])

    def run(self, **sizes: int) -> Trace:
        return Network(self.members, {"m": 0, "n": 0, **sizes}).run()

    def precedes(self, first: str, second: str, **sizes: int) -> bool:
        return precedes(self.run(**sizes), self.rings[first], self.rings[second])


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


def test_a_group_uses_its_way() -> None:
    kernel = Kernel(role("fill", fill("a", way="%g"), first=0, warps=2, groups=2, lanes=32), ways=2)
    assert [member.label for member in kernel.members] == ["fill[0]", "fill[1]"]
    for number, member in enumerate(kernel.members):
        found = Counting(kernel.op, member).steps()
        assert [way for _, way, _ in found] == [number, number]


def test_a_way_must_be_known() -> None:
    kernel = Kernel(role("fill", fill("a", way="%m"), first=0))
    with pytest.raises(VerifyError, match="expects a way that is constant or the role's group"):
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


def chain(release_a: str, order: str = "after", by_b: str = "threads", lanes: int = 1) -> Kernel:
    """`a` is filled, read by a worker whose release is `release_a`; then the worker fills `b`."""
    early = order == "before"
    read = """%ua = "ws.wait"(%a, %c0) : (!ring, i32) -> !t
    """
    give = f'"ws.release"(%ua) {{by = "{release_a}"}} : (!t) -> ()\n'
    work = read + (fill("b", by_b) + give if early else give + fill("b", by_b))
    return Kernel(
        role("load", fill("a"), first=0),
        role("work", work, first=1, lanes=lanes),
        role("out", use("b"), first=2),
    )


def test_a_thread_s_release_precedes_what_it_does_next() -> None:
    assert chain("threads").precedes("a", "b")
    assert not chain("threads").precedes("b", "a")


def test_a_thread_s_release_says_nothing_of_other_threads() -> None:
    """One thread of the role writes `b` while another still reads `a`."""
    assert not chain("threads", lanes=32).precedes("a", "b")


def test_a_handover_by_all_threads_that_comes_back_says_it() -> None:
    """The role acquires `b` again when `out` has released what all its threads committed."""
    twice = fill("b", "threads") + fill("b", "threads")
    kernel = Kernel(
        role("load", fill("a"), first=0),
        role("work", use("a") + twice, first=1, lanes=32),
        role("out", use("b") + use("b"), first=2),
    )
    events = kernel.run().events[kernel.rings["b"], 0]
    taken = [event for event in events if event.kind == "acquire"]
    filled = [event for event in events if event.kind == "commit"]
    assert [any(map(event.knows, filled)) for event in taken] == [False, True]


def test_what_is_still_read_does_not_precede() -> None:
    assert not chain("threads", order="before").precedes("a", "b")


@pytest.mark.parametrize("agent", ["copy_engine", "tensor_core"])
def test_an_engine_s_release_precedes_nothing_by_itself(agent: str) -> None:
    """The engine goes on while the thread acquires the next ring."""
    assert not chain(agent).precedes("a", "b")


def through_an_engine(agent: str) -> Kernel:
    """An engine reads `a`, then fills `b`; who has waited for `b` acquires `c`, which lies over `a`."""
    work = f"""%ua = "ws.wait"(%a, %c0) : (!ring, i32) -> !t
    %sb = "ws.acquire"(%b, %c0) : (!ring, i32) -> !t
    "ws.release"(%ua) {{by = "{agent}"}} : (!t) -> ()
    "ws.commit"(%sb) {{by = "{agent}"}} : (!t) -> ()
    """
    return Kernel(
        role("load", fill("a"), first=0),
        role("work", work, first=1),
        role("finish", use("b") + fill("c"), first=2),
        role("out", use("c"), first=3),
    )


def test_the_tensor_core_completes_in_order() -> None:
    """Its commit of `b` says that its reads of `a`, issued before, are done."""
    assert through_an_engine("tensor_core").precedes("a", "c")


def test_the_copy_engine_completes_in_any_order() -> None:
    """A transfer that has landed says nothing about another one."""
    assert not through_an_engine("copy_engine").precedes("a", "c")


def test_a_producer_waits_for_every_consumer() -> None:
    """One slot, two turns: the second acquire has seen both releases of the first."""
    twice = fill("a") + fill("a")
    read = use("a") + use("a")
    kernel = Kernel(
        role("fill", twice, first=0), role("left", read, first=1), role("right", read, first=2)
    )
    events = kernel.run().events[kernel.rings["a"], 0]
    first, second = (event for event in events if event.kind == "acquire")
    releases = [event for event in events if event.kind == "release"]
    assert len(releases) == 4
    assert not any(first.knows(release) for release in releases)
    assert sorted(r.who for r in releases if second.knows(r)) == ["left", "right"]


def filled_by_two(second: str) -> Kernel:
    """`a` is filled by two roles together, one slot; `second` is what the second one does."""
    return Kernel(
        role("first", fill("a", "copy_engine") + fill("a", "copy_engine"), first=0),
        role("second", second, first=1, warps=2, lanes=32),
        role("use", use("a") + use("a") + fill("b"), first=3),
        role("end", use("b"), first=4),
        producers='producers = ["thread_copies", "copy_engine"]',
    )


def test_a_slot_is_full_when_all_producers_have_committed() -> None:
    kernel = filled_by_two(fill("a", "thread_copies") + fill("a", "thread_copies"))
    events = kernel.run().events[kernel.rings["a"], 0]
    commits = [event for event in events if event.kind == "commit"]
    assert {commit.who for commit in commits} == {"first", "second"}
    waits = [event for event in events if event.kind == "wait"]
    assert [sum(wait.knows(commit) for commit in commits) for wait in waits] == [2, 4]
    assert arrivals(kernel.rings["a"], kernel.members) == (1 + 64, 1)


def test_an_asynchronous_arrival_says_nothing_of_what_threads_did_besides() -> None:
    """Who waits for copies of `work` does not know that it is done with `a`; of its stores it does."""

    def kernel(agent: str) -> Kernel:
        return Kernel(
            role("load", fill("a"), first=0),
            role("work", use("a") + fill("b", agent), first=1, lanes=32),
            role("end", use("b") + fill("c", "threads"), first=2),
            role("last", use("c"), first=3),
        )

    assert kernel("threads").precedes("a", "c")
    assert not kernel("thread_copies").precedes("a", "c")


def test_every_producer_waits_for_the_consumers() -> None:
    """The second turn of each knows the release of the first."""
    kernel = filled_by_two(fill("a", "thread_copies") + fill("a", "thread_copies"))
    events = kernel.run().events[kernel.rings["a"], 0]
    first = next(event for event in events if event.kind == "release")
    acquires = [event for event in events if event.kind == "acquire"]
    assert sum(event.knows(first) for event in acquires) == 2


def test_a_producer_that_lags_stops_all() -> None:
    kernel = filled_by_two(fill("a", "thread_copies"))
    with pytest.raises(
        VerifyError, match=r"needs a full slot of ring a\[0\], which first and second"
    ):
        kernel.run()
    with pytest.raises(
        VerifyError, match=r"needs a commit by role second for each commit of ring a"
    ):
        prove(kernel.op)


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (fill("a", "threads") + fill("a", "threads"), "states that thread_copies, copy_engine fill slots of ring a"),
        (fill("a", "threads") + fill("a", "thread_copies"), "states that thread_copies, copy_engine"),
    ],
)  # fmt: skip
def test_producers_are_those_stated(second: str, message: str) -> None:
    kernel = filled_by_two(second)
    with pytest.raises(VerifyError, match=message):
        prove(kernel.op)


def test_a_role_hands_over_by_one_agent() -> None:
    mixed = fill("a", "threads") + fill("a", "tensor_core")
    kernel = Kernel(role("fill", mixed, first=0), role("use", use("a") + use("a"), first=1))
    with pytest.raises(VerifyError, match=r"role fill to commit slots of ring a\[0\] by one agent"):
        prove(kernel.op)


def test_copies_of_threads_complete_in_order() -> None:
    """A commit says that all copies before it have landed."""
    text = fill("a", "thread_copies") + fill("b", "thread_copies")
    kernel = Kernel(
        role("fill", text, first=0, lanes=32), role("use", use("b") + use("a"), first=1)
    )
    events = kernel.run().events
    (committed,) = (e for e in events[kernel.rings["a"], 0] if e.kind == "commit")
    (waited,) = (e for e in events[kernel.rings["b"], 0] if e.kind == "wait")
    assert waited.knows(committed)


def test_transfers_complete_in_any_order() -> None:
    """Who has seen the second of two transfers does not know of the first."""
    text = fill("a", "copy_engine") + fill("b", "copy_engine")
    kernel = Kernel(role("fill", text, first=0), role("use", use("b") + use("a"), first=1))
    events = kernel.run().events
    first, second = (
        event for name in "ab" for event in events[kernel.rings[name], 0] if event.kind == "commit"
    )
    seen_b, seen_a = (
        event for name in "ba" for event in events[kernel.rings[name], 0] if event.kind == "wait"
    )
    assert seen_b.knows(second) and not seen_b.knows(first)
    assert seen_a.knows(first) and seen_a.knows(second)


def test_a_deadlock_names_both_sides() -> None:
    left = use("b") + fill("a")
    right = use("a") + fill("b")
    kernel = Kernel(role("left", left, first=0), role("right", right, first=1))
    with pytest.raises(
        VerifyError, match=r"left needs a full slot of ring b\[0\], which right commits; role right"
    ):
        kernel.run()


def test_runs_depend_on_sizes() -> None:
    body = f"scf.for %i = %c0 to %m step %c1 : i32 {{ {fill('a')} }}"
    read = f"scf.for %i = %c0 to %m step %c1 : i32 {{ {use('a')} }}"
    kernel = Kernel(role("fill", body, first=0), role("use", read, first=1), stages=2)
    for m in (0, 1, 5):
        events = kernel.run(m=m).events[kernel.rings["a"], 0]
        assert Counter(event.kind for event in events) == Counter(
            {kind: m for kind in ("acquire", "commit", "wait", "release") if m}
        )


@pytest.mark.parametrize(
    ("commit", "release", "expected"),
    [
        ("copy_engine", "tensor_core", (1, 1)),
        ("threads", "threads", (128, 64)),
        ("tensor_core", "threads", (1, 64)),
    ],
)
def test_arrivals_count_the_threads_of_one_group(
    commit: str, release: str, expected: tuple[int, int]
) -> None:
    """256 threads in two groups fill, 128 in two groups use: each meets one group of the other."""
    kernel = Kernel(
        role("fill", fill("a", commit, "%g"), first=0, warps=8, groups=2, lanes=32),
        role("use", use("a", release, "%g"), first=8, warps=4, groups=2, lanes=32),
        ways=2,
    )
    assert arrivals(kernel.rings["a"], kernel.members) == expected


def test_arrivals_of_several_consumers_add_up() -> None:
    kernel = Kernel(
        role("fill", fill("a"), first=0),
        role("left", use("a", "threads"), first=4, warps=4, lanes=32),
        role("right", use("a", "tensor_core"), first=1),
    )
    assert arrivals(kernel.rings["a"], kernel.members) == (1, 129)


def test_every_way_has_as_many_arrivals() -> None:
    """Way 0 goes to 128 threads, way 1 to one: one number for all ways would hang."""
    kernel = Kernel(
        role("fill", fill("a") + fill("a", way="%c1"), first=0),
        role("many", use("a"), first=4, warps=4, lanes=32),
        role("one", use("a", way="%c1"), first=1),
        ways=2,
    )
    kernel.run()
    with pytest.raises(
        VerifyError,
        match="many arrivals in every way: releases of way 1 have 1, those of way 0 128",
    ):
        arrivals(kernel.rings["a"], kernel.members)


def test_a_way_that_the_call_decides_is_refused_by_the_plan() -> None:
    kernel = Kernel(role("fill", fill("a", way="%m"), first=0), role("use", use("a"), first=1))
    with pytest.raises(VerifyError, match="expects a way that is constant or the role's group"):
        arrivals(kernel.rings["a"], kernel.members)
