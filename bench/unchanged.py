"""Whether our kernels are what they were: the PTX of every configuration, variant, family and kernel of latent attention,
against a commit.

    python bench/unchanged.py                   against the commit before the last
    python bench/unchanged.py --against main    against any commit that has this program
    python bench/unchanged.py --only family     kernels whose name contains the text
    python bench/unchanged.py --write DIR       only writes this checkout's PTX, a file per kernel

What differs is printed with its lines and with what ptxas makes of both: registers, instructions, spilled bytes. Exit
code: 0 when every text is the same, 1 when one differs or only one side has it. The other commit is checked out to a
folder of its own, which is removed; about a second of CPU per kernel and side.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from attn_mlir.bench.machine_code import sass
from attn_mlir.bench.machine_code.same import code_lines, differing_lines
from attn_mlir.bench.measuring.checkout import checked_out, linked

TARGET = "sm_100a"


def families(only: str) -> Iterator[tuple[str, Any]]:
    """Each kernel that a family of the numerics launches, by name; nothing is run."""
    from attn_mlir.validation.numerics.families import FAMILIES, kernels, name

    for number, family in enumerate(FAMILIES):
        title = f"family {number} {name(family)}"
        if only in title:
            for order, bundle in enumerate(kernels(number)):
                yield f"{title} {order}", bundle


def configurations(only: str) -> Iterator[tuple[str, Any]]:
    """The configurations and variants of docs/lab/performance.md, compiled."""
    import attn_mlir as am
    from attn_mlir.bench.costs import variants

    for kind in (variants.configurations, variants.variants):
        for name, options in kind():
            title = f"{kind.__name__} {name}"
            if only in title:
                yield title, am.compile(am.mha(**options), target=TARGET)


def latent(only: str) -> Iterator[tuple[str, Any]]:
    """The kernels of latent attention, compiled."""
    import attn_mlir as am
    from attn_mlir.bench.problems import latent_requests

    for name, request in latent_requests.LATENT.items():
        title = f"latent {name}"
        if only in title:
            yield title, am.compile(request(), target=TARGET)


def write(folder: Path, only: str) -> int:
    """Writes the PTX of every kernel; how many there are."""
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["ATTN_MLIR_CACHE_DIR"] = str(folder / "cache")
    count = 0
    for source in (configurations, families, latent):
        for name, bundle in source(only):
            file = "".join(c if c.isalnum() else "_" for c in name)
            (folder / f"{file}.ptx").write_text(bundle.ptx)
            count += 1
    return count


def written_by(checkout: Path, folder: Path, only: str) -> None:
    """Writes the PTX of another checkout.

    Raises:
      SystemExit: that checkout cannot do it.
    """
    if not (checkout / "bench" / "unchanged.py").is_file():
        sys.exit("that commit has no bench/unchanged.py")
    environment = {**os.environ, "PYTHONPATH": str(linked(checkout, folder))}
    command = [sys.executable, "-m", "attn_mlir.bench.unchanged", "--write", str(folder)]
    done = subprocess.run([*command, "--only", only], env=environment, cwd=checkout, check=False)
    if done.returncode:
        sys.exit(f"{checkout} did not write its kernels")


def quality(ptx: Path) -> tuple[int, int, int]:
    """Registers, instructions and spilled bytes of the machine code."""
    target = ptx.read_text().partition("\n.target ")[2].split()[0].rstrip(",")
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / "kernel.cubin"
        subprocess.run([sass.find_ptxas(), "-O3", f"-arch={target}", ptx, "-o", cubin], check=True)
        kernel = max(sass.disassemble(cubin), key=lambda function: len(function.instructions))
        registers = sass.usage(cubin, kernel.name).registers
    return registers, len(kernel.instructions), sass.spill_bytes(ptx, target)


def compare(before: Path, after: Path) -> int:
    """Prints what differs; the number of kernels that do."""
    names = sorted({path.name for folder in (before, after) for path in folder.glob("*.ptx")})
    shown = Table("kernel", "lines", "registers", "instructions", "spilled bytes")
    differing = 0
    for name in names:
        old, new = before / name, after / name
        if not (old.exists() and new.exists()):
            differing += 1
            shown.add_row(name, "only " + ("before" if old.exists() else "now"))
        elif old.read_text() != new.read_text():
            differing += 1
            lines = differing_lines(code_lines(old.read_text()), code_lines(new.read_text()))
            pairs = zip(quality(old), quality(new), strict=True)
            shown.add_row(name, str(lines), *(f"{a} -> {b}" for a, b in pairs))
    if differing:
        Console().print(shown)
    print(f"{len(names)} kernels, {differing} differ")
    return differing


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--against", default="HEAD~1", help="the commit to compare with")
    parser.add_argument("--only", default="", help="part of a kernel's name")
    parser.add_argument("--write", type=Path, metavar="DIR", help="write this checkout's PTX")
    args = parser.parse_args()
    if args.write:
        print(f"{write(args.write, args.only)} kernels")
        return 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with checked_out(args.against, folder) as other:
            written_by(other, folder / "before", args.only)
        write(folder / "after", args.only)
        return 1 if compare(folder / "before", folder / "after") else 0


if __name__ == "__main__":
    sys.exit(main())
