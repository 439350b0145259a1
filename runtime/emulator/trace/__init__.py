"""Traces of launches: every warp, engine and barrier on a time axis of emulated steps."""

from .chrome import chrome_trace, write_trace
from .program import TimedProgram
from .recorder import MmaSteps, Trace, TracingScheduler
from .timeline import Names, Slice

__all__ = [
    "MmaSteps",
    "Names",
    "Slice",
    "TimedProgram",
    "Trace",
    "TracingScheduler",
    "chrome_trace",
    "write_trace",
]
