"""Medians and quantiles."""

from __future__ import annotations

import pytest

from attn_mlir.bench.measuring import stats


def test_quantiles_interpolate():
    spread = stats.Spread.of([5.0, 1.0, 2.0, 3.0, 4.0, 6.0])
    assert (spread.low, spread.median, spread.high, spread.count) == (2.0, 3.5, 5.0, 6)


def test_one_value_is_its_own_spread():
    assert stats.Spread.of([2.0]) == stats.Spread(2.0, 2.0, 2.0, 1)


def test_nothing_measured_is_an_error():
    with pytest.raises(ValueError, match="at least one"):
        stats.Spread.of([])


def test_text_scales_every_number():
    assert stats.Spread(0.5, 0.25, 1.0, 3).text("ms", 0, 1e3) == "500 ms (250 .. 1000)"


def test_milliseconds_keep_digits_of_short_times():
    assert stats.Spread(0.5, 0.25, 1.0, 3).milliseconds() == "500.0 (250.0 .. 1000.0)"
    assert stats.Spread(5e-5, 4e-5, 6e-5, 3).milliseconds() == "0.050 (0.040 .. 0.060)"


def test_a_record_leads_back():
    spread = stats.Spread(0.5, 0.25, 1.0, 3)
    assert stats.Spread.recorded(spread.record()) == spread
