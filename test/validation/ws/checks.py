"""Kernels in `ws` lowered, refused, and described, without running them."""

from __future__ import annotations

from typing import Any

import pytest

from attn_mlir.errors import VerifyError
from attn_mlir.lowering.manifest import attached
from attn_mlir.lowering.stages import ws_to_nvvm
from attn_mlir.runtime.file.manifest import parse_manifest
from attn_mlir.validation.ws.kernels import copy_op, kernel, lowered, role


def check(text: str) -> None:
    lowered(text, ws_to_nvvm("sm_100a"))


def refused(text: str, message: str) -> None:
    with pytest.raises(VerifyError, match=message) as caught:
        check(text)
    assert caught.value.location is not None


def copy(
    tile: str = '!ws.tile<vector<64x64xbf16>, "shared">',
    tensor: str = "memref<?x64xbf16>",
    dims: str = "0, 1",
    lanes: int = 1,
    target: str = "%s",
    before: str = "",
    kind: str = "!t",
) -> str:
    """One load by the copy engine into a slot %s of a ring."""
    ring = '  %ring = "ws.alloc_ring"() {label_name = "r"} : () -> !ring'
    coords = ", ".join(["%c0"] * len(dims.split(",")))
    body = f"""%s = "ws.acquire"(%ring, %c0) : (!ring, i32) -> !t
    {before}{copy_op("copy_in", "%x", target, coords, dims, f"{tensor}, {kind}")}
    "ws.commit"(%s) {{by = "copy_engine"}} : (!t) -> ()"""
    read = """%s = "ws.wait"(%ring, %c0) : (!ring, i32) -> !t
    "ws.release"(%s) {by = "threads"} : (!t) -> ()"""
    return kernel(
        [("x", "in", tensor, ("m", "") if "?x64" in tensor or "?x32" in tensor else ("m",))],
        ring + role("load", body, first=0, lanes=lanes) + role("read", read, first=1),
        types=f"!t = {tile}\n!ring = !ws.ring<!t, 1, 1>\n",
    )


def manifest(text: str) -> dict[str, Any]:
    """The kernel's manifest, accepted by the runtime once the hashes are there."""
    ((_, found),) = attached(lowered(text, ws_to_nvvm("sm_100a"))).items()
    complete = {**found, "sha256": "0" * 64, "sha256_ptx": "0" * 64, "versions": {}}
    assert parse_manifest(complete).entry == found["entry"]
    return found
