"""Bundles that `attn-opt` made from text: they say what they compute, and `run` judges by it."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

import attn_mlir as am
from attn_mlir import cli
from attn_mlir import trace as tr
from attn_mlir.cli.experiment import run_attention
from attn_mlir.compiling.bundled import text_of
from attn_mlir.dialect import attn
from attn_mlir.dialect._mlir import ir, make_context
from attn_mlir.dialect.attn.programs.evaluation import evaluate
from attn_mlir.dialect.attn.programs.program import Program
from attn_mlir.errors import SpecError
from attn_mlir.passes.infrastructure.pipeline import run_pipeline
from attn_mlir.passes.meaning import record_meaning, recorded_meaning
from attn_mlir.runtime.file.bundle import Bundle

TABLE = np.random.default_rng(0).standard_normal((2, 40)).astype(np.float32)
SHORTS = np.arange(40, dtype=np.int16) - 20

TEXT = """
func.func @bytext(
    %q: tensor<?x?x1x64xf16> {{attn.name = "q"}}, %k: tensor<?x?x1x64xf16> {{attn.name = "k"}},
    %v: tensor<?x?x1x64xf16> {{attn.name = "v"}}, %scale: f32 {{attn.name = "scale"}},
    %table: tensor<?xbf16> {{attn.name = "table"}})
    -> (tensor<?x?x1x64xf16>, tensor<?x1x?xf32>) {{
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({{
  ^bb0(%score: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    {region}
  }}) {{mask = #attn.causal}}
    : (tensor<?x?x1x64xf16>, tensor<?x?x1x64xf16>, tensor<?x?x1x64xf16>, f32)
      -> (tensor<?x?x1x64xf16>, tensor<?x1x?xf32>)
  func.return %o, %lse : tensor<?x?x1x64xf16>, tensor<?x1x?xf32>
}}
"""
IDENTITY = '"attn.yield"(%score) : (f32) -> ()'
REGION = """
    %at = arith.index_cast %j : i32 to index
    %narrow = tensor.extract %table[%at] : tensor<?xbf16>
    %bias = arith.extf %narrow : bf16 to f32
    %half = arith.constant 0.5 : f32
    %less = arith.mulf %score, %half : f32
    %sum = arith.addf %less, %bias : f32
    %three = arith.constant 3 : i32
    %gap = arith.subi %i, %j : i32
    %near = arith.cmpi sle, %gap, %three : i32
    "attn.keep"(%near) : (i1) -> ()
    "attn.yield"(%sum) : (f32) -> ()"""
UNREAD = {
    "arith.divsi": "%x = arith.divsi %i, %j : i32 %y = arith.sitofp %x : i32 to f32",
    "arith.cmpi": (
        "%x = arith.cmpi ult, %i, %j : i32 %z = arith.constant 0.0 : f32 "
        "%y = arith.select %x, %score, %z : f32"
    ),
    "arith.extui": (
        "%x = arith.extui %i : i32 to i64 %y = arith.sitofp %x : i64 to f32"
    ),
    "arith.truncf": (
        "%n = arith.truncf %score : f32 to bf16 %x = arith.mulf %n, %n : bf16 "
        "%y = arith.extf %x : bf16 to f32"
    ),
    "math.cbrt": "%y = math.cbrt %score : f32",
}  # fmt: skip


def meaning(region: str) -> dict[str, Any]:
    """What is kept of the text with this region."""
    with make_context():
        module = ir.Module.parse(TEXT.format(region=region))
        (function,) = module.body.operations
        record_meaning(module, function)
        return recorded_meaning(module, "bytext")


def everything(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    """Operations of every kind that a text can hold."""
    x = np.exp(-abs(s)) + np.log2(s * s + 1) + np.minimum(s, 0.5) + np.maximum(q, k) + TABLE[h, k]
    y = ((q & 3) | (k ^ 1)) + (q << 2) + (k >> 1) - (-q) + SHORTS[k] * 0.5 + (s < 0) * 1
    z = np.where((q > k) & (s >= 0) | (k == 3), s / 3, np.floor(s)) + s.to(int) + abs(q - k)
    return x + y + z + np.float32(1e-3) * np.tanh(s)


def test_programs_are_read_back() -> None:
    """What `expression` emits of a program means the same again; names are those of the arguments."""
    spec = dataclasses.replace(am.mha(heads=2, head_dim=64), modifier=tr.trace(everything)[0])
    with make_context():
        module = attn.build_module(ir.Context.current, spec)
        (function,) = module.body.operations
        record_meaning(module, function)
        found = recorded_meaning(module, function.sym_name.value)
    assert found["mask"] == "full"
    assert spec.modifier is not None
    again = Program.from_json(found["modifier"])
    assert again.tensors == spec.modifier.tensors
    rows = np.arange(40)
    at = {"score": np.random.default_rng(1).standard_normal((2, 40, 40)), "batch": 0,
          "head": np.arange(2)[:, None, None], "q": rows[:, None], "k": rows}  # fmt: skip
    arrays = {"TABLE": TABLE, "SHORTS": SHORTS}
    made, wanted = (evaluate(program, at, arrays).score for program in (again, spec.modifier))
    np.testing.assert_array_equal(made, wanted)


@pytest.mark.parametrize("name", UNREAD)
def test_what_no_program_has_is_named(name: str) -> None:
    found = meaning(UNREAD[name] + ' "attn.yield"(%y) : (f32) -> ()')
    assert found["modifier"] is None
    assert found["unread"].startswith(name)


def test_scores_that_stay_as_they_are() -> None:
    assert meaning(IDENTITY) == {"op": "attn.mha", "mask": "causal", "modifier": None}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """Made in two steps, as pages show it."""
    path = tmp_path_factory.mktemp("text") / "bytext.attn"
    with make_context():
        module = ir.Module.parse(TEXT.format(region=REGION))
        run_pipeline(module, "attn-to-ptx")
        run_pipeline(module, f"attn-write-bundle{{output={path}}}")
    return Bundle.load(path)


def test_a_region_is_part_of_the_truth(bundle: Bundle, capsys: pytest.CaptureFixture[str]) -> None:
    trial = run_attention(bundle, batch=1, sq=9, sk=20, device="emulator")
    assert trial.comparison.ok
    assert bundle.path is not None
    assert cli.main(["info", str(bundle.path)]) == 0
    assert "reads table (bf16, rank 1)" in " ".join(capsys.readouterr().out.split())
    with pytest.raises(SpecError, match="was compiled for mask causal, got full"):
        run_attention(bundle, batch=1, sq=9, sk=20, mask=am.full())


def test_what_cannot_be_evaluated_is_not_judged(bundle: Bundle) -> None:
    request = {"op": "attn.mha", "mask": "causal", "modifier": None, "unread": "math.cbrt"}
    manifest = dataclasses.replace(bundle.manifest, request=request)
    changed = dataclasses.replace(bundle, manifest=manifest)
    with pytest.raises(SpecError, match=r"modifies scores by math.cbrt.*not judged"):
        run_attention(changed, batch=1, sq=9, sk=20)
    wrong = dataclasses.replace(manifest, request={"op": "attn.mha", "mask": "neither"})
    with pytest.raises(SpecError, match="neither"):
        text_of(dataclasses.replace(bundle, manifest=wrong))
