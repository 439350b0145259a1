"""LSE as other libraries return it: with the weight of a sink, or with another number where there
are no keys.

Both are computed by the library of the arrays, on the stream that the kernel was launched on.
"""

from __future__ import annotations

import math
import sys
from typing import Any

from attn_mlir.arrays import on_stream
from attn_mlir.library import library_of


def with_sinks(lse: Any, sinks: Any, stream: object | None = None) -> Any:
    """LSE that counts a logit per head, ln(e^LSE + e^sink): of a query without keys it is the sink.

    Args:
      lse: [..., heads, rows] f32, natural logarithms.
      sinks: [heads] of any float type, of the same library.
      stream: that `lse` is written on, where the caller named one.
    """
    library = library_of(lse)
    module: Any = sys.modules[library]
    with on_stream(stream, lse):
        wide = sinks.float() if library == "torch" else sinks.astype("float32")
        return module.logaddexp(lse, wide[:, None])


def mark_without_keys(lse: Any, stream: object | None = None) -> None:
    """Puts FlashMLA's LSE of a query without keys, +inf, in the place of ours, -inf.

    Args:
      lse, stream: as of `with_sinks`; changed in place.
    """
    with on_stream(stream, lse):
        lse[lse == -math.inf] = math.inf
