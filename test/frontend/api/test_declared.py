"""A call's arguments are declared once: its signature, its errors and its operator follow from the declaration."""

from __future__ import annotations

import dataclasses
import inspect
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
import pytest

import attn_mlir as am
from attn_mlir.api.appending import AppendCall
from attn_mlir.api.attention import AttentionCall
from attn_mlir.api.attention_backward import AttentionBackwardCall
from attn_mlir.api.latent.mla import MlaCall
from attn_mlir.api.latent.mla_backward import MlaBackwardCall
from attn_mlir.api.latent.mla_decode import MlaDecodeCall
from attn_mlir.api.latent.sparse_mla import SparseMlaCall
from attn_mlir.api.lengths import LengthArguments
from attn_mlir.api.plan import Plan
from attn_mlir.api.planners import declared_by, only_planned
from attn_mlir.runtime.call.tensors import view

CALLS = {
    "attention": AttentionCall,
    "attention_backward": AttentionBackwardCall,
    "mla": MlaCall,
    "mla_backward": MlaBackwardCall,
    "mla_decode": MlaDecodeCall,
    "sparse_mla": SparseMlaCall,
    "append_kv": AppendCall,
}
FOUND: list[Any] = []


@dataclass(frozen=True, eq=False)
class ShiftedCall:
    """The arguments of `shifted`."""

    q: Any
    k: Any = None
    _: KW_ONLY
    by: int = 1
    table: Any = None


@declared_by(ShiftedCall)
def shifted(call: ShiftedCall) -> Plan:
    """Launches nothing."""
    FOUND.append(call)
    return Plan([], [], [], call.q, view(call.q, "q"))


def test_a_function_has_the_parameters_of_its_declaration() -> None:
    signature = str(inspect.signature(shifted))
    assert signature.startswith(
        "(q: 'Any', k: 'Any' = None, *, by: 'int' = 1, table: 'Any' = None) -> "
    )
    assert (shifted.__name__, shifted.__doc__) == ("shifted", "Launches nothing.")
    q = np.zeros(4, np.float32)
    assert isinstance(only_planned(shifted)(q, by=3), Plan) and shifted(q, table=q) is None
    assert [(x.by, x.table is q) for x in FOUND] == [(3, False), (1, True)]


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((), {}, r"^shifted\(\) missing 1 required positional argument: 'q'$"),
        (
            (0,),
            {"tabel": 0},
            r"^shifted\(\) got an unexpected keyword argument 'tabel': pass table=$",
        ),
        ((0, 1, 2), {}, r"^shifted\(\) takes from 1 to 2 positional arguments but 3 were given$"),
    ],
)
def test_errors_name_the_function(arguments: Any, options: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        shifted(*arguments, **options)


@pytest.mark.parametrize("name", CALLS)
def test_a_public_function_takes_what_is_declared(name: str) -> None:
    parameters = inspect.signature(getattr(am, name)).parameters.values()
    fields = dataclasses.fields(CALLS[name])
    assert [(x.name, x.annotation) for x in parameters] == [(x.name, x.type) for x in fields]
    takes = {x.name for x in dataclasses.fields(LengthArguments)} <= {x.name for x in fields}
    assert takes == (name in ("attention", "mla"))


def test_an_operator_takes_what_is_declared() -> None:
    pytest.importorskip("torch")
    from attn_mlir.pytorch.graph_calls import GraphCall

    call = GraphCall(shifted, {"q": "Tensor"})
    assert call.declared == {"k": "Tensor?", "by": "int?", "table": "Tensor?"}
    given = call.by_name((0,), {"by": 2, "table": None})
    assert given == {"q": 0, "by": 2} == call.unflattened(lambda x, _: x, call.flattened(given))
