"""The environment variables of attn-mlir: declared once, read once, refused if malformed."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar, cast

from attn_mlir.errors import SpecError

T = TypeVar("T")

DUMP_KINDS = ("ir", "ptx", "cubin", "sass")
LOG_LEVELS = ("debug", "info", "warning", "error")


@dataclass(frozen=True)
class Variable(Generic[T]):
    """One variable: its name, its purpose, its default, and how its text is parsed.

    Attributes:
      allowed: the values that `parse` accepts, for the message.
      parse: converts the text; raises ValueError for other values.
    """

    name: str
    help: str
    default: T
    allowed: str
    parse: Callable[[str], T]

    def read(self, environ: Mapping[str, str]) -> T:
        """The variable's value in an environment; the default if it is unset or empty.

        Raises:
          SpecError: malformed.
        """
        text = environ.get(self.name, "")
        if not text:
            return self.default
        try:
            return self.parse(text)
        except ValueError as error:
            raise SpecError(f"{self.name} must be {self.allowed}, got '{text}'") from error


def _dump(text: str) -> frozenset[str]:
    kinds = {kind.strip() for kind in text.split(",")}
    if "all" in kinds:
        kinds = (kinds - {"all"}) | set(DUMP_KINDS)
    if not kinds <= set(DUMP_KINDS):
        raise ValueError(text)
    return frozenset(kinds)


def _flag(text: str) -> bool:
    values = {"1": True, "true": True, "yes": True, "on": True}
    values |= {"0": False, "false": False, "no": False, "off": False}
    if text.lower() not in values:
        raise ValueError(text)
    return values[text.lower()]


def _level(text: str) -> str:
    if text.lower() not in LOG_LEVELS:
        raise ValueError(text)
    return text.lower()


def _path(text: str) -> Path | None:
    return Path(text).expanduser()


def _program(text: str) -> Path | Literal["none"] | None:
    return "none" if text == "none" else Path(text).expanduser()


DUMP = Variable[frozenset[str]](
    "ATTN_MLIR_DUMP",
    "what each compilation leaves in ATTN_MLIR_DUMP_DIR; also makes it pass by the cache",
    frozenset(),
    f"a comma-separated list of {', '.join(DUMP_KINDS)}, or all",
    _dump,
)
DUMP_DIR = Variable[Path](
    "ATTN_MLIR_DUMP_DIR",
    "where dumps go (default: ./attn-mlir-dump)",
    Path("attn-mlir-dump"),
    "a directory",
    lambda text: Path(text).expanduser(),
)
CACHE_DIR = Variable[Path | None](
    "ATTN_MLIR_CACHE_DIR",
    "where compiled kernels are kept (default: $XDG_CACHE_HOME/attn-mlir or ~/.cache/attn-mlir)",
    None,
    "a directory",
    _path,
)
BUNDLES = Variable[Path | None](
    "ATTN_MLIR_BUNDLES",
    "where kernels are looked up on a machine that cannot compile (attn-mlir prebuild)",
    None,
    "a folder of bundle files, or a zip of such files",
    _path,
)
NO_CACHE = Variable[bool](
    "ATTN_MLIR_NO_CACHE", "compile afresh and keep nothing", False, "0 or 1", _flag
)
PTXAS = Variable[Path | Literal["none"] | None](
    "ATTN_MLIR_PTXAS",
    "the ptxas program to use (default: the one of nvidia-cuda-nvcc); none makes bundles without "
    "machine code, which only the emulator runs",
    None,
    "a path, or none",
    _program,
)
LOG = Variable[str](
    "ATTN_MLIR_LOG",
    "how much is logged to stderr; info names what is compiled, and what runs on the emulator",
    "warning",
    f"one of {', '.join(LOG_LEVELS)}",
    _level,
)
CHECK = Variable[str](
    "ATTN_MLIR_CHECK",
    "what the emulator's checkers look for in kernels: all, none, or names (docs/emulator.md)",
    "none",
    "a comma-separated list of names",
    str.strip,
)

CHECK_LENGTHS = Variable[bool](
    "ATTN_MLIR_CHECK_LENGTHS",
    "read offsets and lengths back from the GPU before each launch and refuse wrong ones",
    False,
    "0 or 1",
    _flag,
)

VARIABLES: tuple[Variable[Any], ...] = (
    DUMP,
    DUMP_DIR,
    CACHE_DIR,
    BUNDLES,
    NO_CACHE,
    PTXAS,
    LOG,
    CHECK,
    CHECK_LENGTHS,
)


@dataclass(frozen=True)
class Settings:
    """The values of all variables; the fields are the variables' names without the prefix."""

    dump: frozenset[str]
    dump_dir: Path
    cache_dir: Path | None
    bundles: Path | None
    no_cache: bool
    ptxas: Path | Literal["none"] | None
    log: str
    check: str
    check_lengths: bool


def read(environ: Mapping[str, str]) -> Settings:
    """Reads an environment.

    Raises:
      SpecError: a variable is malformed, or begins with ATTN_MLIR_ and is not one of ours.
    """
    known = {variable.name for variable in VARIABLES}
    for name in sorted(environ):
        if name.startswith("ATTN_MLIR_") and name not in known:
            raise SpecError(f"{name} is not a variable of attn-mlir, which has {sorted(known)}")
    return Settings(
        dump=DUMP.read(environ),
        dump_dir=DUMP_DIR.read(environ),
        cache_dir=CACHE_DIR.read(environ),
        bundles=BUNDLES.read(environ),
        no_cache=NO_CACHE.read(environ),
        ptxas=PTXAS.read(environ),
        log=LOG.read(environ),
        check=CHECK.read(environ),
        check_lengths=CHECK_LENGTHS.read(environ),
    )


def text_of(value: object) -> str:
    """The value of a variable as text; `not set` for None."""
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, frozenset):
        value = ",".join(sorted(map(str, cast("frozenset[object]", value))))
    return "not set" if value in (None, "") else str(value)


@functools.cache
def settings() -> Settings:
    """The process's own environment, read on first use."""
    return read(os.environ)


def log(level: str, text: str) -> None:
    """Writes a line to stderr if `ATTN_MLIR_LOG` includes that level.

    Args:
      level: one of `LOG_LEVELS`.
    """
    if LOG_LEVELS.index(level) >= LOG_LEVELS.index(settings().log):
        print(f"attn-mlir: {text}", file=sys.stderr)


@functools.lru_cache(maxsize=256)
def log_once(level: str, text: str) -> None:
    """As `log`, for a line that repeated calls would repeat: the first one writes it."""
    log(level, text)
