"""Passes of other projects: of a file, of a module, and of installed packages by entry point."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from attn_mlir.dialect._mlir import make_context
from attn_mlir.errors import SpecError
from attn_mlir.lowering import stages
from attn_mlir.passes import attn_opt
from attn_mlir.passes.infrastructure import plugins, registry
from attn_mlir.passes.infrastructure.pipeline import build

PLUGIN = Path(__file__).parent / "plugins" / "limit_window.py"
MODULE = """func.func @f(%q: tensor<?x?x2x64xbf16>, %s: f32) -> tensor<?x?x2x64xbf16> {
  %o, %l = "attn.mha"(%q, %q, %q, %s) ({
  ^bb0(%x: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%x) : (f32) -> ()
  }) {mask = #attn.null} : (tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, f32)
      -> (tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>)
  return %o : tensor<?x?x2x64xbf16>
}
"""


@pytest.fixture(autouse=True)
def _as_installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a test registers, and which packages it finds, is its own."""
    registry.passes()
    for table in ("_passes", "_pipelines"):
        monkeypatch.setattr(registry, table, dict(getattr(registry, table)))
    plugins.load_installed.cache_clear()
    before = set(sys.modules)
    yield
    plugins.load_installed.cache_clear()
    for name in set(sys.modules) - before:
        if "limit_window" in name or "broken" in name:
            del sys.modules[name]


@pytest.fixture
def kernel(tmp_path: Path) -> str:
    path = tmp_path / "kernel.mlir"
    path.write_text(MODULE)
    return str(path)


def install(folder: Path, text: str | None = None) -> None:
    """A package in a folder of `sys.path`, as pip leaves it, with an entry point."""
    name = "limit_window" if text is None else "broken"
    if text is None:
        shutil.copy(PLUGIN, folder / f"{name}.py")
    else:
        (folder / f"{name}.py").write_text(text)
    info = folder / "others-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: others\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[attn_mlir.passes]\n{name} = {name}\n")


@pytest.mark.parametrize("way", ["file", "module", "entry point"])
def test_a_plug_in_runs(
    way: str,
    kernel: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    named = {"file": os.fspath(PLUGIN), "module": "limit_window", "entry point": None}[way]
    if way == "module":
        monkeypatch.syspath_prepend(PLUGIN.parent)
    elif way == "entry point":
        install(tmp_path)
        monkeypatch.syspath_prepend(tmp_path)
    flags = [] if named is None else [f"--load-pass-plugin={named}"]
    assert attn_opt.run([kernel, *flags, "--limit-window=left=15"]) == 0
    assert "#attn.window<15 : i64, 0 : i64>" in capsys.readouterr().out
    assert attn_opt.run([kernel, *flags, "--limited"]) == 0
    assert "#attn.window<63 : i64, 0 : i64>" in capsys.readouterr().out
    assert attn_opt.run([*flags, "--list-passes"]) == 0
    lines = capsys.readouterr().out.splitlines()
    (at,) = (i for i, line in enumerate(lines) if line.startswith("  --limit-window "))
    assert lines[at].endswith("Limits what queries of every `attn.mha` see to a window.")
    assert lines[at + 1].split(maxsplit=1)[0] == "left=127"


def test_without_it_the_name_is_unknown(kernel: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert attn_opt.run([kernel, "--limit-window"]) == 2
    assert "unknown flag, pass or pipeline 'limit-window'" in capsys.readouterr().err


HEAD = "from dataclasses import dataclass\nfrom attn_mlir.passes.infrastructure.registry import *\n"
BROKEN = {
    "1 / 0": "ZeroDivisionError: division by zero",
    "def": "SyntaxError",
    f"{HEAD}class P:\n  name = 'p'\nregister(P)": "a pass has a name and a method run, P lacks one",
    f"{HEAD}class P:\n  name = 'p'\n  def run(self, m): pass\nregister(P)": "a pass is a frozen dataclass",
    f"{HEAD}@dataclass\nclass P:\n  def expand(self): pass\nregister_pipeline(P)": "a pipeline has a name and",
    f"{HEAD}@dataclass\nclass P:\n  def run(self, m): pass\nP.name = 'cse'\nregister(P)": "pipeline 'cse' already",
    f"{HEAD}@dataclass\nclass P:\n  def run(self, m): pass\nP.name = 'attn-configure'\nregister(P)": "'attn-configure' already",
    f"{HEAD}register_pipeline('attn-to-ws', 'cse')": "pipeline 'attn-to-ws' already",
    f"{HEAD}@dataclass\nclass P:\n  def run(self, m): pass\nP.name = 'a.b'\nregister(P)": "dashes, got 'a.b'",
}  # fmt: skip


@pytest.mark.parametrize("text", BROKEN)
def test_a_plug_in_that_cannot_be_loaded(
    text: str, kernel: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "broken.py"
    path.write_text(text)
    assert attn_opt.run([kernel, f"--load-pass-plugin={path}"]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"attn-opt: error: the plug-in {path} cannot be loaded: ")
    assert BROKEN[text] in told


@pytest.mark.parametrize("named", ["no_such_module", "nowhere.py"])
def test_there_is_no_such_plug_in(
    named: str, kernel: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert attn_opt.run([kernel, f"--load-pass-plugin={named}"]) == 2
    assert f"the plug-in {named} cannot be loaded: " in capsys.readouterr().err


def test_pipelines_that_hold_each_other_are_refused() -> None:
    registry.register_pipeline("one", "two")
    registry.register_pipeline("two", "cse,one")
    with pytest.raises(SpecError, match="pipelines hold each other: one > two > one"):
        build("one")


def test_compiling_loads_no_plug_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The key of the cache knows nothing of plug-ins, so no kernel may depend on one."""
    install(tmp_path, "raise RuntimeError('loaded')")
    monkeypatch.syspath_prepend(tmp_path)
    with make_context():
        for for_bundle in (False, True):
            for stage in stages.stages(target="sm_90a", for_bundle=for_bundle):
                build(stage.text)
    with pytest.raises(SpecError, match="broken of others cannot be loaded: RuntimeError: loaded"):
        registry.find("limit-window")
