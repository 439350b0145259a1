"""The attn dialect from Python: the builder, the accessors, mask attributes, a score modifier."""

import pytest

import attn_mlir as am
from attn_mlir.dialect._mlir import arith, ir, make_context
from attn_mlir.dialect.attn import (
    MASK_ATTRIBUTES,
    MhaOp,
    attr_to_mask,
    build_module,
    make_mha,
    mask_to_attr,
)
from attn_mlir.dialect.attn.masks import (
    MASKS,
    CausalMask,
    ChunkedMask,
    Mask,
    NullMask,
    PrefixMask,
    WindowMask,
)
from attn_mlir.errors import SpecError


def build(**changes: object) -> ir.Module:
    """Builds a module of known good arguments with some changed."""
    options: dict[str, object] = {
        "heads": 8,
        "kv_heads": 2,
        "head_dim": 64,
        "dtype": "f16",
        "mask": CausalMask(),
    }
    return build_module(make_context(), am.mha(**(options | changes)))  # pyright: ignore


def test_builder_makes_a_valid_module():
    module = build()
    assert module.operation.verify()
    (op,) = ir.get_ops_of_type(module, MhaOp)
    assert (op.heads, op.kv_heads, op.head_dim, op.v_head_dim) == (8, 2, 64, 64)
    assert str(op.element_type) == "f16"
    assert op.mask_rule == CausalMask()
    assert not op.hides_scores and op.blocks is None
    assert str(op.lse.type) == "tensor<?x8x?xf32>"
    assert str(op.o.type) == "tensor<?x?x8x64xf16>"


def test_builder_output_survives_the_text():
    module = build(mask=NullMask())
    text = str(module)
    assert str(ir.Module.parse(text, module.context)) == text
    assert "mask = #attn.null" in text


def test_builder_names_the_arguments_and_the_default_scale():
    text = str(build(head_dim=64))
    for name in ("q", "k", "v", "scale", "o", "lse"):
        assert f'attn.name = "{name}"' in text
    assert "attn.default = 1.250000e-01 : f32" in text


@pytest.mark.parametrize(
    "mask",
    [
        NullMask(),
        CausalMask(),
        WindowMask(127, -1),
        ChunkedMask(512),
        PrefixMask(3),
        CausalMask() & ChunkedMask(512),
        (CausalMask() & ChunkedMask(512)) | ~WindowMask(3, 4),
    ],
    ids=str,
)
def test_mask_attributes_are_masks(mask: Mask):
    with make_context():
        attr = mask_to_attr(mask)
        assert str(attr) == mask.attribute
        assert attr_to_mask(attr) == mask
        assert attr_to_mask(ir.Attribute.parse(str(attr))) == mask


def test_attributes_that_are_no_masks():
    with make_context():
        for text in ('"causal"', "#attn.not<3>", '#attn.and<#attn.causal, "causal">'):
            with pytest.raises(KeyError):
                attr_to_mask(ir.Attribute.parse(text))
        with pytest.raises(SpecError, match="chunk size"):
            attr_to_mask(ir.Attribute.parse("#attn.not<#attn.chunked<0>>"))


def test_every_mask_class_has_an_attribute():
    assert len({mask.keyword for mask in MASKS}) == len(MASKS) == len(MASK_ATTRIBUTES)


def test_a_score_modifier_is_traced_into_the_region():
    text = "func.func @f(%q: tensor<?x?x2x64xbf16>, %s: f32) { func.return }"
    with make_context(), ir.Location.unknown():
        module = ir.Module.parse(text)
        block = module.body.operations[0].regions[0].blocks[0]
        q, scale = block.arguments
        with ir.InsertionPoint.at_block_terminator(block):
            op = make_mha(
                q, q, q, scale, mask=NullMask(), score_mod=lambda s, b, h, i, j: arith.addf(s, s)
            )
        assert module.operation.verify()
        assert [inner.name for inner in op.score_mod.blocks[0].operations] == [
            "arith.addf",
            "attn.yield",
        ]
