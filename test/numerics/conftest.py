"""The cases and the judge are shared with `sweep.py`, which runs as a program from this folder."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
