"""What the sizes of a call decide of an attention kernel, as the policy of its schedule says: work
tiles, their order, and the blocks of lists.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from attn_mlir.compiling.spec import MhaSpec
from attn_mlir.dialect.attn.block import Block
from attn_mlir.dialect.orders import LOOPING_ORDERS
from attn_mlir.dialect.targets.limits import DEFAULT_TARGET, target_named
from attn_mlir.errors import SpecError
from attn_mlir.runtime.call.binding import GRID_LIMITS
from attn_mlir.runtime.kernel import Machine
from attn_mlir.schedules.policy.attention import AttentionPolicy, FewRowsPolicy, ManyRowsPolicy
from attn_mlir.schedules.policy.base import Call


def call_of(
    spec: MhaSpec, sizes: Mapping[str, int], machine: Machine, *, in_parts: bool = False
) -> Call:
    """What policies know of a call.

    Args:
      spec: the request.
      sizes: `batch`, and the longest `sq` and `sk`.
      machine: that the call runs on.
      in_parts: whether the keys are computed in parts.

    Raises:
      TargetError: no such chip.
    """
    target = target_named(machine.target or DEFAULT_TARGET)
    is_cached = spec.cache is not None
    return Call(target, machine.multiprocessors, sizes, spec.asked, in_parts, is_cached)


def kernel_block(
    spec: MhaSpec, sq: int, target: str = DEFAULT_TARGET, *, listed: bool = False
) -> Block:
    """The extents of the block of scores of one work tile and one key tile of a request's kernel.

    Args:
      spec: the request.
      sq: queries of the longest sequence; if few, work tiles have one query tile by default.
      target: the chip.
      listed: whether lists name the key tiles.

    Raises:
      SpecError: there is no kernel.
      TargetError: no such chip.
    """
    policy, call = spec.policy, call_of(spec, {"sq": sq}, Machine(target, 0))
    if not isinstance(policy, ManyRowsPolicy):
        raise SpecError(f"schedule {policy.name} has no blocks that lists could name")
    return policy.block(spec.facts, call, listed=listed)


def work_tiles(spec: MhaSpec, sizes: Mapping[str, int], target: str = DEFAULT_TARGET) -> int:
    """Number of work tiles of a call without a split, as if all sequences had the longest length.

    Args:
      spec: the request; one that streams has one query tile where it names no number.
      sizes: `batch`, and the longest `sq`.
      target: the chip.

    Raises:
      SpecError: there is no kernel.
      TargetError: no such chip.
    """
    call = call_of(spec, sizes, Machine(target, 0))
    return attention_policy(spec).work_tiles(spec.facts, call)


def combined_tiles(spec: MhaSpec, sizes: Mapping[str, int], target: str) -> int:
    """Number of tiles of a call whose parts of the keys its kernel combines one by one.

    Arguments and errors as of `work_tiles`.
    """
    policy = spec.policy
    assert isinstance(policy, FewRowsPolicy)
    return policy.combined_tiles(spec.facts, call_of(spec, sizes, Machine(target, 0)))


def with_tiles(
    spec: MhaSpec, sizes: Mapping[str, int], machine: Machine, *, in_parts: bool = False
) -> MhaSpec:
    """The request with its query tiles and the order of its work tiles, where sizes decide.

    What the request says stays; None leaves it to the schedule. Arguments as of `call_of`.

    Raises:
      SpecError: the request names more query tiles than there is a kernel for.
    """
    policy = spec.policy
    if not isinstance(policy, AttentionPolicy):
        return spec
    found = policy.sized(spec.facts, call_of(spec, sizes, machine, in_parts=in_parts))
    chosen = {"query_tiles": found.get("q_tiles"), "tile_order": found.get("tile_order")}
    return dataclasses.replace(spec, **chosen) if found != spec.asked else spec


def for_other_sizes(spec: MhaSpec, sizes: Mapping[str, int], machine: Machine) -> list[MhaSpec]:
    """What `with_tiles` gives for as many queries and any batch and number of keys.

    Arguments as of `call_of`.
    """
    policy = spec.policy
    if not isinstance(policy, AttentionPolicy):
        return []
    others = policy.other_sizes(call_of(spec, sizes, machine))
    return list(dict.fromkeys(with_tiles(spec, other, machine) for other in others))


def folded(spec: MhaSpec, sizes: Mapping[str, int], *, parts: int = 1) -> MhaSpec:
    """The request with work tiles on one axis of the grid, where its batch is larger than another
    has room for.

    Dense sequences are the grid's last axis, which ends at 65,535. CTAs that loop over work tiles
    have them all on the first. An order that is asked for stays.

    Args:
      spec: a request with its schedule.
      sizes: `batch`.
      parts: of the keys, which have a work tile each.
    """
    policy = spec.policy
    loops = policy.defaults.get("tile_order") in LOOPING_ORDERS
    is_free = spec.tile_order is None and not spec.lengths.ragged_q
    can_loop = isinstance(policy, AttentionPolicy) and is_free and not loops
    if not can_loop or sizes["batch"] * parts <= GRID_LIMITS[-1]:
        return spec
    return dataclasses.replace(spec, tile_order="persistent")


def attention_policy(spec: MhaSpec) -> AttentionPolicy:
    """The policy of a request's schedule.

    Raises:
      SpecError: it does not say how it divides a call.
    """
    policy = spec.policy
    if not isinstance(policy, AttentionPolicy):
        raise SpecError(f"schedule {policy.name} does not say how many work tiles a call has")
    return policy
