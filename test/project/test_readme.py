"""What the README and the page about bundles promise, beside their snippets (`test/docs`)."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from attn_mlir.runtime.file.manifest import parse_manifest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
MOST_LINES = 120
ORDER = (
    "pip install",
    "import torch",
    "attn_mlir.flash_mla",
    "An H200",
    "cold compile",
    "make demo",
    "make test",
    "## Limits",
)
DOORS = {  # what each needs, and what it has
    "torch": (["torch"], ["scaled_dot_product_attention", "flex_attention"]),
    "transformers": (["torch", "transformers"], ["register"]),
    "flash": ([], ["flash_attn_func", "flash_attn_varlen_func", "flash_attn_with_kvcache"]),
    "flashinfer": (["torch"], ["BatchDecodeWithPagedKVCacheWrapper"]),
    "flash_mla": ([], ["flash_mla_sparse_fwd", "flash_mla_with_kvcache"]),
}


@pytest.mark.slow
def test_bundle_example(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "bundle.py"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(": ok: O error") == 2 and (tmp_path / "mha.attn").is_file()


def test_the_page_about_bundles_shows_one() -> None:
    text = (ROOT / "docs" / "reference" / "bundle.md").read_text()
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


def test_a_reader_meets_what_matters_first() -> None:
    assert len(README.splitlines()) <= MOST_LINES
    places = [README.index(words) for words in ORDER]
    assert places == sorted(places)


def test_speeds_are_those_of_the_page_about_performance() -> None:
    """Cell by cell, for the same head size, mask and length."""
    of_page = {
        tuple(cells[:2]): cells[2:]
        for line in (ROOT / "docs" / "lab" / "performance.md").read_text().splitlines()
        if line.count(" : ") == 6 and (cells := [x.strip() for x in line.strip("|").split("|")])
    }
    table = README[README.index("<!-- speed: begin -->") : README.index("<!-- speed: end -->")]
    rows = [[x.strip() for x in line.strip("|").split("|")] for line in table.splitlines()[3:]]
    assert len(rows) >= 6
    for size, mask, *cells in rows:
        assert [cell.partition(" = ")[0] for cell in of_page[size, mask]] == cells


@pytest.mark.parametrize("name", DOORS)
def test_a_door_that_is_named_opens(name: str) -> None:
    assert f"`attn_mlir.{name}`" in README
    packages, functions = DOORS[name]
    for package in packages:
        pytest.importorskip(package)
    module = importlib.import_module(f"attn_mlir.{name}")
    assert all(callable(getattr(module, function)) for function in functions)
