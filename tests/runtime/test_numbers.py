import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lazygraph import readable
from lazygraph.readable import bytes_text, time_text, value_text
from lazyviz.render import text

# What an old report printed, and what had been measured, in nanoseconds.
PRINTED = [
    ("16m56s565ms618.863us", 955_564_618_863),
    ("02m32s168ms546.572us", 92_167_546_572),
    ("28s857ms591.389us", 27_856_591_389),
    ("03m10s751ms891.251us", 189_750_891_251),
    ("19s739ms186.742us", 18_739_186_742),
    ("39s930ms102.810us", 38_930_102_810),
    ("193.963us", 193_963),
    ("001ms035.784us", 1_035_784),
]


@pytest.mark.parametrize(("printed", "ns"), PRINTED)
def test_the_legacy_form_is_what_the_original_printed(printed, ns):
    assert time_text(ns, legacy=True) == printed


def test_the_exact_form_is_right_where_the_original_is_a_minute_off():
    assert time_text(955_564_618_863) == "15m55s564ms618.863us"
    assert time_text(92_167_546_572) == "01m32s167ms546.572us"
    assert time_text(86_400 * 10**9 + 1) == "01d00h00m00s000ms000.001us"
    assert time_text(0) == "000.000us"
    assert time_text(999.6) == "001.000us"


@given(st.integers(0, 10**18))
def test_the_exact_form_adds_up_to_the_duration(ns):
    scales = {"d": 86400e9, "h": 3600e9, "m": 60e9, "s": 1e9, "ms": 1e6, "us": 1e3}
    parts = re.findall(r"([\d.]+)(d|h|ms|m|s|us)", time_text(ns))

    assert sum(round(float(part) * scales[suffix]) for part, suffix in parts) == ns
    assert all(
        float(p) < (60 if s in ("m", "s") else 1000) for p, s in parts if s != "d"
    )


def test_bytes_and_values_have_two_decimals():
    assert [bytes_text(n) for n in (4, 32 * 1024, 280_463, 3 * 2**50)] == [
        "4.00B",
        "32.00KB",
        "273.89KB",
        "3.00PB",
    ]
    assert value_text(14_492) == "14492.00"


def test_the_runtime_and_the_views_write_numbers_in_one_way():
    """`%lazy why`, a strip and a table never write one compile's time in two ways."""
    assert text.duration is readable.duration_text
    assert text.size is readable.size_text
    assert text.plural is readable.plural


def test_a_unit_is_left_where_its_rounded_value_reaches_the_next():
    edges = (9.949, 9.95, 999.4, 999.6, 59_499, 59_500, 3_599_600)

    assert [readable.duration_text(1e6 * edge) for edge in edges] == [
        "9.9 ms", "10 ms", "999 ms", "1.0 s", "59 s", "1 min", "1 h",
    ]  # fmt: skip
    assert [readable.size_text(n) for n in (1023, 1024, 1_048_000, 1_048_570)] == [
        "1,023 bytes", "1.0 KiB", "1023 KiB", "1.0 MiB",
    ]  # fmt: skip
