"""A call of attention that comes again launches what the full path would, or takes the full path."""

from __future__ import annotations

import dataclasses
import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import attn_mlir as am
from attn_mlir import env
from attn_mlir.api import plan_cache
from attn_mlir.api.appending import append_kv
from attn_mlir.api.attention import attention
from attn_mlir.compiling.compiler import compile, recording
from attn_mlir.errors import SpecError
from attn_mlir.runtime.call.binding import bind, parameters
from attn_mlir.runtime.call.signatures import address_of
from attn_mlir.runtime.call.tensormap import encode
from attn_mlir.runtime.call.tensors import TensorView, dense_strides, view
from attn_mlir.runtime.devices import idle
from attn_mlir.runtime.devices.idle import IdleDevice
from attn_mlir.runtime.devices.parameters import PackedParameters

BF16 = ml_dtypes.bfloat16
IDLE = IdleDevice()
STREAMED: dict[str, Any] = {"schedule": "mha-streaming"}


class Watch:
    """What plans launch on the idle device, and the memory that they take."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.launched: list[bytes] = []
        self.kernels: list[Any] = []
        self.memory: list[Any] = []
        self.counters: list[int] = []
        monkeypatch.setattr(IdleDevice, "plan_launch", self._planner(IdleDevice.plan_launch))
        monkeypatch.setattr(
            idle, "_launch_nothing", lambda packed, _: self.launched.append(packed.words.tobytes())
        )
        for name, make in (("maker_like", self._maker), ("counters_at", self._counters)):
            monkeypatch.setattr(plan_cache, name, make(getattr(plan_cache, name)))

    def _planner(self, plan_launch: Callable[..., Any]) -> Callable[..., Any]:
        """Launches of plans say of which kernel they are."""

        def planned(device: Any, bundle: Any, bound: Any, names: Any) -> Any:
            made = plan_launch(device, bundle, bound, names)
            if made is not None:
                start = made._start

                def noted(packed: Any, stream: Any) -> None:
                    self.kernels.append(bundle.manifest.request)
                    start(packed, stream)

                made._start = noted
            return made

        return planned

    def _maker(self, maker_like: Callable[..., Any]) -> Callable[..., Any]:
        def made(*arguments: Any) -> Any:
            make = maker_like(*arguments)

            def noted() -> Any:
                self.memory.append(make())
                return self.memory[-1]

            return noted

        return made

    def _counters(self, counters_at: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*arguments: Any) -> Any:
            found = counters_at(*arguments)
            self.counters.append(found[1])
            return found

        return noted

    def _placed(self, plan: Any, made: list[Any]) -> dict[str, TensorView]:
        """The workspace of a plan as views: in one array, each behind the other in whole lines."""
        begin, found = address_of(made[0]) if made else 0, dict[str, TensorView]()
        for x in plan.workspace:
            address = self.counters[0] if x.dtype == "i32" else begin
            begin += 0 if x.dtype == "i32" else -(-x.byte_count // 256) * 256
            model = view(np.zeros(0, np.float32), x.name)
            told = {"dtype": x.dtype, "shape": x.shape, "strides": dense_strides(x.shape)}
            found[x.name] = dataclasses.replace(model, address=address, **told)
        return found

    def called(self, *arguments: Any, **options: Any) -> bool:
        """Calls attention, which has to end as the full path does; whether plans launched it."""
        return self.made(attention, *arguments, **options)

    def made(self, function: Any, *arguments: Any, **options: Any) -> bool:
        """As `called`, of any function that is carried out by plans."""
        for noted in (self.launched, self.memory, self.counters, self.kernels):
            noted.clear()
        try:
            plan = function.planner(*arguments, device=IDLE, **options)
        except SpecError as refused:
            with pytest.raises(SpecError) as found:
                function(*arguments, device=IDLE, **options)
            assert str(found.value) == str(refused) and not self.launched
            return False
        results = function(*arguments, device=IDLE, **options)
        if not plan.results:
            assert results is None
            results = ()
        results = results if isinstance(results, tuple) else (results,)
        assert [tuple(x.shape) for x in results] == [x.shape for x in plan.results]
        assert [view(x, "x").dtype for x in results] == [x.dtype for x in plan.results]
        assert all(type(x) is type(arguments[0]) for x in results)
        if not self.launched:
            return False
        allocated = [x.name for x in plan.results if x.external is None]
        memory = dict(zip(allocated, self.memory, strict=False))
        if "out" in options:
            assert results[0] is options["out"]
            memory[plan.results[0].name] = options["out"]
        for result, x in zip(results, plan.results, strict=True):
            assert result is memory[x.name]
        views = {name: view(x, name) for name, x in memory.items()}
        views |= self._placed(plan, self.memory[len(allocated) :])
        expected: list[bytes] = []
        kernels: list[Any] = []
        for step in plan.steps:
            manifest = compile(step.request, target=plan.target).manifest
            kernels.append(manifest.request)
            bound = bind(manifest, (), step.launch_arguments(views))
            addresses = {name: tensor.address for name, tensor in bound.tensors.items()}
            made = PackedParameters(parameters(bound, addresses, encode))
            expected.append(made.words.tobytes())
        assert self.launched == expected and self.kernels == kernels
        return True


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    return Watch(monkeypatch)


def of_numpy(array: Any) -> Any:
    return array


def of_torch(array: Any) -> Any:
    torch = pytest.importorskip("torch")
    name = array.dtype.name
    as_bits = torch.from_numpy(array.view(np.uint16 if array.itemsize == 2 else array.dtype))
    return as_bits.view(torch.bfloat16) if name == "bfloat16" else as_bits.view(getattr(torch, name))  # fmt: skip


LIBRARIES = pytest.mark.parametrize("taken", [of_numpy, of_torch])


def operands(
    taken: Callable[[Any], Any], sq: int = 5, sk: int = 40, dtype: Any = BF16, heads: int = 4
) -> list[Any]:
    sizes = ((2, sq, heads, 64), (2, sk, 2, 64), (2, sk, 2, 64))
    return [taken(np.zeros(size, dtype)) for size in sizes]


@LIBRARIES
def test_the_third_call_is_a_plans(watch: Watch, taken: Any) -> None:
    options = {"mask": am.sliding_window(77), "return_lse": True}
    plans = [watch.called(*operands(taken), **options) for _ in range(5)]
    assert plans == [False, False, True, True, True]


@LIBRARIES
def test_parts_of_the_keys(watch: Watch, taken: Any) -> None:
    """With a workspace and counters, in one kernel; and with one, in two."""
    for options in (STREAMED, {}):
        given = {"num_splits": 3, "return_lse": True, "mask": am.sliding_window(78), **options}
        plans = [watch.called(*operands(taken), **given) for _ in range(4)]
        assert plans == [False, False, True, True]
        assert len(watch.launched) == (1 if options else 2)


@LIBRARIES
def test_other_shapes_dtypes_and_options(watch: Watch, taken: Any) -> None:
    calls: list[tuple[list[Any], dict[str, Any]]] = [
        (operands(taken), {}),
        (operands(taken, sq=6), {}),
        (operands(taken, sk=41), {}),
        (operands(taken, dtype=np.float16), {}),
        (operands(taken, heads=8), {}),
        (operands(taken), {"scale": 0.5}),
        (operands(taken), {"scale": 0.25}),
        (operands(taken), {"mask": am.causal()}),
        (operands(taken), {"mask": am.causal(), "return_lse": True}),
        (operands(taken), {"mask": am.causal(), "out_dtype": "f32"}),
    ]
    for turn in range(3):
        for given, options in calls:
            found = watch.called(*given, **{"mask": am.sliding_window(79), **options})
            assert found is (turn == 2), options
    assert not watch.called(*operands(taken), mask=am.sliding_window(79), scale=0.0)
    assert not watch.called(*operands(taken), mask=am.sliding_window(79), scale=True)
    assert not watch.called(*operands(taken), mask=am.sliding_window(79), return_lse=1)


def test_multiprocessors_stay_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kept launch leaves as many free as its call says, and each margin has its own."""
    margins: list[int] = []
    plan_launch = IdleDevice.plan_launch

    def planned(device: Any, bundle: Any, bound: Any, names: Any) -> Any:
        margins.append(bound.sm_margin)
        return plan_launch(device, bundle, bound, names)

    monkeypatch.setattr(IdleDevice, "plan_launch", planned)
    arrays = operands(of_numpy)
    for margin in (3, 0, 7):
        for _ in range(5):
            attention(*arrays, tile_order="persistent", sm_margin=margin, device=IDLE)
    assert margins == [3, 0, 7]


@LIBRARIES
def test_one_array_for_several_operands(watch: Watch, taken: Any) -> None:
    """A plan made of a call with k twice tells k and v apart, and views of one packed array."""
    q, k, v = operands(taken, sq=7)
    for _ in range(2):
        assert not watch.called(q, k, k)
    assert watch.called(q, k, v) and watch.called(q, v, k)
    packed = taken(np.zeros((2, 7, 3, 4, 64), BF16))
    for _ in range(2):
        assert not watch.called(*(packed[:, :, i] for i in (0, 1, 1)))
    assert watch.called(*(packed[:, :, i] for i in (2, 0, 1)))


@LIBRARIES
def test_memory_of_the_caller(watch: Watch, taken: Any) -> None:
    q, k, v = operands(taken, sq=9)
    many = taken(np.zeros((4, 9, 4, 64), BF16))
    for number, offset in enumerate((0, 2, 1, 2)):
        assert watch.called(q, k, v, out=many[offset : offset + 2]) is (number > 1)
    assert not watch.called(many[1:3], k, v, out=many[2:])  # refused: they share memory
    assert watch.called(many[:2], k, v, out=many[2:])
    for number, offset in enumerate((0, 2, 1, 2)):  # O is written by a second kernel
        found = watch.called(q, k, v, out=many[offset : offset + 2], num_splits=2)
        assert found is (number > 1)
    assert not watch.called(many[1:3], k, v, out=many[2:], num_splits=2)
    assert watch.called(many[:2], k, v, out=many[2:], num_splits=2)


@LIBRARIES
def test_operands_at_other_alignments(watch: Watch, taken: Any) -> None:
    q, k, _ = operands(taken)
    raw = taken(np.zeros(2 * 40 * 2 * 64 + 256, BF16))

    def at(offset: int) -> Any:
        return raw[offset : offset + 2 * 40 * 2 * 64].reshape(2, 40, 2, 64)

    first = next(i for i in range(8) if address_of(at(i)) % 16 == 0)
    given = {"mask": am.sliding_window(80)}
    assert [watch.called(q, k, at(first + i), **given) for i in (0, 8, 16)] == [False, False, True]
    for offset in (1, 4, 1, 1):  # no copy begins there
        with pytest.raises(SpecError, match="^v starts at"):
            attention(q, k, at(first + offset), device=IDLE, **given)
    assert watch.called(q, k, at(first + 24), **given)


def on_gpu(*shape: int, dtype: str = "bf16", number: int = 0) -> TensorView:
    """A tensor on a GPU, as far as anybody can tell who does not read it."""
    address = 0x7F00_0000_0000 + (number << 32)
    return TensorView(dtype, shape, dense_strides(shape), address, "cuda", 0, False, None)


def cache_of(number: int, **changes: Any) -> am.PagedKV:
    given: dict[str, Any] = {
        "k_pages": on_gpu(9, 16, 2, 64, number=number),
        "v_pages": on_gpu(9, 16, 2, 64, number=number + 1),
        "page_table": on_gpu(2, 3, dtype="i32", number=number + 2).moved(4 * number),
        "seqused": on_gpu(2, dtype="i32", number=number + 3).moved(12 * number),
        **changes,
    }
    return am.PagedKV(**given)


CACHES: list[dict[str, Any]] = [
    {},
    {"k_pages": on_gpu(9, 2, 16, 2, 64), "v_pages": None},
    {"page_table": on_gpu(2, 2, 3, dtype="i32", number=40)},
    {"layout": "HND", "k_pages": on_gpu(9, 2, 16, 64, number=41), "v_pages": on_gpu(9, 2, 16, 64, number=42)},
    {"seqused": None},
    {"counts_new": False},
    {"k_pages": on_gpu(9, 16, 2, 64, dtype="e4m3"), "v_pages": on_gpu(9, 16, 2, 64, dtype="e4m3", number=43),
     "k_scale": on_gpu(1, dtype="f32", number=44), "v_scale": on_gpu(2, dtype="f32", number=45)},
]  # fmt: skip


@pytest.mark.parametrize("changes", CACHES)
@pytest.mark.long("changes2", "changes5")
def test_caches_on_a_gpu(watch: Watch, changes: dict[str, Any]) -> None:
    """Each field is an argument of its own; K and V of one pool are that field and a constant."""
    found: list[bool] = []
    for number in range(5):
        out = on_gpu(2, 1, 4, 64, number=30 + number)
        q = on_gpu(2, 1, 4, 64, number=20 + number)
        cache = cache_of(number, **changes)
        found.append(watch.called(q, cache, out=out, mask=am.causal(), **STREAMED))
    assert found == [False, False, True, True, True]


def test_new_tokens_on_a_gpu(watch: Watch) -> None:
    """What is written is the caller's; angles are a tuple of arrays."""
    angles = [on_gpu(64, 16, dtype="f32", number=50 + i) for i in range(2)]
    rotary: list[dict[str, Any]] = [{}, {"rotary": (*angles, True)}, {"rotary": (*angles, False)}]
    for options in rotary:
        found: list[bool] = []
        for number in range(5):
            new = [on_gpu(2, 1, 2, 64, number=20 + 2 * number + i) for i in range(2)]
            found.append(watch.made(append_kv, cache_of(number), *new, **options))
        assert found == [False, False, True, True, True], options
    wrong = on_gpu(2, 1, 2, 64, number=0).moved(64)  # of the cache
    with pytest.raises(SpecError, match="shares memory"):
        append_kv(cache_of(0), wrong, wrong, device=IDLE)


def test_lengths_on_a_gpu(watch: Watch) -> None:
    found: list[bool] = []
    for number in range(4):
        q, k, v, out = (
            on_gpu(70, n, 64, number=i + 9 * number) for i, n in enumerate((4, 2, 2, 4))
        )
        offsets = on_gpu(4, dtype="i32", number=7 + 9 * number)
        options: dict[str, Any] = {"cu_seqlens_q": offsets, "cu_seqlens_k": offsets}
        found.append(watch.called(q, k, v, out=out, max_seqlen_q=30, **options))
    assert found == [False, False, True, True]
    assert not watch.called(q, k, v, out=out, max_seqlen_q=31, **options)


def test_what_is_read_on_the_host_is_read_every_time(watch: Watch) -> None:
    q, k, v = operands(of_numpy)
    used = np.array([5, 40], np.int32)
    for _ in range(4):
        assert not watch.called(q, k, v, seqused_k=used)
    used[1] = 41
    with pytest.raises(SpecError, match=r"seqused_k\[1\] is 41"):
        am.attention(q, k, v, seqused_k=used, device=IDLE)
    pool = am.ContiguousKV(k, v, np.array([5, 40], np.int32))
    for _ in range(4):
        assert not watch.called(q, pool)
    pool.seqused[0] = -1
    with pytest.raises(SpecError, match=r"seqused\[0\] is -1"):
        am.attention(q, pool, device=IDLE)


def test_functions_in_place(watch: Watch) -> None:
    """One function whose variable is set anew."""
    factor: Any = 1.0

    def scaled(score: Any, b: Any, h: Any, q: Any, k: Any, x: Any = 0.0) -> Any:
        return score * factor + x

    def calls() -> list[bool]:
        return [watch.called(*operands(of_numpy), score_mod=scaled) for _ in range(4)]

    assert calls() == [False, False, True, True]
    factor = 2.0
    assert calls() == [False, False, True, True]
    factor = 1.0
    assert calls() == [True] * 4


def test_a_function_that_changes_while_it_is_planned(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As another thread might, between the look at the function and its tracing."""
    factor, after = 1.0, iter((1.0, 2.0))

    def scaled(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return score * factor + 0.0  # kernels of `test_functions_in_place`

    def call() -> bool:
        return watch.called(*operands(of_numpy), score_mod=scaled)

    read = plan_cache.CachingPlanner._signature  # pyright: ignore[reportPrivateUsage]

    def changed(*arguments: Any) -> Any:
        nonlocal factor
        found = read(*arguments)
        factor = next(after, factor)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(plan_cache.CachingPlanner, "_signature", changed)
        for _ in range(2):
            attention(*operands(of_numpy), device=IDLE, score_mod=scaled)
    factor = 1.0
    assert [call(), call(), call()] == [False, False, True]


@LIBRARIES
def test_functions_of_this_package(watch: Watch, taken: Any) -> None:
    """New functions with each call, of arrays that are others each time."""
    for _ in range(4):
        ids, slopes = taken(np.zeros((2, 5), np.int32)), taken(np.zeros(4, np.float32))
        mods = {
            "score_mod": am.mods.compose(am.mods.softcap(20.0), am.mods.alibi(slopes)),
            "mask_mod": am.mods.or_masks(am.mods.document(ids, ids), am.mods.causal_from_top),
        }
        planned = watch.called(*operands(taken, sk=5), **mods)
    assert planned
    assert not watch.called(*operands(taken, sk=6), **mods)  # refused: ids are of 5 keys


def test_one_array_in_two_places(watch: Watch) -> None:
    """Two views of an array's memory cannot be told apart by where they lie."""
    table = np.zeros(8, np.float32)

    def biased(first: Any, second: Any) -> Any:
        return lambda score, b, h, q, k: score + first[h] * second[q]

    def calls(first: Any, second: Any) -> list[bool]:
        given = {"score_mod": biased(first, second)}
        return [watch.called(*operands(of_numpy), **given) for _ in range(4)]

    assert calls(table, table) == [False, False, True, True]
    assert not any(calls(table, table[:]))
    assert calls(table, table.copy()) == [False, False, True, True]
    assert calls(table, table) == [True] * 4
    q = operands(of_numpy)[0]
    whole = q.reshape(-1)[:64].view(np.uint16).view(np.float16)  # one with the queries
    given = [
        watch.called(q, *operands(of_numpy)[1:], score_mod=biased(whole, table)) for _ in range(4)
    ]
    assert given == [False, False, True, True]


def test_kernels_are_told_to_whoever_asks(watch: Watch) -> None:
    given: dict[str, Any] = {"mask": am.sliding_window(81)}
    assert [watch.called(*operands(of_numpy), **given) for _ in range(3)][-1]
    asked: list[Any] = []
    with recording(asked.append):
        assert not watch.called(*operands(of_numpy), **given)
    assert asked


def test_another_environment_is_another_plan(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {"mask": am.sliding_window(82)}
    assert [watch.called(*operands(of_numpy), **given) for _ in range(3)][-1]
    changed = dataclasses.replace(env.settings(), check_lengths=True)
    monkeypatch.setattr(env, "settings", lambda: changed)
    assert not any(watch.called(*operands(of_numpy), **given) for _ in range(3))
    monkeypatch.undo()


@pytest.mark.usefixtures("only_new_garbage")
def test_no_plan_holds_an_array() -> None:
    for turn in range(4):
        q, k, v = operands(of_numpy, sq=11)
        gone = [weakref.ref(x) for x in (q, k, v)]
        o = am.attention(q, k, v, device=IDLE, num_splits=1 + turn % 2)
        gone.append(weakref.ref(o))
        del q, k, v, o
        gc.collect()
        assert [x() for x in gone] == [None] * 4


def test_threads(watch: Watch) -> None:
    """Each thread's results are its own, and so are the parameters."""
    shapes = [(3, 33), (4, 44)]
    for sq, sk in shapes:
        for _ in range(2):
            watch.called(*operands(of_numpy, sq=sq, sk=sk))
    wrong: list[str] = []

    def work(sq: int, sk: int) -> None:
        q, k, v = operands(of_numpy, sq=sq, sk=sk)
        kept: list[Any] = []
        for _ in range(200):
            kept.append(am.attention(q, k, v, device=IDLE))
        if {x.shape for x in kept} != {q.shape} or len({address_of(x) for x in kept}) != 200:
            wrong.append(f"{sq}")

    threads = [threading.Thread(target=work, args=shape) for shape in shapes * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_results_of_a_repeated_call_on_the_emulator_are_right() -> None:
    """The emulator keeps no launches: every call is carried out in full."""
    random = np.random.default_rng(0)
    k, v = (random.standard_normal((1, 40, 1, 64)).astype(BF16) for _ in "kv")
    for _ in range(3):
        q = random.standard_normal((1, 5, 2, 64)).astype(BF16)
        found = am.attention(q, k, v, device="emulator", return_lse=True)
        assert am.reference.check_attention(q, k, v, *found, mask=am.full()).ok
