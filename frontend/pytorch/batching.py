"""Rules of `torch.vmap` for the operators: the axis that is mapped over becomes part of the batch.

Sample n of the mapped axis and entry b of the batch, of B, are entry n * B + b of the batch that is
computed. A modifier then finds both in the number of the entry, and arrays that differ by sample
have one axis more.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Sequence
from typing import Any

from attn_mlir.dialect.attn.block import BLOCK_LISTS
from attn_mlir.dialect.attn.programs.program import Node, Program
from attn_mlir.pytorch.operators import AttentionArguments, attention_op, block_lists_op

torch: Any = importlib.import_module("torch")

Dims = Sequence[int | None]  # of each tensor the axis that is mapped over, if any


def of_sample(program: Program, batch: int, differs: Sequence[bool]) -> Program:
    """The program for entries n * batch + b in the place of entries b.

    Args:
      batch: entries of one sample.
      differs: of each tensor that the program reads whether it has one axis more, that of samples.
    """
    nodes: list[Node] = [
        Node("argument", "i32", value="batch"),
        Node("constant", "i32", value=batch),
    ]
    nodes += [Node("mod", "i32", (0, 1)), Node("floordiv", "i32", (0, 1))]
    entry, sample = 2, 3
    indices: list[int] = []
    for node in program.nodes:
        if node.op == "argument" and node.value == "batch":
            indices.append(entry)
            continue
        args = tuple(indices[number] for number in node.args)
        if node.op == "load" and differs[int(node.value or 0)]:
            args = (sample, *args)
        nodes.append(dataclasses.replace(node, args=args))
        indices.append(len(nodes) - 1)
    return dataclasses.replace(
        program,
        nodes=tuple(nodes),
        score=indices[program.score],
        keeps=tuple(indices[number] for number in program.keeps),
        tensors=tuple(
            dataclasses.replace(tensor, rank=tensor.rank + more)
            for tensor, more in zip(program.tensors, differs, strict=True)
        ),
        sink=None if program.sink is None else indices[program.sink],
    )


def uses(program: Program, coordinate: str) -> bool:
    """Whether a result of the program depends on a coordinate of scores, such as `batch`."""
    used = {*(x for node in program.nodes for x in node.args), *program.keeps, program.score}
    used |= set() if program.sink is None else {program.sink}
    nodes = program.nodes
    return any(nodes[x].op == "argument" and nodes[x].value == coordinate for x in used)


def with_samples(tensor: Any, dim: int | None, samples: int) -> Any:
    """A tensor whose first axis is the batch, with the samples in it."""
    per_sample = tensor.expand(samples, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
    return per_sample.reshape(samples * per_sample.shape[1], *per_sample.shape[2:])


def _attention(info: Any, in_dims: Any, *arguments: Any) -> tuple[Any, Any]:
    """The rule of `attn_mlir::attention`."""
    call = AttentionArguments(*arguments)
    q, captured, modifier = call.q, call.captured, call.modifier
    samples, dims = info.batch_size, in_dims[3] or [None] * len(captured)
    batch = (q.shape if in_dims[0] is None else q.movedim(in_dims[0], 0).shape[1:])[0]
    q, k, v = (with_samples(x, dim, samples) for x, dim in zip(call[:3], in_dims[:3], strict=True))
    count = len(BLOCK_LISTS) if call.block else 0
    lists = [
        _list_of(x, dim, samples, batch)
        for x, dim in zip(captured[:count], dims[:count], strict=True)
    ]
    read = [
        x if dim is None else x.movedim(dim, 0)
        for x, dim in zip(captured[count:], dims[count:], strict=True)
    ]
    if modifier:
        program, differs = Program.from_json(modifier), [dim is not None for dim in dims[count:]]
        if any(differs) or uses(program, "batch"):
            modifier = of_sample(program, int(batch), differs).canonical()
    o, lse = attention_op(q, k, v, [*lists, *read], modifier, *call[5:])
    o = o.unflatten(0, (samples, batch))
    if not call.return_lse:
        return (o, lse), (0, None)
    return (o, lse.unflatten(0, (samples, batch))), (0, 0)


def _list_of(lists: Any, dim: int | None, samples: int, batch: int) -> Any:
    """A kernel's list of blocks for all entries; one for every entry stays so."""
    if dim is None and lists.shape[0] == 1:
        return lists
    if dim is not None:
        lists = lists.movedim(dim, 0)
        lists = lists.expand(samples, batch, *lists.shape[2:])
    return with_samples(lists, None if dim is None else 0, samples)


def _block_lists(
    info: Any, in_dims: Any, *arguments: Any
) -> tuple[tuple[Any, Any, Any], tuple[int, int, int]]:
    """The rule of `attn_mlir::block_lists`: the lists of all samples at once."""
    count, samples = 4, info.batch_size
    pairs = zip(arguments[:count], in_dims[:count], strict=True)
    tensors = [None if x is None else with_samples(x, dim, samples) for x, dim in pairs]
    results = block_lists_op(*tensors, *arguments[count:])
    counts, indices, kinds = (x.unflatten(0, (samples, x.shape[0] // samples)) for x in results)
    return (counts, indices, kinds), (0, 0, 0)


def register_rules() -> None:
    """Tells PyTorch the rules; once."""
    attention_op.register_vmap(_attention)
    block_lists_op.register_vmap(_block_lists)
