"""The schedule that a call gets, and the request for its kernel.

Both depend on the machine and on sizes, never on the contents of device arrays, so that recorded
launches stay valid.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

from attn_mlir.compiling.schedules import refuse
from attn_mlir.compiling.sequences import GroupedRequest, SequenceRequest
from attn_mlir.compiling.spec import MhaSpec
from attn_mlir.dialect.attn.block import Block
from attn_mlir.dialect.targets.features import Feature
from attn_mlir.dialect.targets.limits import DEFAULT_TARGET, target_named
from attn_mlir.errors import SpecError
from attn_mlir.runtime.kernel import Machine
from attn_mlir.schedules.policy.base import Call
from attn_mlir.schedules.policy.choice import Choice
from attn_mlir.schedules.policy.registry import choose, pins_mismatch
from attn_mlir.schedules.policy.tiling import STREAM_KEYS

GroupedT = TypeVar("GroupedT", bound=GroupedRequest)


def choice_of(
    spec: SequenceRequest, sizes: Mapping[str, int], machine: Machine, **changed: Any
) -> Choice:
    """The choice for a call: the schedule of its request, or the best one.

    Args:
      spec: the request.
      sizes: `batch`, and the longest `sq` and `sk`.
      machine: that the call runs on.
      changed: facts of its kernel that the request does not have.

    Raises:
      SpecError: no schedule has a kernel.
      TargetError: no such chip.
    """
    target, is_cached = target_named(machine.target or DEFAULT_TARGET), spec.cache is not None
    call = Call(target, machine.multiprocessors, sizes, spec.pins, cached=is_cached)
    facts = dataclasses.replace(spec.facts, **changed) if changed else spec.facts
    return Choice(spec.policy or choose(facts, call).policy, spec.facts, call)


def attention_choice(
    spec: MhaSpec,
    sizes: Mapping[str, int],
    machine: Machine,
    *,
    has_split_size: bool = False,
    has_block_lists: bool = False,
) -> Choice:
    """The choice for a call of `attention`.

    Args:
      spec, sizes, machine: as of `choice_of`.
      has_split_size: whether splits have a fixed size, which only schedules for few queries combine
        in a fixed order.
      has_block_lists: whether lists give the key tiles, which these schedules do not support.

    Raises:
      SpecError: an option that no schedule of the machine supports.
    """
    target, facts, pins = target_named(machine.target or DEFAULT_TARGET), spec.facts, spec.pins
    policy = spec.policy
    if policy is not None and Feature.TENSOR_MEMORY in policy.needs - target.features:
        raise SpecError(f"{target.chip} has no schedule {policy.name}: it has no tensor memory")
    refuse(target.chip, pins_mismatch(facts, pins, target))
    changed: dict[str, Any] = {"split_size": STREAM_KEYS} if has_split_size else {}
    if has_block_lists:
        changed["block"] = Block(target.rows_per_product, 1, STREAM_KEYS)
    choice = choice_of(spec, sizes, machine, **changed)
    if policy is None:
        refuse(f"schedule {choice.name}", choice.policy.pins_mismatch(facts, target, pins))
    return choice.with_lists() if has_block_lists else choice


def chosen(spec: GroupedT, choice: Choice, **options: Any) -> GroupedT:
    """The request for a kernel, with its schedule and the knobs that follow from a call's sizes.

    None leaves a knob to the schedule.

    Args:
      spec: the request of the call.
      choice: for the call.
      options: further options of the kernel.

    Raises:
      SpecError: the request asks for knobs that no kernel has.
    """
    if choice.policy.suffix:
        options["schedule"] = choice.name
    if choice.facts.block is not None:
        options["block"] = tuple(choice.facts.block)
    knobs = choice.sized
    options |= {"query_tiles": knobs.get("q_tiles"), "tile_order": knobs.get("tile_order")}
    if spec.pins:  # of which some may not go with what the policy chooses
        return dataclasses.replace(spec, **options)
    return spec.derived(**options)
