"""Kernels for tests of the checkers: correct as written, wrong when one marked line is left out.

A line that begins with `<name>` belongs to that name: `program(body, cut="name")` leaves its lines out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from attn_mlir.runtime.emulator import Emulator, KernelFault
from attn_mlir.runtime.emulator.checkers import Finding
from attn_mlir.validation.emulator.ptx_bench import module, run_module, wait

SHARED = (
    ".shared .align 8 .b8 bar[64];\n.shared .align 4 .b8 slot[16];\n"
    ".shared .align 1024 .b8 buffer[8192];"
)
START = "mov.u32 r60, %tid.x; shr.u32 r61, r60, 5; mov.u32 r1, bar; mov.u32 r2, buffer; setp.eq.u32 p1, r60, 0; setp.lt.u32 p2, r60, 32; shl.b32 r3, r60, 2; add.u32 r3, r3, r2;"
_MARK = re.compile(r"^\s*<(\w+)>(.*)$")


def names_in(body: str) -> list[str]:
    """The names whose lines can be left out, in order of appearance."""
    found = [match.group(1) for line in body.splitlines() if (match := _MARK.match(line))]
    return list(dict.fromkeys(found))


def program(
    body: str, cut: str = "", params: str = "", *, shared: str = SHARED, target: str = "sm_100a"
) -> str:
    """The module of a body; the lines of `cut` are left out."""
    assert not cut or cut in names_in(body), f"no line is called {cut}"
    lines: list[str] = []
    for line in body.splitlines():
        match = _MARK.match(line)
        if match is None:
            lines.append(line)
        elif match.group(1) != cut:
            lines.append(match.group(2))
    return module(START + "\n" + "\n".join(lines), params, before=shared, target=target)


def findings_of(
    text: str, params: Sequence[Any] = (), *, check: str = "all", **options: Any
) -> list[Finding]:
    """Everything that the checkers find in a launch; other faults count as what ends it.

    Args:
      options: of `run_module` and, as `schedule`, `seed`, `target` and `strict_reads`, of the emulator.
    """
    names = ("schedule", "seed", "target", "strict_reads")
    machine = {key: options.pop(key) for key in names if key in options}
    emulator = Emulator(check=check, check_mode="collect", **machine)
    try:
        run_module(text, params, emulator=emulator, **options)
    except KernelFault:
        if not emulator.findings:
            raise
    return emulator.findings


def line_of(text: str, part: str, which: int = 0) -> int:
    """1-based number of the `which`-th line that contains `part`."""
    lines = [n for n, line in enumerate(text.splitlines(), 1) if part in line]
    return lines[which]


__all__ = ["SHARED", "START", "findings_of", "line_of", "names_in", "program", "wait"]
