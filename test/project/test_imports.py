"""Imports point one way: which packages each package may import is a table, and it has no gaps."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from attn_mlir.bench.measuring.checkout import folders

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = folders()
DOOR = "dialect/_mlir.py"  # the only file that names MLIR's package
ELSEWHERE = (  # run where only the folders are packages
    "validation.conformance._nvcc",
    "validation.conformance._recording",
)
PROVIDERS = ("numba_cuda_mlir", "mlir", "jaxlib.mlir")

LEAVES = "_version element_types env errors expr extensions files tools waiting"
DIALECTS = f"{LEAVES} dialect"
BUILT = f"{DIALECTS} schedules.emit schedules.policy schedules.registry"
POLICY = "dialect.attn dialect.orders dialect.targets element_types errors schedules.policy"
POLICIES = (
    "schedules.append.policy schedules.attention.keys_in_rows.policy schedules.attention.streaming.policy "
    "schedules.attention.tensor_memory.policy schedules.attention.warpgroups.policy schedules.backward.latent.policy schedules.backward.policy "
    "schedules.backward.tensor_memory.policy schedules.combine.policy schedules.latent.common.policy "
    "schedules.latent.decode.policy schedules.latent.prefill.policy "
    "schedules.latent.sparse.policy"
)
CORE = f"{BUILT} schedules.core schedules.operands"
ROLES = f"{CORE} schedules.kernel schedules.softmax schedules.sources"
LOW = "dialect element_types passes lowering.layouts"
STATE = f"{LOW} lowering.state"
RINGS = f"{STATE} lowering.access lowering.rings"
REQUEST = "arrays compiling dialect.attn dialect.targets masks mods runtime schedules.policy trace"
EMULATED = "errors runtime.emulator.core runtime.emulator.machine runtime.emulator.ptx"
ISA = f"{EMULATED} runtime.emulator.isa.registry"

EVERYTHING = (
    f"{LEAVES} adapters api arrays aten bench block_masks caches calls cli compiling dialect diffusers distributed emulator fallback flash flash_mla flashinfer jax latent_heads latent_rows library lowering lse masks mods "
    "naming parallel passes pytorch reference ring_flash_attn runtime schedules torch trace tracing transformers validation versions vllm sglang"
)

# For each package, and each module beside packages: what it may import besides itself. An entry covers what lies under
# it; the longest entry that covers an importing module decides, and every package has one of its own or above it.
ALLOWED = {
    "": "_version api block_masks caches calls compiling errors masks mods reference runtime trace",
    "_version": "",
    "errors": "",
    "env": "errors",
    "fallback": "env errors",
    "expr": "errors",
    "extensions": "",
    "files": "errors",
    "tools": "env errors files",
    "waiting": "env errors",
    "adapters": "env errors naming runtime",
    "arrays": f"{LEAVES} runtime",
    "caches": "errors",
    "latent_rows": "dialect.attn element_types",
    "latent_heads": "arrays errors library runtime",
    "library": "errors",
    "lse": "arrays library",
    "masks": f"{LEAVES} dialect.attn",
    "mods": f"{LEAVES} runtime trace",
    "naming": "errors",
    "trace": f"{LEAVES} dialect.attn tracing",
    "tracing": f"{LEAVES} arrays dialect.attn runtime",
    "reference": f"{LEAVES} arrays caches dialect.attn masks runtime trace",
    "compiling": f"{LEAVES} dialect masks runtime schedules.policy trace",
    # The compiler is loaded when there is no kernel yet, and may be missing.
    "compiling.compiler": f"{LEAVES} compiling dialect lowering.compile masks runtime trace",
    "block_masks": f"{LEAVES} {REQUEST}",
    "api": f"{LEAVES} {REQUEST} block_masks caches latent_rows naming",
    "aten": "adapters calls errors fallback flash masks mods naming pytorch",
    "calls": "api caches errors pytorch runtime",
    "flash": f"{LEAVES} adapters api arrays caches calls compiling library lse masks mods naming runtime trace",
    "flash_mla": f"{LEAVES} adapters api arrays caches calls latent_heads library lse masks naming runtime",
    "flashinfer": f"{LEAVES} adapters api arrays caches calls compiling flash latent_heads library lse masks mods naming runtime trace",
    "pytorch": f"{LEAVES} {REQUEST} api block_masks caches library naming tracing",
    "torch": f"{LEAVES} adapters api aten block_masks mods pytorch runtime trace",
    "diffusers": "adapters calls errors fallback pytorch torch versions",
    "jax": "adapters api arrays caches dialect.attn element_types errors masks mods naming runtime trace versions",
    "transformers": "calls errors fallback masks mods naming pytorch trace versions",
    "versions": "env",
    "vllm": "caches calls errors flash masks naming runtime versions",
    "ring_flash_attn": "adapters api distributed errors flash naming runtime",
    "sglang": "errors flash naming runtime versions",
    "cli": f"{LEAVES} caches calls emulator compiling dialect.attn dialect.targets masks mods parallel reference runtime",
    "dialect": "element_types errors extensions",
    "distributed": f"{LEAVES} {REQUEST} api caches calls parallel pytorch torch",
    "emulator": "errors files runtime",
    "element_types": "errors",
    "parallel": "errors runtime",
    "passes.infrastructure": DIALECTS,
    "schedules": "",  # but for its rooms: each has a line
    "schedules.policy": "dialect.attn dialect.orders dialect.targets element_types errors",
    "schedules.policy.registry": f"{POLICY} {POLICIES}",
    **dict.fromkeys(POLICIES.split(), f"{POLICY} {POLICIES}"),
    "schedules.registry": f"{DIALECTS} schedules.policy",
    "schedules.choice": CORE,
    "schedules.emit": DIALECTS,
    "schedules.copy": BUILT,
    "schedules.combine": f"{BUILT} schedules.core.entries",
    "schedules.operands": BUILT,
    "schedules.append": f"{BUILT} schedules.operands",
    "schedules.core": f"{BUILT} schedules.operands",
    "schedules.softmax": CORE,
    "schedules.sources": CORE,
    "schedules.kernel": f"{CORE} schedules.softmax schedules.sources",
    "schedules.attention.streaming": ROLES,
    "schedules.attention.tensor_memory": ROLES,
    "schedules.attention.warpgroups": ROLES,
    "schedules.attention.keys_in_rows": f"{ROLES} schedules.attention.streaming",
    "schedules.backward": ROLES,
    "schedules.latent.common": f"{ROLES}",
    "schedules.latent.prefill": f"{ROLES} schedules.attention schedules.latent.common",
    "schedules.latent.sparse": f"{ROLES} schedules.attention schedules.latent.common",
    "schedules.latent.decode": f"{ROLES} schedules.attention schedules.latent",
    "passes.analysis": f"{DIALECTS} passes.infrastructure",
    "passes.opt": f"{DIALECTS} passes.infrastructure",
    "passes": f"{DIALECTS} schedules",
    "lowering": "lowering.assemble lowering.convert lowering.stages",  # `__init__` alone
    "lowering.layouts": "dialect",
    "lowering.state": f"{LOW} errors expr",
    "lowering.access": STATE,
    "lowering.rings": f"{STATE} lowering.access",
    "lowering.copies": RINGS,
    "lowering.compute": f"{STATE} lowering.access",
    "lowering.sm_90a": f"{STATE} lowering.access",
    "lowering.sm_100a": f"{RINGS} lowering.copies",
    "lowering.checks": RINGS,
    "lowering.frame": f"{RINGS} lowering.checks lowering.copies",
    "lowering.ptxas": "errors files tools",
    "lowering.source": "dialect passes.infrastructure",
    "lowering.manifest": f"{STATE} expr lowering.frame",
    "lowering.convert": f"{RINGS} lowering.checks lowering.compute lowering.copies lowering.frame "
    "lowering.manifest lowering.sm_100a lowering.sm_90a",
    "lowering.assemble": f"{DIALECTS} passes lowering.manifest lowering.ptxas lowering.source",
    "lowering.stages": "lowering.convert passes.infrastructure",
    "lowering.compile": f"{DIALECTS} passes schedules.registry lowering.assemble lowering.manifest "
    "lowering.ptxas lowering.source lowering.stages",
    "runtime": LEAVES,
    "runtime.file": LEAVES,
    "runtime.call": f"{LEAVES} runtime.file",
    "runtime.devices": f"{LEAVES} runtime.call runtime.emulator runtime.file",
    "runtime.kernel": f"{LEAVES} runtime.call runtime.devices runtime.file",
    "runtime.attention_trial": f"{LEAVES} runtime.call runtime.devices runtime.file runtime.kernel",
    "runtime.doctor": f"{LEAVES} runtime",
    "runtime.emulator": "errors files",
    "runtime.emulator.machine": "errors",
    "runtime.emulator.ptx": "errors runtime.emulator.machine",
    "runtime.emulator.core": "errors runtime.emulator.machine runtime.emulator.ptx",
    "runtime.emulator.isa": f"{EMULATED} runtime.emulator.native",
    "runtime.emulator.isa.arithmetic": ISA,
    "runtime.emulator.isa.memory": f"{ISA} runtime.emulator.isa.arithmetic",
    "runtime.emulator.isa.warp": f"{ISA} runtime.emulator.isa.arithmetic runtime.emulator.isa.memory",
    "runtime.emulator.isa.asynchronous": f"{ISA} runtime.emulator.isa.memory runtime.emulator.isa.warp",
    "runtime.emulator.isa.tensor": f"{ISA} runtime.emulator.isa.arithmetic runtime.emulator.isa.memory runtime.emulator.isa.warp",
    "runtime.emulator.checkers": f"{EMULATED} runtime.emulator.native",
    "runtime.emulator.trace": f"{EMULATED} files runtime.emulator.isa",
    # The object code of its operations lies in the cache of kernels.
    "runtime.emulator.native": "env errors files runtime.emulator.ptx runtime.file",
    "runtime.timing": "errors files tools runtime.emulator",
    # What measures and validates may look at everything; nothing else may import it.
    "bench": EVERYTHING,
    "validation": EVERYTHING,
}


def modules() -> dict[str, Path]:
    """Every module of the project, by its name."""
    found: dict[str, Path] = {}
    for package, folder in FOLDERS.items():
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            if parts[-1] == "__init__":
                parts = parts[:-1]
            found[".".join([package, *parts])] = path
    return found


MODULES = modules()


def under(name: str, prefix: str) -> bool:
    """Whether a dotted name is the other or lies in it."""
    return name == prefix or name.startswith(f"{prefix}.")


def rule_of(module: str) -> str | None:
    """The entry of the table that decides for a module, by its name without `attn_mlir`."""
    covering = [entry for entry in ALLOWED if entry and under(module, entry)]
    if not module:
        return ""
    return max(covering, key=len, default=None)


def imports(module: str, text: str) -> Iterator[str]:
    """Absolute names of what a module's text imports, of whatever project."""
    package = (
        module if MODULES.get(module, Path()).name == "__init__.py" else module.rpartition(".")[0]
    )
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: len(package.split(".")) - node.level + 1]
            base = ".".join([*(parents if node.level else []), *filter(None, [node.module])])
            for alias in node.names:
                full = f"{base}.{alias.name}"
                yield full if full in MODULES else base
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            named = node.args[0]
            if isinstance(named, ast.Constant) and isinstance(named.value, str):
                yield named.value


def refused(module: str, text: str) -> list[str]:
    """What a module's text imports and may not."""
    own = module.removeprefix("attn_mlir").lstrip(".")
    rule = rule_of(own)
    if rule is None:
        return [f"{module} has no entry in the table"]
    found: list[str] = []
    for name in imports(module, text):
        if any(under(name, provider) for provider in PROVIDERS):
            found.append(f"{module} imports {name}: MLIR has one door, {DOOR}")
        if name.partition(".")[0] in FOLDERS.values() and own not in ELSEWHERE:
            found.append(f"{module} imports {name}: the folder's name is attn_mlir.{name}")
        if not under(name, "attn_mlir"):
            continue
        target = name.removeprefix("attn_mlir").lstrip(".")
        allowed = [*ALLOWED[rule].split(), *([rule] if rule else [])]
        if target and not any(under(target, entry) for entry in allowed):
            found.append(f"{module} imports {name}, which {rule or 'attn_mlir'} may not")
    return found


def test_every_import_is_allowed() -> None:
    wrong = [
        message
        for module, path in MODULES.items()
        if path != ROOT / DOOR
        for message in refused(module, path.read_text())
    ]
    assert not wrong, "\n".join(wrong)


def circles(texts: Mapping[str, str]) -> list[list[str]]:
    """Groups of files, by module, that import each other in a loop, whatever the kind of import."""
    graph = {
        name: {x for x in imports(name, text) if x in MODULES and x != name}
        for name, text in texts.items()
    }
    sorter = TopologicalSorter(graph)
    try:
        sorter.prepare()
    except CycleError as error:
        return [error.args[1]]
    return []


def test_no_files_import_each_other_in_a_circle() -> None:
    product = [name for name in MODULES if name.split(".")[1:2] not in (["bench"], ["validation"])]
    texts = {name: MODULES[name].read_text() for name in product}
    assert circles(texts) == [] and len(texts) > 500


@pytest.mark.parametrize(
    "back",
    [
        "from attn_mlir.dialect.ws.ring import RingOp",
        "from ..ws import ring",
        "if TYPE_CHECKING:\n    import attn_mlir.dialect.ws.ring",
        "def f():\n    from attn_mlir.dialect.ws.ring import RingOp",
        "importlib.import_module('attn_mlir.dialect.ws.ring')",
    ],
)
def test_a_circle_is_found_whatever_its_imports_are(back: str) -> None:
    there = "from attn_mlir.dialect.ws import tiles"
    texts = {"attn_mlir.dialect.ws.ring": there, "attn_mlir.dialect.ws.tiles": back}
    assert circles(texts)
    assert not circles(texts | {"attn_mlir.dialect.ws.tiles": "import numpy"})


def test_the_table_names_only_what_exists() -> None:
    names = {*ALLOWED, *(name for allowed in ALLOWED.values() for name in allowed.split())} - {""}
    assert {name for name in names if f"attn_mlir.{name}" not in MODULES} == set()


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("attn_mlir.dialect.new", "import attn_mlir.passes"),
        ("attn_mlir.dialect.new", "from attn_mlir import runtime"),
        ("attn_mlir.passes.new", "from attn_mlir.lowering import convert"),
        ("attn_mlir.schedules.core.new", "from attn_mlir.passes import configure"),
        ("attn_mlir.schedules.core.new", "from attn_mlir.schedules.softmax import row"),
        ("attn_mlir.lowering.new", "from attn_mlir.runtime.file.bundle import Bundle"),
        ("attn_mlir.lowering.new", "from attn_mlir.compiling.spec import mha"),
        ("attn_mlir.runtime.new", "import attn_mlir.dialect"),
        ("attn_mlir.runtime.new", "from attn_mlir import reference"),
        ("attn_mlir.runtime.emulator.new", "from ..call.tensormap import encode"),
        ("attn_mlir.runtime.emulator.new", "from ..timing import join"),
        ("attn_mlir.runtime.timing.new", "from attn_mlir.lowering import ptxas"),
        ("attn_mlir.runtime.emulator.isa.new", "from attn_mlir.lowering import layouts"),
        ("attn_mlir.runtime.emulator.isa.new", "from ..checkers import Checker"),
        ("attn_mlir.runtime.emulator.ptx.new", "from ..isa import registry"),
        ("attn_mlir.runtime.emulator.ptx.new", "from ..core.state import Launch"),
        ("attn_mlir.runtime.emulator.machine.new", "from ..ptx.ast import Instruction"),
        ("attn_mlir.api.new", "from numba_cuda_mlir import mlir"),
        ("attn_mlir.api.new", "import runtime"),
        ("attn_mlir.new", "import attn_mlir.errors"),
        ("attn_mlir.dialect.new", "import importlib\nimportlib.import_module('attn_mlir.passes')"),
        ("attn_mlir.runtime.new", "def f():\n    from attn_mlir import lowering"),
        ("attn_mlir.runtime.new", "if TYPE_CHECKING:\n    from attn_mlir import lowering"),
    ],
)
def test_what_points_the_other_way_is_refused(module: str, text: str) -> None:
    assert refused(module, text)
