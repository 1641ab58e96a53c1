"""Text on drawings and pages can be read: WCAG AA, 4.5 to 1, in light and in dark."""

import re
from importlib import resources

import pytest

from lazyviz.render import phases, svg, timeline, timeline_legend
from tests.lazyviz.test_render_timeline import VIEW

PAPER = {"light": "#ffffff", "dark": "#111111"}
THEMES = {
    "light": {**svg._LIGHT, **svg._SHADES_LIGHT},
    "dark": {**svg._DARK, **svg._SHADES_DARK},
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
    (detail,) = re.findall(r"\.d\{font-size:10px;opacity:([.\d]+)\}", svg._RULES)
    assert contrast(ink, fill, float(detail)) >= 4.5


def test_each_colour_that_a_drawing_names_is_defined():
    style = svg.stylesheet(inline=True)

    used = set(re.findall(r"var\(--(\w+)\)", style))
    assert used <= set(re.findall(r"--(\w+):#", style)) | {"f", "s", "t"}


@pytest.mark.parametrize("theme", PAPER)
def test_legends_and_the_frame_of_an_output_stand_out_from_the_page(theme):
    at = list(PAPER).index(theme)

    assert contrast(svg._QUIET[at], PAPER[theme]) >= 4.5
    for lines in (svg._ROOT, svg._SELECTED):  # no texts
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
    """SD.05: whatever lane and kind a bar is of."""
    colours = {
        **phases.COLOURS,
        **timeline_legend._OTHERS,
        "other": timeline_legend._DEVICE_OTHER,
    }
    style = timeline_svg_style()
    (dark_ink,) = re.findall(r"\.lzt \.t\{fill:(#\w+)", style)
    (light_ink,) = re.findall(r"\.lzt \.i\{fill:(#\w+)", style)

    for kind, colour in colours.items():
        ink = light_ink if colour in timeline_legend.DARK else dark_ink
        assert contrast(ink, colour) >= 4.5, kind


@pytest.mark.parametrize("theme", PAPER)
def test_axes_and_marks_of_a_timeline_stand_out_from_the_page(theme):
    inks = re.findall(r"--(q|m\d):(#\w+)", timeline_svg_style())
    half = len(inks) // 2  # light, then dark

    for name, ink in inks[:half] if theme == "light" else inks[half:]:
        assert contrast(ink, PAPER[theme]) >= (4.5 if name == "q" else 3), name


def timeline_svg_style():
    return timeline.timeline_svg(VIEW).partition("<style>")[2].partition("</style>")[0]
