"""Reading a PTX signature, and how tensors without memory describe themselves."""

from __future__ import annotations

import numpy as np
import pytest

from attn_mlir.bench.peers import fa4_record

SIGNATURE = """
.visible .entry k(
	.param .align 8 .b8 k_param_0[40],
	.param .align 64 .b8 k_param_1[128],
	.param .f32 k_param_2,
	.param .u64 k_param_3,
	.param .align 4 .b8 k_param_4[12]
)
.reqntid 512, 1, 1
{ .reg .b32 %r<4>; .param .b32 not_of_the_entry; }
"""


def test_sizes_of_parameters():
    sizes = [40, 128, 4, 8, 12]
    assert fa4_record.parameter_bytes(SIGNATURE) == {"k": sizes}
    both = SIGNATURE + SIGNATURE.replace("entry k(", "entry k_1(")
    assert fa4_record.parameter_bytes(both) == {"k": sizes, "k_1": sizes}


def test_a_tensor_map_loses_what_was_never_written():
    whole = "ab" * 128
    assert fa4_record._tidy(whole) == "ab" * 64 + "00" * 64
    assert fa4_record._tidy("ab" * 40) == "ab" * 40


@pytest.mark.parametrize("shape", [(1, 512, 2, 128), (3, 7)])
def test_tensor_without_memory_has_contiguous_strides(shape: tuple[int, ...]):
    tensor = fa4_record.DeviceTensor(0x7F00_1000_0000, list(shape), 2, 32)
    expected = [stride // 4 for stride in np.empty(shape, np.float32).strides]
    assert list(tensor._strides) == expected
    assert (tensor._managed.data, tensor._managed.ndim) == (0x7F00_1000_0000, len(shape))
    assert tensor.__dlpack_device__() == (2, 0)
