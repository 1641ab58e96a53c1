"""Profiles of XLA, from bytes made here and from jax's own profiler."""

import json
import random
import struct

import jax
import jax.numpy as jnp
import pytest
import torch

import lazyviz
from lazyviz.foreign import EvidenceError
from lazyviz.foreign.xplane import Profile
from lazyviz.timing import trace_file
from tests.lazyviz.test_render_timeline import CELL
from tests.lazyviz.test_trace_file import FLOWS


def varint(value):
    found = b""
    while value > 127:
        found += bytes([value & 127 | 128])
        value >>= 7
    return found + bytes([value])


def message(*fields):
    """Return fields of (number, int, float, text or bytes) as a protocol buffer."""
    parts = []
    for number, value in fields:
        if isinstance(value, int):
            parts.append(varint(number << 3) + varint(value % (1 << 64)))
        elif isinstance(value, float):
            parts.append(varint(number << 3 | 1) + struct.pack("<d", value))
        else:
            data = value.encode() if isinstance(value, str) else value
            parts.append(varint(number << 3 | 2) + varint(len(data)) + data)
    return b"".join(parts)


def named(number, name):
    return message((1, number), (2, message((1, number), (2, name))))


def event(kind, start_us, us, *stats):
    parts = [(4, message((1, key), value)) for key, value in stats]
    return message((1, kind), (2, start_us * 10**6), (3, us * 10**6), *parts)


def profile():
    """Two steps, of which each runs a fusion twice as long as the other's, and a compile."""
    thread = message(
        (2, "python"),
        (3, 5_000),
        (4, event(1, 0, 100, (1, (4, 7)))),
        (4, event(2, 10, 60)),
        (4, event(1, 200, 50, (1, (4, 8)))),
    )
    pool = message(
        (2, "pool"),
        (3, 5_000),
        (4, event(3, 20, 40, (2, (5, "fusion.1")), (3, (7, 4)))),
        (4, event(3, 210, 20, (2, (5, "fusion.1")), (3, (7, 4)))),
    )
    tables = [
        *(
            (4, named(k, name))
            for k, name in enumerate(("train", "Compile<x>", "f"), 1)
        ),
        *(
            (5, named(k, name))
            for k, name in enumerate(("step_num", "hlo_op", "hlo_module", "jit_f"), 1)
        ),
    ]
    return message((1, message((2, "/host:CPU"), (3, thread), (3, pool), *tables)))


def test_a_profile_is_tables_and_a_timeline(tmp_path):
    """xplane files have the same views as logs and dumps."""
    path = tmp_path / "vm.xplane.pb"
    path.write_bytes(profile())

    found = lazyviz.read(path)

    assert isinstance(found, Profile)
    assert [step.stats["step_num"] for step in found.steps] == [7, 8]
    assert [each.duration_ns for each in found.instructions] == [40_000, 20_000]
    assert found.instructions[0].start_ns == 25_000
    text = found.text()
    assert text.startswith("profile of 250 µs · 5 events on 2 lines")
    rows = [line.split() for line in text.splitlines()]
    assert ["7", "train", "0", "ns", "100", "µs", "1"] in rows
    assert ["fusion.1", "jit_f", "2", "60", "µs", "100", "%", "30", "µs"] in rows
    # The steps' own time is what the compile within them did not take.
    assert ["train", "2", "150", "µs", "90", "µs", "75", "µs"] in rows
    assert ["Compile<x>", "1", "60", "µs", "60", "µs", "60", "µs"] in rows
    page = found.to_html()
    assert "<img" in page
    assert "Compile&lt;x&gt;" in page
    assert "Compile<x>" not in page
    (plane,) = found.to_dict()["planes"]
    assert plane["lines"][1]["events"][0]["stats"]["hlo_module"] == "jit_f"


def test_the_folder_of_a_trace_gives_its_latest_run(tmp_path):
    """What `jax.profiler.trace` was given; here by jax itself."""
    double = jax.jit(lambda x: jnp.tanh(x @ x) * 2)
    double(jnp.ones((8, 8))).block_until_ready()
    with jax.profiler.trace(str(tmp_path)):
        for number in range(2):
            with jax.profiler.StepTraceAnnotation("train", step_num=number):
                double(jnp.ones((8, 8))).block_until_ready()

    found = lazyviz.read(tmp_path)

    assert isinstance(found, Profile)
    assert [(s.name, s.stats["step_num"]) for s in found.steps] == [
        ("train", 0),
        ("train", 1),
    ]
    assert {each.stats["hlo_module"] for each in found.instructions} >= {"jit__lambda"}


def test_a_tpus_instruction_has_its_short_name_and_bytes_are_left_out(tmp_path):
    kind = "%fusion.7 = f32[8]{0} fusion(f32[8]{0} %p), kind=kLoop"
    line = message(
        (2, "XLA Ops"), (3, 7), (4, event(1, 0, 3, (1, (6, b"\xff")), (2, (4, -5))))
    )
    plane = message(
        (2, "/device:TPU:0"),
        (3, line),
        (4, named(1, kind)),
        (5, named(1, "raw")),
        (5, named(2, "n")),
    )
    path = tmp_path / "vm.xplane.pb"
    path.write_bytes(message((1, plane)))

    found = lazyviz.read(path)

    assert isinstance(found, Profile)
    assert found.planes[0].lines[0].events == (("fusion.7", 7, 3_000, {"n": -5}),)


def test_a_damaged_profile_is_read_or_refused(tmp_path):
    data, rng = profile(), random.Random(3)  # noqa: S311
    path = tmp_path / "d.xplane.pb"
    refused = 0

    for turn in range(300):
        cut = rng.randrange(len(data))
        broken = (
            data[:cut] if turn % 2 else data[:cut] + rng.randbytes(3) + data[cut + 3 :]
        )
        path.write_bytes(broken)
        try:
            shown = lazyviz.read(path)
            shown.text()
            shown.to_html()
        except EvidenceError as error:
            refused += "profile" in str(error)

    assert refused > 150


def test_a_folder_without_a_profile_or_dump_says_what_it_lacks(tmp_path):
    with pytest.raises(EvidenceError, match="is no dump of XLA"):
        lazyviz.read(tmp_path)


def read_trace(source):
    found = lazyviz.read(source)
    assert isinstance(found, Profile)
    return found


def test_trace_events_are_read_as_processes_threads_and_steps():
    events = [
        {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "python"}},
        {
            "ph": "M",
            "name": "thread_name",
            "pid": 1,
            "tid": 2,
            "args": {"name": "main"},
        },
        {
            "ph": "X",
            "name": "ProfilerStep#7",
            "pid": 1,
            "tid": 2,
            "ts": 10.5,
            "dur": 40,
        },
        {"ph": "B", "name": "outer", "pid": 1, "tid": 3, "ts": 20},
        {"ph": "E", "pid": 1, "tid": 3, "ts": 35},
        {"ph": "B", "name": "inner", "pid": 1, "tid": 3, "ts": 22},
        {"ph": "E", "pid": 1, "tid": 3, "ts": 25},
        {"ph": "i", "name": "instant", "pid": 1, "tid": 3, "ts": 26, "s": "t"},
    ]

    for text in (
        json.dumps(events, indent=0),
        json.dumps({"traceEvents": events}, indent=0),
    ):
        found = read_trace(text)

        (plane,) = found.planes
        assert [(plane.name, line.name, line.events) for line in plane.lines] == [
            ("python", "main", (("ProfilerStep#7", 10_500, 40_000, {"step_num": 7}),)),
            (
                "python",
                "thread 3",
                (("outer", 20_000, 15_000, {}), ("inner", 22_000, 3_000, {})),
            ),
        ]
        assert [step.name for step in found.steps] == ["ProfilerStep#7"]


def test_exports_of_the_timeline_jax_and_torch_are_read_back(tmp_path):
    document = trace_file.document([CELL], FLOWS)
    ours = tmp_path / "ours.json"
    ours.write_text(json.dumps(document))
    with jax.profiler.trace(tmp_path / "jax", create_perfetto_trace=True):
        jax.jit(lambda x: x @ x)(jnp.ones((64, 64))).block_until_ready()
    (theirs,) = (tmp_path / "jax").rglob("perfetto_trace.json.gz")
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU]
    ) as taken:
        torch.ones(64, 64) @ torch.ones(64, 64)
    taken.export_chrome_trace(str(tmp_path / "torch.json"))

    spans = [e for e in document["traceEvents"] if e["ph"] == "X"]
    events = [e for _, line in read_trace(ours).lines() for e in line.events]
    assert len(events) == len(spans)
    assert read_trace(theirs).instructions
    names = {
        e.name
        for _, line in read_trace(tmp_path / "torch.json").lines()
        for e in line.events
    }
    assert "aten::mm" in names
