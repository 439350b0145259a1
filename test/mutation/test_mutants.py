"""A handful of mistakes in one of our kernels: all of them are noticed. `make mutants` has many more."""

from __future__ import annotations

import functools
import itertools

import pytest

from attn_mlir.validation.mutation.evidence import Evidence, covered
from attn_mlir.validation.mutation.mutants import judge, prepare, sample, verdict
from attn_mlir.validation.mutation.operators import mutants_of
from attn_mlir.validation.mutation.subjects import Subject, ours, ours_hopper
from attn_mlir.validation.numerics.mha_cases import Case, Schedule

HANDFUL = (
    "drop-wait",
    "drop-fence",
    "flip-parity",
    "expect-bytes",
    "swap-descriptors",
    "tensor-column",
)


@functools.cache
def _subject() -> tuple[Subject, Evidence]:
    return prepare(ours("d64", Case(64, "bf16", "full", 256, 384, 1)))


def test_the_kernel_itself_has_no_findings() -> None:
    subject, _ = _subject()
    for schedule in (Schedule("fair"), Schedule("adversarial", 6)):
        assert subject.run(subject.ptx, schedule) == ""


@pytest.mark.slow
def test_only_lines_that_the_subject_reaches_are_changed() -> None:
    subject, _ = _subject()
    reached = subject.executed_lines()
    longer = ours("d64", Case(64, "bf16", "full", 256, 390, 1))
    assert longer.ptx == subject.ptx and longer.executed_lines() - reached
    assert subject.executed_lines() == reached


def test_a_slot_given_back_to_copies_without_its_fence_is_noticed() -> None:
    """Keys enough that the copies fill each slot again; the first fence is the one behind Q, which comes once."""
    subject = ours("streaming", Case(64, "bf16", "full", 1, 1600, 1), schedule="mha-streaming")
    fences = [
        mutant
        for mutant in mutants_of(subject.ptx, subject.executed_lines())
        if mutant.operator == "drop-fence" and "fence.proxy.async" in mutant.original
    ]
    changed = fences[1].apply(subject.ptx)
    assert verdict(subject, changed, Schedule("fair")) == ("checker", "proxy")


@pytest.mark.slow
@pytest.mark.long
def test_a_fence_that_others_cover_is_no_mistake() -> None:
    """The last fence of a tile's epilogue: the fences of the next tile come before their loads are overwritten."""
    case = Case(64, "f16", "full", 512, 384, 1)
    subject, evidence = prepare(ours("persistent", case, tile_order="persistent"))
    fences = [
        mutant
        for mutant in mutants_of(subject.ptx, subject.executed_lines())
        if mutant.operator == "drop-fence" and "before_thread_sync" in mutant.original
    ]
    outcome = judge(subject, fences[-2], evidence)  # the last one comes before dealloc
    assert not outcome.caught and "other fences" in outcome.reason
    needed = judge(subject, fences[-5], evidence)
    assert needed.caught == "checker" and needed.detail == "tensor"


@pytest.mark.slow
@pytest.mark.long
def test_a_product_whose_scores_are_hidden_may_have_other_operands() -> None:
    """The first tile of keys that the CTA takes is visible to its second tile of queries only."""
    subject, evidence = prepare(ours("causal", Case(64, "bf16", "causal", 256, 384, 1)))
    mutants = mutants_of(subject.ptx, subject.executed_lines())
    swaps = [mutant for mutant in mutants if mutant.operator == "swap-descriptors"]
    outcomes = [judge(subject, mutant, evidence) for mutant in swaps[:1] + swaps[-1:]]
    assert not outcomes[0].caught and "no output depends on the product" in outcomes[0].reason
    assert outcomes[1].caught == "numbers"


@pytest.mark.slow
@pytest.mark.long
def test_a_wait_for_what_the_thread_knows_is_no_mistake() -> None:
    """Commits complete in order: who knows that a slot is free knows it of those multiplied before."""
    case = Case(64, "f16", "full", 512, 384, 1)
    subject, evidence = prepare(ours("persistent", case, tile_order="persistent"))
    mutants = mutants_of(subject.ptx, subject.executed_lines())
    waits = {m.line: m for m in mutants if m.operator == "drop-wait"}
    known = [m for m in waits.values() if "knows already" in evidence.reason(m)]
    assert 0 < len(known) < len(waits) / 4
    outcome = judge(subject, known[0], evidence)
    assert not outcome.caught and "knows already" in outcome.reason


@pytest.mark.slow
@pytest.mark.long
def test_dealloc_needs_no_fence_behind_its_barrier() -> None:
    subject, evidence = _subject()
    mutants = mutants_of(subject.ptx, subject.executed_lines())
    fences = [m for m in mutants if "after_thread_sync" in m.original]
    outcome = judge(subject, fences[-1], evidence)
    assert not outcome.caught and "no asynchronous use" in outcome.reason


@pytest.mark.slow
@pytest.mark.long
def test_what_orders_nothing_in_a_kernel_for_hopper_is_no_mistake() -> None:
    """One tile, whose queries are not replaced: a fence before another one's product, two barriers."""
    subject, evidence = prepare(ours_hopper("hopper", Case(64, "bf16", "full", 100, 300, 1)))
    mutants = mutants_of(subject.ptx, subject.executed_lines())
    fences = [m for m in mutants if m.operator == "drop-fence" and "wgmma.fence" in m.original]
    assert judge(subject, fences[1], evidence).detail == "wgmma"
    reason = covered(subject.ptx, fences[2], lambda ptx: subject.launch(ptx, Schedule("fair")))
    assert "other fences" in reason
    barriers = [m for m in mutants if m.operator == "drop-barrier"]
    reasons = [evidence.reason(mutant) for mutant in barriers]
    assert "access, issue and arrive at nothing after it" in reasons[-1]
    before_arrivals = [m for m, r in zip(barriers, reasons, strict=True) if "precedes an" in r]
    assert before_arrivals and all("bar.warp.sync" in m.original for m in before_arrivals)


@pytest.mark.slow
@pytest.mark.parametrize("operator", HANDFUL)
def test_mistakes_are_noticed(operator: str) -> None:
    subject, evidence = _subject()
    mutants = [
        m for m in mutants_of(subject.ptx, subject.executed_lines()) if m.operator == operator
    ]
    mistakes = (m for m in sample(mutants, 8, 0) if not evidence.reason(m))
    outcomes = [judge(subject, mutant, evidence) for mutant in itertools.islice(mistakes, 1)]
    assert [o for o in outcomes if not o.caught] == []


def test_a_wait_for_loads_is_no_mistake_where_the_next_one_comes_before_anybody_relies_on_it() -> (
    None
):
    subject, evidence = _subject()
    dropped = [
        mutant
        for mutant in mutants_of(subject.ptx, subject.executed_lines())
        if mutant.operator == "drop-wait-ld"
    ]
    excused = [m for m in dropped if "wait::ld comes before" in evidence.reason(m)]
    relied_on = [m for m in dropped if m not in excused]
    assert excused and relied_on
    fair = Schedule("fair")
    assert verdict(subject, excused[0].apply(subject.ptx), fair) == ("", "")
    assert verdict(subject, relied_on[0].apply(subject.ptx), fair) == ("checker", "unpromised")
