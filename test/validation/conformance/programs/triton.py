"""Kernels in Triton's language and their launches; runs in the environment of the peers.

The kernels are plain uses of the language, written here; what is of interest is the PTX that Triton
makes of them.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .._recording import Recorder
from .._triton_kernels import KINDS, attention_maps
from .._triton_launch import launch

NARROW = {"bf16": "bf16", "f16": "fp16", "f32": "fp32", "e4m3": "fp8e4nv"}


@triton.jit
def softmax_rows(x, y, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    values = tl.load(x + row * columns + at, mask=at < columns, other=-float("inf"))
    values = values.to(tl.float32)
    p = tl.exp(values - tl.max(values, 0))
    tl.store(y + row * columns + at, (p / tl.sum(p, 0)).to(y.dtype.element_ty), mask=at < columns)


def softmax(recorder: Recorder, *, rows: int, columns: int, dtype: str = "bf16") -> None:
    """Softmax of each row."""
    kind = NARROW[dtype]
    launch(
        recorder,
        softmax_rows,
        dict.fromkeys("xy", (kind, rows * columns)),
        {"columns": columns},
        {"BLOCK": triton.next_power_of_2(columns)},
        (rows, 1, 1),
    )


@triton.jit
def layer_norm_rows(x, weight, bias, y, mean, rstd, columns, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    inside = at < columns
    values = tl.load(x + row * columns + at, mask=inside, other=0).to(tl.float32)
    middle = tl.sum(values, 0) / columns
    centred = tl.where(inside, values - middle, 0)
    scale = 1 / tl.sqrt(tl.sum(centred * centred, 0) / columns + eps)
    tl.store(mean + row, middle)
    tl.store(rstd + row, scale)
    result = centred * scale * tl.load(weight + at, mask=inside) + tl.load(bias + at, mask=inside)
    tl.store(y + row * columns + at, result.to(y.dtype.element_ty), mask=inside)


def norm(
    recorder: Recorder, *, rows: int, columns: int, dtype: str = "bf16", is_layer: bool = True
) -> None:
    """Layer norm of each row, its mean and the inverse of its deviation."""
    kind = NARROW[dtype]
    launch(
        recorder,
        layer_norm_rows,
        {
            "x": (kind, rows * columns),
            "weight": ("fp32", columns),
            "bias": ("fp32", columns),
            "y": (kind, rows * columns),
            "mean": ("fp32", rows),
            "rstd": ("fp32", rows),
        },
        {"columns": columns, "eps": 1e-6},
        {"BLOCK": triton.next_power_of_2(columns)},
        (rows, 1, 1),
    )


@triton.jit
def layer_norm_gradients(x, weight, dy, rstd, mean, dx, dw, db, rows, columns, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    inside = at < columns
    w = tl.load(weight + at, mask=inside, other=0)
    dw_sum = tl.zeros((BLOCK,), tl.float32)
    db_sum = tl.zeros((BLOCK,), tl.float32)
    for row in range(tl.program_id(0), rows, tl.num_programs(0)):
        values = tl.load(x + row * columns + at, mask=inside, other=0).to(tl.float32)
        slope = tl.load(dy + row * columns + at, mask=inside, other=0).to(tl.float32)
        scale = tl.load(rstd + row)
        unit = tl.where(inside, (values - tl.load(mean + row)) * scale, 0)
        inner = slope * w
        first = tl.sum(inner * unit, 0) / columns
        second = tl.sum(inner, 0) / columns
        result = (inner - unit * first - second) * scale
        tl.store(dx + row * columns + at, result.to(dx.dtype.element_ty), mask=inside)
        dw_sum += slope * unit
        db_sum += slope
    tl.atomic_add(dw + at, dw_sum, mask=inside)
    tl.atomic_add(db + at, db_sum, mask=inside)


def norm_backward(
    recorder: Recorder,
    *,
    rows: int,
    columns: int,
    programs: int,
    dtype: str = "bf16",
    **_: object,
) -> None:
    """Gradients of layer norm; CTAs add theirs of weight and bias into zeros."""
    kind = NARROW[dtype]
    launch(
        recorder,
        layer_norm_gradients,
        {
            "x": (kind, rows * columns),
            "weight": ("fp32", columns),
            "dy": (kind, rows * columns),
            "rstd": ("fp32", rows),
            "mean": ("fp32", rows),
            "dx": (kind, rows * columns),
            "dw": ("fp32", columns),
            "db": ("fp32", columns),
        },
        {"rows": rows, "columns": columns},
        {"BLOCK": triton.next_power_of_2(columns)},
        (programs, 1, 1),
    )


@triton.jit
def count_values(x, counts, total, BINS: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(x + at, mask=at < total, other=0)
    found = tl.histogram(values, BINS, mask=at < total)
    tl.atomic_add(counts + tl.arange(0, BINS), found, sem="relaxed")


def histogram(recorder: Recorder, *, count: int, bins: int, block: int = 512) -> None:
    """How often each of the integers below `bins` comes."""
    launch(
        recorder,
        count_values,
        {"x": ("i32", count), "counts": ("i32", bins)},
        {"total": count},
        {"BINS": bins, "BLOCK": block},
        (-(-count // block), 1, 1),
    )


@triton.jit
def _linear(a, b, c, d):
    return a * c, b * c + d


@triton.jit
def scan_rows(a, b, y, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    inside = at < columns
    factor = tl.load(a + row * columns + at, mask=inside, other=1)
    offset = tl.load(b + row * columns + at, mask=inside, other=0)
    _, state = tl.associative_scan((factor, offset), 0, _linear)
    tl.store(y + row * columns + at, state, mask=inside)


def scan(recorder: Recorder, *, rows: int, columns: int) -> None:
    """The recurrence y[i] = a[i] y[i - 1] + b[i] of each row, in float32."""
    launch(
        recorder,
        scan_rows,
        dict.fromkeys("aby", ("fp32", rows * columns)),
        {"columns": columns},
        {"BLOCK": triton.next_power_of_2(columns)},
        (rows, 1, 1),
    )


@triton.jit
def sort_rows(x, y, columns: tl.constexpr):
    at = tl.program_id(0) * columns + tl.arange(0, columns)
    tl.store(y + at, tl.sort(tl.load(x + at), descending=True))


def sort(recorder: Recorder, *, rows: int, columns: int, dtype: str = "f32") -> None:
    """Sorts each row, largest first."""
    launch(
        recorder,
        sort_rows,
        dict.fromkeys("xy", (NARROW[dtype], rows * columns)),
        {},
        {"columns": columns},
        (rows, 1, 1),
    )


@triton.jit
def gemm_persistent(
    a, b, d, m, n, k, TM: tl.constexpr, TN: tl.constexpr, TK: tl.constexpr, WS: tl.constexpr
):
    a_map = tl.make_tensor_descriptor(a, shape=[m, k], strides=[k, 1], block_shape=[TM, TK])
    b_map = tl.make_tensor_descriptor(b, shape=[n, k], strides=[k, 1], block_shape=[TN, TK])
    d_map = tl.make_tensor_descriptor(d, shape=[m, n], strides=[n, 1], block_shape=[TM, TN])
    columns = tl.cdiv(n, TN)
    tiles = tl.cdiv(m, TM) * columns
    for tile in tl.range(
        tl.program_id(0), tiles, tl.num_programs(0), flatten=True, warp_specialize=WS
    ):
        row, column = tile // columns * TM, tile % columns * TN
        sums = tl.zeros((TM, TN), tl.float32)
        for at in range(0, k, TK):
            sums = tl.dot(a_map.load([row, at]), b_map.load([column, at]).T, sums)
        d_map.store([row, column], sums.to(d.dtype.element_ty))


def persistent_gemm(
    recorder: Recorder,
    *,
    m: int,
    n: int,
    k: int,
    tile: tuple[int, int, int],
    programs: int,
    dtype: str = "bf16",
    out_dtype: str = "",
    is_specialised: bool = False,
    warps: int = 4,
) -> None:
    """D = A B^T by CTAs that each take several tiles."""
    kind = NARROW[dtype]
    launch(
        recorder,
        gemm_persistent,
        {"a": (kind, m * k), "b": (kind, n * k), "d": (NARROW[out_dtype or dtype], m * n)},
        {"m": m, "n": n, "k": k},
        {**dict(zip(("TM", "TN", "TK"), tile, strict=True)), "WS": is_specialised},
        (programs, 1, 1),
        warps=warps,
    )


@triton.jit
def gemm_groups(
    a, b, d, offsets, n, k, GROUPS: tl.constexpr, TM: tl.constexpr, TN: tl.constexpr, TK: tl.constexpr
):  # fmt: skip
    tile = tl.program_id(0)
    inner = tl.arange(0, TK)
    begin_tile = 0
    for group in range(GROUPS):
        begin, end = tl.load(offsets + group), tl.load(offsets + group + 1)
        columns = tl.cdiv(n, TN)
        count = tl.cdiv(end - begin, TM) * columns
        while (tile >= begin_tile) & (tile < begin_tile + count):
            local = tile - begin_tile
            rows = begin + local // columns * TM + tl.arange(0, TM)
            cols = local % columns * TN + tl.arange(0, TN)
            sums = tl.zeros((TM, TN), tl.float32)
            for at in range(0, k, TK):
                left = tl.load(
                    a + rows[:, None] * k + at + inner[None, :], mask=rows[:, None] < end, other=0
                )
                right = tl.load(b + group * n * k + cols[None, :] * k + at + inner[:, None])
                sums = tl.dot(left, right, sums)
            where = d + rows[:, None] * n + cols[None, :]
            tl.store(where, sums.to(d.dtype.element_ty), mask=rows[:, None] < end)
            tile += tl.num_programs(0)
        begin_tile += count


def grouped_gemm(
    recorder: Recorder,
    *,
    lengths: list[int],
    n: int,
    k: int,
    programs: int,
    dtype: str = "bf16",
    **_: object,
) -> None:
    """A product per group of rows; CTAs go through the tiles of all groups."""
    kind, total = NARROW[dtype], sum(lengths)
    launch(
        recorder,
        gemm_groups,
        {
            "a": (kind, total * k),
            "b": (kind, len(lengths) * n * k),
            "d": (kind, total * n),
            "offsets": ("i32", len(lengths) + 1),
        },
        {"n": n, "k": k},
        {"GROUPS": len(lengths), "TM": 64, "TN": 64, "TK": 64},
        (programs, 1, 1),
    )


@triton.jit
def gemm_split(a, b, d, n, k, TM: tl.constexpr, TN: tl.constexpr, TK: tl.constexpr):
    rows = tl.program_id(0) * TM + tl.arange(0, TM)
    cols = tl.program_id(1) * TN + tl.arange(0, TN)
    inner = tl.arange(0, TK)
    share = k // tl.num_programs(2)
    begin = tl.program_id(2) * share
    sums = tl.zeros((TM, TN), tl.float32)
    for at in range(begin, begin + share, TK):
        left = tl.load(a + rows[:, None] * k + at + inner[None, :])
        right = tl.load(b + cols[None, :] * k + at + inner[:, None])
        sums = tl.dot(left, right, sums)
    tl.atomic_add(d + rows[:, None] * n + cols[None, :], sums, sem="relaxed")


def split_gemm(
    recorder: Recorder, *, m: int, n: int, k: int, splits: int, dtype: str = "f16", **_: object
) -> None:
    """D = A B^T; CTAs that share a tile add their parts of k into zeros in float32."""
    kind = NARROW[dtype]
    launch(
        recorder,
        gemm_split,
        {"a": (kind, m * k), "b": (kind, n * k), "d": ("fp32", m * n)},
        {"n": n, "k": k},
        {"TM": 128, "TN": 64, "TK": 64},
        (m // 128, n // 64, splits),
    )


@triton.jit
def gemm_scaled(
    a, a_scale, b, b_scale, d, m, n, k,
    A_FORM: tl.constexpr, B_FORM: tl.constexpr, A_PACK: tl.constexpr, B_PACK: tl.constexpr,
    BLOCK: tl.constexpr, TM: tl.constexpr, TN: tl.constexpr, TK: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * TM + tl.arange(0, TM)
    cols = tl.program_id(1) * TN + tl.arange(0, TN)
    a_at, b_at = tl.arange(0, TK // A_PACK), tl.arange(0, TK // B_PACK)
    block = tl.arange(0, TK // BLOCK)
    sums = tl.zeros((TM, TN), tl.float32)
    for at in range(0, k, TK):
        left = tl.load(a + rows[:, None] * (k // A_PACK) + at // A_PACK + a_at[None, :])
        right = tl.load(b + cols[None, :] * (k // B_PACK) + at // B_PACK + b_at[:, None])
        left_scale = tl.load(a_scale + rows[:, None] * (k // BLOCK) + at // BLOCK + block[None, :])
        right_scale = tl.load(b_scale + cols[:, None] * (k // BLOCK) + at // BLOCK + block[None, :])
        sums = tl.dot_scaled(left, left_scale, A_FORM, right, right_scale, B_FORM, sums)
    tl.store(d + rows[:, None] * n + cols[None, :], sums.to(d.dtype.element_ty))


def scaled_gemm(
    recorder: Recorder,
    *,
    m: int,
    n: int,
    k: int,
    forms: tuple[str, str],
    block: int = 32,
    tile: tuple[int, int, int] = (128, 128, 128),
) -> None:
    """D = A B^T of block-scaled operands; scales are [rows, k / block] as they are.

    Args:
      forms: of A and B: e4m3, e5m2 or e2m1.
    """
    packs = [2 if form == "e2m1" else 1 for form in forms]
    kinds = ["u8" if form == "e2m1" else "fp8e4nv" for form in forms]
    scale = "u8" if block == 32 else "fp8e4nv"
    launch(
        recorder,
        gemm_scaled,
        {
            "a": (kinds[0], m * k // packs[0]),
            "a_scale": (scale, m * k // block),
            "b": (kinds[1], n * k // packs[1]),
            "b_scale": (scale, n * k // block),
            "d": ("bf16", m * n),
        },
        {"m": m, "n": n, "k": k},
        {
            "A_FORM": forms[0], "B_FORM": forms[1], "A_PACK": packs[0], "B_PACK": packs[1],
            "BLOCK": block, "TM": tile[0], "TN": tile[1], "TK": tile[2],
        },
        (m // tile[0], n // tile[1], 1),
        stages=2,
    )  # fmt: skip


@triton.jit
def row_products(o, do, delta, D: tl.constexpr, ROWS: tl.constexpr):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    at = rows[:, None] * D + tl.arange(0, D)[None, :]
    product = tl.load(o + at).to(tl.float32) * tl.load(do + at).to(tl.float32)
    tl.store(delta + rows, tl.sum(product, 1))


@triton.jit
def key_gradients(
    q, k, v, do, lse, delta, dk, dv, length, scale,
    D: tl.constexpr, TM: tl.constexpr, TN: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    plane = tl.program_id(1) * length
    keys = tl.program_id(0) * TN + tl.arange(0, TN)
    column = tl.arange(0, D)
    here = (plane + keys)[:, None] * D + column[None, :]
    k_tile, v_tile = tl.load(k + here), tl.load(v + here)
    dk_sum = tl.zeros((TN, D), tl.float32)
    dv_sum = tl.zeros((TN, D), tl.float32)
    begin = tl.program_id(0) * TN // TM * TM if CAUSAL else 0
    for at in range(begin, length, TM):
        rows = at + tl.arange(0, TM)
        there = (plane + rows)[:, None] * D + column[None, :]
        q_tile, do_tile = tl.load(q + there), tl.load(do + there)
        scores = tl.dot(k_tile, q_tile.T) * (scale * 1.44269504)
        p = tl.exp2(scores - tl.load(lse + plane + rows)[None, :] * 1.44269504)
        if CAUSAL:
            p = tl.where(rows[None, :] >= keys[:, None], p, 0)
        dv_sum = tl.dot(p.to(do.dtype.element_ty), do_tile, dv_sum)
        slope = tl.dot(v_tile, do_tile.T)
        ds = p * (slope - tl.load(delta + plane + rows)[None, :])
        dk_sum = tl.dot(ds.to(q.dtype.element_ty), q_tile, dk_sum)
    tl.store(dk + here, (dk_sum * scale).to(dk.dtype.element_ty))
    tl.store(dv + here, dv_sum.to(dv.dtype.element_ty))


@triton.jit
def query_gradients(
    q, k, v, do, lse, delta, dq, length, scale,
    D: tl.constexpr, TM: tl.constexpr, TN: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    plane = tl.program_id(1) * length
    rows = tl.program_id(0) * TM + tl.arange(0, TM)
    column = tl.arange(0, D)
    here = (plane + rows)[:, None] * D + column[None, :]
    q_tile, do_tile = tl.load(q + here), tl.load(do + here)
    top = tl.load(lse + plane + rows)[:, None] * 1.44269504
    middle = tl.load(delta + plane + rows)[:, None]
    dq_sum = tl.zeros((TM, D), tl.float32)
    end = (tl.program_id(0) + 1) * TM if CAUSAL else length
    for at in range(0, end, TN):
        keys = at + tl.arange(0, TN)
        there = (plane + keys)[:, None] * D + column[None, :]
        k_tile = tl.load(k + there)
        p = tl.exp2(tl.dot(q_tile, k_tile.T) * (scale * 1.44269504) - top)
        if CAUSAL:
            p = tl.where(rows[:, None] >= keys[None, :], p, 0)
        ds = p * (tl.dot(do_tile, tl.load(v + there).T) - middle)
        dq_sum = tl.dot(ds.to(q.dtype.element_ty), k_tile, dq_sum)
    tl.store(dq + here, (dq_sum * scale).to(dq.dtype.element_ty))


def backward(
    recorder: Recorder,
    *,
    heads: int,
    sq: int,
    dim: int,
    dtype: str = "f16",
    is_causal: bool = False,
    **_: object,
) -> None:
    """dQ, dK and dV from dO, O and LSE: row products, then keys, then queries."""
    wide = (NARROW[dtype], heads * sq * dim)
    rows = ("fp32", heads * sq)
    given = {**dict.fromkeys(("q", "k", "v", "do"), wide), "lse": rows, "delta": rows}
    scalars: dict[str, int | float] = {"length": sq, "scale": dim**-0.5}
    constants = {"D": dim, "TM": 64, "TN": 64, "CAUSAL": is_causal}
    grid = (sq // 64, heads, 1)
    launch(
        recorder,
        row_products,
        {"o": wide, "do": wide, "delta": rows},
        {},
        {"D": dim, "ROWS": 64},
        (heads * sq // 64, 1, 1),
    )
    for function, made in ((key_gradients, ("dk", "dv")), (query_gradients, ("dq",))):
        buffers = {**given, **dict.fromkeys(made, wide)}
        launch(recorder, function, buffers, scalars, constants, grid, stages=2)


@triton.jit
def decode_pages(
    q, k, v, o, lse, page_table, used, pages, scale,
    HEADS: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr,
):  # fmt: skip
    batch = tl.program_id(0)
    length = tl.load(used + batch)
    head, column = tl.arange(0, HEADS), tl.arange(0, D)
    queries = tl.load(q + (batch * HEADS + head)[:, None] * D + column[None, :])
    top = tl.full((HEADS,), -float("inf"), tl.float32)
    total = tl.zeros((HEADS,), tl.float32)
    sums = tl.zeros((HEADS, D), tl.float32)
    for at in range(tl.cdiv(length, PAGE)):
        keys = at * PAGE + tl.arange(0, PAGE)
        rows = tl.load(page_table + batch * pages + at) * PAGE + tl.arange(0, PAGE)
        there = rows[:, None] * D + column[None, :]
        inside = keys[:, None] < length
        scores = tl.dot(queries, tl.load(k + there, mask=inside, other=0).T) * (scale * 1.44269504)
        scores = tl.where(keys[None, :] < length, scores, -float("inf"))
        above = tl.maximum(top, tl.max(scores, 1))
        p = tl.exp2(scores - above[:, None])
        shrink = tl.exp2(top - above)
        total = total * shrink + tl.sum(p, 1)
        values = tl.load(v + there, mask=inside, other=0)
        sums = tl.dot(p.to(v.dtype.element_ty), values, sums * shrink[:, None])
        top = above
    place = (batch * HEADS + head)[:, None] * D + column[None, :]
    tl.store(o + place, (sums / total[:, None]).to(o.dtype.element_ty))
    tl.store(lse + batch * HEADS + head, (top + tl.log2(total)) * 0.69314718)


def decode(
    recorder: Recorder,
    *,
    keys: list[int],
    heads: int,
    dim: int,
    page: int,
    dtype: str = "bf16",
    **_: object,
) -> None:
    """One query per sequence and head against K and V in pages, one head of them."""
    batch, pages, kind = len(keys), -(-max(keys) // page), NARROW[dtype]
    held = (kind, (batch * pages + 1) * page * dim)
    launch(
        recorder,
        decode_pages,
        {
            "q": (kind, batch * heads * dim),
            "k": held,
            "v": held,
            "o": (kind, batch * heads * dim),
            "lse": ("fp32", batch * heads),
            "page_table": ("i32", batch * pages),
            "used": ("i32", batch),
        },
        {"pages": pages, "scale": dim**-0.5},
        {"HEADS": heads, "D": dim, "PAGE": page},
        (batch, 1, 1),
        stages=2,
    )


def forward(
    recorder: Recorder,
    *,
    heads: int,
    length: int,
    dim: int,
    is_causal: bool = False,
    dtype: str = "f16",
    warps: int = 4,
    tile_m: int = 128,
) -> None:
    """Attention of [heads, length, dim] through tensor maps made in the kernel."""
    wide = (KINDS[dtype], heads * length * dim)
    launch(
        recorder,
        attention_maps,
        {**dict.fromkeys("qkvo", wide), "lse": ("fp32", heads * length)},
        {"length": length, "scale": dim**-0.5},
        {"D": dim, "TM": tile_m, "TN": 64, "CAUSAL": is_causal, "WS": False},
        (length // tile_m, heads, 1),
        warps=warps,
        stages=2,
    )
