"""The kernels from elsewhere that the emulator has to run, as plain data.

Read by both sides: `_peer.py` and what it imports compile a case in the environment of the peers, `judging.py` makes its
operands and judges its numbers in ours. Nothing but the standard library is imported here.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from .kernel import Kernel, Known
from .kernels import KERNELS


@dataclass(frozen=True)
class Attention:
    """FlashAttention-4's forward, as its own `_flash_attn_fwd` launches it.

    Attributes:
      splits: of the keys; more than one also launches the combine kernel.
      window: keys that a query sees to its left, itself not counted; None for all of them.
      head_dim_v: None when it is `head_dim`.
      one_cta: keeps it from pairing CTAs where it would.
    """

    name: str
    batch: int = 1
    heads: int = 2
    kv_heads: int = 2
    sq: int = 512
    sk: int = 512
    head_dim: int = 128
    head_dim_v: int | None = None
    dtype: str = "bf16"
    is_causal: bool = False
    window: int | None = None
    splits: int = 1
    one_cta: bool = False

    package = "flash-attn-4"

    @property
    def title(self) -> str:
        """What the kernel computes, in one line."""
        sizes = f"D={self.head_dim}"
        if self.head_dim_v is not None:
            sizes += f"/{self.head_dim_v}"
        mask = "causal" if self.is_causal else "full"
        if self.window is not None:
            mask += f", window {self.window}"
        heads = f"H={self.heads}"
        if self.kv_heads != self.heads:
            heads += f" on {self.kv_heads}"
        lengths = f"S={self.sq}" if self.sq == self.sk else f"S={self.sq}x{self.sk}"
        extra = f", {self.splits} splits" if self.splits > 1 else ""
        extra += ", no CTA pairs" if self.one_cta else ""
        return f"forward {sizes} {mask}, B={self.batch} {heads} {lengths}, {self.dtype}{extra}"


@dataclass(frozen=True)
class Combine:
    """FlashAttention-4's reduction of split-K partial results, alone.

    Attributes:
      empty_splits: of every row, this many splits saw no key (LSE of minus infinity).
      known: findings that there are, and no others.
    """

    name: str
    splits: int
    batch: int
    sq: int
    heads: int
    head_dim: int
    dtype: str = "bf16"
    empty_splits: int = 0
    known: tuple[Known, ...] = field(default=(), repr=False)  # no part of what is compiled

    package = "flash-attn-4"

    @property
    def title(self) -> str:
        """What the kernel computes, in one line."""
        return (
            f"split-K combine D={self.head_dim}, {self.splits} splits, B={self.batch} "
            f"H={self.heads} S={self.sq}, {self.dtype}"
        )


@dataclass(frozen=True)
class Gemm:
    """A batched D = A B^T of quack-kernels: A [l, m, k], B [l, n, k], D [l, m, n].

    Attributes:
      tile: rows and columns of D per MMA tile.
      cluster: CTAs along m and n; an even first number with a tile of 128 or 256 rows pairs CTAs.
      m_major: A and B are stored with m or n contiguous.
      is_dynamic: persistent with cluster launch control.
      split_k: CTAs that share one tile of D along k.
      add: D = A B^T + C.
    """

    name: str
    m: int
    n: int
    k: int
    tile: tuple[int, int]
    cluster: tuple[int, int]
    batch: int = 1
    dtype: str = "bf16"
    out_dtype: str = "bf16"
    m_major: bool = False
    is_dynamic: bool = False
    split_k: int = 1
    add: bool = False

    package = "quack-kernels"

    @property
    def title(self) -> str:
        """What the kernel computes, in one line."""
        extra = "".join(
            text
            for use, text in (
                (self.add, " + C"),
                (self.m_major, ", m-major"),
                (self.is_dynamic, ", cluster launch control"),
                (self.split_k > 1, f", {self.split_k} splits"),
            )
            if use
        )
        return (
            f"GEMM {self.batch}x{self.m}x{self.n}x{self.k}, tile {self.tile[0]}x{self.tile[1]}, "
            f"cluster {self.cluster[0]}x{self.cluster[1]}, {self.dtype} to {self.out_dtype}{extra}"
        )


@dataclass(frozen=True)
class Format:
    """A block-scaled format: `element` is an ml_dtypes name without its `float`, one scale per `block` of k."""

    element: str
    bits: int
    block: int
    scale: str


FORMATS = {
    "mxfp8_e4m3": Format("8_e4m3fn", 8, 32, "8_e8m0fnu"),
    "mxfp8_e5m2": Format("8_e5m2", 8, 32, "8_e8m0fnu"),
    "mxfp6_e2m3_packed": Format("6_e2m3fn", 6, 32, "8_e8m0fnu"),
    "mxfp6_e3m2_packed": Format("6_e3m2fn", 6, 32, "8_e8m0fnu"),
    "mxfp4": Format("4_e2m1fn", 4, 32, "8_e8m0fnu"),
    "nvfp4": Format("4_e2m1fn", 4, 16, "8_e4m3fn"),
}


@dataclass(frozen=True)
class ScaledGemm:
    """A block-scaled D = A B^T of quack-kernels: A [l, m, k] and B [l, n, k] with scales along k.

    Attributes:
      formats: of A and B, keys of `FORMATS`.
    """

    name: str
    m: int
    n: int
    k: int
    tile: tuple[int, int]
    cluster: tuple[int, int]
    formats: tuple[str, str]
    batch: int = 1
    out_dtype: str = "bf16"

    package = "quack-kernels"

    @property
    def title(self) -> str:
        """What the kernel computes, in one line."""
        first, second = self.formats
        kinds = first if first == second else f"{first} by {second}"
        return (
            f"GEMM {self.batch}x{self.m}x{self.n}x{self.k}, tile {self.tile[0]}x{self.tile[1]}, "
            f"cluster {self.cluster[0]}x{self.cluster[1]}, {kinds} to {self.out_dtype}"
        )


@dataclass(frozen=True)
class TritonGemm:
    """A GEMM by Triton's compiler: A [m, k] and B [k, n], both row-major.

    Attributes:
      tma: tiles come through tensor maps that the kernel itself makes in global memory.
      warp_specialize: Triton gives loads and products to warps of their own.
    """

    name: str
    m: int
    n: int
    k: int
    tile: tuple[int, int, int]
    dtype: str = "bf16"
    tma: bool = False
    warp_specialize: bool = False
    stages: int = 3
    warps: int = 4

    package = "triton"

    @property
    def title(self) -> str:
        """What the kernel computes, in one line."""
        how = "tensor maps" if self.tma else "pointers"
        if self.warp_specialize:
            how += ", warp-specialised"
        tile = "x".join(map(str, self.tile))
        return f"GEMM {self.m}x{self.n}x{self.k}, tile {tile}, {self.dtype}, {how}"


@dataclass(frozen=True)
class TritonAttention:
    """A forward attention by Triton's compiler, tiles through tensor maps made in the kernel."""

    name: str
    batch: int
    heads: int
    length: int
    head_dim: int
    is_causal: bool
    dtype: str = "f16"
    warp_specialize: bool = False
    warps: int = 4

    package = "triton"

    @property
    def title(self) -> str:
        """What the kernel computes, in one line."""
        mask = "causal" if self.is_causal else "full"
        extra = ", warp-specialised" if self.warp_specialize else ""
        return (
            f"attention D={self.head_dim} {mask}, B={self.batch} H={self.heads} S={self.length}, "
            f"{self.dtype}{extra}"
        )


Case = Kernel | Attention | Combine | Gemm | ScaledGemm | TritonGemm | TritonAttention

_FULL = Attention("fa4-d128-full")

CASES: tuple[Case, ...] = (
    Attention("fa4-d128-causal", is_causal=True),
    _FULL,
    replace(_FULL, name="fa4-d128-full-1cta", one_cta=True),
    Attention("fa4-d128-causal-s1024", sq=1024, sk=1024, is_causal=True),
    Attention("fa4-d128-causal-grouped", heads=4, kv_heads=1, is_causal=True),
    Attention("fa4-d128-full-grouped", heads=4, kv_heads=1),
    Attention("fa4-d128-causal-odd", sq=300, sk=500, is_causal=True, dtype="f16"),
    Attention("fa4-d64-causal", batch=2, head_dim=64, is_causal=True),
    Attention("fa4-d192-128-causal", head_dim=192, head_dim_v=128, is_causal=True),
    Attention("fa4-d128-window", window=100, is_causal=True),
    Attention("fa4-d128-split", heads=1, kv_heads=1, sq=128, sk=1024, splits=4),
    Combine(
        "fa4-combine-d128", splits=5, batch=2, sq=37, heads=2, head_dim=128,
        known=(Known("uninitialised", "ld.shared.b32"),),
    ),
    Combine(
        "fa4-combine-d64", splits=12, batch=1, sq=64, heads=3, head_dim=64, dtype="f16", empty_splits=3
    ),
    Gemm("gemm-1cta", m=512, n=384, k=256, tile=(128, 128), cluster=(1, 1)),
    Gemm("gemm-2cta", m=512, n=512, k=256, tile=(256, 256), cluster=(2, 1)),
    Gemm("gemm-2cta-edges", m=392, n=328, k=200, tile=(256, 128), cluster=(2, 2), batch=2),
    Gemm(
        "gemm-1cta-m-major", m=256, n=192, k=128, tile=(128, 192), cluster=(1, 2), m_major=True, add=True
    ),
    Gemm(
        "gemm-2cta-clc", m=768, n=768, k=128, tile=(256, 128), cluster=(2, 1), dtype="f16",
        out_dtype="f32", is_dynamic=True,
    ),
    Gemm("gemm-1cta-split", m=256, n=256, k=1024, tile=(128, 128), cluster=(1, 1), split_k=4),
    ScaledGemm(
        "gemm-1cta-mxfp8", m=256, n=256, k=512, tile=(128, 128), cluster=(1, 1), batch=2,
        formats=("mxfp8_e4m3", "mxfp8_e4m3"),
    ),
    ScaledGemm(
        "gemm-2cta-mxfp8", m=512, n=384, k=256, tile=(256, 192), cluster=(2, 1),
        formats=("mxfp8_e5m2", "mxfp8_e4m3"), out_dtype="f32",
    ),
    ScaledGemm(
        "gemm-2cta-nvfp4", m=512, n=256, k=512, tile=(256, 128), cluster=(2, 1),
        formats=("nvfp4", "nvfp4"),
    ),
    ScaledGemm(
        "gemm-1cta-mxfp4", m=256, n=256, k=256, tile=(128, 128), cluster=(1, 1),
        formats=("mxfp4", "mxfp4"),
    ),
    ScaledGemm(
        "gemm-1cta-mxfp6-mxfp4", m=128, n=256, k=256, tile=(128, 128), cluster=(1, 1),
        formats=("mxfp6_e3m2_packed", "mxfp4"),
    ),
    ScaledGemm(
        "gemm-2cta-mxfp8-mxfp6", m=256, n=128, k=256, tile=(256, 128), cluster=(2, 1),
        formats=("mxfp8_e4m3", "mxfp6_e2m3_packed"),
    ),
    TritonGemm("triton-gemm", m=256, n=256, k=256, tile=(128, 128, 64)),
    TritonGemm("triton-gemm-tma", m=256, n=320, k=192, tile=(128, 64, 64), dtype="f16", tma=True),
    TritonGemm(
        "triton-gemm-ws", m=512, n=256, k=512, tile=(128, 128, 64), tma=True, warp_specialize=True
    ),
    TritonAttention("triton-attention", batch=1, heads=2, length=256, head_dim=64, is_causal=True),
    TritonAttention(
        "triton-attention-ws", batch=1, heads=1, length=512, head_dim=128, is_causal=False,
        warp_specialize=True,
    ),
    *KERNELS,
)  # fmt: skip


def case_named(name: str) -> Case:
    """The case of that name.

    Raises:
      KeyError: there is none.
    """
    for case in CASES:
        if case.name == name:
            return case
    raise KeyError(f"no case is named {name!r}: {', '.join(case.name for case in CASES)}")
