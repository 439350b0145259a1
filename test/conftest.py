"""What all tests share: their cache, which of them take long, what they cost, and tiny bundles.

The bundles are of hand-written PTX, so that the runtime is tested without the compiler.
"""

from __future__ import annotations

import contextlib
import copy
import fnmatch
import gc
import os
import resource
import sys
from collections import Counter
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, cast

import pytest

from attn_mlir import env, files
from attn_mlir.validation.tiny import (
    SCALE_MANIFEST,
    SCALE_PTX,
    TARGETS,
    TMA_MANIFEST,
    TMA_PTX,
    Pack,
    assembled,
    pack_bundle,
)

# Tests neither fill nor trust the cache of whoever runs them.
ROOT = Path(__file__).resolve().parent.parent
MOST_TESTS = 20  # that `--cpu` names
os.environ["ATTN_MLIR_CACHE_DIR"] = str(ROOT / "build" / "test-cache")
# Every kernel that a test runs on the emulator device is checked for races and the like.
os.environ.setdefault("ATTN_MLIR_CHECK", "all")
# The emulator needs no machine code, which takes almost half of a compilation: tests that are marked
# `ptxas` make it, and those of a GPU.
os.environ.setdefault("ATTN_MLIR_PTXAS", "none")


# Kernels that were parsed and modules live long; looking through them for cycles took 6 % of all tests.
gc.set_threshold(50_000, 20, 10)


@contextlib.contextmanager
def machine_code() -> Generator[None]:
    """Within it kernels are assembled, in this process and in those that it starts."""
    named = os.environ.get("ATTN_MLIR_PTXAS")
    if named == "none":
        del os.environ["ATTN_MLIR_PTXAS"]
    env.settings.cache_clear()
    try:
        yield
    finally:
        if named == "none":
            os.environ["ATTN_MLIR_PTXAS"] = named
        env.settings.cache_clear()


def is_long(item: pytest.Item) -> bool:
    """Whether a test or its parameters are marked `long`.

    `long("a", "b-*")` speaks of parameters whose id one of the patterns names, and
    `long(but=("a", "b-*"))` of all others.
    """
    return any(marks(mark, item) for mark in item.iter_markers("long"))


def marks(mark: pytest.Mark, item: pytest.Item) -> bool:
    """Whether this mark `long` speaks of a test's parameters."""
    if "but" in mark.kwargs:
        return not any(names(pattern, item) for pattern in mark.kwargs["but"])
    return not mark.args or any(names(pattern, item) for pattern in mark.args)


def names(pattern: str, item: pytest.Item) -> bool:
    """Whether a pattern names the parameters of a test."""
    case = cast("Any", item).callspec.id
    return case == pattern or fnmatch.fnmatchcase(case, pattern)


def check_patterns(items: list[pytest.Item]) -> None:
    """Refuses marks `long` with a pattern that names no test.

    Raises:
      UsageError: names the function and the pattern.
    """
    marked: dict[tuple[str, str], list[pytest.Item]] = {}
    for item in items:
        for mark in item.iter_markers("long"):
            for pattern in (*mark.args, *mark.kwargs.get("but", ())):
                marked.setdefault((item.nodeid.partition("[")[0], pattern), []).append(item)
    for (function, pattern), cases in marked.items():
        if not any(names(pattern, case) for case in cases):
            raise pytest.UsageError(f"{function} has no parameters {pattern!r}, marked `long`")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out tests that are `long`, unless `-m` speaks of them or a test is named (`file.py::test`)."""
    named = tuple(name for name in map(base_name, config.args) if "::" in name)
    if not named:
        check_patterns(items)
    for item in items:
        if not is_long(item):
            item.own_markers[:] = [mark for mark in item.own_markers if mark.name != "long"]
    if "long" in config.option.markexpr:
        return
    left_out = {
        item
        for item in items
        if item.get_closest_marker("long") and not base_name(item.nodeid).startswith(named)
    }
    config.hook.pytest_deselected(items=list(left_out))
    items[:] = [item for item in items if item not in left_out]


def base_name(node: str) -> str:
    """What a test is called without its folders, from whichever folder they are counted."""
    path, colons, rest = node.partition("::")
    return Path(path).name + colons + rest


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--cpu`: which folders and tests took how many seconds of CPU; `--skipped-to`: what was skipped."""
    parser.addoption("--cpu", action="store_true", help="print CPU seconds by folder, and the most")
    parser.addoption(
        "--skipped-to", type=Path, metavar="FILE", help="note tests that were skipped, for `@FILE`"
    )


def cpu_seconds() -> float:
    """Of this process and of those that it has waited for."""
    spent = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in spent)


_last = [0.0]  # CPU seconds when the last phase of a test ended


def pytest_collection_finish() -> None:
    """What collecting has cost is no test's."""
    _last[0] = cpu_seconds()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Notes in a report what its phase has cost: the setup, the call or the teardown."""
    report = yield
    begin, _last[0] = _last[0], cpu_seconds()
    report.cpu_seconds = _last[0] - begin
    return report


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Writes and prints what the options of `pytest_addoption` ask for."""
    if config.option.skipped_to is not None:
        nodes = {report.nodeid for report in terminalreporter.stats.get("skipped", [])}
        files.make_folder(config.option.skipped_to.parent)
        files.write_file(config.option.skipped_to, "".join(f"{node}\n" for node in sorted(nodes)))
    if config.option.cpu:
        print_cpu_seconds(terminalreporter)


def print_cpu_seconds(terminalreporter: Any) -> None:
    """What folders and the costliest tests took."""
    folders, tests, counts = Counter[str](), Counter[str](), Counter[str]()
    for report in (report for found in terminalreporter.stats.values() for report in found):
        if not isinstance(report, pytest.TestReport):
            continue
        folder = "/".join(report.nodeid.split("/")[:2])
        spent = cast("Any", report).cpu_seconds
        folders[folder] += spent
        tests[report.nodeid] += spent
        counts[folder] += report.when == "setup"
    terminalreporter.section("CPU seconds")
    for folder, spent in folders.most_common():
        terminalreporter.line(f"{spent:7.0f}  {counts[folder]:5}  {folder}")
    terminalreporter.line(f"{folders.total():7.0f}  {counts.total():5}  in all")
    for test, spent in tests.most_common(MOST_TESTS):
        terminalreporter.line(f"{spent:7.1f}  {test}")


ASSEMBLED = {"ptxas", "gpu", "sm_90", "sm_100"}  # marks of tests that need machine code


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, bool | None, bool | None]:
    """Such a test makes machine code, and so do the fixtures that it is the first to use."""
    needs_it = any(mark.name in ASSEMBLED for mark in item.iter_markers())
    with machine_code() if needs_it else contextlib.nullcontext():
        return (yield)


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From when it is called on, index arrays are not read on the host, as those on a GPU are not."""
    contents = "attn_mlir.api.lengths._contents"
    return lambda: monkeypatch.setattr(contents, lambda value, name: None)  # pyright: ignore


@pytest.fixture(autouse=True)
def seeded() -> None:
    """What a test draws from torch does not depend on the tests that ran before it in the same process."""
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


@pytest.fixture
def only_new_garbage() -> Generator[None]:
    """A collection looks through what the test has made: through all that lives, it takes a second."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(scope="session")
def scale_bundles() -> dict[str, bytes]:
    """Bundle files of a kernel that multiplies f32[rows, cols], by target."""
    with machine_code():
        return {target: assembled(SCALE_MANIFEST, SCALE_PTX, target) for target in TARGETS}


@pytest.fixture(scope="session")
def tma_bundles() -> dict[str, bytes]:
    """Bundle files of a kernel that copies f16[rows, cols] by TMA, by target."""
    with machine_code():
        return {target: assembled(TMA_MANIFEST, TMA_PTX, target) for target in TARGETS}


@pytest.fixture
def scale_manifest() -> dict[str, Any]:
    """A fresh copy of the scale kernel's manifest, complete with hashes."""
    fields = copy.deepcopy(SCALE_MANIFEST)
    return {**fields, "sha256": "0" * 64, "sha256_ptx": "0" * 64}


@pytest.fixture
def tma_manifest() -> dict[str, Any]:
    """A fresh copy of the TMA kernel's manifest, complete with hashes."""
    fields = copy.deepcopy(TMA_MANIFEST)
    return {**fields, "sha256": "0" * 64, "sha256_ptx": "0" * 64}


@pytest.fixture
def pack() -> Pack:
    """`pack_bundle` for a scale kernel with fields replaced, without machine code."""

    def make(**changes: object) -> bytes:
        ptx = SCALE_PTX.replace("TARGET", str(changes.get("target", "sm_100a")))
        return pack_bundle(SCALE_MANIFEST, ptx, b"no machine code", **changes)

    return make
