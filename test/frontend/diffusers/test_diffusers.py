"""The backend of `diffusers` against the package's `native` backend."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
pytest.importorskip("diffusers", minversion="0.42")

import attn_mlir.diffusers as door  # noqa: E402
from attn_mlir import env  # noqa: E402
from attn_mlir.diffusers import parallel  # noqa: E402
from attn_mlir.errors import SpecError  # noqa: E402
from attn_mlir.validation.distributed import launch  # noqa: E402

host: Any = pytest.importorskip("diffusers.models.attention_dispatch")
REGISTRY, NAMES = host._AttentionBackendRegistry, host.AttentionBackendName

BATCH, SQ, SK, HEADS, D = 2, 24, 40, 2, 64


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The lines of the log, with those that were there before."""
    lines: list[str] = []
    monkeypatch.setattr(env, "log_once", lambda _, text: lines.append(text))
    return lines


def operands(kv_heads: int = HEADS, sk: int = SK, dtype: Any = None) -> list[Any]:
    torch.manual_seed(0)
    shapes = [(BATCH, SQ, HEADS, D), (BATCH, sk, kv_heads, D), (BATCH, sk, kv_heads, D)]
    return [torch.randn(*shape).to(dtype or torch.bfloat16) for shape in shapes]


def masks() -> dict[str, Any]:
    torch.manual_seed(1)
    seen = torch.ones(BATCH, SK, dtype=torch.bool)
    seen[0, 33:] = seen[1, :5] = False
    return {
        "none": None,
        "padding": seen,
        "padding, added": torch.where(seen, 0.0, -torch.inf).to(torch.bfloat16),
        "of all heads": seen[:, None, None],
        "of scores": (torch.rand(BATCH, HEADS, SQ, SK) > 0.2),
        "added": torch.randn(1, HEADS, SQ, SK),
    }


def judged(ours: Any, *tensors: Any, **options: Any) -> None:
    """Ours is as far from the package's result in f32 as its result in bf16 is."""
    mask = options.pop("attn_mask", None)
    found: list[Any] = []
    for dtype in (torch.float32, torch.bfloat16):
        is_added = mask is not None and mask.dtype != torch.bool
        options["attn_mask"] = mask.to(dtype) if is_added else mask
        found.append(host._native_attention(*(x.to(dtype) for x in tensors), **options).float())
    truth, native = found
    assert 0 < (ours.float() - truth).abs().max() <= 2 * (native - truth).abs().max() < 0.1


@pytest.mark.long("none", "padding, added", "of *")
@pytest.mark.parametrize("mask", masks())
def test_a_mask_is_that_of_native(mask: str) -> None:
    given, tensors = masks()[mask], operands()
    with door.register(), host.attention_backend(door.NAME):
        o = host.dispatch_attention_fn(*tensors, attn_mask=given)
    judged(o, *tensors, attn_mask=given)


@pytest.mark.parametrize(
    "options", [{"is_causal": True}, {"scale": 0.05}, {"enable_gqa": True}], ids=str
)
def test_an_option_means_what_it_means_to_native(options: dict[str, Any]) -> None:
    tensors = operands(kv_heads=1 if "enable_gqa" in options else HEADS)
    with door.register():
        o = host.dispatch_attention_fn(*tensors, backend=door.NAME, **options)
    judged(o, *tensors, **options)


def test_lse_is_by_rows() -> None:
    q, k, v = operands()
    with door.register():
        wanted = {"return_lse": True}
        o, lse = host.dispatch_attention_fn(q, k, v, backend="attn_mlir", attention_kwargs=wanted)
    scores = torch.einsum("bqhd,bkhd->bqhk", q.float(), k.float()) * D**-0.5
    assert lse.shape == (BATCH, SQ, HEADS) and lse.dtype == torch.float32
    torch.testing.assert_close(lse, scores.logsumexp(-1), atol=1e-3, rtol=1e-3)
    assert torch.equal(o, door.attention(q, k, v))


REFUSED = {
    "dropout_p must be 0, got 0.1": {"dropout_p": 0.1},
    "window_size must be": {"attention_kwargs": {"window_size": (3, 3)}},
    "softcap must be 0, got 5.0": {"attention_kwargs": {"softcap": 5.0}},
    "attn_mask and is_causal exclude": {
        "attn_mask": torch.ones(BATCH, SK, dtype=torch.bool),
        "is_causal": True,
    },
    "attn_mask must be a tensor": {"attn_mask": [1]},
    "attn_mask has shape": {"attn_mask": torch.ones(3, SK, dtype=torch.bool)},
    "batch and heads must agree": {"kv_heads": 3},
    "query is torch.float32": {"dtype": torch.float32},
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_is_not_offered_is_refused_by_the_name_of_the_package(message: str) -> None:
    options = dict(REFUSED[message])
    tensors = operands(**{x: options.pop(x) for x in ("kv_heads", "dtype") if x in options})
    with door.register(), pytest.raises(SpecError, match=message):
        host.dispatch_attention_fn(*tensors, backend=door.NAME, **options)


def test_a_fallback_computes_what_is_refused(said: list[str]) -> None:
    tensors = operands(dtype=torch.float32)
    with door.register(fallback="sdpa"):
        o = host.dispatch_attention_fn(*tensors, backend=door.NAME)
        assert torch.equal(o, host._native_attention(*tensors))
        assert [x for x in said if "diffusers falls back" in x and "query is torch.float32" in x]
        for name, value in (("return_lse", True), ("window_size", (1, 1))):
            with pytest.raises(SpecError):
                host.dispatch_attention_fn(
                    *tensors, backend=door.NAME, attention_kwargs={name: value}
                )
        said.clear()
        host.dispatch_attention_fn(*operands(), backend=door.NAME)
        assert not said


def state() -> list[Any]:
    """The state of the package that a registration changes."""
    tables = (REGISTRY._backends, REGISTRY._constraints, REGISTRY._supported_arg_names)
    names = (NAMES._member_map_, NAMES._value2member_map_, NAMES._member_names_)
    one = (REGISTRY._supports_context_parallel, REGISTRY._active_backend)
    return [list(x) for x in (*tables, *names)] + [sorted(one[0]), one[1], list(NAMES)]


def test_a_name_stays_until_it_is_unregistered() -> None:
    before = state()
    door.register()
    door.register(fallback="sdpa")
    member = NAMES(door.NAME)
    assert isinstance(member, NAMES) and member.value == door.NAME and member in list(NAMES)
    assert member.name == "ATTN_MLIR" and NAMES["ATTN_MLIR"] is member
    assert REGISTRY._is_context_parallel_available(member)
    REGISTRY.set_active_backend(member)
    door.unregister()
    assert state() == before
    door.unregister()
    door.unregister("native")
    assert state() == before
    with pytest.raises(RuntimeError), door.register("another"):
        assert NAMES("another") in REGISTRY.list_backends()
        raise RuntimeError
    assert state() == before


@pytest.mark.parametrize("name", ["native", "_native_math", "flash", "Upper", "a b", 3])
def test_invalid_names(name: Any) -> None:
    before = state()
    with pytest.raises(SpecError, match="name"):
        door.register(name)
    with pytest.raises(SpecError, match="fallback"):
        door.register(fallback=name)
    assert state() == before


@pytest.mark.parametrize("version, fits", [("0.41.9", False), ("0.42.0", True), ("0.43.0", False)])
def test_other_versions_are_refused(
    version: str, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("diffusers.__version__", version)
    if fits:
        door.register()
        door.unregister()
        return
    with pytest.raises(ImportError, match=r"diffusers 0.42 or newer, below 0.43, got " + version):
        door.register()


def test_every_argument_that_the_package_passes_on_is_taken() -> None:
    """The package drops arguments that a backend does not name, without a word."""
    passed: set[str] = set()
    for function in REGISTRY._backends.values():
        passed |= {*inspect.signature(function).parameters}
    assert passed <= {*inspect.signature(door.attention).parameters}


def ring(rank: int) -> Any:
    """O, LSE and what a rank keeps, after it has seen the keys of both, as the template merges them."""
    q, k, v = operands(sk=SQ)
    context = SimpleNamespace()
    context.save_for_backward = lambda *x: setattr(context, "saved_tensors", x)
    merged: list[Any] = []
    for step in (rank, 1 - rank):
        rows, mine = slice(12 * step, 12 * step + 12), slice(12 * rank, 12 * rank + 12)
        chunk = (q[:, mine], k[:, rows], v[:, rows])
        options = (None, 0.0, False, None, False, True)
        found = parallel.forward_op(context, *chunk, *options, _save_ctx=step == rank)
        o, lse = found[0].float(), found[1][..., None]
        if merged:
            o = merged[0] - torch.sigmoid(lse - merged[1]) * (merged[0] - o)
            lse = merged[1] - torch.nn.functional.logsigmoid(merged[1] - lse)
        merged = [o, lse]
    return context, merged[0].to(q.dtype), merged[1][..., 0]


@pytest.mark.long
def test_a_ring_of_two_gives_what_one_call_gives() -> None:
    """Values and gradients, of which each rank has a part."""
    q, k, v = operands(sk=SQ)
    whole = [x.float().requires_grad_() for x in (q, k, v)]
    do = torch.randn(BATCH, SQ, HEADS, D, generator=torch.Generator().manual_seed(2)).bfloat16()
    truth = host._native_attention(*whole)
    truth.backward(do.float())
    made = [torch.zeros_like(x) for x in whole]
    for rank in range(2):
        mine = slice(12 * rank, 12 * rank + 12)
        context, o, lse = ring(rank)
        torch.testing.assert_close(o.float(), truth[:, mine], atol=0.01, rtol=0.01)
        for step in (rank, 1 - rank):
            rows = slice(12 * step, 12 * step + 12)
            chunk = {"query": q[:, mine], "key": k[:, rows], "value": v[:, rows]}
            found = parallel.backward_op(context, do[:, mine], **chunk, out=o, lse=lse)
            for total, x, part in zip(made, found, (mine, rows, rows), strict=True):
                total[:, part] += x.float()
    for total, x in zip(made, whole, strict=True):
        torch.testing.assert_close(total, x.grad, atol=0.02, rtol=0.02)


@pytest.mark.long
@pytest.mark.parametrize("mask", ["padding", "added"])
def test_gradients_of_ulysses_are_through_the_mask(mask: str) -> None:
    """A head size that is filled up, and the operands that were saved."""
    q, k, v = (x[..., :44].contiguous() for x in operands())
    given = masks()[mask]
    given = given[:, None, None] if given.dim() == 2 else given
    whole = [x.float().requires_grad_() for x in (q, k, v)]
    truth = host._native_attention(*whole, attn_mask=given)
    do = torch.randn_like(truth).bfloat16()
    truth.backward(do.float())
    context = SimpleNamespace()
    context.save_for_backward = lambda *x: setattr(context, "saved_tensors", x)
    options = (given, 0.0, False, None, False, False)
    o = parallel.forward_op(context, q, k, v, *options)
    torch.testing.assert_close(o.float(), truth, atol=0.02, rtol=0.02)
    for x, y in zip(parallel.backward_op(context, do), whole, strict=True):
        torch.testing.assert_close(x.float(), y.grad, atol=0.02, rtol=0.02)


def test_a_mask_in_a_ring_is_refused() -> None:
    setup = SimpleNamespace(context_parallel_config=SimpleNamespace(ring_degree=2))
    with pytest.raises(SpecError, match="attn_mask excludes ring_degree > 1"):
        door.attention(*operands(), masks()["padding"], _parallel_config=setup)


@pytest.mark.long
@pytest.mark.parametrize("scheme", ["ring", "ulysses"])
def test_two_processes_by_the_template_of_the_package(scheme: str) -> None:
    """Rows of one call on two ranks, by gloo: the largest errors of O and of the gradients."""
    for found in launch.run("diffusers_template.errors", 2, scheme):
        assert len(found) == 4 and 0 < max(found) < 0.02, found
