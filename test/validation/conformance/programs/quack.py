"""Launches of quack-kernels, as its own host code makes them; runs in the environment of the peers."""

from __future__ import annotations

from typing import Any

from .._recording import Recorder, tensor


def norm(
    recorder: Recorder,
    *,
    rows: int,
    columns: int,
    dtype: str = "bf16",
    is_layer: bool = False,
    has_residual: bool = False,
) -> None:
    """RMS or layer norm of each row, with weight and bias, and what the backward needs of it."""
    from quack.rmsnorm import _rmsnorm_fwd

    x, y = tensor((rows, columns), dtype), tensor((rows, columns), dtype)
    weight, bias = tensor((columns,), "f32"), tensor((columns,), "f32")
    rstd = tensor((rows,), "f32")
    mean = tensor((rows,), "f32") if is_layer else None
    residual = tensor((rows, columns), dtype) if has_residual else None
    total = tensor((rows, columns), dtype) if has_residual else None
    recorder.name(
        x=x, weight=weight, bias=bias, y=y, rstd=rstd, mean=mean, residual=residual, total=total
    )
    _rmsnorm_fwd(x, weight, y, bias, rstd, mean, residual, total, 1e-6, is_layer)


def norm_backward(
    recorder: Recorder,
    *,
    rows: int,
    columns: int,
    parts: int,
    dtype: str = "bf16",
    is_layer: bool = False,
) -> None:
    """Gradients of a norm; those of weight and bias are sums over rows in `parts` parts."""
    from quack.rmsnorm import _rmsnorm_bwd

    x, dy, dx = (tensor((rows, columns), dtype) for _ in range(3))
    weight, rstd = tensor((columns,), "f32"), tensor((rows,), "f32")
    dw, db = tensor((parts, columns), "f32"), tensor((parts, columns), "f32")
    mean = tensor((rows,), "f32") if is_layer else None
    recorder.name(x=x, weight=weight, dy=dy, rstd=rstd, mean=mean, dx=dx, dw=dw, db=db)
    _rmsnorm_bwd(x, weight, dy, rstd, dx, dw, db, mean=mean, is_layernorm=is_layer)


def softmax(recorder: Recorder, *, rows: int, columns: int, dtype: str = "bf16") -> None:
    """Softmax of each row."""
    from quack.softmax import _softmax_fwd

    x, y = tensor((rows, columns), dtype), tensor((rows, columns), dtype)
    recorder.name(x=x, y=y)
    _softmax_fwd(x, y)


def softmax_backward(recorder: Recorder, *, rows: int, columns: int, dtype: str = "bf16") -> None:
    """dX from dY and Y."""
    from quack.softmax import _softmax_backward

    dy, y, dx = (tensor((rows, columns), dtype) for _ in range(3))
    recorder.name(dy=dy, y=y, dx=dx)
    _softmax_backward(dy, y, dx)


def cross_entropy(
    recorder: Recorder, *, rows: int, columns: int, dtype: str = "bf16", has_gradient: bool = False
) -> None:
    """Loss and LSE of each row, and the gradient of the loss on request."""
    from quack.cross_entropy import cross_entropy_fwd_out

    x, target = tensor((rows, columns), dtype), tensor((rows,), "i64")
    loss, lse = tensor((rows,), "f32"), tensor((rows,), "f32")
    dx = tensor((rows, columns), dtype) if has_gradient else None
    recorder.name(x=x, target=target, loss=loss, lse=lse, dx=dx)
    cross_entropy_fwd_out(x, target, None, loss, lse, dx, None)


def cross_entropy_backward(
    recorder: Recorder, *, rows: int, columns: int, dtype: str = "bf16"
) -> None:
    """dX from the gradient of each row's loss."""
    from quack.cross_entropy import cross_entropy_bwd_out

    x, target = tensor((rows, columns), dtype), tensor((rows,), "i64")
    dloss, lse = tensor((rows,), "f32"), tensor((rows,), "f32")
    dx = tensor((rows, columns), dtype)
    recorder.name(x=x, target=target, dloss=dloss, lse=lse, dx=dx)
    cross_entropy_bwd_out(x, target, dloss, lse, dx)


def topk(recorder: Recorder, *, rows: int, columns: int, count: int, dtype: str = "bf16") -> None:
    """The largest values of each row and where they are."""
    from quack.topk import _topk_fwd

    x, values = tensor((rows, columns), dtype), tensor((rows, count), dtype)
    places = tensor((rows, count), "i32")
    recorder.name(x=x, values=values, places=places)
    _topk_fwd(x, count, False, values, places)


def rotary(
    recorder: Recorder,
    *,
    batch: int,
    length: int,
    heads: int,
    dim: int,
    dtype: str = "bf16",
    is_interleaved: bool = False,
) -> None:
    """Rotary embedding of [batch, length, heads, dim]."""
    from quack.rotary import _rotary_fwd_out

    x, y = (tensor((batch, length, heads, dim), dtype) for _ in range(2))
    cos, sin = (tensor((length, dim // 2), "f32") for _ in range(2))
    recorder.name(x=x, y=y, cos=cos, sin=sin)
    _rotary_fwd_out(x, cos, sin, None, None, y, length, is_interleaved, False)


def hadamard(recorder: Recorder, *, rows: int, columns: int, dtype: str = "bf16") -> None:
    """Hadamard transform of each row, scaled to keep its norm."""
    from quack.transform.hadamard import _hadamard_transform_fwd

    x, y = (tensor((rows, columns), dtype) for _ in range(2))
    recorder.name(x=x, y=y)
    _hadamard_transform_fwd(x, y, columns**-0.5)


def grouped_gemm(
    recorder: Recorder,
    *,
    lengths: list[int],
    n: int,
    k: int,
    along: str,
    tile: tuple[int, int] = (128, 128),
    cluster: tuple[int, int] = (1, 1),
    dtype: str = "bf16",
    is_gathered: bool = False,
    m: int = 0,
) -> None:
    """A product per group; groups have unequal sizes `along` m or k.

    Args:
      is_gathered: rows of A come through a list of their numbers.
    """
    from quack.gemm import gemm

    groups, total = len(lengths), sum(lengths)
    offsets, options = tensor((groups + 1,), "i32"), dict[str, Any]()
    rows = None
    if along == "m":
        a, b = tensor((total, k), dtype), tensor((groups, n, k), dtype)
        d = tensor((total, n), dtype)
        options["cu_seqlens_m"] = offsets
        if is_gathered:
            a, rows = tensor((2 * total, k), dtype), tensor((total,), "i32")
            options["A_idx"] = rows
    else:
        a, b = tensor((total, m), dtype).mT, tensor((total, n), dtype).mT
        d = tensor((groups, m, n), dtype)
        options["cu_seqlens_k"] = offsets
    recorder.name(a=a, b=b, d=d, offsets=offsets, rows=rows)
    gemm(a, b, d, None, None, tile[0], tile[1], cluster[0], cluster[1], **options)


def hopper_gemm(
    recorder: Recorder,
    *,
    m: int,
    n: int,
    k: int,
    tile: tuple[int, int],
    cluster: tuple[int, int],
    dtype: str = "bf16",
    is_pingpong: bool = False,
) -> None:
    """D = A B^T, with the options that only Hopper's kernel has."""
    from quack.gemm import gemm

    a, b = tensor((1, m, k), dtype), tensor((1, n, k), dtype)
    d = tensor((1, m, n), dtype)
    recorder.name(a=a, b=b, d=d)
    gemm(a, b, d, None, None, tile[0], tile[1], cluster[0], cluster[1], pingpong=is_pingpong)


def activated_gemm(
    recorder: Recorder,
    *,
    m: int,
    n: int,
    k: int,
    activation: str,
    dtype: str = "bf16",
    is_gated: bool = False,
) -> None:
    """act(A B + bias), and A B + bias itself; gated: the activation of even columns times the odd ones."""
    from quack.gemm_interface import gemm_act

    a, b = tensor((m, k), dtype), tensor((k, n), dtype)
    bias = tensor((n,), dtype)
    before = tensor((m, n), dtype)
    after = tensor((m, n // 2 if is_gated else n), dtype)
    recorder.name(a=a, b=b, bias=bias, before=before, after=after)
    gemm_act(
        a, b, bias=bias, activation=activation, preact_out=before, postact_out=after, tuned=False
    )


def symmetric_gemm(recorder: Recorder, *, m: int, k: int, dtype: str = "bf16") -> None:
    """A A^T, of which one half is computed and stored twice."""
    from quack.gemm_interface import gemm_symmetric

    a, d = tensor((m, k), dtype), tensor((m, m), dtype)
    recorder.name(a=a, d=d)
    gemm_symmetric(a, a.mT, out=d)
