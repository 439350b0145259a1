"""Lets the tests of this folder import it as the package `differential`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
