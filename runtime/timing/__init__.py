"""A model of time: a recorded run of the emulator replayed on the machine code, in clocks."""

from .assembly import assemble_with_lines, machine_code
from .chips import CHIPS, H200, Chip, chip_for
from .effects import barrier_names
from .grid import Composed, compose, resident_ctas
from .join import Joined, JoinError, join
from .record import ClusterRecord, Recorder
from .replay import Replay
from .report import Report, report, table
from .spans import chrome_trace, write_trace
from .warps import Replayed

__all__ = [
    "CHIPS",
    "H200",
    "Chip",
    "ClusterRecord",
    "Composed",
    "JoinError",
    "Joined",
    "Recorder",
    "Replay",
    "Replayed",
    "Report",
    "assemble_with_lines",
    "barrier_names",
    "chip_for",
    "chrome_trace",
    "compose",
    "join",
    "machine_code",
    "report",
    "resident_ctas",
    "table",
    "write_trace",
]
