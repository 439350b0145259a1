"""What became of mutants, and the page's part about them."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from attn_mlir.validation.mutation.operators import OPERATORS

BEGIN, END = "<!-- mutants: begin -->", "<!-- mutants: end -->"
HEADINGS = (
    "mistake",
    "mutants",
    "checkers",
    "machine",
    "deadlock",
    "numbers",
    "no mistake",
    "missed",
)


@dataclass(frozen=True)
class Outcome:
    """What became of a mutant.

    Attributes:
      caught: "checker", "fault", "deadlock", "numbers", "hang", or "" when nothing noticed.
      detail: the check or fault kind. schedule: under which schedule.
      reason: why it is no mistake; "" for one that was caught or missed.
    """

    subject: str
    operator: str
    line: int
    original: str
    caught: str
    detail: str
    schedule: str
    reason: str

    def __str__(self) -> str:
        what = f"{self.caught} {self.detail} ({self.schedule})" if self.caught else self.reason
        where = f"{self.subject} {self.operator}@{self.line}"
        return f"{where}: {what}" if what else f"{where}: MISSED\n    {shortened(self.original)}"


def shortened(text: str) -> str:
    """The beginning of a line: a block of products is several thousand characters long."""
    return text if len(text) <= 120 else f"{text[:117]}..."


def score(outcomes: Iterable[Outcome]) -> float:
    """Percentage caught of the mutants that are mistakes."""
    wrong = [o for o in outcomes if o.caught or not o.reason]
    return 100 * sum(1 for o in wrong if o.caught) / max(1, len(wrong))


def _row(name: str, chosen: list[Outcome]) -> str:
    def kinds(caught: str) -> str:
        counts = Counter(o.detail for o in chosen if o.caught == caught)
        return ", ".join(f"{kind} {count}" for kind, count in counts.most_common())

    def number(count: int) -> str:
        return str(count or "")

    cells = (
        name,
        str(len(chosen)),
        kinds("checker"),
        kinds("fault"),
        number(sum(o.caught in ("deadlock", "hang") for o in chosen)),
        number(sum(o.caught == "numbers" for o in chosen)),
        number(sum(bool(o.reason) for o in chosen)),
        number(sum(not o.caught and not o.reason for o in chosen)),
    )
    return f"| {' | '.join(cells)} |"


def table(outcomes: list[Outcome]) -> str:
    """Markdown: operators by who caught their mutants."""
    lines = [f"| {' | '.join(HEADINGS)} |", "| --- | ---: | --- | --- " + "| ---: " * 4 + "|"]
    for operator in OPERATORS:
        chosen = [o for o in outcomes if o.operator == operator]
        if chosen:
            lines.append(_row(f"`{operator}`", chosen))
    lines.append(_row("all", outcomes))
    return "\n".join(lines)


def page(outcomes: list[Outcome], day: date, seconds: float, per_operator: int, seeds: int) -> str:
    """The table, what was missed, and what is no mistake and why.

    Args:
      per_operator: mutants sampled of each operator and kernel, 0 for all.
      seeds: adversarial schedules.
    """
    wrong = [o for o in outcomes if o.caught or not o.reason]
    caught = sum(bool(o.caught) for o in wrong)
    much = f"at most {per_operator} of each mistake per kernel" if per_operator else "all of them"
    names = ", ".join(f"`{name}`" for name in dict.fromkeys(o.subject for o in outcomes))
    lines = [
        f"{day.isoformat()}, {seconds:.0f} s: {len(outcomes)} mutants ({much}) of {names}. "
        f"{len(outcomes) - len(wrong)} change nothing in these launches; of the other "
        f"{len(wrong)}, {caught} are caught ({score(outcomes):.1f} %), under the fair schedule or the first "
        f"of {seeds} adversarial ones that shows it.",
        "",
        table(outcomes),
    ]
    missed = [o for o in outcomes if not o.caught and not o.reason]
    if missed:
        lines += ["", "Missed:", ""]
        lines += [
            f"- {o.subject}, {o.operator}, line {o.line}: `{shortened(o.original)}`" for o in missed
        ]
    reasons = Counter((o.reason, o.operator) for o in outcomes if o.reason)
    if reasons:
        lines += [
            "",
            "No mistake in these launches, by what a run of the unmodified kernel shows (`test/validation/mutation/evidence.py`):",
            "",
        ]
        lines += [f"- {count} of `{name}`: {why}" for (why, name), count in reasons.most_common()]
    return "\n".join(lines)


def write_page(text: str, path: Path) -> None:
    """Put the text between its markers.

    Raises:
      SystemExit: the page has no markers.
    """
    head, begin, rest = path.read_text().partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        sys.exit(f"{path} has no place for the table: {BEGIN} and {END}")
    path.write_text(f"{head}{BEGIN}\n{text}\n{END}{tail}")
