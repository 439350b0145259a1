"""Loads through the read-only path (`ld.global.nc`) of memory that the same launch writes.

Such a load promises that nobody writes the bytes while the kernel runs, its own threads included:
it may give what was there before a write, whatever orders the two. So any write of such bytes is
wrong, before and after.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from ..ptx.program import Program
from .findings import Access, Finding, User
from .report import StepLog, line_number

PAGE_BYTES = 1 << 12  # of the tables below
MESSAGE = (
    "ld.global.nc promises that nothing writes these bytes while the kernel runs, and another "
    "instruction of this launch does: without .nc the load is an ordinary one"
)


class ConstantReads:
    """Readers of each byte of global memory by the read-only path, and its writers.

    Attributes:
      lines: of the loads through that path; without any, nothing is followed.
    """

    def __init__(self, program: Program):
        self._program = program
        code = program.kernel.instructions
        self.lines = frozenset(i.line for i in code if i.parts[0] == "ld" and i.has("nc"))
        self._tables: dict[tuple[int, bool], npt.NDArray[np.int32]] = {}
        self._users: list[User] = []
        self._numbers: dict[User, int] = {}

    def note(self, step_log: StepLog, starts: Any, width: int, user: User) -> Finding | None:
        """Notes a write, or a load if it is one of these; the finding if an access of the other
        kind came before.

        Args:
          step_log: spells the accesses of a finding.
          starts: addresses from which `width` bytes are accessed.
        """
        is_write = user[2]
        if not is_write and line_number(self._program, user[1]) not in self.lines:
            return None
        addresses = (starts.astype(np.int64)[:, None] + np.arange(width)).reshape(-1)
        pages = addresses // PAGE_BYTES
        number = self._numbers.get(user)
        if number is None:
            self._users.append(user)
            number = self._numbers[user] = len(self._users)
        finding: Finding | None = None
        for page in np.unique(pages).tolist():
            here = addresses[pages == page]
            others = self._table(page, is_write=not is_write)[here % PAGE_BYTES]
            if finding is None and (at := np.flatnonzero(others)).size:
                address = int(here[at[0]])
                earlier = self._users[int(others[at[0]]) - 1]
                place = f"global memory, 0x{address:x}..0x{address + at.size:x}"
                accesses = (_described(step_log, user), _described(step_log, earlier))
                finding = Finding("race", MESSAGE, place, address, at.size, *accesses)
            self._table(page, is_write=is_write)[here % PAGE_BYTES] = number
        return finding

    def _table(self, page: int, *, is_write: bool) -> npt.NDArray[np.int32]:
        """By byte of a page: the number of the last access of a kind; 0 without one."""
        key = (page, is_write)
        if key not in self._tables:
            self._tables[key] = np.zeros(PAGE_BYTES, np.int32)
        return self._tables[key]


def _described(step_log: StepLog, user: User) -> Access:
    who, line, is_write = user
    return step_log.describe(who, "writes" if is_write else "reads", line)
