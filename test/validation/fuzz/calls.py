"""Calls of the public functions with drawn arguments: good ones of unusual types and layouts, and bad ones.

A call ends in a result that the reference agrees with, or in a refusal. What has to be refused is:
if it is taken, or if a good call is refused, or anything but a typed error comes out, the case has
failed. A refused call leaves its operands and outputs as they were. Problems are small, and few
kernels serve all.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import ml_dtypes
import numpy as np

import attn_mlir as am
from attn_mlir import flash, mods
from attn_mlir.errors import AttnError, LaunchError
from attn_mlir.flash.table import BY_NAME, NEUTRAL
from attn_mlir.reference import check_attention
from attn_mlir.validation.fuzz import call_values as draw
from attn_mlir.validation.fuzz.call_values import BF16, Given
from attn_mlir.validation.fuzz.fuzz_limits import time_limit

COUNT = 500
LIMIT_SECONDS = 60  # of one case; compiling and emulating a kernel takes a few
HEADS, KV_HEADS, DIM = 2, 1, 64
LONGEST_MESSAGE = 1000

Changes = Mapping[str, Callable[[], Given]]
Judge = Callable[[Any, dict[str, Any]], None]


def attempt(number: int) -> str:
    """Runs a case; returns what became of it in a line.

    Raises:
      AssertionError: a wrong result, or a call that should have been refused, or should not.
      Exception: whatever else came out.
    """
    rng = random.Random(f"calls:{number}")
    with time_limit(LIMIT_SECONDS):
        return rng.choices(list(FORMS), list(FORMS.values()))[0](rng)


def _try(
    rng: random.Random,
    function: Callable[..., Any],
    plain: Mapping[str, Any],
    changes: Changes,
    judge: Judge,
) -> str:
    """A call with some arguments changed, and what is to be said of its end.

    Args:
      function: takes the arguments by name.
      plain: arguments of a good call.
      changes: draws others, by name, in the order in which they depend on each other.
      judge: raises AssertionError unless a result is that of the plain meaning of the arguments.
    """
    count = rng.choice([0, 1, 1, 1, 1, 2, 3])
    chosen = set(rng.sample(list(changes), min(count, len(changes))))
    given = {name: Given(value, value) for name, value in plain.items()}
    for name, change in changes.items():
        if name in chosen:
            given[name] = change()
    odd = ", ".join(f"{name}: {given[name].text}" for name in changes if name in chosen)
    verdicts = {argument.verdict for argument in given.values()}
    arrays = [
        argument.value for argument in given.values() if isinstance(argument.value, np.ndarray)
    ]
    kept = [array.copy() for array in arrays]
    try:
        result = function(**{name: argument.value for name, argument in given.items()})
    except LaunchError:
        raise
    except AttnError as error:
        text = str(error)
        assert verdicts & {"wrong", "either"}, f"refused: {text} ({odd})"
        assert text and "\n" not in text and len(text) <= LONGEST_MESSAGE, f"message {text!r}"
        for array, before in zip(arrays, kept, strict=True):
            assert _same(array, before), f"refused, but something was written ({odd})"
        return f"refused: {type(error).__name__}: {text} ({odd})"
    assert "wrong" not in verdicts, f"accepted ({odd})"
    meaning = {name: argument.plain for name, argument in given.items()}
    if given.get("out") is not None and given["out"].value is not None:
        assert (result[0] if isinstance(result, tuple) else result) is given["out"].value, odd
    try:
        judge(result, meaning)
    except AssertionError as error:
        raise AssertionError(f"{error} ({odd})") from error
    return f"right ({odd})" if odd else "right"


def _same(array: Any, other: Any) -> bool:
    return array.dtype == object or array.tobytes() == other.tobytes()


def _normal(rng: random.Random, *shape: int, dtype: Any = np.float16) -> Any:
    numbers = np.random.default_rng(rng.getrandbits(32))
    return numbers.standard_normal(shape).astype(dtype)


def _host(array: Any) -> Any:
    """A result as a numpy array."""
    return array if isinstance(array, np.ndarray) else np.asarray(array)


# ---- attention


def _operands(rng: random.Random, batch: int, sq: int, sk: int, dtype: Any) -> dict[str, Any]:
    shapes = {"q": (batch, sq, HEADS, DIM), "k": (batch, sk, KV_HEADS, DIM)}
    shapes["v"] = shapes["k"]
    return {
        name: _normal(rng, *shape, dtype=np.float32).astype(dtype) for name, shape in shapes.items()
    }


def _changes(rng: random.Random, plain: dict[str, Any], seen: dict[str, Any]) -> Changes:
    """How the arguments that all calls of attention have may look.

    Args:
      seen: is filled with the operands that are passed, so that an output may touch one.
    """

    def operand(name: str) -> Callable[[], Given]:
        def change() -> Given:
            given = draw.operand(rng, plain[name])
            seen[name] = given.value
            return given

        return change

    def out() -> Given:
        shape, dtype = plain["q"].shape, plain["q"].dtype
        return draw.output(rng, shape, BF16 if dtype.itemsize == 1 else dtype, list(seen.values()))

    seen.update({name: plain[name] for name in "qkv"})
    return {
        **{name: operand(name) for name in "qkv"},
        "scale": lambda: draw.number(rng, rng.choice([0.125, 0.5, 2.0])),
        "return_lse": lambda: draw.flag(rng, bool(plain["return_lse"])),
        "num_splits": lambda: draw.integer(rng, plain["num_splits"], 257),
        "query_tiles": lambda: draw.integer(rng, 1, 0, 3),
        "device": lambda: draw.device(rng, rng.randrange(1000)),
        "out": out,
    }


def _plain(rng: random.Random, dtype: Any, **changes: Any) -> dict[str, Any]:
    batch, sq, sk = rng.randint(1, 2), rng.randint(1, 40), rng.randint(1, 60)
    return {
        **_operands(rng, batch, sq, sk, dtype),
        "mask": am.full(), "scale": None, "return_lse": False, "num_splits": 1, "query_tiles": None,
        "device": "emulator", "out": None, **changes,
    }  # fmt: skip


def _judge_dense(result: Any, meaning: dict[str, Any]) -> None:
    o, lse = result if meaning["return_lse"] else (result, None)
    options = {
        name: meaning[name]
        for name in ("score_mod", "sinks", "q_descale", "k_descale", "v_descale")
        if meaning.get(name) is not None
    }
    verdict = check_attention(
        meaning["q"], meaning["k"], meaning["v"], _host(o), None if lse is None else _host(lse),
        mask=meaning["mask"], scale=meaning["scale"], **options,
    )  # fmt: skip
    assert verdict.ok, str(verdict)


def _dense(rng: random.Random) -> str:
    """Sequences of one length: three kernels, and one in parts."""
    dtype, mask, lse, splits = rng.choice([
        (np.float16, am.full(), False, 1),
        (np.float16, am.causal(), True, 1),
        (ml_dtypes.bfloat16, am.causal(), False, 1),
        (np.float16, am.full(), True, 2),
    ])  # fmt: skip
    plain = _plain(rng, dtype, mask=mask, return_lse=lse, num_splits=splits)
    changes = dict(_changes(rng, plain, {}))
    changes["mask"] = lambda: draw.mask(rng, mask)
    for name in ("stream", "out_dtype", "tile_order", "q_descale", "cache_seqlens", "block_mask"):
        changes[name] = lambda: _not_none(rng)
    for name in ("score_mod", "mask_mod", "sinks", "cu_seqlens_q", "seqused_k", "max_seqlen_q"):
        changes[name] = lambda: _not_none(rng)
    return _try(rng, am.attention, plain, changes, _judge_dense)


def _not_none(rng: random.Random) -> Given:
    while (value := draw.anything(rng)) is None or callable(value):
        continue
    return draw.wrong(value)


def _narrow(rng: random.Random) -> str:
    """8-bit operands and their factors."""
    ones: dict[str, Any] = {f"{side}_descale": np.ones(1, np.float32) for side in "qkv"}
    plain = _plain(rng, ml_dtypes.float8_e4m3fn, **ones)
    changes = dict(_changes(rng, plain, {}))

    def factor() -> Given:
        batch = len(plain["q"])
        half = np.full((batch, KV_HEADS), 0.5, np.float32)
        fine = [
            Given(half, half, "right", "a table"),
            Given(np.repeat(half, 2, 0)[::-2], half, "right", "a reversed table"),
            Given(half[0, 0, ...], half[:1], "right", "a number"),
        ]
        bad = [
            None, 0.5, half * 0, -half, half * np.nan, half * np.inf, half.astype(np.float64),
            half * np.float32(1e-38), np.ma.array(half), [0.5], half[None], np.zeros(3, np.float32),
        ]  # fmt: skip
        return rng.choice(fine) if rng.random() < 0.5 else draw.wrong(rng.choice(bad))

    for name in ones:
        changes[name] = factor
    return _try(rng, am.attention, plain, changes, _judge_dense)


def _lengths(rng: random.Random) -> str:
    """Ragged batches and used lengths."""
    plain = _plain(rng, np.float16)
    del plain["num_splits"], plain["query_tiles"]
    batch, sq, sk = len(plain["q"]), plain["q"].shape[1], plain["k"].shape[1]
    used_q = np.array([rng.randint(0, sq) for _ in range(batch)], np.int32)
    used_k = np.array([rng.randint(0, sk) for _ in range(batch)], np.int32)
    is_ragged = rng.random() < 0.5
    if is_ragged:
        used_q, used_k = np.maximum(used_q, 1), np.maximum(used_k, 1)
        ends = [
            np.concatenate([[0], np.cumsum(used)]).astype(np.int32) for used in (used_q, used_k)
        ]
        rows = [np.zeros((end[-1], 1, 1, 1)) for end in ends]
        for name, row in zip("qkv", (rows[0], rows[1], rows[1]), strict=True):
            plain[name] = _normal(rng, len(row), *plain[name].shape[2:])
        plain.update(cu_seqlens_q=ends[0], cu_seqlens_k=ends[1], mask=am.causal())
        plain.update(max_seqlen_q=int(used_q.max()), max_seqlen_k=int(used_k.max()))
    else:
        plain.update(seqused_q=used_q, seqused_k=used_k)
    changes = {
        name: change
        for name, change in _changes(rng, {**plain, "num_splits": 1}, {}).items()
        if name in plain
    }
    for name in ("cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k"):
        if name in plain:
            changes[name] = lambda name=name: draw.index_array(rng, plain[name])
    for name in ("max_seqlen_q", "max_seqlen_k"):
        if name in plain:
            good = plain[name]
            changes[name] = lambda good=good: draw.integer(rng, good, good - 1, 2**31)

    def judge(result: Any, meaning: dict[str, Any]) -> None:
        o, lse = map(_host, result) if meaning["return_lse"] else (_host(result), None)
        for b in range(batch):
            if is_ragged:
                rows, keys = (slice(*end[b : b + 2]) for end in ends)
                part = [
                    meaning["q"][None, rows],
                    *(meaning[x][None, keys] for x in "kv"),
                    o[None, rows],
                ]
                sums = None if lse is None else lse[None, :, rows]
            else:
                rows, keys = np.s_[b : b + 1, : used_q[b]], np.s_[b : b + 1, : used_k[b]]
                part = [meaning["q"][rows], meaning["k"][keys], meaning["v"][keys], o[rows]]
                sums = None if lse is None else lse[b : b + 1, :, : used_q[b]]
            verdict = check_attention(*part, sums, mask=meaning["mask"], scale=meaning["scale"])
            assert verdict.ok, f"sequence {b}: {verdict}"

    return _try(rng, am.attention, plain, changes, judge)


# ---- FlashAttention's names


def _flash(rng: random.Random) -> str:
    """Packed and unpacked, with arguments that ask for nothing, or for something."""
    batch, length = rng.randint(1, 2), rng.randint(1, 40)
    packed = _normal(rng, batch, length, 3, KV_HEADS, DIM)
    q, k, v = np.moveaxis(packed, 2, 0)
    plain: dict[str, Any] = {
        "causal": True, "softmax_scale": None, "softcap": rng.choice([0.0, 3.0]), "device": "emulator",
    }  # fmt: skip
    name, operands = rng.choice([
        ("flash_attn_func", {"q": q, "k": k, "v": v}),
        ("flash_attn_kvpacked_func", {"q": q, "kv": packed[:, :, 1:]}),
        ("flash_attn_qkvpacked_func", {"qkv": packed}),
    ])  # fmt: skip
    plain.update(operands)
    options = BY_NAME.split()
    for option in rng.sample(options, 3):
        plain[option] = rng.choice(NEUTRAL[option].values)
    changes: dict[str, Callable[[], Given]] = {
        option: lambda: draw.wrong(rng.choice(["x", 7, [1], np.ones(2), object(), -0.5]))
        for option in rng.sample(options, 3)
    }
    changes |= {operand: lambda: _not_none(rng) for operand in operands}
    changes["softmax_scale"] = lambda: draw.number(rng, 0.5)
    changes["causal"] = lambda: draw.flag(rng, True)
    changes["window_size"] = lambda: rng.choice([
        *(draw.wrong(value) for value in (5, "ab", (1,), (1, 2, 3), (1.0, 0), ("1", 0), None, (-2, 0))),
        Given((np.int64(-1), None), None, "right", "no window"),
    ])  # fmt: skip
    changes["softcap"] = lambda: draw.wrong(
        rng.choice(["3", -1.0, float("nan"), 1j, None, True, [3.0]])
    )
    changes["device"] = lambda: draw.device(rng, rng.randrange(1000))

    def judge(result: Any, meaning: dict[str, Any]) -> None:
        cap = meaning["softcap"]
        verdict = check_attention(
            q, k, v, _host(result), None, mask=am.causal(), scale=meaning["softmax_scale"],
            score_mod=mods.softcap(cap) if cap else None,
        )  # fmt: skip
        assert verdict.ok, str(verdict)

    return _try(rng, getattr(flash, name), plain, changes, judge)


# ---- kernels on memory of the caller's


def _packed(rng: random.Random) -> str:
    """Operands and outputs anywhere in one buffer: taken if and only if no output meets another tensor."""
    spec = am.mha(heads=HEADS, kv_heads=KV_HEADS, head_dim=DIM, dtype="f16", mask=am.causal(), query_tiles=1)  # fmt: skip
    kernel = am.Kernel(am.compile(spec))
    batch, length, width = rng.randint(1, 2), rng.randint(1, 20), rng.randint(4, 10)
    buffer = _normal(rng, (batch + 1) * (length + 1) * width + 16, DIM)
    places = np.arange(buffer.size, dtype=np.int64).reshape(buffer.shape)

    def tensor(source: Any, heads: int, begin: int, steps: tuple[int, int, int]) -> Any:
        shape = (batch, length, heads, DIM)
        strides = [step * DIM * source.itemsize for step in steps]
        return np.lib.stride_tricks.as_strided(source[begin:], shape, [*strides, source.itemsize])

    layout = rng.choice([
        (length * width, width, 1), (width, batch * width, 1), (length * width, 1, length), (length, 1, 0),
        (width, width, 1), (length * width, width - 1, 1), (length * width, 2, 1),
    ])  # fmt: skip
    drawn: dict[str, Any] = {}
    for name, heads in {"q": HEADS, "k": KV_HEADS, "v": KV_HEADS, "o": HEADS}.items():
        begin = rng.randrange(width)
        steps = layout if name == "o" or rng.random() < 0.8 else (length * width, width, 1)
        drawn[name] = tuple(tensor(source, heads, begin, steps) for source in (buffer, places))
    where = {name: set(pair[1].reshape(-1).tolist()) for name, pair in drawn.items()}
    meets = any(where["o"] & where[name] for name in "qkv")
    meets |= len(where["o"]) < drawn["o"][1].size
    q, k, v, o = (pair[0] for pair in drawn.values())
    before = [part.copy() for part in (q, k, v)]
    lse = np.full((batch, HEADS, length), np.nan, np.float32)
    try:
        kernel(q, k, v, o, lse, scale=0.125, device="emulator")
    except am.errors.SpecError as error:
        assert meets, f"refused: {error}"
        assert np.isnan(lse).all(), "refused, but something was written"
        return f"refused: SpecError: {error}"
    assert not meets, f"accepted: o meets another tensor, {layout} of {(batch, length, width)}"
    verdict = check_attention(*before, o, lse, mask=am.causal(), scale=0.125)
    assert verdict.ok, str(verdict)
    return f"right ({layout})"


# ---- requests


def _mha(rng: random.Random) -> str:
    plain: dict[str, Any] = {"heads": 4, "kv_heads": 2, "head_dim": 64, "v_head_dim": 128}
    plain |= {"query_tiles": 1, "return_lse": True}
    changes: dict[str, Callable[[], Given]] = {
        "heads": lambda: draw.integer(rng, 4, 3, 0, 1025),
        "kv_heads": lambda: draw.integer(rng, 2, 3, 0, 8),
        "head_dim": lambda: draw.integer(rng, 64, 63, 0, 264),
        "v_head_dim": lambda: draw.integer(rng, 128, 4, 0, 264),
        "query_tiles": lambda: draw.integer(rng, 1, 0, 3),
        "return_lse": lambda: draw.flag(rng, True),
        "mask": lambda: draw.mask(rng, None),
    }
    for name in (
        "dtype",
        "out_dtype",
        "tile_order",
        "lengths",
        "block",
        "score_mod",
        "mask_mod",
        "sinks",
    ):
        changes[name] = lambda: _not_none(rng)
    right = am.mha(**plain).canonical_json()

    def judge(result: Any, _: dict[str, Any]) -> None:
        assert result.canonical_json() == right, "another request"

    return _try(rng, am.mha, plain, changes, judge)


def _compile(rng: random.Random) -> str:
    spec = am.mha(heads=HEADS, kv_heads=KV_HEADS, head_dim=DIM, dtype="f16", mask=am.causal(), query_tiles=1)  # fmt: skip
    changes: dict[str, Callable[[], Given]] = {
        "spec": lambda: _not_none(rng),
        "target": lambda: draw.wrong(rng.choice(["sm_90", "", 5, None, [], b"sm_100a", draw.Unspeakable()])),
    }  # fmt: skip

    def judge(result: Any, _: dict[str, Any]) -> None:
        assert result.target == "sm_100a"

    return _try(rng, am.compile, {"spec": spec, "target": "sm_100a"}, changes, judge)


def _load(rng: random.Random) -> str:
    """What is no bundle."""
    try:
        found = am.load(draw.anything(rng))
    except AttnError as error:
        return f"refused: {type(error).__name__}: {error}"
    raise AssertionError(f"accepted: {found!r}")


def _block_mask(rng: random.Random) -> str:
    """Kinds of blocks against the predicate itself; then a call."""
    batch, heads = rng.choice([(1, 1), (2, 1), (1, HEADS)])
    sq, sk, size = rng.randint(1, 200), rng.randint(1, 200), rng.choice([16, 64, 128])
    lengths = np.array([rng.randint(0, sk) for _ in range(batch)], np.int32)
    chosen = rng.choice([None, mods.key_padding(lengths), lambda b, h, q, k: k <= q + 9 * h])
    plain: dict[str, Any] = {
        "mask_mod": chosen, "batch": batch, "heads": heads, "sq": sq, "sk": sk, "mask": am.causal(),
        "block_size": size,
    }  # fmt: skip
    changes: dict[str, Callable[[], Given]] = {
        "batch": lambda: draw.integer(rng, batch, 0),
        "heads": lambda: draw.integer(rng, heads, 0),
        "sq": lambda: draw.integer(rng, sq),
        "sk": lambda: draw.integer(rng, sk),
        "block_size": lambda: draw.integer(rng, size, 0, (1, 2, 3), (0, 4), ("a", 4), (2**40, 2)),
        "mask": lambda: draw.mask(rng, None),
        "mask_mod": lambda: _not_none(rng),
    }

    def judge(result: Any, _: dict[str, Any]) -> None:
        q, k = np.arange(sq)[:, None], np.arange(sk)[None, :]
        for b, h in np.ndindex(result.kinds.shape[:2]):
            seen = np.broadcast_to(am.causal().visible(q, k, sq, sk), (sq, sk))
            if chosen is not None:
                seen = seen & np.asarray(_evaluated(chosen, lengths, b, h, q, k))
            for i, j in np.ndindex(result.kinds.shape[2:]):
                part = seen[i * size : (i + 1) * size, j * size : (j + 1) * size]
                whole = part.all() and (j + 1) * size <= sk
                assert result.kinds[b, h, i, j] == (2 if whole else 1 if part.any() else 0), (
                    b,
                    h,
                    i,
                    j,
                )

    return _try(rng, am.block_mask, plain, changes, judge)


def _evaluated(mod: Any, lengths: Any, b: int, h: int, q: Any, k: Any) -> Any:
    """A predicate of `_block_mask` in numpy."""
    return mod(b, h, q, k) if getattr(mod, "__name__", "") == "<lambda>" else k < lengths[b] + 0 * q


def _walked(rng: random.Random) -> str:
    """Attention along the lists of a block mask, or of what is none."""
    plain = _plain(rng, np.float16)
    sq, sk = plain["q"].shape[1], plain["k"].shape[1]
    blocks = am.block_mask(lambda b, h, q, k: k <= q, 1, 1, sq, sk)
    plain["block_mask"], plain["mask"] = blocks, None
    others = [am.block_mask(None, 1, 1, sq + 1, sk), 5, "x", am.BlockMask, [], draw.Unspeakable()]
    changes = dict(_changes(rng, plain, {}))
    del changes["query_tiles"]
    changes["block_mask"] = lambda: draw.wrong(rng.choice(others))
    changes["num_splits"] = lambda: draw.wrong(2)

    def judge(result: Any, meaning: dict[str, Any]) -> None:
        o, lse = map(_host, result) if meaning["return_lse"] else (_host(result), None)
        verdict = check_attention(
            meaning["q"], meaning["k"], meaning["v"], o, lse, scale=meaning["scale"],
            mask_mod=lambda b, h, q, k: k <= q,
        )  # fmt: skip
        assert verdict.ok, str(verdict)

    return _try(rng, am.attention, plain, changes, judge)


FORMS: Mapping[Callable[[random.Random], str], int] = {
    _dense: 10, _lengths: 6, _flash: 6, _packed: 5, _narrow: 3, _walked: 2, _mha: 5, _block_mask: 4,
    _load: 1, _compile: 1,
}  # fmt: skip
