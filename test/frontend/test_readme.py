"""The README's example is a test: it runs as it stands, on whatever device is there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


@pytest.mark.slow
def test_first_example(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BLOCKS[0]], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("ok: O error")


def test_every_name_of_the_second_example_exists() -> None:
    import attn_mlir

    for name in set(re.findall(r"\bam\.(\w+)", "".join(BLOCKS))):
        assert hasattr(attn_mlir, name), name
    assert all(name in attn_mlir.__all__ for name in attn_mlir._MODULES)
