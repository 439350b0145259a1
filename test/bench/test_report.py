"""The page of measured tables: parts are replaced whole, the rest of the page stays."""

from __future__ import annotations

from typing import Any

import pytest

from attn_mlir.bench import report

PAGE = "# Title\n<!-- sass: begin -->\nold\n<!-- sass: end -->\nafter <!-- compile: begin -->\n<!-- compile: end -->\n"


def test_a_part_is_replaced_and_the_rest_stays():
    page = report.replace_part(PAGE, "sass", "| new \\1 |")
    assert page.startswith(
        "# Title\n<!-- sass: begin -->\n\n| new \\1 |\n\n<!-- sass: end -->\nafter"
    )
    assert "old" not in page
    assert report.replace_part(page, "sass", "x") == report.replace_part(PAGE, "sass", "x")


def test_a_page_without_the_part_is_an_error():
    with pytest.raises(SystemExit, match="emulator"):
        report.replace_part(PAGE, "emulator", "x")


def test_the_page_has_every_part():
    page = report.PAGE.read_text()
    for name in report.PARTS:
        assert report.replace_part(page, name, "x") != page


def test_compile_tables_show_the_ratio_to_our_cold_compile():
    spread: dict[str, Any] = {"median": 0.5, "q20": 0.4, "q80": 0.6, "count": 3}
    text = report.compile_part(
        {
            "problem": "D=128",
            "seconds": {"cold": spread, "FA4 cold": {**spread, "median": 5.0}},
            "user_seconds": {"cold": {**spread, "median": 0.45}},
            "peer_stages": {"import": {**spread, "median": 2.0}},
            "stages": {"ptxas": {**spread, "median": 0.25}},
            "stage_bytes": {"ptxas": 123},
        }
    )
    assert "| cold | 500.0 (400.0 .. 600.0) | 450.0 (400.0 .. 600.0) | 1.00 | 3 |" in text
    assert "| FA4 cold | 5000.0 (400.0 .. 600.0) |  | 10.00 | 3 |" in text
    assert "| FA4 import only | 2000.0 (400.0 .. 600.0) |  | 4.00 |" in text
    assert "| ptxas | 250.0 (400.0 .. 600.0) | 123 |" in text
