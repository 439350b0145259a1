"""`attn-mlir info --rings`: which roles hand what to which, printed and drawn."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest

from attn_mlir import cli
from attn_mlir.cli.ring_picture import Arrow, layers

RINGS = [
    {"ring": "kv", "holds": "64x64 bf16", "space": "shared", "stages": 3, "instances": 1,
     "producers": ["load (copy_engine)"], "consumers": ["attend"]},
    {"ring": "free", "holds": "token", "stages": 1, "instances": 1,
     "producers": ["attend (threads)"], "consumers": ["load"]},
]  # fmt: skip
ROLES = [{"role": name, "warps": "0-0", "registers": 0} for name in ("attend", "load")]


def test_rings_are_printed_and_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], pack: Callable[..., bytes]
) -> None:
    path, drawn = tmp_path / "k.attn", tmp_path / "rings.svg"
    path.write_bytes(pack(report={"roles": ROLES, "rings": RINGS}))
    assert cli.main(["info", str(path), "--rings", "--svg", str(drawn)]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"kv +64x64 bf16 +shared +3 +1 +load \(copy_engine\) +attend", printed)
    texts = {node.text for node in ElementTree.fromstring(drawn.read_text()).iter() if node.text}
    assert {"attend", "load", "kv", "free"} <= texts


def test_what_cannot_be_drawn_is_refused(tmp_path: Path, pack: Callable[..., bytes]) -> None:
    path, drawn = tmp_path / "k.attn", tmp_path / "rings.svg"
    path.write_bytes(pack(report={}))
    assert cli.main(["info", str(path), "--svg", str(drawn)]) == 2
    assert cli.main(["info", str(path), "--rings", "--ptx", "--svg", str(drawn)]) == 2
    assert cli.main(["info", str(path), "--rings", "--svg", str(drawn)]) == 1
    assert not drawn.exists()


def test_a_picture_never_takes_the_place_of_its_bundle(
    tmp_path: Path, pack: Callable[..., bytes]
) -> None:
    path = tmp_path / "k.attn"
    path.write_bytes(pack(report={"roles": ROLES, "rings": RINGS}))
    before = path.read_bytes()
    assert cli.main(["info", str(path), "--rings", "--svg", str(path)]) == 1
    assert path.read_bytes() == before


def test_names_of_a_file_are_shown_and_not_obeyed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], pack: Callable[..., bytes]
) -> None:
    path, drawn = tmp_path / "k.attn", tmp_path / "rings.svg"
    roles = [{"role": name} for name in ("\x1b[31mred", "\ud800", "load")]
    rings = [{"ring": "\x00", "producers": ["load"], "consumers": ["\ud800"]}]
    path.write_bytes(pack(report={"roles": roles, "rings": rings}))
    assert cli.main(["info", str(path), "--rings", "--svg", str(drawn)]) == 0
    printed = capsys.readouterr().out
    assert "\x1b" not in printed
    assert "\\x1b[31mred" in printed
    texts = {node.text for node in ElementTree.fromstring(drawn.read_text()).iter() if node.text}
    assert {"\\x1b[31mred", "\\ud800", "\\x00"} <= texts


def test_more_roles_than_warps_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], pack: Callable[..., bytes]
) -> None:
    path, names = tmp_path / "k.attn", [f"r{number}" for number in range(1500)]
    rings = [
        {"ring": "g", "producers": [one], "consumers": [next_one]}
        for one, next_one in pairwise(names)
    ]
    path.write_bytes(pack(report={"roles": [{"role": one} for one in names], "rings": rings}))
    assert cli.main(["info", str(path), "--rings", "--svg", str(tmp_path / "r.svg")]) == 1
    assert "at most 32 roles, got 1500" in capsys.readouterr().err


def test_a_role_stands_behind_those_whose_tiles_it_reads() -> None:
    def arrow(source: str, target: str) -> Arrow:
        return Arrow(source, target, "", "")

    arrows = [arrow("load", "mma"), arrow("mma", "softmax"), arrow("softmax", "mma")]
    arrows += [arrow("softmax", "store"), arrow("mma", "store")]
    column = layers(["softmax", "mma", "load", "store"], arrows)
    assert column["mma"] < column["softmax"] < column["store"]
