"""The control field of a SASS instruction: when a warp may issue it, and what it signals.

An instruction is 128 bits on Volta to Blackwell. The assembler writes into the high word how long
the warp stands afterwards, which scoreboards the instruction raises, and which it waits for.
Layout: Jia et al., arXiv 1804.06826, section 2.1; checked here against sm_90a and sm_100a code.
"""

from dataclasses import dataclass
from functools import lru_cache

SCOREBOARDS = 6  # per warp; the masks below have six bits
NO_SCOREBOARD = 7
MAX_STALL = 15  # clocks; four bits

_STALL, _YIELD, _WRITE, _READ, _WAIT, _REUSE = 41, 45, 46, 49, 52, 58  # first bits


@dataclass(frozen=True, slots=True)
class Control:
    """The decoded control field.

    Attributes:
      stall: clocks before the warp's next instruction, the issue clock included; at least 1.
      yields: the scheduler is asked to take another warp next (the stored bit is inverted).
      write: scoreboard that is raised until the result is written, or None.
      read: scoreboard that is raised until the sources are read, or None.
      waits: scoreboards that must be zero before the instruction issues.
      reuse: operand positions that stay in the reuse cache, a mask of four bits.
    """

    stall: int
    yields: bool
    write: int | None
    read: int | None
    waits: tuple[int, ...]
    reuse: int


@lru_cache(maxsize=4096)
def decode(high: int) -> Control:
    """The control field of an instruction's high 64-bit word."""
    write, read = high >> _WRITE & 7, high >> _READ & 7
    mask = high >> _WAIT & 63
    return Control(
        stall=max(1, high >> _STALL & MAX_STALL),
        yields=not high >> _YIELD & 1,
        write=None if write == NO_SCOREBOARD else write,
        read=None if read == NO_SCOREBOARD else read,
        waits=tuple(number for number in range(SCOREBOARDS) if mask >> number & 1),
        reuse=high >> _REUSE & 15,
    )
