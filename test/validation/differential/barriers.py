"""mbarriers: random histories of one thread, and warps that meet."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from attn_mlir.validation.differential.case import Program
from attn_mlir.validation.differential.chains import Builder
from attn_mlir.validation.differential.values import Rng

TOKEN_BITS = 0xFFFFF80000000000  # parity and pending arrivals; the rest is not defined


@dataclass
class Model:
    """What a history may do next without leaving the defined behaviour."""

    expected: int
    pending: int
    tx: int = 0
    phase: int = 0

    def settle(self) -> None:
        """Complete the phase if nothing is outstanding."""
        if self.pending == 0 and self.tx == 0:
            self.phase += 1
            self.pending = self.expected


class History:
    """The text of a history on one mbarrier, executed by thread 0."""

    def __init__(self, rng: Rng, b: Builder):
        self.rng = rng
        self.b = b
        self.covers: list[str] = []
        self.results: list[tuple[str, str, str]] = []
        self.tokens: list[tuple[str, int]] = []
        count = int(rng.choice([1, 2, 3, 8, 1000, 0xFFFFF]))
        self.model = Model(count, count)
        self.do(f"mbarrier.init.shared::cta.b64 [r2], {count};")

    def do(self, text: str, result: str = "", kind: str = "") -> None:
        """A line; its result is stored later."""
        self.b.lines.append(text)
        self.covers.append(text.split()[0])
        if result:
            self.results.append((result, kind, text))

    def step(self) -> None:
        """One random legal operation."""
        rng, m = self.rng, self.model
        what = str(
            rng.choice(
                [
                    "arrive",
                    "arrive",
                    "arrive",
                    "expect",
                    "complete",
                    "drop",
                    "test",
                    "parity",
                    "nocomplete",
                ]
            )
        )
        if what == "arrive" and m.pending:
            count = int(rng.integers(1, min(m.pending, 5) + 1))
            if rng.random() < 0.2:
                count = m.pending
            token = self.b.register("i64")
            extra = int(rng.choice([0, 16, 4096, 30000]))
            if count == 1 and rng.random() < 0.5 and extra:
                self.do(
                    f"mbarrier.arrive.expect_tx.shared::cta.b64 {token}, [r2], {extra};",
                    token,
                    "token",
                )
                self.tokens.append((token, m.phase))
                m.tx += extra
            else:
                order = str(rng.choice(["", ".release.cta", ".release.cluster", ".relaxed.cta"]))
                amount = "" if count == 1 else f", {count}"
                self.do(
                    f"mbarrier.arrive{order}.shared::cta.b64 {token}, [r2]{amount};", token, "token"
                )
                self.tokens.append((token, m.phase))
            m.pending -= count
        elif what == "nocomplete" and m.pending > 1:
            token = self.b.register("i64")
            self.do(f"mbarrier.arrive.noComplete.shared::cta.b64 {token}, [r2], 1;", token, "token")
            self.tokens.append((token, m.phase))
            m.pending -= 1
        elif what == "drop" and m.pending and m.expected > 1:
            token = self.b.register("i64")
            form, tail = "", ""
            if rng.random() < 0.3:
                extra = int(rng.choice([16, 4096]))
                form, tail = ".expect_tx", f", {extra}"
                m.tx += extra
            elif m.pending > 1 and rng.random() < 0.4:
                form, tail = ".noComplete", ", 1"
            self.do(
                f"mbarrier.arrive_drop{form}.shared::cta.b64 {token}, [r2]{tail};", token, "token"
            )
            self.tokens.append((token, m.phase))
            m.expected -= 1
            m.pending -= 1
        elif what == "expect" and m.pending:
            extra = int(rng.choice([1, 16, 512, 0x8000]))
            self.do(f"mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [r2], {extra};")
            m.tx += extra
        elif what == "complete" and m.tx:
            part = m.tx if rng.random() < 0.6 else int(rng.integers(1, m.tx + 1))
            self.do(f"mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [r2], {part};")
            m.tx -= part
        elif what == "parity":
            p = self.b.register("pred")
            order = str(rng.choice(["", ".acquire.cta", ".relaxed.cluster"]))
            self.do(
                f"mbarrier.test_wait.parity{order}.shared::cta.b64 {p}, [r2], {int(rng.integers(0, 2))};",
                p,
                "pred",
            )
        elif what == "test" and self.tokens:
            token, phase = self.tokens[-1]
            if phase >= m.phase - 1:
                p = self.b.register("pred")
                self.do(f"mbarrier.test_wait.shared::cta.b64 {p}, [r2], {token};", p, "pred")
        m.settle()


def histories(seed: int, count: int) -> Iterator[Program]:
    """Random legal histories; tokens (their defined bits), pending counts and answers of waits."""
    for number in range(count):
        rng = np.random.default_rng([seed, number])
        b = Builder(rng)
        b.loads.append(".shared .align 8 .b64 bar; mov.u32 r2, bar;")
        b.lines.append("setp.ne.u32 p0, r0, 0; @p0 bra DONE;")
        b.counts["p"] = 1
        h = History(rng, b)
        for _ in range(18):
            h.step()
        for p, parity in ((b.register("pred"), 0), (b.register("pred"), 1)):
            h.do(f"mbarrier.try_wait.parity.shared::cta.b64 {p}, [r2], {parity}, 0;", p, "pred")
        pending: list[tuple[str, str]] = []
        for token, _ in h.tokens[:3]:
            r = b.register("i32")
            h.do(f"mbarrier.pending_count.b64 {r}, {token};", r, "i32")
        h.do("mbarrier.inval.shared::cta.b64 [r2];")
        del pending
        for name, kind, text in h.results:
            if kind == "token":
                b.lines.append(f"and.b64 {name}, {name}, {TOKEN_BITS};")
            b.store(name, "i64" if kind == "token" else kind, text)
        b.lines.append("DONE:")
        yield b.program(f"mbarrier/{number}", h.covers)


def meetings(seed: int, count: int) -> Iterator[Program]:
    """Warps pass words round in several phases through mbarriers, by token or by parity."""
    for number in range(count):
        rng = np.random.default_rng([seed, number])
        b = Builder(rng, 128)
        b.loads.append(".shared .align 8 .b64 bars[2]; .shared .align 16 .b32 words[128];")
        b.loads.append(
            "mov.u32 r2, bars; mov.u32 r3, words; shl.b32 r4, r0, 2; add.u32 r4, r4, r3;"
        )
        b.loads.append("setp.eq.u32 p0, r0, 0;")
        b.counts["p"] = 2
        covers = ["mbarrier.init.shared::cta.b64", "fence.mbarrier_init.release.cluster"]
        for i in range(2):
            b.lines.append(f"@p0 mbarrier.init.shared::cta.b64 [r2+{8 * i}], 128;")
        b.lines.append("fence.mbarrier_init.release.cluster; bar.sync 0;")
        value = b.load("i32")
        for phase in range(int(rng.integers(2, 5))):
            shift, token, got = int(rng.integers(1, 128)), b.register("i64"), b.register("i32")
            b.lines.append(f"st.shared.b32 [r4], {value};")
            for half in range(2):  # all have written; all have read
                at = f"[r2+{8 * half}]"
                wait = str(rng.choice(["try_wait", "test_wait"]))
                by_parity = bool(rng.integers(0, 2))
                hint = ", 1000" if wait == "try_wait" and rng.random() < 0.5 else ""
                state = str(phase & 1) if by_parity else token
                arrive = "mbarrier.arrive.release.cta.shared::cta.b64"
                word = (
                    f"mbarrier.{wait}{'.parity' if by_parity else ''}.acquire.cta.shared::cta.b64"
                )
                covers += [arrive, word]
                label = f"WAIT{phase}_{half}"
                b.lines.append(f"{arrive} {token}, {at};")
                b.lines.append(f"{label}: {word} p1, {at}, {state}{hint}; @!p1 bra {label};")
                if half == 0:
                    b.lines.append(
                        f"add.u32 r5, r0, {shift}; and.b32 r5, r5, 127; shl.b32 r5, r5, 2; add.u32 r5, r5, r3;"
                    )
                    b.lines.append(f"ld.shared.b32 {got}, [r5];")
            b.lines.append(f"mad.lo.u32 {value}, {got}, 3, {phase + 1};")
            b.store(value, "i32", f"phase {phase}")
        yield b.program(f"meeting/{number}", covers)
