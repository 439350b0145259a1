"""The harness is shared with `mutants.py`, which runs as a program from this folder."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "numerics")]
