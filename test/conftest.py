"""Tiny bundles from hand-written PTX, so that the runtime is tested without the compiler."""

from __future__ import annotations

import contextlib
import copy
import gc
import os
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from attn_mlir import env
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


ASSEMBLED = {"ptxas", "gpu", "sm_90", "sm_100"}  # marks of tests that need machine code


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, bool | None, bool | None]:
    """Such a test makes machine code, and so do the fixtures that it is the first to use."""
    needs_it = any(mark.name in ASSEMBLED for mark in item.iter_markers())
    with machine_code() if needs_it else contextlib.nullcontext():
        return (yield)


@pytest.fixture(autouse=True)
def seeded() -> None:
    """What a test draws from torch does not depend on the tests that ran before it in the same process."""
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


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
