"""The picture of speeds: every cell has a point where its length and its rate are."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

from attn_mlir.bench.measuring.picture import HEIGHT, LEFT, TOP, WIDTH, picture

SVG = "{http://www.w3.org/2000/svg}"


def test_points_are_where_numbers_are() -> None:
    rows = [
        {
            "title": title,
            "length": length,
            "rates": {"ours": 300.0, "cuDNN": 0.0},
            "clock": "1 MHz, 2 W",
        }
        for title in ("D=64 full", "D=64 <causal>")
        for length in (1024, 2048, 4096)
    ]
    root = ElementTree.fromstring(picture(rows, "conditions"))
    dots = [(float(c.get("cx", "")), float(c.get("cy", ""))) for c in root.iter(f"{SVG}circle")]
    assert dots[:3] == [
        (LEFT + WIDTH * n / 2, TOP + HEIGHT * 0.25) for n in range(3)
    ]  # of 0 to 400
    assert dots[3:6] == [(LEFT + WIDTH * n / 2, TOP + HEIGHT) for n in range(3)]
    assert len(dots) == 12
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert {"D=64 full", "D=64 <causal>", "ours", "cuDNN", "1 MHz", "2 W", "conditions"} <= {*texts}
