"""What surrounds conformance runs: names, versions, schedules, records, the page."""

import ast
import json
import tomllib
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from attn_mlir.errors import SpecError, TargetError
from attn_mlir.runtime.emulator.checkers import CheckError
from attn_mlir.validation.conformance import run
from attn_mlir.validation.conformance.cases import (
    CASES,
    Attention,
    Combine,
    Gemm,
    ScaledGemm,
    TritonAttention,
    TritonGemm,
    case_named,
)
from attn_mlir.validation.conformance.judging import Verdict
from attn_mlir.validation.conformance.kernel import Fault, Known
from attn_mlir.validation.conformance.kernels import KERNELS
from attn_mlir.validation.conformance.recorded import (
    PACKAGES,
    PACKAGES_WITHOUT_DEPENDENCIES,
    ROOT,
    Recorded,
    Schedule,
    execute,
    mend,
    recorded,
    stamp_of,
)
from attn_mlir.validation.journal import Journal

COPY = """.version 8.8
.target sm_100a
.address_size 64
.visible .entry copy(.param .u64 a, .param .u64 d)
{
    .reg .b32 r<4>; .reg .b64 rd<8>;
    mov.u32 r1, %tid.x; ld.param.u64 rd1, [a]; ld.param.u64 rd2, [d];
    mad.wide.u32 rd3, r1, 4, rd1; mad.wide.u32 rd4, r1, 4, rd2;
    ld.global.b32 r2, [rd3]; st.global.b32 [rd4], r2;
    ret;
}
"""


def test_names_find_their_cases() -> None:
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names)
    assert all(case_named(case.name) is case for case in CASES)
    assert all(case.title and "|" not in case.title for case in CASES)
    with pytest.raises(KeyError, match="no case is named 'fa5'"):
        case_named("fa5")


def test_what_the_issue_asks_for_is_among_them() -> None:
    forward = [case for case in CASES if isinstance(case, Attention)]
    assert {case.is_causal for case in forward if case.head_dim == 128} == {True, False}
    assert any(case.heads != case.kv_heads for case in forward)
    assert any(case.splits > 1 for case in forward)
    assert any((case.heads, case.sq, case.head_dim) == (2, 1024, 128) for case in forward)
    clusters = {case.cluster for case in CASES if isinstance(case, Gemm)}
    assert {(1, 1), (2, 1)} <= clusters
    assert {Combine, ScaledGemm, TritonGemm, TritonAttention} <= {type(case) for case in CASES}
    assert run.SEEDS >= 20 and len(CASES) >= 60
    programs = {(kernel.program, kernel.target) for kernel in KERNELS}
    for wanted in ("fa4.backward", "fa4.forward", "triton.backward", "quack.grouped_gemm"):
        assert {(wanted, "sm_100a"), (wanted, "sm_90a")} <= programs
    sizes = {kernel.program: [] for kernel in KERNELS}
    for kernel in KERNELS:
        sizes[kernel.program].append(kernel.sizes)
    for program, feature in (
        ("fa4.forward", "latent"),
        ("fa4.forward", "page"),
        ("fa4.forward", "is_packed"),
        ("flashinfer.prefill", "page"),
        ("triton.scaled_gemm", "forms"),
    ):
        assert any(feature in one for one in sizes[program]), (program, feature)
    assert {"flashinfer.latent_decode", "flashinfer.decode", "triton.decode"} <= sizes.keys()


def test_plain_data_is_read_by_both_sides_without_our_package() -> None:
    """What the peers' environment imports of it has no attn_mlir to import."""
    folder = Path(run.__file__).resolve().parent
    names = ("cases", "kernel", "kernels", "nvcc_kernels", "_peer")
    shared = [folder / f"{name}.py" for name in names]
    for path in (*shared, *(folder / "programs").glob("*.py"), *folder.glob("_*.py")):
        assert "attn_mlir" not in path.read_text(), path


def test_the_extra_names_the_packages_that_are_installed() -> None:
    extras: dict[str, list[str]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    installed = {*PACKAGES, *PACKAGES_WITHOUT_DEPENDENCIES}
    wanted = {*extras["conformance"], *extras["peers"]} - {"attn-mlir[peers]"}
    assert wanted <= installed


def test_programs_take_the_sizes_of_their_kernels() -> None:
    """Read from the text: the packages that a program imports are not here."""
    folder = Path(run.__file__).resolve().parent / "programs"
    for kernel in KERNELS:
        tree = ast.parse((folder / f"{kernel.module}.py").read_text())
        (program,) = (
            node
            for node in tree.body
            if isinstance(node, ast.FunctionDef) and node.name == kernel.function
        )
        taken = program.args.kwonlyargs
        needed = [
            argument.arg
            for argument, default in zip(taken, program.args.kw_defaults, strict=True)
            if default is None
        ]
        assert set(needed) <= kernel.sizes.keys(), kernel.name
        if program.args.kwarg is None:
            assert kernel.sizes.keys() <= {argument.arg for argument in taken}, kernel.name


def test_schedules_by_name() -> None:
    assert Schedule.named("fair") == Schedule("fair")
    assert Schedule.named("adv12") == Schedule("adversarial", 12)
    assert [Schedule.named(name).name for name in ("fair", "adv3")] == ["fair", "adv3"]
    for name in ("adv", "adv-1", "unfair", ""):
        with pytest.raises(ValueError, match="is unknown: fair, adv0"):
            Schedule.named(name)


def test_the_first_run_is_timed_without_checkers() -> None:
    fair, adversarial = Schedule("fair"), Schedule("adversarial", 3)
    timed = run.Run(fair, "none")
    assert run.planned([fair, adversarial], "all") == [
        timed, run.Run(fair, "all"), run.Run(adversarial, "all")
    ]  # fmt: skip
    assert run.planned([fair, adversarial], "none") == [timed, run.Run(adversarial, "none")]


FAIR = Schedule("fair")


def copy_record() -> Recorded:
    """A launch that copies 32 words; the second half of `d` is not written."""
    params = [address.to_bytes(8, "little") for address in (0x7F00_0000_0000, 0x7F00_1000_0000)]
    shape: dict[str, Any] = {"grid": [1, 1, 1], "block": [32, 1, 1], "cluster": [1, 1, 1]}
    launch = {"entry": "copy", **shape, "shared_bytes": 0, "params": params, "text": COPY}
    buffers = [
        {"name": "a", "address": 0x7F00_0000_0000, "bytes": 128, "zeroed": True},
        {"name": "d", "address": 0x7F00_1000_0000, "bytes": 256, "zeroed": False},
    ]
    return Recorded(CASES[0], {}, [launch], buffers)


def test_a_record_runs_on_its_own_addresses() -> None:
    a, d = np.arange(16, dtype=np.uint32), np.zeros(32, np.uint32)
    done = execute(copy_record(), {"a": a, "d": d}, Schedule("fair"))
    assert (done.arrays["d"][:16] == a).all()
    assert (done.arrays["d"][16:] == 0).all()  # the peer asked for zeros in `a`
    assert not d.any(), "operands are copied"
    done = execute(copy_record(), {"d": np.zeros(64, np.uint32)}, Schedule("adversarial", 1))
    assert (done.arrays["d"] == 0).all()


def test_writes_of_the_host_come_before_their_launch() -> None:
    record = copy_record()
    writes = [
        {"write": 0x7F00_0000_0000, "byte": 1, "count": 8},
        {"write": 0x7F00_0000_0004, "bytes": "02000000"},
    ]
    launch = {**record.launches[0], "writes": writes}
    done = execute(replace(record, launches=[launch]), {"d": np.zeros(32, np.uint32)}, FAIR)
    assert done.arrays["d"][:3].tolist() == [0x01010101, 2, 0]
    writes[1]["write"] = 0x7F00_0000_0080
    with pytest.raises(SpecError, match="4 B to 0x7f0000000080, which no tensor holds"):
        execute(replace(record, launches=[launch]), {}, FAIR)


def test_ptx_is_mended_where_the_case_says_so() -> None:
    launches = [{"text": "a b;"}, {"text": "b b;"}]
    mend(launches, [(r"b(;?)", r"c\1")])
    assert [launch["text"] for launch in launches] == ["a c;", "c c;"]
    with pytest.raises(SpecError, match="no PTX of the case has 'b'"):
        mend(launches, [("b", "c")])


@pytest.mark.parametrize("operand", [{"b": np.zeros(1)}, {"a": np.zeros(129, np.uint8)}])
def test_operands_that_do_not_fit(operand: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match="the launches use"):
        execute(copy_record(), operand, Schedule("fair"))


def test_only_known_findings_are_passed_over() -> None:
    text = COPY.replace(
        "ld.global.b32",
        "mov.u32 r3, 1024;\n ld.shared.b32 r1, [r3];\n ld.shared.b16 h, [r3];\n ld.global.b32",
    ).replace(".reg .b64", ".reg .b16 h; .reg .b64")
    record = copy_record()
    launch = {**record.launches[0], "text": text, "shared_bytes": 64}
    first, second = (Known("uninitialised", f"ld.shared.b{bits}") for bits in (32, 16))
    for known, line in (((), "b32 r1"), ((first,), "b16 h"), ((second,), "b32 r1")):
        case = replace(case_named("fa4-combine-d64"), known=known)
        with pytest.raises(CheckError, match=f"read before any write(.|\n)*ld.shared.{line}"):
            execute(replace(record, case=case, launches=[launch]), {}, Schedule("fair"), "all")
    case = replace(case_named("fa4-combine-d64"), known=(first, second))
    changed = replace(record, case=case, launches=[launch])
    execute(changed, {}, Schedule("fair"), "all")
    with pytest.raises(CheckError, match="ld.shared.b32 r1(.|\n)*ld.shared.b16 h"):
        execute(changed, {}, Schedule("fair"), "all", strict=True)


def test_a_known_instruction_may_stand_behind_a_predicate() -> None:
    text = COPY.replace(
        "ld.global.b32",
        "mov.u32 r3, 1024; setp.eq.u32 p, r1, 0;\n @p ld.shared.b32 r1, [r3];\n ld.global.b32",
    ).replace(".reg .b64", ".reg .pred p; .reg .b64")
    record = copy_record()
    launch = {**record.launches[0], "text": text, "shared_bytes": 64}
    for instruction, is_known in (("ld.shared.b32", True), ("ld.shared.b16", False)):
        case = replace(KERNELS[0], known=(Known("uninitialised", instruction),))
        changed = replace(record, case=case, launches=[launch])
        if is_known:
            execute(changed, {}, Schedule("fair"), "all")
        else:
            with pytest.raises(CheckError, match="read before any write"):
                execute(changed, {}, Schedule("fair"), "all")


def test_a_kernel_runs_on_the_target_that_it_names() -> None:
    record = copy_record()
    case = replace(KERNELS[0], target="sm_90a")
    with pytest.raises(TargetError, match="sm_100a, this emulator runs sm_90a"):
        execute(replace(record, case=case), {}, Schedule("fair"))
    launch = {**record.launches[0], "text": COPY.replace("sm_100a", "sm_90a")}
    execute(replace(record, case=case, launches=[launch]), {}, Schedule("fair"))


def outcome(reason: str, ratio: float) -> run.Outcome:
    verdict = Verdict("O", 1e-3 * ratio, 1e-3, ratio, 0, 10)
    return run.Outcome("fair", reason, 1.25, 1234, (verdict,))


def test_the_table_shows_the_worst_run() -> None:
    row = run.Row(CASES[0], 7000, [outcome("", 0.5), outcome("", 0.75), outcome("bad", 0.25)])
    cells = row.cells()
    assert cells[2:] == ["7,000", "1,234", "1.25", "O 7.5e-04 (0.75)", "2 of 3"]
    late = run.Row(CASES[0], 7000, [outcome("", 0.5)], left_out=20)
    assert late.cells()[-1] == "1 of 1 (20 not run)"
    faulty = replace(row, case=replace(KERNELS[0], fault=Fault("it races")))
    assert faulty.cells()[-1] == "2 of 3: it races" and len(faulty.failures) == 1
    everywhere = replace(KERNELS[0], fault=Fault("it races", ""))
    assert len(row.failures) == 1 and not replace(row, case=everywhere).failures
    runs = run.planned([Schedule("fair"), Schedule("adversarial", 0)], "all")
    text = run.markdown([row], {"b": "2", "a": "1"}, runs)
    assert text.startswith(
        "Packages: a 1, b 2. Runs: fair without checkers; fair, adv0 with checkers.\n"
    )
    assert all(line.count("|") == len(run.HEADINGS) + 1 for line in text.splitlines()[2:])


class Here:
    """A pool of processes whose calls are made in this one."""

    def __init__(self, *_: object, **_options: object):
        pass

    def __enter__(self) -> "Here":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(function(*arguments))
        return done


def test_a_run_that_goes_on_repeats_no_right_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def repeat(name: str, again: run.Run, _: Path) -> run.Outcome:
        raise AssertionError(f"{name} is run again: {again.name}")

    monkeypatch.setattr(run, "ProcessPoolExecutor", Here)
    monkeypatch.setattr(run, "run_one", repeat)
    case, judge = CASES[0], tmp_path / "judge.py"
    judge.write_text("strict")
    monkeypatch.setattr(run, "recorded", lambda *_: copy_record())
    runs = run.planned([Schedule("fair")], "all")
    journal = Journal(tmp_path / "journal", [tmp_path])
    for known in runs:
        done = replace(outcome("", 0.5), schedule=known.name)
        journal.add(asdict(done), stamp_of(case), case.name, known.name)
    console, again = Console(quiet=True), Journal(tmp_path / "journal", [tmp_path])
    rows, _, failures = run.run_all([case], runs, 1, 60, console, again, resume=True)
    assert not failures and [o.schedule for o in rows[0].outcomes] == [r.name for r in runs]
    assert rows[0].outcomes[0] == outcome("", 0.5)
    judge.write_text("lax")
    changed = Journal(tmp_path / "journal", [tmp_path])
    assert changed.find(stamp_of(case), case.name, runs[0].name) is None


def test_the_journal_gets_right_runs_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES[0]
    runs = run.planned([Schedule("fair"), Schedule("adversarial", 0)], "all")
    *right, wrong = (x.name for x in runs)

    def run_one(_: str, made: run.Run, _records: Path) -> run.Outcome:
        return replace(outcome("bad" if made.name == wrong else "", 0.5), schedule=made.name)

    monkeypatch.setattr(run, "ProcessPoolExecutor", Here)
    monkeypatch.setattr(run, "run_one", run_one)
    monkeypatch.setattr(run, "recorded", lambda *_: copy_record())
    run.run_all(
        [case], runs, 1, 60, Console(quiet=True), Journal(tmp_path / "journal", []), resume=False
    )
    journal = Journal(tmp_path / "journal", [])
    found = [x.name for x in runs if journal.find(stamp_of(case), case.name, x.name) is not None]
    assert found == right


def test_a_record_of_another_machine_needs_no_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case, (launch,) = CASES[0], copy_record().launches
    (tmp_path / "copy.ptx").write_text(COPY)
    params = [value.hex() for value in launch["params"]]
    told = {**launch, "ptx": "copy.ptx", "params": params, "text": ""}
    written = {"packages": {"a": "1"}, "launches": [told], "buffers": copy_record().buffers}
    (tmp_path / f"{case.name}.json").write_text(json.dumps(written))
    (tmp_path / f"{case.name}.stamp").write_text(stamp_of(case))
    there = recorded(case, print, tmp_path)
    assert there.launches == [{**launch, "ptx": "copy.ptx"}]
    assert (there.packages, there.buffers) == ({"a": "1"}, copy_record().buffers)
    (tmp_path / f"{case.name}.stamp").write_text("another recorder's")

    def missing(_: object) -> None:
        raise RuntimeError("no packages here")

    monkeypatch.setattr("attn_mlir.validation.conformance.recorded.prepare", missing)
    lines: list[str] = []
    assert run.record_all([case], tmp_path, lines.append) == 1
    assert lines == [f"{case.name}: no packages here"]


def test_the_journal_has_the_runs_that_a_fault_explains() -> None:
    wrong = replace(outcome("bad", 2.0), schedule="adv3 with checkers")
    assert wrong.expected(Fault("it races")) and not wrong.expected(None)
    assert not replace(wrong, schedule="fair").expected(Fault("it races"))
    assert outcome("", 0.5).expected(None)
    assert run.Outcome.of(json.loads(json.dumps(asdict(wrong)))) == wrong


def test_the_page_keeps_everything_but_the_table(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{run.BEGIN}\nold\n{run.END}\nafter\n")
    run.write_page("new", page)
    assert page.read_text() == f"before\n{run.BEGIN}\nnew\n{run.END}\nafter\n"
    page.write_text("nothing")
    with pytest.raises(SystemExit, match="no place for the table"):
        run.write_page("new", page)
    assert run.BEGIN in run.PAGE.read_text() and run.END in run.PAGE.read_text()


def test_some_rows_are_put_into_the_table() -> None:
    head = "Packages: a 1.\n\n| package | kernel | runs |\n| --- | --- | --- |\n"
    old = head + "| a | one | 1 |\n| a | two | 1 |"
    new = head.replace("1", "2") + "| a | two | 2 |\n| b | one | 2 |"
    assert run.merged(old, new) == head + "| a | one | 1 |\n| a | two | 2 |\n| b | one | 2 |"
