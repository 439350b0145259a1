"""Decoding over whole sequences whose rows are of 8 bits: every element, and what it takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import attn_mlir as am
from attn_mlir.dialect.attn.latent.formats import FORMATS
from attn_mlir.reference import check_mla_decode
from attn_mlir.runtime.emulator.emulator import Stats
from attn_mlir.validation.numerics.sparse_cases import poison

FAIR: dict[str, Any] = {"target": "sm_100a", "check": "all"}
LATE: dict[str, Any] = {**FAIR, "schedule": "adversarial", "seed": 3}


@dataclass(frozen=True)
class Packed:
    """A call.

    Attributes:
      lengths: of the sequences.
      page: positions of a page; 0 for sequences in rows of a tensor.
      is_compressed: whether pages are listed in compressed rows.
      group: columns that share a scale of a tensor.
    """

    kv_format: str = "v32"
    heads: int = 16
    queries: int = 2
    lengths: tuple[int, ...] = (70, 0)
    page: int = 16
    is_compressed: bool = False
    group: int | None = None
    mask: am.Mask = field(default_factory=am.causal)
    has_sinks: bool = False
    parts: int = 1
    device: dict[str, Any] = field(default_factory=lambda: LATE)

    def run(self) -> list[bytes]:
        """The bits of the results, every element of which is judged; NaN wherever no sequence lies.

        Raises:
          AssertionError: an element is wrong.
        """
        random, form = np.random.default_rng(3), FORMATS[self.kv_format]
        batch, longest = len(self.lengths), max(self.lengths)
        count = -(-longest // self.page) if self.page else 1
        shape = (batch * count + 1, self.page) if self.page else (batch, longest + 5)
        table = random.permutation(shape[0])[: batch * count].reshape(batch, count).astype(np.int32)
        if not self.page:
            table = np.arange(batch, dtype=np.int32)[:, None]
        places = table[..., None] * shape[1] + np.arange(shape[1])
        live = [x.ravel()[:n] for x, n in zip(places, self.lengths, strict=True)]
        pool, scale = am.pack_latent(
            normal(random, *shape, 1, form.columns), form.name, group=self.group
        )
        rows = am.unpack_latent(pool, form.name, kv_scale=scale).reshape(-1, 1, form.columns)
        dead = np.setdiff1d(np.arange(len(rows)), np.concatenate(live))
        poison(pool, form, dead)
        if scale is not None:
            scale.reshape(len(rows), -1)[dead] = np.nan
        q = normal(random, batch, self.queries, self.heads, form.columns)
        sinks = random.standard_normal(self.heads).astype(np.float32) if self.has_sinks else None
        lengths = np.array(self.lengths, np.int32)
        cache: Any = am.ContiguousKV(pool, None, lengths)
        if self.page:
            cache = am.PagedKV(pool, None, table, lengths)
        if self.is_compressed:
            counts = -(-lengths // self.page)
            cache = am.PagedKV(
                pool,
                None,
                indptr=np.cumsum([0, *counts]).astype(np.int32),
                indices=np.concatenate([x[:n] for x, n in zip(table, counts, strict=True)]),
                last_page_len=((lengths - 1) % self.page + 1).astype(np.int32),
            )
        options: dict[str, Any] = {"scale": 0.3, "mask": self.mask, "sinks": sinks}
        o, lse = am.mla_decode(
            q,
            cache,
            kv_format=form.name,
            kv_scale=scale,
            num_splits=self.parts,
            device=am.EmulatorDevice(**self.device),
            **options,
        )
        for number, own in enumerate(live):
            one = np.s_[number : number + 1]
            verdict = check_mla_decode(q[one], rows[own][None], o[one], lse[one], **options)
            assert verdict.ok, f"sequence {number}: {verdict}"
        return [o.tobytes(), lse.tobytes()]


def normal(random: np.random.Generator, *shape: int) -> npt.NDArray[Any]:
    return (random.standard_normal(shape) / 4).astype("bfloat16")


def test_every_element_late_and_out_of_order() -> None:
    """Of two queries the first sees a position less; a sequence without any."""
    Packed(has_sinks=True).run()


@pytest.mark.long
@pytest.mark.parametrize(
    "problem",
    [
        Packed(heads=128, lengths=(150, 0), page=64, parts=2, has_sinks=True),
        Packed("model1", heads=64, lengths=(150, 70), page=64, mask=am.full()),
        Packed("model1", heads=128, page=0, parts=3),
        Packed("e4m3_rope16", heads=128, group=128, lengths=(130,)),
        Packed("e4m3", heads=128, group=32, mask=am.sliding_window(40, 0), is_compressed=True),
        Packed("e4m3_rope16", heads=24, group=128, queries=3, lengths=(2, 90), page=0),
    ],
    ids=[
        "pairs in parts",
        "model1",
        "model1 in rows",
        "scales",
        "small groups",
        "rope of 16 bits",
    ],
)
def test_formats(problem: Packed) -> None:
    problem.run()


def test_blocks_that_the_mask_hides_take_nothing(launches: list[Stats]) -> None:
    """Of four blocks of 64 the window shows two to the query."""
    Packed(queries=1, lengths=(256,), page=64, mask=am.sliding_window(70, 0), device=FAIR).run()
    assert launches[-1].mma_count == 2 * (576 // 16 + 2 * 64 // 16)


@pytest.mark.long
def test_pages_that_there_are_not_read_as_zeros(as_on_a_gpu: Callable[[], None]) -> None:
    """As those of 16 bits: keys of zeros count. Scales of the pool's last page are NaN, which is none of them."""
    as_on_a_gpu()
    random = np.random.default_rng(0)
    q, rows = normal(random, 1, 1, 16, 576), normal(random, 4, 16, 1, 576)
    packed = am.pack_latent(rows, "v32").kv
    wide = am.unpack_latent(packed, "v32")
    poison(packed, FORMATS["v32"], np.arange(48, 64))
    table, used = np.array([[2, 7, 0, -(2**31)]], np.int32), np.array([60], np.int32)
    options: dict[str, Any] = {"scale": 0.3, "device": am.EmulatorDevice(**FAIR)}
    found = [
        am.mla_decode(q, am.PagedKV(pool, None, table, used), **form, **options)
        for pool, form in ((packed, {"kv_format": "v32"}), (wide, {}))
    ]
    for x, y in zip(*found, strict=True):
        assert np.allclose(x.astype(np.float32), y.astype(np.float32), atol=0.01)


@pytest.mark.long
def test_sequences_without_any_page() -> None:
    """A table without an entry is not read."""
    packed = am.pack_latent(normal(np.random.default_rng(0), 1, 16, 1, 576), "v32").kv
    cache = am.PagedKV(packed, None, np.zeros((2, 0), np.int32), np.zeros(2, np.int32))
    q = np.ones((2, 1, 16, 576), "bfloat16")
    device = am.EmulatorDevice(**FAIR)
    found: Any = am.mla_decode(q, cache, scale=1.0, kv_format="v32", device=device)
    assert not found[0].any() and np.all(found[1] == -np.inf)
