"""A request and its operation have the same facts, whatever is asked for."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import attn_mlir as am
from attn_mlir.bench.costs import variants
from attn_mlir.bench.problems import latent_requests
from attn_mlir.compiling.operations import request_of
from attn_mlir.compiling.request import Request
from attn_mlir.dialect._mlir import ir, make_context
from attn_mlir.dialect.attn import build_module
from attn_mlir.errors import AttnError
from attn_mlir.schedules.core.facts import facts_of, operations
from attn_mlir.schedules.policy.facts import Facts
from attn_mlir.trace import trace
from attn_mlir.validation.choices.table import sample
from attn_mlir.validation.numerics import families

SHARE = 12  # one call in twelve of the table of choices


context = functools.cache(
    make_context
)  # one for all requests: making it takes longer than a module


def of_operation(request: Request) -> Facts:
    """The facts of the operation that a request builds."""
    module = build_module(context(), request)
    with module.context:
        return facts_of(
            next(op for kind in operations() for op in ir.get_ops_of_type(module, kind))
        )


def of_benchmarks() -> Iterator[Request]:
    """The configurations, variants and latent kernels of `bench/unchanged.py`."""
    for kind in (variants.configurations, variants.variants):
        yield from (am.mha(**options) for _, options in kind())
    yield from (make() for make in latent_requests.LATENT.values())


def of_calls(share: int = SHARE) -> Iterator[Request]:
    """The kernels of calls of the table of choices."""
    for case in sample(share):
        try:
            yield from (step.request for step in case.plan().steps)
        except AttnError:
            continue


def of_families() -> Iterator[Request]:
    """The kernels of the families of the numerics."""
    for number, _ in enumerate(families.FAMILIES):
        for bundle in families.kernels(number):
            yield request_of(dict(bundle.manifest.request))


@pytest.mark.parametrize(
    "requests",
    [of_benchmarks, of_calls, pytest.param(of_families, marks=pytest.mark.long)],
)
def test_a_request_and_its_operation_have_the_same_facts(
    requests: Callable[[], Iterator[Request]],
) -> None:
    seen = dict.fromkeys(requests())
    assert len(seen) > 10
    for request in seen:
        assert request.facts == of_operation(request), request


TABLE = np.zeros(8, np.float32)
SQUARE = np.zeros((8, 8), np.float32)


@pytest.mark.parametrize(
    ("score_mod", "mask_mod", "reads", "gathers"),
    [
        (lambda s, b, h, q, k: s * 2, None, 0, False),
        (lambda s, b, h, q, k: s + TABLE[h], None, 1, False),
        (lambda s, b, h, q, k: s + SQUARE[q, k], None, 1, False),
        (lambda s, b, h, q, k: s + TABLE[q - k], None, 1, True),
        (lambda s, b, h, q, k: s + SQUARE[h, abs(q - k)] * TABLE[b], None, 2, True),
        (None, lambda b, h, q, k: TABLE[q] == TABLE[k], 2, False),
        (lambda s, b, h, q, k: s + TABLE[h], lambda b, h, q, k: SQUARE[b, q + k] > 0, 2, True),
    ],
)
def test_modifiers_have_the_facts_of_their_regions(
    score_mod: Any, mask_mod: Any, reads: int, gathers: bool
) -> None:
    program, _ = trace(score_mod, mask_mod)
    request = am.mha(heads=2, head_dim=64, modifier=program)
    assert request.facts.modifier == (reads, gathers)
    assert of_operation(request).modifier == (reads, gathers)


def test_sinks_are_not_read_for_scores() -> None:
    request = am.mha(heads=8, head_dim=64, sinks=TABLE)
    assert request.facts == of_operation(request)
    assert request.facts.modifier == (0, False)
