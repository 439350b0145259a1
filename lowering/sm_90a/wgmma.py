"""`wgmma` as inline PTX: `nvvm.wgmma.mma_async` has no A in registers and no run-time `scale-d`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from attn_mlir.dialect._mlir import arith, ir, llvm
from attn_mlir.dialect.scalars import i32

Value = Any

MAX_64_BIT_STEPS = 16  # K steps of B whose descriptors are sums in 64 bits, see `Descriptors.text`


@dataclass(frozen=True)
class Wgmma:
    """The form of a warpgroup's product.

    Attributes:
      columns: N; M is 64, the sums are f32.
      element: element type of A and B, as PTX spells it.
      element_bits: its width.
      a_is_mn_major: whether the rows of A in shared memory are K; 16 bits only.
      b_is_mn_major: likewise of B.
    """

    columns: int
    element: str
    element_bits: int
    a_is_mn_major: bool
    b_is_mn_major: bool

    def instruction(self, acc: str, a: str, b: str, accumulate: str, *, in_registers: bool) -> str:
        """The text of one instruction of 32 bytes of K."""
        signs = "1, 1"
        transposes = "" if in_registers else f", {int(self.a_is_mn_major)}"
        transposes += f", {int(self.b_is_mn_major)}"
        flags = signs + (transposes if self.element_bits == 16 else "")
        k = 32 * 8 // self.element_bits
        kinds = f"m64n{self.columns}k{k}.f32.{self.element}.{self.element}"
        return f"wgmma.mma_async.sync.aligned.{kinds} {acc}, {a}, {b}, {accumulate}, {flags};"


@dataclass(frozen=True)
class Descriptors:
    """An operand in shared memory: the descriptors of its K steps, which differ in the low word.

    Attributes:
      start: i32, the low word of the first one.
      high: the high word.
      steps: what each step adds to the low word, whose address field never overflows.
    """

    start: Value
    high: int
    steps: tuple[int, ...]

    def text(self, name: str, start: str, *, in_64_bits: bool) -> tuple[list[str], list[str]]:
        """PTX that computes the descriptors from an operand of the text, and their registers.

        Args:
          name: prefix of the registers.
          start: the operand that has the low word of the first descriptor.
          in_64_bits: whether to add in 64 bits: for ptxas one instruction for B, but three for A,
            whose registers are then not uniform.
        """
        names = [f"{name}{number}" for number in range(len(self.steps))]
        text = [f".reg .b32 {name}_low, {name}_high; mov.b32 {name}_high, {self.high:#x};"]
        text.append(f".reg .b64 {', '.join(names)};")
        for number, (descriptor, step) in enumerate(zip(names, self.steps, strict=True)):
            if in_64_bits and number:
                text.append(f"add.s64 {descriptor}, {names[0]}, {step};")
            else:
                text.append(f"add.u32 {name}_low, {start}, {step};")
                text.append(f"mov.b64 {descriptor}, {{{name}_low, {name}_high}};")
        return text, names


Registers = Sequence[Sequence[Value]]
"""A in registers: four i32 for each K step."""


def issue_wgmma(
    form: Wgmma,
    acc: Sequence[Value],
    a: Descriptors | Registers,
    b: Descriptors,
    accumulate: Value | bool,
) -> list[Value]:
    """A product as one group: fence, an instruction per K step, commit.

    Args:
      form: shape and types.
      acc: the accumulator registers; not read where `accumulate` is False.
      a, b: the operands, with the same number of K steps.
      accumulate: i1; whether the first K step adds to the sums, as the others do in any case.

    Returns:
      The pending sums, to be used by `wait_wgmma` only.
    """
    count = len(acc)
    tied = [] if accumulate is False else list(acc)
    flag = [] if isinstance(accumulate, bool) else [arith.ExtUIOp(i32(), accumulate).result]
    a_values = [a.start] if isinstance(a, Descriptors) else [value for step in a for value in step]
    inputs = [*tied, *a_values, b.start, *flag]
    numbers = iter(range(count + len(tied), count + len(inputs)))
    registers = "{" + ", ".join(f"${i}" for i in range(count)) + "}"
    text: list[str] = []
    if isinstance(a, Descriptors):
        setup, a_names = a.text("a", f"${next(numbers)}", in_64_bits=False)
        text += setup
    else:
        a_names = ["{" + ", ".join(f"${next(numbers)}" for _ in step) + "}" for step in a]
    setup, b_names = b.text("b", f"${next(numbers)}", in_64_bits=len(b.steps) <= MAX_64_BIT_STEPS)
    text += setup
    first = str(int(accumulate is True))
    if flag:
        first = "accumulate"
        text.append(f".reg .pred {first}; setp.ne.b32 {first}, ${next(numbers)}, 0;")
    text.append("wgmma.fence.sync.aligned;")
    for number, (left, right) in enumerate(zip(a_names, b_names, strict=True)):
        add = first if number == 0 else "1"
        in_registers = not isinstance(a, Descriptors)
        text.append(form.instruction(registers, left, right, add, in_registers=in_registers))
    text.append("wgmma.commit_group.sync.aligned;")
    constraints = [str(i) for i in range(len(tied))]
    constraints += ["r"] * (len(a_values) + 1 + len(flag))
    return _redefined("{ " + " ".join(text) + " }", count, inputs, constraints)


def wait_wgmma(acc: Sequence[Value], newest: int) -> list[Value]:
    """`wgmma.wait_group` for all but the `newest` groups; returns the sums of the last group done.

    The sums are operands of the text, so that arithmetic on them does not move above it.
    """
    text = f"wgmma.wait_group.sync.aligned {newest};"
    return _redefined(text, len(acc), list(acc), [str(i) for i in range(len(acc))])


def _redefined(
    text: str, count: int, inputs: Sequence[Value], constraints: Sequence[str]
) -> list[Value]:
    """An inline-assembly text whose first `count` operands are f32 results; returns these."""
    struct = ir.Type.parse(f"!llvm.struct<({', '.join(['f32'] * count)})>")
    all_constraints = ",".join(["=f"] * count + list(constraints))
    results = llvm.InlineAsmOp(
        struct, list(inputs), text, all_constraints, has_side_effects=True
    ).result
    f32 = ir.F32Type.get()
    return [
        llvm.ExtractValueOp(f32, results, ir.DenseI64ArrayAttr.get([i])).result
        for i in range(count)
    ]
