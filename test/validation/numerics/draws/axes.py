"""The axes of the draws: everything that a call of attention can vary in.

An axis is a row of `AXES`: a name and choices, each a name and what it does to the problem; the
first one is plain. To cover a new option, add a row. Axes are drawn in order, so that a choice may
look at what those before it have set (`fits`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

import attn_mlir as am
from attn_mlir import mods
from attn_mlir.dialect.targets.limits import DEFAULT_TARGET, target_named
from attn_mlir.schedules.policy.tiling import has_scale_groups, has_tiling
from attn_mlir.validation.numerics.stored import Form

from .calls import ARGUMENTS, ARRAYS, EAGER, MODES, PLAIN
from .magnitudes import MAGNITUDES
from .problem import SMALL_DRAWS, Array, Problem

SCALES = (0.3, 1e-3, 30.0)
MAX_F32_VALUES = 192  # head size of V with O in f32
MAX_SWAPPED_VALUES = 128  # of the schedule `mha-swapped`
MAX_SHARING = 128  # head sizes up to which two query tiles share what streams past them


def _always(problem: Problem) -> bool:
    del problem
    return True


def _is_wide(problem: Problem) -> bool:
    return not problem.is_narrow


def _can_stream(problem: Problem) -> bool:
    page = 0 if problem.cache is None else problem.cache.page_size
    return problem.block_size is None and _can_stream_pages(page)


def _can_stream_pages(size: int) -> bool:
    return size not in (8, 192)  # key tiles have 128 keys


def _can_swap(problem: Problem) -> bool:
    return _can_stream(problem) and not problem.stores_narrow and problem.dv <= MAX_SWAPPED_VALUES


def _has_query_tiles(problem: Problem) -> bool:
    if not problem.streams:
        return True
    named = problem.call.get("schedule") == "mha-streaming"
    return named and max(problem.d, problem.dv) <= MAX_SHARING


def _has_two_query_tiles(problem: Problem) -> bool:
    """Whether two have a kernel; the tiled one has to have them in any order, and with O in f32."""
    if not _has_query_tiles(problem) or not problem.is_tiled:
        return _has_query_tiles(problem)
    sizes, most = (problem.d, problem.dv), {"tile_order": "persistent", "output_bits": 32}
    return has_tiling(target_named(DEFAULT_TARGET), *sizes, q_tiles=2, **most)


def _fits_registers(problem: Problem) -> bool:
    return problem.kv_dtype is None and problem.scale_groups is None


def _in_registers(problem: Problem) -> None:
    problem.device.update(target="sm_90a")
    problem.call["schedule"] = "mha-registers"


@dataclass(frozen=True)
class Choice:
    """One value of an axis.

    Attributes:
      name: in the text of a draw.
      apply: sets it.
      fits: whether it can be had, given the axes before.
    """

    name: str
    apply: Callable[[Problem], None]
    fits: Callable[[Problem], bool] = _always


@dataclass(frozen=True)
class Axis:
    """Something that draws vary in.

    Attributes:
      plain: how often the first choice is taken before others are looked at.
    """

    name: str
    choices: Sequence[Choice]
    plain: float = 0.0

    def choice(self, name: str) -> Choice:
        """The choice of a name.

        Raises:
          ValueError: there is none.
        """
        for choice in self.choices:
            if choice.name == name:
                return choice
        names = ", ".join(choice.name for choice in self.choices)
        raise ValueError(f"{self.name} is one of {names}, got {name!r}")


def _sets(name: str, **values: Any) -> Choice:
    """A choice of sizes or operands."""

    def apply(problem: Problem) -> None:
        for field, value in values.items():
            setattr(problem, field, value)

    return Choice(name, apply)


def _plain(name: str) -> Choice:
    return Choice(name, lambda problem: None)


def _within_cost(name: str, **sizes: int) -> Choice:
    return Choice(name, _sets(name, **sizes).apply, lambda p: p.cost(**sizes) <= p.max_cost)


def _heads(heads: int, kv_heads: int) -> Choice:
    return _within_cost(f"{heads}/{kv_heads}", heads=heads, kv_heads=kv_heads)


def _call(name: str, fits: Callable[[Problem], bool] = _always, **options: Any) -> Choice:
    return Choice(name, lambda p: p.call.update(options), fits)


def _is_large(problem: Problem) -> bool:
    """Of those that the suite does not run, which does without torch."""
    return problem.seed >= SMALL_DRAWS


def _is_eager(problem: Problem) -> bool:
    """Whether arrays of numpy in modifiers, and block masks of this package, are taken: no graph holds them."""
    return problem.mode in EAGER


def _kind(name: str) -> Choice:
    fits = _always if name == ARRAYS else _is_large
    return Choice(name, lambda problem: setattr(problem, "arguments", name), fits)


def _mode(name: str) -> Choice:
    fits = _always if name == PLAIN else _is_large
    return Choice(name, lambda problem: setattr(problem, "mode", name), fits)


def _magnitude(
    name: str, apply: Callable[[Problem], None], fits: Callable[[Problem], bool]
) -> Choice:
    """Magnitudes, some of which a modifier makes."""
    return Choice(name, apply, lambda problem: fits(problem) and _is_eager(problem))


def _option(option: str, name: str, make: Callable[[Problem], Any]) -> Choice:
    fits = _is_eager if option in ("score_mod", "mask_mod") else _always
    return Choice(name, lambda p: p.options.update({option: make(p)}), fits)


def _factors(name: str, *shapes: Callable[[Problem], tuple[int, ...]]) -> Choice:
    """Factors of 8-bit operands: of q, k and v in turn, or alike."""

    def apply(problem: Problem) -> None:
        for side, shape in zip("qkv", shapes * (3 // len(shapes)), strict=True):
            if side == "q" and not problem.is_narrow:
                continue
            factors = np.exp(problem.normal(f"factor {side}", *shape(problem)) / 2)
            problem.options[f"{side}_descale"] = factors

    return Choice(name, apply, lambda problem: problem.stores_narrow)


FACTOR_SHAPES: list[Callable[[Problem], tuple[int, ...]]] = [
    lambda p: (1,),
    lambda p: (p.kv_heads,),
    lambda p: (p.batch, p.kv_heads),
]

# ---- caches


def _cached(name: str, **fields: Any) -> Choice:
    """Keys and values in a cache; tables have whole columns of room."""
    form = Form(**fields)
    size = max(form.page_size, 1)

    def room(problem: Problem) -> int:
        return -(-problem.sk // size) * size

    def apply(problem: Problem) -> None:
        problem.sk, problem.cache = room(problem), form

    def fits(problem: Problem) -> bool:
        told = problem.used - {"q"} or (problem.is_ragged and "k" in problem.used)
        is_short = not form.counts_new and problem.sk < problem.sq
        is_apart = form.in_one_pool and problem.d != problem.dv
        costs = problem.cost(sk=room(problem)) > problem.max_cost
        has_none = problem.streams and not _can_stream_pages(form.page_size)
        return not (told or is_short or is_apart or costs or has_none)

    return Choice(name, apply, fits)


CACHES = [
    _plain("none"),
    _cached("pages of 64", page_size=64),
    _cached("pages of 16, heads first", page_size=16, layout="HND"),
    _cached("pages of 128 in one pool", page_size=128, in_one_pool=True),
    _cached("pages of 32 in one pool, heads first", page_size=32, in_one_pool=True, layout="HND"),
    _cached("pages of 16 that keys and values have apart", page_size=16, apart=True),
    _cached("pages of 256 without the new keys", page_size=256, counts_new=False),
    _cached("pages of 8 in compressed rows", page_size=8, compressed=True),
    _cached("pages of 192 in compressed rows", page_size=192, compressed=True),
    _cached("rows", counts_new=False),
    _cached("rows of a larger cache", selected=True),
    _cached("padded rows", padded=True, selected=True),
    _cached("padded rows without the new keys", padded=True, counts_new=False),
]


def _scaled(name: str, columns: int, dtype: Any, *, apart: bool = False) -> Choice:
    """Scale factors of each cache position, one per group of `columns` columns; for 0, one per position."""

    def groups(problem: Problem) -> tuple[int, int]:
        return (problem.d // columns, problem.dv // columns) if columns else (1, 1)

    def apply(problem: Problem) -> None:
        assert problem.cache is not None
        problem.cache = dataclasses.replace(problem.cache, scales_apart=apart)
        problem.scale_groups, problem.scale_dtype = groups(problem), dtype
        for factor in ("k_descale", "v_descale"):
            del problem.options[factor]

    def fits(problem: Problem) -> bool:
        if problem.cache is None or not problem.stores_narrow or not _can_stream(problem):
            return False
        if apart and not problem.cache.page_size:
            return False
        sizes = zip((problem.d, problem.dv), groups(problem), strict=True)
        return all(has_scale_groups(*pair) for pair in sizes)

    return Choice(name, apply, fits)


# ---- masks

LEAVES: dict[str, am.Mask] = {
    "causal": am.causal(),
    "left window": am.sliding_window(100, None),
    "window": am.sliding_window(130, 0),
    "two-sided window": am.sliding_window(30, 70),
    "right window": am.sliding_window(None, 9),
    "chunked": am.chunked(150),
    "prefix": am.prefix_lm(90),
}


def _mask(name: str, make: Callable[[am.Mask], am.Mask]) -> Choice:
    """Replaces the mask so far."""

    def apply(problem: Problem) -> None:
        problem.options["mask"] = make(problem.options.get("mask", am.full()))

    return Choice(name, apply)


def _leaf(operation: str, name: str) -> Choice:
    other = LEAVES[name]
    if operation == "&":
        return _mask(f"& {name}", lambda mask: mask & other)
    return _mask(f"| {name}", lambda mask: mask | other)


# ---- score modifiers and predicates


def _documents(problem: Problem, what: str, length: int) -> Array:
    ids = problem.random(what).integers(0, 3, (problem.batch, length))
    return np.sort(ids).astype(np.int32)


def _lengths(problem: Problem) -> Array:
    return problem.random("lengths").integers(0, problem.sk + 1, problem.batch).astype(np.int32)


def _visible(problem: Problem, *shape: int) -> Array:
    return problem.random("visible").random(shape) < 0.7


def _bias(
    name: str, shape: Callable[[Problem], tuple[int, ...]], dtype: Any = np.float32
) -> Choice:
    return _option("score_mod", name, lambda p: mods.bias(p.normal("bias", *shape(p), dtype=dtype)))


def _slopes(problem: Problem) -> Array:
    return np.abs(problem.normal("slopes", problem.heads)) / 8


SCORE_MODS = [
    _plain("none"),
    _option("score_mod", "softcap", lambda p: mods.softcap(3.0)),
    _option("score_mod", "alibi", lambda p: mods.alibi(_slopes(p))),
    _option(
        "score_mod",
        "relative bias",
        lambda p: mods.relative_bias(p.normal("relative", p.heads, 41)),
    ),
    _option(
        "score_mod",
        "relative logits",
        lambda p: mods.relative_logits(
            p.normal("logits", p.batch, p.sq, p.heads, 16, dtype=ml_dtypes.bfloat16)
        ),
    ),
    _bias("bias of rank 2", lambda p: (p.sq, p.sk)),
    _bias("bias of rank 3", lambda p: (p.batch, p.sq, p.sk), np.float16),
    _bias("bias of rank 4", lambda p: (p.batch, p.heads, p.sq, p.sk)),
    _option(
        "score_mod",
        "alibi, softcap",
        lambda p: mods.compose(mods.alibi(_slopes(p)), mods.softcap(5.0)),
    ),
]

MASK_MODS = [
    _plain("none"),
    _option("mask_mod", "causal from top", lambda p: mods.causal_from_top),
    _option("mask_mod", "padding", lambda p: mods.key_padding(_lengths(p))),
    _option(
        "mask_mod",
        "documents",
        lambda p: mods.document(_documents(p, "ids_q", p.sq), _documents(p, "ids_k", p.sk)),
    ),
    _option("mask_mod", "tensor", lambda p: mods.visible_where(_visible(p, p.sq, p.sk))),
    _option(
        "mask_mod",
        "padding or tensor",
        lambda p: mods.or_masks(
            mods.key_padding(_lengths(p)),
            mods.not_mask(mods.visible_where(_visible(p, p.batch, p.heads, p.sq, p.sk))),
        ),
    ),
]

# ---- the table

AXES: tuple[Axis, ...] = (
    Axis(
        "dtype",
        [
            _sets("bf16"),
            _sets("f16", dtype=np.float16),
            _sets("e4m3", dtype=ml_dtypes.float8_e4m3fn),
            _sets("e5m2", dtype=ml_dtypes.float8_e5m2),
        ],
    ),
    Axis(
        "keys and values",
        [
            _plain("as queries"),
            *(
                Choice(f"{name} under 16 bits", _sets("", kv_dtype=dtype).apply, _is_wide)
                for name, dtype in (
                    ("e4m3", ml_dtypes.float8_e4m3fn),
                    ("e5m2", ml_dtypes.float8_e5m2),
                )
            ),
        ],
        plain=0.6,
    ),
    Axis(
        "head sizes",
        [
            Choice(
                f"{d}x{dv}",
                _sets("", d=d, dv=dv).apply,
                lambda p, d=d, dv=dv: not p.stores_narrow or d % 16 == dv % 16 == 0,
            )
            for d, dv in [
                (64, 64), (128, 128), (80, 80), (96, 96), (192, 128), (256, 256),
                (8, 8), (40, 72), (72, 40), (128, 136), (200, 24), (24, 256),
            ]
        ],
    ),
    Axis("batch", [_within_cost(str(n), batch=n) for n in (1, 2, 3)]),
    Axis("heads", [_heads(*pair) for pair in [(1, 1), (2, 2), (2, 1), (4, 2), (3, 1), (6, 2), (8, 1)]]),
    Axis(
        "factors",
        [
            Choice("none", lambda p: None, lambda p: not p.stores_narrow),
            _factors("per tensor", FACTOR_SHAPES[0]),
            _factors("per head", FACTOR_SHAPES[1]),
            _factors("per sequence", FACTOR_SHAPES[2]),
            _factors("one of each", *FACTOR_SHAPES),
        ],
    ),
    Axis(
        "queries",
        [_within_cost(str(n), sq=n) for n in (16, 1, 2, 7, 64, 77, 128, 129, 200, 256, 257, 300, 513)],
    ),
    Axis(
        "keys",
        [_within_cost(str(n), sk=n) for n in (128, 0, 1, 63, 127, 129, 200, 256, 300, 385, 640)],
    ),
    Axis(
        "lengths",
        [
            _sets("equal"),
            _sets("ragged", is_ragged=True),
            _sets("ragged with holes", is_ragged=True, used=frozenset("qk")),
            _sets("used keys", used=frozenset("k")),
            _sets("used queries and keys", used=frozenset("qk")),
            Choice(
                "cached prefix",
                _sets("", used=frozenset({"cache"})).apply,
                lambda p: p.sk >= p.sq,
            ),
            Choice(
                "cache with the new keys",
                _sets("", used=frozenset({"cache"}), counts_new=True).apply,
                lambda p: p.sk >= p.sq,
            ),
        ],
    ),
    Axis("cache", CACHES, plain=0.5),
    Axis(
        "factors of positions",
        [
            _plain("none"),
            _scaled("one to a row", 0, np.float32),
            _scaled("of 16 bits in pages of their own", 0, ml_dtypes.bfloat16, apart=True),
            _scaled("of 32 columns", 32, np.float32),
            _scaled("of 64 columns in pages of their own", 64, np.float16, apart=True),
        ],
    ),
    Axis("layout", [_sets(name, layout=name) for name in ("dense", "heads first", "padded")]),
    Axis("numbers", [_sets("normal"), _sets("growing", growing=True)]),
    Axis("arguments", [_kind(name) for name in ARGUMENTS], plain=0.5),
    Axis("call", [_mode(name) for name in MODES], plain=0.6),
    Axis("mask", [_plain("full"), *(_leaf("&", name) for name in LEAVES)]),
    Axis(
        "further mask",
        [
            _plain("none"),
            *(_leaf("&", name) for name in LEAVES),
            *(_leaf("|", name) for name in LEAVES),
        ],
    ),
    Axis("complement", [_plain("no"), _mask("yes", lambda mask: ~mask)]),
    Axis("score_mod", SCORE_MODS),
    Axis("mask_mod", MASK_MODS),
    Axis(
        "block mask",
        [
            _plain("none"),
            *(
                Choice(
                    f"{rows} x {columns}",
                    _sets("", block_size=(rows, columns)).apply,
                    lambda p: (
                        p.is_plain and p.sq > 0 < p.sk and p.kv_dtype is None and _is_eager(p)
                    ),
                )
                for rows, columns in ((128, 128), (256, 256))
            ),
        ],
    ),
    Axis(
        "sinks",
        [
            _plain("none"),
            _option("sinks", "f32", lambda p: p.normal("sinks", p.heads) * 3),
            _option("sinks", "f16", lambda p: p.normal("sinks", p.heads, dtype=np.float16)),
        ],
    ),
    Axis(
        "scale",
        [
            _plain("default"),
            *(_option("scale", f"{scale:g}", lambda p, scale=scale: scale) for scale in SCALES),
        ],
    ),
    Axis("magnitude", [_plain("ordinary"), *(_magnitude(*row) for row in MAGNITUDES)]),
    Axis("lse", [_call("yes", return_lse=True), _call("no", return_lse=False)]),
    Axis(
        "out_dtype",
        [
            _plain("same"),
            _call("bf16", out_dtype="bf16"),
            _call("f16", out_dtype="f16"),
            _call("f32", lambda p: p.dv <= MAX_F32_VALUES, out_dtype="f32"),
        ],
    ),
    Axis(
        "kernel",
        [
            _plain("of the target"),
            _call("streaming", _can_stream, schedule="mha-streaming"),
            _call("swapped", _can_swap, schedule="mha-swapped"),
            Choice("for sm_90a", lambda p: p.device.update(target="sm_90a"), _can_stream),
            Choice("in registers", _in_registers, _fits_registers),
        ],
    ),
    Axis(
        "query tiles",
        [
            _plain("auto"),
            _call("1", _has_query_tiles, query_tiles=1),
            _call("2", _has_two_query_tiles, query_tiles=2),
        ],
    ),
    Axis(
        "tile order",
        [
            _plain("auto"),
            *(_call(o, tile_order=o) for o in ("single", "last_first", "persistent")),
            _call("clc", lambda p: p.is_tiled, tile_order="clc"),
            _call("ragged", lambda p: p.is_ragged, tile_order="ragged"),
            _call("counter", lambda p: p.call.get("schedule") == "mha-registers", tile_order="counter"),
        ],
    ),
    Axis(
        "parts of the keys",
        [
            _plain("1"),
            _call("3", lambda p: p.dv <= MAX_F32_VALUES and p.block_size is None, num_splits=3),
            _call("chosen", num_splits=0),
        ],
    ),
    Axis(
        "schedule",
        [
            _plain("fair"),
            Choice(
                "adversarial",
                lambda p: p.device.update(schedule="adversarial", seed=p.seed % 1000),
            ),
        ],
    ),
)  # fmt: skip
