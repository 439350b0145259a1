"""Policies: which schedule a problem gets, why others have none, and what knobs may be set to."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from typing import ClassVar

import pytest

import attn_mlir as am
from attn_mlir.dialect.attn.block import Block
from attn_mlir.dialect.attn.scale import ScaleBlock
from attn_mlir.dialect.targets.features import Feature
from attn_mlir.dialect.targets.limits import Target, target_named
from attn_mlir.errors import SpecError, TargetError
from attn_mlir.schedules.policy import registry
from attn_mlir.schedules.policy.base import Call, Policy, first_mismatch
from attn_mlir.schedules.policy.facts import Facts, Scales
from attn_mlir.schedules.policy.knobs import divisor_of, multiple_of, one_of
from attn_mlir.schedules.policy.refusal import Mismatch
from attn_mlir.schedules.policy.registry import (
    POLICIES,
    choose,
    combining,
    of_operation,
    unnamed,
    widening,
)

BLACKWELL, HOPPER = (Call(target_named(chip)) for chip in ("sm_100a", "sm_90a"))
MHA = am.mha(heads=8, kv_heads=2, head_dim=64).facts
DECODE = am.MlaDecodeSpec(heads=128).facts
ROW = ScaleBlock(1, 64)


def changed(facts: Facts, **changes: object) -> Facts:
    return dataclasses.replace(facts, **changes)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("facts", "call", "name"),
    [
        (MHA, BLACKWELL, "mha"),
        (MHA, HOPPER, "mha-registers"),
        (changed(MHA, q_type="e4m3", kv_type="e4m3"), HOPPER, "mha-registers"),
        (changed(MHA, kv_type="e4m3"), BLACKWELL, "mha-streaming"),
        (changed(MHA, kv_type="e4m3", scales=Scales(ROW, ROW)), HOPPER, "mha-streaming"),
        (changed(MHA, combined=True), BLACKWELL, "mha-streaming"),
        (changed(MHA, block=Block(128, 1, 128)), BLACKWELL, "mha"),
        (DECODE, BLACKWELL, "mla-decode-pair"),
        (changed(DECODE, heads=64), BLACKWELL, "mla-decode"),
        (DECODE, HOPPER, "mla-decode-registers"),
        (changed(DECODE, indexed_rows=True), HOPPER, "mla-decode-streaming"),
    ],
)
def test_the_first_that_has_a_kernel_is_chosen(facts: Facts, call: Call, name: str) -> None:
    assert choose(facts, call).name == name
    assert choose(facts, call, name).name == name


@pytest.mark.parametrize(
    ("sq", "asked", "blackwell", "hopper"),
    [
        (1, {}, "mha", "mha-streaming"),  # 4 rows
        (8, {}, "mha-swapped", "mha-streaming"),
        (8, {"q_tiles": 1}, "mha", "mha-registers"),
        (9, {}, "mha", "mha-registers"),
    ],
)
def test_few_queries_have_schedules_of_their_own(
    sq: int, asked: dict[str, int], blackwell: str, hopper: str
) -> None:
    facts = changed(MHA, head_dim=128, v_head_dim=128)
    for call, name in ((BLACKWELL, blackwell), (HOPPER, hopper)):
        sized = call._replace(sizes={"sq": sq}, asked=asked)
        assert choose(facts, sized).name == name
        assert choose(changed(facts, block=Block(128, 1, 128)), sized).name in (
            "mha",
            "mha-registers",
        )


def test_a_refusal_says_why_every_schedule_has_none() -> None:
    wide = changed(MHA, head_dim=264)
    reason = "head_dim must be a multiple of 8 up to 256, got 264"
    text = f"has no kernel: mha-streaming: {reason}; mha-registers: {reason}"
    with pytest.raises(SpecError, match=f"^sm_90a {text}$"):
        choose(wide, HOPPER)
    with pytest.raises(LookupError, match=f"^{text}$"):
        choose(wide, HOPPER, refused=LookupError)
    with pytest.raises(SpecError, match=f"^sm_90a has no kernel: mha-streaming: {reason}$"):
        choose(wide, HOPPER, "mha-streaming")


@pytest.mark.parametrize("rows", [1, 16, 128])
def test_streams_take_scales_of_blocks_of_positions(rows: int) -> None:
    block = ScaleBlock(rows, 32)
    facts = changed(MHA, kv_type="e4m3", scales=Scales(block, block))
    assert choose(facts, HOPPER).name == "mha-streaming"


def test_scales_of_blocks_that_no_kernel_has() -> None:
    wrong = "positions that share a scale must be 1, 2, 4, 8, 16, 32, 64 or 128, got 3"
    facts = changed(MHA, kv_type="e4m3", scales=Scales(ROW, ScaleBlock(3, 64)))
    with pytest.raises(SpecError, match=f"mha-streaming: {wrong}"):
        choose(facts, HOPPER)
    along_keys = changed(facts, scales=Scales(ROW, ScaleBlock(32, 1)))
    with pytest.raises(SpecError, match="mha-streaming: v_groups must be one to a row, .*, got 64"):
        choose(along_keys, HOPPER)
    append = changed(facts, operation="append", scales=Scales(ScaleBlock(2, 64), ROW))
    with pytest.raises(SpecError, match="append: positions that share a scale must be 1, got 2"):
        choose(append, HOPPER)


def test_schedules_of_other_targets_and_names_of_none() -> None:
    with pytest.raises(TargetError, match="attn.mha applies to sm_90a: mha-swapped needs accumul"):
        choose(MHA, HOPPER, "mha-swapped")
    with pytest.raises(
        SpecError, match="schedule must be one of mha-swapped, .* mha-registers, got nobody"
    ):
        choose(MHA, HOPPER, "nobody")


def test_settings_that_are_asked_for_stay_where_a_kernel_can_have_them() -> None:
    policy = choose(MHA, BLACKWELL).policy
    knobs = policy.set(MHA, BLACKWELL, {"kv_stages": 3}, {"tile_order": "clc"})
    assert not isinstance(knobs, Mismatch)
    assert (knobs["kv_stages"], knobs["tile_order"]) == (3, "clc")
    assert set(knobs) == {knob.name for knob in policy.knobs}
    found = policy.set(MHA, BLACKWELL, {"kv_stages": 1}, {})
    assert str(found) == "kv_stages must be at least 2, got 1"


def test_every_operation_has_schedules_with_words_of_their_own() -> None:
    for operation in {policy.operation for policy in POLICIES}:
        words = {policy.suffix for policy in of_operation(operation)}
        assert len(words) == len(of_operation(operation)) or words == {""}


class Passing(Policy):
    """A policy of another project, which comes and goes; it has kernels for one size of heads."""

    name: ClassVar[str] = "passing"
    operation: ClassVar[str] = "mha"
    needs: ClassVar[frozenset[Feature]] = frozenset()
    by_name: ClassVar[bool] = True

    def __init__(self, head_dim: int):
        self.head_dim = head_dim

    def takes(self, facts: Facts, call: Call) -> bool:
        return False

    def mismatch(self, facts: Facts, target: Target) -> Mismatch | None:
        return first_mismatch([("head_dim", facts.head_dim, one_of(self.head_dim))])


def test_what_is_kept_of_a_policy_is_not_of_another_one_by_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    facts = [dataclasses.replace(MHA, head_dim=x) for x in (64, 128)]
    for size in (64, 128, 64):  # registered, and gone again
        policy = Passing(size)
        monkeypatch.setattr(registry, "POLICIES", [*POLICIES, policy])
        for other in facts:
            if other.head_dim == size:
                assert choose(other, HOPPER, "passing").policy is policy
            else:
                with pytest.raises(SpecError, match=f"passing: .*head_dim.* {size}"):
                    choose(other, HOPPER, "passing")
    monkeypatch.undo()
    with pytest.raises(SpecError, match="^schedule must be one of"):
        choose(facts[0], HOPPER, "passing")


def test_what_policies_of_attention_are_asked_by() -> None:
    assert unnamed("mha").name == "mha" and widening("mha").name == "mha-streaming"
    assert combining("mha") == ["mha-streaming", "mha-swapped"]
    assert combining("mla_decode") == ["mla-decode-streaming"]


def test_domains_say_what_they_allow() -> None:
    assert one_of(1, 2, 4).text == "1, 2 or 4" and one_of(1).text == "1"
    assert multiple_of(8, most=16).allows(16) and not multiple_of(8, most=16).allows(24)
    assert not multiple_of(8).allows(0)
    assert divisor_of(12, 8).allows(4) and not divisor_of(12, 8).allows(3)
    assert not divisor_of(12, most=4).allows(6) and not divisor_of(12).allows(0)


def test_policies_need_no_mlir() -> None:
    code = (
        "import sys, attn_mlir.schedules.policy.registry;"
        "print([x for x in sys.modules if x.startswith('numba_cuda_mlir')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
