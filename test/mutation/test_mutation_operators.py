"""The operators change what they say and nothing else."""

from __future__ import annotations

from dataclasses import asdict, replace
from datetime import date
from pathlib import Path

import pytest

from attn_mlir.validation.journal import Journal
from attn_mlir.validation.mutation.mutants import identity, sample
from attn_mlir.validation.mutation.operators import OPERATORS, Mutant, mutants_of, negated, parse
from attn_mlir.validation.mutation.outcomes import (
    BEGIN,
    END,
    Outcome,
    page,
    score,
    table,
    write_page,
)
from attn_mlir.validation.mutation.subjects import Subject

TEXT = """.visible .entry k()
{
	mbarrier.init.shared.b64 	[bars+8], %r7;
	fence.mbarrier_init.release.cluster;
	mbarrier.try_wait.parity.shared.b64 P1, [%r1+16], %r2, 10000000;
	@%p1 mbarrier.arrive.shared.b64 	%rd9, [%r1];
	mbarrier.arrive.expect_tx.shared.b64 %rd152, [bars], 32768;
	cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%rd1], [%rd2, {%r5, %r6}], [bars]; // load
	@leader tcgen05.mma.cta_group::1.kind::f16 [%r9], %rd30, %rd28, %r97, 1;
	tcgen05.mma.cta_group::1.kind::f16 [%r9], [%r10], %rd28, %r97, %p2;
	tcgen05.ld.sync.aligned.32x32b.x2.b32 {%r30, %r31}, [%r9+32];
	tcgen05.wait::ld.sync.aligned;
	bar.sync 	0;
	ret;
}"""


def _of(operator: str) -> list[Mutant]:
    every = set(range(1, TEXT.count("\n") + 2))
    return [mutant for mutant in mutants_of(TEXT, every) if mutant.operator == operator]


def test_statements_are_parsed() -> None:
    statement = parse("\t@%p1 tcgen05.ld.sync.aligned.32x32b.x2.b32 {%r1, %r2}, [%r9+4]; // text")
    assert statement is not None
    assert statement.guard == "@%p1 " and statement.operands == ("{%r1, %r2}", "[%r9+4]")
    assert parse("$L__BB0_1:") is None and parse("\t.reg .b32 %r<9>;") is None


@pytest.mark.parametrize(
    ("operator", "line", "text"),
    [
        ("drop-wait", 5, "setp.eq.u32 P1, 0, 0;"),
        ("flip-parity", 5, "{ .reg .b32 MUTATED; xor.b32 MUTATED, %r2, 1; mbarrier.try_wait.parity.shared.b64 P1, [%r1+16], MUTATED, 10000000; }"),
        ("drop-fence", 4, ""),
        ("drop-arrive", 6, ""),
        ("wrong-barrier", 6, "@%p1 mbarrier.arrive.shared.b64 %rd9, [%r1+8];"),
        ("expect-bytes", 7, "mbarrier.arrive.expect_tx.shared.b64 %rd152, [bars], 32752;"),
        ("shrink-count", 3, "{ .reg .b32 MUTATED; add.s32 MUTATED, %r7, -1; mbarrier.init.shared.b64 [bars+8], MUTATED; }"),
        ("swap-descriptors", 9, "@leader tcgen05.mma.cta_group::1.kind::f16 [%r9], %rd28, %rd30, %r97, 1;"),
        ("tensor-column", 11, "tcgen05.ld.sync.aligned.32x32b.x2.b32 {%r30, %r31}, [%r9+36];"),
        ("drop-barrier", 13, ""),
    ],
)  # fmt: skip
def test_what_an_operator_does(operator: str, line: int, text: str) -> None:
    mutant = next(m for m in _of(operator) if m.line == line)
    assert mutant.text == text
    changed, before = mutant.apply(TEXT).split("\n"), TEXT.split("\n")
    assert [n for n, (a, b) in enumerate(zip(changed, before, strict=True), 1) if a != b] == [line]


def test_a_product_of_a_mutant_is_negated_by_its_descriptor() -> None:
    product = next(m for m in _of("shift-operand") if m.line == 9)
    flipped = "{ .reg .b32 NEGATED; xor.b32 NEGATED, %r97, 8192; "
    mma = "tcgen05.mma.cta_group::1.kind::f16 [%r9]"
    assert negated(product.original, product.original) == (
        f"{flipped}@leader {mma}, %rd30, %rd28, NEGATED, 1; }}"
    )
    shift = "{ .reg .b64 MUTATED; add.s64 MUTATED, %rd28, 64; "
    assert negated(product.original, product.text) == (
        f"{flipped}{shift}@leader {mma}, %rd30, MUTATED, NEGATED, 1; }} }}"
    )


def test_one_instruction_of_a_block_is_changed() -> None:
    mma = "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%r1, %r2, %r3, %r4}, {%r5, %r6, %r7, %r8}, b0, 1, 1, 1, 0;"
    begin, end = "{ .reg .b64 b0; mov.b64 b0, %rd1; wgmma.fence.sync.aligned;", "}"
    block = f"{begin} {mma} wgmma.commit_group.sync.aligned; {end}"
    texts = {m.operator: m.text for m in mutants_of(block, {1})}
    assert set(texts) == {"drop-fence", "swap-registers", "shift-operand", "drop-commit"}
    assert "fence" not in texts["drop-fence"] and mma in texts["drop-fence"]
    swapped = block.replace("%r5, %r6", "%r6, %r5")
    assert "".join(texts["swap-registers"].split()) == "".join(swapped.split())
    assert "add.s64 MUTATED, b0, 64;" in texts["shift-operand"]
    assert negated(block, block) == block.replace("b0, 1, 1, 1, 0", "b0, 1, -1, 1, 0")


def test_operators_keep_to_their_statements() -> None:
    assert [m.line for m in _of("swap-descriptors")] == [9]
    assert [m.line for m in _of("shift-operand")] == [9, 10]
    assert [m.line for m in _of("drop-arrive")] == [6]


def test_lines_that_do_not_run_get_no_mistake() -> None:
    assert {m.line for m in mutants_of(TEXT, {4, 5})} == {4, 5}


def test_samples_are_repeatable_and_bounded() -> None:
    mutants = [Mutant("drop-wait", n, "", "") for n in range(50)]
    mutants += [Mutant("drop-fence", n, "", "") for n in range(3)]
    chosen = sample(mutants, 5, 1)
    assert chosen == sample(mutants, 5, 1) != sample(mutants, 5, 2)
    assert len(chosen) == 8 and sample(mutants, 0, 1) == mutants
    assert set(OPERATORS) >= {m.operator for m in chosen}


def _outcome(caught: str, detail: str = "", reason: str = "") -> Outcome:
    return Outcome("k", "drop-wait", 1, "the line", caught, detail, "fair", reason)


OUTCOMES = [
    _outcome("checker", "race"),
    _outcome("numbers", "o"),
    _outcome("", reason="why"),
    _outcome(""),
]


def test_the_score_leaves_out_what_is_no_mistake() -> None:
    assert score(OUTCOMES) == pytest.approx(200 / 3)
    assert "| `drop-wait` | 4 | race 1 |  |  | 1 | 1 | 1 |" in table(OUTCOMES)


def test_the_page_lists_what_was_missed_and_why_others_are_none(tmp_path: Path) -> None:
    text = page(OUTCOMES, date(2026, 1, 2), 3.4, 2, 6)
    assert "2026-01-02, 3 s: 4 mutants" in text and "of the other 3, 2 are caught (66.7 %)" in text
    assert "- k, drop-wait, line 1: `the line`" in text and "- 1 of `drop-wait`: why" in text
    file = tmp_path / "page.md"
    file.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    write_page(text, file)
    assert file.read_text() == f"before\n{BEGIN}\n{text}\n{END}\nafter\n"
    file.write_text("no place")
    with pytest.raises(SystemExit, match="no place for the table"):
        write_page(text, file)


def test_a_journal_knows_the_same_mutant_of_the_same_kernel(tmp_path: Path) -> None:
    subject = Subject("k", TEXT, "k", lambda ptx, schedule: {}, lambda outputs: "")
    first, second = _of("drop-wait")[0], _of("drop-fence")[0]
    path, judge = tmp_path / "folder" / "journal", tmp_path / "judge.py"
    judge.write_text("strict")
    journal = Journal(path, [tmp_path])
    assert journal.find(*identity(subject, first)) is None
    journal.add(asdict(OUTCOMES[0]), *identity(subject, first))
    again = Journal(path, [tmp_path])
    assert Outcome(**(again.find(*identity(subject, first)) or {})) == OUTCOMES[0]
    assert again.find(*identity(subject, second)) is None
    other = replace(subject, ptx=TEXT.replace("%r7", "%r8"))
    assert again.find(*identity(other, first)) is None
    judge.write_text("lax")
    assert Journal(path, [tmp_path]).find(*identity(subject, first)) is None
