"""Files and names that pages speak of: each is there, and `docs/systems.md` says for each member where it is."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "schedules").rglob("*.md")),
]
SYSTEMS = ROOT / "docs" / "systems.md"
NAMES = (
    "SM100MHA2Q",
    "KVCacheMHAOperand",
    "DecodeStreamingKVBuffer",
    "MLAKVProducerPipeline",
    "MLAPrefillSparse",
)
MADE = ("build/",)  # by commands of the Makefile
OF_OTHERS = (  # files of other projects, which pages quote as such
    "hopper/test_flash_attn.py",
    "cute_dsl/attention/roles/mla_compute.py",
)
SUFFIXES = r"\.(?:py|pyi|md|mlir|svg|toml|txt)"  # files of JSON are results, or members of a bundle
_FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_PATH = re.compile(
    rf"(?P<path>[\w.*-]+(?:/[\w.*-]+)*(?:/|{SUFFIXES}))(?::(?P<name>[A-Za-z_][\w.]*))?"
)
_FOLDER = re.compile(r"[\w.-]+(?:/[\w.-]+)+")


@functools.cache
def paths() -> tuple[frozenset[str], frozenset[str]]:
    """Files and folders of the project, from its root."""
    own = [
        entry
        for entry in ROOT.iterdir()
        if not entry.name.startswith(".") and entry.name not in ("build", "out", "dist")
    ]
    found = [
        path
        for entry in own
        for path in (entry, *entry.rglob("*"))
        if "__pycache__" not in path.parts
    ]
    files = frozenset(str(path.relative_to(ROOT)) for path in found if path.is_file())
    folders = frozenset(str(path.relative_to(ROOT)) for path in found if path.is_dir())
    return files, folders


@functools.cache
def defined(path: str) -> frozenset[str]:
    """The names that a module defines, those of classes with the class in front."""

    def names(body: list[ast.stmt], prefix: str = "") -> Iterator[str]:
        for node in body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                yield prefix + node.name
            if isinstance(node, ast.ClassDef):
                yield from names(node.body, f"{prefix}{node.name}.")
            targets = (
                node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            )
            yield from (prefix + x.id for x in targets if isinstance(x, ast.Name))

    return frozenset(names(ast.parse((ROOT / path).read_text()).body))


def spans(page: Path) -> list[str]:
    """Code spans of a page, without its blocks."""
    return _SPAN.findall(_FENCED.sub("", page.read_text()))


def wrong_with(span: str) -> str:
    """What is wrong with a code span that names a path; empty for one that does not, or rightly does."""
    files, folders = paths()
    if span.startswith(MADE) or span in OF_OTHERS:
        return ""
    if _FOLDER.fullmatch(span) and span.split("/")[0] in folders and not _PATH.fullmatch(span):
        return "" if span in folders | files else "no such path"
    found = _PATH.fullmatch(span)
    if found is None:
        return ""
    path = found["path"]
    if "*" in path:
        return "" if any(ROOT.glob(path)) else "nothing is called so"
    if path.endswith("/"):
        name = path.rstrip("/")
        return (
            "" if any(f"/{folder}".endswith(f"/{name}") for folder in folders) else "no such folder"
        )
    tails = [path] if path in files else [x for x in files if x.endswith(f"/{path}")]
    if len(tails) != 1:
        return f"files with this end: {sorted(tails)}" if "/" in path or not tails else ""
    if found["name"] is not None and found["name"] not in defined(tails[0]):
        return f"{tails[0]} defines no {found['name']}"
    return ""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_paths_of_a_page_are_there(page: Path) -> None:
    found = {span: wrong_with(span) for span in spans(page)}
    assert {span: why for span, why in found.items() if why} == {}


_LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)")
_HEADING = re.compile(r"^#+ +(.*)$", re.MULTILINE)


@functools.cache
def anchors(page: Path) -> frozenset[str]:
    """The anchors of a page's headings, as GitHub names them."""
    headings = _HEADING.findall(_FENCED.sub("", page.read_text()))
    plain = (re.sub(r"[^\w\- ]", "", heading.strip().lower()) for heading in headings)
    return frozenset(heading.replace(" ", "-") for heading in plain)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    wrong: list[str] = []
    for target, anchor in _LINK.findall(_FENCED.sub("", page.read_text())):
        if "://" in target:
            continue
        file = (page.parent / target).resolve() if target else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            wrong.append(f"{target}#{anchor}")
    assert wrong == []


@pytest.mark.parametrize(
    "span",
    [
        "test/dialect/no_such_file.py",
        "no_such_file.py",
        "no/such/folder/",
        "test/no_such_folder",
        "masks/__init__.py",
        "docs/no_such_*.md",
        "passes/plan_memory.py:no_such_name",
        "passes/plan_memory.py:PlanMemory.no_such_name",
    ],
)
def test_paths_that_are_not_there_are_found(span: str) -> None:
    assert wrong_with(span)


def test_modules_of_the_runtime_are_there() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    table = text[text.index("| module | does |") : text.index("## Emulator")]
    named = [
        name for line in table.splitlines()[2:] for name in _SPAN.findall(line.split(" | ")[0])
    ]
    found = {path.stem for path in (ROOT / "runtime").glob("**/*.py")} | {"devices/"}
    assert len(named) > 15 and set(named) <= found


def rows() -> dict[str, list[list[str]]]:
    """The rows of each system's table."""
    sections = re.split(r"^## (.*)$", SYSTEMS.read_text(), flags=re.MULTILINE)[1:]
    return {
        name: [
            [cell.strip() for cell in line.strip("|").split(" | ")]
            for line in text.splitlines()
            if line.startswith("|")
        ][2:]
        for name, text in zip(sections[::2], sections[1::2], strict=True)
    }


def test_each_member_of_a_system_has_a_place_and_a_reason() -> None:
    found = rows()
    assert tuple(found) == NAMES
    for name, members in found.items():
        assert len(members) > 15, name
        for row in members:
            assert len(row) == 3 and all(row), (name, row)
            places = _SPAN.findall(row[1])
            assert places and all(_PATH.fullmatch(place) for place in places), (name, row)
            assert "missing" not in " ".join(row).lower(), (name, row)
