"""A call's arguments: every refusal names the argument, what was got and what is allowed."""

from __future__ import annotations

import copy
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from attn_mlir.errors import SpecError
from attn_mlir.runtime.call import binding
from attn_mlir.runtime.call.binding import bind, parameters
from attn_mlir.runtime.call.tensormap import MapDescription
from attn_mlir.runtime.file.manifest import Manifest, parse_manifest

BF16 = ml_dtypes.bfloat16
HEADS, KV_HEADS, DIM = 4, 2, 128


def _operand(name: str, length: str, heads: int, role: str = "in") -> dict[str, Any]:
    return {
        "name": name, "role": role, "dtype": "bf16", "shape": ["batch", length, heads, DIM],
        "unit_stride_axis": 3, "alignment_bytes": 16,
    }  # fmt: skip


def _map(name: str, length: str, heads: int) -> dict[str, Any]:
    dims = [("", 64, 3, 1), ("", length, 1, 1), ("", 2, 3, 64), ("", heads, 2, 1),
            ("", "batch", 0, 1)]  # fmt: skip
    return {
        "kind": "tensor_map", "tensor": name, "box": [64, 128, 2, 1, 1], "swizzle": "128B",
        "dims": [{"extent": extent, "axis": axis, "step": step} for _, extent, axis, step in dims],
    }  # fmt: skip


ATTENTION: dict[str, Any] = {
    "schema": 1, "entry": "attn_mha", "target": "sm_100a", "sha256": "0", "sha256_ptx": "0",
    "block": [512, 1, 1], "cluster": [1, 1, 1], "smem_bytes": 230000,
    "grid": [["ceildiv", "sq", 256], HEADS, "batch"],
    "symbols": ["batch", "sq", "sk"],
    "tensors": [
        _operand("q", "sq", HEADS), _operand("k", "sk", KV_HEADS), _operand("v", "sk", KV_HEADS),
        _operand("o", "sq", HEADS, "out"),
        {"name": "lse", "role": "out", "dtype": "f32", "shape": ["batch", HEADS, "sq"],
         "unit_stride_axis": 2, "alignment_bytes": 4},
    ],
    "scalars": [{"name": "scale", "dtype": "f32", "default": None, "min_exclusive": 0.0}],
    "params": [
        _map("q", "sq", HEADS), _map("k", "sk", KV_HEADS), _map("v", "sk", KV_HEADS),
        _map("o", "sq", HEADS), {"kind": "pointer", "tensor": "lse"},
        {"kind": "stride", "tensor": "lse", "axis": 1, "type": "i32"},
        {"kind": "symbol", "symbol": "sq", "type": "i32"},
        {"kind": "symbol", "symbol": "sk", "type": "i64"},
        {"kind": "scalar", "scalar": "scale", "type": "f32"},
    ],
}  # fmt: skip


class Unspeakable:
    """A value that cannot even be shown."""

    def __repr__(self) -> str:
        raise RuntimeError("no text for this")


def manifest(**changes: Any) -> Manifest:
    return parse_manifest({**copy.deepcopy(ATTENTION), **changes})


def operands(batch: int = 2, sq: int = 77, sk: int = 300, **changes: Any) -> list[Any]:
    """Tensors of a legal call, with some of them replaced by name."""
    made: dict[str, Any] = {
        "q": np.zeros((batch, sq, HEADS, DIM), BF16),
        "k": np.zeros((batch, sk, KV_HEADS, DIM), BF16),
        "v": np.zeros((batch, sk, KV_HEADS, DIM), BF16),
        "o": np.zeros((batch, sq, HEADS, DIM), BF16),
        "lse": np.zeros((batch, HEADS, sq), np.float32),
    }
    assert set(changes) <= set(made)
    return list({**made, **changes}.values())


def test_legal_call() -> None:
    bound = bind(manifest(), operands(), {"scale": 0.1})
    assert bound.symbols == {"batch": 2, "sq": 77, "sk": 300}
    assert bound.grid == (1, HEADS, 2) and not bound.launches_nothing
    assert bound.scalars["scale"] == pytest.approx(0.1, rel=1e-7)


def test_parameters_in_order() -> None:
    tensors = operands()
    bound = bind(manifest(), tensors, {"scale": 0.5})
    seen: list[MapDescription] = []

    def encode(description: MapDescription) -> bytes:
        seen.append(description)
        return b"map" + bytes([len(seen)])

    addresses = {name: 0x1000 * index for index, name in enumerate("qkvo", 1)} | {"lse": 0x9004}
    found = parameters(bound, addresses, encode)
    assert [(param.type, param.value) for param in found] == [
        ("map", b"map\x01"), ("map", b"map\x02"), ("map", b"map\x03"), ("map", b"map\x04"),
        ("u64", 0x9004), ("i32", 77), ("i32", 77), ("i64", 300), ("f32", 0.5),
    ]  # fmt: skip
    assert [description.address for description in seen] == [0x1000, 0x2000, 0x3000, 0x4000]
    assert seen[1].extents == (64, 300, 2, KV_HEADS, 2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"q": np.zeros((2, 77, 4, 128), np.float16)}, "^q must be bf16, got f16"),
        ({"lse": np.zeros((2, 4, 77))}, "^lse must be f32, got f64"),
        (
            {"k": np.zeros((2, 300, 256), BF16)},
            r"^k must have shape \[batch, sk, 2, 128\], got \[2, 300, 256\]: 3 dimensions instead",
        ),
        (
            {"k": np.zeros((2, 300, 4, 128), BF16)},
            r"^k must have shape .* dimension 2 is 4, the kernel has 2",
        ),
        (
            {"q": np.zeros((2, 77, 4, 64), BF16)},
            r"^q must have shape .* dimension 3 is 64, the kernel has 128",
        ),
        ({"v": np.zeros((2, 299, 2, 128), BF16)}, r"^v .* says sk = 299, k says 300"),
        ({"o": np.zeros((2, 78, 4, 128), BF16)}, r"^o .* says sq = 78, q says 77"),
        ({"v": np.zeros((3, 300, 2, 128), BF16)}, r"^v .* says batch = 3, q says 2"),
        (
            {"q": np.zeros((2, 77, 128, 4), BF16).transpose(0, 1, 3, 2)},
            r"^q has strides .* axis 3 must be dense \(stride 1\), got 4",
        ),
        ({"k": np.zeros((2, 300, 2, 128), BF16)[:, ::-1]}, "^k has strides .* negative strides"),
        (
            {"o": np.broadcast_to(np.zeros((1, 77, 4, 128), BF16), (2, 77, 4, 128))},
            "^o is an output, but its memory is read-only",
        ),
        (
            {"o": np.lib.stride_tricks.as_strided(
                np.zeros((77, 4, 128), BF16), (2, 77, 4, 128), (0, 1024, 256, 2))},
            "^o is an output, but its elements share memory",
        ),
        ({"v": "text"}, "^v must be a numpy array"),
    ],
)  # fmt: skip
def test_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        bind(manifest(), operands(**changes), {"scale": 1.0})


def test_misaligned() -> None:
    raw = np.zeros(2 * 77 * 4 * 128 + 64, BF16)
    start = (-raw.ctypes.data % 16) // 2 + 4
    q = raw[start : start + 2 * 77 * 4 * 128].reshape(2, 77, 4, 128)
    with pytest.raises(SpecError, match="^q starts at .* aligned to 16 bytes, is off by 8"):
        bind(manifest(), operands(q=q), {"scale": 1.0})


def test_stride_of_no_multiple_of_16_bytes() -> None:
    k = np.zeros((2, 300, 2, 132), BF16)[..., :128]
    bound = bind(manifest(), operands(k=k), {"scale": 1.0})
    with pytest.raises(SpecError, match="^k has a stride of 132 elements along axis 2"):
        parameters(bound, dict.fromkeys(("q", "k", "v", "o", "lse"), 0x1000), lambda _: b"")


def in_pieces() -> Manifest:
    """As the kernel, whose threads move rows of k in pieces of 8 elements."""
    return manifest(tensors=[
        {**tensor, "row_multiple": 8} if tensor["name"] == "k" else tensor
        for tensor in ATTENTION["tensors"]
    ])  # fmt: skip


def test_strides_of_whole_pieces() -> None:
    k = np.zeros((2, 300, 2, 132), BF16)[..., :128]
    with pytest.raises(SpecError, match=r"^k has strides .* multiples of 8 along axis 2"):
        bind(in_pieces(), operands(k=k), {"scale": 1.0})
    bind(manifest(), operands(k=k), {"scale": 1.0})
    bind(in_pieces(), operands(k=np.zeros((2, 300, 2, 136), BF16)[..., :128]), {"scale": 1.0})


def test_a_stride_that_is_never_taken_may_be_any() -> None:
    k = np.lib.stride_tricks.as_strided(
        np.zeros(300 * 256, BF16), (1, 300, 2, 128), (6, 512, 256, 2)
    )
    others = {"v": np.zeros((1, 300, 2, 128), BF16), "lse": np.zeros((1, 4, 77), np.float32)}
    q = np.zeros((1, 77, 4, 128), BF16)
    bind(in_pieces(), operands(q=q, k=k, o=q.copy(), **others), {"scale": 1.0})


def test_rows_of_whole_pieces() -> None:
    lse = {**ATTENTION["tensors"][4], "row_multiple": 4}
    pieces = manifest(tensors=[*ATTENTION["tensors"][:4], lse])
    with pytest.raises(SpecError, match=r"^lse has 77 elements in a row: .* multiples of 4"):
        bind(pieces, operands(sq=77), {"scale": 1.0})
    bind(pieces, operands(sq=76), {"scale": 1.0})


def test_what_is_read_and_written_is_an_output_too() -> None:
    k = {**ATTENTION["tensors"][1], "role": "inout"}
    kernel = manifest(tensors=[ATTENTION["tensors"][0], k, *ATTENTION["tensors"][2:]])
    bind(kernel, operands(), {"scale": 1.0})
    tensors = operands()
    tensors[2] = tensors[1]
    with pytest.raises(SpecError, match="^k is an output, but it shares memory with v"):
        bind(kernel, tensors, {"scale": 1.0})
    fixed = np.zeros((2, 300, 2, 128), BF16)
    fixed.flags.writeable = False
    with pytest.raises(SpecError, match="^k is an output, but its memory is read-only"):
        bind(kernel, operands(k=fixed), {"scale": 1.0})


def test_output_that_is_an_input() -> None:
    tensors = operands(sq=300)
    tensors[3] = tensors[0]
    with pytest.raises(SpecError, match="^o is an output, but it shares memory with q"):
        bind(manifest(), tensors, {"scale": 1.0})


def test_views_of_one_packed_buffer_are_welcome() -> None:
    packed = np.zeros((2, 77, HEADS + 2 * KV_HEADS, DIM), BF16)
    q, k, v = np.split(packed, [HEADS, HEADS + KV_HEADS], axis=2)
    bound = bind(manifest(), operands(sk=77, q=q, k=k, v=v), {"scale": 1.0})
    assert bound.tensors["k"].strides == (77 * 8 * 128, 8 * 128, 128, 1)


def test_mixed_devices() -> None:
    class Gpu:
        __cuda_array_interface__ = {
            "shape": (2, 4, 77), "typestr": "<f4", "data": (0x1000, False), "version": 3,
        }  # fmt: skip

    with pytest.raises(SpecError, match="on one device, got q on cpu, .* lse on cuda:0"):
        bind(manifest(), operands(lse=Gpu()), {"scale": 1.0})


@pytest.mark.parametrize("count", [0, 4, 6])
def test_wrong_number_of_tensors(count: int) -> None:
    tensors = (operands() + operands())[:count]
    with pytest.raises(SpecError, match=rf"takes 5 tensors \(q, k, v, o, lse\), got {count}"):
        bind(manifest(), tensors, {"scale": 1.0})


@pytest.mark.parametrize(
    "scale",
    [
        *(
            0.0,
            -1.0,
            float("nan"),
            float("inf"),
            1e39,
            1e-60,
            1e-38,
            1.4e-45,
            10**400,
            float("1e999"),
            1j,
        ),
        *("much", "1", b"1", True, np.True_, [1.0], np.nan, np.ones(1), np.complex64(1), object()),
    ],
)
def test_scale_is_refused(scale: object) -> None:
    with pytest.raises(SpecError, match="^scale must be"):
        bind(manifest(), operands(), {"scale": scale})


@pytest.mark.parametrize(
    "scale",
    [2.0**-126, 3.4e38, 1, np.float32(0.5), np.float64(2), np.int8(1), np.array(2.0), BF16(0.25)],
)
def test_scale_is_allowed(scale: float) -> None:
    assert bind(manifest(), operands(), {"scale": scale}).scalars["scale"] > 0


@pytest.mark.parametrize(("scale", "is_allowed"), [(2e38, True), (2.1e38, False)])
def test_bounds_of_a_scalar(scale: float, is_allowed: bool) -> None:
    limited = manifest(scalars=[{**ATTENTION["scalars"][0], "max": 2e38}])
    if is_allowed:
        assert bind(limited, operands(), {"scale": scale}).scalars["scale"] == pytest.approx(2e38)
        return
    with pytest.raises(
        SpecError, match=r"^scale must be .* from 1.175e-38 to 2e\+38, got 2.1e\+38"
    ):
        bind(limited, operands(), {"scale": scale})


def strided(shape: tuple[int, ...], strides: tuple[int, ...]) -> Any:
    """A bf16 output with strides in elements."""
    reach = sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) + 1
    return np.lib.stride_tricks.as_strided(np.zeros(reach, BF16), shape, [2 * s for s in strides])


ROW = HEADS * DIM


@pytest.mark.parametrize(
    "strides",
    [
        (77 * ROW, 0, DIM, 1),  # one row for all
        (77 * ROW, ROW - 8, DIM, 1),  # the end of a row is the begin of the next
        (77 * ROW, DIM, DIM, 1),  # heads of a row are the next rows
        (76 * ROW, ROW, DIM, 1),  # the last row is the first one of the next sequence
        (77 * ROW, ROW, DIM - 8, 1),
        (0, ROW, DIM, 1),
        (8 * 3, 8 * 5, 8 * 7 * 79, 1),  # 5 x 3 = 3 x 5
    ],
)
def test_outputs_whose_elements_overlap(strides: tuple[int, ...]) -> None:
    o = strided((2, 77, HEADS, DIM), strides)
    with pytest.raises(SpecError, match="^o is an output, but its elements share memory: shape"):
        bind(manifest(), operands(o=o), {"scale": 1.0})


@pytest.mark.parametrize(
    "strides",
    [
        (77 * 3 * ROW, 3 * ROW, DIM, 1),  # a slice of a wider buffer
        (77 * ROW, DIM, 77 * DIM, 1),  # heads first
        (ROW, 2 * ROW, DIM, 1),  # sequences interleave
        (77 * ROW + 8, ROW, DIM, 1),
        (DIM, 2 * HEADS * DIM, 2 * DIM, 1),
    ],
)
def test_outputs_whose_elements_interleave(strides: tuple[int, ...]) -> None:
    bind(manifest(), operands(o=strided((2, 77, HEADS, DIM), strides)), {"scale": 1.0})


@pytest.mark.parametrize(("name", "heads"), [("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)])
@pytest.mark.parametrize("row", [0, 1, 5, 77])
def test_output_that_overlaps_an_operand_of_a_packed_buffer(
    name: str, heads: int, row: int
) -> None:
    packed = np.zeros((3, 77, 3 * HEADS, DIM), BF16)
    last = packed.reshape(-1, DIM)[row * 3 * HEADS + heads - 1 :]  # the operand's last head
    o = np.lib.stride_tricks.as_strided(last, (2, 77, HEADS, DIM), packed.strides)
    with pytest.raises(SpecError, match=f"^o is an output, but it shares memory with {name}: pass"):
        bind(manifest(), operands(sk=77, **{name: packed[:2, :, :heads], "o": o}), {"scale": 1.0})


def test_outputs_that_overlap_each_other() -> None:
    o = np.zeros((2, 77, HEADS, DIM), BF16)
    lse = o.view(np.float32).reshape(-1)[-2 * HEADS * 77 :].reshape(2, HEADS, 77)
    with pytest.raises(SpecError, match="^o is an output, but it shares memory with lse"):
        bind(manifest(), operands(o=o, lse=lse), {"scale": 1.0})


def test_output_beside_its_operands_in_a_packed_buffer() -> None:
    for axis, shape in ((2, (2, 77, 12, DIM)), (1, (2, 4 * 77, HEADS, DIM))):
        packed = np.zeros(shape, BF16)
        parts = np.split(packed, 4 if axis == 1 else [4, 6, 8], axis=axis)
        q, k, v, o = parts
        k, v = k[:, :, :KV_HEADS], v[:, :, :KV_HEADS]
        bind(manifest(), operands(sk=77, q=q, k=k, v=v, o=o), {"scale": 1.0})


def test_overlap_on_a_gpu_is_told_from_addresses() -> None:
    def gpu(shape: tuple[int, ...], address: int, typestr: str = "<f2") -> Any:
        fields = {"shape": shape, "typestr": typestr, "data": (address, False), "version": 3}
        return type("Gpu", (), {"__cuda_array_interface__": fields})()

    half = manifest(tensors=[
        {**tensor, "dtype": "f16" if tensor["dtype"] == "bf16" else "f32"}
        for tensor in ATTENTION["tensors"]
    ])  # fmt: skip
    size = 2 * 77 * ROW * 2
    far = 1 << 40
    k, v = (gpu((2, 300, KV_HEADS, DIM), far + i * (1 << 30)) for i in (1, 2))
    lse = gpu((2, HEADS, 77), 3 << 40, "<f4")
    q, o = gpu((2, 77, HEADS, DIM), far), gpu((2, 77, HEADS, DIM), far + size)
    bind(half, [q, k, v, o, lse], {"scale": 1.0})
    o = gpu((2, 77, HEADS, DIM), far + size - 16)
    with pytest.raises(SpecError, match="^o is an output, but it shares memory with q"):
        bind(half, [q, k, v, o, lse], {"scale": 1.0})


def test_scale_without_default_is_required() -> None:
    with pytest.raises(SpecError, match="scale has no default: pass scale="):
        bind(manifest(), operands(), {})


def test_unknown_scalar() -> None:
    with pytest.raises(SpecError, match=r"no argument \['softcap'\], allowed are \['scale'\]"):
        bind(manifest(), operands(), {"scale": 1.0, "softcap": 3.0})


@pytest.mark.parametrize(("batch", "sq", "sk"), [(0, 77, 300), (2, 0, 300), (0, 0, 0)])
def test_nothing_to_launch(batch: int, sq: int, sk: int) -> None:
    bound = bind(manifest(), operands(batch, sq, sk), {"scale": 1.0})
    assert bound.launches_nothing


def test_no_keys_point_at_an_output() -> None:
    bound = bind(manifest(), operands(sk=0), {"scale": 1.0})
    assert not bound.launches_nothing
    seen: list[MapDescription] = []
    parameters(bound, {"q": 16, "o": 32, "lse": 64}, lambda d: seen.append(d) or b"")
    assert [description.address for description in seen] == [16, 32, 32, 32]
    assert seen[1].extents == (64, 1, 2, KV_HEADS, 2)


def test_grid_beyond_the_hardware() -> None:
    huge = np.lib.stride_tricks.as_strided
    batch = 65536
    tensors = [
        huge(np.zeros(DIM, BF16), (batch, 1, heads, DIM), (0, 0, 0, 2))
        for heads in (HEADS, KV_HEADS, KV_HEADS)
    ]
    tensors.append(np.zeros((batch, 1, HEADS, DIM), BF16))
    tensors.append(np.zeros((batch, HEADS, 1), np.float32))
    with pytest.raises(SpecError, match=r"axis z would have batch = 65536 CTAs .* 0 to 65535"):
        bind(manifest(), tensors, {"scale": 1.0})


@pytest.mark.parametrize(
    ("multiprocessors", "ctas"), [(1, 4), (4, 4), (11, 8), (132, 132), (1000, 400)]
)
def test_a_persistent_grid_is_of_whole_clusters(multiprocessors: int, ctas: int) -> None:
    grid = [400, 1, 1]
    found = manifest(cluster=[4, 1, 1], persistent=True, grid=grid)
    bound = bind(found, operands(), {"scale": 1.0})
    assert bound.grid_on(multiprocessors) == (ctas, 1, 1)


def test_grid_that_the_cluster_does_not_divide() -> None:
    with pytest.raises(SpecError, match="no multiple of the cluster"):
        bind(manifest(cluster=[2, 1, 1]), operands(), {"scale": 1.0})


def test_size_that_does_not_fit_its_parameter(monkeypatch: pytest.MonkeyPatch) -> None:
    far = np.lib.stride_tricks.as_strided(
        np.zeros(1 << 10, np.float32), (2, HEADS, 77), (0, 4 * 2**31, 4)
    )
    roles = {
        tensor["name"]: "out" if tensor["name"] == "o" else "in" for tensor in ATTENTION["tensors"]
    }
    monkeypatch.setattr(binding, "_check_aliases", lambda *_: None)
    bound = bind(
        manifest(
            tensors=[{**tensor, "role": roles[tensor["name"]]} for tensor in ATTENTION["tensors"]]
        ),
        operands(lse=far),
        {"scale": 1.0},
    )
    with pytest.raises(SpecError, match="lse's stride along axis 1 is 2147483648.*32-bit"):
        parameters(bound, dict.fromkeys(("q", "k", "v", "o", "lse"), 0x1000), lambda _: b"")


@pytest.mark.parametrize("grid", [[0, 4, "batch"], [["sub", "sq", "sq"], 1, 1]])
def test_a_grid_that_would_leave_the_outputs_as_they_are(grid: list[Any]) -> None:
    with pytest.raises(SpecError, match="has no CTA, so that nothing would write to o, lse"):
        bind(manifest(grid=grid), operands(), {"scale": 1.0})


def test_nothing_to_do_is_no_mistake() -> None:
    assert bind(manifest(), operands(batch=0), {"scale": 1.0}).launches_nothing
    grid = [["mul", "sk", 2], 1, 1]
    assert bind(manifest(grid=grid), operands(sk=0), {"scale": 1.0}).launches_nothing
    offsets = {"name": "cu_seqlens_q", "role": "in", "dtype": "i32", "shape": ["ends"]}
    tensors = [*ATTENTION["tensors"], {**offsets, "unit_stride_axis": 0, "alignment_bytes": 4}]
    symbols = [*ATTENTION["symbols"], "ends"]
    made = manifest(tensors=tensors, symbols=symbols, grid=[["sub", "ends", 1], 1, 1])
    given = [*operands(), np.zeros(1, np.int32)]
    assert bind(made, given, {"scale": 1.0}).launches_nothing  # rows of no sequence


def test_a_kernel_without_outputs_is_refused() -> None:
    tensors = [{**tensor, "role": "in"} for tensor in ATTENTION["tensors"]]
    with pytest.raises(SpecError, match="no tensor of attn_mha is an output"):
        bind(manifest(tensors=tensors), operands(), {"scale": 1.0})


def with_extent(map_: int, dim: int, extent: Any) -> Manifest:
    params = copy.deepcopy(ATTENTION["params"])
    params[map_]["dims"][dim]["extent"] = extent
    return manifest(params=params)


@pytest.mark.parametrize(
    ("map_", "dim", "extent", "message"),
    [
        (0, 1, 64, "map of q ends with element 63 along axis 1, the tensor with 76"),
        (1, 1, "sq", "map of k ends with element 76 along axis 1, the tensor with 299"),
        (2, 1, ["add", "sk", 1], "map of v ends with element 300 along axis 1"),
        (0, 2, 1, "map of q ends with element 63 along axis 3, the tensor with 127"),
        (3, 3, 5, "map of o ends with element 4 along axis 2, the tensor with 3"),
        (1, 4, ["sub", 1, "batch"], "map of k ends with element 0 along axis 0"),
        (1, 1, ["mul", 2**62, 4], "beyond 64 bits"),
    ],
)
def test_a_map_that_is_not_its_tensors(map_: int, dim: int, extent: Any, message: str) -> None:
    bound = bind(with_extent(map_, dim, extent), operands(), {"scale": 1.0})
    with pytest.raises(SpecError, match=message):
        parameters(bound, dict.fromkeys(("q", "k", "v", "o", "lse"), 0x1000), lambda _: b"")
