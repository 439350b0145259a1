"""`bench/distributed.py --write` compiles every kernel that a run of the benchmark asks for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from attn_mlir.bench import distributed as bench
from attn_mlir.validation.distributed.launch import run

TARGET, LENGTH, SIZE = "sm_90a", 2048, 2


@pytest.mark.long
def test_a_run_finds_all_its_kernels(tmp_path: Path) -> None:
    bench.write(tmp_path, bench.cells_of([LENGTH]), SIZE, TARGET)
    written = {x.name for x in tmp_path.iterdir()}
    ranks: list[Any] = run("kernels.requested", SIZE, TARGET, str(LENGTH))
    for rank, names in enumerate(ranks):
        assert isinstance(names, list), f"rank {rank}: {names}"
        assert len(names) > 20 and not set(names) - written, f"rank {rank}"
