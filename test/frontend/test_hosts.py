"""Tables of arguments against the signatures of the libraries whose names they have."""

from __future__ import annotations

import importlib
import inspect
import sys
from importlib import metadata
from inspect import Parameter
from pathlib import Path
from typing import Any

import pytest

from attn_mlir.adapters import arguments_of, check_neutral
from attn_mlir.validation.hosts import page
from attn_mlir.validation.hosts.packages import LIBRARIES
from attn_mlir.validation.hosts.signatures import (
    REQUIRED,
    Unknown,
    main,
    parameters_of,
    read,
    recorded,
)

DATA = recorded()
FUNCTIONS = [(name, x) for name, library in LIBRARIES.items() for x in DATA[name]["functions"]]
VARIABLE = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
# What is used and is in none of the recorded signatures: our own, and names of forks and branches of the libraries.
OWN = {
    *("sm_scale", "data_type"),
    *("device", "stream", "out", "s_aux", "mask_mod", "return_lse", "window_right"),
    *("attention_chunk", "learnable_sink", "num_splits", "sm_margin", "q_descale", "k_descale"),
    *("v_descale", "sinks", "return_softmax_lse"),
}  # fmt: skip
# Defaults of one version that mean what those of another do.
ALIKE = {
    ("window_size", None),
    ("window_size", (None, None)),
    ("attention_chunk", None),
    ("num_splits", 0),
}


def ours(library: str, name: str) -> Any:
    module = LIBRARIES[library].ours
    if module in ("flashinfer", "ring_flash_attn", "torch", "diffusers.backend"):
        pytest.importorskip("torch")
    found: Any = importlib.import_module(f"attn_mlir.{module}")
    for part in name.split("."):
        found = getattr(found, part)
    return found


def named(function: Any) -> dict[str, Parameter]:
    found = inspect.signature(function).parameters
    return {name: x for name, x in found.items() if name != "self"}


def theirs(library: str, name: str) -> dict[str, Parameter]:
    found = parameters_of(DATA[library]["functions"][name])
    return {x.name: x for x in found if x.kind not in VARIABLE}


def test_what_is_recorded() -> None:
    assert {name: tuple(data["functions"]) for name, data in DATA.items()} == {
        name: tuple(x for names in library.functions.values() for x in names)
        for name, library in LIBRARIES.items()
    }


@pytest.mark.parametrize(("library", "name"), FUNCTIONS)
def test_every_argument_is_accounted_for(library: str, name: str) -> None:
    """Used, with the library's default, or taken without effect at it."""
    function = ours(library, name)
    arguments, own = arguments_of(function), named(function)
    if "arguments" in arguments:  # whatever it is given
        return
    for x in theirs(library, name).values():
        assert x.name in arguments, f"{name} of {library} has an argument {x.name}, ours has not"
        row = arguments[x.name]
        assert x.default is not Unknown, f"{x.name}: judge by hand what its default means"
        if x.default is REQUIRED:
            assert row is None, f"{x.name} has to be given, and has no effect"
        elif row is not None:
            check_neutral(x.name, x.default, row)
        elif (x.name, x.default) not in ALIKE:
            default = own[x.name].default
            assert x.default in (default, str(default)), x.name


@pytest.mark.parametrize(("library", "name"), FUNCTIONS)
def test_every_argument_that_is_used_is_of_the_library(library: str, name: str) -> None:
    found = {x for x, row in arguments_of(ours(library, name)).items() if row is None}
    versions = [x for x, other in LIBRARIES.items() if other.ours == LIBRARIES[library].ours]
    known = {x for y in versions if name in DATA[y]["functions"] for x in theirs(y, name)}
    assert found - known - OWN <= {"self", "arguments", "options"}


@pytest.mark.parametrize(
    ("library", "name"), [(x, name) for x, y in LIBRARIES.items() for name in y.order]
)
def test_positions_are_those_of_the_library(library: str, name: str) -> None:
    found = theirs(library, name).values()
    positions = [x.name for x in found if x.kind is Parameter.POSITIONAL_OR_KEYWORD]
    assert list(named(ours(library, name)))[: len(positions)] == positions


@pytest.mark.parametrize("library", LIBRARIES)
def test_the_installed_library_is_the_recorded_one(library: str) -> None:
    """Where it is installed in the recorded version."""
    try:
        version = metadata.version(library).partition("+")[0]
    except metadata.PackageNotFoundError:
        pytest.skip(f"{library} is not installed")
    if version != DATA[library]["version"]:
        pytest.skip(f"{library} {version} is installed, {DATA[library]['version']} is recorded")
    found = read(LIBRARIES[library], [Path(x) for x in sys.path])
    assert found == DATA[library]["functions"]


def test_what_the_library_adds_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Signatures are read from text with annotations, of overloads the last; what changed is printed."""
    functions = DATA["flash-mla"]["functions"]
    text = ["from typing import overload", "class A:", "    def flash_mla_sparse_fwd(self): ..."]
    text += [f"def {name}({arguments}): ..." for name, arguments in functions.items()]
    text += ["def flash_mla_sparse_fwd(q: int, kv: 'T' = None, *, new: float = 1.5) -> int: ..."]
    (tmp_path / "flash_mla").mkdir()
    (tmp_path / "flash_mla" / "flash_mla_interface.py").write_text("\n".join(text))
    data = tmp_path / "signatures.json"
    data.write_text(importlib.import_module(main.__module__).DATA.read_text())
    monkeypatch.setattr(f"{main.__module__}.DATA", data)
    monkeypatch.setattr(sys, "argv", ["signatures", "flash-mla", "2", str(tmp_path)])
    assert main() == 0
    changed = "q, kv=None, *, new=1.5"
    assert capsys.readouterr().out == f"flash_mla_sparse_fwd({changed})\n"
    after = recorded()
    assert after["flash-mla"]["functions"] == {**functions, "flash_mla_sparse_fwd": changed}
    assert {**after, "flash-mla": 0} == {**DATA, "flash-mla": 0}


def test_the_page_is_that_of_the_tables() -> None:
    """Make it again with: python -m attn_mlir.validation.hosts.page -o docs/reference/adapters.md."""
    pytest.importorskip("torch")
    written = (Path(__file__).parents[2] / "docs" / "reference" / "adapters.md").read_text()
    assert written == page.page()
