"""Errors of a running kernel, with the place in the PTX text where they happened."""

from attn_mlir.errors import LaunchError


class KernelFault(LaunchError):
    """The kernel did something wrong while it ran.

    Attributes:
      line: 1-based PTX line, or 0 when no line is to blame.
      kind: the machine's fault kind ("out-of-bounds", "mbarrier", ...), "poison" or "trap".
      origin: what the line was made from, where the PTX and the caller tell.
      where: the CTA, warp and lanes, such as "cta (0,0,0) warp 3 lanes 0-31".
    """

    def __init__(
        self, message: str, *, kind: str, line: int, text: str, where: str, origin: str = ""
    ):
        place = quoted(line, text, origin)
        super().__init__(f"{where}: {message}{place}")
        self.line = line
        self.kind = kind
        self.origin = origin
        self.where = where


class DeadlockError(LaunchError):
    """No warp can run and nothing is under way that could change that.

    Attributes:
      waiting: one line per context that waits: where it is and for what.
    """

    def __init__(self, waiting: list[str]):
        body = "\n".join(waiting)
        super().__init__(f"deadlock: {len(waiting)} waiting\n{body}")
        self.waiting = waiting


class InstructionLimitError(LaunchError):
    """A launch executed more warp-instructions than it may: a loop without an end, mostly.

    Attributes:
      warps: one line per context of the clusters that run: where it is and what it does.
    """

    def __init__(self, limit: int, warps: list[str]):
        body = "\n".join(warps)
        super().__init__(
            f"the launch is not over after {limit:,} warp-instructions (a loop that never ends? "
            f"else raise instruction_limit)\n{body}"
        )
        self.warps = warps


def quoted(line: int, text: str, origin: str) -> str:
    """A PTX line and what it was made from, on lines of their own; nothing for line 0."""
    if not line:
        return ""
    below = f"\n        {origin}" if origin else ""
    return f"\n  {line:>5} | {text}{below}"


def lanes_text(mask: int) -> str:
    """Ranges of the set bits: 0b10111 is "0-2,4"."""
    parts: list[str] = []
    lane = 0
    while lane < 32:
        if mask >> lane & 1:
            end = lane
            while end < 31 and mask >> (end + 1) & 1:
                end += 1
            parts.append(str(lane) if end == lane else f"{lane}-{end}")
            lane = end
        lane += 1
    return ",".join(parts) or "none"
