"""What a bundle says it computes: kept as it was asked, read back, and refused where it is changed."""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attn_mlir as am
from attn_mlir import cli, mods
from attn_mlir.cli.experiment import _computed, run_attention
from attn_mlir.compiling.bundled import attention_of, request_lines
from attn_mlir.compiling.operations import request_of
from attn_mlir.dialect.attn.cache import Cache
from attn_mlir.dialect.attn.lengths import Lengths
from attn_mlir.errors import SpecError
from attn_mlir.runtime.file.bundle import Bundle
from attn_mlir.runtime.file.manifest import parse_manifest

SINKS = np.zeros(2, np.float32)
TRACED = am.mha(
    heads=2, head_dim=64, mask=am.sliding_window(100), score_mod=mods.softcap(30.0),
    mask_mod=mods.document(np.zeros((1, 8), np.int32)), sinks=SINKS, return_lse=False,
)  # fmt: skip
REQUESTS = [
    am.mha(heads=16, kv_heads=4, head_dim=128, mask=am.causal()),
    am.mha(heads=2, head_dim=64, v_head_dim=128, mask=am.causal() & ~am.prefix_lm(64)),
    am.mha(heads=2, head_dim=64, dtype="e4m3", out_dtype="f32", query_tiles=1, tile_order="clc"),
    am.mha(heads=2, head_dim=64, lengths=Lengths(ragged_q=True, ragged_k=True, used_k=True)),
    am.mha(heads=2, head_dim=64, cache=Cache(page_size=16, pages="csr")),
    am.mha(heads=2, head_dim=64, cache=Cache(selected=True), lengths=Lengths(cached_k=True)),
    am.mha(heads=2, head_dim=64, block=(128, 1, 128)),
    am.MlaSpec(
        heads=2, nope_dim=128, rope_dim=64, mask=am.causal(), cache=Cache(page_size=16, pages="csr")
    ),
    dataclasses.replace(am.mha(heads=2, head_dim=64, out_dtype="f32"), partial=True),
    TRACED,
]


@pytest.mark.parametrize("spec", REQUESTS)
def test_read_back_as_it_was_asked(spec: am.MhaSpec) -> None:
    again = request_of(json.loads(spec.canonical_json()))
    assert again.canonical_json() == spec.canonical_json()
    assert again == spec


def test_a_cache_in_words() -> None:
    spec = am.mha(heads=2, head_dim=64, cache=Cache(page_size=64, pages="table"))
    (line,) = request_lines(spec.fields())
    assert ", cache (page_size 64, pages table), " in line


@pytest.fixture(scope="module")
def traced() -> Bundle:
    return am.compile(TRACED)


def with_request(bundle: Bundle, change: Callable[[dict[str, Any]], object]) -> Bundle:
    request = copy.deepcopy(dict(bundle.manifest.request))
    change(request)
    manifest = dataclasses.replace(bundle.manifest, request=request)
    return dataclasses.replace(bundle, manifest=manifest)


def test_a_bundle_keeps_its_request(traced: Bundle) -> None:
    assert traced.manifest.request == json.loads(TRACED.canonical_json())
    assert attention_of(traced) == TRACED
    lines = request_lines(traced.manifest.request)
    assert "mask window:100,0" in lines[0] and "heads 2" in lines[0]
    assert "with a sink, reads ids_q (i32, rank 2), sinks (f32, rank 1)" in lines[1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: r.update(op="combine"), "computes 'combine', not attention"),
        (lambda r: r.pop("mask"), "request is none that this attn-mlir knows"),
        (lambda r: r.update(mask="~" * 5000), "nested more than 64 deep"),
        (lambda r: r.update(mask=3), "request is none"),
        (lambda r: r.update(mask="window:0100,0"), "not in canonical form"),
        (lambda r: r.update(extra=1), "not in canonical form"),
        (lambda r: r.update(heads=3), "kv_heads must divide heads"),
        (lambda r: r.update(heads=True), "heads must be an integer"),
        (lambda r: r.update(heads=4), r"the request's q is bf16 \['batch', 'sq', 4, 64\]"),
        (lambda r: r.update(dtype="f16", kv_dtype="f16"), "the request's q is f16"),
        (lambda r: r.update(dtype=[]), "dtype .* has no kernel"),
        (lambda r: r.update(return_lse=True), "the request takes q, k, v, o, lse"),
        (lambda r: r.update(modifier=None), "the request takes q, k, v, o, the kernel"),
        (lambda r: r.update(modifier="{}"), "no program of a score modifier"),
        (lambda r: r.update(modifier=r["modifier"].replace('"i32"', '"f32"')), "cannot be evaluat"),
        (lambda r: r.update(modifier=r["modifier"].replace('"op":"', '"op":"x')), "cannot be eval"),
        (lambda r: r.update(modifier=2**63), "no program of a score modifier: 9223372036854775808"),
        (lambda r: r.update(modifier="[" * 10**5), "no program of a score modifier"),
        (lambda r: r.update(lengths=None), "request is none"),
        (lambda r: r.update(lengths=["seqused_k"]), "the request takes q, k, v, o, seqused_k"),
        (lambda r: r.update(block=5), "request is none"),
    ],
)
def test_changed_requests(
    change: Callable[[dict[str, Any]], object], message: str, traced: Bundle
) -> None:
    changed = with_request(traced, change)
    with pytest.raises(SpecError, match=message):
        attention_of(changed)
    assert request_lines(changed.manifest.request)


def test_a_bundle_takes_the_numbers_of_its_request(traced: Bundle) -> None:
    without = dataclasses.replace(traced.manifest, scalars=())
    with pytest.raises(
        SpecError, match="the request takes the numbers scale, the kernel : compile"
    ):
        attention_of(dataclasses.replace(traced, manifest=without))


def test_run_compares_with_what_was_compiled(
    traced: Bundle, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = traced.save(tmp_path / "traced.attn")
    assert cli.main(["run", str(path), "--sq", "40", "--sk", "150", "--device", "emulator"]) == 0
    assert "emulator, grid (1, 2, 1): ok: O error" in capsys.readouterr().out
    assert cli.main(["run", str(path), "--mask", "causal"]) == 1
    assert "was compiled for mask window:100,0, got causal" in capsys.readouterr().err
    assert cli.main(["info", str(path)]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "mask window:100,0" in told and "score modifier of" in told


def test_a_bundle_that_does_not_say() -> None:
    """One that was made from text: the mask has to be told."""
    bundle = am.compile(am.mha(heads=1, head_dim=64, mask=am.causal()))
    fields = {**json.loads(bundle.json_text())}
    del fields["request"]
    silent = dataclasses.replace(bundle, manifest=parse_manifest(fields))
    assert attention_of(silent) is None
    assert request_lines(silent.manifest.request) == ["computes: not said in this bundle"]
    with pytest.raises(SpecError, match=r"does not say what it computes.*\(--mask\)"):
        run_attention(silent, batch=1, sq=8, sk=8)
    trial = run_attention(silent, batch=1, sq=8, sk=40, mask=am.causal(), device="emulator")
    assert trial.comparison.ok
    assert run_attention(bundle, batch=1, sq=8, sk=40, device="emulator").comparison.ok


@pytest.mark.parametrize("spec", REQUESTS[3:6])
def test_run_is_for_dense_operands(spec: am.MhaSpec, traced: Bundle) -> None:
    with pytest.raises(SpecError, match="is not for dense operands .*: call it from Python"):
        _computed(traced, spec, None)
