"""The command line: `attn-mlir`, `attn-compile`."""

from attn_mlir.cli.main import compile_main, main

__all__ = ["compile_main", "main"]
