"""From `attn.mla` to a `ws.kernel`: the kernel of `mha` over keys of two tensors.

Roles, rings and the order of products are those of `mha`; only what fills the slots of Q and K
differs. A slot of Q is filled from q_nope and q_rope, a slot of K from k_nope and k_rope, each with
one barrier that counts the bytes of all its copies:

```text
q  [128, nope + rope]     | q_nope | q_rope |     once for each query tile
kv [tile_n, nope + rope]  | k_nope | k_rope |     one product of depth nope + rope
kv [tile_n, v_head_dim]   | v |                   in the front of a slot of the same ring
```
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from attn_mlir.dialect import attn, ws
from attn_mlir.passes.infrastructure.diagnostics import op_error
from attn_mlir.passes.schedule.entries import CONFIG
from attn_mlir.passes.schedule.kernels.mha import emit_roles
from attn_mlir.passes.schedule.kernels.mha_config import MhaConfig, Options, chosen_config
from attn_mlir.passes.schedule.parts.attention import KEY_DIMS, OUTPUT_DIMS, QUERY_DIMS, opened
from attn_mlir.passes.schedule.parts.factors import Factors
from attn_mlir.passes.schedule.parts.latent import (
    Common,
    LatentKV,
    Rope,
    RopePages,
    RopeRows,
)
from attn_mlir.passes.schedule.parts.modifier import Unmodified
from attn_mlir.passes.schedule.parts.operands import (
    are_alike,
    check_alike,
    check_pages,
    check_queries,
    check_rows,
    first_column,
    is_part_of_rows,
    page_size_of,
    pages_of,
    sequences_of,
)
from attn_mlir.passes.schedule.parts.paged_rows import PagedRows
from attn_mlir.passes.schedule.parts.problem import Problem
from attn_mlir.passes.schedule.parts.storage import Storage
from attn_mlir.passes.schedule.parts.visited import KeyTiles
from attn_mlir.passes.schedule.registry import register
from attn_mlir.passes.target.limits import Target
from attn_mlir.passes.target.tiling import PAGE_SIZES, key_tiles_for

ELEMENT_TYPES = ("bf16", "f16")
LINE_BYTES = 128  # of a tile's columns, which lie together; the parts of a slot begin with one
STEP_BYTES = 32  # depth of one product of the tensor core
CACHE_DIMS = {4: ("rows", "positions", "", "")}  # of k_rope, where it is a cache without pages
TENSOR_DIMS = {
    "q_nope": QUERY_DIMS,
    "q_rope": QUERY_DIMS,
    "k_nope": KEY_DIMS,
    "k_rope": KEY_DIMS,
    "v": KEY_DIMS,
    **OUTPUT_DIMS,
}


@register
class MlaTensor:
    """Latent attention before absorption, with S and O in tensor memory."""

    name: ClassVar[str] = "mla"
    operation: ClassVar[type[Any]] = attn.MlaOp
    options: ClassVar[type[Any]] = Options

    def lacks(self, target: Target) -> str:
        """Tensor memory, for which this kernel divides its roles."""
        return "" if target.accumulator == "tensor" else "products that accumulate in tensor memory"

    def takes(self, op: attn.MlaOp, target: Target) -> bool:
        """Any."""
        return True

    def configure(self, op: attn.MlaOp, target: Target, options: Mapping[str, Any]) -> None:
        """Stores the configuration of an attention of nope + rope columns as `attn.config`.

        Raises:
          VerifyError: an operation without a kernel, or a configuration that cannot be.
        """
        _refuse_unsupported(op)
        wishes, page_size = Options(**options), page_size_of(op.k_rope)
        config = chosen_config(op, target, wishes, queries=op.q_nope, page_size=page_size)
        op.attributes[CONFIG] = config.to_attr()

    def build(self, function: Any, op: attn.MlaOp, target: Target) -> ws.KernelOp:
        """Builds the kernel of a function of one such operation, which has `attn.config`.

        Raises:
          VerifyError: the function computes something else as well, or the operation has no
            configuration, or operands whose storage has no code.
        """
        _check_storage(op)
        dims = TENSOR_DIMS | {"k_rope": CACHE_DIMS if _has_own_sequences(op) else KEY_DIMS}
        with opened(function, op, dims, MhaConfig) as (kernel, tensors, captured, config):
            keys = sequences_of(op.k_nope, tensors["k_nope"], captured)
            rope = sequences_of(op.k_rope, tensors["k_rope"], captured)
            problem = Problem(
                q=(tensors["q_nope"], tensors["q_rope"]),
                k=tensors["k_nope"],
                v=tensors["v"],
                o=tensors["o"],
                lse=tensors["lse"],
                scale=tensors["scale"],
                parts=None,
                query_sequences=sequences_of(op.q_nope, tensors["q_nope"], captured),
                key_sequences=Common(keys, rope) if _has_own_sequences(op) else keys,
                factors=Factors(None, None, None),
                position_factors=None,
                heads=op.heads,
                kv_heads=op.kv_heads,
                head_dim=op.head_dim,
                v_head_dim=op.v_head_dim,
                element=op.element_type,
                stored=op.element_type,
                output=op.output_type,
                mask=op.mask_rule,
                modifier=Unmodified(),
                visited=KeyTiles,
                config=config,
            )
            source = LatentKV(problem, _rope(op, tensors["k_rope"], captured, config.tile_n))
            emit_roles(problem, config, Storage(problem), source)
        return kernel


def _rope(op: attn.MlaOp, tensor: Any, captured: Mapping[Any, Any], tile_n: int) -> Rope:
    """Where the columns that all heads share come from."""
    column = first_column(op.k_rope)
    if (pages := pages_of(op.k_rope, tensor, captured)) is not None:
        return RopePages(PagedRows(pages, tile_n, first_column=column))
    own = sequences_of(op.k_rope, tensor, captured) if _has_own_sequences(op) else None
    return RopeRows(tensor, column, own)


def _has_own_sequences(op: attn.MlaOp) -> bool:
    """Whether k_rope lies in a cache, and not as k_nope does."""
    ranks = {attn.stored_type(x).rank for x in (op.k_nope, op.k_rope)}
    return len(ranks) > 1 or is_part_of_rows(op.k_rope) or not are_alike(op.k_nope, op.k_rope)


def _check_storage(op: attn.MlaOp) -> None:
    """Refuses storage that the schedule has no source for.

    Raises:
      VerifyError: nope and rope of queries, or k_nope and v, lie differently, or in pages.
    """
    check_alike(op, q_nope=op.q_nope, q_rope=op.q_rope)
    check_alike(op, k_nope=op.k_nope, v=op.v)
    check_queries(op, "q_nope", op.q_nope)
    check_pages(op, op.k_rope)
    if page_size_of(op.k_nope):
        raise op_error(op, "expects k_nope and v as tensors, not in pages")
    for name in ("q_nope", "q_rope", "k_nope", "v"):
        check_rows(op, name)


def _refuse_unsupported(op: attn.MlaOp) -> None:
    """Raises VerifyError for a legal `attn.mla` that the kernel does not compute."""
    element = str(op.element_type)
    if element not in ELEMENT_TYPES:
        allowed = " and ".join(ELEMENT_TYPES)
        raise op_error(op, f"has no kernel for {element} elements: supported are {allowed}")
    bits = ws.element_bits(op.element_type)
    for name, count, unit in (
        ("nope", op.nope_dim, LINE_BYTES * 8 // bits),
        ("rope", op.rope_dim, STEP_BYTES * 8 // bits),
    ):
        if count % unit:
            raise op_error(
                op, f"has no kernel for {name} of {count}: supported are multiples of {unit}"
            )
    page_size = page_size_of(op.k_rope)
    if not key_tiles_for(page_size):
        raise op_error(op, f"has no kernel for pages of {page_size}: supported are {PAGE_SIZES}")
