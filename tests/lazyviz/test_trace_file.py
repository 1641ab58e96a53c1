"""The session as a trace that Perfetto opens, and its summary."""

import dataclasses
import gzip
import json
import subprocess
import sys

import pytest

from lazyviz.render.timeline_text import CellTime, Span
from lazyviz.timing import trace_file
from lazyviz.timing.trace_file import TraceError
from tests.harness import ROOT
from tests.lazyviz.test_render_timeline import CELL, HOSTILE, SPANS, span

FLOWS = (
    Span("host", "handover", "dispatch 4 ops", 55_000_000, 56_000_000, 3, flow=7),
    Span("device", "step", "step 2, 4 ops", 100_000_000, 120_000_000, 3, flow=7),
    Span("host", "handover", "lost", 57_000_000, 58_000_000, 3, flow=8),
)


def check_schema(document):
    """Assert what Perfetto's importer of trace-event JSON asks for."""
    names: dict[int, dict[str, str]] = {}
    arrows: dict[int, list[str]] = {}
    slices = [e for e in document["traceEvents"] if e["ph"] == "X"]
    last = 0.0
    stacks: dict[int, list[float]] = {}
    for event in document["traceEvents"]:
        assert isinstance(event["name"], str)
        assert event["pid"] == 1
        assert isinstance(event["tid"], int)
        assert event["ph"] in {"X", "i", "s", "f", "M"}
        if event["ph"] == "M":
            ((name, value),) = event["args"].items()
            told = {"process_name": "name", "thread_name": "name"}
            assert name == told.get(event["name"], "sort_index")
            assert isinstance(value, str if name == "name" else int)
            if event["tid"]:
                names.setdefault(event["tid"], event["args"])
            continue
        assert event["ts"] >= last
        last = event["ts"]
        assert event["tid"] in names
        if event["ph"] == "X":
            assert event["dur"] > 0
            stack = stacks.setdefault(event["tid"], [])
            while stack and stack[-1] <= event["ts"] + 1e-6:
                stack.pop()
            # Slices of one track nest, or Perfetto drops them.
            assert not stack or event["ts"] + event["dur"] <= stack[-1] + 1e-6
            stack.append(event["ts"] + event["dur"])
        if event["ph"] == "i":
            assert event["s"] == "t"
        if event["ph"] in {"s", "f"}:
            arrows.setdefault(event["id"], []).append(event["ph"])
            assert (event.get("bp") == "e") == (event["ph"] == "f")
            # An end of an arrow hangs on the slice around it, or Perfetto drops the arrow.
            assert any(
                each["tid"] == event["tid"]
                and each["ts"] <= event["ts"] <= each["ts"] + each["dur"]
                for each in slices
            )
    assert all(phases == ["s", "f"] for phases in arrows.values())


def test_a_trace_fulfils_the_format():
    document = trace_file.document([CELL], [*SPANS, *FLOWS])

    check_schema(json.loads(json.dumps(document)))
    tracks = [
        e["args"]["name"] for e in document["traceEvents"] if e["name"] == "thread_name"
    ]
    assert "device" in tracks
    assert "host: phases of the cell's thread" in tracks


def test_an_arrow_leads_from_the_dispatch_to_its_execution():
    events = trace_file.document([CELL], FLOWS)["traceEvents"]

    arrows = [event for event in events if event["ph"] in {"s", "f"}]
    assert [(a["ph"], a["id"], a["ts"]) for a in arrows] == [
        ("s", 7, 55_000.0),
        ("f", 7, 100_000.0),
    ]
    assert arrows[1]["bp"] == "e"
    assert arrows[0]["tid"] != arrows[1]["tid"]


def test_what_overlaps_gets_a_track_of_its_own():
    spans = [span("compile", "compile", 0, 50), span("compile", "compile", 20, 70)]

    document = trace_file.document([], spans)

    check_schema(document)
    tracks = {e["tid"] for e in document["traceEvents"] if e["ph"] == "X"}
    assert len(tracks) == 2


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_a_trace_is_written_read_and_summed_up(tmp_path, name):
    lines = [("cell 3 line 6", "optimizer.step()", 0.61)]
    path = trace_file.write(tmp_path / name, [CELL], SPANS, lines=lines)
    trace_file.write(path, [CELL], SPANS, lines=lines)  # one of ours may be overwritten

    shown = trace_file.report(trace_file.load(path))

    assert "   3  100 ms  20 ms   30 ms  50 ms    40 ms" in shown
    assert "device idle 60 % of 100 ms" in shown
    assert "cell 3 line 6  61 %   optimizer.step()" in shown
    assert "1  implicit barrier  optimizer.step()" in shown
    assert "50 ms  compile 214 ops  a new shape" in shown
    assert "1 compile, 50 ms in all" in shown


def test_a_session_is_told_from_its_own_start_whenever_that_was():
    late = 7_000_000_123
    cell = dataclasses.replace(CELL, start_ns=late, end_ns=late + CELL.end_ns)
    spans = [
        each._replace(start_ns=late + each.start_ns, end_ns=late + each.end_ns)
        for each in SPANS
    ]

    told = trace_file.report(trace_file.document([cell], spans))

    assert told == trace_file.report(trace_file.document([CELL], SPANS))


def test_hostile_names_survive_as_text(tmp_path):
    path = trace_file.write(
        tmp_path / "t.json", [], [span("step", "run", 0, 1, HOSTILE + "\x00\ud800")]
    )

    events = json.loads(path.read_text("utf-8"))["traceEvents"]
    assert events[-1]["name"] == HOSTILE + "\ufffd\ufffd"


def test_a_file_of_another_kind_is_not_overwritten(tmp_path):
    path = tmp_path / "notes.json"
    path.write_text('{"mine": 1}')

    with pytest.raises(TraceError, match="is no trace of lazyviz, so it is not overwr"):
        trace_file.write(path, [CELL], SPANS)
    with pytest.raises(TraceError, match="cannot write the trace to"):
        trace_file.write(tmp_path / "no" / "t.json", [CELL], SPANS)

    assert path.read_text() == '{"mine": 1}'


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"no json", "cannot be read as a trace"),
        (b'{"a": 1}', "has no list `traceEvents`"),
        (gzip.compress(b"[1]", mtime=0), "has no list `traceEvents`"),
        (gzip.compress(b"x" * 99, mtime=0)[:15], "cannot be read as a trace"),
        (
            gzip.compress(b"x" * 99, mtime=0)[:12] + b"\xff" * 40,
            "cannot be read as a trace",
        ),
    ],
    ids=["text", "another object", "a packed list", "cut short", "damaged"],
)
def test_what_is_no_trace_is_refused_and_not_overwritten(tmp_path, content, message):
    path = tmp_path / "t.json"
    path.write_bytes(content)

    with pytest.raises(TraceError, match=message):
        trace_file.load(path)
    with pytest.raises(TraceError, match="is no trace of lazyviz"):
        trace_file.write(path, [CELL], SPANS)
    assert path.read_bytes() == content


def test_a_trace_of_another_program_is_summed_up_by_name():
    events = [
        {"ph": "X", "name": "fusion", "ts": at, "dur": 1500} for at in (0, 2000, 4000)
    ]

    shown = trace_file.report({"traceEvents": events})

    assert shown.splitlines()[0] == "profile of 5.5 ms · 3 events on 1 line"
    assert "fusion      3  4.5 ms  4.5 ms    1.5 ms" in shown


def test_the_command_line_needs_neither_torch_nor_jax(tmp_path):
    path = trace_file.write(tmp_path / "t.json", [CELL], SPANS)
    code = (
        "import sys; from lazyviz.__main__ import main; "
        f"status = main(['report', {str(path)!r}]); "
        "sys.exit(status or 10 * bool({'torch', 'jax', 'IPython'} & set(sys.modules)))"
    )

    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
    )
    missing = trace_file.main([str(tmp_path / "none.json")])

    assert "device idle" in done.stdout
    assert missing == 2
    for words in ([], ["t.json", "--cells", "0"], ["t.json", "more"]):
        with pytest.raises(SystemExit) as ended:
            trace_file.main(words)
        assert ended.value.code == 2


def test_cells_without_a_number_are_kept():
    cell = CellTime(number=None, start_ns=0, end_ns=5, parts={"trace": 5}, device_ns=0)

    check_schema(trace_file.document([cell], []))


def test_a_real_session_is_exported_and_reported(lab, tmp_path, capsys):
    lab.run_cell("y = (x * 2).sum()\nlazyrt.mark_step()\ny.item()", store_history=True)
    lab.display_pub.outputs.clear()

    lab.run_cell(f"%lazy timeline --export {tmp_path / 's.json'}", store_history=True)
    lab.run_cell("%lazy timeline 1", store_history=True)
    lab.run_cell("%lazy timeline x", store_history=True)

    written, timeline = (output["data"] for output in lab.display_pub.outputs[:2])
    assert "https://ui.perfetto.dev opens it" in written["text/plain"]
    document = trace_file.load(tmp_path / "s.json")
    check_schema(document)
    arrows = [e["ph"] for e in document["traceEvents"] if e["ph"] in {"s", "f"}]
    assert arrows.count("s") == arrows.count("f") >= 1
    assert "mark_step()" in trace_file.report(document)
    assert "barrier" in timeline["text/plain"]
    assert "<script" not in timeline["text/html"]
    assert "'x' is no number of cells" in capsys.readouterr().err
