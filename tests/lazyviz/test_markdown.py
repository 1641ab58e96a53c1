import pytest

from lazyviz.documents import markdown


def test_headings_paragraphs_and_emphasis():
    text = (
        "# A *first* look\n\nRuns `x + y` and **no** more,\nas [told](https://a.b/c).\n"
    )

    assert markdown.to_html(text) == (
        "<h1>A <em>first</em> look</h1>\n"
        "<p>Runs <code>x + y</code> and <strong>no</strong> more, as "
        '<a href="https://a.b/c">told</a>.</p>'
    )


def test_lists_keep_continued_lines():
    text = "- one\n  more\n- two\n\n1. first\n2. second\n"

    assert markdown.to_html(text) == (
        "<ul><li>one more</li><li>two</li></ul>\n<ol><li>first</li><li>second</li></ol>"
    )


def test_fenced_code_is_not_marked_up():
    text = "```python\n# not a heading\nx = '**'\n```\nafter"

    assert markdown.to_html(text) == (
        "<pre><code># not a heading\nx = &#x27;**&#x27;</code></pre>\n<p>after</p>"
    )
    assert markdown.last_heading(text) is None


def test_tables():
    text = "| a | b |\n|---|--:|\n| 1 | `2` |\n"

    assert markdown.to_html(text) == (
        "<table><thead><tr><th>a</th><th>b</th></tr></thead>"
        "<tbody><tr><td>1</td><td><code>2</code></td></tr></tbody></table>"
    )


def test_raw_html_and_script_links_are_text():
    text = "<script>alert(1)</script> [x](javascript:alert(1))"

    shown = markdown.to_html(text)

    assert "<script" not in shown
    assert "<a " not in shown


def test_names_with_underscores_stay_whole():
    assert markdown.inline("call mark_step and is_pending") == (
        "call mark_step and is_pending"
    )


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("[x](http://a/*b*/_c_)", '<a href="http://a/*b*/_c_">x</a>'),
        ("**[b](a__b__c)** __d__", '<strong><a href="a__b__c">b</a></strong> <strong>d</strong>'),
        ("[`a_b`](c.md#_d_) _e_", '<a href="c.md#_d_"><code>a_b</code></a> <em>e</em>'),
        ("*see `x * y`* and `*`", "<em>see <code>x * y</code></em> and <code>*</code>"),
        ("\ue0000\ue000 [`x`](`y`)", "\ufffd0\ufffd [<code>x</code>](<code>y</code>)"),
    ],
)  # fmt: skip
def test_emphasis_ends_at_links_and_code(text, shown):
    assert markdown.inline(text) == shown


def test_last_heading_is_the_last_without_marks():
    assert (
        markdown.last_heading("# One\ntext\n## The `two` *of* us\n") == "The two of us"
    )
    assert markdown.last_heading("no heading") is None
