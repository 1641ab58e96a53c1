"""Text on drawings and pages can be read: WCAG AA, 4.5 to 1, in light and in dark."""

import math
import re
from importlib import resources
from itertools import combinations

import pytest

from lazyviz.draw import palette
from lazyviz.render import html, timeline_svg
from tests.lazyviz.test_render_timeline import VIEW

PAPER = {"light": "#ffffff", "dark": "#111111"}
THEMES = {
    "light": palette.LIGHT | palette.SHADES_LIGHT | palette.CHANGES_LIGHT,
    "dark": palette.DARK | palette.SHADES_DARK | palette.CHANGES_DARK,
}


def channels(colour):
    digits = colour.removeprefix("#")
    if len(digits) == 3:
        digits = "".join(digit * 2 for digit in digits)
    return [int(digits[i : i + 2], 16) for i in (0, 2, 4)]


def blended(top, below, opacity):
    pairs = zip(channels(top), channels(below), strict=True)
    return [a * opacity + b * (1 - opacity) for a, b in pairs]


def luminance(rgb):
    parts = [
        c / 12.92 if (c := value / 255) <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4
        for value in rgb
    ]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


def contrast(ink, ground, opacity=1.0):
    light, dark = sorted(
        (luminance(blended(ink, ground, opacity)), luminance(channels(ground))),
        reverse=True,
    )
    return (light + 0.05) / (dark + 0.05)


def test_the_measure_is_that_of_the_standard():
    assert contrast("#000", "#fff") == pytest.approx(21)
    assert contrast("#767676", "#ffffff") == pytest.approx(4.54, abs=0.01)


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("kind", THEMES["light"])
def test_the_text_of_a_box_stands_out_from_it(theme, kind):
    fill, _, ink = THEMES[theme][kind]

    assert contrast(ink, fill) >= 4.5
    (detail,) = re.findall(
        r"\.d\{font-size:10px;opacity:([.\d]+)\}", html.static("drawing.css")
    )
    assert contrast(ink, fill, float(detail)) >= 4.5


def test_each_colour_that_a_drawing_names_is_defined():
    style = palette.stylesheet(inline=True)

    used = set(re.findall(r"var\(--(\w+)\)", style))
    assert used <= set(re.findall(r"--(\w+):#", style)) | {"f", "s", "t"}


@pytest.mark.parametrize("theme", PAPER)
def test_legends_and_the_frame_of_an_output_stand_out_from_the_page(theme):
    at = list(PAPER).index(theme)

    assert contrast(palette.QUIET[at], PAPER[theme]) >= 4.5
    for lines in (palette.ROOT, palette.SELECTED):  # no texts
        assert contrast(lines[at], PAPER[theme]) >= 3


def test_the_words_of_a_page_stand_out_in_every_theme():
    style = resources.files("lazyviz").joinpath("static/page.css").read_text("utf-8")
    themes = [
        dict(re.findall(r"--(\w+): (#[0-9a-f]{3,6});", block))
        for block in re.findall(r":root \{(.*?)\}", style, re.DOTALL)
    ]

    assert len(themes) == 3  # light, dark, paper
    for theme in themes:
        for ink in ("ink", "quiet", "accent"):
            for ground in ("paper", "code"):
                assert contrast(theme[ink], theme[ground]) >= 4.5, (ink, ground, theme)
        # html.muted() is three quarters opaque.
        assert contrast(theme["ink"], theme["paper"], 0.75) >= 4.5


def test_each_label_on_a_timeline_stands_out_from_its_bar():
    """Whatever lane and kind a bar is of."""
    colours = {
        **palette.PHASE_COLOURS,
        **timeline_svg._OTHERS,
        "other": timeline_svg._DEVICE_OTHER,
    }
    style = timeline_svg_style()
    (dark_ink,) = re.findall(r"\.lzt \.t\{fill:(#\w+)", style)
    (light_ink,) = re.findall(r"\.lzt \.i\{fill:(#\w+)", style)

    for kind, colour in colours.items():
        ink = light_ink if colour in timeline_svg.DARK else dark_ink
        assert contrast(ink, colour) >= 4.5, kind


# Machado, Oliveira and Fernandes (2009): what linear red, green and blue become.
SIGHTS = {
    "all three kinds of cones": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "without red": ((0.152, 1.053, -0.205), (0.115, 0.786, 0.099), (-0.004, -0.048, 1.052)),
    "without green": ((0.367, 0.861, -0.228), (0.280, 0.673, 0.047), (-0.012, 0.043, 0.969)),
    "without blue": ((1.256, -0.077, -0.179), (-0.078, 0.931, 0.148), (0.005, 0.691, 0.304)),
}  # fmt: skip
XYZ = ((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505))


def seen(colour, sight):
    """Return a colour in CIE L*a*b*, as somebody with such a sight sees it."""
    linear = [
        c / 12.92 if (c := value / 255) <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4
        for value in channels(colour)
    ]
    rgb = [min(max(dot(row, linear), 0), 1) for row in SIGHTS[sight]]
    f = [
        share ** (1 / 3) if share > 0.008856 else 7.787 * share + 16 / 116
        for row, white in zip(XYZ, (0.9505, 1, 1.089), strict=True)
        for share in [dot(row, rgb) / white]
    ]
    return 116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])


def dot(row, column):
    return sum(a * b for a, b in zip(row, column, strict=True))


@pytest.mark.parametrize("sight", SIGHTS)
def test_phases_and_marks_of_a_diff_differ_whatever_cones_a_reader_has(sight):
    """A difference of 2 can just be seen; 10 at a glance."""
    marks = {fill for fill, *_ in palette.CHANGES_LIGHT.values()}
    for colours in (set(palette.PHASE_COLOURS.values()), marks):
        assert len(colours) >= 4
        for one, other in combinations(sorted(colours), 2):
            apart = math.dist(seen(one, sight), seen(other, sight))
            assert apart >= 10, (one, other)


@pytest.mark.parametrize("theme", PAPER)
def test_axes_and_marks_of_a_timeline_stand_out_from_the_page(theme):
    inks = re.findall(r"--(q|m\d):(#\w+)", timeline_svg_style())
    half = len(inks) // 2  # light, then dark

    for name, ink in inks[:half] if theme == "light" else inks[half:]:
        assert contrast(ink, PAPER[theme]) >= (4.5 if name == "q" else 3), name


def timeline_svg_style():
    return (
        timeline_svg.timeline_svg(VIEW).partition("<style>")[2].partition("</style>")[0]
    )
