"""Errors that name the arguments of a call as its caller does.

A function with another library's names passes its arguments on under ours, and a kernel has names
the arrays of a cache. The check that refuses an argument knows its internal name; the error shows
the name that the caller wrote.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any

from attn_mlir.errors import SpecError

LIKE = 0.8  # a typing error leaves this much alike; below that lie other words, schedule and scale

# Names of options in other libraries: our option, and how it is passed.
ELSEWHERE: Mapping[str, tuple[str, str]] = {
    **dict.fromkeys(("causal", "is_causal"), ("mask", "mask=am.causal()")),
    **dict.fromkeys(
        ("window_size", "sliding_window", "window_left"),
        ("mask", "mask=am.sliding_window(left, right)"),
    ),
    "attn_mask": ("mask_mod", "mask=, or mask_mod=am.mods.visible_where(array)"),
    "attn_bias": ("score_mod", "score_mod=am.mods.bias(array)"),
    "alibi_slopes": ("score_mod", "score_mod=am.mods.alibi(slopes)"),
    **dict.fromkeys(
        ("softcap", "soft_cap", "logits_soft_cap"), ("score_mod", "score_mod=am.mods.softcap(cap)")
    ),
    **dict.fromkeys(("softmax_scale", "sm_scale"), ("scale", "scale=")),
    **dict.fromkeys(("return_softmax_lse", "return_attn_probs"), ("return_lse", "return_lse=True")),
    **dict.fromkeys(("learnable_sink", "s_aux"), ("sinks", "sinks=")),
    **dict.fromkeys(
        ("page_table", "block_table", "block_tables"), ("v", "am.PagedKV(...) in the place of k")
    ),
    "dropout_p": ("mask", "nothing, as there is no dropout"),
    "enable_gqa": ("mask", "nothing, as k and v may have fewer heads"),
}


def check_options(function: Callable[..., Any], options: Mapping[str, object]) -> None:
    """Refuses options that a function does not have, and says what to pass in their place.

    Raises:
      TypeError: as Python's, with that hint.
    """
    import difflib  # imported here, as only a mistake needs it

    parameters = inspect.signature(function).parameters
    for name in options:
        if name in parameters:
            continue
        ours, how = ELSEWHERE.get(name, ("", ""))
        if ours not in parameters:
            near = difflib.get_close_matches(name, parameters, n=1, cutoff=LIKE)
            how = f"{near[0]}=" if near else ""
        what = f"{function.__name__}() got an unexpected keyword argument {name!r}"
        raise TypeError(f"{what}: pass {how}" if how else what) from None


def in_words(message: str, names: Mapping[str, str]) -> str:
    """A message with the caller's names in the place of others, wherever they are whole words."""
    if not names:
        return message
    pattern = "|".join(map(re.escape, sorted(names, key=len, reverse=True)))
    return re.sub(rf"\b(?:{pattern})\b", lambda match: names[match[0]], message)


def rename(error: SpecError, names: Mapping[str, str]) -> None:
    """Puts the caller's names into an error, which is to be raised on.

    Args:
      names: the caller's name of an argument, by the name under which it was refused.
    """
    error.args = (in_words(str(error), names),)


def renamed(function: Callable[..., Any], **names: str) -> Callable[..., Any]:
    """A function whose caller has other names for its arguments.

    Its messages must not use these names as words of another meaning.

    Args:
      names: the caller's name of an argument, by the function's own.
    """

    @functools.wraps(function, updated=())
    def call(*arguments: Any, **options: Any) -> Any:
        try:
            return function(*arguments, **options)
        except SpecError as error:
            rename(error, names)
            raise

    return call
