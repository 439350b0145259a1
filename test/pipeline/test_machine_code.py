"""Every family of our kernels goes through ptxas: it takes the text, nothing makes it slow, little is spilled.

Most tests run kernels without machine code on the emulator. These are the kernels that are assembled
in `make test`: those of `test/validation/numerics/families.py` here that are the first to choose a kernel,
head sizes, an order or lists, the others in `make long`; masks and head sizes of 64 and 128 in
`test/bench`, and the examples.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attn_mlir as am
from attn_mlir import mods
from attn_mlir.bench.machine_code.sass import disassemble
from attn_mlir.compiling.backward.gradients import KvGradientsSpec, QGradientsSpec
from attn_mlir.compiling.backward.mla_gradients import MlaKvGradientsSpec, MlaQGradientsSpec
from attn_mlir.compiling.mla_decode import MlaDecodeSpec
from attn_mlir.compiling.operations import request_of
from attn_mlir.compiling.sparse_mla import SparseMlaSpec
from attn_mlir.dialect._mlir import ir, make_context
from attn_mlir.dialect.attn import build_module
from attn_mlir.dialect.attn.cache import Cache
from attn_mlir.dialect.attn.lengths import DENSE, Lengths
from attn_mlir.dialect.targets.limits import target_named
from attn_mlir.runtime.file.bundle import Bundle
from attn_mlir.schedules.choice import schedule_for
from attn_mlir.schedules.core.facts import operations
from attn_mlir.schedules.policy.registry import names_of
from attn_mlir.validation.numerics.families import FAMILIES, kernels, name

pytestmark = [pytest.mark.ptxas, pytest.mark.slow]

RAGGED = Lengths(ragged_q=True, ragged_k=True)
HELD, STREAMED = "mha-registers", "mha-streaming"
PAGES: dict[str, Any] = {"cache": Cache(page_size=64, pages="table")}
SPILLED = {  # bytes stored and loaded, at most, of families that spill
    "queries 129, keys 300, mask & causal, score_mod softcap, mask_mod documents": 20,
}

NARROW_SIZES = (64, 96, 128, 176, 192, 224, 240, 256)
NARROW_ORDERS = ("single", "last_first", "persistent", "counter", "ragged")


def schedule_of(bundle: Bundle) -> str:
    """The name of the schedule that makes a kernel."""
    module = build_module(make_context(), request_of(bundle.manifest.request))
    (op,) = [op for kind in operations() for op in ir.get_ops_of_type(module, kind)]
    return schedule_for(op, target_named(bundle.target)).policy.name


def first_to_choose(*axes: str) -> list[int]:
    """The families that choose something on these axes which none before them chooses."""
    choices: set[tuple[str, str | None]] = set()
    found: list[int] = []
    for number, family in enumerate(FAMILIES):
        chosen = {(axis, family.get(axis)) for axis in axes}
        if not chosen <= choices:
            found.append(number)
        choices |= chosen
    return found


FIRST = first_to_choose("kernel", "head sizes", "tile order", "block mask", "parts of the keys")


def families() -> Iterator[Any]:
    """All families; those that are not among the first and spill nothing take long together."""
    for number, family in enumerate(FAMILIES):
        is_short = number in FIRST or name(family) in SPILLED
        yield pytest.param(number, id=name(family), marks=() if is_short else pytest.mark.long)


@pytest.mark.parametrize("number", list(families()))
def test_families_are_assembled(number: int) -> None:
    """A note that code was made slow (C7508 to C7518) fails the compilation itself."""
    for bundle in kernels(number):
        assert bundle.cubin[:4] == b"\x7fELF"
        assert bundle.report["spill_bytes"] <= SPILLED.get(name(FAMILIES[number]), 0)


def narrow_held() -> Iterator[Any]:
    """Head sizes and tile orders of 8 bits with S, P and O in registers; most take long together."""
    for size, order in itertools.product(NARROW_SIZES, NARROW_ORDERS):
        is_short = (size, order) == (192, "persistent")
        yield pytest.param(size, order, marks=() if is_short else pytest.mark.long)


@pytest.mark.parametrize(("size", "order"), list(narrow_held()))
def test_8_bits_in_registers_spill_nothing(size: int, order: str) -> None:
    """What the epilogue and the last keys need is not kept over the loop over keys of all work tiles."""
    lengths = Lengths(ragged_q=True, ragged_k=True) if order == "ragged" else DENSE
    spec = am.mha(
        heads=4, kv_heads=2, head_dim=size, dtype="e4m3", mask=am.causal(), tile_order=order,
        lengths=lengths, schedule=HELD,
    )  # fmt: skip
    assert am.compile(spec, target="sm_90a").report["spill_bytes"] == 0


@pytest.mark.long
def test_one_group_of_8_bits_with_several_work_tiles_spills_nothing() -> None:
    spec = am.mha(
        heads=4, kv_heads=2, head_dim=192, dtype="e4m3", mask=am.causal(), tile_order="persistent",
        schedule=HELD, query_tiles=1,
    )  # fmt: skip
    assert am.compile(spec, target="sm_90a").report["spill_bytes"] == 0


STAGED: dict[str, dict[str, Any]] = {
    "both, in turn": {"num_qk_stages": 2, "num_pv_stages": 2, "ordered_softmax": True},
    "P in 4": {"num_pv_stages": 4},
    "both, claimed": {"num_qk_stages": 2, "num_pv_stages": 4, "tile_order": "clc"},
    "wide": {"num_qk_stages": 4, "num_pv_stages": 4, "head_dim": 256},
}


@pytest.mark.long
@pytest.mark.parametrize("name", STAGED)
def test_stages_inside_products_spill_nothing(name: str) -> None:
    spec = am.mha(**{"heads": 4, "head_dim": 128, "mask": am.causal(), **STAGED[name]})
    assert am.compile(spec, target="sm_100a").report["spill_bytes"] == 0


@pytest.mark.long
@pytest.mark.parametrize("count", [1, 2, 4])
def test_a_part_of_p_is_handed_over_before_the_next_one_is_computed(
    count: int, tmp_path: Path
) -> None:
    """The longest run of exponentials that no arrival and no end of a path interrupts."""
    spec = am.mha(heads=1, head_dim=128, num_pv_stages=count)
    cubin = tmp_path / "kernel.cubin"
    cubin.write_bytes(am.compile(spec, target="sm_100a").cubin)
    kernel = max(disassemble(cubin), key=lambda function: len(function.instructions))
    runs, longest = 0, 0
    for instruction in kernel.instructions:
        if "EX2" in instruction.opcode:
            runs += 1
        elif instruction.opcode.startswith(("SYNCS", "BRA")):
            longest, runs = max(longest, runs), 0
    assert 96 // count < longest <= 128 // count


MODIFIERS: dict[str, dict[str, Any]] = {
    "alibi": {"score_mod": mods.alibi(4)},
    "relative bias": {"score_mod": mods.relative_bias(np.zeros((4, 41), np.float32))},
    "documents": {"mask_mod": mods.document(np.zeros((1, 1), np.int32))},
    "bias": {"score_mod": mods.bias(np.zeros((1, 1, 1, 1), np.float32))},
    "relative bias, documents": {
        "score_mod": mods.relative_bias(np.zeros((4, 41), np.float32)),
        "mask_mod": mods.document(np.zeros((1, 1), np.int32)),
    },
}


@pytest.mark.parametrize("order", ["single", "counter"])
@pytest.mark.parametrize("name", MODIFIERS)
@pytest.mark.parametrize("size", [64, 128, 192, 256])
@pytest.mark.parametrize("dtype", ["e4m3", "bf16"])
@pytest.mark.long(
    "*-64-*", "*-192-*", "e4m3-256-*", "bf16-128-*", "*-alibi-*", "*-bias-*", "*-documents-single",
    "e4m3-128-*-counter", "bf16-256-*-counter", "bf16-256-documents-*",
)  # fmt: skip
def test_modifiers_in_registers_spill_nothing(dtype: str, size: int, name: str, order: str) -> None:
    """What they make of coordinates is not computed for all scores before these are there."""
    spec = am.mha(
        heads=4, kv_heads=2, head_dim=size, dtype=dtype, mask=am.causal(), tile_order=order,
        schedule=HELD, **MODIFIERS[name],
    )  # fmt: skip
    assert am.compile(spec, target="sm_90a").report["spill_bytes"] == 0


def test_families_have_every_schedule() -> None:
    found = {schedule_of(bundle) for number in FIRST for bundle in kernels(number)}
    assert found == {*names_of("mha"), *names_of("combine")}
    assert SPILLED.keys() <= {name(family) for family in FAMILIES}


PAIRS: tuple[dict[str, Any], ...] = (
    {"head_dim": 512, "kv_format": "model1", "kv_page": 64},
    {"kv_format": "e4m3"},
    {"kv_format": "e4m3", "kv_group": 32},
    {"kv_format": "e4m3", "kv_group": 64},
    {"kv_format": "e4m3_rope16", "kv_group": 32, "page_size": 16},
    {"kv_format": "e4m3_rope16", "kv_group": 64, "page_size": 16},
)  # rows of 8 bits that a pair of CTAs widens


@pytest.mark.parametrize(
    ("head_dim", "target", "return_lse", "joined"),
    [
        (144, "sm_90a", True, True),
        *((256, target, True, False) for target in ("sm_90a", "sm_100a")),
        *((144, "sm_100a", lse, joined) for lse in (False, True) for joined in (False, True)),
        *((224, "sm_90a", lse, True) for lse in (False, True)),
        *((256, "sm_90a", lse, True) for lse in (False, True)),
        *((size, "sm_100a", True, True) for size in (208, 224)),
        *((208, "sm_90a", True, joined) for joined in (False, True)),
        *((256, "sm_100a", lse, True) for lse in (False, True)),
    ],
)
@pytest.mark.long("256-*", "224-*", "208-sm_100a-*", "208-*-False", "144-sm_100a-*")
def test_few_queries_of_wide_heads(
    head_dim: int, target: str, return_lse: bool, joined: bool
) -> None:
    """What follows from the number of a thread behind the loop over keys takes no register of it, and of
    what it reads in the loop no more than eight addresses do."""
    sizes = {"heads": 16, "kv_heads": 2, "head_dim": head_dim}
    given = {"schedule": STREAMED, "return_lse": return_lse, "joined": joined}
    spec = am.mha(**sizes, mask=am.causal(), **given)
    assert am.compile(spec, target=target).report["spill_bytes"] == 0


@pytest.mark.parametrize("kind", [KvGradientsSpec, QGradientsSpec])
@pytest.mark.parametrize(
    ("mask", "lengths"),
    [(am.sliding_window(300, 20), RAGGED), (am.causal(), DENSE)],
    ids=["ragged", "dense"],
)
@pytest.mark.long("*dense*")
def test_gradients_in_tensor_memory_spill_nothing(mask: Any, lengths: Lengths, kind: Any) -> None:
    spec = kind(heads=4, kv_heads=2, head_dim=128, mask=mask, lengths=lengths)
    assert am.compile(spec, target="sm_100a").report["spill_bytes"] == 0


@pytest.mark.parametrize(
    ("kind", "sizes", "target"),
    [
        (KvGradientsSpec, (192, 128), "sm_90a"),
        (KvGradientsSpec, (256, 256), "sm_90a"),
        (QGradientsSpec, (256, 256), "sm_90a"),
        (KvGradientsSpec, (192, 128), "sm_100a"),
        (KvGradientsSpec, (192, 192), "sm_100a"),
    ],
    ids=["kv-192-128", "kv-256", "q-256", "tensor-192-128", "tensor-192"],
)
@pytest.mark.long("q-256", "tensor-192-128")
def test_gradients_of_large_heads_spill_nothing(
    kind: Any, sizes: tuple[int, int], target: str
) -> None:
    head_dim, v_head_dim = sizes
    spec = kind(heads=4, kv_heads=2, head_dim=head_dim, v_head_dim=v_head_dim, mask=am.causal())
    assert am.compile(spec, target=target).report["spill_bytes"] == 0


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
@pytest.mark.parametrize("kind", [MlaKvGradientsSpec, MlaQGradientsSpec])
@pytest.mark.long("MlaQ*", "*-sm_100a")
def test_gradients_of_latent_attention_spill_nothing(kind: Any, target: str) -> None:
    spec = kind(heads=4, nope_dim=128, rope_dim=64, mask=am.causal())
    assert am.compile(spec, target=target).report["spill_bytes"] == 0


def modified_parts() -> Iterator[Any]:
    """What changes scores, where parts of the keys have the widest O; most take long together."""
    for kind, options in MODIFIERS.items():
        yield pytest.param(options, id=kind, marks=() if kind == "alibi" else pytest.mark.long)


@pytest.mark.parametrize("options", list(modified_parts()))
def test_modifiers_of_few_queries_spill_nothing(options: dict[str, Any]) -> None:
    spec = am.mha(
        heads=4, kv_heads=2, head_dim=256, mask=am.causal(), joined=True, schedule=STREAMED,
        **options,
    )  # fmt: skip
    assert am.compile(spec, target="sm_100a").report["spill_bytes"] == 0


@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize("page_size", [0, 16, 64])
@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
@pytest.mark.long("sm_90a-*", "sm_100a-16-*", "sm_100a-64-*")
def test_two_query_tiles_of_few_queries_spill_nothing(
    target: str, page_size: int, joined: bool
) -> None:
    """Q of 128 columns beside O is held in registers where these suffice for f32 one by one."""
    cache = Cache(page_size=page_size, pages="table") if page_size else None
    spec = am.mha(
        heads=16, kv_heads=2, head_dim=128, mask=am.causal(), cache=cache, joined=joined,
        schedule=STREAMED, query_tiles=2,
    )  # fmt: skip
    assert am.compile(spec, target=target).report["spill_bytes"] == 0


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"head_dim": 512},
        {"kv_format": "v32"},
        {"head_dim": 512, "kv_format": "model1", "kv_page": 64},
        {"kv_format": "e4m3", "dtype": "e4m3"},
        {"heads": 128},
        {"heads": 128, "head_dim": 512},
        {"heads": 128, "kv_format": "v32"},
        {"heads": 128, "kv_format": "e4m3", "dtype": "e4m3"},
        *(pytest.param({"heads": 128, **options}, marks=pytest.mark.long) for options in PAIRS),
    ],
    ids=str,
)
@pytest.mark.long("{'head_dim': 512}", "{'heads': 128, 'head_dim': 512}")
def test_sparse_latent_attention_is_assembled(options: dict[str, Any]) -> None:
    spec = SparseMlaSpec(**{"heads": 64, "topk_length": True, "sinks": True, **options})
    bundle = am.compile(spec, target="sm_100a")
    assert bundle.cubin[:4] == b"\x7fELF"
    assert bundle.report["spill_bytes"] == 0


def narrow_rope() -> Iterator[Any]:
    """Latent attention with rope, or all operands, of 8 bits: all but two take long together."""
    some: dict[str, Any] = {"mask": am.sliding_window(100, 0) | am.chunked(150)}
    some["cache"] = Cache(
        16, "csr", scale_dtype="bf16", k_groups=1, v_groups=1, own_scale_table=True
    )
    for tiles, order in ((2, "single"), (2, "ragged"), (1, "ragged"), (1, "clc")):
        lengths = Lengths(ragged_q=True, ragged_k=True) if order == "ragged" else DENSE
        options = {**some, "query_tiles": tiles, "tile_order": order, "lengths": lengths}
        marks = () if (tiles, order) == (2, "single") else pytest.mark.long
        yield pytest.param(options, id=f"{order}, {tiles}", marks=marks)
    for tiles, order in ((2, "ragged"), (2, "single"), (1, "clc")):
        lengths = Lengths(ragged_q=True, ragged_k=True) if order == "ragged" else DENSE
        options = {"dtype": "e4m3", "mask": some["mask"], "query_tiles": tiles, "lengths": lengths}
        options |= {"tile_order": order, "cache": Cache(16, "csr")}
        marks = () if (tiles, order) == (2, "ragged") else pytest.mark.long
        yield pytest.param(options, id=f"e4m3, {order}, {tiles}", marks=marks)
    for sizes in ((64, 32, 72), (128, 16, 40), (192, 64, 256), (128, 128, 128)):
        named = dict(zip(("nope_dim", "rope_dim", "v_head_dim"), sizes, strict=True))
        yield pytest.param({**named, "rope_factors": True}, id=str(sizes), marks=pytest.mark.long)


@pytest.mark.parametrize("options", list(narrow_rope()))
def test_dense_latent_attention_with_rope_of_8_bits_spills_nothing(options: dict[str, Any]) -> None:
    given = {"heads": 2, "nope_dim": 128, "rope_dim": 64, "rope_dtype": "e4m3"} | options
    bundle = am.compile(am.MlaSpec(**given), target="sm_100a")
    assert bundle.cubin[:4] == b"\x7fELF"
    assert bundle.report["spill_bytes"] == 0


@pytest.mark.parametrize(
    "options",
    [
        {"mask": am.causal(), "cache": Cache(page_size=64, pages="table"), "sinks": True},
        {"heads": 24, "head_dim": 512, "partial": True},
        {"indices": True, "topk_length": True, "partial": True},
        {"indices": True, "kv_format": "v32", "partial": True},
        {"heads": 128, "mask": am.causal(), "cache": Cache(page_size=16, pages="table")},
        {"heads": 128, "mask": am.sliding_window(100, 0), "partial": True},
        {"heads": 128, "kv_format": "v32", "mask": am.causal(), "partial": True, **PAGES},
        {"heads": 128, "kv_format": "e4m3", "kv_group": 64, "mask": am.causal(), **PAGES},
        {"heads": 128, "indices": True, "partial": True},
        {"heads": 128, "indices": True, "kv_format": "v32", "partial": True},
        {"heads": 128, "kv_format": "v32", "mask": am.chunked(64), "sinks": True, **PAGES},
        {
            "heads": 128,
            "head_dim": 512,
            "kv_format": "model1",
            "mask": am.chunked(64),
            "partial": True,
        },
        {"heads": 16, "mask": am.causal(), "joined": True, "schedule": "mla-decode-streaming"},
    ],
    ids=[
        "pages",
        "parts",
        "lists",
        "8 bits",
        "pairs, pages",
        "pairs, parts",
        "pairs, pages of 8 bits",
        "pages of 8 bits",
        "pairs, lists",
        "pairs, 8 bits",
        "pairs, chunks in pages of 8 bits",
        "pairs, parts of chunks of 8 bits",
        "few rows, parts",
    ],
)
@pytest.mark.long(
    "parts",
    "pairs, parts",
    "pairs, pages of 8 bits",
    "pages of 8 bits",
    "pairs, lists",
    "pairs, *8 bits",
    "few rows, parts",
)
def test_latent_decoding_is_assembled(options: dict[str, Any]) -> None:
    bundle = am.compile(MlaDecodeSpec(**{"heads": 64} | options), target="sm_100a")
    assert bundle.cubin[:4] == b"\x7fELF"
    assert bundle.report["spill_bytes"] == 0
