"""Whether loads from shared memory are complete before their thread signals others.

A load is issued and goes on by itself; its registers make the first instruction that needs them
wait. An arrival needs none of them. The assembler may move what works on registers alone, a product
of `mma.sync` included, behind an arrival that follows it in the text, so that such uses say
nothing. A store or a branch stays in front of it.
"""

from collections.abc import Callable

from .ast import Instruction, Kernel
from .cfg import EXIT, Graph
from .flow import read, written

_STAY = frozenset("st stmatrix red atom bra brx wgmma tcgen05 ret exit trap".split())


Test = Callable[[Instruction], bool]
Step = Callable[[int, Instruction, bool], bool]


def awaits_reads(kernel: Kernel, graph: Graph, line: int) -> bool:
    """Whether each path from the loads of a line to the next arrival has an instruction that waits
    for the data.

    One that stays in front of the arrival, and that needs a register of the load or one computed
    from it.
    """
    code = kernel.instructions
    loads = [at for at, instruction in enumerate(code) if instruction.line == line]
    starts = [at for at in loads if code[at].parts[0] in ("ld", "ldmatrix")]
    return bool(starts) and not any(hands_on(kernel, graph, at, arrives) for at in starts)


def hands_on(
    kernel: Kernel, graph: Graph, load: int, signals: Test, waits: Test | None = None
) -> bool:
    """Whether a path leads from a load to a signal without waiting for the data.

    Args:
      load: its position. waits: whether an instruction waits for the load without a use of its
        data.
    """
    signalled = False

    def ends(_: int, instruction: Instruction, uses: bool) -> bool:
        nonlocal signalled
        if (uses and instruction.parts[0] in _STAY) or (waits and waits(instruction)):
            return True
        signalled = signalled or signals(instruction)
        return signalled

    follow(kernel, graph, load, ends)
    return signalled


def follow(kernel: Kernel, graph: Graph, load: int, ends: Step) -> None:
    """Walk every path from a load.

    Args:
      load: its position.
      ends: gets each instruction on the way with its position, and whether it needs data of the
        load on all paths walked so far; says whether the path ends there. An instruction is seen
        again where another path leaves less of the data.
    """
    code, blocks = kernel.instructions, graph.blocks
    home = next(block for block in blocks if block.first <= load < block.last)
    common: dict[int, int] = {}  # registers that need the load on all paths to a block's begin
    todo = [(load + 1, home, written(code[load]))]
    while todo:
        first, block, data = todo.pop()
        for at in range(first, block.last):
            instruction = code[at]
            uses = bool(read(instruction) & data)
            if ends(at, instruction, uses):
                break
            if uses:
                data |= written(instruction)
            elif instruction.guard is None:
                data &= ~written(instruction)
        else:
            for goal in block.successors:
                at_goal = common.get(goal)
                if goal != EXIT and (at_goal is None or at_goal & data != at_goal):
                    common[goal] = data if at_goal is None else at_goal & data
                    todo.append((blocks[goal].first, blocks[goal], common[goal]))


def arrives(instruction: Instruction) -> bool:
    """Whether an instruction signals other threads, or makes an engine write."""
    parts = instruction.parts
    if parts[0] == "mbarrier":
        return parts[1].startswith("arrive")
    if parts[0] in ("st", "red", "atom"):
        return instruction.has("release", "acq_rel")
    return parts[0] in ("bar", "barrier", "call") or parts[:3] == ("cp", "async", "bulk")
