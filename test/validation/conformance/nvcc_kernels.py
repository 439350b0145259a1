"""Kernels that FlashInfer ships as CUDA C++ and nvcc compiles, as plain data.

Nothing but the standard library is imported here. Where a kernel has a fault, a mended copy of it is a case as well: it
shows that the fault is the only one.
"""

from __future__ import annotations

from .kernel import Fault, Kernel, Known, kernel

_MINIMUM_REWRITTEN = Known("race", "st.shared.v2.u32"), Known("race", "ld.shared.u32")
_MINIMUM_KEPT = (r"(ld\.shared\.u32\s+%r\d+, \[\S*warp_min_cost\];)", r"\1 bar.sync 0;")
_FIRST_TILE_AGAIN = (
    Known("race", "cp.async.bulk.tensor.5d.global"),
    Known("race", "st.global"),
)
_STATISTICS_AWAITED = (
    r"(tcgen05\.st\.sync\.aligned\.32x32b\.x2\.b32[^;]*;)",
    r"\1 tcgen05.wait::st.sync.aligned;",
)
_UNAWAITED_STATISTICS = Known("tensor", "tcgen05.")
_STATISTICS = Fault("row statistics are told of before they are in tensor memory")
_EPILOGUE_OPENED_ONCE = (
    r"bar\.arrive (%r\d+), (%r\d+);(?=(?s:.{1,3000}?)bar\.sync \1, \2;)",
    "",
)
_OPENED_TWICE = Known("race", "ld.v2.u64"), Known("race", "stmatrix")
_EPILOGUE = Fault("four warps open the barrier of the epilogue's eight")
_OVERRUN = Fault("a signal is overrun between two work tiles: deadlock", "")
_UNAWAITED_LOADS = Known("tensor", "tcgen05.")
_UNFENCED_COPIES = Known("proxy", "tcgen05.mma")
_P_STORED_LATE = Fault("P is multiplied before it is known to be stored, by V of other keys", "")
_P_IN_FLIGHT = Known("race", "tcgen05.mma"), Known("race", "stmatrix")
_P_TOLD_OF = (  # the arrival behind the store of P, and not in front of it
    r"(mbarrier\.arrive\.release\.cta\.shared::cta\.b64 _, \[%r\d+\];)"
    r"((?:(?!mbarrier\.arrive)(?s:.))*?stmatrix[^;]*;(?s:.{1,200}?)fence\.proxy\.async\.shared::cta;)",
    r"\2 \1",
)
_P_READ = tuple(  # the store of P waits for the product with the P before it (o_done)
    (
        rf"(stmatrix[^;]*\[%r{address}\][^;]*;)",
        "{ .reg .pred done; AGAIN: mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 done, "
        rf"[%r420+{barrier}], %r{parity}; @!done bra AGAIN; }} \1",
    )
    for address, barrier, parity in ((525, 256, 3822), (627, 264, 3821))
)
_P_PLACED = (  # P begins 5 rows behind a multiple of 1024 bytes: the descriptor's base offset
    r"dhi, 0x40004040;((?s:.{1,200}?)\[%r[56]\], \[ta\])",
    r"dhi, 0x400a4040;\1",
)
_ROWS_ARE_KEYS = (  # the mask of the last keys, which takes rows of S for others
    (r"xor\.b32\s+(%r\d+), (%r\d+), 80;", r"mov.b32 \1, \2;"),
    (r"selp\.b32\s+(%r\d+), 48, 112, %p\d+;", r"mov.b32 \1, 0;"),
)
_LANES_LEFT_OUT = Known("warp", "shfl.sync.bfly.b32")
_WARP_NOT_SYNCHRONISED = Known("race", "ld.shared.v4.u32")
_UNFENCED_WGMMA = Known("proxy", "wgmma.mma_async")
_UNAWAITED_COPIES = Fault("copies are told of before they are waited for")
_COPIES_AWAITED = (r"cp\.async\.wait_group 11;", "cp.async.wait_group 10;")
_LAST_STORE = Known("exit", "cp.async.bulk.tensor")
_UNFENCED_OF_TENSOR_MEMORY = Known("mbarrier", "mbarrier.")
NVCC: tuple[Kernel, ...] = (
    kernel(
        "cuda-fmha-d128-causal", "nvcc.forward",
        "CUTLASS forward D=128 causal, H=4 on 2, lengths 100x150 and 200x200 packed, bf16",
        *_MINIMUM_REWRITTEN, *_FIRST_TILE_AGAIN, _UNAWAITED_STATISTICS, fault=_STATISTICS,
        queries=[100, 200], keys=[150, 200], heads=4, kv_heads=2, dim=128, is_causal=True,
        multiprocessors=9,
    ),
    kernel(
        "cuda-fmha-d128-causal-mended", "nvcc.forward",
        "the same with a wait behind the statistics and a barrier in the plan",
        mended=(_MINIMUM_KEPT, _STATISTICS_AWAITED),
        queries=[100, 200], keys=[150, 200], heads=4, kv_heads=2, dim=128, is_causal=True,
        multiprocessors=8,
    ),
    kernel(
        "cuda-fmha-d192-full", "nvcc.forward",
        "CUTLASS forward D=192/128, H=2, lengths 130x300 and 64x100 packed, bf16",
        *_MINIMUM_REWRITTEN, _UNAWAITED_STATISTICS, fault=_STATISTICS,
        queries=[130, 64], keys=[300, 100], heads=2, kv_heads=2, dim=192, dim_v=128,
        multiprocessors=3,
    ),
    kernel(
        "cuda-mla-decode", "nvcc.latent_decode",
        "CUTLASS latent decode H=128, 300 and 100 keys in pages of 64, bf16",
        Known("race", "tcgen05.mma"), _UNFENCED_COPIES, fault=_UNAWAITED_COPIES,
        keys=[300, 100], page=64,
    ),
    kernel(
        "cuda-mla-decode-mended", "nvcc.latent_decode",
        "the same, one group of copies fewer under way at each wait",
        _UNFENCED_COPIES, mended=(_COPIES_AWAITED,), keys=[300, 100], page=64,
    ),
    kernel(
        "cuda-sm90-mla-decode", "nvcc.hopper_latent_decode",
        "latent decode H=128, 300 and 77 keys in pages of 64, in splits, bf16",
        _UNFENCED_WGMMA, _LANES_LEFT_OUT, _WARP_NOT_SYNCHRONISED, target="sm_90a", keys=[300, 77], page=64,
    ),
    kernel(
        "cuda-sm90-prefill-d128", "nvcc.hopper_prefill",
        "prefill D=128 causal, H=2 on 1, S=200x300, bf16",
        *_OPENED_TWICE, fault=_EPILOGUE, target="sm_90a",
        queries=[200], keys=[300], heads=2, kv_heads=1, dim=128, is_causal=True,
    ),
    kernel(
        "cuda-sm90-prefill-d128-mended", "nvcc.hopper_prefill",
        "the same without the arrivals in front of the epilogue's barrier",
        mended=(_EPILOGUE_OPENED_ONCE,), target="sm_90a",
        queries=[200], keys=[300], heads=2, kv_heads=1, dim=128, is_causal=True,
    ),
    kernel(
        "cuda-sm90-prefill-d64", "nvcc.hopper_prefill", "prefill D=64, H=2, S=256x200, f16",
        *_OPENED_TWICE, fault=_EPILOGUE, target="sm_90a",
        queries=[256], keys=[200], heads=2, kv_heads=2, dim=64, dtype="f16",
    ),
    kernel(
        "cuda-decode", "nvcc.decode", "decode D=128, H=8 on 2, 200 keys, bf16",
        target="sm_90a", length=200, heads=8, kv_heads=2, dim=128,
    ),
    kernel(
        "cuda-decode-split", "nvcc.decode", "decode D=128, H=8 on 2, 700 keys in splits, bf16",
        Known("uninitialised", "ld.shared.v4.u32"), target="sm_90a", length=700, heads=8, kv_heads=2, dim=128,
    ),
    kernel(
        "cuda-rope", "nvcc.rotate", "rotary positions in Q and K, 5 rows, H=4 on 2 D=128, bf16",
        positions=[0, 3, 17, 100, 511], heads=4, kv_heads=2, dim=128,
    ),
    kernel(
        "cuda-append", "nvcc.append", "K and V of 3 and 20 new rows appended to pages of 16, H=2 D=128, bf16",
        before=[14, 40], added=[3, 20], heads=2, dim=128, page=16,
    ),
    kernel(
        "cuda-generated-decode", "nvcc.generated_decode",
        "generated decode D=128, H=8 on 1, 300 and 77 keys in pages of 16, bf16",
        _UNAWAITED_LOADS, keys=[300, 77], heads=8, kv_heads=1,
    ),
    kernel(
        "cuda-nvfp4-decode", "nvcc.nvfp4_decode",
        "generated decode D=128, H=8 on 1, 300 and 77 keys in NVFP4 pages of 16, e4m3",
        *_P_IN_FLIGHT, _UNAWAITED_LOADS, fault=_P_STORED_LATE, keys=[300, 77], heads=8, kv_heads=1,
    ),
    kernel(
        "cuda-nvfp4-decode-mended", "nvcc.nvfp4_decode",
        "the same: order of P and its products, P's base offset, keys of the mask",
        _UNAWAITED_LOADS, mended=(_P_TOLD_OF, *_P_READ, _P_PLACED, *_ROWS_ARE_KEYS),
        keys=[300, 77], heads=8, kv_heads=1,
    ),
    kernel(
        "cuda-generated-context", "nvcc.generated_context",
        "generated context D=128 causal, H=4 on 1, 60x200 and 100x100 in pages of 32, bf16",
        _UNAWAITED_LOADS, queries=[60, 100], keys=[200, 100], heads=4, kv_heads=1, page=32,
    ),
    kernel(
        "cuda-generated-context-fp8", "nvcc.generated_context",
        "generated context D=128 causal, H=4 on 1, 60x200 and 100x100 in pages of 32, e4m3",
        _UNAWAITED_LOADS, fault=_OVERRUN, queries=[60, 100], keys=[200, 100], heads=4, kv_heads=1, page=32, dtype="e4m3",
    ),
    kernel(
        "cuda-fp8-product", "nvcc.fp8_product",
        "GEMM 256x256x512, e4m3 with float scales per 128 of k, one CTA, to bf16", _LAST_STORE,
        m=256, n=256, k=512,
    ),
    kernel(
        "cuda-fp8-product-pairs", "nvcc.fp8_product",
        "GEMM 256x384x256, e4m3 with float scales per 128 of k, CTA pairs, to bf16",
        _LAST_STORE, _UNFENCED_OF_TENSOR_MEMORY,
        m=256, n=384, k=256, ctas=2,
    ),
    kernel(
        "cuda-fp8-grouped", "nvcc.fp8_grouped",
        "GEMM of groups of 64, 0 and 200 rows, n=256 k=256, e4m3 with float scales, to bf16", _LAST_STORE,
        rows=[64, 0, 200], n=256, k=256,
    ),
    kernel(
        "cuda-mxfp8-product", "nvcc.scaled_product",
        "GEMM 256x256x512, tile 128x128x128, mxfp8_e4m3 to f16", _LAST_STORE,
        m=256, n=256, k=512,
        form="mxfp8_e4m3", tile=[128, 128, 128],
    ),
    kernel(
        "cuda-nvfp4-product", "nvcc.scaled_product",
        "GEMM 512x256x512, tile 128x128x256, cluster 2x1, nvfp4 to f16",
        _LAST_STORE, _UNFENCED_OF_TENSOR_MEMORY, m=512, n=256, k=512,
        form="nvfp4", tile=[128, 128, 256], cluster=[2, 1],
    ),
)  # fmt: skip
