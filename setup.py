"""What pyproject.toml cannot say: wheels hold the product, an editable install also what checks it."""

from setuptools import setup
from setuptools.command.build_py import build_py

CHECKS = ("attn_mlir.bench", "attn_mlir.validation")


class Build(build_py):
    """Leaves benchmarks and validation out of wheels."""

    def finalize_options(self) -> None:
        """Drops their packages, unless the checkout itself is installed."""
        super().finalize_options()
        if not self.editable_mode:
            self.packages = [name for name in self.packages if not name.startswith(CHECKS)]


setup(cmdclass={"build_py": Build})
