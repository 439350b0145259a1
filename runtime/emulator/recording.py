"""The interface of recordings: inspectors that also choose what of a launch runs."""

from typing import Protocol

from .core.state import Dim3, LaunchInspector, Unstarted
from .ptx.ast import Kernel, Module
from .ptx.program import Program


class Recording(LaunchInspector, Protocol):
    """Receives the events of a launch, and of its program what it adds to it."""

    def make_program(self, module: Module, kernel: Kernel) -> Program:
        """The program to run, whose segments may report to the recording."""
        ...

    def chosen(self, grid: Dim3, cluster: Dim3) -> Unstarted:
        """The clusters of the grid that run."""
        ...
