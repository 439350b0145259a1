"""Chooses the schedule of an attention call that names none.

It depends on the machine and on the number of rows that share keys (heads of a group times queries
of the longest sequence), never on the contents of device arrays, so that recorded launches stay
valid.
"""

from __future__ import annotations

import dataclasses

from attn_mlir.compiling.schedules import check_registers, check_tensor
from attn_mlir.compiling.spec import MhaSpec
from attn_mlir.dialect.attn.block import Block
from attn_mlir.dialect.targets.features import Feature
from attn_mlir.dialect.targets.limits import DEFAULT_TARGET, target_named
from attn_mlir.runtime.kernel import Machine
from attn_mlir.schedules.policy.base import Call
from attn_mlir.schedules.policy.registry import choose
from attn_mlir.schedules.policy.tiling import STREAM_KEYS


def routed(
    spec: MhaSpec, sq: int, machine: Machine, *, in_parts: bool = False, listed: bool = False
) -> MhaSpec:
    """The request with its schedule.

    Args:
      spec: the request; a schedule that it names is kept. None is kept where sums lie in tensor
        memory and the tiled kernel is taken.
      sq: queries of the longest sequence.
      machine: the machine that the call runs on.
      in_parts: whether the keys are split into parts of a fixed size, which only schedules for few
        queries put together in an order of their own.
      listed: whether lists name the key tiles, which that schedule does not support.

    Raises:
      SpecError: an option that no schedule of the machine supports.
    """
    target = target_named(machine.target or DEFAULT_TARGET)
    if Feature.TENSOR_MEMORY in target.features:
        check_tensor(spec, target.chip)
    else:
        check_registers(spec, target.chip)
    if spec.schedule is not None:
        return spec
    facts = spec.facts
    if in_parts:
        facts = dataclasses.replace(facts, split_size=STREAM_KEYS)
    if listed and facts.block is None:
        facts = dataclasses.replace(facts, block=Block(target.rows_per_product, 1, STREAM_KEYS))
    policy = choose(facts, Call(target, machine.multiprocessors, {"sq": sq}, spec.asked))
    return dataclasses.replace(spec, schedule=policy.name) if policy.word else spec
