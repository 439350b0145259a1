"""The ring proof of sparse latent attention in pairs: each signal between the CTAs is needed."""

from __future__ import annotations

import functools

import pytest

from attn_mlir.compiling.sparse_mla import SparseMlaSpec
from attn_mlir.dialect._mlir import make_context
from attn_mlir.dialect.attn import build_module
from attn_mlir.errors import VerifyError
from attn_mlir.validation.ws.kernels import lowered

PAIR, LEADER, OWN = (
    f"[array<i32: {first}>, array<i32: {second}>]"
    for first, second in (("0, 1", "0, 1"), ("0", "0"), ("0", "1"))
)
PLAN = "builtin.module(ws-plan-memory{target=sm_100a})"


@functools.cache
def kernel(entries: str = "", kv_format: str = "bf16", dtype: str = "bf16") -> str:
    """The kernel before its rings are proved and placed; with entries of its configuration."""
    head_dim = 512 if kv_format == "bf16" else 576
    spec = SparseMlaSpec(heads=128, head_dim=head_dim, kv_format=kv_format, dtype=dtype)
    module = str(build_module(make_context(), spec))
    if entries:
        module = module.replace("{operand", f"{{attn.config = {{{entries}}}, operand")
        assert entries in module
    schedule = "attn-configure{target=sm_100a},convert-attn-to-ws{target=sm_100a}"
    return str(lowered(module, f"builtin.module({schedule})"))


def without(label: str, signal: str, **options: str) -> str:
    """The kernel in which one signal of a ring stays within its CTA."""
    lines = kernel(**options).splitlines()
    (number,) = [
        n for n, x in enumerate(lines) if f'label_name = "{label}"' in x and "alloc_ring" in x
    ]
    lists = PAIR if f"{signal} = {PAIR}" in lines[number] else LEADER
    assert f"{signal} = {lists}" in lines[number]
    lines[number] = lines[number].replace(f"{signal} = {lists}", f"{signal} = {OWN}")
    return "\n".join(lines)


def test_as_it_is_it_is_accepted() -> None:
    assert "ws.plan" in str(lowered(kernel(), PLAN))


def test_slots_of_keys_are_as_many_as_the_configuration_says() -> None:
    keys = '!ws.ring<!ws.tile<vector<64x128xbf16>, "shared">, {} : i64, 1 : i64>'
    assert keys.format(8) in kernel() and keys.format(8) not in kernel("kv_stages = 5 : i32")
    assert keys.format(5) in kernel("kv_stages = 5 : i32")


@pytest.mark.parametrize(
    ("label", "signal", "message"),
    [
        ("k", "full_at", r"needs a role that reads slots of ring k\[0\] in CTA 1"),
        ("v", "empty_at", "never returns with"),
        ("p", "full_at", r"needs a role that reads slots of ring p\[0\] in CTA 1"),
        ("s", "full_at", r"needs one role that fills slots of ring s\[0\] in CTA 1"),
        ("settled", "empty_at", r"in CTA 1 that role softmax of CTA 1 may not have waited for"),
        ("moved", "full_at", r"moved\[0\] in CTA 1 that role softmax of CTA 1 may not have acquired"),
    ],
)  # fmt: skip
def test_signals_that_stay_within_a_cta(label: str, signal: str, message: str) -> None:
    with pytest.raises(VerifyError, match=message):
        lowered(without(label, signal), PLAN)


@pytest.mark.parametrize(
    ("label", "signal", "message"),
    [
        ("k", "full_at", r"needs a role that reads slots of ring k\[0\] in CTA 1"),
        ("v", "empty_at", "never returns with"),
        ("moved", "full_at", r"moved\[0\] in CTA 1 that role softmax of CTA 1 may not have acquired"),
    ],
)  # fmt: skip
def test_signals_where_warps_write_keys_and_values(label: str, signal: str, message: str) -> None:
    with pytest.raises(VerifyError, match=message):
        lowered(without(label, signal, kv_format="v32"), PLAN)


@pytest.mark.parametrize(
    ("label", "signal", "message"),
    [
        ("q", "full_at", r"needs a role that reads slots of ring q\[0\] in CTA 1"),
        ("k", "full_at", r"needs a role that reads slots of ring k\[0\] in CTA 1"),
        ("v", "empty_at", "never returns with"),
        ("s", "empty_at", r"s\[0\] in CTA 1 that role softmax of CTA 1 may still read: no signal"),
    ],
)  # fmt: skip
def test_signals_where_products_are_of_8_bits(label: str, signal: str, message: str) -> None:
    narrow = without(label, signal, kv_format="e4m3", dtype="e4m3")
    assert "moved" not in narrow and "f8E4M3FN" in narrow
    with pytest.raises(VerifyError, match=message):
        lowered(narrow, PLAN)


def test_what_pairs_do_not_take_is_the_work_of_one_cta() -> None:
    """Scales that would not fit the registers of a thread; no format has so many."""
    spec = SparseMlaSpec(heads=128, kv_format="e4m3", kv_group=32)
    module = str(build_module(make_context(), spec))
    module = module.replace("group = 32", "group = 16").replace("x18xf32", "x36xf32")
    schedule = "attn-configure{target=sm_100a},convert-attn-to-ws{target=sm_100a}"
    assert "cluster" not in str(lowered(module, f"builtin.module({schedule})"))
    with pytest.raises(VerifyError, match="columns that share a scale must be at least 32, got 16"):
        named = module.replace("{operand", '{attn.schedule = "sparse-mla-pair", operand')
        lowered(named, f"builtin.module({schedule})")
