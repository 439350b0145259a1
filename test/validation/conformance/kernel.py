"""A kernel that a program launches and a formula judges; nothing but the standard library is imported here."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

PACKAGES = {
    "fa4": "flash-attn-4",
    "flashinfer": "flashinfer-python",
    "nvcc": "flashinfer-python",
    "quack": "quack-kernels",
    "triton": "triton",
}


@dataclass(frozen=True)
class Known:
    """A finding that a kernel is known for: docs/findings.md says why it stands.

    Attributes:
      check: which checker's.
      instruction: how the PTX line begins that it is noticed at, a predicate in front of it left out.
    """

    check: str
    instruction: str


@dataclass(frozen=True)
class Fault:
    """What a kernel gets wrong: docs/findings.md has the lines.

    Attributes:
      what: in one line.
      schedules: how the names of those begin under which it does; empty for all.
    """

    what: str
    schedules: str = "adv"


@dataclass(frozen=True)
class Kernel:
    """A kernel with a program that launches it and a formula that says what is right.

    Attributes:
      program: `MODULE.FUNCTION` of `programs`, and a key of `formulas.FORMULAS`.
      what: it computes; `title` adds the target where it is not sm_100a.
      sizes: arguments of both.
      known: findings that there are, and no others.
      mended: what is replaced in its PTX, as a regular expression and what takes its place.
      fault: why runs may go wrong; None where none may.
    """

    name: str
    program: str
    what: str
    sizes: dict[str, Any]
    target: str = "sm_100a"
    known: tuple[Known, ...] = field(default=(), repr=False)  # no part of what is compiled
    mended: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    fault: Fault | None = field(default=None, repr=False)

    @property
    def module(self) -> str:
        """The module of `programs` that launches it."""
        return self.program.partition(".")[0]

    @property
    def function(self) -> str:
        """The function in that module."""
        return self.program.partition(".")[2]

    @property
    def package(self) -> str:
        """Where the kernel is from."""
        return PACKAGES[self.module]

    @property
    def is_triton(self) -> bool:
        """Whether Triton compiles it, and CuTe DSL does not."""
        return self.module == "triton"

    @property
    def is_nvcc(self) -> bool:
        """Whether nvcc compiles it from CUDA C++."""
        return self.module == "nvcc"

    @property
    def title(self) -> str:
        """What the kernel computes, in one line."""
        return self.what if self.target == "sm_100a" else f"{self.what}, {self.target}"


def kernel(
    name: str,
    program: str,
    what: str,
    *known: Known,
    target: str = "sm_100a",
    mended: tuple[tuple[str, str], ...] = (),
    fault: Fault | None = None,
    **sizes: Any,
) -> Kernel:
    """A case whose further keywords are its sizes."""
    return Kernel(name, program, what, sizes, target, known, mended, fault)
