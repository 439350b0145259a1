"""What was found by comparing with an H200, for the section that `run.py --write` writes.

`test_findings.py` holds what was wrong with single instructions as tests.
"""

from __future__ import annotations

# By family, programs of its first run (one seed, 2026-11-21) in which the emulator and the GPU differed
# or either stopped, and programs with an instruction that the emulator did not know.
FIRST_RUN = {
    "integer": (7, 105), "float": (6, 82), "half": (2, 130), "convert": (106, 31),
    "approximate": (19, 0), "atomic": (70, 0), "tma-reduce": (9, 0), "bulk": (5, 36), "mma": (0, 40),
    "cp-async": (1, 0), "tensormap": (6, 0), "roles": (8, 0), "pipeline": (32, 0), "mbarrier": (70, 0),
}  # fmt: skip

# (where, what differed, decided from, resolution)
FINDINGS = [
    (
        "mov, selp",
        "an integer written in the text became that *number* when the register was otherwise used as f32",
        "PTX ISA: the instruction's type says what a number means",
        "emulator: `mov.b32 r, 0x7F800000` moves bits",
    ),
    (
        "cvt f64 → integer",
        "NaN gave 0",
        "PTX ISA cvt: 2^(n-1) when the source is f64 or the result has 64 bits",
        "emulator",
    ),
    ("cvt 64-bit integer → f64", "directed roundings rounded to nearest", "PTX ISA", "emulator"),
    ("cvt .relu", "-0 stayed -0", "H200: +0", "emulator"),
    ("cvt .satfinite to f16, bf16, tf32", "infinity stayed infinity", "PTX ISA", "emulator"),
    (
        "cvt .ftz f64 → f32",
        "a value that rounds up to the least normal number was kept",
        "H200: what is subnormal before rounding becomes 0",
        "emulator",
    ),
    (
        "cvt .rm/.rp .ftz f32 → f16",
        "subnormal sources were flushed",
        "H200 does not flush; PTX ISA says it would",
        "emulator follows the GPU, says so in the code",
    ),
    ("fma, mad .rm", "an exact zero was +0", "IEEE 754: -0 when rounding down", "emulator"),
    (
        "mad, fma f64",
        "a product that overflows on the host hid an infinite addend",
        "IEEE 754",
        "emulator: exact arithmetic",
    ),
    (
        "add, sub, mul, fma, div, sqrt, rcp f64",
        "directed roundings were refused",
        "PTX ISA",
        "emulator: exact arithmetic",
    ),
    ("neg, abs .ftz of halves", "subnormals were kept", "PTX ISA", "emulator"),
    ("min, max .xorsign.abs of halves", "refused", "PTX ISA", "emulator"),
    (
        "setp, set of f16x2, bf16x2; set with .and/.or/.xor; set to f16",
        "refused, or -1 in place of 1.0",
        "PTX ISA",
        "emulator",
    ),
    ("slct .ftz", "a negative subnormal selected the second operand", "PTX ISA", "emulator"),
    (
        "div.approx",
        "a divisor above 2^126 gave a quotient",
        "PTX ISA: 0, or NaN of an infinite dividend",
        "emulator",
    ),
    (
        "rcp, rsqrt .approx f64",
        "low words and subnormals counted; a negative source of rsqrt gave a number",
        "PTX ISA: only high words count, .ftz",
        "emulator",
    ),
    ("ex2.approx.ftz.bf16", "subnormal results were kept", "PTX ISA", "emulator"),
    (
        "sad, dp2a, mad.cc, madc, mad.hi.sat, mad24.hi.sat, fns, bmsk, szext, cvt.pack, lop3 with a predicate",
        "unknown",
        "PTX ISA",
        "emulator",
    ),
    ("mma.sync m16n8k4 tf32, m16n8k16 of bytes", "unknown", "PTX ISA", "emulator"),
    (
        "atom, red add.f32",
        "subnormals were kept in global memory",
        "PTX ISA: flushed in global memory, kept in shared memory",
        "emulator",
    ),
    (
        "atom, red, TMA and bulk reductions",
        "NaN sums had the host's bits",
        "H200: 0x7FFF.. for f16, bf16, f32; the operand itself for f64",
        "emulator",
    ),
    (
        "atom, red min/max of f16, bf16",
        "a signalling NaN was kept",
        "PTX ISA: a NaN operand is dropped",
        "emulator",
    ),
    (
        "cp.async.bulk shared::cta → shared::cluster",
        "the GPU stops with an illegal instruction unless launched as a cluster",
        "H200",
        "program: in clusters only",
    ),
    (
        "TMA store before the tensor",
        "the GPU stops where a start coordinate is negative",
        "H200; PTX ISA asks for it",
        "both refuse: programs `tma-before`",
    ),
    (
        "TMA with no element of the box in the tensor",
        "zeros, whatever lies at the map's base",
        "H200: an illegal address where the base has no memory; with an element inside it is not touched",
        "emulator (`test_machine_tma`, and `an_empty_box_needs_memory_at_the_base` of `make gpu`)",
    ),
    (
        "atom, then red to the same places",
        "two warps raced",
        "program",
        "program: a barrier between",
    ),
    (
        "bfe, bfi .b64 with a position or length above 255",
        "the assembler's expansion does not take them modulo 256",
        "PTX ISA allows 0..255",
        "program: 0..255",
    ),
    (
        "cvt to 64-bit integer, then cvt.sat",
        "the assembler merges the two, NaN then gives 0",
        "assembler",
        "program: results not used on",
    ),
    (
        "abs.s16, then rem",
        "the assembler keeps 32768 of the magnitude of -32768",
        "assembler",
        "program: results not used on",
    ),
    (
        "copysign, xorsign of a computed NaN",
        "the sign of a NaN: negative on the host, positive on the GPU",
        "PTX ISA leaves it open",
        "program: operands from memory",
    ),
    (
        "cvt.rna.satfinite.tf32",
        "the assembler's expansion for sm_90a makes numbers of some NaN",
        "PTX ISA",
        "judged where the operand is a number",
    ),
    (
        "wgmma on the accumulator of a group in flight",
        "stopped: a result that all warps had waited for was gone when the next product needed it",
        "PTX ISA: wait_group N leaves N groups in flight",
        "emulator (`test_isa_mma`)",
    ),
    (
        "cp.async.wait_all before any commit_group",
        "went on after the first of several copies, under adversarial schedules",
        "PTX ISA",
        "emulator (`test_isa_copies`)",
    ),
    (
        "tensormap.replace .elemtype on a map of tf32",
        "cleared the mark of tf32",
        "H200: the mark stays; as f32 the tile is rounded to tf32, as another type the load stops",
        "emulator (`test_isa_tensormaps`)",
    ),
    (
        "setmaxnreg beyond the registers of the CTA",
        "went on",
        "H200 hangs: a CTA has what it was launched with (of each thread `.maxnreg`, or its share of the SM in eights)",
        "emulator (`test_isa_registers`), and our kernels with one query tile; programs `roles-starved`",
    ),
    (
        "mbarrier.try_wait with a time limit of 0",
        "the limit passes at once under adversarial schedules, not on the GPU",
        "PTX ISA allows it",
        "compared under the fair schedule",
    ),
    (
        "more than 48 KiB of dynamic shared memory",
        "the GPU refuses the launch",
        "CUDA driver API: the function needs an attribute",
        "`gpu.py` sets it",
    ),
]
