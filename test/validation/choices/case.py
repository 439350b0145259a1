"""One call of the grid: a machine, a public function, and what is unlike the defaults."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import attn_mlir as am
from attn_mlir.api.plan import Plan
from attn_mlir.api.planners import only_planned
from attn_mlir.compiling.dtypes import NARROW_DTYPES
from attn_mlir.masks.text import parse_mask
from attn_mlir.runtime.call.tensors import TensorView, dense_strides
from attn_mlir.runtime.devices.emulator import EmulatorDevice

ADDRESS = 1 << 32  # of every operand; a plan reads nothing there
LATENT, ROPE = 512, 64  # columns of a row of a latent cache
ROW_BYTES = {"v32": 656, "model1": 584, "e4m3": 576, "e4m3_rope16": 640}  # of `kv_format`


@dataclass(frozen=True)
class Case:
    """A call that is planned, but neither compiled nor launched.

    Attributes:
      target: the chip.
      multiprocessors: of the machine.
      function: name of the public function.
      fields: sizes and options that are unlike the function's defaults in `FUNCTIONS`.
    """

    target: str
    multiprocessors: int
    function: str
    fields: Mapping[str, Any]

    def __str__(self) -> str:
        """The call in one line, without what is as by default."""
        defaults, _ = FUNCTIONS[self.function]
        told = (
            f"{name}={_short(value)}"
            for name, value in self.fields.items()
            if value != defaults[name]
        )
        return " ".join((f"{self.target}/{self.multiprocessors} {self.function}", *told))

    def sizes(self) -> Mapping[str, int]:
        """The batch and the longest sequences of a call that has them."""
        defaults, _ = FUNCTIONS[self.function]
        found = {**defaults, **self.fields}
        return {name: found[name] for name in ("batch", "sq", "sk") if name in found}

    def plan(self) -> Plan:
        """The plan of the call.

        Raises:
          AttnError: the call is refused.
        """
        defaults, make = FUNCTIONS[self.function]
        device = EmulatorDevice(target=self.target, multiprocessors=self.multiprocessors)
        arguments, options = make(**{**defaults, **self.fields})
        given = {name: value for name, value in options.items() if value is not None}
        return _planner(self.function)(*arguments, **given, device=device)


@functools.cache
def _planner(function: str) -> Callable[..., Plan]:
    """What plans a call of a public function."""
    return only_planned(getattr(am, function))


def _short(value: object) -> str:
    if isinstance(value, tuple):
        return "/".join(map(str, cast("tuple[object, ...]", value)))
    return str(value)


def array(dtype: str, *shape: int) -> TensorView:
    """An operand on a GPU, of which a plan sees everything but the elements."""
    return TensorView(dtype, shape, dense_strides(shape), ADDRESS, "cuda", 0, False, None)


def _mask(text: str) -> Any:
    return parse_mask(text) if text else None


Call = tuple[tuple[Any, ...], dict[str, Any]]  # positional arguments, and options


def _attention(
    *,
    heads: tuple[int, int],
    dims: tuple[int, int],
    dtype: str,
    kv_dtype: str,
    batch: int,
    sq: int,
    sk: int,
    mask: str,
    cache: str,
    told: str,
    mods: str,
    **options: Any,
) -> Call:
    (h, kv), (d, dv) = heads, dims
    kv_dtype = kv_dtype or dtype
    ragged_q, ragged_k = "cuq" in told, "cuk" in told
    q = array(dtype, *((batch * sq,) if ragged_q else (batch, sq)), h, d)
    keys: tuple[Any, ...]
    if cache:
        keys = (kv_cache(cache, kv_dtype, batch, sk, kv, d, dv),)
    else:
        rows = (batch * sk,) if ragged_k else (batch, sk)
        keys = tuple(array(kv_dtype, *rows, kv, columns) for columns in dims)
    given = {"mask": _mask(mask), **_lengths(told, batch, sq, sk), **_mods(mods, h)}
    if kv_dtype in NARROW_DTYPES:
        names = () if dtype != kv_dtype else ("q",)
        names += () if cache else ("k", "v")
        given |= {f"{name}_descale": array("f32", 1) for name in names}
    return (q, *keys), {**given, **options}


def _lengths(told: str, batch: int, sq: int, sk: int) -> dict[str, Any]:
    """The arrays of lengths that words name."""
    bounds: dict[str, Any] = {
        "cuq": {"cu_seqlens_q": array("i32", batch + 1), "max_seqlen_q": sq},
        "cuk": {"cu_seqlens_k": array("i32", batch + 1), "max_seqlen_k": sk},
        "usedq": {"seqused_q": array("i32", batch)},
        "usedk": {"seqused_k": array("i32", batch)},
        "cached": {"cache_seqlens": array("i32", batch)},
    }
    found: dict[str, Any] = {}
    for word in filter(None, told.split("+")):
        found |= bounds[word]
    return found


def _half(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return score * 0.5


def _not_itself(b: Any, h: Any, q: Any, k: Any) -> Any:
    return q != k


def _mods(words: str, heads: int) -> dict[str, Any]:
    """The modifiers that words name."""
    found: dict[str, Any] = {
        "score": {"score_mod": _half},
        "mask": {"mask_mod": _not_itself},
        "sinks": {"sinks": array("f32", heads)},
    }
    given: dict[str, Any] = {}
    for word in filter(None, words.split("+")):
        given |= found[word]
    return given


def kv_cache(text: str, dtype: str, batch: int, sk: int, heads: int, d: int, dv: int = 0) -> Any:
    """A cache by words: `rows` or `pageN`, then what is unusual about it; without values for `dv` of 0.

    Words: `pad`, `idx` (of rows), `hnd`, `two`, `csr` (of pages), `pos` (factors of positions).
    """
    kind, *words = text.split("+")
    is_paged = kind.startswith("page")
    page = int(kind.removeprefix("page")) if is_paged else sk
    columns = -(-sk // page)
    order = (heads, page) if "hnd" in words else (page, heads)
    rows = (batch * columns, *order)
    k, *v = (array(dtype, *rows, c) for c in (d, dv) if c)
    extra: dict[str, Any] = {}
    if dtype in NARROW_DTYPES and dv:
        extent = (*rows, 1) if "pos" in words else (1,)
        extra |= {name: array("f32", *extent) for name in ("k_scale", "v_scale")}
    if not is_paged:
        extra |= {"leftpad": array("i32", batch)} if "pad" in words else {}
        extra |= {"batch_idx": array("i32", batch)} if "idx" in words else {}
        return am.ContiguousKV(k, v[0] if v else None, array("i32", batch), **extra)
    extra |= {"layout": "HND" if "hnd" in words else "NHD"}
    if "csr" in words:
        lists = {"indptr": batch + 1, "indices": batch * columns, "last_page_len": batch}
        extra |= {name: array("i32", n) for name, n in lists.items()}
    else:
        two = (2,) if "two" in words else ()
        extra |= {"page_table": array("i32", batch, *two, columns), "seqused": array("i32", batch)}
    return am.PagedKV(k, v[0] if v else None, **extra)


def _mla(
    *,
    heads: tuple[int, int],
    dims: tuple[int, int, int],
    dtype: str,
    rope_dtype: str,
    kv_format: str,
    batch: int,
    sq: int,
    sk: int,
    mask: str,
    cache: str,
    told: str,
    **options: Any,
) -> Call:
    (h, kv), (nope, rope, dv) = heads, dims
    rows_q = (batch * sq,) if "cuq" in told else (batch, sq)
    rows_k = (batch * sk,) if "cuk" in told else (batch, sk)
    rope_dtype = rope_dtype or dtype
    if kv_format:
        k_rope = kv_cache(cache, "u8", batch, sk, 1, ROW_BYTES[kv_format])
    elif cache:
        k_rope = kv_cache(cache, rope_dtype, batch, sk, 1, LATENT + ROPE)
    else:
        k_rope = array(rope_dtype, *rows_k, 1, rope)
    operands = (
        array(dtype, *rows_q, h, nope),
        array(dtype, *rows_q, h, rope),
        array(dtype, *rows_k, kv, nope),
        k_rope,
        array(dtype, *rows_k, kv, dv),
    )
    given: dict[str, Any] = {"mask": _mask(mask), "scale": 0.1, **_lengths(told, batch, sq, sk)}
    given |= {"kv_format": kv_format} if kv_format else {}
    if dtype == "e4m3":
        given |= {
            "q_descale": array("f32", *rows_q),
            "k_descale": array("f32", *rows_k),
            "v_descale": array("f32", 1),
        }
    return operands, {**given, **options}


def _pool(kv_format: str, dtype: str, pages: int, page: int, columns: int) -> TensorView:
    """Rows of a latent cache in pages."""
    if kv_format in ROW_BYTES:
        return array("u8", pages, page, 1, ROW_BYTES[kv_format])
    return array(dtype, pages, page, 1, columns)


def _mla_decode(
    *,
    heads: int,
    columns: int,
    dtype: str,
    batch: int,
    sq: int,
    sk: int,
    mask: str,
    page: int,
    lists: str,
    sinks: bool,
    kv_format: str,
    **options: Any,
) -> Call:
    q = array(dtype, batch, sq, heads, columns)
    pages = -(-sk // page)
    pool = _pool(kv_format, dtype, batch * pages, page, columns)
    cache = am.PagedKV(pool, page_table=array("i32", batch, pages), seqused=array("i32", batch))
    given: dict[str, Any] = {"mask": _mask(mask), "scale": 0.1, "kv_format": kv_format}
    given |= {"sinks": array("f32", heads)} if sinks else {}
    if lists:
        given |= {"indices": array("i32", batch, sq, sk)}
    if "lengths" in lists:
        given |= {"topk_length": array("i32", batch, sq)}
    if "extra" in lists:
        given |= {
            "extra_kv": _pool(kv_format, dtype, 64, page, columns),
            "extra_indices": array("i32", batch, sq, 512),
        }
    return (q, cache), {**given, **options}


def _sparse_mla(
    *,
    heads: int,
    columns: int,
    dtype: str,
    sq: int,
    topk: int,
    kv_format: str,
    page: int,
    table: bool,
    lengths: bool,
    sinks: bool,
    **options: Any,
) -> Call:
    pool = _pool(kv_format, dtype, 64, page or 64, columns)
    if not page:
        pool = pool.reshaped((4096, *pool.shape[2:]), dense_strides((4096, *pool.shape[2:])))
    given: dict[str, Any] = {"scale": 0.1, "kv_format": kv_format}
    given |= {"topk_length": array("i32", sq)} if lengths else {}
    given |= {"sinks": array("f32", heads)} if sinks else {}
    if table:
        given |= {"page_table": array("i32", 8, 32), "batch_of_query": array("i32", sq)}
    return (array(dtype, sq, heads, columns), pool, array("i32", sq, topk)), {**given, **options}


def _append_kv(
    *,
    heads: int,
    dims: tuple[int, int],
    dtype: str,
    new_dtype: str,
    batch: int,
    n: int,
    cache: str,
    told: str,
    rotary: int,
) -> Call:
    d, dv = dims
    is_flat = told in ("slots", "batches", "cu")
    rows = (batch * n,) if is_flat else (batch, n)
    given: dict[str, Any] = {
        "": {},
        "slots": {"slot_mapping": array("i64", batch * n)},
        "positions": {"positions": array("i32", batch, n)},
        "batches": {
            "positions": array("i32", batch * n),
            "batch_indices": array("i32", batch * n),
        },
        "cu": {"cu_seqlens": array("i32", batch + 1)},
    }[told]
    if rotary:
        given |= {"rotary": (*(array("f32", 4096, rotary // 2) for _ in range(2)), False)}
    new = new_dtype or dtype
    operands = (
        kv_cache(cache, dtype, batch, 1024, heads, d, dv),
        array(new, *rows, heads, d),
        array(new, *rows, heads, dv),
    )
    return operands, given


_SIZES: dict[str, Any] = {"batch": 1, "sq": 1, "sk": 4096, "mask": ""}
_SPLITS: dict[str, Any] = {"num_splits": None, "split_size": None}
_TILES: dict[str, Any] = {"query_tiles": None, "tile_order": None, "out_dtype": None}

FUNCTIONS: dict[str, tuple[dict[str, Any], Callable[..., Call]]] = {
    "attention": (
        {
            "heads": (32, 8), "dims": (128, 128), "dtype": "bf16", "kv_dtype": "", "cache": "",
            "told": "", "mods": "", "schedule": None, "return_lse": None,
            **_SIZES, **_SPLITS, **_TILES,
        },
        _attention,
    ),
    "mla": (
        {
            "heads": (16, 16), "dims": (128, 64, 128), "dtype": "bf16", "rope_dtype": "",
            "kv_format": "", "cache": "", "told": "", **_SIZES, **_TILES,
        },
        _mla,
    ),
    "mla_decode": (
        {
            "heads": 16, "columns": LATENT + ROPE, "dtype": "bf16", "page": 64, "lists": "",
            "sinks": False, "kv_format": "bf16", "num_splits": None, **_SIZES,
        },
        _mla_decode,
    ),
    "sparse_mla": (
        {
            "heads": 64, "columns": LATENT + ROPE, "dtype": "bf16", "sq": 1, "topk": 2048,
            "kv_format": "bf16", "page": 0, "table": False, "lengths": False, "sinks": False,
            "out_dtype": None,
        },
        _sparse_mla,
    ),
    "append_kv": (
        {
            "heads": 8, "dims": (128, 128), "dtype": "bf16", "new_dtype": "", "batch": 2, "n": 1,
            "cache": "page64", "told": "", "rotary": 0,
        },
        _append_kv,
    ),
}  # fmt: skip
"""Public functions: their fields with defaults, and what makes the arguments of a call of them."""
