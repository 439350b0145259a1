"""Random masks, and arithmetic over arrays of shapes: what the tests of the closed forms share."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from attn_mlir.dialect.attn.masks import (
    CausalMask,
    ChunkedMask,
    IntArith,
    Mask,
    NullMask,
    PrefixMask,
    WindowMask,
)

Array = np.ndarray[Any, Any]

SMALL = st.integers(0, 40)
LEAVES: dict[str, st.SearchStrategy[Mask]] = {
    "null": st.just(NullMask()),
    "causal": st.just(CausalMask()),
    "window-left": st.builds(lambda left: WindowMask(left, -1), SMALL),
    "window-right": st.builds(lambda right: WindowMask(-1, right), SMALL),
    "window": st.builds(WindowMask, SMALL, SMALL),
    "chunked": st.builds(ChunkedMask, st.integers(1, 40)),
    "prefix": st.builds(PrefixMask, SMALL),
}
LEAF = st.one_of(*LEAVES.values())
INTERVALS: dict[str, st.SearchStrategy[Mask]] = LEAVES | {
    "chunked-causal": st.builds(lambda size: ChunkedMask(size) & CausalMask(), st.integers(1, 40)),
    "and": st.builds(lambda a, b: a & b, LEAF, LEAF),
    "or": st.builds(lambda a, b: a | b, LEAF, LEAF),
    "and-or": st.recursive(
        LEAF,
        lambda m: st.builds(lambda a, b: a & b, m, m) | st.builds(lambda a, b: a | b, m, m),
        max_leaves=5,
    ),
}
GENERAL: dict[str, st.SearchStrategy[Mask]] = {
    "not": st.builds(lambda mask: ~mask, LEAF),
    "and-not": st.builds(lambda a, b: a & ~b, LEAF, LEAF),
    "or-not": st.builds(lambda a, b: a | ~b, LEAF, LEAF),
    "nor": st.builds(lambda a, b: ~(a | b), LEAF, LEAF),
    "all": st.recursive(
        LEAF,
        lambda m: st.one_of(
            st.builds(lambda a, b: a & b, m, m),
            st.builds(lambda a, b: a | b, m, m),
            st.builds(lambda a: ~a, m),
        ),
        max_leaves=6,
    ),
}
ANY_MASK = st.one_of(*INTERVALS.values(), *GENERAL.values())


class ArrayArith(IntArith):
    """`Arith` over arrays, an element per shape; notices a promise to emitters that is not kept."""

    def floordiv(self, a: Any, b: Any, /) -> Any:
        assert np.all(np.asarray(a) >= 0) and np.all(np.asarray(b) > 0)
        return a // b

    def ceildiv(self, a: Any, b: Any, /) -> Any:
        assert np.all(np.asarray(a) >= 0) and np.all(np.asarray(b) > 0)
        return -(-a // b)

    def max(self, a: Any, b: Any, /) -> Any:
        return np.maximum(a, b)

    def min(self, a: Any, b: Any, /) -> Any:
        return np.minimum(a, b)

    def both(self, a: Any, b: Any, /) -> Any:
        return np.asarray(a) & np.asarray(b)

    def either(self, a: Any, b: Any, /) -> Any:
        return np.asarray(a) | np.asarray(b)

    def negation(self, a: Any, /) -> Any:
        return np.logical_not(a)


ARRAYS = ArrayArith()
