"""The rings of keys and values of latent attention, whose tiles are of different sizes.

```text
one ring     kv    [tile_n, max(nope + rope, v_head_dim)]   K(0) V(0) K(1) V(1) ...
two rings    k     [tile_n, nope + rope]                    K(0) K(1) ...
             v     [tile_n, v_head_dim]                     V(0) V(1) ...
rope apart   kv    [tile_n, max(nope, v_head_dim)]          nope(0) V(0) nope(1) V(1) ...
             rope  [tile_n, rope]                           rope(0) rope(1) ...
```
In one ring a tile of values leaves columns of its slot empty. Two rings have equally many slots, so
the sum is even; the available shared memory decides which variant has more (`policy.RingSlots`).
With a rope ring scores are two products, the second of which accumulates; lines of a slot of rope
are as long as its rows, if these have up to 64 bytes. Rope of 8 bits under 16 always has such a
ring, which helper warps fill (`fp8_rope`).
"""

from attn_mlir.dialect import ws
from attn_mlir.dialect.targets.limits import LINE_BYTES, line_of_rows
from attn_mlir.schedules import emit as b
from attn_mlir.schedules.attention.tensor_memory.storage import Stages, Storage, values_ring
from attn_mlir.schedules.core.problem import Problem
from attn_mlir.schedules.core.tile_rows import columns_of, element_of
from attn_mlir.schedules.sources.key_slots import KeySlots, KeyStage, stage_columns, staged_ring
from attn_mlir.schedules.sources.row_scales import RowScales


class LatentStorage(Storage):
    """As `Storage`, with a ring of rope."""

    def __init__(
        self,
        problem: Problem,
        rope_stages: int,
        stages: Stages,
        scales: RowScales | None = None,
        *,
        is_widened: bool = False,
    ):
        """With `rope_stages` slots of rope; helper warps fill them in 128-byte lines if
        `is_widened`.
        """
        self._rope_stages, self._is_widened = rope_stages, is_widened
        super().__init__(problem, stages, scales)

    def _stage_columns(self, problem: Problem) -> list[range]:
        nope = columns_of(problem.k)
        return [*stage_columns(problem, nope, self.stages.qk), range(nope, problem.columns)]

    def _keys_and_values(
        self, problem: Problem, stage_ranges: list[range]
    ) -> tuple[KeySlots, b.Ring]:
        config, (*nope_parts, rope) = problem.config, stage_ranges
        tiles, values = config.kv_stages, config.kv_stages // 2
        if len(nope_parts) > 1:
            v = values_ring(problem, values)
            keys = staged_ring(problem, "k", nope_parts, tiles=tiles - values)
        else:
            shape = [config.tile_n, max(rope.start, problem.v_columns)]
            v = b.Ring("kv", b.tile(shape, problem.element, "shared"), stages=tiles)
            keys = [KeyStage(v, nope_parts[0])]
        columns, element = columns_of(problem.q[-1]), element_of(problem.q[-1])
        line = LINE_BYTES if self._is_widened else line_of_rows(columns, ws.element_bits(element))
        kind = b.tile([config.tile_n, columns], element, "shared", line)
        self.rope = b.Ring("rope", kind, stages=self._rope_stages)
        keys.append(KeyStage(self.rope, rope, is_rope=True))
        filled = len(nope_parts) if self._is_widened else len(stage_ranges)
        at_once = 1 if len(nope_parts) > 1 else len(stage_ranges)
        return KeySlots(problem, keys, filled=filled, at_once=at_once), v


class TwoRings(Storage):
    """As `Storage`, with a ring of keys and one of values."""

    def __init__(
        self,
        problem: Problem,
        value_stages: int,
        stages: Stages,
        scales: RowScales | None = None,
    ):
        """With `value_stages` slots of values; other arguments are as of `Storage`."""
        self._value_stages = value_stages
        super().__init__(problem, stages, scales)

    def _keys_and_values(
        self, problem: Problem, stage_ranges: list[range]
    ) -> tuple[KeySlots, b.Ring]:
        keys = staged_ring(problem, "k", stage_ranges, tiles=problem.config.kv_stages)
        return KeySlots(problem, keys), values_ring(problem, self._value_stages)
