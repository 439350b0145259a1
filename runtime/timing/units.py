"""Which unit a SASS instruction needs, for how long, and when its result is there.

Intervals are the stall counts that ptxas puts between independent instructions of one unit; they
equal the published throughputs (docs/timing.md). Latencies of fixed-latency instructions are in
their stall counts; those of the others are constants of the chip.
"""

import re
from dataclasses import dataclass
from typing import Literal

from .sass import Instruction

# Units of one partition; an FMA instruction takes whichever half is free, wide ones the heavy half.
HEAVY, LITE, ALU, XU, UNIFORM, MIO, BRANCH, NONE = range(8)
UNIT_NAMES = ("FMA heavy", "FMA lite", "ALU", "XU", "uniform", "MIO", "branch", "none")
UNITS = NONE

Action = Literal[
    "", "wait", "arrive", "bar", "cluster", "copy", "shared", "product", "depbar", "flush",
    "groups",
    "fence", "group", "mma", "commit", "tensor load", "tensor store", "tensor fence",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of an instruction.

    Attributes:
      unit: that it needs, and `interval`, the clocks for which it keeps it.
      latency: name of the constant that says when its scoreboards are lowered, or empty.
      action: what else happens.
      either: it takes the lite half of FMA when the heavy one is taken.
    """

    unit: int
    interval: int
    latency: str = ""
    action: Action = ""
    either: bool = False


_FMA = frozenset("FFMA FADD FMUL FSWZADD".split())
_WIDE = ("IMAD", "HFMA2", "HADD2", "HMUL2", "HMNMX2", "IDP", "FFMA2", "FADD2", "FMUL2", "DFMA")
_XU = frozenset("MUFU F2I F2F I2F FRND POPC FLO BREV".split())
_ALU = frozenset(
    "LOP3 SHF PRMT SEL FSEL ISETP FSETP FMNMX FMNMX3 VIMNMX VIMNMX3 F2FP I2FP IADD3 VIADD LEA SGXT "
    "BMSK PLOP3 FCHK MOV VIADDMNMX IABS P2R R2P LOP IADD FCMP ICMP VABSDIFF HSETP2 "
    "VOTE CREDUX".split()
)
_MEMORY = frozenset("LDG STG LD ST LDL STL ATOM ATOMG RED LDGSTS MATCH CCTL".split())
_BRANCH = frozenset(
    "BRA BRX JMP JMX EXIT RET CALL BSSY BSYNC BREAK WARPSYNC NOP YIELD NANOSLEEP ELECT KILL ERRBAR "
    "PMTRIG WARPGROUP WARPGROUPSET ACQBULK DEPBAR ENDCOLLECTIVE".split()
)
COPIES = frozenset(
    "UTMALDG UTMASTG UTMAREDG UBLKCP UBLKRED UTMAPF UBLKPF UTMACCTL UGETNEXTWORKID".split()
)


def cost_of(one: Instruction) -> Cost:
    """The cost of an instruction; of an unknown opcode that of an ALU instruction."""
    base = one.base
    if base in _FMA:
        return Cost(HEAVY, 2, either=True)
    if base.startswith(_WIDE):
        return Cost(HEAVY, 2)
    if base in _XU:
        return Cost(XU, 8, "mufu_latency" if base == "MUFU" else "convert_latency")
    if base == "VOTE" or base in _ALU:
        return Cost(ALU, 2, "vote_latency" if base == "VOTE" else "")
    if base in ("HGMMA", "QGMMA", "IGMMA", "BGMMA"):
        return Cost(NONE, 1, action="product")
    if base == "WARPGROUP" and one.suffixes[0] == "DEPBAR":
        return Cost(BRANCH, 1, action="groups")
    if base == "WARPGROUP" and one.suffixes[0] == "ARRIVE":
        return Cost(BRANCH, 1, action="group")
    if base == "DEPBAR":
        return Cost(BRANCH, 1, action="depbar")
    if base in _BRANCH:
        return Cost(BRANCH, 1)
    return _memory_cost(one, base)


def _memory_cost(one: Instruction, base: str) -> Cost:
    """Costs of memory, barrier and engine instructions."""
    if base == "SYNCS":
        kind = one.suffixes[0]
        if kind == "PHASECHK":
            return Cost(MIO, 2, "try_wait_latency", "wait")
        return Cost(MIO, 2, "arrive_latency", "arrive" if kind == "ARRIVE" else "")
    if base == "ARRIVES":
        return Cost(MIO, 2, "arrive_latency", "arrive")
    if base in ("BAR", "BARRIER"):
        return Cost(MIO, 2, "arrive_latency", "bar")
    if base.startswith("UCGABAR"):
        return Cost(UNIFORM, 2, "arrive_latency", "cluster")
    if base in COPIES:
        return Cost(UNIFORM, 2, "arrive_latency", "copy")
    if base == "UTMACMDFLUSH":
        return Cost(UNIFORM, 2, action="flush")
    if base == "LDGDEPBAR":
        return Cost(MIO, 2, action="flush")
    if base in ("LDS", "LDSM"):
        latency = "lds_latency" if base == "LDS" else "ldsm_latency"
        return Cost(MIO, 4, latency, "shared")
    if base in ("STS", "STSM", "ATOMS"):
        return Cost(MIO, 4, "sts_read" if base != "ATOMS" else "lds_latency", "shared")
    if base in _MEMORY:
        is_atomic = base.startswith(("ATOM", "RED"))
        return Cost(MIO, 4, "atomic_latency" if is_atomic else "global_latency")
    if base == "SHFL":
        return Cost(MIO, 4, "shuffle_latency")
    if base == "REDUX":
        return Cost(MIO, 8, "redux_latency")
    if base in ("UTCHMMA", "UTCQMMA", "UTCOMMA", "UTCIMMA"):
        return Cost(UNIFORM, 2, "arrive_latency", "mma")
    if base == "UTCBAR":
        return Cost(UNIFORM, 2, "arrive_latency", "commit")
    if base in ("LDTM", "STTM"):
        return Cost(MIO, 2, "", "tensor load" if base == "LDTM" else "tensor store")
    if base == "FENCE" and one.suffixes[-1] == "T":
        return Cost(MIO, 2, "fence_latency", "tensor fence")
    if base in ("FENCE", "MEMBAR"):
        return Cost(MIO, 2, "fence_latency", "fence")
    if base == "USETMAXREG":
        return Cost(UNIFORM, 2, "setmaxnreg_latency")
    if base in ("S2R", "S2UR", "CS2R"):
        return Cost(ALU if base == "CS2R" else MIO, 2, "special_latency")
    if base in ("LDC", "ULDC", "LDCU"):
        return Cost(UNIFORM if base[0] == "U" else MIO, 2, "ldc_latency")
    if base.startswith(("U", "R2UR")):
        return Cost(UNIFORM, 2, "vote_latency")
    return Cost(ALU, 2, "lds_latency")


_REGISTER = re.compile(r"\bR(\d+)(?:\.\w+)*")


def bank_reads(one: Instruction, previous: Instruction | None) -> tuple[int, int]:
    """How many reads an instruction makes of the even and of the odd bank of registers.

    A register that the instruction before it, of the same warp, kept at the same operand position
    (`.reuse`) is not read again. Bank of a register: its number modulo 2 (docs/timing.md).
    """
    key = (one, previous if previous is not None and previous.control.reuse else None)
    reads = _READS.get(key)
    if reads is None:
        reused = _sources(previous) if previous is not None and key[1] is not None else {}
        mask = previous.control.reuse if previous is not None else 0
        read = {
            register
            for position, register in _sources(one).items()
            if not (mask >> position & 1 and reused.get(position) == register)
        }
        reads = _READS[key] = (sum(1 for r in read if r % 2 == 0), sum(1 for r in read if r % 2))
    return reads


_READS: dict[tuple[Instruction, Instruction | None], tuple[int, int]] = {}


def _sources(one: Instruction) -> dict[int, int]:
    """Vector registers that an instruction reads, by operand position behind the result."""
    result: dict[int, int] = {}
    for position, text in enumerate(one.operands.split(",")[1:]):
        if register := _REGISTER.search(text):
            result[position] = int(register[1])
    return result
