"""FlashMLA's test matrix: a case of each group of sparse prefill and of decoding, as the sweeps run them.

Those of dense prefill are in `test_mla`, the limit of the grid in `test_sparse_mla_traps`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import attn_mlir as am
from attn_mlir.validation.numerics import decode_cases, decode_sweep, sparse_sweep
from attn_mlir.validation.numerics.decode_cases import Case as Decode
from attn_mlir.validation.numerics.sparse_cases import Case as Sparse

SPARSE = {
    "regular": Sparse(1, 128, 128),
    "rows that no block divides": Sparse(1, 592, 128, d_qk=512),
    "more entries than rows, sinks, lengths": Sparse(2, 95, 128, lengths=True, sinks=True),
    "queries without an entry": Sparse(3, 128, 128, lengths=True, sinks=True, empty=True),
    "blocks without an entry": Sparse(1, 32, 2048, d_qk=512, lengths=True, sinks=True),
    "pages": Sparse(2, 128, 64, d_qk=512, lengths=True, page=16),
    "few rows": Sparse(1, 64, 128, heads=8, d_qk=512, sinks=True, distinct=2),
}
DECODE = {
    "plain": Decode(4, 1, 64, 512, 512, 64, 69),
    "lengths of sequences": Decode(4, 1, 64, 576, 512, 64, 2, "varlen"),
    "no entry counts": Decode(4, 1, 64, 512, 512, 64, 61, "invalid"),
    "sequences of length 0": Decode(4, 1, 64, 512, 512, 64, 61, "empty"),
    "sinks": Decode(4, 1, 64, 576, 512, 64, 61, "sink"),
    "two caches": Decode(4, 1, 64, 512, 512, 64, 2, "lengths", extra=(512, 64, 61)),
    "whole sequences": Decode(4, 1, 16, 576, 300, 0, 64, "varlen", True, False),
}
ONE_QUERY = 16384  # entries from which on a case has one query


@pytest.mark.parametrize("group", SPARSE)
@pytest.mark.long("regular", "queries without an entry", "blocks without an entry")
def test_sparse(group: str) -> None:
    assert not (wrong := sparse_sweep.run(SPARSE[group])), wrong


@pytest.mark.parametrize("group", DECODE)
@pytest.mark.long("lengths of sequences", "no entry counts", "sequences of length 0")
def test_decode(group: str) -> None:
    assert not (wrong := decode_sweep.run(DECODE[group])), wrong


def test_sizes() -> None:
    """All of the matrix, each once, as large as the emulator takes."""
    sparse, decode = [*sparse_sweep.cases(), *sparse_sweep.formats()], [*decode_sweep.cases()]
    assert len({*sparse}) == len(sparse) and len({*decode}) == len(decode)
    assert all(case.s_q <= 3 and case.s_q * case.topk <= ONE_QUERY for case in sparse)
    assert all(case.b <= 4 and case.s_q <= 3 for case in decode)
    assert all(case.s_q * case.topk <= ONE_QUERY for case in decode)


def test_what_is_wrong_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Zeros in the place of results; and bits that the order of sequences or queries changes."""

    def nothing(q: Any, *args: Any, **kwargs: Any) -> Any:
        zeros = np.zeros((*q.shape[:-1], 512), q.dtype)
        return zeros, np.zeros((q.shape[0], q.shape[2], q.shape[1]), np.float32)

    def first(q: Any, *args: Any, **kwargs: Any) -> Any:
        o, lse = nothing(q)
        o[0] = 1
        return o, lse

    case = Decode(2, 1, 8, 512, 20, 4, 2)
    monkeypatch.setattr(decode_cases, "flash_mla_with_kvcache", nothing)
    wrong = decode_sweep.run(case)
    assert "out is not within" in wrong and "lse is not within" in wrong
    monkeypatch.setattr(decode_cases, "flash_mla_with_kvcache", first)
    assert "other bits" in decode_sweep.run(case._replace(b=4))

    def of_lists(q: Any, **kwargs: Any) -> Any:
        o = np.zeros((*q.shape[:-1], 512), q.dtype)
        o[0] = 1
        return o, np.zeros(q.shape[:2], np.float32), np.zeros(q.shape[:2], np.float32)

    monkeypatch.setattr(am, "sparse_mla", of_lists)
    wrong = sparse_sweep.run(Sparse(3, 20, 4, 8, 512))
    assert "o is not within" in wrong and "other bits" in wrong
