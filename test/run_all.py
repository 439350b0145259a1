"""Run the whole suite, lit first and then pytest, and print what each of them counted.

pytest also prints which folders and tests took most of the CPU, so that growth is seen. `make test`
calls this. The exit code is 0 only when both runners passed and both ran something: a suite that
finds no tests is a broken suite. Extra arguments go to pytest.

The tests that pytest skipped are noted in a file. `--skipped` runs only those, for example after
PyTorch was installed: the others have been run.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SKIPPED = ROOT / "build" / "skipped-tests.txt"
LIT = "import sys; from lit.main import main; sys.argv[0] = 'lit'; main()"


def run(title: str, command: list[str]) -> tuple[str, int, str]:
    """Run one runner from the checkout's root, echo its output, and return (title, code, last lines)."""
    print(f"== {title}", flush=True)
    start = time.monotonic()
    # There are as many processes as cores: threads of numpy and torch would only wait for one another.
    environment = {"OMP_NUM_THREADS": "1", **os.environ}
    # Without byte code each process would rewrite the assertions of all tests.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    lines: list[str] = []
    for line in process.stdout:
        sys.stdout.write(line)
        sys.stdout.flush()
        lines.append(line.strip())
    code = process.wait()
    seconds = time.monotonic() - start
    return title, code, f"{summary(lines)} in {seconds:.0f} s"


def summary(lines: list[str]) -> str:
    """The runner's own counts: pytest's last line, or the block that lit prints at the end."""
    totals = [at for at, line in enumerate(lines) if line.startswith("Total Discovered Tests")]
    if totals:
        counts = [line for line in lines[totals[-1] :] if ":" in line]
        return ", ".join(" ".join(line.split()) for line in counts)
    tail = [line.strip("= ") for line in lines if " passed" in line or " failed" in line]
    return tail[-1] if tail else "no tests ran"


def main() -> int:
    """Run both, or what pytest skipped; 1 when either failed, 2 when no run has noted what it skipped."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=2, help="parallel processes per runner")
    parser.add_argument("--skipped", action="store_true", help="only what the last run skipped")
    args, rest = parser.parse_known_args()
    jobs = max(args.jobs, 1)
    lit = [sys.executable, "-c", LIT, "-s", "-v", f"-j{jobs}", "test"]
    pytest = [sys.executable, "-m", "pytest", "-q", "-n", str(jobs), "--dist", "worksteal", "--cpu"]
    if args.skipped:
        if not SKIPPED.is_file() or not SKIPPED.read_text().strip():
            print(f"{SKIPPED} names no test: a run without --skipped writes it", file=sys.stderr)
            return 2
        results = [run("pytest", [*pytest, *rest, f"@{SKIPPED}"])]
    else:
        noted = ["--skipped-to", str(SKIPPED)]
        results = [run("lit", lit), run("pytest", [*pytest, *noted, *rest])]
    print("== summary")
    for title, code, text in results:
        print(f"{title:7s} {'ok' if code == 0 else f'FAILED ({code})'}: {text}")
    return 0 if all(code == 0 for _, code, _ in results) else 1


if __name__ == "__main__":
    sys.exit(main())
