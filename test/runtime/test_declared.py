"""A manifest that was changed and signed again does not fit what the PTX declares."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from typing import Any

import pytest

from attn_mlir.errors import SpecError
from attn_mlir.runtime.file.declared import MAX_PARAM_TEXT, _declared_params, check_declared
from attn_mlir.runtime.file.manifest import parse_manifest

Fields = dict[str, Any]
Change = Callable[[Fields], object]

PTX = """\
// .entry comment(.param .u64 x) {
/* .entry comment2() { */
.version 8.8
.target sm_100a, debug
.address_size 64
.extern .shared .align 1024 .b8 dynamic_smem[];
.visible .entry other(.param .u32 n) { ret; }
.visible .entry copy(
    .param .align 64 .b8 copy_param_0[128],  // a map
    .param .align 64 .b8 copy_param_1[128],
    .param .u64 .ptr .global .align 1 copy_param_2,
    .param .u64 copy_param_3,
    .param .u32 copy_param_4,
    .param .f32 copy_param_5
)
.reqntid 64, 2
.reqnctapercluster 2, 1, 1
{
    mov.b64 %rd1, copy_param_0;
    cvta.param.u64 %rd2, %rd1;
    mov.b64 %rd3, copy_param_1;
    cvta.param.u64 %rd4, %rd3;
    mov.u32 %r1, %nctaid.x;
    cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%rd2, {%r1, %r1}];
    cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes
        [dynamic_smem], [%rd2, {%r1, %r1}], [dynamic_smem+2048];
    cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%rd4, {%r1, %r1}], [dynamic_smem];
    ret;
}
"""


def boxes(tensor: str) -> Fields:
    dims = [{"extent": "n", "axis": 1, "step": 1}, {"extent": "m", "axis": 0, "step": 1}]
    return {"kind": "tensor_map", "tensor": tensor, "box": [64, 8], "swizzle": "128B", "dims": dims}


def tensor(name: str, role: str) -> Fields:
    return {
        "name": name, "role": role, "dtype": "bf16", "shape": ["m", "n"], "unit_stride_axis": 1,
        "alignment_bytes": 16,
    }  # fmt: skip


MANIFEST: Fields = {
    "schema": 1, "entry": "copy", "target": "sm_100a", "sha256": "", "sha256_ptx": "",
    "block": [64, 2, 1], "cluster": [2, 1, 1], "smem_bytes": 4096, "grid": [2, 1, 1],
    "persistent": True, "symbols": ["m", "n"],
    "tensors": [tensor("x", "in"), tensor("y", "out"), tensor("z", "out")],
    "scalars": [{"name": "s", "dtype": "f32"}],
    "params": [
        boxes("x"), boxes("y"), {"kind": "pointer", "tensor": "z"},
        {"kind": "stride", "tensor": "z", "axis": 0, "type": "i64"},
        {"kind": "symbol", "symbol": "m", "type": "i32"},
        {"kind": "scalar", "scalar": "s", "type": "f32"},
    ],
}  # fmt: skip


def test_a_manifest_that_fits() -> None:
    check_declared(parse_manifest(MANIFEST), PTX)


def test_a_tensor_that_is_read_and_written() -> None:
    """Its boxes may be loaded and stored; still it needs a way to be written."""
    fields = copy.deepcopy(MANIFEST)
    fields["tensors"][1]["role"] = "inout"
    fields["params"][0] = boxes("y")
    check_declared(parse_manifest(fields), PTX)
    fields["tensors"][0]["role"] = "inout"
    with pytest.raises(SpecError, match="'x' is an output, the PTX has no way to write to it"):
        check_declared(parse_manifest(fields), PTX)


def test_who_waits_for_the_kernel_before() -> None:
    waits = PTX.replace("    ret;", "    griddepcontrol.wait;\n    ret;")
    assert waits != PTX
    check_declared(parse_manifest({**MANIFEST, "programmatic": True}), waits)
    with pytest.raises(
        SpecError, match="programmatic .* says False, the PTX has a kernel that waits"
    ):
        check_declared(parse_manifest(MANIFEST), waits)
    for without in (PTX, waits.replace("griddep", "// griddep")):
        with pytest.raises(SpecError, match="programmatic .* says True, the PTX has no wait"):
            check_declared(parse_manifest({**MANIFEST, "programmatic": True}), without)


CHANGES: list[tuple[str, Change]] = [
    ("entry .* says gone, the PTX has the entries other, copy", lambda m: m.update(entry="gone")),
    ("entry .* says comment, the PTX has", lambda m: m.update(entry="comment")),
    ("params .* says 6 entries, the PTX has 1 parameters", lambda m: m.update(entry="other")),
    ("target .* says sm_90a, the PTX has sm_100a", lambda m: m.update(target="sm_90a")),
    (r"block .* says \[64, 1, 1\], .* .reqntid", lambda m: m.update(block=[64, 1, 1])),
    ("cluster .* .reqnctapercluster", lambda m: m.update(cluster=[1, 1, 1])),
    ("smem_bytes .* dynamic memory", lambda m: m.update(smem_bytes=0)),
    ("smem_bytes .* dynamic memory up to byte 2048", lambda m: m.update(smem_bytes=2048)),
    ("params .* says 5 entries, the PTX has 6", lambda m: m["params"].pop()),
    (r"params\[0\] .*, an output, the PTX has boxes that are loaded",
     lambda m: m["params"].__setitem__(0, boxes("y"))),
    (r"params\[1\] .* a map of 'x', an input, the PTX has boxes that are stored",
     lambda m: m["params"].__setitem__(1, boxes("x"))),
    ("'z' is an output, the PTX has no way to write to it",
     lambda m: m["params"].__setitem__(2, {"kind": "pointer", "tensor": "y"})),
    (r"params\[0\].dims .* 1 dimensions, the PTX has boxes of 2",
     lambda m: m["params"][0].update(box=[64], dims=m["params"][0]["dims"][:1])),
    (r"params\[2\] .* a tensor map of 128 bytes", lambda m: m["params"].__setitem__(2, boxes("z"))),
    (r"params\[1\] .* an address, the PTX has .align 64 .b8 copy_param_1\[128\]",
     lambda m: m["params"].__setitem__(1, {"kind": "pointer", "tensor": "y"})),
    (r"params\[3\] .* says i32, the PTX has .u64", lambda m: m["params"][3].update(type="i32")),
    (r"params\[4\] .* says i64, the PTX has .u32", lambda m: m["params"][4].update(type="i64")),
    (r"params\[4\] .* says f32, the PTX has .u32",
     lambda m: m["params"].__setitem__(4, m["params"][5])),
    (r"params\[5\] .* says i32, the PTX has .f32", lambda m: m["params"][5].update(type="i32")),
]  # fmt: skip


@pytest.mark.parametrize(("message", "change"), CHANGES)
def test_a_manifest_that_does_not(message: str, change: Change) -> None:
    fields = copy.deepcopy(MANIFEST)
    change(fields)
    with pytest.raises(SpecError, match=f"bundle.json: .*{message}"):
        check_declared(parse_manifest(fields), PTX)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (".target sm_100a", "// .target sm_100a", "the PTX has nothing"),
        (", debug", " /* .target sm_90a */", None),
        ("%nctaid.x", "1", "persistent .* never asks how many CTAs"),
        ("%nctaid.x", "%nclusterid.x", None),
        ("entry copy(", "entry copy(.param .b8 array[3], ", "the PTX has 7 parameters"),
        (".param .f32", ".param .texref", "it says f32, the PTX has .texref"),
        (".param .f32", ".reg .f32", "the parameter '.reg .f32 copy_param_5'"),
        (".align 64 .b8 copy_param_0", ".align 32 .b8 copy_param_0", "the PTX has .align 32"),
        (".reqntid 64, 2", ".maxntid 64", "block .* .maxntid"),
        (".reqntid 64, 2", "", None),
    ],
)
def test_other_texts(old: str, new: str, message: str | None) -> None:
    ptx = PTX.replace(old, new, 1)
    assert ptx != PTX
    if message is None:
        check_declared(parse_manifest(MANIFEST), ptx)
        return
    with pytest.raises(SpecError, match=message):
        check_declared(parse_manifest(MANIFEST), ptx)


@pytest.mark.parametrize("text", [
    "/*" * 200_000, "\n" * 200_000, ".entry copy(" + " " * 200_000, '"' * 200_000,
    ".target sm_100a\n.entry copy(.param .u64 .ptr" + " " * 200_000 + "!) {",
    ".target sm_100a\n.entry copy() {" + "cp.async.bulk.tensor.2d.global " * 20_000,
    ".extern .shared" + " " * 200_000,
])  # fmt: skip
def test_hostile_texts_take_no_time(text: str) -> None:
    begin = time.process_time()
    with pytest.raises(SpecError):
        check_declared(parse_manifest(MANIFEST), text)
    assert time.process_time() - begin < 5.0


def test_a_parameter_of_the_most_characters() -> None:
    text = ".param .u64 x"
    assert len(_declared_params(text.rjust(MAX_PARAM_TEXT))) == 1
    with pytest.raises(SpecError, match="the parameter '.param .u64 x'"):
        _declared_params(text.rjust(MAX_PARAM_TEXT + 1))
