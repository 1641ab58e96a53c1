"""Which replica went another way, from what each has recorded."""

import json
import random
from pathlib import Path

import pytest

import lazyviz
from lazyrt.control import flight_recorder
from lazyviz.__main__ import main
from lazyviz.divergence import sources
from lazyviz.divergence.alignment import align, called
from lazyviz.divergence.report import replicas
from lazyviz.foreign import EvidenceError
from tests.harness import thinned
from tests.lazyviz.records import BEGUN, barrier, read, write_record
from tests.lazyviz.test_safety import Shape
from tests.payloads import PAYLOADS

DATA = Path(__file__).parent.parent / "data"
STEP = barrier()
EMPTY = barrier(graph="", ops=0)


def found_in(folder, *programs, now=BEGUN + 20, **more):
    """Return the comparison of replicas 0, 1, ... that ran these barriers."""
    for name, barriers in enumerate(programs):
        write_record(folder, str(name), barriers, **more)
    return replicas(folder, now=now)


def test_the_reader_knows_the_format_that_is_written():
    """It reads without torch, so it cannot take the names from the writer."""
    assert (sources.FORMAT, sources.VERSION) == (
        flight_recorder.FORMAT,
        flight_recorder.VERSION,
    )


def test_equal_programs_have_no_difference(tmp_path):
    found = found_in(tmp_path, *[[STEP] * 5] * 3)

    assert found.first_difference is None
    assert found.sentence == (
        "no difference: replicas 0 to 2 ran the same 5 barriers and 1 graph"
    )
    assert (found.fix, found.late) == ("", ())


def test_a_checkpoint_in_front_of_the_barrier_is_named_with_the_line_that_mends_it(
    tmp_path,
):
    """Replica 0 reads the weights before mark_step()."""
    train = [STEP, STEP, barrier(at="train.py:40")]
    saves = [STEP, STEP, read("save.py:12<train.py:31"), barrier(graph="c" * 32, ops=2)]

    found = found_in(tmp_path, saves, train, train, train)

    difference = found.first_difference
    assert difference.row == 3
    assert difference.kind == "gap"
    assert found.sentence == (
        "replica 0 has a barrier at save.py:12, read of `v` by .cpu() in train(), 7 ops, that the "
        "others have not: they wait for it at train.py:40"
    )
    assert found.fix.startswith(
        "call lazyrt.mark_step() on every replica in front of save.py:12: then nothing is pending"
    )
    marked = [row for row in found.table if "first difference" in row[0]]
    assert marked == [
        ("▶ 3 first difference", "read by .cpu() at save.py:12 · 7 ops · bbbbbbbb", "—", "—", "—")
    ]  # fmt: skip


def test_what_a_barrier_takes_from_the_next_one_is_said(tmp_path):
    """The read runs what mark_step() runs elsewhere, which has nothing left to run."""
    found = found_in(
        tmp_path, [STEP, read(graph="a" * 32, ops=20), EMPTY, STEP], [STEP, STEP, STEP]
    )

    assert found.sentence == (
        "replica 0 has a barrier at save.py:12, read of `v` by .cpu() in train(), 20 ops, that "
        "replica 1 has not: replica 1 waits for it at train.py:40, and runs there what it runs here"
    )


def test_the_condition_around_the_line_is_what_the_repair_names(tmp_path):
    source = tmp_path / "train.py"
    source.write_text("for k in range(3):\n    if rank == 0:\n        save()\n")
    path = write_record(tmp_path, "0", [STEP, read("save.py:1<train.py:3"), STEP])
    path.write_text(path.read_text().replace("/home/me/train.py", str(source)))
    write_record(tmp_path, "1", [STEP, STEP])

    assert replicas(tmp_path, now=BEGUN).fix == (
        "call lazyrt.mark_step() on every replica in front of `if rank == 0:` at train.py:2: then "
        "nothing is pending at save.py:1, and what it reads is no barrier any more"
    )


def test_a_replica_that_leaves_a_barrier_out_is_named(tmp_path):
    """The others wait for it where it never comes."""
    meet = barrier("mark_step()", "train.py:50", "d" * 32, 3)
    rounds = [STEP, meet] * 4

    found = found_in(tmp_path, rounds, rounds[:3] + rounds[4:], rounds)

    assert found.first_difference.row == 4
    assert found.sentence == (
        "replica 1 has no barrier at train.py:50, mark_step() in train(), 3 ops, that the others "
        "have: the others wait for it there, while it goes on to mark_step() at train.py:40"
    )
    assert "let replica 1 reach train.py:50 too" in found.fix
    assert sum("—" in row for row in found.table) == 1  # a gap, and no shift


def test_what_a_left_out_barrier_would_have_run_is_run_by_the_next_one(tmp_path):
    both = barrier(graph="d" * 32, ops=40)
    found = found_in(tmp_path, [STEP, STEP, both], [STEP] * 4)

    assert found.first_difference.row == 3
    assert found.sentence.startswith("replica 0 has no barrier at train.py:40")
    assert [row[1:] for row in found.table[3:]] == [
        ("—", "mark_step() at train.py:40 · 20 ops · aaaaaaaa"),
        ("mark_step() at train.py:40 · 40 ops · dddddddd", "mark_step() at train.py:40 · 20 ops · aaaaaaaa"),
    ]  # fmt: skip


def test_a_replica_that_ends_too_early_is_named(tmp_path):
    found = found_in(tmp_path, [STEP] * 4, [STEP] * 6)

    assert found.first_difference.row == 5
    assert found.sentence.startswith("replica 0 has no barrier at train.py:40")
    assert found.sentence.endswith("waits for it there, and it runs nothing more")


def test_barriers_that_ran_nothing_make_no_difference(tmp_path):
    found = found_in(tmp_path, [STEP, EMPTY, STEP], [STEP, STEP])

    assert found.first_difference is None


def test_the_same_program_from_another_line_is_a_lesser_difference(tmp_path):
    moved = barrier(at="train.py:44")
    found = found_in(tmp_path, [STEP, STEP, STEP], [STEP, moved, STEP])

    assert found.first_difference.kind == "place"
    assert found.fix == ""
    assert "replica 1 from mark_step() at train.py:44" in found.sentence

    graver = found_in(tmp_path, [STEP, STEP, STEP], [STEP, moved, STEP, read()])
    assert graver.first_difference.row == 4


@pytest.mark.parametrize(
    ("graphs", "said"),
    [
        ("aaaab", "replica 4 runs another program at train.py:40 (mark_step(); 20 ops, 20 in the others)"),
        ("aabb", "replicas 2 and 3 run another program"),
        ("bbaa", "replicas 0 and 1 run another program"),
        ("abc", "1 further group of replicas runs yet another"),
        ("ab", "replica 1 runs another program at train.py:40 (mark_step(); 20 ops, 20 in replica 0)"),
    ],
)  # fmt: skip
def test_groups_of_replicas_are_told_apart(tmp_path, graphs, said):
    programs = [[STEP, barrier(graph=g * 32)] for g in graphs]
    found = found_in(tmp_path, *programs)

    assert found.first_difference.row == 2
    assert said in found.sentence


def test_one_program_from_two_lines_is_no_other_program(tmp_path):
    moved = barrier(at="train.py:44")
    found = found_in(tmp_path, *[[STEP]] * 2, *[[moved]] * 2, [barrier(graph="b" * 32)])

    assert found.sentence.startswith("replica 4 runs another program at train.py:40")


def test_many_replicas_stand_in_a_column_for_each_group(tmp_path):
    found = found_in(tmp_path, *[[STEP, STEP]] * 9, [STEP, read(), STEP])

    assert found.table[0] == ("row", "replicas 0 to 8", "replica 9")
    assert found.sentence.startswith("replica 9 has a barrier at save.py:12")


def test_a_replica_that_hangs_is_named_with_its_line(tmp_path):
    write_record(tmp_path, "0", [STEP] * 6, end=None, beat=(59, "wait.py:3"))
    write_record(tmp_path, "1", [STEP] * 3, end=None, beat=(58, "train.py:29"))

    found = replicas(tmp_path, now=BEGUN + 60)

    assert found.first_difference is None
    assert found.late[1] == (
        "replica 1 has been at train.py:29 for 57 s, after 3 barriers, while others have 6"
    )
    assert "as far as they are known (3 to 6)" in found.sentence


def test_a_replica_within_a_barrier_is_named_with_it(tmp_path):
    stuck = [STEP, barrier(at="train.py:41", done=False)]
    write_record(tmp_path, "0", [STEP, barrier(at="train.py:41")])
    write_record(tmp_path, "1", stuck, end=None, beat=(30, "train.py:41"))

    [said] = replicas(tmp_path, now=BEGUN + 31).late

    assert said.startswith(
        "replica 1 has been inside a barrier, mark_step(), at train.py:41 for 29 s"
    )


def test_a_killed_replica_is_told_from_one_that_waits(tmp_path):
    write_record(tmp_path, "0", [STEP] * 4)
    write_record(tmp_path, "1", [STEP] * 2, end=None, beat=(3, "train.py:29"))

    [said] = replicas(tmp_path, now=BEGUN + 100).late

    assert said.startswith("replica 1 gives no sign of life since ")
    assert "1 min 37 s ago, and has not ended: it was at train.py:29, after 2" in said
    assert "it was killed" in said


def test_a_replica_whose_thread_still_sleeps_was_not_killed(tmp_path):
    write_record(tmp_path, "0", [STEP] * 4)
    path = write_record(tmp_path, "1", [STEP], end=None, beat=(60, "train.py:29"))
    done = json.loads(path.read_text().splitlines()[-2])
    late = path.read_text().replace('"next_s": 2.0', '"next_s": 30.0')
    path.write_text(f"{late}{json.dumps(done | {'time': BEGUN + 61})}\n")

    def is_killed(now):
        return "it was killed" in str(replicas(tmp_path, now=BEGUN + now).late)

    assert not is_killed(61 + 20)
    assert is_killed(61 + 40)


def test_an_exception_is_what_ended_a_replica(tmp_path):
    write_record(tmp_path, "0", [STEP] * 4)
    write_record(tmp_path, "1", [STEP] * 2, end="ValueError")

    found = replicas(tmp_path, now=BEGUN)

    assert found.late == (
        "replica 1 was ended by ValueError at train.py:9, after 2 barriers, while others have 4",
    )
    assert found.table[-1][0] == "last"
    assert found.table[-1][2] == "ended by ValueError at train.py:9"


def test_a_replica_that_left_no_record_is_named(tmp_path):
    found = found_in(tmp_path, [STEP], [STEP], of=4)

    assert found.late[0].startswith("replicas 2 and 3 of 4 have left no record")


def test_only_the_last_run_of_each_replica_counts(tmp_path):
    found_in(tmp_path, [STEP, read()], [STEP])
    for name in "01":
        path = write_record(tmp_path / ".", name, [STEP, STEP])
        path.rename(tmp_path / f"replica-{name}.run2.jsonl")
        write_record(tmp_path, name, [STEP, read()] if name == "0" else [STEP])

    assert replicas(tmp_path, now=BEGUN).first_difference is None


def test_records_begun_long_apart_are_said_to_be(tmp_path):
    write_record(tmp_path, "0", [STEP])
    path = write_record(tmp_path, "1", [STEP])
    path.write_text(path.read_text().replace("1000.0", "9000.0", 1))

    assert "begun 2 h 13 min apart" in replicas(tmp_path, now=BEGUN).text()


def test_a_last_line_that_is_cut_off_is_left_out(tmp_path):
    found_in(tmp_path, [STEP] * 2, [STEP] * 2)
    path = tmp_path / "replica-1.jsonl"
    path.write_text(path.read_text() + '{"enter": 3, "ti')

    found = replicas(tmp_path, now=BEGUN)

    assert found.first_difference is None
    assert "replica 1: its last line is cut off" in found.text()


@pytest.mark.parametrize(
    ("contents", "said"),
    [
        ("", "two kinds"),
        ('{"record": "lazyrt steps"', "no whole line"),
        ('{"record": "other"}\n', "line 1: .*does not begin a record"),
        ('{"record": "lazyrt steps", "version": 7}\n', "version 7, and this lazyviz reads 1"),
        ('{"record": "lazyrt steps", "version": 1, "time": 1, "beat_s": 1}\n', "line 1: .*KeyError"),
        ("{WHOLE}{}\n", "line 2: '{}' is no line of a record"),
        ('{WHOLE}{"done": 1}\n', "line 2: "),
        ('{WHOLE}{"place": 1, "lines": 7}\n', "line 2: "),
        ('{WHOLE}{"graph": "a", "file": "../../etc/passwd"}\n', "line 2: "),
        ("{WHOLE}[1, 2]\n", "line 2: "),
        ("{WHOLE}" + "[" * 100_000 + "\n", "line 2: "),
        ('{WHOLE}{"end": 1e999, "why": "exit", "failure": 3}\n', "line 2: |no line"),
        ("{WHOLE}\xff\n", "line 2: "),
        ('{WHOLE}{"beat": 1e400, "lines": [], "next_s": 1}\n', "line 2: "),
        ('{WHOLE}{"beat": 1, "lines": [], "next_s": NaN}\n', "line 2: "),
    ],
)  # fmt: skip
def test_a_damaged_record_is_refused_with_its_line(tmp_path, contents, said):
    head = write_record(tmp_path, "0", []).read_text().split("\n")[0]
    other = write_record(tmp_path, "1", [STEP])
    path = tmp_path / "replica-0.jsonl"
    path.write_text(contents.replace("{WHOLE}", head + "\n"), encoding="latin-1")

    with pytest.raises(EvidenceError, match=said):
        replicas([path, other], now=BEGUN).text()


def test_the_magic_names_the_file_that_is_damaged(lab, tmp_path, capsys):
    path = write_record(tmp_path, "0", [STEP])
    path.write_text(f"{path.read_text()}no row\n")
    write_record(tmp_path, "1", [STEP])

    lab.run_cell(f"%lazy replicas {tmp_path}", store_history=True)

    assert f"(in {path})" in capsys.readouterr().err


def test_what_is_no_set_of_replicas_is_refused(tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    one = write_record(tmp_path, "0", [STEP])

    for given, said in (
        (empty, "has no file of a replica"),
        (tmp_path / "none", "cannot be read"),
        (tmp_path, "the file of one replica, 0"),
        ([], "got no file"),
        ([one, one], "was given twice"),
        ([one, empty], "is a folder, given beside"),
        ([one, DATA / "save_tensors.text"], "are of two kinds"),
        ([1, 2], "got 1, which is int"),
        (5, "got 5, which is int"),
        ("~no-such-user/x", "whom this machine does not know"),
    ):
        with pytest.raises(EvidenceError, match=said):
            replicas(given)  # type: ignore[arg-type]


def dumps(folder, text, change, count=4, odd=1):
    """Write a dump of torch_xla for each ordinal, one of them changed."""
    for k in range(count):
        (folder / f"save.txt.{k}").write_text(change(text) if k == odd else text)
    return folder


def test_dumps_of_torch_xla_are_compared_by_ordinal(tmp_path):
    """The last batch of one replica has another size."""
    text = (DATA / "save_tensors.text").read_text()
    start = text.rindex("## BEGIN_GRAPH")

    def smaller(text):
        changed = text[start:].replace("f32[16]", "f32[12]")
        return text[:start] + changed.replace("b97feb1b8e90", "ffffffffffff")

    found = replicas(dumps(tmp_path, text, smaller))

    assert found.first_difference is not None
    assert found.first_difference.row == 3
    assert "replica 1" in found.sentence
    assert "= f32[12], the others f32[16]" in found.sentence
    assert replicas(dumps(tmp_path, text, lambda t: t)).first_difference is None


def test_a_dump_with_one_graph_more_is_a_gap(tmp_path):
    text = (DATA / "save_tensors.text").read_text()
    first = text[: text.index("## END_GRAPH") + len("## END_GRAPH\n")]

    found = replicas(dumps(tmp_path, text, lambda t: first + "\n" + t))

    assert found.first_difference is not None
    assert found.first_difference.kind == "gap"
    assert found.sentence.startswith("replica 1 has a barrier")
    assert found.fix.startswith("call torch_xla.sync() on every replica in front of")


HLO = """HloModule m{k}

ENTRY main {{
  p{k} = f32[{n},10] parameter(0)
  a = f32[{n},10] add(p{k}, p{k})
  ROOT n = f32[{n},10] {op}(a)
}}
"""


def test_a_program_for_each_replica_is_enough(tmp_path):
    for k in range(4):
        n = 96 if k == 1 else 128
        (tmp_path / f"rank{k}.hlo").write_text(HLO.format(k=k, n=n, op="negate"))

    found = replicas(tmp_path)

    assert found.sentence == (
        "replica 1 has input 0 = f32[96,10], the others f32[128,10], at program"
    )
    assert "drop_last=True" in found.fix


def test_names_in_programs_make_no_difference(tmp_path):
    for k in range(3):
        (tmp_path / f"rank{k}.hlo").write_text(HLO.format(k=k, n=8, op="negate"))

    assert replicas(tmp_path).sentence == (
        "no difference: replicas 0 to 2 ran the same 1 barrier and 1 program"
    )


def test_another_op_is_told_as_in_a_diff(tmp_path):
    for k in range(3):
        op = "negate" if k else "abs"
        (tmp_path / f"rank{k}.hlo").write_text(HLO.format(k=k, n=8, op=op))

    found = replicas(tmp_path)

    assert found.sentence.startswith(
        "replica 0 runs another program (program; 3 ops, 3 in the others)"
    )
    assert "abs" in found.to_html()


def test_the_command_line_says_whether_something_differs(tmp_path, capsys):
    page = tmp_path / "page.html"
    steps = tmp_path / "steps"
    steps.mkdir()
    for name, barriers in (("0", [STEP, STEP]), ("1", [STEP, STEP])):
        write_record(steps, name, barriers)
    assert main(["replicas", str(steps)]) == 0

    write_record(steps, "1", [STEP, read(), STEP])
    assert main(["replicas", str(steps), "--html", str(page)]) == 1
    assert "Replica 1 has a barrier at save.py:12" in capsys.readouterr().out
    assert "first difference" in page.read_text()

    assert main(["replicas", str(steps), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["first_difference"]["row"] == 2

    assert main(["replicas", str(tmp_path / "none")]) == 2
    assert "none" in capsys.readouterr().err


def test_the_text_says_that_nothing_is_prevented(tmp_path):
    assert "nor prevents" in found_in(tmp_path, [STEP, read()], [STEP]).text()


@pytest.mark.parametrize("number", thinned(range(len(PAYLOADS)), 4))
def test_names_in_a_record_are_text_in_the_page(tmp_path, number):
    payload = PAYLOADS[number]

    def shape(word):
        odd = barrier(cause=word, at="save.py:12", graph="e" * 32, tensor=word)
        write_record(tmp_path, "0", [STEP, odd, STEP], end=None, beat=(2, "train.py:9"))
        write_record(tmp_path, "1", [STEP, STEP], end="Error")
        for name in "01":
            path = tmp_path / f"replica-{name}.jsonl"
            text = path.read_text().replace("/home/me/save", json.dumps(word)[1:-1])
            path.write_text(text.replace('"Error"', json.dumps(word)))
        found = replicas(tmp_path, now=BEGUN + 99)
        text = found.text()
        assert "\x1b" not in text
        return Shape(found.to_html())

    made, plain = shape(payload), shape("word")

    assert made.tags == plain.tags
    assert made.styles == plain.styles


def test_long_records_are_aligned_in_bounded_work(tmp_path):
    rounds = [
        barrier(at=f"train.py:{k % 7}", graph=f"{k % 5:032x}") for k in range(900)
    ]
    programs = [rounds[: 500 + k] + rounds[501 + k :] for k in range(4)]

    found = found_in(tmp_path, *programs)

    assert found.first_difference is not None
    assert found.first_difference.row == 501
    assert len(found.aligned.rows) < 600
    assert max(found.aligned.left) > 100
    assert len(found.text()) < 20_000


def test_names_of_replicas_read_as_a_sentence():
    assert called(["0", "1"]) == "replicas 0 and 1"
    assert called(["a", "b", "c"]) == "replicas a, b and c"
    assert called([str(k) for k in range(0, 40, 2)]) == (
        "20 replicas (0, 2, 4, 6, 8, ...)"
    )


def test_the_api_reads_a_folder(tmp_path):
    found_in(tmp_path, [STEP], [STEP])

    assert "No difference" in repr(lazyviz.replicas(tmp_path))


@pytest.mark.parametrize("seed", range(12))
def test_what_was_planted_is_found_at_its_row(tmp_path, seed):
    """A barrier added or left out at any row of any replica is found there, and nothing else."""
    draw = random.Random(seed)  # noqa: S311
    base = [barrier(at=f"train.py:{draw.randrange(6)}", graph=f"{draw.randrange(4):032x}") for _ in range(30)]  # fmt: skip
    odd, row = draw.randrange(4), draw.randrange(30)
    programs = [list(base) for _ in range(4)]
    programs[odd].insert(row, read())

    found = found_in(tmp_path, *programs)

    assert found.first_difference.row == row + 1
    assert [side.names for side in found.first_difference.sides][1] == (str(odd),)
    gaps = [r for r in align(found.tracks).rows if r.kind != "equal"]
    assert len(gaps) == 1


def traced(folder, rank, *collectives):
    """Write a rank's dump of torch's Flight Recorder: (kind, sizes, line), the last one open."""
    rows = [
        {
            "collective_seq_id": k, "input_dtypes": ["Float"], "input_sizes": [size],
            "is_p2p": False, "process_group": ["0", "default_pg"], "profiling_name": f"nccl:{kind}",
            "record_id": k, "retired": k < len(collectives), "time_created_ns": k * 10**9,
            "state": "completed" if k < len(collectives) else "started",
            "frames": [{"name": "step", "filename": "/home/me/train.py", "line": line}],
        }
        for k, (kind, size, line) in enumerate(collectives, 1)
    ]  # fmt: skip
    path = folder / f"trace_rank_{rank}"
    path.write_text(json.dumps({"version": "2.10", "entries": rows}))
    return path


def test_dumps_of_torchs_flight_recorder_are_compared(tmp_path):
    first, then = ("all_reduce", [4], 7), ("all_gather", [2, 2], 9)
    traced(tmp_path, 0, first, then, first)
    traced(tmp_path, 1, first, first, first)

    found = replicas(tmp_path)

    assert found.first_difference is not None
    assert found.first_difference.row == 2
    assert "all_gather(Float[2, 2]) of default_pg at train.py:9" in str(found)
    assert found.sentence.startswith("replica 0 has a collective at train.py:9, ")
    assert "let every replica call all_gather(Float[2, 2])" in found.fix
    waiting = found.tracks[0].entered
    assert waiting is not None
    assert waiting.cause == "all_reduce(Float[4]) of default_pg"


def test_json_that_is_no_flight_recorder_says_what_to_give(tmp_path):
    for rank in range(2):
        (tmp_path / f"trace_rank_{rank}").write_text('{"entries": [{}]}')

    with pytest.raises(EvidenceError, match="no dump of torch's Flight Recorder"):
        replicas(tmp_path)
