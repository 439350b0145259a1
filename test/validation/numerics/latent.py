"""Problems of latent attention before absorption: sequences, how they are stored, and their judge."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

import attn_mlir as am
from attn_mlir.dialect.attn.latent.columns import ROPE_COLUMNS, ROW_COLUMNS
from attn_mlir.dialect.attn.latent.formats import FORMATS, PLAIN, LatentFormat
from attn_mlir.reference import compare, mla_f64, mla_yardstick
from attn_mlir.runtime.kernel import DeviceChoice
from attn_mlir.validation.numerics.operands import inside
from attn_mlir.validation.numerics.stored import Form

Array = npt.NDArray[Any]

SCALE = 192**-0.5
E4M3 = ml_dtypes.float8_e4m3fn
NAMES = ("q_nope", "q_rope", "k_nope", "k_rope", "v")


ALONE = "alone"
NAN_BYTE = 0xFF
FACTORS = "k_rope_descale"
ROWS = ("q_descale", "k_descale")


@dataclass(frozen=True)
class NarrowRope:
    """Rope of keys in e4m3.

    Attributes:
      exponents: between which two powers of 10 the factors of positions are, and those of the elements
        of rope of q the other way round; None for no factors.
      dtype: of factors in a cache.
    """

    exponents: tuple[float, float] | None = None
    dtype: Any = np.float32

    def of(self, one: dict[str, Array], random: np.random.Generator) -> dict[str, Array]:
        """The operands of a sequence, of which k_rope is stored so, with its factors [sk, 1, 1]."""
        rope = one["k_rope"].astype(np.float32)
        if self.exponents is None:
            return one | {"k_rope": rope.astype(E4M3)}
        low, high = self.exponents
        factors = 10 ** random.uniform(low, high, (len(rope), 1, 1))
        queries = one["q_rope"].astype(np.float32) * 10 ** -((low + high) / 2)
        changed = {"q_rope": queries.astype(one["q_rope"].dtype), "k_rope": rope.astype(E4M3)}
        return one | changed | {FACTORS: factors.astype(self.dtype)}


@dataclass(frozen=True)
class RowFactors:
    """Operands of e4m3, with factors of their rows and of values.

    Attributes:
      queries, keys, values: powers of 10 around which the factors are.
      spread: by how many powers at most those of one operand differ.
      per_head: whether each head of q has its own.
    """

    queries: float = 0.0
    keys: float = 0.0
    values: float = 0.0
    spread: float = 1.0
    per_head: bool = True

    def of(self, one: dict[str, Array], random: np.random.Generator) -> dict[str, Array]:
        """The operands of a sequence, with factors [sq, heads] or [sq], and [sk]."""

        def factors(power: float, *shape: int) -> Array:
            spread = random.uniform(-self.spread / 2, self.spread / 2, shape)
            return (10 ** (power + spread)).astype(np.float32)

        sq, heads, _ = one["q_nope"].shape
        shape = (sq, heads) if self.per_head else (sq,)
        rows = factors(self.queries, *shape), factors(self.keys, len(one["k_nope"]))
        return one | dict(zip(ROWS, rows, strict=True))

    def of_values(self, batch: int, heads: int) -> Array:
        """Those of v, [batch, heads]."""
        powers = self.values + 0.1 * np.arange(batch * heads).reshape(batch, heads)
        return (10**powers).astype(np.float32)


@dataclass(frozen=True)
class LatentProblem:
    """A call of `mla`; whatever no position holds is NaN, and so are the latent columns of a cache.

    Attributes:
      queries, keys: of each sequence.
      ragged: the sides that are rows of one tensor: of `q` and `k`. Queries of unequal lengths have
        to be.
      cache: form of the latent cache that holds rope; None for a tensor. Keys of unequal lengths that
        are not ragged are told by its `seqused`, or else by `seqused_k`.
      stored: `kv_format` of the cache, or "alone" where its rows have rope's columns alone.
      spare: positions of the cache behind each sequence's keys, where these are ragged.
      heads: of queries, and of k_nope and v.
      sizes: columns of nope, rope and v.
      magnitude: of the elements of q.
      is_inside: whether tensors are parts of larger ones.
      rope: how k_rope is stored, if not as the other operands.
      factors: of operands of e4m3; None for others.
      wide_rope: whether rope of q and k has bf16 beside operands of e4m3.
      options: of `mla` and of the reference; `call` of the former alone.
      device: of `EmulatorDevice`.
      seed: of the numbers.
    """

    queries: tuple[int, ...] = (150,)
    keys: tuple[int, ...] = (200,)
    ragged: str = ""
    cache: Form | None = None
    stored: str = PLAIN
    spare: int = 0
    heads: tuple[int, int] = (1, 1)
    sizes: tuple[int, int, int] = (128, 64, 128)
    dtype: Any = ml_dtypes.bfloat16
    magnitude: float = 1.0
    is_inside: bool = False
    rope: NarrowRope | None = None
    factors: RowFactors | None = None
    wide_rope: bool = False
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    call: dict[str, Any] = field(default_factory=dict[str, Any])
    device: dict[str, Any] = field(default_factory=dict[str, Any])
    seed: int = 0

    def sequences(self) -> list[dict[str, Array]]:
        """The operands of each sequence, [positions, heads, columns]."""
        random = np.random.default_rng(self.seed)
        (heads, kv_heads), (nope, rope, values) = self.heads, self.sizes
        of_rope = ml_dtypes.bfloat16 if self.wide_rope else self.dtype

        def normal(*shape: int) -> Array:
            return random.standard_normal(shape).astype(np.float32)

        found = [
            {
                "q_nope": (self.magnitude * normal(sq, heads, nope)).astype(self.dtype),
                "q_rope": (self.magnitude * normal(sq, heads, rope)).astype(of_rope),
                "k_nope": normal(sk, kv_heads, nope).astype(self.dtype),
                "k_rope": normal(sk, 1, rope).astype(of_rope),
                "v": normal(sk, kv_heads, values).astype(self.dtype),
            }
            for sq, sk in zip(self.queries, self.keys, strict=True)
        ]
        made = self.rope or self.factors
        return found if made is None else [made.of(one, random) for one in found]

    def call_of(self, sequences: list[dict[str, Array]]) -> tuple[dict[str, Any], dict[str, Any]]:
        """The operands of the call as they are stored, and what tells their lengths."""
        told: dict[str, Any] = {}
        operands: dict[str, Any] = {}
        if self.factors is not None:
            told["v_descale"] = self.factors.of_values(len(sequences), self.heads[1])
        for name in [x for x in (*NAMES, FACTORS, *ROWS) if x in sequences[0]]:
            side = name[0] if name != "v" else "k"
            parts = [one[name] for one in sequences]
            if name == FACTORS:
                parts = [part[:, 0, 0] for part in parts]
            if side in self.ragged:
                ends = np.cumsum([0, *(len(part) for part in parts)])
                told[f"cu_seqlens_{side}"] = ends.astype(np.int32)
                operands[name] = np.concatenate(parts)
            else:
                operands[name] = _padded(parts)
            if self.is_inside and name in NAMES:
                operands[name] = inside(operands[name])
        if len(set(self.keys)) > 1 and "k" not in self.ragged and self.cache is None:
            told["seqused_k"] = np.array(self.keys, np.int32)
        if self.cache is not None:
            operands["k_rope"] = self._cached(sequences)
            operands.pop(FACTORS, None)
        return operands, told

    def _cached(self, sequences: list[dict[str, Array]]) -> am.PagedKV | am.ContiguousKV:
        """The latent cache that holds the rope of all sequences."""
        assert self.cache is not None
        rows: list[Array] = []
        for one in sequences:
            rope = one["k_rope"]
            columns = ROPE_COLUMNS if self.stored == ALONE else ROW_COLUMNS
            row = np.full((len(rope) + self.spare, 1, columns), np.nan, rope.dtype)
            row[: len(rope), :, -ROPE_COLUMNS:] = rope
            rows.append(row)
        fields: dict[str, Any] = {}
        if FACTORS in sequences[0]:
            spare = np.full((self.spare, 1, 1), np.nan)
            factors = [
                np.concatenate([x[FACTORS], spare.astype(x[FACTORS].dtype)]) for x in sequences
            ]
            fields = {"k_scale": factors, "v_scale": factors}
        room = max(max(self.keys) + self.spare, 1)
        size = max(self.cache.page_size, 1)
        random = np.random.default_rng(self.seed)
        new = list(self.queries)
        if self.stored in FORMATS:
            rows = [_packed(row, FORMATS[self.stored]) for row in rows]
        made = self.cache.stored(rows, rows, new, random, -(-room // size) * size, **fields)
        if self.stored in FORMATS:
            made = _in_pages(made, FORMATS[self.stored])
        values = "v_pages" if isinstance(made, am.PagedKV) else "v"
        return dataclasses.replace(made, **{values: None, "v_scale": None})

    def run(self) -> tuple[Array, Array]:
        """O and LSE on the emulator.

        Raises:
          AssertionError: an element is wrong.
        """
        return self.run_of(self.sequences(), am.EmulatorDevice(**self.device))

    def run_of(
        self, sequences: list[dict[str, Array]], device: DeviceChoice
    ) -> tuple[Array, Array]:
        """O and LSE of sequences with these lengths on any device; raises as `run`."""
        o, lse = self.launched(sequences, device)
        wrong = self.wrong(sequences, o, lse)
        assert not wrong, wrong
        return o, lse

    def launched(
        self, sequences: list[dict[str, Array]], device: DeviceChoice
    ) -> tuple[Array, Array]:
        """O and LSE, not judged."""
        operands, told = self.call_of(sequences)
        if self.stored in FORMATS:
            told["kv_format"] = self.stored
        options = {"scale": SCALE, **self.options, **self.call, **told}
        return am.mla(**operands, return_lse=True, device=device, **options)

    def wrong(self, sequences: list[dict[str, Array]], o: Array, lse: Array) -> str:
        """What is wrong with the first sequence that is, or nothing; every element is judged."""
        options = {"scale": SCALE, **self.options}
        rows = np.cumsum([0, *self.queries])
        for number, one in enumerate(sequences):
            place: tuple[Any, ...] = (number,)
            of_lse: tuple[Any, ...] = (number,)
            if "q" in self.ragged:
                span = slice(rows[number], rows[number + 1])
                place, of_lse = (span,), (slice(None), span)
            single = {name: array[None] for name, array in one.items()}
            if FACTORS in single:
                single[FACTORS] = single[FACTORS][..., 0, 0]
            if self.factors is not None:
                table = self.factors.of_values(len(sequences), self.heads[1])
                single["v_descale"] = table[number : number + 1]
            truth = mla_f64(**single, **options)
            yardstick = mla_yardstick(**single, **options, out_dtype=o.dtype)
            verdict = compare(o[place][None], lse[of_lse][None], truth, yardstick)
            if not verdict.ok:
                return f"sequence {number}: {verdict}"
        return ""


def _packed(rows: Array, form: LatentFormat) -> Array:
    """Rows [positions, 1, 576] of bf16 as bytes of that format, with NaN wherever no rope is."""
    found = np.full((*rows.shape[:2], form.row_bytes), NAN_BYTE, np.uint8)
    rope = np.ascontiguousarray(rows[..., -ROPE_COLUMNS:]).view(np.uint8)
    found[..., form.wide_at : form.wide_at + rope.shape[-1]] = rope
    return found


def _in_pages(
    made: am.PagedKV | am.ContiguousKV, form: LatentFormat
) -> am.PagedKV | am.ContiguousKV:
    """A cache of bytes, with what its pages have behind their rows."""
    if form.row_bytes == form.token_bytes or not isinstance(made, am.PagedKV):
        return made
    pages, page = made.k_pages.shape[:2]
    whole = np.full((pages, page * form.token_bytes), NAN_BYTE, np.uint8)
    whole[:, : page * form.row_bytes] = made.k_pages.reshape(pages, -1)
    return dataclasses.replace(made, k_pages=whole.reshape(pages, page, 1, form.token_bytes))


def _padded(parts: list[Array]) -> Array:
    """[batch, most positions, heads, columns], NaN behind the shorter ones."""
    most = max(len(part) for part in parts)
    whole = np.full((len(parts), most, *parts[0].shape[1:]), np.nan, parts[0].dtype)
    for row, part in zip(whole, parts, strict=True):
        row[: len(part)] = part
    return whole
