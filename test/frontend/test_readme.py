"""What the README and the page about bundles promise, beside their snippets (`test/docs`)."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from attn_mlir.runtime.manifest import parse_manifest

ROOT = Path(__file__).resolve().parents[2]
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


@pytest.mark.slow
def test_bundle_example(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "bundle.py"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(": ok: O error") == 2 and (tmp_path / "mha.attn").is_file()


def test_the_page_about_bundles_shows_one() -> None:
    text = (ROOT / "docs" / "bundle.md").read_text()
    block = re.search(r"```json\n(.*?)```", text, re.DOTALL)
    assert block is not None
    fields = json.loads(block[1])
    manifest = parse_manifest(fields)
    assert manifest.entry == "attn_mha" and len(manifest.params) == 5
    table = text[text.index("| field |") :]
    assert all(f"`{name}`" in table for name in fields)


def test_every_name_of_the_second_example_exists() -> None:
    import attn_mlir

    for name in set(re.findall(r"\bam\.(\w+)", "".join(BLOCKS))):
        assert hasattr(attn_mlir, name), name
    assert all(name in attn_mlir.__all__ for name in attn_mlir._MODULES)
