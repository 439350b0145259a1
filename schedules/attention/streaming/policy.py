"""What the schedules for few queries ask alike of an operation and of its configuration."""

import dataclasses
from collections.abc import Sequence

from attn_mlir.dialect import attn
from attn_mlir.dialect.diagnostics import op_error
from attn_mlir.schedules.core.config import Config
from attn_mlir.schedules.operands.storage import is_ragged, page_size_of
from attn_mlir.schedules.policy.tiling import STREAM_KEYS, key_tiles_for


def refuse_other_keys(op: attn.MhaOp, keys: int) -> None:
    """Raises VerifyError for an operation whose keys are not visited in tiles of `keys`, in order."""
    if op.blocks:
        raise op_error(op, "has no kernel for lists of blocks: its key tiles are walked in order")
    if op.join is not None and (part := op.join.part_keys or 0) % STREAM_KEYS:
        raise op_error(op, f"expects attn.part_keys in steps of {STREAM_KEYS}, got {part}")
    if keys not in key_tiles_for(page := page_size_of(op.k)):
        raise op_error(op, f"has no kernel for pages of {page}: key tiles are of {keys}")


def chosen_order(op: attn.MhaOp) -> str:
    """The order of work tiles where none is asked for."""
    return "ragged" if is_ragged(op.q) else "persistent"


def check_config(
    op: attn.MhaOp,
    config: Config,
    default: Config,
    free: Sequence[str],
    *,
    least_stages: int = 2,
) -> None:
    """Raises VerifyError for a configuration that no kernel for few queries can have.

    Shared memory is not checked here: the planner has the buffers and names them.

    Args:
      default: the configuration that this one may differ from in the fields that `free` names.
      least_stages: slots of K and V that its roles need.
    """
    for field in dataclasses.fields(default):
        want, got = getattr(default, field.name), getattr(config, field.name)
        if field.name not in free and want != got:
            raise op_error(op, f"expects {field.name} of {want}, got {got}")
    if config.kv_stages < least_stages:
        raise op_error(op, f"expects at least {least_stages} kv_stages, got {config.kv_stages}")
    group, packed, rows = op.heads // op.kv_heads, config.packed_heads, config.tile_m
    if not 1 <= packed <= rows or group % packed:
        raise op_error(op, f"expects packed_heads to divide {group}, up to {rows}, got {packed}")
    allowed = ["single", "last_first", "persistent", *(["ragged"] if is_ragged(op.q) else [])]
    if config.tile_order not in allowed:
        names = ", ".join(allowed)
        raise op_error(op, f"expects tile_order of {names}, got {config.tile_order}")
