"""Reproducers: a module with the pipeline that was about to run on it, as `mlir-opt` writes them.

```
module { ... }
{-#
  external_resources: {
    mlir_reproducer: {
      pipeline: "builtin.module(attn-configure{...},cse)",
      disable_threading: true,
      verify_each: true
    }
  }
#-}
```
The file is written before anything runs and removed when all went well, so that it is there even
if a pass ends the process.
"""

import json
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attn_mlir.errors import SpecError
from attn_mlir.files import write_file
from attn_mlir.passes.infrastructure.pipeline import ANCHOR, Step

_METADATA = re.compile(r"\{-#.*?#-\}", re.DOTALL)
_PIPELINE = re.compile(r'\bmlir_reproducer\s*:\s*\{[^}]*?\bpipeline\s*:\s*("(?:[^"\\]|\\.)*")')
_VERIFY_EACH = re.compile(r"\bverify_each\s*:\s*(true|false)")


@dataclass(frozen=True)
class Reproducer:
    """A reproducer file taken apart: the module's text, the pipeline and its flags."""

    text: str
    pipeline: str
    verify_each: bool


def read(text: str, file: str) -> Reproducer:
    """Reads a reproducer; the module's text keeps its line numbers.

    Raises:
      SpecError: the text holds no pipeline.
    """
    for metadata in _METADATA.finditer(text):
        if pipeline := _PIPELINE.search(metadata.group()):
            verify = _VERIFY_EACH.search(metadata.group())
            module_text = (
                text[: metadata.start()]
                + "\n" * metadata.group().count("\n")
                + text[metadata.end() :]
            )
            is_verified = verify is None or verify.group(1) == "true"
            return Reproducer(module_text, json.loads(pipeline.group(1)), is_verified)
    raise SpecError(f"{file} is no reproducer: it has no 'mlir_reproducer' with a pipeline")


def render(module: Any, steps: list[Step], *, verify_each: bool) -> str:
    """The text of a reproducer for steps that are about to run on a module."""
    text = str(module).rstrip("\n")
    pipeline = json.dumps(f"{ANCHOR}({','.join(step.text for step in steps)})")
    return (
        f"{text}\n\n{{-#\n  external_resources: {{\n    mlir_reproducer: {{\n"
        f"      pipeline: {pipeline},\n      disable_threading: true,\n"
        f"      verify_each: {str(verify_each).lower()}\n    }}\n  }}\n#-}}\n"
    )


@dataclass
class Recorder:
    """Keeps a reproducer up to date while passes run.

    Attributes:
      file: where it is written.
      is_local: whether it holds only the pass that is running, and the module as that pass gets it.
      verify_each: whether the module is verified after each pass.
      keep: whether the file stays even if no pass fails.
    """

    file: Path
    is_local: bool
    verify_each: bool
    keep: bool = False
    has_failed: bool = field(default=False, init=False)

    def begin(self, steps: list[Step], module: Any) -> None:
        """Called before the first pass."""
        if not self.is_local:
            self._write(steps, module)

    def before(self, step: Step, module: Any) -> None:
        """Called before each pass."""
        if self.is_local:
            self._write([step], module)

    def after(self, step: Step, module: Any) -> None:
        """Called after each pass that did not fail."""

    def failed(self, step: Step, module: Any) -> None:
        """Prints the path of the reproducer."""
        self.has_failed = True
        print(
            f"attn-opt: note: pipeline failed while executing '{step.name}': "
            f"reproducer generated at '{self.file}'; run it by --run-reproducer",
            file=sys.stderr,
        )

    def end(self) -> None:
        """Called when all passes have run."""
        if not self.keep and not self.has_failed:
            self.file.unlink(missing_ok=True)

    def _write(self, steps: list[Step], module: Any) -> None:
        write_file(self.file, render(module, steps, verify_each=self.verify_each))
