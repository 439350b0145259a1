"""What a region computes is refused at its own line, before the operation becomes a kernel."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from attn_mlir.dialect import attn
from attn_mlir.dialect._mlir import ir, make_context
from attn_mlir.errors import VerifyError
from attn_mlir.passes import attn_opt
from attn_mlir.passes.check_scalars import FLOATS, SCALAR_OPS, check_regions, check_scalar

HEAD = """func.func @f(%q: tensor<?x?x2x64xbf16>, %k: tensor<?x?x2x64xbf16>, %v: tensor<?x?x2x64xbf16>, %s: f32)
    -> (tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>) {
  %o, %l = "attn.mha"(%q, %k, %v, %s) ({
  ^bb0(%x: f32, %b: i32, %h: i32, %i: i32, %j: i32):
"""
TAIL = """
    "attn.yield"(%x) : (f32) -> ()
  }) {mask = #attn.causal} : (tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, f32)
      -> (tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>)
  return %o, %l : tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>
}
"""
LINE = HEAD.count("\n") + 1  # of the first operation of the region
WIDE = "%w = arith.extf %x : f32 to f64\n"
LONG = "%w = arith.extsi %i : i32 to i128\n"
INDEX = "%w = arith.index_cast %i : i32 to index\n"
REFUSED = [
    ("%y = math.cbrt %x : f32", 0, "'math.cbrt' op has no code in a kernel: of math there are fma, absf,"),
    ("%y = math.tan %x : f32", 0, "'math.tan' op has no code in a kernel: of math"),
    ("%y, %z = arith.mulsi_extended %i, %j : i32", 0, "op has no code in a kernel: of arith there are"),
    (f"{WIDE}%y = math.exp %w : f64", 1, "'math.exp' op has code for f32 in a kernel, got f64"),
    (f"{WIDE}%y = math.exp2 %w : f64", 1, "'math.exp2' op has code for f16, bf16, f32 in a kernel, got f64"),
    (f"{WIDE}%y = arith.remf %w, %w : f64", 1, "'arith.remf' op has code for f32 in a kernel, got f64"),
    ("%w = arith.extf %x : f32 to f128", 0, "has code for f16, bf16, f32, f64 in a kernel, got f128"),
    ("%w = arith.truncf %x : f32 to f8E4M3FN", 0, "f16, bf16, f32, f64 in a kernel, got f8E4M3FN"),
    (LONG, 0, "'arith.extsi' op has code for 64 bits in a kernel, got i128"),
    (f"{INDEX}%y = arith.addi %w, %w : index", 1, "expects i32 in a region, got index"),
    ("%w = arith.constant dense<0.0> : vector<4xf32>", 0, "expects numbers in a region, got vector<4xf32>"),
]  # fmt: skip


@pytest.mark.parametrize("command", ["--attn-configure", "--convert-attn-to-ws", "--attn-to-ws"])
@pytest.mark.parametrize(("body", "line", "message"), REFUSED)
def test_refused_at_its_own_line(
    body: str,
    line: int,
    message: str,
    command: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "kernel.mlir"
    path.write_text(HEAD + body + TAIL)
    assert attn_opt.run([str(path), command]) == 1
    told = capsys.readouterr().err
    assert told.startswith(f"{path}:{LINE + line}:") and message in told


@pytest.mark.parametrize(
    "body", [f"{WIDE}%y = math.sqrt %w : f64", "%w = arith.truncf %x : f32 to f16\n%y = math.exp2 %w : f16"]
)  # fmt: skip
def test_what_there_is_code_for_is_taken(body: str) -> None:
    with make_context():
        module = ir.Module.parse(HEAD + body + TAIL)
        for op in ir.get_ops_of_type(module, attn.MhaOp):
            check_regions(op)


def test_the_types_of_each_operation_are_some() -> None:
    """No operation of the table is refused for all types that it can have."""
    kinds = (*FLOATS, "i32")
    taken: set[str] = set()
    with make_context(), ir.Location.unknown():
        context = ir.Context.current
        context.allow_unregistered_dialects = True
        for name in SCALAR_OPS:
            for kind in map(ir.Type.parse, kinds):
                op = ir.Operation.create("test.op", results=[kind])
                fake = type("Fake", (), {"operation": _Named(name, op)})()
                try:
                    check_scalar(fake)
                except VerifyError:
                    continue
                taken.add(name)
    assert taken == SCALAR_OPS


class _Named:
    """An operation under another name."""

    def __init__(self, name: str, op: ir.Operation):
        self.name, self.results, self.operands = name, op.results, op.operands
        self.location = op.location


def test_what_a_region_becomes_keeps_its_line(tmp_path: Path) -> None:
    """What is wrong with it later is told at that line, not at the function's."""
    path, out = tmp_path / "kernel.mlir", tmp_path / "out.mlir"
    path.write_text(HEAD + "%y = math.sin %x : f32" + TAIL.replace("(%x)", "(%y)"))
    options = [os.fspath(path), "--attn-to-ws", "--mlir-print-debuginfo", "-o", os.fspath(out)]
    assert attn_opt.run([*options, "--mlir-print-local-scope"]) == 0
    lines = [line for line in out.read_text().splitlines() if "math.sin" in line]
    assert lines and all(f'"-":{LINE}:' in line for line in lines)
