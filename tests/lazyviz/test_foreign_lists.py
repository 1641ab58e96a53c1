"""Lists of tensors, lazyrt's own dumps, packed files."""

import codecs
import gzip
import json
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

import lazygraph as hlo
import lazyviz
from lazyviz.foreign import EvidenceError
from lazyviz.foreign.program_dumps import XlaDump, read_xla_dump
from lazyviz.foreign.tensors_dump import parse_tensors_report

DATA = Path(__file__).parent.parent / "data"
REPORT = """Tensor: id=4, shape=f32[2,4]{1,0}, device=CPU:0, ir_nodes=1
IR {
  %0 = f32[2,4]{1,0} xla::device_data(), xla_shape=f32[2,4]{1,0}, ROOT=0
}


Tensor: id=6, shape=f32[2,3]{1,0}, device=TPU:0, ir_nodes=3
Python Frames:
  linear (/usr/lib/python3.11/site-packages/torch/nn/functional.py:9)
  forward (train.py:12)
IR {
  %0 = f32[4,3]{1,0} xla::device_data(), xla_shape=f32[4,3]{1,0}
  %1 = f32[2,4]{1,0} xla::device_data(), xla_shape=f32[2,4]{1,0}
  %2 = f32[2,3]{1,0} aten::mm(%1, %0), xla_shape=f32[2,3]{1,0}, ROOT=0
}
"""

# ---------------------------------------------------------------- lists of tensors


def test_a_report_of_live_tensors_is_a_table():
    found = lazyviz.read(REPORT)

    assert found.text() == (
        "id  type      size      device  nodes  made by           in\n"
        "--  --------  --------  ------  -----  ----------------  ---------------------\n"
        " 4  f32[2,4]  32 bytes  CPU:0       1  xla::device_data\n"
        " 6  f32[2,3]  24 bytes  TPU:0       3  aten::mm          forward (train.py:12)\n"
        "2 tensors, 56 bytes"
    )
    page = found.to_html()
    ET.fromstring(page)
    assert "tensor 6: aten::mm" in page
    assert "tensor 4" not in page  # its IR says no more than its row
    assert json.loads(json.dumps(found.to_dict()))["tensors"][1]["ir_nodes"] == 3


def test_a_tensor_of_a_report_is_a_program():
    tensor = parse_tensors_report(REPORT).tensors[1]

    assert hlo.diff(tensor, tensor.graph).is_empty
    with pytest.raises(hlo.HloError, match=r"such as `.tensors\[0\]`"):
        lazyviz.diff(lazyviz.read(REPORT), tensor)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (REPORT[:-2], "line 7: tensor 6 breaks off: its IR is missing or has no end"),
        (REPORT.replace("=CPU:0", ""), "line 1: .* does not say which tensor it is"),
        (REPORT.replace("mm(%1,", "mm(%7,"), "line 14: %2 reads %7, which is not"),
        ("x\ny", "there is no tensor in the text"),
    ],
)
def test_a_list_that_breaks_off_is_refused_with_its_line(text, message):
    with pytest.raises(EvidenceError, match=message):
        parse_tensors_report(text)


# ---------------------------------------------------------------- what lazyrt dumped

IR = "%p0 : f32[4]  # w\n%0 = aten.exp.default(%p0) : f32[4]  # cell 2 line 3\nreturn %0\n"
HLO = "HloModule m\nENTRY %e {\n  %x = f32[4] parameter(0)\n  ROOT %y = f32[4] negate(%x)\n}\n"


def test_what_the_runtime_dumped_is_read_again(tmp_path):
    (tmp_path / "graph.2.ir.txt").write_text(IR)
    (tmp_path / "graph.2.after_optimisation.hlo").write_text(HLO)
    (tmp_path / "graph.10.ir.txt").write_text(IR.replace("exp", "log"))
    drawing = 'digraph "graph.2" {\n  v0 [label="x"];\n}\n// ' + "\n// ".join(
        IR.splitlines()
    )

    assert type(lazyviz.read(tmp_path)) is XlaDump
    folder = read_xla_dump(tmp_path)

    assert [line.split() for line in folder.text().splitlines()[2:]] == [
        ["module", "name", "after", "files", "bytes"],
        ["------", "--------", "-----", "-----", "-----"],
        ["2", "graph.2", "2", "2", str(len(IR) + len(HLO))],
        ["10", "graph.10", "1", str(len(IR))],
    ]
    ET.fromstring(folder.to_html())
    one, two = folder.modules
    assert len(hlo.diff(one.graph("ir"), two.graph("ir")).changed) == 1
    assert len(one.graph("after")) == 2
    changed = lazyviz.diff(one, two)  # neither has the HLO before optimisation
    assert str(changed).startswith("graph.2 → graph.10\n2 → 2 instructions; ~1 changed")
    with pytest.raises(EvidenceError, match=r"no text 'after' .* It has ir\.txt\.$"):
        two.graph("after")
    for text in (IR, drawing):
        assert "aten.exp.default ×1" in lazyviz.read(text).text()


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ([], "it has no file at all"),
        (["a.txt"], "nor graphs of lazyrt.dump_graphs.* It has a.txt; name a file"),
        ([f"{k}.txt" for k in range(9)], r"3\.txt and 5 more; name a file"),
        (["replica-0.jsonl"], r"which lazyviz\.replicas\(folder\) reads"),
    ],
)
def test_a_folder_without_dumps_says_what_it_has(tmp_path, names, message):
    for name in names:
        (tmp_path / name).write_text("x")

    with pytest.raises(EvidenceError, match=message):
        lazyviz.read(tmp_path)


# ---------------------------------------------------------------- files of other forms


def test_packed_and_wide_texts_are_read_like_plain_ones(tmp_path):
    text = (DATA / "pt_xla_debug.log").read_text()
    plain = lazyviz.read(text).text()
    for name, data in {
        "a.log.gz": gzip.compress(text.encode()),
        "b.log": text.encode("utf-16"),
        "c.log": codecs.BOM_UTF16_BE + text.encode("utf-16-be"),
    }.items():
        (tmp_path / name).write_bytes(data)

        assert lazyviz.read(tmp_path / name).text() == plain, name
    (tmp_path / "e.log.gz").write_bytes(gzip.compress(text.encode())[:90])
    with pytest.raises(EvidenceError, match=r"e\.log\.gz: it cannot be unpacked"):
        lazyviz.read(tmp_path / "e.log.gz")


def test_a_file_of_another_kind_is_refused_with_its_first_bytes(tmp_path):
    path = tmp_path / "thing"
    path.write_bytes(b"\xff\xd8\xff\xe0\0\x10JFIF")

    with pytest.raises(EvidenceError, match="thing is binary, and no serialised HLO"):
        lazyviz.read(path)
    with pytest.raises(hlo.HloError, match="begins with ff d8 ff e0"):
        hlo.read(path)


@pytest.mark.parametrize("text", ["", "\n \n"])
def test_an_empty_text_is_called_empty(tmp_path, text):
    (tmp_path / "empty").write_text(text)

    with pytest.raises(EvidenceError, match="there is nothing in it"):
        lazyviz.read(tmp_path / "empty")
