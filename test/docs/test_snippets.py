"""README and docs: what is printed there runs; and what the check looks for is found."""

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

FILE = Path(__file__).with_name("snippets.py")
WITHOUT_MACHINE_CODE = (
    "attention.md",
    "backward.md",
    "contributing-a-mask.md",
    "contributing-a-schedule.md",
    "distributed.md",
    "latent.md",
    "masks.md",
    "modifiers.md",
    "routing.md",
    "trace.md",
)  # their blocks do not look at it
MOST_MARKS = 2  # blocks that cannot run here; each says why


def load() -> ModuleType:
    """The module of the checks, which stands beside this file and in no package."""
    spec = importlib.util.spec_from_file_location("docs_snippets", FILE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


snippets = load()


def marked(page: Path) -> Any:
    """A page as a parameter; kernels of most pages are assembled."""
    marks = () if page.name in WITHOUT_MACHINE_CODE else pytest.mark.ptxas
    return pytest.param(page, id=page.name, marks=marks)


@pytest.mark.slow
@pytest.mark.parametrize("page", [marked(page) for page in snippets.pages()])
def test_a_page_is_right(page: Path):
    snippets.check_page(page)
    snippets.check_inline(page)


def test_few_blocks_are_not_run():
    marked = [b for page in snippets.pages() for b in snippets.blocks(page) if "not run" in b.marks]
    assert len(marked) <= MOST_MARKS
    assert all(block.marks["not run"] for block in marked)


def page_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> Path:
    """A page in a project whose Makefile has `test` and whose bench has one script."""
    (tmp_path / "Makefile").write_text("test:\n\techo\n")
    (tmp_path / "pyproject.toml").write_text("[project.optional-dependencies]\ntorch = []\n")
    (tmp_path / "bench").mkdir()
    script = (
        "import argparse; p = argparse.ArgumentParser(); p.add_argument('--fast'); p.parse_args()"
    )
    (tmp_path / "bench" / "one.py").write_text(script)
    page = tmp_path / "page.md"
    page.write_text(text)
    monkeypatch.setattr(snippets, "ROOT", tmp_path)
    snippets._targets.cache_clear()
    return page


@pytest.mark.parametrize(
    "text",
    [
        "```text\n.\n```\n",
        "```sh\nmake test\npip install .[torch]\npython bench/one.py --fast 3\n```\n",
        "```sh\necho a > b  # remark\ntest -s \\\n  b\n! false\n```\n",
        "<!-- before:\nx = 3\n-->\n```python\ny = x\n```\n```python\nassert y == 3\n```\n",
        "<!-- file: a.mlir -->\n```mlir\nfunc.func private @f()\n```\n```sh\ntest -s a.mlir\n```\n",
        "```sh\nseq 5\n```\n<!-- shows: [24] -->\n```text\n2\n...\n4\n```\n",
        "`make test` and `python bench/one.py --fast`\n",
        "<!-- not run: needs a GPU -->\n```python\nraise OSError\n```\n",
    ],
)
def test_what_is_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str):
    page = page_of(tmp_path, monkeypatch, text)
    snippets.check_page(page)
    snippets.check_inline(page)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("```\nx\n```\n", "page.md:1: a block names its language, one of python"),
        ("```sh\nmake tests\n```\n", "the Makefile has no tests"),
        ("```sh\npip install .[torches]\n```\n", "has no extra torches"),
        ("```sh\npython bench/two.py\n```\n", "there is no bench/two.py"),
        ("```sh\npython bench/one.py --slow\n```\n", "bench/one.py has no --slow"),
        ("```sh\nfalse\n```\n", "false\nends with 1"),
        ("```sh\n! true\n```\n", "ends with 0"),
        ("\n\n```python\n\n1 / 0\n```\n", 'page.md", line 5'),
        (
            "```mlir\nfunc.func private @f()\n```\n```mlir\nfunc.funk\n```\n",
            "page.md:4: it does not verify",
        ),
        ("```sh\nseq 5\n```\n<!-- shows: [24] -->\n```text\n2\n4\n```\n", "now prints\n2\n...\n4"),
        ("<!-- not run: -->\n```python\n```\n", "a block that is not run says why"),
        ("<!-- not run: slow -->\n```python\nam.nothing\n```\n", "attn_mlir has no nothing"),
        ("`make fun`\n", "the Makefile has no fun"),
    ],
)
def test_what_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str):
    page = page_of(tmp_path, monkeypatch, text)
    with pytest.raises(snippets.SnippetError, match=re.escape(message)):
        snippets.check_page(page)
        snippets.check_inline(page)


def test_what_commands_print_is_filled_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    text = "```sh\nseq 3\n```\n<!-- shows: [13] -->\n```text\nold\n```\nend\n"
    page = page_of(tmp_path, monkeypatch, text)
    snippets.check_page(page, write=True)
    assert page.read_text() == text.replace("old", "1\n...\n3")
    snippets.check_page(page)


def test_a_block_that_needs_a_package_is_only_looked_at_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "<!-- needs: {0} -->\n```python\nimport {0}; raise SystemExit(3)\n```\n"
    page = page_of(tmp_path, monkeypatch, text.format("no_such_package"))
    snippets.check_page(page)
    page.write_text(text.format("json"))
    with pytest.raises(snippets.SnippetError, match="Python fails"):
        snippets.check_page(page)
    page.write_text("<!-- needs: no_such_package -->\n```python\n1 +\n```\n")
    with pytest.raises(SyntaxError):
        snippets.check_page(page)
