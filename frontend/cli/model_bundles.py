"""Bundles of a model's attention layers, for machines without a compiler."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from attn_mlir.cli.model_calls import calls_of
from attn_mlir.cli.model_config import layers_of
from attn_mlir.compiling.compiler import missing_compiler, recording
from attn_mlir.compiling.prebuild import Collector, Say
from attn_mlir.dialect.targets.limits import DEFAULT_TARGET
from attn_mlir.errors import AttnError, SpecError, TargetError
from attn_mlir.files import make_folder
from attn_mlir.runtime.devices.idle import IdleDevice
from attn_mlir.runtime.kernel import launching_on

MAX_PAGE = 4096  # positions of the caches that calls are made with


def prebuild_model(
    config: Path,
    folder: Path,
    *,
    tensor_parallel: int = 1,
    page_size: int = 16,
    targets: Sequence[str] = (),
    say: Say = print,
) -> Collector:
    """Makes the calls of a model's attention layers without launching any, and keeps their bundles.

    Calls are prefill of one sequence and of several, and prefill over pages, decoding of a token of
    each sequence and append. Batch, lengths and numbers of keys are free in all; few queries of a
    sequence have kernels of their own, and only those for one are kept.

    Args:
      config: the model's `config.json`, see `layers_of`.
      folder, say: see `Collector`.
      tensor_parallel: machines that share the heads of a layer.
      page_size: positions of a page of the caches.
      targets: chips to keep bundles for; the newest one if there are none.

    Returns:
      The collector; a call without a kernel is among its `failed`.

    Raises:
      SpecError: the config or an argument is wrong, or the folder cannot be written.
      TargetError: there is no compiler.
    """
    if (missing := missing_compiler()) is not None:
        raise TargetError(f"prebuild compiles, but {missing}: run it where attn-mlir is installed")
    if not 1 <= page_size <= MAX_PAGE or MAX_PAGE % page_size:
        raise SpecError(f"page_size must divide {MAX_PAGE}, got {page_size}")
    layers = layers_of(config, tensor_parallel=tensor_parallel)
    collector = Collector(make_folder(folder), say=say)
    for target in targets or (DEFAULT_TARGET,):
        collector.targets = (target,)
        for layer in layers:
            say(f"{target}: {layer}")
            with recording(collector, for_other_sizes=True), launching_on(IdleDevice(target)):
                for name, call in calls_of(layer, page_size):
                    try:
                        call()
                    except AttnError as error:
                        line = f"{target}: {name}: {type(error).__name__}: {error}"
                        collector.failed[line] = line
                        say(f"   -  {line}")
    return collector
