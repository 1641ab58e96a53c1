"""A tensor's value as HTML."""

import base64
import math
import re
import struct
import zlib

import numpy as np
import pytest
import torch

from lazyviz.formatters import statistics
from lazyviz.render.values import (
    as_python,
    histogram_svg,
    picture_html,
    value_view,
)


def pixels(html):
    found = re.search(r"base64,([^\"]+)", html)
    assert found
    data = base64.b64decode(found[1])
    width, height = struct.unpack(">II", data[16:24])
    length = struct.unpack(">I", data[33:37])[0]
    raw = np.frombuffer(zlib.decompress(data[41 : 41 + length]), np.uint8)
    return raw.reshape(height, 1 + 3 * width)[:, 1:].reshape(height, width, 3)


def test_a_histogram_has_its_range_and_a_label():
    svg = histogram_svg(np.array([0.0, 1.0, 1.0, 4.0]))

    assert 'aria-label="histogram from 0 to 4, 2 at most in a bar"' in svg
    assert svg.count("v-") == 3


@pytest.mark.parametrize("numbers", [[], [1.0], [2.0, 2.0], [math.nan, math.inf]])
def test_what_has_no_distribution_has_no_histogram(numbers):
    assert histogram_svg(np.array(numbers)) == ""


def test_negative_is_blue_zero_white_positive_orange():
    picture = pixels(picture_html(np.array([[-1.0, 0.0], [0.5, 1.0]])))

    assert picture[0, 0].tolist() == [0, 90, 181]
    assert picture[0, 1].tolist() == [247, 247, 247]
    assert picture[1, 1].tolist() == [220, 90, 0]


def test_what_is_not_finite_stands_out():
    picture = pixels(picture_html(np.array([[math.nan, 0.0], [1.0, math.inf]])))

    assert picture[0, 0].tolist() == picture[1, 1].tolist() == [204, 0, 153]


def test_three_channels_are_an_image():
    channels = np.zeros((3, 8, 9))
    channels[0, 0, 0] = 1

    picture = pixels(picture_html(channels))

    assert picture.shape == (8, 9, 3)
    assert picture[0, 0].tolist() == [255, 0, 0]


def test_large_planes_are_averaged():
    plane = np.zeros((960, 10))
    plane[:10] = 1.0

    picture = pixels(picture_html(plane))

    assert picture.shape == (96, 10, 3)
    assert picture[0, 0].tolist() == [220, 90, 0]
    assert picture[1, 0].tolist() == [0, 90, 181]


@pytest.mark.parametrize("shape", [(), (5,), (1, 5), (0, 4, 4), (4, 0)])
def test_what_is_no_plane_has_no_picture(shape):
    assert picture_html(np.zeros(shape)) == ""


@pytest.mark.parametrize(
    "value",
    [
        torch.tensor(3.0),
        torch.tensor([1, -2]),
        torch.tensor([[True, False]]),
        torch.tensor([math.nan, math.inf, -math.inf]),
        torch.tensor([1 + 2j]),
        torch.zeros(0, 3),
        torch.tensor([1.5], dtype=torch.bfloat16),
    ],
)
def test_the_python_expression_makes_the_same_tensor(value):
    made = eval(as_python(value), {"torch": torch})  # noqa: S307 - our own text

    torch.testing.assert_close(made, value, equal_nan=True, rtol=0, atol=0)


@pytest.mark.parametrize(
    "value",
    [torch.randn(3, 4), torch.ones(2, 2, dtype=torch.complex64), torch.zeros(0)],
)
def test_every_view_has_statistics_and_values(value):
    html = value_view(value, statistics(value))

    assert "<summary>values</summary>" in html
    assert "lzf" in html


def test_long_listings_are_cut():
    html = value_view(torch.full((40, 40), 1.2345e-7).mul_(torch.rand(40, 40)), "")

    assert len(html) < 10_000
    assert "as Python" not in html


def test_facts_are_escaped():
    assert "<b>" not in value_view(torch.zeros(2), "<b>x</b>")
