"""The cases are shared with `table.py`, which runs as a program from this folder."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
