"""The manifest of a bundle: from a planned `ws.kernel` to the fields of `bundle.json`."""

import functools
import json
from typing import Any

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import ir
from attn_mlir.dialect.attn.scale import MAX_SCALE
from attn_mlir.dialect.targets.limits import Target
from attn_mlir.element_types import name_of_mlir
from attn_mlir.expr import Expr, to_list
from attn_mlir.passes.analysis.protocol.integers import sizes
from attn_mlir.passes.analysis.ring_graph import ring_graph
from attn_mlir.passes.plan_memory import memory_map, sides

from .frame.grid import is_programmatic
from .state.parameters import Signature

SCHEMA = 1
MANIFESTS = "attn.manifests"  # module attribute: kernel name -> JSON text
TENSOR_ALIGNMENT = 16  # bytes; cuTensorMapEncodeTiled: globalAddress; 128-bit stores


def describe(signature: Signature, threads: int, target: Target) -> dict[str, Any]:
    """The manifest of a kernel, without the fields that need the assembled code.

    Args:
      signature: the kernel's parameters.
      threads: threads of a CTA.
      target: the chip.

    Returns:
      The fields of `bundle.json`, schema 1.

    Raises:
      VerifyError: the extents of the tile space are not known at launch.
    """
    kernel = signature.kernel
    plan = ir.DictAttr(kernel.operation.attributes["ws.plan"])
    regions = memory_map(kernel)
    return {
        "schema": SCHEMA,
        "entry": kernel.sym_name.value,
        "target": target.chip,
        "block": [threads, 1, 1],
        "cluster": [ws.cta_count(kernel), 1, 1],
        "smem_bytes": ir.IntegerAttr(plan["smem_bytes"]).value,
        **_grid(signature),
        **({"programmatic": True} if is_programmatic(kernel) else {}),
        "symbols": _symbols(kernel),
        "tensors": _tensors(signature),
        "scalars": _scalars(kernel),
        "params": signature.recipes(),
        "report": {
            "memory_map": [
                {
                    "space": region.space,
                    "unit": "B" if region.space == "shared" else "column",
                    "begin": region.begin,
                    "end": region.end,
                    "what": region.label,
                }
                for region in regions
            ],
            "roles": [
                {
                    "role": role.label,
                    "warps": f"{role.warp_range[0]}-{sum(role.warp_range) - 1}",
                    "registers": role.register_count,
                }
                for role in kernel.roles()
            ],
            "rings": [edges.record() for edges in ring_graph(kernel)],
            "barriers": _barriers(kernel),
        },
    }


def _barriers(kernel: ws.KernelOp) -> list[dict[str, Any]]:
    """The arrays of mbarriers: name, offset of the first in dynamic shared memory, and count."""
    runs: list[dict[str, Any]] = []
    for op in kernel.body.blocks[0].operations:
        if isinstance(op, ws.AllocRingOp):
            kind = ws.RingType(op.ring.type)
            placed = ir.DictAttr(op.operation.attributes["ws.plan"])
            for side in sides(op):
                begin = ir.IntegerAttr(placed[side]).value
                count = kind.stages * kind.instances
                runs.append({"name": f"{op.label} {side}", "begin": begin, "count": count})
    return runs


def _grid(signature: Signature) -> dict[str, Any]:
    """CTAs along x, y, z from the tile space, which all roles share; and whether CTAs loop over it.

    The CTAs of a cluster share a work tile and are neighbours along x.
    """
    ctas = ws.cta_count(signature.kernel)
    for role in signature.kernel.roles():
        for op in role.body.blocks[0].operations:
            if isinstance(op, ws.TilesOp):
                extents = [signature.expression(value) for value in op.extents]
                persistent = op.order.value in ("persistent", "counter")
                if op.order.value == "ragged":
                    extents = _ragged_grid(signature, op, extents)
                elif persistent:
                    extents = [functools.reduce(lambda a, b: ("mul", a, b), extents)]
                if ctas > 1:
                    extents[0] = ("mul", extents[0], ctas)
                known = sizes(signature.kernel) | _scalars_of(signature.kernel)
                grid = [to_list(expr, known) for expr in (*extents, 1, 1)[:3]]
                return {"grid": grid, "persistent": persistent}
    return {"grid": [ctas, 1, 1], "persistent": False}


def _scalars_of(kernel: ws.KernelOp) -> set[str]:
    """Names of the scalars of a call; binding refuses a call in which one makes the grid
    negative.
    """
    roles = zip(kernel.names, kernel.io_roles, strict=True)
    return {name for name, role in roles if role == "scalar"}


def _ragged_grid(signature: Signature, op: ws.TilesOp, extents: list[Expr]) -> list[Expr]:
    """The grid of the order `ragged`: enough CTAs for the blocks of all sequences,
    times the parts.
    """
    count, rows, size = (signature.expression(value) for value in op.packing)
    parts = ("floordiv", extents[2], ("max", count, 1))
    return [("add", ("floordiv", rows, size), count), extents[1], parts]


def _symbols(kernel: ws.KernelOp) -> list[str]:
    return list(dict.fromkeys(name for dims in kernel.dims for name in dims if name))


def _alignment(signature: Signature, argument: str) -> int:
    """Alignment of an argument in bytes: what tensor maps or wide accesses need, or one element."""
    wide = argument in signature.aligned_arguments()
    kind = ir.MemRefType(signature.argument_type(argument))
    return TENSOR_ALIGNMENT if wide else kind.element_type.width // 8


def _tensors(signature: Signature) -> list[dict[str, Any]]:
    kernel = signature.kernel
    tensors: list[dict[str, Any]] = []
    arguments = kernel.body.blocks[0].arguments
    for name, role, dims, argument in zip(
        kernel.names, kernel.io_roles, kernel.dims, arguments, strict=True
    ):
        if role == "scalar":
            continue
        kind, multiple = ir.MemRefType(argument.type), signature.row_multiple(name)
        tensors.append(
            {
                "name": name,
                "role": role,
                "dtype": name_of_mlir(str(kind.element_type)),
                "shape": [symbol or kind.get_dim_size(i) for i, symbol in enumerate(dims)],
                "unit_stride_axis": kind.rank - 1,
                "alignment_bytes": _alignment(signature, name),
                **({"row_multiple": multiple} if multiple > 1 else {}),
            }
        )
    return tensors


def _scalars(kernel: ws.KernelOp) -> list[dict[str, Any]]:
    defaults = {}
    if "ws.defaults" in kernel.operation.attributes:
        defaults = ir.DictAttr(kernel.operation.attributes["ws.defaults"])
    scalars: list[dict[str, Any]] = []
    arguments = kernel.body.blocks[0].arguments
    for name, role, argument in zip(kernel.names, kernel.io_roles, arguments, strict=True):
        if role != "scalar":
            continue
        entry: dict[str, Any] = {"name": name, "dtype": str(argument.type)}
        if name in defaults:
            entry["default"] = ir.FloatAttr(defaults[name]).value
            entry["min_exclusive"] = 0.0  # the row maximum is found before scaling
            entry["max"] = MAX_SCALE
        scalars.append(entry)
    return scalars


def attach(module: Any, manifest: dict[str, Any]) -> None:
    """Stores a kernel's manifest on the module until the bundle is written."""
    manifests = {**attached(module), manifest["entry"]: manifest}
    texts = {name: ir.StringAttr.get(json.dumps(entry)) for name, entry in manifests.items()}
    module.operation.attributes[MANIFESTS] = ir.DictAttr.get(texts)


def attached(module: Any) -> dict[str, dict[str, Any]]:
    """The manifests stored on a module, by kernel name."""
    if MANIFESTS not in module.operation.attributes:
        return {}
    stored = ir.DictAttr(module.operation.attributes[MANIFESTS])
    return {named.name: json.loads(ir.StringAttr(named.attr).value) for named in stored}
