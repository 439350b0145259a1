"""Tiny bundles from hand-written PTX, so that the runtime is tested without the compiler."""

from __future__ import annotations

import copy
import os
import sys
from pathlib import Path
from typing import Any

import pytest

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


@pytest.fixture(autouse=True)
def seeded() -> None:
    """What a test draws from torch does not depend on the tests that ran before it in the same process."""
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


@pytest.fixture(scope="session")
def scale_bundles() -> dict[str, bytes]:
    """Bundle files of a kernel that multiplies f32[rows, cols], by target."""
    return {target: assembled(SCALE_MANIFEST, SCALE_PTX, target) for target in TARGETS}


@pytest.fixture(scope="session")
def tma_bundles() -> dict[str, bytes]:
    """Bundle files of a kernel that copies f16[rows, cols] by TMA, by target."""
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
