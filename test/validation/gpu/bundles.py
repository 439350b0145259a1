"""Compiles what the checks of a GPU ask for, for each target, into one archive; `make gpu-bundles` runs this.

    python -m attn_mlir.validation.gpu.bundles build/gpu-bundles.zip

Needs the compiler and no GPU. The bundles lie in a folder beside the archive, so that a second run
only compiles what has changed; the archive holds those of this run alone.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from attn_mlir.compiling.compiler import missing_compiler, recording
from attn_mlir.compiling.prebuild import Collector
from attn_mlir.compiling.prebuilt import write_archive
from attn_mlir.errors import AttnError, TargetError
from attn_mlir.files import make_folder
from attn_mlir.tools import find_ptxas
from attn_mlir.validation.gpu.check import BLACKWELL, HOPPER
from attn_mlir.validation.gpu.table import checks

MAX_ARCHIVE_BYTES = 40 << 20  # it travels to the machine with the GPU


def collect(archive: Path, *, only: str = "") -> Path:
    """Compiles and packs.

    Args:
      archive: the file.
      only: part of the names of the checks to compile for; all but the long ones when empty.

    Raises:
      AttnError: there is no compiler, a kernel does not compile, or the archive is too large.
    """
    if (missing := missing_compiler()) is not None:
        raise TargetError(f"the bundles are compiled here, but {missing}")
    find_ptxas()  # refuses ATTN_MLIR_PTXAS=none: a GPU needs machine code
    folder = make_folder(archive.with_suffix(""))
    collector = Collector(folder, say=lambda line: print(line, file=sys.stderr, flush=True))
    with recording(collector):
        for target in (HOPPER, BLACKWELL):
            for check in checks(only):
                if target in check.targets:
                    check.asks(target)
    write_archive(folder, archive, lambda name: name in collector.written)
    size = archive.stat().st_size
    if size > MAX_ARCHIVE_BYTES:
        raise TargetError(f"{archive} has {size} bytes, allowed are {MAX_ARCHIVE_BYTES}")
    print(f"{archive}: {len(collector.written)} bundles, {size} bytes")
    return archive


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("archive", type=Path, help="file to write")
    parser.add_argument("--only", default="", metavar="TEXT", help="part of checks' names")
    args = parser.parse_args()
    try:
        collect(args.archive, only=args.only)
    except AttnError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
