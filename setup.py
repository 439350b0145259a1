"""The part that pyproject.toml cannot say: wheels hold the product, an editable install also what checks it."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

CHECKS = ("attn_mlir.bench", "attn_mlir.validation")


class Build(build_py):
    """Leaves benchmarks and validation out of wheels, and what an earlier build has left."""

    def finalize_options(self) -> None:
        """Drops their packages, unless the checkout itself is installed."""
        super().finalize_options()
        if not self.editable_mode:
            self.packages = [name for name in self.packages if not name.startswith(CHECKS)]

    def run(self) -> None:
        """Builds into an empty folder: setuptools would keep modules that have moved since."""
        if not self.editable_mode:
            shutil.rmtree(Path(self.build_lib) / "attn_mlir", ignore_errors=True)
        super().run()


setup(cmdclass={"build_py": Build})
