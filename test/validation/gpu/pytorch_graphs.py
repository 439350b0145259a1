"""Checks that appending and attention run on a GPU out of PyTorch's graphs."""

from __future__ import annotations

from typing import Any

import numpy as np

from attn_mlir.flash import flash_attn_with_kvcache
from attn_mlir.runtime.devices.idle import IdleDevice
from attn_mlir.validation.gpu.check import Machine, check, module

BATCH, HEADS, KV_HEADS, DIM, PAGE, COLUMNS = 2, 8, 2, 128, 16, 4
POOL = (9, PAGE, KV_HEADS, DIM)
STEP, STEPS = 13, 4  # tokens by which sequences grow between steps: not a divisor of a page


def _one_step(target: str) -> None:
    """Asks for the kernels of a step."""
    import ml_dtypes

    def zeros(*shape: int, dtype: Any = ml_dtypes.bfloat16) -> Any:
        return np.zeros(shape, dtype)

    q, new = zeros(BATCH, 1, HEADS, DIM), zeros(BATCH, 1, KV_HEADS, DIM)
    flash_attn_with_kvcache(
        q, zeros(*POOL), zeros(*POOL), new, new,
        rotary_cos=zeros(PAGE * COLUMNS, DIM // 2, dtype=np.float32),
        rotary_sin=zeros(PAGE * COLUMNS, DIM // 2, dtype=np.float32),
        cache_seqlens=zeros(BATCH, dtype=np.int32),
        page_table=np.arange(BATCH * COLUMNS, dtype=np.int32).reshape(BATCH, COLUMNS),
        causal=True, rotary_interleaved=False, device=IdleDevice(target),
    )  # fmt: skip


class _Decoding:
    """A step of decoding with tensors of PyTorch, and the same in float32 without this package."""

    def __init__(self, torch: Any, place: str):
        self.torch = torch

        def normal(*shape: int) -> Any:
            return torch.randn(shape, device=place).to(torch.bfloat16)

        torch.manual_seed(5)
        self.pools = [normal(*POOL) for _ in "kv"]
        self.q = normal(BATCH, 1, HEADS, DIM)
        self.new = [normal(BATCH, 1, KV_HEADS, DIM) for _ in "kv"]
        self.table = torch.randperm(POOL[0])[: BATCH * COLUMNS].view(BATCH, COLUMNS)
        self.table = self.table.to(place, torch.int32)
        self.lengths = torch.zeros(BATCH, dtype=torch.int32, device=place)
        angles = 6 * torch.rand(PAGE * COLUMNS, DIM // 2, device=place)
        self.cos, self.sin = angles.cos(), angles.sin()

    def step(self) -> Any:
        """O [BATCH, 1, HEADS, DIM]; the new tokens are in the pools."""
        return flash_attn_with_kvcache(
            self.q, *self.pools, *self.new, rotary_cos=self.cos, rotary_sin=self.sin,
            cache_seqlens=self.lengths, page_table=self.table, causal=True, rotary_interleaved=False,
        )  # fmt: skip

    def advance(self) -> None:
        """Other tokens behind longer sequences, in the same tensors."""
        for tensor in (self.q, *self.new):
            tensor.normal_()
        self.lengths.add_(STEP)

    def wanted(self, pools: list[Any]) -> Any:
        """What `step` returns, with its tokens written to copies of the pools."""
        torch = self.torch
        outputs: list[Any] = []
        for b, length in enumerate(self.lengths.tolist()):
            pages, place = self.table[b].long(), (self.table[b, length // PAGE], length % PAGE)
            q, k = (self._rotated(x[b, 0], length) for x in (self.q, self.new[0]))
            for pool, new in zip(pools, (k, self.new[1][b, 0]), strict=True):
                pool[place] = new.to(pool.dtype)
            sides = [pool[pages].flatten(0, 1)[: length + 1].float() for pool in pools]
            keys, values = (x.repeat_interleave(HEADS // KV_HEADS, 1) for x in sides)
            scores = torch.einsum("hd,khd->hk", q.to(torch.bfloat16).float(), keys) / DIM**0.5
            outputs.append(torch.einsum("hk,khd->hd", scores.softmax(-1), values))
        return torch.stack(outputs)[:, None]

    def _rotated(self, x: Any, row: int) -> Any:
        a, b = x.float().chunk(2, -1)
        c, s = self.cos[row], self.sin[row]
        return self.torch.cat([a * c - b * s, b * c + a * s], -1)


def replayed_steps(torch: Any, place: str) -> None:
    """Compiled steps, on a GPU captured and replayed, against float32.

    Raises:
      AssertionError: an element of O or of the caches is wrong.
    """
    decoding = _Decoding(torch, place)
    pools = [pool.clone() for pool in decoding.pools]
    run = torch.compile(decoding.step, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        o = run()  # compiles; loads the kernels; writes what the first step writes again
        if place == "cuda":
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                o = run()
        for number in range(STEPS):
            if place == "cuda":
                graph.replay()  # pyright: ignore[reportPossiblyUnboundVariable]
            else:
                o = run()
            wanted = decoding.wanted(pools)
            assert (o - wanted).abs().max() < 0.03, number  # bf16 O of normal values
            for found, pool in zip(decoding.pools, pools, strict=True):
                assert torch.allclose(found.float(), pool.float(), rtol=2**-7, atol=2**-7), number
            decoding.advance()


@check(asks=_one_step)
def steps_of_decoding_in_pytorchs_graphs(machine: Machine) -> None:
    """`flash_attn_with_kvcache` in the graph of torch.compile, captured and replayed as lengths grow."""
    replayed_steps(module("torch"), "cuda")
