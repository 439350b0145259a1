"""Knobs: what can be turned about a kernel, and which settings there are.

A policy declares its knobs once. What `attn-configure` may be asked for, the entries of
`attn.config` and the checks of both follow from them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import cast

from attn_mlir.dialect.targets.limits import HALF_ROWS

FP8_RESCALE_THRESHOLD = 2  # of P of 8 bits, of which the largest is 2^6 to 2^8

Setting = int | str
Knobs = Mapping[str, Setting]  # a setting of each knob of a policy, by name


@dataclass(frozen=True)
class Knob:
    """One thing that can be turned.

    Attributes:
      name: of the entry of `attn.config`, and of the option of `attn-configure`.
      default: its setting where a policy chooses no other.
      means: the setting in words; of an option the text of its help.
      is_option: whether `attn-configure` can be asked for it.
      is_flag: whether the option is `true` or `false` rather than a number.
    """

    name: str
    default: Setting
    means: str
    is_option: bool = False
    is_flag: bool = False


@dataclass(frozen=True)
class Domain:
    """The settings that are allowed.

    Attributes:
      text: them in words, to be read behind `must be`.
      test: whether a number is one of them; `one_of` takes other settings as well.
    """

    text: str
    test: Callable[[int], bool]

    def allows(self, value: object) -> bool:
        """Whether a setting is one of them."""
        return self.test(cast("int", value))


def one_of(*values: object) -> Domain:
    """These settings."""
    *first, last = dict.fromkeys(map(str, values))
    text = f"{', '.join(first)} or {last}" if first else last
    return Domain(text, lambda value: value in values)


def at_least(least: int) -> Domain:
    """This number and larger ones."""
    return Domain(f"at least {least}", lambda value: value >= least)


def between(least: int, most: int) -> Domain:
    """Numbers from the one to the other."""
    return Domain(f"{least} to {most}", lambda value: least <= value <= most)


def multiple_of(step: int, *, most: int | None = None, least: int | None = None) -> Domain:
    """Multiples of a number, from it or another up to a third."""
    limit = (
        "" if most is None else f" up to {most}" if least is None else f" from {least} to {most}"
    )
    return Domain(
        f"a multiple of {step}{limit}",
        lambda value: (
            value % step == 0 and value >= (least or step) and (most is None or value <= most)
        ),
    )


def divisor_of(*counts: int, most: int | None = None) -> Domain:
    """Numbers that divide all of these."""
    limit = "" if most is None else f", up to {most}"
    return Domain(
        f"a divisor of {' and '.join(map(str, counts))}{limit}",
        lambda value: (
            value >= 1
            and not any(count % value for count in counts)
            and (most is None or value <= most)
        ),
    )


def attention_knobs(*options: str, **defaults: Setting) -> tuple[Knob, ...]:
    """The knobs that every kernel of attention has.

    Args:
      options: the names of those that `attn-configure` can be asked for.
      defaults: settings other than those of attention with S and O in tensor memory.
    """
    return tuple(
        Knob(name, defaults.get(name, default), means, name in options)
        for name, default, means in _OF_ATTENTION
    )


def half_tile_knobs(*options: str, **defaults: Setting) -> tuple[Knob, ...]:
    """The knobs of absorbed latent attention, whose tiles have 64 rows and 64 keys."""
    own: dict[str, Setting] = {"tile_m": HALF_ROWS, "q_tiles": 1, "tile_n": 64, "kv_stages": 2}
    return attention_knobs(*options, **own | {"exp2_period": 0} | defaults)


_OF_ATTENTION: tuple[tuple[str, Setting, str], ...] = (
    ("tile_m", 128, "query rows per tile: M of one product."),
    ("tile_n", 128, "key columns per tile."),
    ("kv_stages", 5, "slots of the ring of keys and values."),
    ("exp2_period", 16, "of every this many exponentials, 4 run on the FMA units; 0 for none."),
    ("exp2_start", 1, "the first of a row's four 32-column fragments with such polynomials."),
    ("rescale_threshold", 8, "growth of a maximum, in units of log2, up to which it is kept."),
    ("q_tiles", 2, "query tiles of a work tile."),
    ("packed_heads", 1, "query heads of one group whose rows share a query tile."),
    ("tile_order", "single", "the order of work tiles, as in `ws.tiles`."),
)
