"""Fenced blocks of README.md and of the pages in docs: run as printed, or marked with the reason why not.

    python test/docs/snippets.py [--write] [PAGE ...]

A block names its language. `sh` blocks run line by line in a folder of the page's own, `python`
blocks then in order in one process in it, `mlir` and `json` blocks are parsed; `text` is a formula or a picture.
Comments of the page, which a reader does not see, may stand directly before a block:

    <!-- not run: REASON -->      it is only looked at: its flags, files and names exist
    <!-- needs: PACKAGE -->       so is this one, where that package is not installed
    <!-- before: CODE -->         Python that the page leaves out
    <!-- file: NAME -->           the block is the content of a file that later commands read;
                                  Python in a folder is a package's, and run where it is imported
    <!-- shows: PATTERN -->       the block is what the last commands printed: the lines that match
                                  or their first group, `...` for the rest; --write fills it in

Commands that take minutes or change the machine (`make`, `pip`, tests, measurements) are only looked
at, without a mark.
"""

import argparse
import functools
import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LANGUAGES = ("python", "sh", "mlir", "json", "text")
LIMIT_SECONDS = 600  # of one page's Python, or of one command
WIDTH = 200  # characters of a line that is shown
_BLOCK = re.compile(
    r"(?P<marks>(?:^<!-- (?:not run|needs|before|file|shows):(?:(?!-->).)*-->\n)*)^```(?P<language>[\w-]*)\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_MARK = re.compile(r"<!-- (not run|needs|before|file|shows):\s*(.*?)\s*-->\n", re.DOTALL)
_INLINE = re.compile(r"(?<!`)`((?:make|pytest|python) [^`\n]+)`(?!`)")


class SnippetError(Exception):
    """A block that is not as the page says."""


@dataclass
class Block:
    """A fenced block.

    Attributes:
      page: file that holds it.
      line: of its fence.
      language, code: what stands in it.
      marks: comments before it, by their first word.
    """

    page: Path
    line: int
    language: str
    code: str
    marks: dict[str, str] = field(default_factory=dict[str, str])

    def wrong(self, message: str) -> SnippetError:
        """The error to raise."""
        return SnippetError(f"{self.page.relative_to(ROOT)}:{self.line}: {message}")


def pages() -> list[Path]:
    """All pages."""
    places = (ROOT / "docs", ROOT / "schedules")
    return [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *sorted(path for place in places for path in place.rglob("*.md")),
    ]


def blocks(page: Path, text: str | None = None) -> Iterator[Block]:
    """The blocks of a page, in order."""
    text = page.read_text() if text is None else text
    for found in _BLOCK.finditer(text):
        line = text.count("\n", 0, found.start("language")) + 1
        marks = dict(_MARK.findall(found["marks"]))
        yield Block(page, line, found["language"], found["code"], marks)


def check_page(page: Path, *, write: bool = False) -> int:
    """Runs the blocks of a page in a folder of its own; returns how many ran.

    Raises:
      SnippetError: names the page, the line and what went wrong.
    """
    found = list(blocks(page))
    shown: dict[int, str] = {}
    python: list[Block] = []
    count, printed = 0, ""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for block in found:
            if block.language not in LANGUAGES:
                allowed = ", ".join(LANGUAGES)
                raise block.wrong(f"a block names its language, one of {allowed}")
            if "file" in block.marks:
                file = folder / block.marks["file"]
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(block.code)
                if file.parent != folder:  # of a package, which the page's Python imports
                    count += 1
                    continue
            if "shows" in block.marks:
                shown[block.line] = excerpt(printed, block.marks["shows"])
                if not write and shown[block.line] != block.code:
                    raise block.wrong(f"the command now prints\n{shown[block.line]}")
            elif "not run" in block.marks or not _has_needs(block):
                _look_at(block)
                continue
            elif block.language == "sh":
                printed = "".join(_run_line(block, line, folder) for line in _lines(block))
            elif block.language == "python":
                python.append(block)
            elif block.language == "mlir":
                _parse(block)
            elif block.language == "json":
                json.loads(block.code)
            count += block.language != "text"
        _run_python(page, python, folder)
    if write and shown:
        _rewrite(page, shown)
    return count


def excerpt(printed: str, pattern: str) -> str:
    """The lines that match, or their first group, and `...` for what is left out or too long."""
    lines: list[str] = []
    for line in printed.splitlines():
        if found := re.search(pattern, line):
            text = found[1] if found.groups() else line.rstrip()
            is_cut = len(text) > WIDTH or text != line.rstrip()
            lines.append(f"{text[:WIDTH]} ..." if is_cut else text)
        elif lines and lines[-1] != "...":
            lines.append("...")
    while lines and lines[-1] == "...":
        lines.pop()
    return "".join(f"{line}\n" for line in lines)


def _rewrite(page: Path, shown: dict[int, str]) -> None:
    """Puts what commands print into the blocks that show it, by the lines of their fences."""
    text = page.read_text()

    def replaced(found: re.Match[str]) -> str:
        line = text.count("\n", 0, found.start("language")) + 1
        code = shown.get(line, found["code"])
        return f"{found['marks']}```{found['language']}\n{code}```"

    page.write_text(_BLOCK.sub(replaced, text))


def _lines(block: Block) -> list[str]:
    """The commands of a block; one that ends in a backslash goes on in the next line."""
    joined = block.code.replace("\\\n", " ")
    return [line for line in joined.splitlines() if line.strip() and line.strip()[0] != "#"]


def _environment(folder: Path) -> dict[str, str]:
    tools = Path(sys.executable).parent
    return {
        **os.environ,
        "PATH": f"{tools}{os.pathsep}{os.environ.get('PATH', '')}",
        "ATTN_MLIR_CACHE_DIR": str(ROOT / "build" / "test-cache"),
        "ATTN_MLIR_CHECK": "",  # as it is for a reader
        "XDG_CACHE_HOME": str(folder / "cache"),
    }


def _run_line(block: Block, line: str, folder: Path) -> str:
    """Runs one command and returns what it printed, errors included; 1 is right after `! `."""
    words = line.split()
    if words[0] in ("make", "pip", "pytest") or re.match(
        r"python(3? -m pytest| (test|bench|validation)/)", line
    ):
        check_command(block, line)
        return ""
    done = subprocess.run(
        ["bash", "-c", line.removeprefix("! ")],
        cwd=folder,
        env=_environment(folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    if done.returncode != int(line.startswith("! ")):
        raise block.wrong(f"{line}\nends with {done.returncode}:\n{done.stdout[-3000:]}")
    return done.stdout


def _run_python(page: Path, python: list[Block], folder: Path) -> None:
    """Runs a page's Python in one process, after its commands; tracebacks have the page's lines."""
    lines: list[str] = []
    for block in python:
        before = block.marks.get("before", "").splitlines()
        lines += [""] * (block.line - len(before) - len(lines))
        lines += [*before, *block.code.splitlines()]
    script = folder / page.name
    script.write_text("\n".join(lines))
    done = subprocess.run(
        [sys.executable, script.name],
        cwd=folder,
        env=_environment(folder),
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    if done.returncode:
        raise python[0].wrong(f"the page's Python fails:\n{done.stderr[-3000:]}")


def _parse(block: Block) -> None:
    from attn_mlir.dialect._mlir import make_context
    from attn_mlir.errors import AttnError
    from attn_mlir.passes.infrastructure.parse import parse_module

    try:
        parse_module(block.code, make_context())
    except AttnError as error:
        raise block.wrong(f"it does not verify: {error}") from error


def _has_needs(block: Block) -> bool:
    """Whether the package that a block needs is installed."""
    package = block.marks.get("needs")
    return package is None or importlib.util.find_spec(package) is not None


def _look_at(block: Block) -> None:
    """Checks what can be checked of a block that is not run."""
    if not block.marks.get("not run", "package"):
        raise block.wrong("a block that is not run says why")
    if block.language == "python":
        compile(block.code, str(block.page), "exec")
        import attn_mlir

        for name in re.findall(r"\bam\.(\w+)", block.code):
            if not hasattr(attn_mlir, name):
                raise block.wrong(f"attn_mlir has no {name}")
    elif block.language == "sh":
        for line in _lines(block):
            check_command(block, line)


@functools.cache
def _targets() -> frozenset[str]:
    """Targets of the Makefile."""
    return frozenset(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


@functools.cache
def _help(script: Path) -> str:
    """What a script says of its flags."""
    command = [sys.executable, str(script), "--help"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def check_command(block: Block, line: str) -> None:
    """Checks that the target, the file and the flags of a command exist.

    Raises:
      SnippetError: names what does not.
    """
    words = shlex.split(line, comments=True)
    if words[0] == "make":
        for word in words[1:]:
            variable = word.split("=")[0] if "=" in word else None
            known = variable in (ROOT / "Makefile").read_text() if variable else word in _targets()
            if not known:
                raise block.wrong(f"the Makefile has no {variable or word}")
        return
    if words[0] == "pip":
        for word in words[2:]:
            extras = re.findall(r"\[(.*?)\]", word)
            text = (ROOT / "pyproject.toml").read_text()
            for extra in ",".join(extras).split(","):
                if extra and not re.search(rf"^{extra} = \[", text, re.MULTILINE):
                    raise block.wrong(f"pyproject.toml has no extra {extra}")
        return
    files = [
        ROOT / word.split("::")[0]
        for word in words[1:]
        if re.match(r"(test|bench|validation)/", word)
    ]
    for file in files:
        if not file.exists():
            raise block.wrong(f"there is no {file.relative_to(ROOT)}")
    flags = [word.split("=")[0] for word in words[1:] if word.startswith("--")]
    script = next((file for file in files if file.suffix == ".py"), None)
    if script is not None and words[0].startswith("python"):
        known = re.findall(r"--[\w-]+", _help(script)) if flags else []
        for flag in flags:
            if flag not in known:
                raise block.wrong(f"{script.relative_to(ROOT)} has no {flag}")


def check_inline(page: Path) -> int:
    """Checks the commands that stand in the sentences of a page; returns how many there are."""
    text = page.read_text()
    count = 0
    for found in _INLINE.finditer(text):
        line = text.count("\n", 0, found.start()) + 1
        check_command(Block(page, line, "sh", found[1]), found[1])
        count += 1
    return count


def main() -> int:
    """Checks pages, or writes what their commands print; returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("pages", nargs="*", type=Path, help="pages (default: all)")
    parser.add_argument("--write", action="store_true", help="fill in what commands print")
    arguments = parser.parse_args()
    status = 0
    for page in [page.resolve() for page in arguments.pages] or pages():
        try:
            count = check_page(page, write=arguments.write) + check_inline(page)
            print(f"{page.relative_to(ROOT)}: {count} snippets are right")
        except SnippetError as error:
            print(error, file=sys.stderr)
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
