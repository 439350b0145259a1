"""Every field of bundle.json is checked, and the message names it."""

from __future__ import annotations

from typing import Any

import pytest

from attn_mlir.errors import SpecError, TargetError
from attn_mlir.runtime.file.manifest import (
    PointerParam,
    ScalarParam,
    StrideParam,
    SymbolParam,
    parse_manifest,
)
from attn_mlir.runtime.file.recipes import MapDim, TensorMapParam

Fields = dict[str, Any]


def test_scale_kernel(scale_manifest: Fields) -> None:
    manifest = parse_manifest(scale_manifest)
    assert manifest.grid == ("rows", 1, 1)
    assert manifest.tensor("y").role == "out"
    assert manifest.scalars[0].default == 2.0
    assert manifest.params == (
        PointerParam("x"),
        PointerParam("y"),
        StrideParam("x", 0, "i64"),
        StrideParam("y", 0, "i64"),
        SymbolParam("cols", "i32"),
        ScalarParam("scale", "f32"),
    )


def test_tensor_map(tma_manifest: Fields) -> None:
    param = parse_manifest(tma_manifest).params[0]
    assert param == TensorMapParam(
        "source", (64, 8), "128B", (MapDim("cols", 1, 1), MapDim("rows", 0, 1))
    )


def test_what_may_be_left_out(scale_manifest: Fields) -> None:
    """Bundles that were made before there was a field are read as if it said nothing."""
    for field in ("programmatic", "persistent"):
        scale_manifest.pop(field, None)
    found = parse_manifest(scale_manifest)
    assert not found.programmatic and not found.persistent
    assert [tensor.row_multiple for tensor in found.tensors] == [1, 1]


def test_tensors_that_are_read_and_written(scale_manifest: Fields) -> None:
    scale_manifest["tensors"][1].update(role="inout", row_multiple=4)
    x, y = parse_manifest({**scale_manifest, "programmatic": True}).tensors
    assert (x.is_written, y.is_written, y.row_multiple) == (False, True, 4)


def test_newer_schema_is_a_target_error(scale_manifest: Fields) -> None:
    scale_manifest["schema"] = 2
    with pytest.raises(TargetError, match="schema 2, this attn-mlir reads up to 1: upgrade"):
        parse_manifest(scale_manifest)


@pytest.mark.parametrize("missing", [
    "schema", "entry", "target", "sha256", "sha256_ptx", "block", "cluster", "smem_bytes", "grid",
    "symbols", "tensors", "scalars", "params",
])  # fmt: skip
def test_missing_field(scale_manifest: Fields, missing: str) -> None:
    del scale_manifest[missing]
    with pytest.raises(SpecError, match=f"{missing} must be .* it is missing"):
        parse_manifest(scale_manifest)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("schema",), 0, "schema must be an integer from 1"),
        (("schema",), "1", "schema must be an integer"),
        (("entry",), 3, "entry must be a string, got 3"),
        (("block",), [128, 1], "block must be three sizes"),
        (("block",), [0, 1, 1], "block must be a list of integers from 1"),
        (("block",), [1024, 2, 1], "at most 1024 together"),
        (("smem_bytes",), -1, "smem_bytes must be an integer from 0"),
        (("grid",), ["rows", 1], "grid must be three expressions"),
        (("grid",), ["heads", 1, 1], "grid uses the symbol 'heads'"),
        (("symbols",), ["rows", "rows"], "symbols must be a list of different names"),
        (("symbols",), ["rows", 2], "symbols must be a list of different names"),
        (("symbols",), ["rows", "cols", "free"], r"no tensor tells \['free'\]"),
        (("tensors", 0), "x", r"tensors\[0\] is not an object"),
        (("tensors", 0, "role"), "both", r"tensors\[0\].role must be .* \['in', 'out', 'inout'\]"),
        (("tensors", 0, "row_multiple"), 0, r"tensors\[0\].row_multiple must be an integer from 1"),
        (("programmatic",), 1, "programmatic must be true or false, got 1"),
        (("tensors", 0, "dtype"), "c64", r"tensors\[0\].dtype must be one of"),
        (("tensors", 0, "shape"), [], "1 to 8 extents"),
        (("tensors", 0, "shape"), ["rows", -1], "must be a number or a symbol, got -1"),
        (("tensors", 0, "shape"), ["rows", ["add", 1, 1]], "must be a number or a symbol"),
        (("tensors", 0, "unit_stride_axis"), 2, "unit_stride_axis must be an integer from 0 to 1"),
        (("tensors", 0, "alignment_bytes"), 12, "a power of two"),
        (("tensors", 1, "name"), "x", "named differently"),
        (("tensors", 1, "name"), "scale", "named differently"),
        (("scalars", 0, "dtype"), "f16", r"scalars\[0\].dtype must be one of"),
        (("scalars", 0, "default"), "2", "default must be a number or null"),
        (("entry",), "e(e)", "entry must be a name of letters"),
        (("target",), "sm_100a\n", "target must be a name"),
        (("tensors", 0, "name"), "\x1b[31mx", r"tensors\[0\].name must be a name"),
        (("symbols",), ["rows", "cols", "[/]"], "symbols must be a list of different names"),
        (("symbols",), ["rows", "cols", "scale"], "symbols must be named differently from the sca"),
        (("cluster",), [8, 4, 1], "cluster must be three sizes of at most 16 together"),
        (("grid",), [2**63, 1, 1], "grid is not an expression"),
        (("scalars", 0, "default"), float("inf"), "default must be finite"),
        (("scalars", 0, "default"), 10**400, "default must be finite"),
        (("scalars", 0, "default"), 0.0, "default must be greater than min_exclusive, 0"),
        (("scalars", 0), {"name": "n", "dtype": "i32", "default": 1.5}, "a whole number within i3"),
        (("scalars", 0), {"name": "n", "dtype": "i32", "default": 2.0**31}, "whole number within"),
        (("versions",), {"ptxas": 13}, "versions must be strings by name"),
        (("request",), "mha", "request is not an object"),
        (("params", 0, "kind"), "address", r"params\[0\].kind must be one of"),
        (("params", 0, "tensor"), "z", r"params\[0\].tensor must be one of \['x', 'y'\]"),
        (("params", 2, "axis"), 2, r"params\[2\].axis must be an integer from 0 to 1"),
        (("params", 2, "type"), "f32", r"params\[2\].type must be one of"),
        (("params", 4, "symbol"), "sq", r"params\[4\].symbol must be one of"),
        (("params", 5, "scalar"), "x", r"params\[5\].scalar must be one of"),
    ],
)
def test_wrong_field(
    scale_manifest: Fields, path: tuple[Any, ...], value: object, message: str
) -> None:
    place: Any = scale_manifest
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    with pytest.raises(SpecError, match=message):
        parse_manifest(scale_manifest)


COLUMNS = {"extent": "cols", "axis": 1, "step": 1}
ROWS = {"extent": "rows", "axis": 0, "step": 1}


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("box", [64], "box must be as long as dims"),
        ("box", [512, 8], "box must be a list of integers from 1 to 256"),
        ("swizzle", "256B", "swizzle must be one of"),
        ("swizzle", "64B", "box must be a multiple of 16 bytes wide, at most 64 with swizzle 64B"),
        ("box", [4, 8], "box must be a multiple of 16 bytes wide"),
        ("dims", [{"extent": "rows", "axis": 0, "step": 1}] * 2, "led by the unit-stride axis 1"),
        ("dims", [{"extent": "cols", "axis": 1, "step": 0}] * 2, "step must be an integer from 1"),
        ("dims", [{"extent": ["add", "m", 1], "axis": 1, "step": 1}] * 2, "uses the symbol 'm'"),
        (
            "dims",
            [{**COLUMNS, "first": 0.5}, ROWS],
            r"dims\[0\].first must be an integer from -2147",
        ),
        ("dims", [{**COLUMNS, "rest": -1}, ROWS], r"dims\[0\].rest must be an integer from 0"),
        ("dims", [COLUMNS, {**ROWS, "axis": 2}], r"dims\[1\].axis must be an integer from 0 to 1"),
        ("dtype", "bool", "dtype must be one of"),
        ("l2", "32B", "l2 must be one of"),
        ("merged", 3, "merged is not an object"),
        (
            "merged",
            {"outer": 0, "inner": 2, "extent": "n"},
            "merged.inner must be an integer from 0 to 1",
        ),
        (
            "merged",
            {"outer": 1, "inner": 1, "extent": "n"},
            "merged.outer must be another axis than inner",
        ),
        (
            "merged",
            {"outer": 0, "inner": 1, "extent": "rows"},
            "merged.extent must be another name",
        ),
        (
            "merged",
            {"outer": 0, "inner": 1, "extent": "n"},
            "dims must be without axis 0, which is merged",
        ),
    ],
)
def test_wrong_tensor_map(tma_manifest: Fields, field: str, value: object, message: str) -> None:
    tma_manifest["params"][0][field] = value
    with pytest.raises(SpecError, match=message):
        parse_manifest(tma_manifest)


def test_the_grid_may_go_by_whole_scalars(scale_manifest: Fields) -> None:
    scale_manifest["grid"] = [["ceildiv", "most", 8], 1, 1]
    scale_manifest["scalars"].append({"name": "most", "dtype": "i32"})
    assert parse_manifest(scale_manifest).grid[0] == ("ceildiv", "most", 8)
    scale_manifest["scalars"][-1]["dtype"] = "f32"
    with pytest.raises(SpecError, match="grid uses the symbol 'most'"):
        parse_manifest(scale_manifest)


@pytest.mark.parametrize("value", [None, [], "text", 1])
def test_not_an_object(value: object) -> None:
    with pytest.raises(SpecError, match="is not an object"):
        parse_manifest(value)


@pytest.mark.parametrize("dtype", ["i64", "bool"])
def test_no_map_of_some_dtypes(tma_manifest: Fields, dtype: str) -> None:
    tma_manifest["tensors"][0]["dtype"] = dtype
    with pytest.raises(SpecError, match=r"params\[0\].tensor must be a tensor of bf16|box must be"):
        parse_manifest(tma_manifest)


def test_what_was_asked_is_kept(scale_manifest: Fields) -> None:
    assert parse_manifest(scale_manifest).request == {}
    scale_manifest["request"] = {"op": "mha", "heads": 2}
    assert parse_manifest(scale_manifest).request == {"op": "mha", "heads": 2}


def test_an_axis_may_be_empty(scale_manifest: Fields) -> None:
    scale_manifest["tensors"][0]["shape"][0] = 0
    assert parse_manifest(scale_manifest).tensors[0].shape[0] == 0
