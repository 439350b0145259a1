"""`attention` from end to end: compiled, run on the emulator, and judged element by element."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

import attn_mlir as am
from attn_mlir import cli
from attn_mlir.errors import SpecError
from attn_mlir.reference import check_attention
from attn_mlir.runtime.call import binding
from attn_mlir.schedules.policy import attention
from attn_mlir.validation.numerics.operands import Foreign

pytestmark = pytest.mark.slow
Array = npt.NDArray[Any]
BF16 = ml_dtypes.bfloat16


def operands(
    sq: int, sk: int, *, batch: int = 1, heads: int = 2, kv_heads: int = 1, dtype: Any = BF16
) -> list[Array]:
    random = np.random.default_rng(sq + 1000 * sk)
    return [
        random.standard_normal((batch, length, count, 64)).astype(dtype)
        for length, count in ((sq, heads), (sk, kv_heads), (sk, kv_heads))
    ]


def judged(q: Array, k: Array, v: Array, **options: Any) -> None:
    o, lse = am.attention(q, k, v, return_lse=True, device="emulator", **options)
    assert (type(o), o.dtype, o.shape) == (np.ndarray, q.dtype, q.shape)
    assert (lse.dtype, lse.shape) == (np.float32, (q.shape[0], q.shape[2], q.shape[1]))
    verdict = check_attention(q, k, v, o, lse, **options)
    assert verdict.ok, str(verdict)


@pytest.mark.parametrize("dtype", [BF16, np.float16])
@pytest.mark.parametrize("mask", [am.full(), am.causal()])
@pytest.mark.long("mask1-float16", "mask0-bfloat16")
def test_numpy(dtype: Any, mask: am.Mask) -> None:
    judged(*operands(70, 140, dtype=dtype), mask=mask)


def test_more_queries_than_keys() -> None:
    judged(*operands(140, 70), mask=am.causal())


@pytest.mark.parametrize("scale", [1e-3, 1.0])
def test_scale(scale: float) -> None:
    judged(*operands(33, 40), scale=scale)


def test_without_lse() -> None:
    q, k, v = operands(20, 30)
    o = am.attention(q, k, v, device="emulator")
    assert check_attention(q, k, v, o, None).ok


def test_no_keys() -> None:
    q, k, v = operands(20, 0)
    o, lse = am.attention(q, k, v, return_lse=True, device="emulator")
    assert (o == 0).all() and np.isneginf(lse).all()


@pytest.mark.parametrize(("batch", "sq"), [(0, 20), (1, 0)])
def test_nothing_asked(batch: int, sq: int) -> None:
    q, k, v = operands(sq, 20, batch=batch)
    o, lse = am.attention(q, k, v, return_lse=True, device="emulator")
    assert o.shape == q.shape and lse.shape == (batch, 2, sq)


def test_views_of_a_packed_buffer() -> None:
    packed = np.random.default_rng(0).standard_normal((2, 50, 4, 64)).astype(BF16)
    q, k, v = np.split(packed, [2, 3], axis=2)
    judged(q, k, v, mask=am.causal())


def test_out_in_a_packed_buffer() -> None:
    packed = np.random.default_rng(0).standard_normal((2, 50, 6, 64)).astype(BF16)
    q, k, v, out = np.split(packed, [2, 3, 4], axis=2)
    kept = packed.copy()
    for splits in (1, 2):
        out[:] = np.nan
        o, lse = am.attention(
            q,
            k,
            v,
            mask=am.causal(),
            return_lse=True,
            out=out,
            num_splits=splits,
            device="emulator",
        )
        assert o is out and (packed[:, :, :4] == kept[:, :, :4]).all()
        verdict = check_attention(q, k, v, o, lse, mask=am.causal())
        assert verdict.ok, str(verdict)
        for other in (q, packed[:, :, 1:3], packed[:, :, 3:5]):
            with pytest.raises(
                am.errors.SpecError, match="^out is an output, but it shares memory"
            ):
                am.attention(q, k, v, out=other, num_splits=splits, device="emulator")
    assert (packed[:, :, :4] == kept[:, :, :4]).all()


def test_out_of_a_ragged_batch() -> None:
    ends = np.array([5, 30, 40], np.int32)
    wide = np.full((50, 4, 64), 7.0, BF16)
    q, k, v = (x[0] for x in operands(50, 50))
    o = am.attention(
        q, k, v, out=wide[:, 1:3], device="emulator",
        cu_seqlens_q=ends[::-1][::-1], cu_seqlens_k=np.repeat(ends, 2)[::2],
    )  # fmt: skip
    for begin, end in ((5, 30), (30, 40)):
        part = (x[None, begin:end] for x in (q, k, v, o))
        assert check_attention(*part, None).ok
    assert (wide[:, [0, 3]] == 7.0).all() and (wide[:5] == 7.0).all() and (wide[40:] == 7.0).all()


def test_out_tells_its_dtype() -> None:
    q, k, v = operands(20, 30)
    out = np.empty((1, 20, 2, 64), np.float32)
    assert am.attention(q, k, v, out=out, device="emulator") is out
    assert check_attention(q, k, v, out, None).ok


def test_reversed_lengths() -> None:
    q, k, v = operands(20, 30, batch=2)
    used = np.array([7, 99, 30], np.int32)[::-2]
    o = am.attention(q, k, v, seqused_k=used, device="emulator")
    assert check_attention(q[:1], k[:1], v[:1], o[:1], None).ok
    assert check_attention(q[1:], k[1:, :7], v[1:, :7], o[1:], None).ok


def test_outputs_with_strides(tmp_path: Path) -> None:
    q, k, v = operands(40, 40, batch=2)
    spec = am.mha(heads=2, kv_heads=1, head_dim=64, mask=am.causal())
    kernel = am.load(am.compile(spec).save(tmp_path / "mha.attn"))
    wide = np.full((2, 40, 4, 64), 7.0, BF16)
    stats = np.full((2, 2, 60), 7.0, np.float32)
    kernel(q, k, v, wide[:, :, 1:3], stats[:, :, 9:49], scale=0.125, device="emulator")
    verdict = check_attention(q, k, v, wide[:, :, 1:3], stats[:, :, 9:49], mask=am.causal())
    assert verdict.ok, str(verdict)
    assert (wide[:, :, [0, 3]] == 7.0).all()
    assert (stats[:, :, :9] == 7.0).all() and (stats[:, :, 49:] == 7.0).all()


def test_adversarial() -> None:
    q, k, v = operands(40, 140)
    device = am.EmulatorDevice(schedule="adversarial", seed=1)
    o = am.attention(q, k, v, mask=am.causal(), device=device)
    assert check_attention(q, k, v, o, None, mask=am.causal()).ok


def test_run_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = am.mha(heads=2, kv_heads=1, head_dim=64, mask=am.causal())
    path = str(am.compile(spec).save(tmp_path / "mha.attn"))
    run = ["run", path, "--sq", "40", "--sk", "50", "--device", "emulator"]
    assert cli.main(run) == 0
    assert "emulator, grid (1, 1, 1): ok: O error" in capsys.readouterr().out
    assert cli.main([*run, "--mask", "full"]) == 1
    assert "was compiled for mask causal, got full" in capsys.readouterr().err


def test_any_library_with_dlpack() -> None:
    q, k, v = operands(20, 30, dtype=np.float16)
    o, lse = am.attention(Foreign(q), Foreign(k), Foreign(v), return_lse=True, device="emulator")
    assert check_attention(q, k, v, o, lse).ok


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_torch(dtype: str) -> None:
    torch: Any = pytest.importorskip("torch")
    tensors = [torch.from_numpy(x.astype(np.float32)) for x in operands(20, 30)]
    q, k, v = (tensor.to(getattr(torch, dtype)) for tensor in tensors)
    o, lse = am.attention(q, k, v, return_lse=True, device="emulator")
    assert type(o) is torch.Tensor and o.dtype == q.dtype and o.shape == q.shape
    scores = torch.einsum("bqhd,bkgd->bhqk", q.double(), k.double()) / 8
    truth = torch.einsum("bhqk,bkgd->bqhd", scores.softmax(-1), v.double())
    assert (o.double() - truth).abs().max() < 0.02
    assert (lse.double() - scores.logsumexp(-1)).abs().max() < 1e-3


def test_more_sequences_than_an_axis_of_the_grid_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work tiles of a larger batch are all on the first axis."""
    q, k, v = operands(9, 20, batch=3)
    many = np.broadcast_to(k[:1], (65536, 20, 1, 64))
    (step,) = am.plan(many, many, many, device="emulator").steps
    assert step.request.tile_order == "persistent"
    assert am.plan(many[1:], many[1:], many[1:]).steps[0].request.tile_order is None
    (kept,) = am.plan(many, many, many, tile_order="single", device="emulator").steps
    assert kept.request.tile_order == "single"
    half = am.plan(many[::2], many[::2], many[::2], num_splits=2)
    assert half.steps[0].request.tile_order == "persistent"
    limits = (2**31 - 1, 65535, 2)
    monkeypatch.setattr(binding, "GRID_LIMITS", limits)
    with pytest.raises(SpecError, match="axis z would have batch = 3 CTAs .* allowed are 0 to 2"):
        am.attention(q, k, v, device="emulator")
    monkeypatch.setattr(attention, "LAST_AXIS_CTAS", limits[-1])
    judged(q, k, v)
