"""The traces in the docs: each has a program that draws it, and shows what its kernel does now."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

import pytest

from attn_mlir.bench.traces import DOCS, PICTURES, picture

OTHERS = {"attention_speed", "distributed"}  # those of other programs


def names(svg: str) -> set[str]:
    """What a picture calls roles, engines, warps, rings and barriers; no numbers that are times."""
    texts = (node.text or "" for node in ElementTree.fromstring(svg).iter())
    return {text for text in texts if re.match(r"[a-zA-Z]", text) and "steps" not in text}


def test_every_picture_can_be_drawn_and_is_on_a_page() -> None:
    drawn = {path.stem for path in DOCS.glob("*.svg")} - OTHERS
    assert drawn == set(PICTURES)
    places = (DOCS, DOCS.parent / "schedules")
    pages = "".join(page.read_text() for place in places for page in place.rglob("*.md"))
    assert all(f"{name}.svg)" in pages for name in drawn)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_shows_the_kernel_as_it_is(name: str) -> None:
    assert names(picture(name)) == names((DOCS / f"{name}.svg").read_text())
