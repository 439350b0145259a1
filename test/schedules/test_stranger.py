"""Another project adds a schedule, a mask and a target, each from one place, and edits nothing here."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from attn_mlir.dialect.attn.masks import KINDS
from attn_mlir.dialect.targets.limits import TARGETS
from attn_mlir.schedules.policy.registry import POLICIES

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
FOLDERS = ("bench", "dialect", "frontend", "lowering", "passes", "runtime", "schedules")
pytestmark = pytest.mark.slow


@pytest.mark.parametrize("part", ["mask", "schedule", "target", "all"])
def test_it_runs_from_a_folder_elsewhere(part: str) -> None:
    """Every element of O and of the LSE is right, on the emulator with all its checks."""
    places = [str(HERE), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, places))}
    command = [sys.executable, "-m", "stranger.trial", part]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " ok: " in done.stdout


@pytest.mark.parametrize("name", ["contributing-a-schedule", "contributing-a-mask"])
def test_the_page_shows_the_files_that_run(name: str) -> None:
    text = (ROOT / "docs" / f"{name}.md").read_text()
    shown = re.findall(
        r"<!-- file: (\S+) -->\n```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE
    )
    assert len(shown) >= 3
    for file, code in shown:
        assert code == (HERE / file).read_text(), file


def test_nothing_here_knows_what_the_stranger_adds() -> None:
    """No file of the product names the new schedule, mask or target, and no table of it has them."""
    assert "one-warp" not in {policy.name for policy in POLICIES}
    assert "block_causal" not in KINDS
    assert "sm_90" not in TARGETS
    words = ("one-warp", "block_causal", "plain_chip")
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*.py"):
            text = path.read_text()
            assert not any(word in text for word in words), path
