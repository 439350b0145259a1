"""What CTAs owe one another: fragments that others wrote, counters, and launches that overlap."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from attn_mlir.errors import LaunchError
from attn_mlir.validation.ws.checks import check, manifest, refused
from attn_mlir.validation.ws.kernels import bundle, copy_op, kernel, normal, poison, role, run

SEEDS = [None, 1, 2]
WAIT = '"ws.grid_dependency_wait"() : () -> ()'
TARGETS = ["sm_90a", "sm_100a"]


def load_global(result: str, source: str, coords: str, dims: str, kinds: str, kind: str) -> str:
    count = len(coords.split(","))
    return f""""{result} = "ws.load_global"({source}, {coords})
      {{dims = array<i32: {dims}>, operandSegmentSizes = array<i32: 1, {count}>}}
      : ({kinds}{", i32" * count}) -> {kind}"""[1:]


def store_global(fragment: str, target: str, coords: str, dims: str, kinds: str) -> str:
    return copy_op("store_global", fragment, target, coords, dims, kinds)


def moved(rows: int, columns: int, element: str, warps: int) -> str:
    """y[:, :] = x[1, 2:, 8:] as far as x goes, zeros where it does not: through registers."""
    tensor, kind = f"memref<?x?x?x{element}>", f"!ws.frag<vector<{rows}x{columns}x{element}>>"
    body = f"""%c2 = arith.constant 2 : i32
    %c8 = arith.constant 8 : i32
    {load_global("%f", "%x", "%c1, %c2, %c8", "1, 2", tensor, kind)}
    {store_global("%f", "%y", "%c0, %c0", "0, 1", f"{kind}, memref<?x?x{element}>")}"""
    return kernel(
        [
            ("x", "in", tensor, ("heads", "m", "n")),
            ("y", "out", f"memref<?x?x{element}>", ("my", "ny")),
        ],
        role("move", body, first=0, warps=warps, lanes=32),
    )


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("rows", "columns", "element", "warps", "m", "n"),
    [
        (16, 32, "f32", 1, 18, 40),  # all of it is there
        (16, 32, "f32", 1, 9, 28),  # rows and columns end
        (128, 64, "bf16", 4, 77, 64),
        (64, 32, "f16", 4, 66, 16),
        (128, 8, "f32", 4, 2, 16),  # no row is there
    ],
)
def test_fragments_of_a_tensor(
    rows: int, columns: int, element: str, warps: int, m: int, n: int, target: str
) -> None:
    dtype = {"bf16": ml_dtypes.bfloat16, "f16": np.float16, "f32": np.float32}[element]
    x, y = normal(3, m, n, dtype=dtype), poison(rows, columns, dtype=dtype)
    run(moved(rows, columns, element, warps), x, y, target=target)
    part = x[1, 2 : 2 + rows, 8 : 8 + columns]
    expected = np.zeros((rows, columns), dtype)
    expected[: part.shape[0], : part.shape[1]] = part
    assert (y == expected).all()


def test_columns_beyond_a_tensor_are_not_written() -> None:
    """Rows lie apart, and what is between them belongs to somebody else."""
    x, wide = normal(3, 18, 40, dtype=np.float32), poison(16, 48)
    run(moved(16, 32, "f32", 1), x, wide[:, :20])
    assert (wide[:, :20] == x[1, 2:, 8:28]).all() and np.isnan(wide[:, 20:]).all()


@pytest.mark.parametrize("count", [1, 40, 200])
def test_entries_of_a_table(count: int) -> None:
    """A fragment of scalars: a row of a tensor of any size, which needs no alignment."""
    body = f"""{load_global("%f", "%x", "%c1", "0", "memref<?xi32>", "!ws.frag<vector<128xi32>>")}
    {store_global("%f", "%y", "%c0", "0", "!ws.frag<vector<128xi32>>, memref<?xi32>")}"""
    arguments = [("x", "in", "memref<?xi32>", ("n",)), ("y", "out", "memref<?xi32>", ("ny",))]
    x, y = np.arange(1, count + 1, dtype=np.int32)[0:], np.full(128, -1, np.int32)
    run(kernel(arguments, role("move", body, first=0, warps=4, lanes=32)), x, y)
    assert (y == np.pad(x[1:129], (0, max(0, 129 - count)))).all()


def added(last: str = "") -> str:
    """y = sum of x[part] + 1 over the parts: each CTA writes one, who arrives last adds them up.

    Args:
      last: what says so, the counter where it is empty.
    """
    kind, tensor = "!ws.frag<vector<32x8xf32>>", "memref<?x?x?xf32>"
    arrive = '"ws.arrive_last"(%counter, %c1, %parts) {operandSegmentSizes = array<i32: 1, 1, 1>}\n'
    arrive = last or arrive + "      : (memref<?xi32>, i32, i32) -> i1"

    def mapped(result: str, body: str, *inputs: str) -> str:
        elements = ", ".join(f"%e{i}: f32" for i in range(len(inputs)))
        return f"""%{result} = "ws.map"({", ".join(inputs)}) ({{
      ^bb0({elements}, %i: i32, %j: i32):
        {body}
        "ws.yield"(%v) : (f32) -> ()
      }}) {{operandSegmentSizes = array<i32: {len(inputs)}>}} : ({", ".join([kind] * len(inputs))}) -> {kind}"""

    body = f"""%parts = "ws.extent"(%x) {{dim = 0 : i64}} : ({tensor}) -> i32
    %one = arith.constant 1.0 : f32
    %zero = arith.constant 0.0 : f32
    "ws.tiles"(%parts) ({{
    ^bb0(%part: i32):
      {load_global("%f", "%x", "%part, %c0, %c0", "1, 2", tensor, kind)}
      {mapped("more", "%v = arith.addf %e0, %one : f32", "%f")}
      {store_global("%more", "%sums", "%part, %c0, %c0", "1, 2", f"{kind}, {tensor}")}
      %last = {arrive}
      scf.if %last {{
        %none = "ws.fill"(%zero) : (f32) -> {kind}
        %total = scf.for %n = %c0 to %parts step %c1 iter_args(%so_far = %none) -> ({kind}) : i32 {{
          {load_global("%p", "%sums", "%n, %c0, %c0", "1, 2", tensor, kind)}
          {mapped("next", "%v = arith.addf %e0, %e1 : f32", "%so_far", "%p")}
          scf.yield %next : {kind}
        }}
        {store_global("%total", "%y", "%c0, %c0", "0, 1", f"{kind}, memref<?x?xf32>")}
      }}
    }}) {{order = "single", operandSegmentSizes = array<i32: 1, 0, 0>}} : (i32) -> ()"""
    return kernel(
        [
            ("x", "in", tensor, ("parts", "m", "n")),
            ("sums", "inout", tensor, ("parts", "m", "n")),
            ("counter", "in" if last else "inout", "memref<?xi32>", ("counters",)),
            ("y", "out", "memref<?x?xf32>", ("m", "n")),
        ],
        role("add", body, first=0, lanes=32),
    )


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("parts", [1, 2, 7])
def test_who_arrives_last_finds_what_all_have_written(parts: int, seed: int | None) -> None:
    x, sums, counter = normal(parts, 32, 8, dtype=np.float32), poison(parts, 32, 8), [5, 0, 6]
    counters = np.array(counter, np.int32)
    for _ in range(2):  # the counter is as it was, and others are left alone
        y, sums[:] = poison(32, 8), np.nan
        run(added(), x, sums, counters, y, seed=seed)
        assert (y == (x + 1).sum(axis=0)).all() and list(counters) == counter


@pytest.mark.parametrize("says", ["arith.constant true", "arith.cmpi eq, %part, %c1 : i32"])
def test_without_a_counter_the_checkers_object(says: str) -> None:
    x, counters = normal(3, 32, 8, dtype=np.float32), np.zeros(3, np.int32)
    with pytest.raises(LaunchError, match="race"):
        run(added(says), x, poison(3, 32, 8), counters, poison(32, 8))


def test_an_arrival_releases_and_acquires() -> None:
    """For all CTAs, by one thread after its warp and before it."""
    code = bundle(added()).partition(b".visible .entry")[2]
    arrival = code.index(b"atom.acq_rel.gpu.global.inc.u32")
    assert (
        code.rindex(b"bar.warp.sync", 0, arrival) < arrival < code.index(b"bar.warp.sync", arrival)
    )


def test_counters_that_have_no_code() -> None:
    check(added())
    expects = "'ws.arrive_last' op expects an argument of role inout, counter is of role"
    for given in ("in", "out"):
        text = added().replace(
            '["in", "inout", "inout", "out"]', f'["in", "inout", "{given}", "out"]'
        )
        refused(text, f"{expects} {given}")
    arrive = """%last = "ws.arrive_last"(%counter, %c0, %c1) {operandSegmentSizes = array<i32: 1, 1, 1>}
      : (memref<?xi32>, i32, i32) -> i1"""
    counter = [("counter", "inout", "memref<?xi32>", ("counters",))]
    check(kernel(counter, role("r", arrive, first=0, warps=4, groups=4, lanes=32)))
    check(kernel(counter, role("r", arrive, first=0, warps=4, lanes=32)))
    expects = "'ws.arrive_last' op expects an arrival of several warps in a role whose groups are 4"
    refused(kernel(counter, role("r", arrive, first=2, warps=4, lanes=32)), expects)
    refused(kernel(counter, role("r", arrive, first=0)), expects)


@pytest.mark.parametrize(
    ("dims", "columns", "message"),
    [
        ("0, 1", 6, "'ws.load_global' op expects rows of whole 16-byte units, got"),
        ("1, 0", 8, "'ws.load_global' op expects columns along the last dimension, 1, got 0"),
    ],
)
def test_fragments_of_a_tensor_that_have_no_code(dims: str, columns: int, message: str) -> None:
    kind = f"!ws.frag<vector<128x{columns}xf32>>"
    body = load_global("%f", "%x", "%c0, %c0", dims, "memref<?x?xf32>", kind)
    text = kernel(
        [("x", "in", "memref<?x?xf32>", ("m", "n"))], role("r", body, first=0, warps=4, lanes=32)
    )
    refused(text, message)


def overlapping(first: str, second: str) -> str:
    """Two roles that write half of y each, with something in front of that."""

    def writer(label: str, warp: int, front: str) -> str:
        body = f"""{front}
    %row = arith.constant {32 * warp} : i32
    %one = arith.constant 1.0 : f32
    %f = "ws.fill"(%one) : (f32) -> !ws.frag<vector<32xf32>>
    {store_global("%f", "%y", "%row", "0", "!ws.frag<vector<32xf32>>, memref<?xf32>")}
    "ws.launch_dependents"() : () -> ()"""
        return role(label, body, first=warp, lanes=32)

    return kernel(
        [("y", "out", "memref<?xf32>", ("m",))],
        writer("one", 0, first) + writer("two", 1, second),
    )


@pytest.mark.parametrize("target", TARGETS)
def test_launches_that_may_overlap(target: str) -> None:
    y = poison(64)
    run(overlapping(WAIT, WAIT), y, target=target)
    assert (y == 1).all()


def test_who_waits_says_so_in_the_manifest() -> None:
    assert manifest(overlapping(WAIT, WAIT))["programmatic"]
    assert "programmatic" not in manifest(overlapping("", ""))


@pytest.mark.parametrize(
    ("first", "second", "label"),
    [
        (WAIT, "", "two"),
        ("", WAIT, "one"),
        (WAIT, f"scf.if %yes {{ {WAIT} }}", "two"),
    ],
)
def test_tensors_are_touched_after_the_wait(first: str, second: str, label: str) -> None:
    refused(
        overlapping(first, second),
        f"'ws.store_global' op touches a tensor in role {label} before ws.grid_dependency_wait",
    )


def test_what_is_inside_of_tiles_waits_as_well() -> None:
    waits = role("waits", WAIT, first=4)
    assert added().count("\n}) {sym_name") == 1
    text = added().replace("\n}) {sym_name", f"{waits}\n}}) {{sym_name")
    refused(text, "'ws.load_global' op touches a tensor in role add before")


def test_rows_that_threads_move_are_of_pieces() -> None:
    found = {x["name"]: x for x in manifest(added())["tensors"]}
    multiples: dict[str, Any] = {name: x.get("row_multiple") for name, x in found.items()}
    assert multiples == {"x": 4, "sums": 4, "counter": None, "y": 4}
    assert found["sums"]["role"] == found["counter"]["role"] == "inout"


def taken() -> str:
    """CTA n waits until the cell says n and sets it to n + 1."""
    kind, sizes = "memref<?xi32>", "{operandSegmentSizes = array<i32: 1, 1, 1>}"
    body = f"""%parts = "ws.extent"(%x) {{dim = 0 : i64}} : (memref<?xf32>) -> i32
    "ws.tiles"(%parts) ({{
    ^bb0(%part: i32):
      "ws.await_turn"(%cells, %c1, %part) {sizes} : ({kind}, i32, i32) -> ()
      %next = arith.addi %part, %c1 : i32
      "ws.set_turn"(%cells, %c1, %next) {sizes} : ({kind}, i32, i32) -> ()
    }}) {{order = "single", operandSegmentSizes = array<i32: 1, 0, 0>}} : (i32) -> ()"""
    arguments = [("x", "in", "memref<?xf32>", ("parts",)), ("cells", "inout", kind, ("cells",))]
    return kernel(arguments, role("turns", body, first=0))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("seed", SEEDS)
def test_ctas_take_turns(seed: int | None, target: str) -> None:
    cells = np.array([7, 0, 8], np.int32)
    run(taken(), np.zeros(5, np.float32), cells, seed=seed, target=target)
    assert list(cells) == [7, 5, 8]


def test_a_turn_that_nobody_sets_is_awaited_for_ever() -> None:
    with pytest.raises(LaunchError, match="deadlock"):
        run(taken(), np.zeros(5, np.float32), np.array([7, 3, 8], np.int32))


def test_a_turn_acquires_and_releases() -> None:
    """Copies of one thread are complete before it sets the cell, and come after what it awaits."""
    code = bundle(taken()).partition(b".visible .entry")[2]
    places = [
        b"ld.acquire.gpu",
        b"fence.proxy.async",
        b"cp.async.bulk.wait_group",
        b"st.release.gpu",
    ]
    found = [code.index(place) for place in places]
    assert found == sorted(found) and code.count(b"fence.proxy.async") == 2


@pytest.mark.parametrize("name", ["await_turn", "set_turn"])
def test_turns_that_have_no_code(name: str) -> None:
    body = f""""ws.{name}"(%cells, %c0, %c1) {{operandSegmentSizes = array<i32: 1, 1, 1>}}
      : (memref<?xi32>, i32, i32) -> ()"""
    expects = f"'ws.{name}' op expects"
    for kind, lanes, message in [
        ("in", 1, "an argument of role inout, cells is of role in"),
        ("inout", 32, "a role with one lane, got 32 in r"),
    ]:
        arguments = [("cells", kind, "memref<?xi32>", ("cells",))]
        text = kernel(arguments, role("r", body, first=0, lanes=lanes))
        refused(text, f"{expects} {message}")
