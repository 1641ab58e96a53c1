"""`%lazy diff` and `%lazy minimise` on the steps of a session."""

from types import SimpleNamespace

import pytest

import lazyrt
from lazyviz import session
from lazyviz.timing.compile_time import of_step
from tests.conftest import displayed


def test_the_steps_of_a_session_can_be_compared(lab):
    def shown(source):
        lab.display_pub.outputs.clear()
        lab.run_cell(source, store_history=True)
        return displayed(lab)[0]

    lab.run_cell("y = x + 1\nlazyrt.mark_step()", store_history=True)
    lab.run_cell("z = (x + 1) * 3\nlazyrt.mark_step()", store_history=True)
    loaded = session.current(lab)
    assert loaded is not None
    first, second = (row.step for row in loaded.steps[-2:])
    before = lazyrt.counters()

    numbered = shown(f"%lazy diff {first} {second}")
    last = shown("%lazy diff last")

    assert numbered.startswith(f"step {first} (graph.")
    assert f"→ step {second} (graph." in numbered
    assert "aten.mul.Tensor(" in numbered
    assert last == numbered
    assert lazyrt.counters() == before


def test_the_graphs_of_two_pending_tensors_are_told_apart_by_their_names(lab):
    lab.run_cell("early, late = (x * 2).sum(), (x * 2).tanh().sum()")
    lab.display_pub.outputs.clear()
    lab.run_cell("%lazy diff early late")

    assert "pending graph of early → pending graph of late" in displayed(lab)[0]


@pytest.mark.parametrize("line", ["diff 999998 999999", "compile 999998"])
def test_a_step_that_is_not_known_is_refused(lab, capsys, line):
    lab.run_cell(
        "lazyrt.mark_step()\ny = torch.ones(2, device='lazyrt') + 1\nlazyrt.mark_step()"
    )
    latest = max(each.last_step for each in lazyrt.compiled_graphs())

    lab.run_cell(f"%lazy {line}", store_history=True)

    assert (
        f"there is no graph of step 999998: the latest that ran is step {latest}."
        in capsys.readouterr().err
    )


def test_where_no_step_has_run_that_is_said():
    runtime = SimpleNamespace(compiled_graphs=lambda: (), graph_of_step=lambda _: None)

    with pytest.raises(ValueError, match="step 3: no step has run yet"):
        of_step(runtime, 3)  # type: ignore[arg-type]


def test_one_step_has_nothing_to_be_compared_with(lab, capsys):
    lab.run_cell("%lazy diff 3", store_history=True)

    assert (
        "%lazy diff takes `last`, or two programs, such as %lazy diff 11 12"
        in capsys.readouterr().err
    )


def test_paths_with_spaces_are_two_programs(lab, capsys):
    lab.run_cell("%lazy diff 'no such.hlo' 'nor this.hlo'", store_history=True)

    error = capsys.readouterr().err
    assert "no such.hlo" in error
    assert "takes `last`" not in error


def test_the_magic_cuts_a_step_down_to_what_another_lacks(lab, capsys):
    """By another step, by a graph's name, and by a function of a graph."""
    lab.run_cell("y = (x + 1).exp()\nlazyrt.mark_step()", store_history=True)
    lab.run_cell("y = (x + 1).exp().cumsum(0).sin()\nlazyrt.mark_step()")
    lab.run_cell("def shows(part): return 'aten.sin.default' in part.ops")
    first, last = lazyrt.compiled_graphs()[-2:]
    for line, ops in (
        (f"{last.first_step} {first.first_step}", ("cumsum", "sin")),
        (f"{last.name} {first.name}", ("cumsum", "sin")),
        (f"{last.name} shows", ("sin",)),
    ):
        lab.display_pub.outputs.clear()
        assert lab.run_cell(f"%lazy minimise {line}").success
        text = lab.display_pub.outputs[0]["data"]["text/plain"]
        assert "instructions show it" in text
        assert any(f"aten.{op}" in text for op in ops)
        assert "aten.exp" not in text

    for line, message in (
        ("", "takes a program and what to look for"),
        (f"{first.name} {last.name} 3", "takes a program and what to look for"),
        (f"{first.name} {first.name}", "the other program lacks, so there is no part"),
        ("123456 shows", "no graph of step 123456"),
    ):
        capsys.readouterr()
        lab.run_cell(f"%lazy minimise {line}")
        assert message in "".join(capsys.readouterr())
