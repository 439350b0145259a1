"""A call of our backend by the template of `diffusers` for context parallelism, on the ranks of a process group.

python -m attn_mlir.validation.distributed.launch diffusers_template.errors 2 ring
"""

from __future__ import annotations

import importlib
from typing import Any

BATCH, ROWS, HEADS, D = 2, 32, 2, 64


def errors(scheme: str) -> list[float]:
    """The largest errors of this rank's rows of O and of the gradients of query, key and value.

    Args:
      scheme: `ring` or `ulysses`.
    """
    torch: Any = importlib.import_module("torch")
    dist: Any = importlib.import_module("torch.distributed")
    host: Any = importlib.import_module("diffusers.models.attention_dispatch")
    config: Any = importlib.import_module("diffusers.models._modeling_parallel")
    door: Any = importlib.import_module("attn_mlir.diffusers")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    q, k, v, do = (torch.randn(BATCH, ROWS, HEADS, D).bfloat16() for _ in range(4))
    whole = [x.float().requires_grad_() for x in (q, k, v)]
    truth = host._native_attention(*whole)
    truth.backward(do.float())
    mesh = dist.init_device_mesh(
        "cpu",
        (size, 1) if scheme == "ring" else (1, size),
        mesh_dim_names=("ring", "ulysses"),
    )
    shared = config.ContextParallelConfig(**{f"{scheme}_degree": size})
    setup = config.ParallelConfig(context_parallel_config=shared)
    setup.setup(rank, size, torch.device("cpu"), mesh=mesh)
    mine = slice(ROWS // size * rank, ROWS // size * (rank + 1))
    parts = [x[:, mine].clone().requires_grad_() for x in (q, k, v)]
    door.register()
    o = host.dispatch_attention_fn(*parts, backend=door.NAME, parallel_config=setup)
    o.backward(do[:, mine])
    made = [o, *(x.grad for x in parts)]
    known = [truth, *(x.grad for x in whole)]
    return [float((x.float() - y[:, mine]).abs().max()) for x, y in zip(made, known, strict=True)]
