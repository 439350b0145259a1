"""A policy: what one schedule can compute, and how it is set for a problem.

A policy knows a problem by its `Facts` alone. The front end asks it before there is a kernel, and
`attn-configure` asks it for an operation, so that both get the same answer. It imports no MLIR.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, NamedTuple

from attn_mlir.dialect.attn.block import Block
from attn_mlir.dialect.targets.features import Feature
from attn_mlir.dialect.targets.limits import Target
from attn_mlir.element_types import NARROW, WIDE, type_bits
from attn_mlir.errors import SpecError
from attn_mlir.schedules.policy.facts import Facts
from attn_mlir.schedules.policy.knobs import Domain, Knob, Knobs, Setting, multiple_of, one_of
from attn_mlir.schedules.policy.refusal import Mismatch
from attn_mlir.schedules.policy.tiling import MAX_Q_TILES, PAGE_STEP, goes_with_pages

STRIDE_BITS = 128  # tensor maps need strides of 16 bytes


NO_SIZES: Mapping[str, int] = MappingProxyType({})
NO_KNOBS: Knobs = MappingProxyType({})
Extents = tuple[tuple[int | str, ...], ...]


class Call(NamedTuple):
    """A call: all that a choice may depend on besides the problem, but no contents of arrays.

    Attributes:
      target: the chip.
      multiprocessors: of the machine; 0 where only the operation is there.
      sizes: `batch`, and the longest `sq` and `sk`; nothing where only the operation is there.
      asked: knobs that the caller has set, by name.
      splits: of the keys, which are computed side by side; 0 if the keys are not split.
      cached: whether keys and values lie in a cache, with pages or without.
    """

    target: Target
    multiprocessors: int = 0
    sizes: Mapping[str, int] = NO_SIZES
    asked: Knobs = NO_KNOBS
    splits: int = 0
    cached: bool = False

    def has_rows(self, facts: Facts, *, least: int = 0, most: int) -> bool:
        """Whether sizes are there, and so many query rows share keys in the longest sequence."""
        return "sq" in self.sizes and least <= self.sizes["sq"] * facts.group <= most


def first_mismatch(checks: Iterable[tuple[str, object, Domain]]) -> Mismatch | None:
    """The first of these values, each with its name and what is allowed, that is not allowed."""
    for what, got, domain in checks:
        if not domain.allows(got):
            return Mismatch(what, domain.text, got)
    return None


@dataclass(frozen=True, kw_only=True)
class Claims:
    """Which problems of an operation a schedule has kernels for, as far as data can say it.

    Attributes:
      types: element types of Q.
      kv_types: of K and V where they are not Q's.
      most: the largest head sizes, of Q and K and of V; None where the operation limits them.
      key_tiles: numbers of keys of a tile, of which one has to go with the pages; any page without.
      heads: numbers of heads are a multiple.
      claims_tiles: whether CTAs may ask for further work tiles, in the order that a target has for
        it.
      scales: how many neighbouring positions may share a scale; none without kernels for scales of
        positions.
      blocks, joins, partial, indexed_rows, rows: whether there are kernels for lists of blocks,
        that combine parts of the keys, with a result for each part, for lists of rows of keys, and
        for rows of a latent cache in 8 bits.
    """

    types: tuple[str, ...] = (*WIDE, *NARROW)
    kv_types: tuple[str, ...] = ()
    most: tuple[int, int] | None = None
    key_tiles: tuple[int, ...] = ()
    heads: int = 1
    claims_tiles: bool = False
    blocks: bool = False
    scales: tuple[int, ...] = ()
    combines: bool = False
    partial: bool = False
    indexed_rows: bool = False
    rows: bool = False

    def mismatch(self, facts: Facts) -> Mismatch | None:
        """The first thing that a problem has and that is not claimed."""
        return first_mismatch(self._checks(facts)) or next(self._surplus(facts), None)

    def _checks(self, facts: Facts) -> Iterator[tuple[str, object, Domain]]:
        """The checks of a problem: name, value and claimed domain."""
        yield "q's element type", facts.q_type, one_of(*self.types)
        is_wide = facts.q_type not in NARROW
        yield (
            "k's element type",
            facts.kv_type,
            one_of(facts.q_type, *(self.kv_types if is_wide else ())),
        )
        if self.heads > 1:
            yield "heads", facts.heads, multiple_of(self.heads)
        if self.most is not None:
            step = STRIDE_BITS // type_bits(facts.kv_type)
            sizes = ("head_dim", facts.head_dim), ("v_head_dim", facts.v_head_dim)
            for (name, size), most in zip(sizes, self.most, strict=True):
                yield name, size, multiple_of(step, most=most)
        for block in facts.scales or () if self.scales else ():
            if block is not None:
                yield "positions that share a scale", block.rows, one_of(*self.scales)
        if self.key_tiles:
            yield "page_size", facts.page_size, pages_of(self.key_tiles)

    def _surplus(self, facts: Facts) -> Iterator[Mismatch]:
        """The parts of a problem that no kernel has code for."""
        for name, has_kernel, got in (
            ("block_mask", self.blocks, facts.block),
            ("scales of positions", self.scales, facts.scales),
            ("memory to combine parts of the keys", self.combines, facts.combined),
            ("results for parts of the keys", self.partial, facts.partial),
            ("lists of rows", self.indexed_rows, facts.indexed_rows),
            ("rows of 8 bits", self.rows, facts.rows),
        ):
            if got and not has_kernel:
                yield Mismatch(name, "left out", None)


def pages_of(key_tiles: Iterable[int]) -> Domain:
    """Sizes of pages that a key tile of one of these sizes goes with; 0 without pages."""
    tiles = tuple(key_tiles)
    least = min(tiles)
    splits = [n for n in range(PAGE_STEP, least, PAGE_STEP) if goes_with_pages(least, n)]
    text = f"{', '.join(map(str, splits))} or a multiple of {least}"
    return Domain(text, lambda page: any(goes_with_pages(n, page) for n in tiles))


class Policy(ABC):
    """How one schedule is chosen and set; a subclass for each, of which there is one instance.

    Attributes:
      name: of the schedule, as users write it.
      kernel: the module beside the policy that has the schedule.
      suffix: the word that the schedule adds to the name of a kernel.
      operation: of whose facts it is the policy.
      needs: the features without which a target cannot run its kernels.
      claims: what it has kernels for.
      knobs: what can be turned.
      by_name: whether a problem that it does not take gets it only where it is asked for.
      most_query_tiles: of a work tile, that a request may ask for.
      combines_splits: whether the kernel combines parts of the keys by itself; else another kernel
        does.
      key_parts: keys of a row that a thread has alone, as of `KEY_PARTS`, in kernels of gradients
        where queries stand.
    """

    name: ClassVar[str]
    kernel: ClassVar[str] = "kernel"
    suffix: ClassVar[str] = ""
    operation: ClassVar[str]
    needs: ClassVar[frozenset[Feature]]
    claims: ClassVar[Claims] = Claims()
    knobs: ClassVar[tuple[Knob, ...]] = ()
    by_name: ClassVar[bool] = False
    most_query_tiles: ClassVar[int] = MAX_Q_TILES
    combines_splits: ClassVar[bool] = False
    key_parts: ClassVar[str] = ""

    @abstractmethod
    def takes(self, facts: Facts, call: Call) -> bool:
        """Whether this schedule is the best for a problem; the first of its operation that is, is
        chosen.

        It never depends on the modifier: sinks and parts of the keys are settled before it is
        traced.
        """

    def mismatch(self, facts: Facts, target: Target) -> Mismatch | None:
        """Why there is no kernel for a problem; None where there is one."""
        del target
        return self.claims.mismatch(facts)

    def choose(self, facts: Facts, call: Call, asked: Knobs) -> Knobs:
        """A setting of each knob; what is asked for stays.

        Args:
          asked: settings by the names of knobs that are options.
        """
        del facts, call
        return self.defaults | dict(asked)

    def domains(self, facts: Facts, target: Target, knobs: Knobs) -> Mapping[str, Domain]:
        """Which settings knobs may have beside those of others;
        one that is left out is as chosen.
        """
        del facts, target, knobs
        return {}

    def pins_mismatch(
        self, facts: Facts, target: Target, pins: Knobs, others: Knobs = NO_KNOBS
    ) -> Mismatch | None:
        """Why no kernel has these settings of options; None where one may.

        Args:
          others: settings of further knobs, where they are not the default ones.
        """
        if not pins:
            return None
        options = {knob.name for knob in self.options}
        for name in pins:
            if name not in options:
                return Mismatch(name, "left out", None)
        domains = self.domains(facts, target, {**self.defaults, **others, **pins})
        return first_mismatch((n, pins[n], domains[n]) for n in pins if n in domains)

    def set(self, facts: Facts, call: Call, asked: Knobs, entries: Knobs) -> Knobs | Mismatch:
        """The settings of a problem that there is a kernel for, or what is wrong with them.

        Args:
          asked: as of `choose`.
          entries: settings that overrule both.
        """
        chosen = self.choose(facts, call, asked)
        knobs = {**chosen, **entries}
        domains = self.domains(facts, call.target, knobs)
        checks = ((name, knobs[name], domains.get(name) or one_of(chosen[name])) for name in knobs)
        return first_mismatch(checks) or knobs

    def sized(self, facts: Facts, call: Call) -> Knobs:
        """The requested knobs, and those that the sizes of a call decide.

        A knob that is left out is left to `choose`.

        Raises:
          SpecError: there is no kernel.
        """
        return call.asked

    def other_sizes(self, call: Call) -> Iterable[Mapping[str, int]]:
        """Sizes of calls with as many queries that have every result of `sized` among them."""
        return ()

    def work_tiles(self, facts: Facts, call: Call) -> int:
        """Number of work tiles without parts, as if all sequences had the longest length.

        Raises:
          SpecError: there is no kernel, or work tiles are not known before there is one.
        """
        raise SpecError(f"schedule {self.name} does not say how many work tiles a call has")

    def combined_tiles(self, facts: Facts, call: Call) -> int:
        """Number of tiles whose parts are combined one by one: those of the workspace."""
        return self.work_tiles(facts, call)

    def workspace(self, facts: Facts, query_tiles: int | None) -> Extents:
        """Extents of the memory in which the kernel combines parts of the keys.

        Args:
          query_tiles: of a work tile; None where the request names no number.
        """
        return ()

    def splits(self, facts: Facts, call: Call) -> int:
        """The number of parts of the keys, by the sizes of a call and its machine."""
        return 1

    def split_refusal(self, facts: Facts) -> str:
        """Why a problem has no kernels with parts of the keys, behind the argument that asks for
        them; empty where it has, or where `mismatch` says why.
        """
        return ""

    def block(self, facts: Facts, call: Call, *, block_lists: bool = False) -> Block:
        """The extents of the block of scores of one work tile and one key tile.

        Args:
          indexed_rows: whether lists name the key tiles.

        Raises:
          SpecError: there is no kernel, or no kernel whose tiles lists could name.
        """
        raise SpecError(f"schedule {self.name} has no blocks that lists could name")

    @property
    def options(self) -> tuple[Knob, ...]:
        """The knobs that `attn-configure` can be asked for."""
        return tuple(knob for knob in self.knobs if knob.is_option)

    @property
    def defaults(self) -> dict[str, Setting]:
        """The default of each knob."""
        return {knob.name: knob.default for knob in self.knobs}
