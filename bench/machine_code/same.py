"""Whether two pieces of PTX are the same but for the names of registers and labels.

Names are numbered by their first appearance, register class by register class; line notes and
comments are left out. What remains is compared line by line.

The loops of a kernel in PTX: from a label to a branch back to it. The softmax loop of unmasked
tiles is the one with at least 64 `ex2.approx` that selects least, as in machine code (`loops.py`).
A loop has no first line but by the backend's choice: it is written from where it loads scores.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

MIN_EXPONENTIALS = 64
_NAME = re.compile(r"%(?P<kind>[a-z]+)(?P<number>\d+)\b|(?P<label>\$?L[_A-Za-z]*[_\d]+\b)")
_LABEL = re.compile(r"^(\$L\w+):")
_BRANCH = re.compile(r"\bbra(?:\.uni)?\s+(\$L\w+)")


def code_lines(text: str) -> list[str]:
    """The lines of a kernel that are instructions or labels, without comments."""
    stripped = (line.partition("//")[0].strip() for line in text.splitlines())
    return [line for line in stripped if line and not line.startswith((".loc", ".file"))]


def softmax_loop(ptx: str) -> list[str]:
    """The lines of the loop over unmasked tiles, from its first load from tensor memory on.

    Raises:
      ValueError: no loop has MIN_EXPONENTIALS of them.
    """
    lines = code_lines(ptx)
    labels = {match[1]: n for n, line in enumerate(lines) if (match := _LABEL.match(line))}
    found: list[list[str]] = []
    for end, line in enumerate(lines):
        match = _BRANCH.search(line)
        if match and (begin := labels.get(match[1], end)) < end:
            body = lines[begin : end + 1]
            if sum("ex2.approx" in item for item in body) >= MIN_EXPONENTIALS:
                found.append(body)
    if not found:
        raise ValueError(f"no loop has {MIN_EXPONENTIALS} exponentials")
    body = min(found, key=lambda body: (sum("selp" in item for item in body), len(body)))
    first = next((n for n, line in enumerate(body) if line.startswith("tcgen05.ld")), 0)
    return body[first:] + body[:first]


def canonical(lines: Sequence[str]) -> list[str]:
    """The lines with names numbered by their first appearance."""
    names: dict[tuple[str, str], str] = {}
    counts: dict[str, int] = {}

    def rename(match: re.Match[str]) -> str:
        kind, number = match["kind"] or "label", match["number"] or match["label"]
        if (kind, number) not in names:
            names[kind, number] = f"%{kind}#{counts.get(kind, 0)}"
            counts[kind] = counts.get(kind, 0) + 1
        return names[kind, number]

    return [_NAME.sub(rename, line) for line in lines]


def differing_lines(a: Sequence[str], b: Sequence[str]) -> int:
    """Lines of the shortest edit from one piece to the other, after renaming."""
    matcher = difflib.SequenceMatcher(None, canonical(a), canonical(b), autojunk=False)
    edits = (op for op in matcher.get_opcodes() if op[0] != "equal")
    return sum(max(i2 - i1, j2 - j1) for _, i1, i2, j1, j2 in edits)
