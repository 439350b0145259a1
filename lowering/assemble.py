"""From a module that holds PTX to bundles: `attn-write-bundle`, and the bytes of a bundle file."""

import hashlib
import io
import json
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from attn_mlir._version import __version__
from attn_mlir.dialect._mlir import gpu, ir, provider_version
from attn_mlir.errors import VerifyError
from attn_mlir.files import make_folder, write_file
from attn_mlir.passes.infrastructure.registry import register
from attn_mlir.passes.meaning import recorded_meaning
from attn_mlir.tools import makes_machine_code

from .manifest import attached
from .ptxas import Assembled, assemble
from .source import SOURCE_NAME, recorded_source


def ptx_of(module: Any) -> dict[str, str]:
    """PTX of each `gpu.binary` of a module, by the name of its kernel.

    Raises:
      VerifyError: the module holds no PTX.
    """
    texts: dict[str, str] = {}
    for binary in ir.get_ops_of_type(module, gpu.BinaryOp):
        text = gpu.ObjectAttr(binary.operation.attributes["objects"][0]).object.decode()
        texts[binary.sym_name.value.removesuffix("_module")] = text.rstrip("\0")
    if not texts:
        raise VerifyError("'builtin.module' op holds no gpu.binary: run attn-to-ptx first")
    return texts


def bundle_bytes(
    manifest: dict[str, Any], ptx: str, assembled: Assembled | None, source: str = ""
) -> bytes:
    """The bundle file: a zip of kernel.cubin, kernel.ptx, kernel.mlir and bundle.json.

    Args:
      manifest: the kernel's, see `manifest.describe`.
      ptx: the kernel's PTX.
      assembled: its machine code. Without it the file has no kernel.cubin, the cubin's hash is
        null, and the report has no registers and spills.
      source: the kernel's `ws` text, to which `.loc` in the PTX refers.
    """
    versions = {"attn_mlir": __version__, "mlir": provider_version()}
    costs: dict[str, int] = {}
    members: dict[str, bytes] = {}
    if assembled is not None:
        versions["ptxas"] = assembled.version
        costs = {"registers": assembled.registers, "spill_bytes": assembled.spill_bytes}
        members["kernel.cubin"] = assembled.cubin
    complete = {
        **manifest,
        "sha256": None if assembled is None else hashlib.sha256(assembled.cubin).hexdigest(),
        "sha256_ptx": hashlib.sha256(ptx.encode()).hexdigest(),
        "report": {**costs, **manifest["report"]},
        "versions": versions,
    }
    members |= {
        "kernel.ptx": ptx.encode(),
        "bundle.json": json.dumps(complete, indent=1).encode(),
        SOURCE_NAME: source.encode(),
    }
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, data in members.items():  # a fixed date: the same input gives the same bytes
            archive.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), data)
    return buffer.getvalue()


@register
@dataclass(frozen=True)
class WriteBundle:
    """Assembles the module's PTX and writes its bundle; leaves the module as it is.

    Attributes:
      output: the file; with several kernels in the module, a folder that gets `<name>.attn`.
    """

    name: ClassVar[str] = "attn-write-bundle"
    output: str = "kernel.attn"

    def run(self, module: Any) -> None:
        """Writes each bundle, as a complete file or not at all.

        Raises:
          VerifyError: the module holds no PTX, or a kernel without a manifest.
          TargetError: ptxas is missing or refuses the PTX.
          SpecError: the file cannot be written.
        """
        manifests = attached(module)
        texts = ptx_of(module)
        for name, ptx in texts.items():
            if name not in manifests:
                raise VerifyError(f"'gpu.binary' op {name} has no manifest")
            if Path(name).name != name:
                raise VerifyError(f"'gpu.binary' op {name} is no name for a file")
            manifest = manifests[name]
            if meaning := recorded_meaning(module, name):
                manifest["request"] = meaning
            assembled = assemble(ptx, manifest["target"]) if makes_machine_code() else None
            data = bundle_bytes(manifest, ptx, assembled, recorded_source(module))
            output = Path(self.output)
            path = output / f"{name}.attn" if len(texts) > 1 else output
            make_folder(path.parent)
            write_file(path, data)
