"""Clusters, executed: tiles fetched for one another, turns taken, products of pairs."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from attn_mlir.errors import ResourceError, VerifyError
from attn_mlir.runtime.devices.emulator import EmulatorDevice
from attn_mlir.runtime.kernel import Kernel
from attn_mlir.validation.ws import clusters
from attn_mlir.validation.ws.checks import refused
from attn_mlir.validation.ws.cluster_runs import CASES
from attn_mlir.validation.ws.kernels import compiled, copy_op, lowered, role
from attn_mlir.validation.ws.kernels import kernel as ws_kernel

BF16, E4M3 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn
SEEDS = [None, 1, 2]


def machine(seed: int | None) -> EmulatorDevice:
    return EmulatorDevice() if seed is None else EmulatorDevice("adversarial", seed)


@functools.cache
def kernel(name: str, target: str, *arguments: int, **options: Any) -> Kernel:
    build: Callable[..., Any] = getattr(clusters, name)
    return clusters.compiled(lambda: build(*arguments, **options), target)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
@pytest.mark.parametrize("name", CASES)
def test_on_any_target(name: str, target: str, seed: int | None) -> None:
    """Tiles that all fetch for all; tiles passed on; a token that goes round."""
    case = CASES[name]
    arrays = case.operands()
    found = compiled(case.text(), target)
    assert (".multicast::cluster" in found.bundle.ptx) == name.startswith("shared tiles")
    across = "cp.async.bulk.shared::cluster.shared::cta" in found.bundle.ptx
    assert across == name.startswith("exchange")
    found(*arrays, device=machine(seed))
    assert not case.misfit(arrays)


def test_what_is_not_written_is_seen() -> None:
    for case in CASES.values():
        assert case.misfit(case.operands())


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("layout", ["kn", "nk"])
@pytest.mark.parametrize(("element", "dtype"), [("bf16", BF16), ("f16", np.float16)])
def test_a_pair_multiplies(element: str, dtype: Any, layout: str, seed: int | None) -> None:
    """Two blocks of 256 rows, the last one ragged, and a ragged end of K."""
    rng = np.random.default_rng(3)
    a, b = (rng.integers(-8, 9, shape) / 4 for shape in ((300, 200), (200, 64)))
    y = np.full((300, 64), np.nan, np.float32)
    right = b if layout == "kn" else np.ascontiguousarray(b.T)
    found = kernel("pair_product", "sm_100a", element=element, b_layout=layout)
    found(a.astype(dtype), right.astype(dtype), y, device=machine(seed))
    assert (y == a @ b).all()


def test_a_pair_multiplies_bytes() -> None:
    rng = np.random.default_rng(4)
    a, b = (rng.integers(-8, 9, shape) / 4 for shape in ((256, 128), (64, 128)))
    y = np.full((256, 64), np.nan, np.float32)
    found = kernel("pair_product", "sm_100a", element="f8E4M3FN", b_layout="nk")
    found(a.astype(E4M3), b.astype(E4M3), y, device=machine(1))
    assert (y == a @ b.T).all()


def test_every_instruction_says_that_pairs_work() -> None:
    ptx = kernel("pair_product", "sm_100a", element="bf16", b_layout="kn").bundle.ptx
    assert "cta_group::1" not in ptx
    for name in ("alloc", "relinquish_alloc_permit", "mma", "commit", "dealloc"):
        assert f"tcgen05.{name}.cta_group::2" in ptx
    assert "complete_tx::bytes.cta_group::2" in ptx  # copies tell the first CTA of the pair


def test_a_bundle_says_how_many_ctas_a_cluster_has() -> None:
    manifest = kernel("shared_tiles", "sm_90a", 4).bundle.manifest
    assert manifest.cluster == (4, 1, 1) and manifest.grid == (4, 1, 1)


SECOND = {
    "loaded": ((1,), (1,)),
    "read": ((), (0, 1)),
    "summed": ((), (0, 1)),
    "free": ((1,), (1,)),
}
BROADCAST = {"receivers": [(0, 1), ()], "full_at": [(0, 1), ()], "empty_at": [(0,), (0,)]}
GATHERED = {"receivers": [(0,), (1,)], "full_at": [(0,), (0,)], "empty_at": [(0, 1), ()]}


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda: clusters.pair_product(**SECOND, issuers=(1,)),
            r"expects a role of even ranks, got \[1\] in multiply",
        ),
        (
            lambda: clusters.shared_tiles(2, **BROADCAST, ranks=((0,), (0, 1))),
            "expects role fetch in CTA 1 to commit to its own full barrier of ring x",
        ),
        (
            lambda: clusters.shared_tiles(2, **GATHERED, ranks=((0, 1), (0,))),
            "expects a kernel with products of pairs",
        ),
        (
            lambda: clusters.shared_tiles(2, receivers=clusters.own(2)),
            r"expects the commits of CTA 0 at the full barriers of its receivers \[0\] or of one "
            r"half of their pairs, got \[0, 1\]",
        ),
    ],
)
def test_what_has_no_code_is_refused(build: Callable[[], Any], message: str) -> None:
    """The rings of these agree."""
    with pytest.raises(VerifyError, match=message):
        clusters.compiled(build, "sm_100a")


def pair_text() -> str:
    return str(clusters.built(clusters.pair_product))


HALVES = [("64x32xbf16", "64x{n}xbf16"), ("128x64xf32", "128x{m}xf32"), ("x64xf32>", "x{m}xf32>")]


def narrow_text() -> str:
    """N of 8, half of it for each CTA."""
    text = pair_text()
    for old, new in HALVES:
        text = text.replace(old, new.format(n=4, m=8))
    return text


def exchange_text() -> str:
    return str(clusters.built(lambda: clusters.exchange(2)))


def three_text() -> str:
    """A pair, and a third CTA that does nothing."""
    text = (
        pair_text()
        .replace("cluster = 2", "cluster = 3")
        .replace("array<i32>]", "array<i32>, array<i32>]")
    )
    text = text.replace("array<i32: 0>]", "array<i32: 0>, array<i32>]")
    for lanes in (1, 32):
        of_two = f"lanes = {lanes} : i64, ranks = array<i32: 0, 1>, registers"
        text = text.replace(f"lanes = {lanes} : i64, registers", of_two)
    return text


def mixed_text() -> str:
    """A product of one CTA beside that of the pair."""
    release = '"ws.release"(%8) {by = "tensor_core"}'
    d, a, b = (
        "!ws.tile<vector<" + kind
        for kind in ('128x64xf32>, "tensor">', '128x64xbf16>, "shared">', '64x64xbf16>, "shared">')
    )
    alone = f"""%b = "ws.at"(%spare, %c0_i32) : (!ws.buffer<{b}, 1>, i32) -> {b}
      "ws.mma"(%7, %8, %b, %10) {{b_layout = "kn"}} : ({d}, {a}, {b}, i1) -> ()
      """  # fmt: skip
    spare = f'%spare = "ws.alloc_buffer"() {{label_name = "spare"}} : () -> !ws.buffer<{b}, 1>\n'
    ring = '%0 = "ws.alloc_ring"'
    return pair_text().replace(release, alone + release).replace(ring, spare + ring)


def handed_over(commit: str, lists: str, body: str = "") -> str:
    """A ring between two roles of a cluster of two."""
    tile = '!ws.tile<vector<64x64xbf16>, "shared">'
    fill = f"""%s = "ws.acquire"(%ring, %c0) : (!ring, i32) -> !t
    {body}
    "ws.commit"(%s) {{by = "{commit}"}} : (!t) -> ()"""
    read = """%s = "ws.wait"(%ring, %c0) : (!ring, i32) -> !t
    "ws.release"(%s) {by = "threads"} : (!t) -> ()"""
    lanes = 32 if commit == "thread_copies" else 1
    text = ws_kernel(
        [("x", "in", "memref<?x64xbf16>", ("m", ""))],
        f'  %ring = "ws.alloc_ring"() {{label_name = "r", {lists}}} : () -> !ring'
        + role("fill", fill, first=0, lanes=lanes)
        + role("read", read, first=1),
        types=f"!t = {tile}\n!ring = !ws.ring<!t, 1, 1>\n",
    )
    return text.replace('sym_name = "k"', 'sym_name = "k", cluster = 2 : i64')


BOTH = "full_at = [array<i32: 0, 1>, array<i32: 0, 1>], empty_at = [array<i32: 0, 1>, array<i32: 0, 1>]"
COPY = copy_op("copy_in", "%x", "%s", "%c0, %c0", "0, 1", "memref<?x64xbf16>, !t")
TO_ALL = COPY.replace("dims", "receivers = [array<i32: 0, 1>, array<i32: 0, 1>], dims")
CLAIMS = Path(__file__).parent / "convert-ws-to-nvvm" / "claims.mlir"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            lambda: handed_over("thread_copies", BOTH.partition("], empty")[0] + "]"),
            "expects thread_copies to arrive at barriers of their own CTA",
        ),
        (
            lambda: handed_over("copy_engine", BOTH, f"scf.if %yes {{ {TO_ALL} }}"),
            "expects a copy for other CTAs beside its ws.acquire",
        ),
        (
            lambda: CLAIMS.read_text().replace("sym_name", "cluster = 2 : i64, sym_name"),
            "expects order single, last_first, persistent in a cluster, got clc",
        ),
        (three_text, "expects a cluster of pairs, got 3 CTAs"),
        (
            lambda: exchange_text().replace('"send", lanes = 1', '"send", lanes = 32'),
            "'ws.copy_across' op expects a role with one lane, got 32 in send",
        ),
        (
            lambda: re.sub(r'("ws.copy_across")\(%\w+, (%\w+)\)', r"\1(\2, \2)", exchange_text()),
            "expects a whole slot from ws.wait",
        ),
        (mixed_text, "expects products of one CTA or of pairs in a kernel, not both"),
        (narrow_text, "expects N a multiple of 16 to 256, got 8"),
    ],
)  # fmt: skip
def test_what_has_no_code_is_refused_as_text(text: Callable[[], str], message: str) -> None:
    refused(text(), message)


@pytest.mark.parametrize(
    ("text", "old", "new", "message"),
    [
        (  # threads of one CTA, where two arrive
            pair_text, "empty_count = 256", "empty_count = 128",
            "expects empty_count of 'ws.plan' to be 256, got 128",
        ),
        (
            pair_text, "empty_at = [array<i32: 0>, array<i32: 0>]",
            "empty_at = [array<i32: 0>, array<i32>]",
            "expects empty_count of 'ws.plan' to be 128, got 256",
        ),
        (
            lambda: str(clusters.built(lambda: clusters.exchange(4))),
            "full_at = [array<i32: 0, 3>, array<i32: 0, 1>", "full_at = [array<i32: 0, 3>, array<i32: 1>",
            r"expects the commits of CTA 1 at the full barriers of its receivers \[0\], got \[1\]",
        ),
    ],
)  # fmt: skip
def test_plans_that_others_have_changed(
    text: Callable[[], str], old: str, new: str, message: str
) -> None:
    """A plan in the text is not proved again; what it counts and what has code is looked at."""
    planned = str(lowered(text(), "builtin.module(ws-plan-memory)"))
    assert old in planned
    with pytest.raises(VerifyError, match=message):
        lowered(planned.replace(old, new), "builtin.module(convert-ws-to-nvvm)")


def test_a_cluster_may_be_too_large() -> None:
    with pytest.raises(ResourceError, match="cluster has 16 CTAs, sm_90a holds at most 8 together"):
        clusters.compiled(lambda: clusters.shared_tiles(16), "sm_90a")
