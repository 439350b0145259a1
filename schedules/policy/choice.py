"""A choice: the schedule that a problem gets, and what it answers about a call."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from attn_mlir.dialect.attn.block import Block
from attn_mlir.schedules.policy.base import Call, Policy
from attn_mlir.schedules.policy.facts import Facts
from attn_mlir.schedules.policy.knobs import Knobs
from attn_mlir.schedules.policy.refusal import Mismatch


@dataclass(frozen=True)
class Choice:
    """A schedule for a problem and a call.

    Attributes:
      policy: of the schedule.
      facts: of the problem.
      call: its sizes and machine, and the knobs that are asked for.
    """

    policy: Policy
    facts: Facts
    call: Call

    @property
    def name(self) -> str:
        """The name of the schedule."""
        return self.policy.name

    @property
    def combines_splits(self) -> bool:
        """Whether the kernel combines parts of the keys by itself."""
        return self.policy.combines_splits

    @cached_property
    def sized(self) -> Knobs:
        """The knobs that are asked for, and those that the sizes of the call decide."""
        return self.policy.sized(self.facts, self.call)

    @cached_property
    def knobs(self) -> Knobs:
        """Every knob.

        Raises:
          DoesNotFit: no tiles fit.
        """
        return self.policy.choose(self.facts, self.call, self.sized)

    def set(self, entries: Knobs) -> Knobs | Mismatch:
        """Every knob, those of `attn.config` as it has them; or what is wrong with them.

        Raises:
          DoesNotFit: no tiles fit.
        """
        return self.policy.set(self.facts, self.call, self.call.asked, entries)

    def work_tiles(self) -> int:
        """Number of work tiles without parts, as if all sequences had the longest length.

        Raises:
          SpecError: there is no kernel.
        """
        return self.policy.work_tiles(self.facts, self.call)

    def combined_tiles(self) -> int:
        """Number of tiles whose parts of the keys the kernel combines one by one."""
        return self.policy.combined_tiles(self.facts, self.call._replace(asked=self.sized))

    def block(self) -> Block:
        """The extents of the block of scores of one work tile and one key tile, that lists name.

        Raises:
          SpecError: there is no kernel.
        """
        return self.policy.block(self.facts, self.call, block_lists=True)

    def with_lists(self) -> "Choice":
        """The same for a kernel that reads lists of its blocks, whose extents the facts then have.

        Raises:
          SpecError: there is no such kernel.
        """
        return replace(self, facts=replace(self.facts, block=self.block()))

    @property
    def listed_block(self) -> Block:
        """The extents of the blocks that lists name, for a kernel that reads lists."""
        assert self.facts.block is not None
        return self.facts.block

    def split_refusal(self) -> str:
        """Why there are no kernels with parts of the keys; empty where there are."""
        return self.policy.split_refusal(self.facts)

    def splits(self) -> int:
        """The number of parts of the keys, by the sizes of the call and its machine."""
        return self.policy.splits(self.facts, self.call)

    def in_parts(self, count: int) -> "Choice":
        """The same for so many parts of the keys; 0 for keys that are not split."""
        return replace(self, call=self.call._replace(splits=count)) if count else self

    def for_other_sizes(self) -> list["Choice"]:
        """The same for as many queries and any batch and number of keys."""
        return [self.of_sizes(x) for x in self.policy.other_sizes(self.call)]

    def of_sizes(self, sizes: Mapping[str, int]) -> "Choice":
        """The same for a call of these sizes."""
        return replace(self, call=self.call._replace(sizes=sizes))
