"""Requests as descriptions: what follows from the options and operands that a class declares."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from typing import Any, ClassVar

import pytest

import attn_mlir as am
from attn_mlir.compiling.appending import AppendSpec
from attn_mlir.compiling.backward.accumulators import RoundRowsSpec, ZeroRowsSpec
from attn_mlir.compiling.backward.gradients import (
    DeltaSpec,
    GradientsSpec,
    KvGradientsSpec,
    QGradientsSpec,
)
from attn_mlir.compiling.backward.mla_gradients import MlaKvGradientsSpec, MlaQGradientsSpec
from attn_mlir.compiling.backward.row_sums import SinkDeltaSpec, SumPartsSpec, SumRowsSpec
from attn_mlir.compiling.combination import CombineSpec
from attn_mlir.compiling.mla_decode import MlaDecodeSpec
from attn_mlir.compiling.operations import OPERATIONS, request_of
from attn_mlir.compiling.request import Request, option, option_names, request
from attn_mlir.compiling.sparse_mla import SparseMlaSpec
from attn_mlir.dialect._mlir import make_context
from attn_mlir.dialect.attn import build_module
from attn_mlir.dialect.attn.cache import Cache
from attn_mlir.dialect.attn.lengths import Lengths
from attn_mlir.dialect.attn.operands import Operand
from attn_mlir.errors import SpecError, VerifyError
from attn_mlir.lowering import compile as compiler
from attn_mlir.schedules.policy.facts import Facts
from attn_mlir.trace import trace

SOFTCAP = trace(am.mods.softcap(20.0))[0]
REQUESTS = [
    am.mha(heads=4, head_dim=64, kv_heads=2, dtype="e4m3"),
    CombineSpec(heads=2, v_head_dim=64, out_dtype="bf16", sinks="f16", return_lse=True),
    AppendSpec(
        heads=2,
        head_dim=64,
        v_head_dim=32,
        dtype="e4m3",
        new_dtype="bf16",
        cache=Cache(page_size=16, pages="csr"),
        sequence_source="cu_seqlens",
        angles="f32",
        rotary_dim=32,
        scaled=True,
    ),
    SparseMlaSpec(heads=16, head_dim=512, topk_length=True, sinks=True),
    am.MlaSpec(heads=4, nope_dim=128, rope_dim=64, cache=Cache(page_size=16, pages="table")),
    MlaDecodeSpec(heads=8, sinks=True, cache=Cache(page_size=64, pages="table")),
    DeltaSpec(heads=2, v_head_dim=64, dtype="f16", dlse="f32"),
    SinkDeltaSpec(heads=2, v_head_dim=64, sinks="bf16"),
    SumPartsSpec(dtype="f16"),
    SumRowsSpec(heads=2, lengths=Lengths(ragged_q=True)),
    GradientsSpec(heads=4, kv_heads=2, head_dim=64, lengths=Lengths(used_q=True)),
    KvGradientsSpec(heads=4, kv_heads=2, head_dim=64, mask=am.causal(), block=(64, 2, 128)),
    QGradientsSpec(
        heads=4,
        head_dim=64,
        v_head_dim=32,
        lengths=Lengths(ragged_q=True),
        modifier=SOFTCAP,
        row_weights=True,
    ),
    MlaKvGradientsSpec(heads=4, kv_heads=2, nope_dim=128, rope_dim=64, mask=am.causal()),
    MlaQGradientsSpec(
        heads=4, nope_dim=64, rope_dim=16, v_head_dim=72, lengths=Lengths(ragged_q=True)
    ),
    RoundRowsSpec(heads=2, head_dim=72, dtype="f16"),
    ZeroRowsSpec(heads=2, head_dim=72),
]


def test_every_operation_has_an_example_here() -> None:
    assert [type(example) for example in REQUESTS] == list(OPERATIONS.values())


@pytest.mark.parametrize("example", REQUESTS, ids=lambda x: x.operation)
def test_the_canonical_form_is_read_back(example: Request) -> None:
    fields = json.loads(example.canonical_json())
    assert set(fields) == {"op", *option_names(type(example))}
    assert request_of(fields) == example
    with pytest.raises(SpecError, match="it is not in canonical form"):
        request_of({**fields, "further": 1})
    known = ", ".join(OPERATIONS)
    with pytest.raises(SpecError, match=f"op must be one of {known}, got 'other'"):
        request_of({**fields, "op": "other"})


@pytest.mark.parametrize("example", REQUESTS, ids=lambda x: x.operation)
def test_every_option_is_documented(example: Request) -> None:
    section = (type(example).__doc__ or "").partition("Args:")[2]
    documented = re.findall(r"^ {6}([\w, ]+):", section, re.MULTILINE)
    names = {name for names in documented for name in names.split(", ")}
    given = {f.name for f in dataclasses.fields(example)}  # type: ignore[arg-type]
    assert given <= names


@pytest.mark.parametrize("example", REQUESTS, ids=lambda x: x.operation)
def test_the_function_has_the_operands_by_name(example: Request) -> None:
    text = str(build_module(make_context(), example))
    named = re.findall(r'attn\.name = "(\w+)"', text)
    given = [x.name for x in example.operands if x.role != "out"]
    assert named == [*given, *(x.name for x in example.operands if x.role == "out")]
    assert f"@{example.kernel_name}(" in text


def test_what_is_left_out_is_completed() -> None:
    spec = am.mha(heads=4, head_dim=64, dtype="e4m3")
    assert (spec.kv_heads, spec.v_head_dim, spec.mask, spec.out_dtype) == (4, 64, am.full(), "bf16")
    assert spec == dataclasses.replace(spec, v_head_dim=64)


def test_a_modifier_is_given_or_traced() -> None:
    traced = am.mha(heads=1, head_dim=64, score_mod=lambda s, b, h, q, k: s * 2.0)
    assert traced == am.mha(heads=1, head_dim=64, modifier=traced.modifier)
    with pytest.raises(SpecError, match="modifier excludes score_mod, mask_mod and sinks"):
        am.mha(heads=1, head_dim=64, modifier=traced.modifier, mask_mod=lambda b, h, q, k: q > k)


@request
class RenamedSpec(Request):
    """An operation that is added to the others: attention with an output of another name."""

    operation: ClassVar[str] = "renamed"
    inner: am.MhaSpec = option(converter=lambda spec: spec)

    @property
    def operands(self) -> tuple[Operand, ...]:
        """Those of attention; O under another name."""
        inner = self.inner.operands
        return tuple(dataclasses.replace(x, name="p") if x.name == "o" else x for x in inner)

    @property
    def kernel_name(self) -> str:
        """That of attention."""
        return self.inner.kernel_name

    def problem(self) -> Facts:
        """Those of attention."""
        return self.inner.facts

    def canonical_json(self) -> str:
        """That of attention."""
        return self.inner.canonical_json()

    def emit(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Attention."""
        results = self.inner.emit(arguments)
        return {"p": results["o"], "lse": results["lse"]}


def test_a_kernel_whose_call_is_another_than_described_is_no_bundle() -> None:
    """The builder names the result `p`; the pass that checks names, or the end, refuses it."""
    spec = RenamedSpec(inner=am.mha(heads=1, head_dim=64))
    with pytest.raises(VerifyError, match=r'expects attn.name = "o" on result 0, got "p"'):
        compiler.compile_request(spec)
    manifest = {"entry": "k", "tensors": [], "scalars": []}
    with pytest.raises(VerifyError, match="the schedule of k makes a kernel of .* the request des"):
        compiler._check_call(manifest, spec)
