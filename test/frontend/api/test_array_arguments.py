"""Arrays that are not what they look like, in every array argument of every public function.

Each call of `CALLS` is right as it stands. One of its arrays is replaced by an object that stands for something
else, and the call has to be refused by the name of what it is, before anything is compiled or launched.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

torch: Any = pytest.importorskip("torch")
dist: Any = pytest.importorskip("torch.distributed")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402 # pyright: ignore
from torch.autograd import forward_ad  # noqa: E402 # pyright: ignore
from torch.nn.attention.bias import causal_lower_right  # noqa: E402 # pyright: ignore

import attn_mlir as am  # noqa: E402
from attn_mlir import distributed, flash, flash_mla, flashinfer, ring_flash_attn  # noqa: E402
from attn_mlir.api import plan as planning  # noqa: E402
from attn_mlir.errors import SpecError  # noqa: E402
from attn_mlir.validation.arguments.calls import OWN  # noqa: E402
from attn_mlir.validation.arguments.distributed import DISTRIBUTED  # noqa: E402
from attn_mlir.validation.arguments.flashinfer import FLASHINFER  # noqa: E402
from attn_mlir.validation.arguments.operands import DIM, F32, HEADS  # noqa: E402

CALLS = OWN | FLASHINFER | DISTRIBUTED


class Named(torch.Tensor):
    """A subclass that says nothing about what it means."""


def subclass(tensor: Any) -> Any:
    return tensor.as_subclass(Named)


def bias(_: Any) -> Any:
    return causal_lower_right(8, 8)


def sparse(tensor: Any) -> Any:
    return torch.zeros_like(tensor, dtype=F32).to(tensor.dtype).to_sparse()


def nested(tensor: Any) -> Any:
    return torch.nested.nested_tensor(list(tensor))


def jagged(tensor: Any) -> Any:
    return torch.nested.nested_tensor([tensor[:1]] * 2, layout=torch.jagged)


def quantised(tensor: Any) -> Any:
    return torch.quantize_per_tensor(tensor.float(), 0.1, 0, torch.qint8)


def dual(tensor: Any) -> Any:
    return forward_ad.make_dual(tensor, torch.ones_like(tensor))


def wanted(tensor: Any) -> Any:
    return tensor.detach().requires_grad_()


def fake(tensor: Any) -> Any:
    return FakeTensorMode().from_tensor(tensor)


NOT_ALL_NESTED = "must be nested, or none of them|must be .batch, heads, ragged, head_dim."
KINDS: dict[Callable[..., Any], str] = {
    subclass: "Named, which means more than its memory holds",
    bias: "CausalBias, which means more than its memory holds",
    jagged: f"NestedTensor, which means more than its memory holds|{NOT_ALL_NESTED}",
    sparse: "must be a dense tensor, got one of layout torch.sparse_coo",
    nested: f"must be a dense tensor, got one nested|{NOT_ALL_NESTED}|only torch.jagged",
    quantised: "is a quantised tensor|attn_mask is torch.qint8",
    dual: "has a tangent",
    wanted: "requires a gradient",
    fake: "no elements here|convert all Tensors to FakeTensors|DataDependentOutputException",
}


OPERANDS = (
    *("q", "k", "v", "qkv", "kv", "query", "key", "value"),
    *("q_nope", "q_rope", "k_nope", "k_rope"),
)
TRAINED = (
    *("attention, padded", "attention, packed", "attention, captured"),
    *("scaled_dot_product_attention", "flex_attention", "mla"),
    *(x for x in CALLS if "flash_attn_" in x),
    *("diffusers.attention", "ring_attention", "gather_attention"),
    *("ulysses_attention", "ulysses_ring_attention", "unshard"),
)

NOT_SENT = "is fake, on meta, or in a function that torch.func transforms"  # of several ranks
WITH_VMAP = ("diffusers.attention", "scaled_dot_product_attention", "flex_attention")


def cases() -> Iterator[Any]:
    for name, (_, arrays) in CALLS.items():
        for argument in arrays:
            yield pytest.param(name, argument, id=f"{name}-{argument}")


@pytest.fixture(scope="module", autouse=True)
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A group of this process."""
    store = f"file://{tmp_path_factory.mktemp('group')}/store"
    dist.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture(autouse=True)
def nothing_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **_options: object) -> None:
        raise AssertionError("a kernel would be compiled")

    monkeypatch.setattr(planning, "compile", refuse)


@pytest.mark.parametrize(("name", "argument"), cases())
def test_refused_by_name(name: str, argument: str) -> None:
    function, arrays = CALLS[name]
    missed: dict[str, str] = {}
    for make, said in KINDS.items():
        if name == "shard" and make in (dual, wanted, fake):
            continue  # PyTorch cuts
        tensor = arrays[argument]
        if make in (dual, wanted) and not tensor.is_floating_point():
            continue  # integers have no derivatives
        if make in (sparse, nested) and tensor.dtype == torch.float8_e4m3fn:
            continue  # PyTorch makes none of 8 bits
        if (
            make is wanted
            and argument in ("sinks", "x")
            and name in TRAINED
            and name in DISTRIBUTED
        ):
            continue  # likewise
        if make is fake and name in DISTRIBUTED:
            said = NOT_SENT
        if make is bias and argument == "attn_mask":
            continue  # what it is for
        if make is wanted and name in TRAINED and argument in OPERANDS:
            continue  # autograd gets it
        if make is fake and (argument in ("q", "query", "qkv", "out") or name == "plan"):
            continue  # the whole call is traced then, or nothing is launched
        with torch.enable_grad(), forward_ad.dual_level() if make is dual else nullcontext():
            try:
                function(**{**arrays, argument: make(tensor)})
            except Exception as error:
                is_typed = (
                    isinstance(error, SpecError) or make is fake
                )  # PyTorch refuses some itself
                if not (is_typed and re.search(said, f"{type(error).__name__}: {error}")):
                    missed[make.__name__] = f"{type(error).__name__}: {error}"
            else:
                missed[make.__name__] = "taken"
    assert not missed


def mapped(call: Callable[[Any], Any], tensor: Any) -> None:
    torch.vmap(call, out_dims=None)(tensor[None])


def pushed(call: Callable[[Any], Any], tensor: Any) -> None:
    torch.func.jvp(call, (tensor,), (tensor,))


def pulled(call: Callable[[Any], Any], tensor: Any) -> None:
    torch.func.vjp(call, tensor)


def differentiated(call: Callable[[Any], Any], tensor: Any) -> None:
    torch.func.jacfwd(call)(tensor)


WAYS: dict[Callable[..., Any], str] = {
    mapped: "no rule for torch.vmap|no elements here|nor transformed by torch.func: leave it out",
    pushed: "has a tangent",
    pulled: "requires a gradient",
    differentiated: "has a tangent",
}


@pytest.mark.parametrize(("name", "argument"), cases())
def test_transformed_by_name(name: str, argument: str) -> None:
    """What `torch.func` wraps has the class of a plain tensor."""
    function, arrays = CALLS[name]
    missed: dict[str, str] = {}
    for way, said in WAYS.items():
        if name == "shard":
            continue  # likewise
        tensor = arrays[argument]
        if way is not mapped and not tensor.is_floating_point():
            continue
        if way is differentiated and tensor.numel() > 1000:
            continue  # a column for each element
        if way is mapped and name in ("plan", "get_batch_indices_positions"):
            continue  # launch nothing
        if name in DISTRIBUTED:
            said += f"|{NOT_SENT}"
        if name == "attention":
            said += "|out cannot be recorded"  # which is in this call
        if name == "BatchAttention":
            said += "|paged_kv_indptr is .* that is traced"  # by what plan computes
        if way is mapped and name in WITH_VMAP:
            said = "a kernel would be compiled"  # which have a rule
        try:
            way(lambda x, argument=argument: function(**{**arrays, argument: x}), tensor)
        except Exception as error:
            if not re.search(said, f"{type(error).__name__}: {error}"):
                missed[way.__name__] = f"{type(error).__name__}: {error}"
        else:
            missed[way.__name__] = "taken"
    assert not missed


@pytest.mark.parametrize("name", CALLS)
def test_calls_are_right(name: str) -> None:
    """So that what is refused above is refused for the one array."""
    function, arrays = CALLS[name]
    try:
        function(**arrays)
    except AssertionError as error:
        assert str(error) == "a kernel would be compiled"


def test_every_function_is_called() -> None:
    """Those of adapters by their lists of names; of `attn_mlir` those that take arrays."""
    told = {name.partition(",")[0].rpartition(".")[2].split()[0] for name in CALLS}
    public = {*flash.__all__, *flash_mla.__all__, *flashinfer.__all__}
    public |= {*distributed.__all__, *ring_flash_attn.__all__}
    public |= {
        "attention",
        "attention_backward",
        "append_kv",
        "mla",
        "mla_backward",
        "sparse_mla",
        "mla_decode",
        "plan",
        "pack_latent",
    }
    public |= {"scaled_dot_product_attention", "flex_attention"}
    without_operands = {"FlashMLASchedMeta", "get_mla_metadata", "get_scheduler_metadata"}
    without_operands |= {"plan_parallel", "positions", "get_mla_metadata_dense_fp8"}
    in_graphs = {"CUDAGraphBatchDecodeWithPagedKVCacheWrapper", "fast_decode_plan"}
    assert public - told == without_operands | in_graphs


def test_subclasses_of_numpy() -> None:
    q = np.ones((1, 8, HEADS, DIM), np.float16)
    with pytest.raises(
        SpecError, match=r"^v is a .*\.Named, which means more.*pass np.asarray\(v\)"
    ):
        am.attention(q, q, q.view(type("Named", (np.ndarray,), {})))
