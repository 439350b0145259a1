"""Which tests are near a file: those of its name, the tables, those that import it, then those further off."""

from __future__ import annotations

import ast
from pathlib import Path

import attn_mlir
from attn_mlir.validation.mutation.host.faults import FOLDERS

TABLES = (
    "test/frontend/api/test_effects.py",
    "test/frontend/flash/test_effects_flash.py",
    "test/frontend/compiling/test_choices.py",
    "test/frontend/flashinfer/test_effects_functions.py",
    "test/frontend/flashinfer/test_effects_wrappers.py",
    "test/frontend/pytorch/test_effects_torch.py",
)
PACKAGE = "attn_mlir"
FAR = 2  # imports between a test's module and the faulty one
MOST = 8  # test files of a stage
FOLDERS_OF_TESTS = ("test/frontend", "test/runtime", "test/numerics", "test/examples", "test/docs")


class Imports:
    """Which modules import which, read from the sources.

    Args:
      root: of the repository.
    """

    def __init__(self, root: Path):
        self._root = root
        files = [file for folder in FOLDERS for file in (root / folder).rglob("*.py")]
        self._modules = {module_of(str(file.relative_to(root))): file for file in files}
        self._direct = {name: self._of(file) for name, file in self._modules.items()}
        self._tests = {
            str(file.relative_to(root)): self._of(file)
            for folder in FOLDERS_OF_TESTS
            for file in sorted((root / folder).rglob("test_*.py"))
        }

    def _of(self, file: Path) -> set[str]:
        """The host's modules that a file imports; of a package also what it takes from there."""
        found: set[str] = set()
        aliases = set[str]()
        for node in ast.walk(ast.parse(file.read_bytes())):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
                aliases |= {x.asname or x.name for x in node.names if x.name == PACKAGE}
            elif isinstance(node, ast.ImportFrom) and node.module is not None:
                found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                if node.value.id in aliases:
                    found.add(_home(node.attr))
        return {name for name in found if name in self._modules}

    def stages(self, path: str) -> list[list[str]]:
        """Test files, nearest first: each stage is one run of pytest."""
        module = module_of(path)
        importers, near = {module}, list[list[str]]()
        for _ in range(FAR + 1):
            near.append([test for test, of_test in self._tests.items() if of_test & importers])
            importers |= {name for name, names in self._direct.items() if names & importers}
        named = sorted(self._tests, key=lambda test: _kinship(test, path))
        mirror = [test for test in named if _kinship(test, path) < 0]
        tables = [test for test in TABLES if test in self._tests and path.startswith("frontend")]
        stages: list[list[str]] = []
        seen: set[str] = set()
        for stage in (mirror, tables, *near):
            fresh = [test for test in stage if test not in seen]
            fresh = sorted(
                fresh, key=lambda test: (_kinship(test, path), _is_away(test, path), test)
            )
            fresh = fresh[:MOST]
            seen |= set(fresh)
            if fresh:
                stages.append(fresh)
        return stages


def _home(name: str) -> str:
    """The module of what the package has under a name."""
    found = getattr(attn_mlir, name, None)
    return str(getattr(found, "__module__", getattr(found, "__name__", "")))


def module_of(path: str) -> str:
    """The name of a file's module."""
    parts = list(Path(path).with_suffix("").parts)
    parts = parts[1:] if parts[0] == "frontend" else parts
    parts = parts[:-1] if parts[-1] == "__init__" else parts
    return ".".join((PACKAGE, *parts))


def _is_away(test: str, path: str) -> bool:
    """Whether a test lies in another folder than those of the file's package."""
    return Path(test).parts[1] != Path(path).parts[0]


def _kinship(test: str, path: str) -> int:
    """How near a test's name is to a file's, below 0 where they have a word in common; numerics come last."""
    own = _words(Path(test).stem.removeprefix("test_"))
    folder, stem = Path(path).parent.name, Path(path).stem
    if test.startswith("test/numerics"):
        return 1
    if Path(test).stem == f"test_{stem}":
        return -3
    if own >= _words(stem) | _words(folder) - set(FOLDERS):
        return -2
    return -1 if _words(stem) & own else 0


def _words(name: str) -> set[str]:
    return {word.rstrip("s") for word in name.split("_") if word}
