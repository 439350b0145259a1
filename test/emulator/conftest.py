"""The tests of this folder share `ptx_bench`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
