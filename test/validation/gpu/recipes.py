"""Checks of tensor maps by recipes on a GPU: the driver's bytes, and the boxes that arrive."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

from attn_mlir.runtime.call.binding import bind, parameters
from attn_mlir.runtime.call.tensormap import MapDescription, encode
from attn_mlir.runtime.call.tensors import TensorView, view
from attn_mlir.runtime.devices import driver, memory
from attn_mlir.runtime.kernel import Kernel
from attn_mlir.validation.gpu.check import BLACKWELL, Machine, check, module
from attn_mlir.validation.recipes.table import INSTANCES
from attn_mlir.validation.tiny import kernel_of_text


def _placed(array: Any) -> TensorView:
    """An array in the memory of the GPU, with its strides and what lies between its elements."""
    seen = view(array, "array")
    copy = memory.empty("u8", (seen.span_bytes,), 0)
    with driver.Current(0):
        driver.call("cuMemcpyHtoD", copy.address, seen.address, seen.span_bytes)
    place = {"address": copy.address, "device": "cuda", "device_index": 0, "owner": copy}
    return dataclasses.replace(seen, **place)


def _run(kernel: Kernel, *arrays: Any) -> None:
    """Launches with copies of arrays on the GPU, the last of which is an output and comes back."""
    placed = [_placed(array) for array in arrays]
    kernel(*placed, device="cuda")
    memory.download(placed[-1], view(arrays[-1], "output"))


def _runs(target: str) -> list[str]:
    """Names of the recipes whose copies a chip has."""
    return [n for n, instance in INSTANCES.items() if target == BLACKWELL or not instance.gathers]


@check(asks=lambda target: [INSTANCES[name].kernel(target) for name in _runs(target)])
def boxes_by_every_recipe(machine: Machine) -> None:
    """Copies by each recipe that the chip has copies for bring what they should."""
    for name in _runs(machine.target):
        x, where, y = INSTANCES[name].call()
        _run(INSTANCES[name].kernel(machine.target), x, where, y)
        INSTANCES[name].check(x, y)


@check(asks=lambda _: [instance.kernel(BLACKWELL) for instance in INSTANCES.values()])
def every_recipe_is_what_the_driver_writes(machine: Machine) -> None:
    """The 128 bytes of each recipe's map, also of those whose copies another chip has."""

    def both(description: MapDescription) -> bytes:
        raw = encode(description)
        assert raw == driver.encode_map(description), description
        return raw

    for instance in INSTANCES.values():
        call = instance.call()
        manifest = instance.kernel(BLACKWELL).bundle.manifest
        addresses: dict[str, int] = dict.fromkeys(("x", "where", "y"), 0x7F00_0010_0000)
        with driver.Current(0):
            parameters(bind(manifest, call, {}), addresses, both)


def _by_rows(target: str) -> list[tuple[Kernel, Any, Any]]:
    """Kernels in `ws` that copy rows of a whole pool, each with what makes its arguments and judges them."""
    module("ml_dtypes")
    from attn_mlir.validation.ws import pool_rows as rows
    from attn_mlir.validation.ws.kernels import bundle

    kinds = [(rows.copy_pages(), rows.page_call, rows.check_pages)]
    if target == BLACKWELL:
        kinds.append((rows.gather_tokens(), rows.token_call, rows.check_tokens))
    return [
        (kernel_of_text("k", text, target, partial(bundle, text, target)), call, judge)
        for text, call, judge in kinds
    ]


@check(asks=_by_rows)
def rows_of_a_whole_pool(machine: Machine) -> None:
    """Pages, and tokens where the chip gathers, by the numbers that they have in the whole pool."""
    for kernel, call, judge in _by_rows(machine.target):
        arrays = call()
        _run(kernel, *arrays)
        judge(*arrays)
