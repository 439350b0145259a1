"""The door to MLIR: what it imports and when, contexts, dialect loading, the small helpers."""

import subprocess
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from attn_mlir.dialect import _mlir, attn, ws
from attn_mlir.dialect._mlir import I32, Pure, ext, ir, passmanager
from attn_mlir.errors import TargetError


class DoorDialect(ext.Dialect, name="door"):
    pass


class TwinOp(DoorDialect.Operation, name="twin", traits=[Pure]):
    """`%r = "door.twin"(%a) : (i32) -> i32`."""

    res: ext.Result[I32]
    a: ext.Operand[I32]


class EffectOp(DoorDialect.Operation, name="effect"):
    """`%r = "door.effect"(%a) : (i32) -> i32`."""

    res: ext.Result[I32]
    a: ext.Operand[I32]


class GuardedOp(DoorDialect.Operation, name="guarded"):
    """Verifies what its fields hold, which may not be there yet when it is asked."""

    more: Sequence[ext.Operand[I32 | ir.IndexType]]
    a: ext.Operand[I32]
    limit: ir.IntegerAttr
    sizes: Any
    body: ext.Region
    ATTRIBUTE_CLASSES = {"sizes": ir.DenseI32ArrayAttr}

    def verify_invariants(self) -> bool:
        if ir.IntegerAttr(self.limit).value < 0 or self.a is None:
            self.location.emit_error("'door.guarded' op expects a limit of at least 0")
            return False
        return True


@pytest.fixture(autouse=True)
def door_dialect(monkeypatch: pytest.MonkeyPatch):
    """Makes the dialects above known as a package's, for one test."""
    package = types.ModuleType("door_dialect")
    package.DIALECT = DoorDialect  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setitem(sys.modules, "door_dialect", package)
    monkeypatch.setattr(_mlir, "_DIALECTS", dict(_mlir._DIALECTS))
    _mlir.register_dialect("door", "door_dialect")


def run_python(code: str) -> str:
    """Runs code in a fresh interpreter and returns what it printed."""
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    return result.stdout.strip()


def test_importing_the_door_imports_no_mlir():
    code = (
        "import sys, attn_mlir.dialect._mlir, attn_mlir.dialect.attn.masks\n"
        "print([name for name in sys.modules if name.startswith('numba_cuda_mlir') or name == 'mlir'])"
    )
    assert run_python(code) == "[]"


def test_the_providers_front_end_is_not_started():
    code = (
        "import sys\n"
        "from attn_mlir.dialect._mlir import make_context\n"
        "make_context()\n"
        "print([name for name in sys.modules if name.startswith('numba_cuda_mlir.')\n"
        "       and not name.startswith('numba_cuda_mlir._mlir')], 'numba' in sys.modules)"
    )
    assert run_python(code) == "[] False"


def test_the_providers_package_becomes_whole_when_it_is_used():
    code = (
        "from attn_mlir.dialect._mlir import make_context, ir\n"
        "context = make_context()\n"
        "import numba_cuda_mlir\n"
        "print(numba_cuda_mlir.__version__, type(numba_cuda_mlir).__name__)\n"
        "from numba_cuda_mlir import cuda\n"
        "print(cuda.__name__)\n"
        "print(len(ir.Module.parse('func.func @f() { return }', context).body.operations))"
    )
    assert run_python(code).split("\n") == ["0.6.0 module", "numba_cuda_mlir.cuda", "1"]


def test_who_imports_numpy_while_it_is_deferred_gets_it():
    code = (
        "import sys\n"
        "from attn_mlir.dialect._mlir import _numpy_deferred, ir\n"
        "assert 'numpy' not in sys.modules\n"
        "with _numpy_deferred():\n"
        "    import numpy as early\n"
        "assert 'numpy' not in sys.modules\n"
        "with _numpy_deferred():\n"
        "    import numpy.linalg\n"
        "    from numpy import float32\n"
        "import numpy\n"
        "assert early is not numpy is sys.modules['numpy'] and early.float32 is float32\n"
        "assert early.linalg is numpy.linalg\n"
        "with _numpy_deferred():\n"
        "    import numpy as late\n"
        "assert late is numpy is sys.modules['numpy']\n"
        "with ir.Context(), ir.Location.unknown():\n"
        "    print(ir.AttrBuilder.get('F64ElementsAttr')([1.0, 2.5], ir.Context.current))"
    )
    assert run_python(code) == "dense<[1.000000e+00, 2.500000e+00]> : tensor<2xf64>"


def test_a_provider_that_is_loaded_already_is_used():
    code = (
        "import numba_cuda_mlir\n"
        "from attn_mlir.dialect._mlir import make_context, ir\n"
        "print(len(ir.Module.parse('func.func @f() { return }', make_context()).body.operations),\n"
        "      type(numba_cuda_mlir).__name__)"
    )
    assert run_python(code) == "1 module"


@pytest.fixture
def official(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of an official package that is found before all others, with a binding in it."""
    (tmp_path / "mlir" / "_mlir_libs").mkdir(parents=True)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(_mlir, "_root", None)
    return tmp_path / "mlir"


def test_the_pinned_package_is_preferred(official: Path):
    assert _mlir._provider() == "numba_cuda_mlir._mlir"
    assert _mlir.provider_version() == _mlir.PROVIDER_VERSION
    assert _mlir.provider_identity() == f"numba_cuda_mlir {_mlir.PROVIDER_VERSION}"


def test_the_official_package_is_used_where_the_pinned_one_is_not_installed(
    official: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(_mlir, "PROVIDER_PACKAGE", "not_installed")
    assert _mlir._provider() == "mlir"
    assert _mlir.provider_version() == "official"


def test_another_package_of_that_name_is_not_mistaken_for_it(
    official: Path, monkeypatch: pytest.MonkeyPatch
):
    (official / "_mlir_libs").rmdir()
    monkeypatch.setattr(_mlir, "PROVIDER_PACKAGE", "not_installed")
    with pytest.raises(TargetError, match="no MLIR is installed"):
        _mlir._provider()


def test_unknown_names_are_attribute_errors():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _mlir.nothing  # noqa: B018


def test_another_version_of_the_provider_is_refused(tmp_path: Path):
    (tmp_path / "VERSION").write_text("0.5.9\n")
    with pytest.raises(TargetError, match=r"numba-cuda-mlir 0\.5\.9 is installed.*0\.6\.0"):
        _mlir._check_version(tmp_path)
    (tmp_path / "VERSION").write_text(f"{_mlir.PROVIDER_VERSION}\n")
    _mlir._check_version(tmp_path)


def test_the_pin_is_the_projects():
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    assert f"numba-cuda-mlir=={_mlir.PROVIDER_VERSION}" in project
    assert _mlir.provider_version() == _mlir.PROVIDER_VERSION


def test_no_provider_at_all(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(_mlir, "_root", None)
    monkeypatch.setattr(_mlir, "_find", lambda package: None)
    with pytest.raises(TargetError, match=r"no MLIR is installed.*pip install numba-cuda-mlir"):
        _mlir._provider()


@pytest.mark.parametrize("dialect", [attn.DIALECT, ws.DIALECT], ids=["attn", "ws"])
def test_further_contexts_have_the_definitions_of_the_classes(dialect: Any):
    for _ in range(2):
        with _mlir.make_context(), ir.Location.unknown():
            of_classes = ext.Dialect._emit_module.__func__(dialect)
            manager = passmanager.PassManager()
            manager.add("canonicalize, cse")
            manager.run(of_classes.operation)
            assert "irdl.operation" in str(of_classes)
            assert str(dialect._mlir_module) == str(of_classes)


def test_loading_twice_is_harmless_and_contexts_are_independent():
    text = '%0 = arith.constant 1 : i32\n%1 = "door.twin"(%0) : (i32) -> i32'
    contexts = [_mlir.make_context() for _ in range(3)]
    for context in contexts:
        _mlir.load_dialects(context)
        _mlir.load_dialects(context, "door")
    for context in reversed(contexts):
        module = ir.Module.parse(text, context)
        assert isinstance(module.body.operations[1], TwinOp)
        assert module.operation.verify()


def test_a_context_knows_only_the_dialects_asked_for():
    context = _mlir.make_context(dialects=["door"])
    assert context.is_registered_operation("door.twin")
    assert not context.is_registered_operation("attn.mha")
    assert "door" in _mlir.dialect_names(context)
    assert "attn" not in _mlir.dialect_names(context)
    assert "attn" in _mlir.dialect_names(_mlir.make_context())


def cse(text: str) -> list[str]:
    """Runs CSE on a module and returns the names of what is left."""
    with _mlir.make_context():
        module = ir.Module.parse(text)
        passmanager.PassManager.parse("builtin.module(cse)").run(module.operation)
        return [operation.name for operation in module.body.operations]


def test_pure_operations_are_erased_when_unused_and_others_are_not():
    use = '%0 = arith.constant 1 : i32\n%1 = "door.{}"(%0) : (i32) -> i32'
    assert cse(use.format("twin")) == ["arith.constant"]
    assert cse(use.format("effect")) == ["arith.constant", "door.effect"]


def test_attach_pure_marks_a_loaded_operation():
    text = '%0 = arith.constant 1 : i32\n%1 = "door.effect"(%0) : (i32) -> i32'
    with _mlir.make_context():
        _mlir.attach_pure(EffectOp)
        module = ir.Module.parse(text)
        passmanager.PassManager.parse("builtin.module(cse)").run(module.operation)
        assert [operation.name for operation in module.body.operations] == ["arith.constant"]


@pytest.mark.parametrize(
    ("operation", "message"),
    [
        ("(%0) ({}) {ATTRS, SIZES} : (i32) -> ()", None),
        ("(%0) ({}) {limit = -1 : i32, sizes = array<i32>, SIZES} : (i32) -> ()", "a limit of at"),
        ("(%0) ({}) {sizes = array<i32>, SIZES} : (i32) -> ()", "attribute 'limit'"),
        (
            '(%0) ({}) {limit = "x", sizes = array<i32>, SIZES} : (i32) -> ()',
            "attribute 'limit' of IntegerAttr, got \"x\"",
        ),
        (
            "(%0) ({}) {limit = 1 : i32, sizes = array<i64>, SIZES} : (i32) -> ()",
            "attribute 'sizes' of DenseI32ArrayAttr, got array<i64>",
        ),
        ("(%1) ({}) {ATTRS, SIZES} : (f32) -> ()", "operand 'a' of i32, got f32"),
        ("(%2) ({}) {ATTRS, SIZES} : (i64) -> ()", "operand 'a' of i32, got i64"),
        (
            "(%1, %0) ({}) {ATTRS, operandSegmentSizes = array<i32: 1, 1>} : (f32, i32) -> ()",
            "operand 'more' of i32 or IndexType, got f32",
        ),
        ("() ({}) {ATTRS, SIZES} : () -> ()", "at least 1 operands, but got 0"),
        ("(%0) ({}) {ATTRS} : (i32) -> ()", "attribute 'operandSegmentSizes'"),
        ("(%0) {ATTRS, SIZES} : (i32) -> ()", "regions: expected 1 but got 0"),
    ],
)
def test_a_verifier_only_sees_what_is_declared(operation: str, message: str | None):
    sizes = "operandSegmentSizes = array<i32: 0, 1>"
    operation = operation.replace("ATTRS", "limit = 1 : i32, sizes = array<i32>")
    text = (
        "%0 = arith.constant 1 : i32\n%1 = arith.constant 1.0 : f32\n%2 = arith.constant 1 : i64\n"
        f'"door.guarded"{operation.replace("SIZES", sizes)}'
    )
    with _mlir.make_context():
        if message is None:
            assert ir.Module.parse(text).operation.verify()
            return
        with pytest.raises(ir.MLIRError) as caught:
            ir.Module.parse(text)
    assert message in caught.value.error_diagnostics[0].message


def test_keep_alive_returns_and_holds_once():
    value: Any = object()
    before = len(_mlir._kept)
    assert _mlir.keep_alive(value) is value
    assert _mlir.keep_alive(value) is value
    assert len(_mlir._kept) == before + 1


def test_values_of_our_types_cause_no_search_on_disk():
    code = (
        "import sys\n"
        "from attn_mlir.dialect._mlir import make_context, ir\n"
        "from attn_mlir.dialect.ws import buffer_type, tile_type\n"
        "searched = []\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        searched.append(name)\n"
        "with make_context(), ir.Location.unknown():\n"
        "    text = str(buffer_type(tile_type([8], ir.F32Type.get(), 'shared')))\n"
        "    ir.Type.parse(text)\n"
        "    sys.meta_path.insert(0, Finder())\n"
        "    print(type(ir.Type.parse(text)).__name__, searched)"
    )
    assert run_python(code) == "BufferType []"
