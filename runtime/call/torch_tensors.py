"""The kind of a PyTorch tensor, found before anything of it is read.

A tensor need not be what its memory holds. A subclass has a meaning of its own, a fake has no
memory, a tracer records what is done with its tensors, `torch.func` puts batches and tangents
around tensors whose class is `torch.Tensor`, and a gradient may be wanted. `check_tensor` tells
these apart. Every array argument passes through it: those of `attn_mlir` by `tensors.view`, those
of `attn_mlir.torch` also before they are traced, and those of calls that come again by
`layout_reader`.

PyTorch is never imported here.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from attn_mlir.errors import SpecError

NO_GRADIENT = (
    "{0} requires a gradient, which it has none of here: call under torch.no_grad(), or pass "
    "{0}.detach()"
)
NO_TANGENT = (
    "{0} has a tangent, of torch.func.jvp, jacfwd or forward_ad, and attention has no forward "
    "derivative: "
    "pass {0}.detach()"
)
DIFFERENTIATED = (
    "{0} is computed with inside torch.func.grad, vjp, jvp or jacfwd, and attention has no "
    "derivative: call it outside of these"
)
SIZE_UNKNOWN = 1024  # of a length that the data gives, while a graph is traced; any will do
FAKES = {
    ("torch._subclasses.fake_tensor", "FakeTensor"),
    ("torch._subclasses.functional_tensor", "FunctionalTensor"),
}  # subclasses that stand for a plain tensor; operators replace them


@dataclass(frozen=True, slots=True)
class _Torch:
    """The parts of PyTorch that are asked, and functions of it that every call asks.

    Attributes:
      plain: classes whose tensors are what their memory holds, unless `torch.func` is at work.
      transforms: what `torch.func` keeps: how tensors are wrapped, and whether a function is
        transformed.
      forward: forward-mode derivatives.
      in_autograd, before_dispatch: keys of the dispatcher, which take half a microsecond to look
        up.
      with_gradients: whether gradients are recorded.
      transform, recording, modes: the transformation of `torch.func` and the recording of
        `torch.jit.trace` that are at work, None without; and the number of dispatch modes.
      includes: whether the dispatcher has a key added.
    """

    module: Any
    plain: tuple[type, ...]
    c: Any
    transforms: Any
    forward: Any
    in_autograd: Any
    before_dispatch: Any
    with_gradients: Callable[[], bool]
    transform: Callable[[], object]
    recording: Callable[[], object]
    modes: Callable[[], int]
    includes: Callable[[Any], bool]


@functools.cache
def _parts() -> _Torch:
    torch: Any = sys.modules["torch"]
    plain = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
    c, keys = torch._C, torch._C.DispatchKey
    return _Torch(
        torch,
        plain,
        c,
        c._functorch,
        torch.autograd.forward_ad,
        keys.AutogradFunctionality,
        keys.PreDispatch,
        torch.is_grad_enabled,
        c._functorch.maybe_current_level,
        c._get_tracing_state,
        c._len_torch_dispatch_stack,
        c._dispatch_tls_is_dispatch_key_included,
    )


def is_batched(value: Any) -> bool:
    """Whether `torch.vmap` has put a batch around a tensor of PyTorch."""
    return is_tensor(value) and _parts().transforms.is_batchedtensor(value)


def is_tensor(value: object) -> bool:
    """Whether a value is a tensor of PyTorch, of any subclass."""
    torch: Any = sys.modules.get("torch")
    kind = getattr(torch, "Tensor", None)
    return kind is not None and isinstance(value, kind)


def is_fake(value: object) -> bool:
    """Whether a value stands for a plain tensor; only operators take such values."""
    return _is_fake_class(type(value))


@functools.lru_cache(maxsize=256)
def _is_fake_class(kind: type) -> bool:
    return (kind.__module__, kind.__name__) in FAKES


def admit_class(kind: type) -> None:
    """Admits a subclass of tensors as operands; operators must have rules for it."""
    FAKES.add((kind.__module__, kind.__name__))
    _is_fake_class.cache_clear()


def is_compiling() -> bool:
    """Whether PyTorch's compiler traces this very function."""
    torch: Any = sys.modules.get("torch")
    return (
        torch is not None
        and "torch._dynamo" in sys.modules
        and torch.compiler.is_dynamo_compiling()
    )


def wants_gradient(arguments: Sequence[object], options: Mapping[str, object]) -> bool:
    """Whether PyTorch records gradients, and a tensor among a call's arguments requires one."""
    if "torch" not in sys.modules:
        return False
    torch = _parts()
    return torch.with_gradients() and torch.c._any_requires_grad(*arguments, *options.values())


def check_tensor(tensor: Any, name: str, *, has_gradient: bool = False) -> None:
    """Refuses a tensor that stands for something that no kernel computes with.

    Args:
      tensor: of PyTorch.
      name: of the argument, for messages.
      has_gradient: whether the caller computes the gradient of this argument.

    Raises:
      SpecError: says what it is, and what to pass.
    """
    check_dense(tensor, name)
    check_derivative(tensor, name, has_gradient=has_gradient)


def check_dense(tensor: Any, name: str) -> None:
    """Refuses a tensor whose memory does not hold all of its value; ignores derivatives.

    Raises:
      SpecError: says what it is, and what to pass.
    """
    check_class(tensor, name)
    if tensor.is_nested or tensor.layout is not _parts().module.strided:
        layout = "nested" if tensor.is_nested else f"of layout {tensor.layout}"
        raise SpecError(f"{name} must be a dense tensor, got one {layout}")
    if tensor.is_quantized:
        raise SpecError(
            f"{name} is a quantised tensor: pass {name}.dequantize(), or its int_repr()"
        )


def check_class(tensor: Any, name: str) -> None:
    """Refuses a subclass of `torch.Tensor` with a meaning of its own.

    Raises:
      SpecError: names the class.
    """
    if type(tensor) in _parts().plain or is_fake(tensor):
        return
    kind = cast("type[Any]", type(tensor))
    rules = "call attn_mlir.torch.register_sharding() first, or pass its to_local()"
    instead = rules if kind.__name__ == "DTensor" else "pass a plain torch.Tensor"
    raise SpecError(
        f"{name} is a {kind.__module__}.{kind.__qualname__}, which means more than its memory "
        f"holds: {instead}"
    )


def check_derivative(tensor: Any, name: str, *, has_gradient: bool = False) -> None:
    """Refuses a tensor of which a derivative is wanted, in whatever way; nothing else does.

    `torch.func` wraps a tensor once for each transformation: all of its layers are looked at.

    Args:
      has_gradient: as of `check_tensor`; outside of `torch.func`.

    Raises:
      SpecError: says how to call without derivatives.
    """
    torch = _parts()
    is_refused = torch.with_gradients() and (not has_gradient or is_differentiated())
    layer = tensor
    while True:
        if layer.requires_grad and is_refused:
            raise SpecError(NO_GRADIENT.format(name))
        if _has_tangent(layer):
            raise SpecError(NO_TANGENT.format(name))
        if not torch.transforms.is_functorch_wrapped_tensor(layer):
            return
        layer = torch.transforms.get_unwrapped(layer)


def _has_tangent(layer: Any) -> bool:
    """Whether a tensor, or one layer of it, is dual."""
    torch = _parts()
    if torch.forward._current_level < 0 or torch.transforms.is_batchedtensor(layer):
        return False  # what a batch is made of is the next layer
    if torch.c._dispatch_tls_is_dispatch_key_excluded(torch.in_autograd):
        return False  # within an operator, before which it was asked
    return torch.forward.unpack_dual(layer).tangent is not None


def is_differentiated() -> bool:
    """Whether `torch.func` or `forward_ad` computes derivatives, of whatever tensors."""
    torch = _parts()
    if torch.forward._current_level >= 0 or torch.transform() is None:
        return torch.forward._current_level >= 0
    kinds = (torch.transforms.TransformType.Grad, torch.transforms.TransformType.Jvp)
    return any(level.key() in kinds for level in torch.transforms.get_interpreter_stack() or ())


def is_transformed() -> bool:
    """Whether a transformation of `torch.func` is at work: vmap, grad, vjp, jvp, functionalize."""
    return _parts().transform() is not None


def is_traced(tensor: Any) -> bool:
    """Whether a checked tensor has no memory: fake, on meta, or wrapped by `torch.func`."""
    torch = _parts()
    return (
        type(tensor) not in torch.plain
        or tensor.is_meta
        or torch.transforms.is_functorch_wrapped_tensor(tensor)
    )


def layout_reader() -> Callable[[Any], tuple[Hashable, ...] | None]:
    """A function that returns what a tensor of a plain class is, if it stands for itself; else
    None.

    It returns shape, strides, dtype and device of a tensor in memory that takes part in no
    derivative: it finds out what `check_tensor` does in a hundredth of the time, since calls that
    come again ask. Such a tensor also has an address, which those that `torch.func` wraps refuse to
    tell.
    """
    torch = _parts()
    forward, with_gradients = torch.forward, torch.with_gradients

    def layout_of(tensor: Any) -> tuple[Hashable, ...] | None:
        if (
            tensor.is_neg()
            or forward._current_level >= 0
            or (tensor.requires_grad and with_gradients())
        ):
            return None
        return tensor.shape, tensor.stride(), tensor.dtype, tensor.device

    return layout_of


def is_tracing() -> bool:
    """Whether a call is recorded or transformed rather than carried out.

    By `torch.jit.trace`, by `make_fx` or `torch.export`, by a `FakeTensorMode`, or by `torch.func`.
    Modes of users that only watch what is dispatched do not count.
    """
    if "torch" not in sys.modules:
        return False
    torch = _parts()
    if torch.transform() is not None or torch.recording() is not None:
        return True
    if torch.includes(torch.before_dispatch):
        return True
    count = torch.modes()
    return count > 0 and any(_records(torch.c._get_dispatch_stack_at(i)) for i in range(count))


def is_dispatched() -> bool:
    """Whether something sees the operators that are called: a tracer, a transformation of
    `torch.func`, or any dispatch mode, such as that of selective checkpointing.
    """
    return is_tracing() or _parts().modes() > 0


def _records(mode: Any) -> bool:
    """Whether a dispatch mode is one of PyTorch's tracers."""
    return getattr(mode, "_mode_key", None) is not None


def size_met(size: Any) -> int:
    """A size with which a graph is traced, as a number of which the graph does not depend.

    Args:
      size: a number, or one of PyTorch's that stand for it; one without a value gives
        `SIZE_UNKNOWN`.
    """
    node = getattr(size, "node", None)
    if node is None:
        return size
    return int(node.hint) if node.hint is not None else SIZE_UNKNOWN
