"""The state made visible: in strips, in `%lazy status` and in `%lazy step`."""

import re
from dataclasses import replace

from lazyviz.inspection.tables import step_notes
from lazyviz.render.notes import Looked
from lazyviz.render.strip import (
    Strip,
    compiled_text,
    open_parts,
    state_text,
    strip_parts,
    urgent_notes,
)
from lazyviz.timing.history import StepRow
from tests.conftest import displayed
from tests.lazyviz import fakes

FULL = fakes.status(
    steps=("train", ""),
    scopes=("epoch", "loss"),
    pending_ops=214,
    pending_bytes=4_300_000,
    pending_from="cell 4 line 6",
    live_tensors=12,
    queued_closures=2,
    async_closures=1,
    async_age_ns=3_000_000,
    last_barrier=fakes.barrier(cause="mark_step()", nodes=12, site="cell 3 line 2"),
)


def run(shell, source):
    shell.display_pub.outputs.clear()
    return shell.run_cell(source, store_history=True)


def shown(shell, source):
    run(shell, source)
    return "\n".join(displayed(shell))


def test_the_state_is_one_line():
    assert state_text(FULL, "eager") == (
        "eager mode · in train / a step · scope epoch/loss open · 2 closures queued · "
        "1 asynchronous closure due for 3.0 ms · 214 pending ops, 4.1 MiB, from cell 4 line 6 "
        "on · 12 live tensors · last barrier: 12 ops, mark_step() at cell 3 line 2"
    )
    assert state_text(fakes.status(), "lazy") == (
        "lazy mode · not in a step · 0 pending ops · 0 live tensors · no barrier so far"
    )


def test_a_strips_line_names_only_what_is_open():
    assert strip_parts(Strip(state=fakes.status())) == ["0 live tensors"]
    assert strip_parts(Strip(state=FULL))[1:] == open_parts(FULL)


def test_the_folded_part_of_a_strip_tells_all_of_it():
    page = Strip(state=FULL, mode="eager").to_html()

    assert "214 pending ops, 4.1 MiB, from cell 4 line 6 on" in page
    assert "last barrier: 12 ops, mark_step() at cell 3 line 2" in page


def test_status_inside_a_step_tells_what_is_open(lab):
    source = (
        "with lazyrt.step('train'), lazyrt.scope('loss'):\n"
        "    y = x * 2\n"
        "    lazyrt.add_step_closure(int)\n"
        "    get_ipython().run_line_magic('lazy', 'status')\n"
    )
    lines = shown(lab, source).splitlines()

    assert (
        "now: in train · scope loss open · 1 closure queued · 1 pending op, 24 bytes, "
        "from cell 4 line 2 on · 2 live tensors"
    ) in [line.replace("lazy mode · ", "") for line in lines]


def test_a_step_that_stays_open_is_told_by_the_strip(lab):
    strip = shown(lab, "s = lazyrt.step('train'); s.__enter__(); y = x + 1")
    shown(lab, "s.__exit__(None, None, None)")

    assert "in train" in strip.splitlines()[0]


LOOP = (
    "def loop():\n"
    "    for batch in lazyrt.DeviceLoader([torch.ones(2, 3)] * 3):\n"
    "        loss = batch * x\n"
    "        if batch.shape[0] == 2:\n"
    "            break\n"
    "    return loss\n"
    "loss = loop()"
)


def test_a_leak_is_named_by_the_cell_that_left_it_and_one_magic_drops_it(lab):
    strip = shown(lab, LOOP)

    assert (
        "  left pending by the loop that ended at cell 4 line 5: 1 op, 24 bytes. They run at "
        "the next barrier; %lazy drop drops them"
    ) in strip.splitlines()
    assert shown(lab, "%lazy drop").startswith(
        "Dropped 1 pending op. Tensors that only they"
    )
    assert shown(lab, "%lazy drop").startswith("Nothing is pending, so nothing")


def test_a_leak_that_ran_in_the_same_cell_is_none(lab):
    assert "left pending" not in shown(lab, LOOP + "\nlazyrt.mark_step()")


def test_a_read_that_breaks_a_step_is_named_with_its_tensor_and_its_time(lab):
    source = (
        "with lazyrt.step('train', on_read='allow'):\n"
        "    loss = (x * 2).sum()\n"
        "    loss.item()"
    )
    strip = shown(lab, source)
    log = shown(lab, "%lazy step")

    for text in (strip, log):
        assert (
            "graph break in the step train: read by .item() of loss at cell 4 line 3 ran 2 ops"
            in text
        )
        assert " on their own in " in text
        assert "Read after the block, or use add_step_closure()" in text


def test_what_a_look_ran_is_named_in_strip_and_log(lab):
    source = (
        "with lazyrt.step('train'):\n"
        "    loss = (x * 2).sum()\n"
        "    text = repr(loss)\n"
        "    y = loss + 1\n"
        "    z = loss * 3"
    )
    strip = shown(lab, source)
    log = shown(lab, "%lazy step")

    for text in (strip, log):
        assert "2 ops ran once more to show loss at cell 4 line 3, " in text
        assert "; the step is as before" in text


def test_a_look_is_nothing_to_act_on_and_a_check_of_a_library_is():
    look = Looked(tensor="y", site="a.py:1", nodes=3, duration_ns=2, is_again=True)
    check = replace(look, tensor="what torch.distributions checks")

    assert urgent_notes(Strip(looks=(look, check))) == [str(check)]


def test_the_first_compile_of_another_step_is_no_recompile():
    other = (
        "another step of the program, which ends at optimizer.step() at cell 4 line 6"
    )

    assert compiled_text(other) == f"compiled: {other}"
    assert compiled_text("the loop ran once") == "recompiled: the loop ran once"


def test_equal_looks_of_a_loop_are_one_line(lab):
    source = (
        "for _ in range(3):\n"
        "    with lazyrt.step():\n"
        "        loss = (x * 2).sum()\n"
        "        text = repr(loss)"
    )
    strip = shown(lab, source)

    log = shown(lab, "%lazy step")

    for text in (strip, log):
        assert text.count("6 ops ran once more to show loss at cell ") == 1
        assert " line 4, 3 times, " in text
    assert re.search(r"^steps \d+ to \d+: 6 ops", log, re.MULTILINE)


def test_the_log_names_the_library_that_called_back(lab, tmp_path, monkeypatch):
    package = tmp_path / "site-packages" / "fakeimages"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("def call(f):\n    f()\n")
    monkeypatch.syspath_prepend(str(package.parent))

    run(
        lab, "import fakeimages\ny = x + 1\nfakeimages.call(lambda: lazyrt.mark_step())"
    )

    assert "mark_step() at cell 4 line 3 was called back by __init__.py:2" in shown(
        lab, "%lazy step"
    )


def test_marks_that_keep_finding_nothing_are_told_with_the_one_before_them(lab):
    source = (
        "for _ in range(3):\n"
        "    with lazyrt.step():\n"
        "        y = x + 1\n"
        "    lazyrt.mark_step()"
    )

    assert (
        "mark_step() at cell 4 line 4 found nothing to run, 3 times. Remove it: end of step at "
        "cell 4 line 2 comes before it"
    ) in shown(lab, source)


def test_one_mark_too_many_is_not_reported(lab):
    assert "found nothing" not in shown(
        lab, "y = x + 1\nlazyrt.mark_step()\nlazyrt.mark_step()"
    )


def test_breaks_of_one_line_are_told_once_for_all_their_steps():
    read = StepRow(3, 1, "read by .item()", "train.py:7", 5, tensor="loss", cut="train")
    rows = [replace(read, step=step, barrier_ns=2_000_000) for step in (3, 4, 5, 7)]

    assert step_notes(rows) == [
        (
            "steps 3 to 5, 7: graph break in the step train: read by .item() of loss at train.py:7 ran "
            "20 ops on their own in 8.0 ms. Read after the block, or use add_step_closure()"
        )
    ]
    assert step_notes(rows[:1])[0].startswith(
        "step 3: graph break in the step train: read by"
    )
