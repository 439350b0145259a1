"""The tests of this folder use its modules; none of them needs the packages that the kernels come from."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
