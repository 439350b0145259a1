"""`wgmma` as PTX text, as `nvvm.wgmma.mma_async` has no A in registers and no run-time
`scale-d`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from attn_mlir.dialect._mlir import arith, ir, llvm
from attn_mlir.dialect.scalars import i32

Value = Any

MOST_WIDE_STEPS = 16  # K steps of B whose descriptors are sums in 64 bits, see `Walk.text`


@dataclass(frozen=True)
class Wgmma:
    """The form of a warpgroup's product.

    Attributes:
      columns: N; M is 64, the sums are f32.
      element: element type of A and B, as PTX spells it.
      element_bits: its width.
      b_is_mn_major: whether the rows of B are K; 16 bits only.
    """

    columns: int
    element: str
    element_bits: int
    b_is_mn_major: bool

    def instruction(self, sums: str, a: str, b: str, accumulate: str, *, in_registers: bool) -> str:
        """The text of one instruction of 32 bytes of K."""
        signs = "1, 1"
        transposes = "" if in_registers else ", 0"
        transposes += f", {int(self.b_is_mn_major)}"
        flags = signs + (transposes if self.element_bits == 16 else "")
        k = 32 * 8 // self.element_bits
        kinds = f"m64n{self.columns}k{k}.f32.{self.element}.{self.element}"
        return f"wgmma.mma_async.sync.aligned.{kinds} {sums}, {a}, {b}, {accumulate}, {flags};"


@dataclass(frozen=True)
class Walk:
    """An operand in shared memory: the descriptors of its K steps, which differ in the low word.

    Attributes:
      start: i32, the low word of the first one.
      high: the high word.
      steps: what each step adds to the low word, whose address field never overflows.
    """

    start: Value
    high: int
    steps: tuple[int, ...]

    def text(self, name: str, start: str, *, wide: bool) -> tuple[list[str], list[str]]:
        """PTX that computes the descriptors from an operand of the text, and their registers'
        names.

        Args:
          name: prefix of the registers.
          start: the operand that has the low word of the first descriptor.
          wide: whether to add in 64 bits. The assembler makes one instruction of that for B, but
            three for A, whose registers are then not uniform.
        """
        names = [f"{name}{number}" for number in range(len(self.steps))]
        text = [f".reg .b32 {name}_low, {name}_high; mov.b32 {name}_high, {self.high:#x};"]
        text.append(f".reg .b64 {', '.join(names)};")
        for number, (descriptor, step) in enumerate(zip(names, self.steps, strict=True)):
            if wide and number:
                text.append(f"add.s64 {descriptor}, {names[0]}, {step};")
            else:
                text.append(f"add.u32 {name}_low, {start}, {step};")
                text.append(f"mov.b64 {descriptor}, {{{name}_low, {name}_high}};")
        return text, names


Registers = Sequence[Sequence[Value]]
"""A in registers: four i32 for each K step."""


def issue_wgmma(
    form: Wgmma,
    sums: Sequence[Value],
    a: Walk | Registers,
    b: Walk,
    accumulate: Value | bool,
) -> list[Value]:
    """A product as one group: fence, an instruction per K step, commit.

    Args:
      form: shape and types.
      sums: the accumulator registers; not read where `accumulate` is False.
      a, b: the operands, with the same number of K steps.
      accumulate: i1; whether the first K step adds to the sums, as the others do in any case.

    Returns:
      The pending sums, to be used by `wait_wgmma` only.
    """
    count = len(sums)
    tied = [] if accumulate is False else list(sums)
    flag = [] if isinstance(accumulate, bool) else [arith.ExtUIOp(i32(), accumulate).result]
    a_values = [a.start] if isinstance(a, Walk) else [value for step in a for value in step]
    inputs = [*tied, *a_values, b.start, *flag]
    numbers = iter(range(count + len(tied), count + len(inputs)))
    registers = "{" + ", ".join(f"${i}" for i in range(count)) + "}"
    text: list[str] = []
    if isinstance(a, Walk):
        made, a_names = a.text("a", f"${next(numbers)}", wide=False)
        text += made
    else:
        a_names = ["{" + ", ".join(f"${next(numbers)}" for _ in step) + "}" for step in a]
    made, b_names = b.text("b", f"${next(numbers)}", wide=len(b.steps) <= MOST_WIDE_STEPS)
    text += made
    first = str(int(accumulate is True))
    if flag:
        first = "accumulate"
        text.append(f".reg .pred {first}; setp.ne.b32 {first}, ${next(numbers)}, 0;")
    text.append("wgmma.fence.sync.aligned;")
    for number, (left, right) in enumerate(zip(a_names, b_names, strict=True)):
        add = first if number == 0 else "1"
        is_held = not isinstance(a, Walk)
        text.append(form.instruction(registers, left, right, add, in_registers=is_held))
    text.append("wgmma.commit_group.sync.aligned;")
    constraints = [str(i) for i in range(len(tied))]
    constraints += ["r"] * (len(a_values) + 1 + len(flag))
    return _redefined("{ " + " ".join(text) + " }", count, inputs, constraints)


def wait_wgmma(sums: Sequence[Value], newest: int) -> list[Value]:
    """`wgmma.wait_group` for all but the `newest` groups; returns the sums of the last group done.

    The sums are operands of the text, so that arithmetic on them does not move above it.
    """
    text = f"wgmma.wait_group.sync.aligned {newest};"
    return _redefined(text, len(sums), list(sums), [str(i) for i in range(len(sums))])


def _redefined(
    text: str, count: int, inputs: Sequence[Value], constraints: Sequence[str]
) -> list[Value]:
    """An inline-assembly text whose first `count` operands are f32 results; returns these."""
    struct = ir.Type.parse(f"!llvm.struct<({', '.join(['f32'] * count)})>")
    joined = ",".join(["=f"] * count + list(constraints))
    made = llvm.InlineAsmOp(struct, list(inputs), text, joined, has_side_effects=True).result
    f32 = ir.F32Type.get()
    return [
        llvm.ExtractValueOp(f32, made, ir.DenseI64ArrayAttr.get([i])).result for i in range(count)
    ]
