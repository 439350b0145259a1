"""Environment variables: declared once, refused when malformed."""

from __future__ import annotations

from pathlib import Path

import pytest

from attn_mlir import env
from attn_mlir.errors import SpecError


def test_defaults() -> None:
    found = env.read({"PATH": "/bin", "ATTN_MLIR_NO_CACHE": ""})
    assert found == env.Settings(
        frozenset(), Path("attn-mlir-dump"), None, None, False, None, "warning", "none", False
    )


@pytest.mark.parametrize(
    ("name", "text", "field", "value"),
    [
        ("ATTN_MLIR_DUMP", "ptx, sass", "dump", frozenset({"ptx", "sass"})),
        ("ATTN_MLIR_DUMP", "all", "dump", frozenset({"ir", "ptx", "cubin", "sass"})),
        ("ATTN_MLIR_DUMP_DIR", "/tmp/d", "dump_dir", Path("/tmp/d")),
        ("ATTN_MLIR_CACHE_DIR", "~/c", "cache_dir", Path("~/c").expanduser()),
        ("ATTN_MLIR_NO_CACHE", "1", "no_cache", True),
        ("ATTN_MLIR_NO_CACHE", "False", "no_cache", False),
        ("ATTN_MLIR_PTXAS", "/opt/ptxas", "ptxas", Path("/opt/ptxas")),
        ("ATTN_MLIR_PTXAS", "none", "ptxas", "none"),
        ("ATTN_MLIR_LOG", "DEBUG", "log", "debug"),
        ("ATTN_MLIR_CHECK", " race,proxy ", "check", "race,proxy"),
    ],
)
def test_values(name: str, text: str, field: str, value: object) -> None:
    assert getattr(env.read({name: text}), field) == value


@pytest.mark.parametrize(
    ("name", "text", "allowed"),
    [
        ("ATTN_MLIR_DUMP", "ptx,elf", "a comma-separated list of ir, ptx, cubin, sass, or all"),
        ("ATTN_MLIR_NO_CACHE", "maybe", "0 or 1"),
        ("ATTN_MLIR_LOG", "loud", "one of"),
    ],
)
def test_malformed(name: str, text: str, allowed: str) -> None:
    with pytest.raises(SpecError, match=f"{name} must be {allowed}.*got '{text}'"):
        env.read({name: text})


def test_unknown_variable() -> None:
    with pytest.raises(SpecError, match="ATTN_MLIR_DUMPDIR is not a variable of attn-mlir"):
        env.read({"ATTN_MLIR_DUMPDIR": "/tmp"})


def test_every_variable_is_prefixed_documented_and_a_setting() -> None:
    for variable in env.VARIABLES:
        assert variable.name.startswith("ATTN_MLIR_") and variable.help
        assert variable.name.removeprefix("ATTN_MLIR_").lower() in env.Settings.__dataclass_fields__
    assert len(env.VARIABLES) == len(env.Settings.__dataclass_fields__)


@pytest.mark.parametrize(("level", "lines"), [("debug", 4), ("warning", 2), ("error", 1)])
def test_log(
    level: str, lines: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = env.read({"ATTN_MLIR_LOG": level})
    monkeypatch.setattr(env, "settings", lambda: settings)
    for name in env.LOG_LEVELS:
        env.log(name, f"said as {name}")
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.count("\n") == lines
    assert printed.err.endswith("attn-mlir: said as error\n")
