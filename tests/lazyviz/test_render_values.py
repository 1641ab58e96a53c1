"""A tensor's value as HTML."""

import base64
import math
import re
import struct
import zlib

import numpy as np
import pytest
import torch

import lazyrt
from lazyviz.render.values import (
    as_python,
    bars_svg,
    drawn_picture,
    look_view,
    marked,
    picture_axes,
)
from lazyviz.shell.displayed import facts


def pixels(html):
    found = re.search(r"base64,([^\"]+)", html)
    assert found
    data = base64.b64decode(found[1])
    width, height = struct.unpack(">II", data[16:24])
    length = struct.unpack(">I", data[33:37])[0]
    raw = np.frombuffer(zlib.decompress(data[41 : 41 + length]), np.uint8)
    return raw.reshape(height, 1 + 3 * width)[:, 1:].reshape(height, width, 3)


def test_a_histogram_has_its_range_and_a_label():
    svg = bars_svg([1, 0, 2, 1], 0.0, 4.0)

    assert 'aria-label="histogram from 0 to 4, 2 at most in a bar"' in svg
    assert svg.count("v-") == 3


def test_negative_is_blue_zero_white_positive_orange():
    picture = pixels(drawn_picture(np.array([[-1.0, 0.0], [0.5, 1.0]]), (2, 2)))

    assert picture[0, 0].tolist() == [0, 90, 181]
    assert picture[0, 1].tolist() == [247, 247, 247]
    assert picture[1, 1].tolist() == [220, 90, 0]


def test_a_heat_map_has_its_scale_and_its_numbers():
    plane = np.array([[-1.0, 0.0], [0.5, math.inf]])

    shown = drawn_picture(plane, plane.shape)

    scale = pixels(shown.partition("<img")[2].partition("<img")[2])
    assert re.findall(r">(-?[\d.]+) <img|> (-?[\d.]+), not", shown) == [
        ("-1", ""),
        ("", "1"),
    ]
    assert scale[0, 0].tolist() == [0, 90, 181]
    assert scale[0, -1].tolist() == [220, 90, 0]
    numbers = re.search('data-numbers="([^"]+)" data-columns="2" data-exact="1"', shown)
    assert numbers is not None
    found = np.frombuffer(base64.b64decode(numbers[1]), "<f4").reshape(2, 2)
    np.testing.assert_array_equal(found, plane)


def test_one_channel_is_a_heat_map_with_its_scale():
    shown = drawn_picture(np.array([[[-1.0, 0.0], [0.5, 1.0]]]), (2, 2))

    assert "heat map of 2 rows and 2 columns" in shown
    assert "from -1 to 1" in shown
    assert "data-numbers" in shown


def test_what_is_not_finite_stands_out():
    plane = np.array([[math.nan, 0.0], [1.0, math.inf]])

    picture = pixels(drawn_picture(plane, plane.shape))

    assert picture[0, 0].tolist() == picture[1, 1].tolist() == [204, 0, 153]


def test_three_channels_are_an_image():
    channels = np.zeros((3, 8, 9))
    channels[0, 0, 0] = 1

    picture = pixels(drawn_picture(channels, (8, 9)))

    assert picture.shape == (8, 9, 3)
    assert picture[0, 0].tolist() == [255, 0, 0]


@pytest.mark.parametrize("shape", [(), (5,), (1, 5), (0, 4, 4), (4, 0)])
def test_what_is_no_plane_has_no_picture(shape):
    assert picture_axes(shape) == ()


@pytest.mark.parametrize(
    "value",
    [
        torch.tensor(3.0),
        torch.tensor([1, -2]),
        torch.tensor([[True, False]]),
        torch.tensor([math.nan, math.inf, -math.inf]),
        torch.tensor([1 + 2j]),
        torch.tensor([complex(0, math.inf), complex(math.nan, -math.inf)]),
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
    look = lazyrt.look(value.to("lazyrt"), picture_axes(value.shape))

    html = look_view(look, facts(look))

    assert ">values</summary>" in html
    assert "lzf" in html
    # A histogram and a heat map beside each other, of what has them.
    assert html.count('<div class="lzw"><svg ') == (value.numel() == 12)
    assert html.count('alt="heat map') == (value.dim() == 2)


def test_long_listings_are_cut():
    look = lazyrt.look(torch.rand(40, 40).mul_(1.2345e-7).to("lazyrt"))

    html = look_view(look, "")

    assert len(html) < 10_000
    assert "as Python" not in html


def test_facts_are_escaped():
    assert marked("<b>x</b> · 1 NaN") == (
        '&lt;b&gt;x&lt;/b&gt; · <b class="lzn">⚠ 1 NaN</b>'
    )
