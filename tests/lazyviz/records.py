"""Records of steps as `lazyrt.record_steps` writes them, for programs of few barriers."""

import gzip
import json

BEGUN = 1_000.0


def barrier(cause="mark_step()", at="train.py:40", graph="a" * 32, ops=20, **more):
    """Return one barrier; `graph` empty for one that ran nothing, `done` False for one entered."""
    return {"cause": cause, "at": at, "graph": graph, "ops": ops, **more}


def read(at="save.py:12", graph="b" * 32, ops=7):
    """Return the barrier that reading a tensor makes, within a function of two lines."""
    return barrier("read by .cpu()", at, graph, ops, tensor="v")


def lines_of(at):
    """Return the lines that lead to `save.py:12<train.py:30`, innermost first."""
    parts = [each.rsplit(":", 1) for each in at.split("<") if each]
    return [[f"/home/me/{file}", int(line), "train", None] for file, line in parts]


def write_record(folder, name, barriers, *, end="exit", of=None, beat=None, graphs=()):
    """Write the record of one replica, a barrier each second; return its path.

    Args:
        folder: Where to.
        name: Of the replica.
        barriers: As of `barrier`.
        end: Why it ends; None for no end, and the name of an exception for that.
        of: How many replicas there are.
        beat: (seconds after the start, line) of a last sign of life.
        graphs: (fingerprint, JSON of its record).
    """
    time = BEGUN
    rows = [
        {"record": "lazyrt steps", "version": 1, "replica": name, "of": of, "pid": 1, "host": "h",
         "time": time, "beat_s": 1.0, "torch": "2", "program": "train.py"},
    ]  # fmt: skip
    for fingerprint, contents in graphs:
        file = f"replica-{name}.graphs/{fingerprint}.json.gz"
        (folder / file).parent.mkdir(exist_ok=True)
        (folder / file).write_bytes(gzip.compress(contents.encode()))
        rows.append({"graph": fingerprint, "ops": 1, "file": file})
    for number, each in enumerate(barriers, 1):
        time += 1
        rows.append({"place": number, "lines": lines_of(each["at"])})
        rows.append(
            {"enter": number, "time": time, "cause": each["cause"], "place": number, "step": ""}
        )  # fmt: skip
        if each.get("done", True):
            rows.append(
                {"done": number, "time": time, "cause": each["cause"],
                 "tensor": each.get("tensor", ""), "at": number, "step": "",
                 "ran": bool(each["graph"]), "graph": each["graph"], "ops": each["ops"], "roots": 1}
            )  # fmt: skip
    if beat is not None:
        rows.append(
            {"beat": BEGUN + beat[0], "lines": lines_of(beat[1]), "next_s": 2.0}
        )
    if end is not None:
        failure = (
            None
            if end in {"exit", "closed", "full"}
            else [end, lines_of("train.py:9")[0]]
        )
        why = end if failure is None else "exit"
        rows.append({"end": time, "why": why, "failure": failure})
    path = folder / f"replica-{name}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
