"""`%lazy report`: one file about the session, bounded, offline, and safe to look at."""

import base64
import hashlib
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

import lazyrt
import lazyviz
from lazyviz.documents import redaction, session_report
from lazyviz.documents.session_report import MAX_BYTES, ReportError
from lazyviz.render.html import timeline_script
from tests.conftest import displayed

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>"
VOID = {"meta", "img", "br", "link", "hr", "input", "col"}


class Outline(HTMLParser):
    """Tags, attributes and text of a page; raises where tags do not nest."""

    def __init__(self, page):
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(page)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data

    def values(self, name):
        return [value for _, attribute, value in self.attributes if attribute == name]


@pytest.fixture
def used(lab, tmp_path, monkeypatch):
    """Yield a shell with a session in which most kinds of trouble have happened."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("LAZYRT_NOTE", f"{tmp_path}/cache")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI")
    for cell in (
        "w = torch.ones(3, 2, device='lazyrt')\nhf_token = 'hf_abcdefghijklmnopqrstu'",
        "for n in (4, 4, 6):\n    loss = (torch.ones(n, 3).to('lazyrt') @ w).sum().item()",
        "u = torch.unique(w) * 2  # " + HOSTILE,
        "raise ValueError('no')",
        "v = w * 7\nraise KeyError('late')",
    ):
        lab.run_cell(cell, store_history=True)
    lab.display_pub.outputs.clear()
    return lab


PAGES: dict[str, str] = {}


@pytest.fixture
def pages(request):
    """Return what one session's magics wrote and printed, made once for all tests."""
    if not PAGES:
        used = request.getfixturevalue("used")
        PAGES["whole"] = report(used)
        PAGES["printed"] = displayed(used)[0]
        PAGES["bare"] = report(used, "bare.html --no-source")
        PAGES["home"] = str(Path.cwd())
    return PAGES


def report(shell, line="session.html"):
    """Return the page that the magic writes."""
    result = shell.run_cell(f"%lazy report {line}", store_history=True)
    assert result.success
    path = next(word for word in line.split() if word.endswith(".html"))
    return Path(path).read_text("utf-8")


def test_a_report_has_every_part_of_the_session(pages):
    outline = Outline(pages["whole"])

    assert re.fullmatch(
        r"Wrote session\.html: 9 cells with source, \d steps, \d+ compiled graphs, no "
        r"tensor's value\. Read it before you pass it on\.",
        pages["printed"],
    )
    for wanted in (
        "loss = (torch.ones(n, 3).to('lazyrt') @ w).sum().item()",  # source
        "executed 3 in",  # the strip of that cell
        "read by .item()",  # what ended the steps
        " is f32[6,3], was f32[4,3]",  # why a graph was compiled anew
        "aten.mm.default",  # the census's ops
        " → graph.",  # what differs
        "aten._unique2.default",  # the fallback
        "cell 9 stopped by KeyError: 'late'",  # in what stands out
        "cell 9 line 2",  # the line that raised it
        "TransferFromDeviceTime",  # metrics
        "max_pending_nodes",  # settings
        "step graph ",  # executables
        "f32[3,2]",  # live tensors
        "cells as tables",  # the timeline
    ):
        assert re.sub(r"\d", "0", wanted) in re.sub(r"\d", "0", outline.text), wanted
    titles = [part.title for part in session_report.report_sections()]
    assert [
        title for title in titles if f"<h2>{title}</h2>" not in pages["whole"]
    ] == []


def test_the_contents_and_all_links_lead_somewhere_on_the_page(pages):
    outline = Outline(pages["whole"])
    ids = outline.values("id")

    assert len(ids) == len(set(ids))
    targets = [link.removeprefix("#") for link in outline.values("href")]
    assert {part.anchor for part in session_report.report_sections()} <= set(targets)
    assert set(targets) <= set(ids)


def test_a_report_holds_no_script_but_ours_and_no_address(pages):
    outline = Outline(pages["whole"])

    (script,) = re.findall(r"<script>(.*?)</script>", pages["whole"], re.DOTALL)
    assert pages["whole"].lower().count("<script") == 1
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    (policy,) = [c for c in outline.values("content") if "default-src" in c]
    assert policy.endswith(f"; script-src 'sha256-{digest}'")
    assert script == timeline_script()
    assert not [name for _, name, _ in outline.attributes if name.startswith("on")]
    assert not [s for s in outline.values("src") if not s.startswith("data:image/")]
    assert not [h for h in outline.values("href") if not h.startswith("#")]
    assert policy.startswith("default-src 'none'; img-src data:;")
    assert HOSTILE in outline.text


def test_secrets_and_the_home_directory_are_not_told(pages):
    page = pages["whole"]

    assert pages["home"] not in page
    assert "~/cache" in page
    assert "wJalrXUtnFEMI" not in page
    assert "hf_abcdefghijklmnopqrstu" not in page
    assert "hf_token = &#x27;•••&#x27;" in page


def test_without_source_no_line_of_a_cell_is_told(pages):
    assert "torch.ones" not in pages["bare"]
    assert "hf_token" not in pages["bare"]
    assert "executed 3 in" in pages["bare"]


def test_without_source_what_was_looked_at_and_read_is_told_by_name_alone(
    lab, tmp_path
):
    cells = (
        "def hush(t):\n    return t * 3",
        "print(hush(x).sum())\nprint(f'{hush(x).mean():.2f}')\nhush(x)",
        "lazyrt.materialise(hush(x))",
        "hush(x).sum().item()",
        "for _ in range(5):\n    hush(x).sum().item()",
        "with lazyrt.step(on_read='allow'):\n    hush(x).sum().item()",
    )
    for cell in cells:
        assert lab.run_cell(cell, store_history=True).success

    page = lazyviz.report(tmp_path / "r.html", source=False).path.read_text("utf-8")

    assert "hush" not in page
    assert "hush" not in " ".join(map(decoded, Outline(page).values("src")))


def test_an_exception_is_told_with_the_users_lines_and_without_source_by_its_class(
    lab, tmp_path, monkeypatch
):
    """What a bug report needs of a failed cell; the message may quote a value."""
    monkeypatch.chdir(tmp_path)
    lab.run_cell(
        "def fails(t):\n    return t.reshape(7)\n"
        "def outer(t):\n    return fails(t * 2)\nouter(x)",
        store_history=True,
    )
    lab.run_cell(
        "losses = []\nfor _ in range(4):\n    losses.append(x.sum())\n    lazyrt.mark_step()\n"
        "raise ValueError('password=hunter2')",
        store_history=True,
    )

    whole, bare = report(lab), report(lab, "bare.html --no-source")

    lines = Outline(whole).text
    assert re.search(
        r"cell \d line 5\s+cell \d line 4, in outer\(\)\s+cell \d line 2, in fails\(\)\s+"
        r"RuntimeError: shape '\[7\]' is invalid for input of size 6",
        lines,
    )
    assert "stopped by RuntimeError: shape '[7]' is invalid" in lines
    findings = whole[whole.index('id="findings"') : whole.index('id="environment"')]
    assert "+1 live tensor per step, held by list losses" in findings
    assert "hunter2" not in whole
    assert "is invalid for input" not in bare
    assert "stopped by RuntimeError" in bare


def test_without_source_no_explanation_quotes_it(lab, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lab.run_cell(
        "for size in (4, 5):\n    torch.ones(size, device='lazyrt').sum().item()",
        store_history=True,
    )
    said = Outline(report(lab)).text

    bare = Outline(report(lab, "bare.html --no-source")).text

    explanation = lazyrt.explain()
    assert explanation is not None
    assert "torch.ones(size, device='lazyrt')" in explanation.quotes
    assert said.count("torch.ones(size") > 2
    assert "torch.ones" not in bare
    assert re.search(
        r"shape changed: … at cell \d line 2 is f32\[5\], was f32\[4\]", bare
    )


def test_secrets_in_what_was_looked_at_or_read_are_masked_too(lab, tmp_path):
    token = "hf_abcdefghijklmnopqrstu"  # noqa: S105 - made up
    cells = (
        "def pick(t, key='', password=''):\n    return t * 3",
        f"print(pick(x, key='{token}').sum())",
        f"print(pick(x, '{token}').sum(), pick(x, password='sesame-7').sum())",
        f"for _ in range(5):\n    pick(x, key='{token}').sum().item()",
        f"with lazyrt.step(on_read='allow'):\n    pick(x, '{token}').sum().item()",
    )
    for cell in cells:
        assert lab.run_cell(cell, store_history=True).success

    page = lazyviz.report(tmp_path / "r.html").path.read_text("utf-8")

    shown = page + " ".join(map(decoded, Outline(page).values("src")))
    assert token not in shown
    assert "sesame-7" not in shown
    assert "look at pick(x, key=&#x27;•••&#x27;).sum()" in page


def decoded(picture):
    return base64.b64decode(picture.partition("base64,")[2]).decode("utf-8", "replace")


def test_a_file_of_somebody_else_is_never_replaced_unasked(lab, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    theirs = tmp_path / "theirs.html"
    theirs.write_text("<p>mine</p>")

    lab.run_cell("%lazy report theirs.html", store_history=True)
    assert theirs.read_text() == "<p>mine</p>"
    with pytest.raises(ReportError, match=r"no report of lazyviz.*force=True"):
        lazyviz.report(theirs)

    report(lab, "theirs.html --force")
    assert "Report of a lazyviz session" in theirs.read_text()
    report(lab, "theirs.html")  # our own


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("model.py", "does not end in .html"),
        ("folder.html", "cannot be written: Is a directory"),
        ("no/such/report.html", "cannot be written: No such file or directory"),
        ("a" * 300 + ".html", "cannot be written: File name too long"),
        ("~no-such-user/r.html", "cannot be written: Could not determine home"),
        ("a\0.html", "cannot be written: embedded null byte"),
    ],
)
def test_a_file_that_cannot_be_is_refused(tmp_path, monkeypatch, name, says):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.html").mkdir()
    (tmp_path / "model.py").write_text("import torch")

    with pytest.raises(ReportError, match=says):
        lazyviz.report(name)

    assert (tmp_path / "model.py").read_text() == "import torch"


@pytest.mark.parametrize("line", ["", "a.html b.html", "a.html --all", "'a.html"])
def test_a_line_that_names_no_single_file_says_what_it_takes(lab, line, capsys):
    lab.run_cell(f"%lazy report {line}", store_history=True)

    assert "UsageError: %lazy report" in capsys.readouterr().err


def test_a_report_computes_nothing_and_leaves_the_step_alone(
    lab, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    lab.run_cell("y = torch.relu(x) + 1", store_history=True)
    import lazyrt

    before = dict(lazyrt.counters()), lazyrt.pending_graph().fingerprint
    report(lab)

    assert (dict(lazyrt.counters()), lazyrt.pending_graph().fingerprint) == before


def test_a_report_is_bounded_however_long_the_session(lab, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source = "x = 1  # " + "&" * 200_000
    raw = lab.history_manager.input_hist_raw
    raw[:] = ["", *[f"{source}{n}" for n in range(1, 600)]]

    page = report(lab)

    assert len(page.encode()) < MAX_BYTES
    assert "more characters" in page
    assert "earlier cells left out" in page
    assert sum(part.nbytes for part in session_report.report_sections()) < MAX_BYTES


def test_cells_without_a_history_are_all_told(lab, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for line in ("y = x * 2", "y = x * 3; lazyrt.mark_step()"):
        lab.run_cell(line, store_history=False)
    lab.display_pub.outputs.clear()

    page = report(lab)

    assert page.count("executed 1 in") == 2  # one is the setup's
    assert page.count("1 pending op (+1 here)") >= 1
    ids = Outline(page).values("id")
    assert len(ids) == len(set(ids))


def test_a_part_that_fails_leaves_the_others(lab, tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)

    def broken(*_args, **_options):
        raise RuntimeError(HOSTILE)

    monkeypatch.setattr(lazyrt, "live_tensors_report", broken)

    outline = Outline(report(lab))

    assert f"This part failed: RuntimeError: {HOSTILE}" in outline.text
    assert "max_pending_nodes" in outline.text
    assert "part of the report failed" in caplog.text


def test_outside_a_session_the_runtime_alone_is_told(clean_runtime, tmp_path):
    written = lazyviz.report(tmp_path / "plain.html")

    assert written.summary.startswith("0 cells")
    assert written.nbytes == written.path.stat().st_size
    assert session_report.GENERATOR in written.path.read_text()


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        ('api_key="k1234567"', 'api_key="•••"'),
        ("os.environ['HF_TOKEN'] = 'abc'", "os.environ['HF_TOKEN'] = '•••'"),
        ('{"password": "p w"}', '{"password": "•••"}'),
        ("!curl https://me:pw@host/x", "!curl https://•••@host/x"),
        ("x = 'ghp_abcdefghijklmnopqrst1234'", "x = '•••'"),
        ("token: str = b'a b'", "token: str = b'•••'"),
        ('password = """two\nlines"""', 'password = """•••"""'),
        ("password = 'it\\'s me'", "password = '•••'"),
        ("password = 'cut of", "password = '•••'"),
        (
            "environ.setdefault('API_KEY', 'abc')",
            "environ.setdefault('API_KEY', '•••')",
        ),
        ("tokens = ids[0]; token = tokens", "tokens = ids[0]; token = tokens"),
        ("tokenizer = AutoTokenizer()", "tokenizer = AutoTokenizer()"),
        ("vocab_size=max_tokens", "vocab_size=max_tokens"),
    ],
)
def test_what_looks_like_a_secret_is_masked(source, shown):
    assert redaction.masked(source) == shown


def test_a_picture_that_is_none_stays_as_it_is():
    page = "<pre>data:image/svg+xml;base64,abc data:image/svg+xml;base64,////</pre>"

    assert redaction.shortened(page) == page


def test_a_home_that_is_part_of_another_name_stays(tmp_path):
    home = tmp_path / "ann"
    page = f"{home}/x {home}e/y {home} <{home}> other{home}"

    short = redaction.shortened(page, home)

    assert short == f"~/x {home}e/y ~ <~> other{home}"


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_browser_shows_the_page_offline_and_prints_all_of_it(
    used, browser_path, tmp_path, scheme
):
    sync_api = pytest.importorskip("playwright.sync_api")
    report(used)
    asked = []
    with sync_api.sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=browser_path,
            args=["--headless", "--no-sandbox", "--disable-gpu"],
        )
        page = browser.new_page(color_scheme=scheme, offline=True)
        page.on("request", lambda request: asked.append(request.url))
        page.on("dialog", lambda dialog: asked.append(dialog.message))
        page.goto((tmp_path / "session.html").as_uri())
        page.get_by_role("link", name="Compiled graphs").click()
        inside = page.locator("#graphs details pre").first
        folded = inside.is_visible()
        page.emulate_media(media="print")
        printed = inside.is_visible()
        broken = page.evaluate(
            "() => [...document.images].filter(i => !i.naturalWidth).length"
        )
        paper = page.evaluate("() => getComputedStyle(document.body).backgroundColor")
        browser.close()

    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
    assert (folded, printed, broken) == (False, True, 0)
    assert paper == "rgb(255, 255, 255)"
