"""Arguments that say where operands lie in a longer problem, and how many multiprocessors stay free."""

from __future__ import annotations

from typing import Any, ClassVar

import ml_dtypes
import numpy as np
import pytest

import attn_mlir as am
from attn_mlir.compiling.request import Request
from attn_mlir.dialect.attn.coordinates import Offsets
from attn_mlir.dialect.attn.masks.shifted import MAX_OFFSET
from attn_mlir.errors import SpecError
from attn_mlir.validation.numerics.operands import i32

BF16 = ml_dtypes.bfloat16
Q, K = np.zeros((2, 5, 4, 64), BF16), np.zeros((2, 300, 2, 64), BF16)
CAUSAL: dict[str, Any] = {"mask": am.causal()}
NUMBER = rf"must be an integer from -?\d+ to {MAX_OFFSET} or \[batch\] of i32, got "


def request(**options: Any) -> Request:
    return am.plan(Q, K, K, **options).steps[0].request


def test_offsets_are_read_at_run_time() -> None:
    one, other = (request(**CAUSAL, q_offset=x, k_offset=7) for x in (3, -90))
    assert one == other and one.kernel_name == "attn_mha_causal_qoko_bf16_h4k2_d64"
    arrays = [request(**CAUSAL, q_offset=i32(1, x)) for x in (3, 500)]
    assert arrays[0] == arrays[1] != one
    assert request(**CAUSAL) == request(**CAUSAL, q_offset=None, head_offset=0)
    fields = one.fields()
    assert fields["offsets"] == ["q_offset", "k_offset"]
    assert arrays[0].fields()["offsets"] == ["q_offset[batch]"]
    assert all(type(x).from_fields(x.fields()) == x for x in (one, arrays[0]))


def test_without_modifiers_heads_have_no_offset() -> None:
    plain, blocks = (
        am.block_mask(None, None, None, 5, 300, mask=am.causal(), head_offset=x) for x in (0, 2)
    )
    given: dict[str, Any] = {"q_offset": 3, "sinks": np.zeros(4, np.float32)}
    for without, options in (
        (CAUSAL, CAUSAL),
        (given, given),
        ({"block_mask": plain}, {"block_mask": blocks}),
    ):
        step = am.plan(Q, K, K, **options, head_offset=2).steps[0]
        assert step.request == request(**without) and "head_offset" not in step.arguments
    modified: dict[str, Any] = {"score_mod": am.mods.softcap(2.0)}
    assert request(**modified, head_offset=2) != request(**modified)


def test_offsets_are_arguments_of_every_launch() -> None:
    offsets: dict[str, Any] = {"q_offset": i32(4, 5), "k_offset": 6, "head_offset": 2}
    plan = am.plan(Q, K, K, **CAUSAL, num_splits=3, score_mod=am.mods.softcap(2.0), **offsets)
    told = plan.steps[0].arguments
    assert (told["k_offset"], told["head_offset"]) == (6, 2)
    np.testing.assert_array_equal(told["q_offset"], [4, 5])  # pyright: ignore


class Unreadable:
    """An object of somebody else, whose shape cannot be asked for."""

    @property
    def shape(self) -> tuple[int, ...]:
        raise RuntimeError("released")


@pytest.mark.parametrize("name", ["q_offset", "k_offset"])
@pytest.mark.parametrize(
    ("value", "message"),
    [
        (1.0, NUMBER + "1.0"),
        (True, NUMBER + "True"),
        (np.True_, NUMBER + ".*True"),
        ("3", NUMBER + "'3'"),
        (Unreadable(), NUMBER + ".*Unread"),
        ([1, 2], NUMBER + r"\[1, 2\]"),
        (np.float32(2), NUMBER + ".*2.0"),
        (np.array(1.5), NUMBER + ".*1.5"),
        (MAX_OFFSET + 1, NUMBER + "536870913"),
        (2**31, NUMBER + "2147483648"),
        (10**40, NUMBER),
        (-MAX_OFFSET - 1, NUMBER + "-536870913"),
        (i32(1), r"must be an integer or \[2\] of i32, got \[1\] of i32"),
        (i32(1, 2, 3), r"must be an integer or \[2\] of i32, got \[3\] of i32"),
        (i32([1, 2]), r"must be an integer or \[2\] of i32, got \[1, 2\] of i32"),
        (np.zeros(2, np.int64), r"must be an integer or \[2\] of i32, got \[2\] of i64"),
        (np.zeros(2, np.float32), r"must be an integer or \[2\] of i32, got \[2\] of f32"),
        (np.zeros(2, np.bool_), r"must be an integer or \[2\] of i32, got \[2\] of bool"),
        (
            i32(0, MAX_OFFSET + 1),
            r"\[1\] must be an integer from -?\d+ to 536870912, got 536870913",
        ),
        (np.array([1, 2**31], np.uint32), r"\[1\] is 2147483648, allowed are 0 to 2147483647"),
    ],
)
def test_offsets_that_are_none_are_refused(name: str, value: Any, message: str) -> None:
    with pytest.raises(SpecError, match=f"^{name}({message}| {message})"):
        am.plan(Q, K, K, **CAUSAL, **{name: value})


def test_keys_lie_at_positions_from_0_on_and_queries_also_before() -> None:
    assert am.plan(Q, K, K, **CAUSAL, q_offset=-MAX_OFFSET, k_offset=MAX_OFFSET)
    assert am.plan(Q, K, K, **CAUSAL, q_offset=i32(-5, MAX_OFFSET), k_offset=np.int64(0))
    for value, shown in ((-1, "k_offset"), (i32(0, -1), r"k_offset\[1\]")):
        with pytest.raises(SpecError, match=f"^{shown} must be an integer from 0 to "):
            am.plan(Q, K, K, **CAUSAL, k_offset=value)


@pytest.mark.parametrize("value", [-1, 65537, 1.0, True, i32(1, 2), None])
def test_the_offset_of_heads_is_a_number(value: Any) -> None:
    with pytest.raises(SpecError, match="^head_offset must be an integer from 0 to 65536, got "):
        am.plan(Q, K, K, head_offset=value)


def test_requests_name_offsets_once() -> None:
    for kinds in (Offsets(("q",)), Offsets(("q_offset",), ("q_offset",)), Offsets((), ("head_offset",))):  # fmt: skip
        with pytest.raises(SpecError, match="^offsets must name each of q_offset, k_offset"):
            am.mha(heads=1, head_dim=64, offsets=kinds)
    with pytest.raises(SpecError, match="^offsets must be an Offsets of"):
        am.mha(heads=1, head_dim=64, offsets=3)  # pyright: ignore


def test_arrays_of_modifiers_belong_to_the_longer_problem() -> None:
    whole, shard = np.zeros((2, 400), np.int32), np.zeros((2, 300), np.int32)
    document = am.mods.document
    assert am.plan(Q, K, K, mask_mod=document(shard[:, :5], shard))
    assert am.plan(Q, K, K, mask_mod=document(whole), q_offset=395, k_offset=100)
    with pytest.raises(SpecError, match="sk >= 400"):
        am.plan(Q, K, K, mask_mod=document(whole, shard), q_offset=0, k_offset=100)
    with pytest.raises(SpecError, match="heads >= 6"):
        am.plan(Q, K, K, score_mod=am.mods.alibi(np.zeros(5, np.float32)), head_offset=2)
    assert am.plan(Q, K, K, score_mod=am.mods.alibi(np.zeros(8, np.float32)), head_offset=2)


def test_block_masks_have_the_offsets_that_they_were_made_with() -> None:
    numbers = {"q_offset": 9, "head_offset": 1}
    documents = am.mods.document(np.zeros((2, 300), np.int32))
    blocks = am.block_mask(documents, 2, None, 5, 300, **numbers)
    same: list[dict[str, Any]] = [{}, {"q_offset": 9}, {"q_offset": 9, "head_offset": 1}]
    for options in same:
        told = am.plan(Q, K, K, block_mask=blocks, **options).steps[0]
        assert (told.arguments["q_offset"], told.arguments["head_offset"]) == (9, 1)
    others: list[dict[str, Any]] = [{"q_offset": 8}, {"k_offset": 0}, {"q_offset": i32(9, 9)}]
    for options in others:
        with pytest.raises(SpecError, match="_offset and block_mask exclude each other"):
            am.plan(Q, K, K, block_mask=blocks, **options)
    with pytest.raises(SpecError, match="^k_offset must be an integer from 0 to "):
        am.block_mask(None, None, None, 5, 300, mask=am.causal(), k_offset=-1)


class Noting(am.EmulatorDevice):
    """Keeps the CTAs of its launches, which are not carried out."""

    ctas: ClassVar[list[tuple[str, int]]] = []

    def launch(self, bundle: Any, bound: Any, stream: object | None) -> Any:
        self.ctas.append((bundle.entry, bound.grid_on(self.multiprocessors)[0]))


def ctas(margin: int, **options: Any) -> int:
    """CTAs along x of the one launch of a call with 96 work tiles on 20 multiprocessors."""
    q = np.zeros((4, 1536, 4, 64), BF16)
    on = Noting(target="sm_90a", multiprocessors=20)
    Noting.ctas.clear()
    am.attention(q, q, q, sm_margin=margin, device=on, **options)
    return Noting.ctas[0][1]


def test_persistent_kernels_leave_multiprocessors_free() -> None:
    assert [ctas(margin, tile_order="persistent") for margin in (0, 1, 7, 19)] == [20, 19, 13, 1]
    plan = am.plan(Q, K, K, sm_margin=3)
    assert plan.sm_margin == 3 and request(sm_margin=3) == request()


def test_other_kernels_have_a_cta_for_each_work_tile() -> None:
    assert ctas(0, tile_order="single") == ctas(7, tile_order="single") > 2


def test_splits_are_counted_for_the_multiprocessors_that_are_left() -> None:
    q, k = np.zeros((1, 1, 8, 64), BF16), np.zeros((1, 1 << 16, 8, 64), BF16)
    on = am.EmulatorDevice(target="sm_90a", multiprocessors=132)

    def splits(margin: int) -> int:
        return am.plan(q, k, k, num_splits=0, sm_margin=margin, device=on).workspace[0].shape[0]

    assert splits(0) > splits(100)


@pytest.mark.parametrize("value", [-1, 20, 1.0, True, "1", None])
def test_margins_leave_a_multiprocessor(value: Any) -> None:
    on = am.EmulatorDevice(multiprocessors=20)
    latent: dict[str, Any] = {name: np.zeros((1, 4, 1, 64), BF16) for name in ("q_nope", "k_nope", "q_rope", "k_rope", "v")}  # fmt: skip
    cache = am.ContiguousKV(np.zeros((1, 64, 1, 576), BF16), None, i32(5))
    calls = (
        lambda: am.plan(Q, K, K, sm_margin=value, device=on),
        lambda: am.mla(**latent, scale=0.1, sm_margin=value, device=on),
        lambda: am.mla_decode(
            np.zeros((1, 1, 16, 576), BF16), cache, scale=0.1, sm_margin=value, device=on
        ),
    )
    for call in calls:
        with pytest.raises(SpecError, match="^sm_margin must be an integer from 0 to 19, got "):
            call()


def test_kernels_take_a_margin() -> None:
    kernel = am.load(am.compile(am.mha(heads=1, head_dim=64, tile_order="persistent"), target="sm_90a"))  # fmt: skip
    q = np.zeros((1, 700, 1, 64), BF16)
    o, lse = np.empty_like(q), np.empty((1, 1, 700), np.float32)
    on = Noting(target="sm_90a", multiprocessors=4)
    Noting.ctas.clear()
    for margin in (0, 2, 0):
        kernel(q, q, q, o, lse, sm_margin=margin, device=on)
    assert [count for _, count in Noting.ctas] == [4, 2, 4]
    with pytest.raises(SpecError, match="^sm_margin must be an integer from 0 to 3, got 4"):
        kernel(q, q, q, o, lse, sm_margin=4, device=on)


@pytest.mark.slow
def test_torch_tensors_have_offsets_and_margins() -> None:
    torch = pytest.importorskip("torch")
    generator = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(2, n, 2, 64, generator=generator).to(torch.bfloat16) for n in (70, 200, 200)
    )
    places = torch.tensor([100, 20], dtype=torch.int32)
    on = am.EmulatorDevice(target="sm_90a")
    options: dict[str, Any] = {"mask": am.causal(), "k_offset": 10}
    found = am.attention(
        q, k, v, **options, q_offset=places, sm_margin=1, return_lse=True, device=on
    )
    *operands, o = (x.view(torch.int16).numpy().view(BF16) for x in (q, k, v, found[0]))
    options["q_offset"] = places.numpy()
    verdict = am.reference.check_attention(
        operands[0], operands[1], operands[2], o, found[1].numpy(), **options
    )
    assert verdict.ok, str(verdict)
