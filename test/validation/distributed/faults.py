"""Ranks that fail: what the others raise, and how long that takes them."""

from __future__ import annotations

import functools
import importlib
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import attn_mlir as am
from attn_mlir import distributed as ad
from attn_mlir.errors import AttnError, TargetError

torch: Any = importlib.import_module("torch")
dist: Any = importlib.import_module("torch.distributed")

LENGTH, HEADS, DIM = 24, 4, 32


def _operands(heads: int = HEADS) -> list[Any]:
    return [torch.ones(1, LENGTH, h, DIM, dtype=torch.bfloat16) for h in (heads, 2, 2)]


def _attend(scheme: str, **options: Any) -> Any:
    own = [ad.shard(x) for x in _operands()]
    call: Callable[..., Any] = getattr(ad, f"{scheme}_attention")
    told = {"mask": am.causal(), "device": "emulator", "length": LENGTH}
    return call(*own, **{**told, **options})


def _raised(call: Callable[[], Any]) -> dict[str, Any]:
    """The error of a call, and the seconds that it took."""
    begin = time.monotonic()
    try:
        call()
    except Exception as error:
        return {
            "error": type(error).__name__,
            "text": str(error),
            "seconds": time.monotonic() - begin,
        }
    return {"error": "", "seconds": time.monotonic() - begin}


def killed(scheme: str) -> dict[str, Any]:
    """Rank 1 calls with other heads, and ends between the right call after that and the next one."""
    before = differ("heads")
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return {**_raised(lambda: _attend(scheme)), "before": before}


def raises(scheme: str, kind: str) -> dict[str, Any]:
    """The kernel of rank 1 raises an `AttnError` or an `Exception` of Python in the middle of a
    call; the rank lives on.
    """
    from attn_mlir.distributed import problem, ulysses

    _attend(scheme)
    if dist.get_rank() == 1:

        def fail(*_: Any, **__: Any) -> Any:
            raise {"AttnError": AttnError, "RuntimeError": RuntimeError}[kind]("planted")

        problem.attention = ulysses.attention = fail
    found = _raised(lambda: _attend(scheme))
    again = _raised(lambda: _attend(scheme))
    time.sleep(2)  # as a program that goes on: connections are not closed by its end
    return {**found, "again": again["error"]}


def differ(what: str) -> dict[str, Any]:
    """Rank 1 calls with another argument; the call after that is right on all ranks."""
    rank = dist.get_rank()
    own = [ad.shard(x) for x in _operands(4 if rank != 1 or what != "heads" else 2)]
    options: dict[str, Any] = {"mask": am.causal(), "device": "emulator"}
    if what != "function":
        _attend("ring")
        options["scale"] = 0.5  # so that no rank makes the call that is agreed on
    if what == "tokens" and rank == 1:
        own = [x[:, 1:] for x in own]
    if what == "mask" and rank == 1:
        options["mask"] = am.sliding_window(3, 0)
    if what == "refused" and rank == 1:
        own[0] = own[0].float()
    if what == "dtype" and rank == 1:
        own = [x.half() for x in own]
    if what == "sinks" and rank == 1:
        options["sinks"] = torch.ones(HEADS + 1)
    if what == "keyword" and rank == 1:
        options["window"] = 3
    if what == "function" and rank == 1:
        found = _raised(lambda: ad.gather_attention(*own, **options))
    else:
        found = _raised(lambda: ad.ring_attention(*own, **options))
    return {**found, "after": _raised(lambda: _attend("ring"))["error"]}


def without_kernel() -> dict[str, Any]:
    """A head size that no kernel has, a modifier that only rank 1 has, and a compiler that only rank
    1 misses; the call after each is right on all ranks.
    """
    from attn_mlir.distributed import preparing

    wide = [torch.ones(1, LENGTH, h, 328, dtype=torch.bfloat16) for h in (4, 2, 2)]
    schemes = {"ring": ad.ring_attention, "gather": ad.gather_attention}
    schemes["ulysses"] = ad.ulysses_attention
    own = [ad.shard(x) for x in wide]
    found = {name: _raised(functools.partial(call, *own)) for name, call in schemes.items()}
    planned = preparing.check_chip

    def fail(_: object) -> None:
        raise TargetError("planted")

    if dist.get_rank() == 1:
        preparing.check_chip = fail
    found["planted"] = _raised(lambda: _attend("ring"))
    preparing.check_chip = planned
    factor = 1.0 + dist.get_rank()
    found["function"] = _raised(lambda: _attend("ring", score_mod=lambda s, b, h, q, k: s * factor))
    return {**found, "after": _raised(lambda: _attend("ring"))}


def in_mesh(what: str) -> dict[str, Any]:
    """The last rank of a mesh of two dimensions calls with another argument, between right calls."""
    mesh = dist.device_mesh.init_device_mesh("cpu", (2, 2))
    own = [ad.shard(x) for x in _operands()]
    options: dict[str, Any] = {"mask": am.causal(), "device": "emulator"}
    _raised(lambda: ad.ulysses_ring_attention(*own, mesh, **options))
    given = list(own)
    options["scale"] = 0.5  # so that no rank makes the call that is agreed on
    if dist.get_rank() == 3:
        given = [x.half() if what == "dtype" else x[:, 1:] for x in own]
        if what == "refused":
            given[0] = own[0].float()
    found = _raised(lambda: ad.ulysses_ring_attention(*given, mesh, **options))
    del options["scale"]
    return {**found, "after": _raised(lambda: ad.ulysses_ring_attention(*own, mesh, **options))}


def absent() -> dict[str, Any]:
    """Rank 1 does not make the call."""
    if dist.get_rank() == 1:
        time.sleep(6)
        return {"error": ""}
    return _raised(lambda: _attend("ring"))


def groups() -> dict[str, Any]:
    """Groups that a call refuses, and a mesh of two dimensions, of which a call takes one."""
    mesh = dist.device_mesh.init_device_mesh("cpu", (2, 2), mesh_dim_names=("outer", "inner"))
    first = dist.new_group([0, 1])
    own = [ad.shard(x, mesh["inner"]) for x in _operands()]
    o = ad.ring_attention(*own, mesh["inner"], mask=am.causal(), device="emulator")
    texts = [_raised(lambda: ad.ring_attention(*own, mesh))["text"]]
    texts.append(_raised(lambda: ad.ring_attention(*own, "everybody"))["text"])
    if dist.get_rank() > 1:
        texts.append(_raised(lambda: ad.ring_attention(*own, first))["text"])
    return {"tokens": o.shape[1], "texts": texts}
