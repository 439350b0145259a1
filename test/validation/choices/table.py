"""The table of choices: what every call of the grid comes to, kept as a compressed text.

    python -m attn_mlir.validation.choices.table            what differs from the kept table, row by row
    python -m attn_mlir.validation.choices.table --write    the same, and keeps what is chosen now

A row is `call | outcome`: the kernels with the options that the call chose and the workspace, or the
refusal. Below the calls is a row for each of their kernels: its schedule with tiles, stages and registers.
Exits with 1 when rows differ and are not written.
"""

from __future__ import annotations

import argparse
import lzma
import sys
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path

from attn_mlir.validation.choices.case import Case
from attn_mlir.validation.choices.grid import cases
from attn_mlir.validation.choices.outcome import Configurator, kernel_key, of_call

KEPT = Path(__file__).resolve().parents[3] / "test" / "frontend" / "compiling" / "choices.txt.xz"
COMMAND = "python -m attn_mlir.validation.choices.table --write"
SEPARATOR = " | "
MISSING = "(no row)"


def rows_of(chosen: Iterable[Case]) -> dict[str, str]:
    """The rows of these calls and of their kernels, as they come out now."""
    calls: dict[str, str] = {}
    kernels: dict[str, str] = {}
    configured = Configurator()
    for case in chosen:
        calls[str(case)], requests = of_call(case)
        for request in requests:
            name = f"kernel {case.target} {kernel_key(request)}"
            if name not in kernels:
                kernels[name] = configured(request, case.target)
    return calls | kernels


def sample(share: int) -> list[Case]:
    """One in `share` calls of the grid, always the same ones, spread over all sections."""
    return [case for case in cases() if zlib.crc32(str(case).encode()) % share == 0]


def kept_rows(path: Path = KEPT) -> dict[str, str]:
    """The rows of the kept table; none where there is no file."""
    if not path.exists():
        return {}
    lines = lzma.decompress(path.read_bytes()).decode().splitlines()
    pairs = (line.partition(SEPARATOR) for line in lines)
    return {call: outcome for call, _, outcome in pairs}


def write_rows(rows: Mapping[str, str], path: Path = KEPT) -> None:
    """Keeps these rows; the same rows make the same bytes."""
    text = "".join(f"{call}{SEPARATOR}{outcome}\n" for call, outcome in rows.items())
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(lzma.compress(text.encode(), preset=9))


def differences(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    """A line for each row that differs: the call, what was kept, and what comes out now."""
    return [
        f"{call}\n  old: {old.get(call, MISSING)}\n  new: {new.get(call, MISSING)}"
        for call in dict.fromkeys([*old, *new])
        if old.get(call) != new.get(call)
    ]


def main() -> None:
    """Compares, and writes where that is asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="keep what is chosen now")
    args = parser.parse_args()
    rows = rows_of(cases())
    changed = differences(kept_rows(), rows)
    print(*changed, f"{len(changed)} of {len(rows)} rows differ", sep="\n")
    if args.write:
        write_rows(rows)
    elif changed:
        sys.exit(1)


if __name__ == "__main__":
    main()
