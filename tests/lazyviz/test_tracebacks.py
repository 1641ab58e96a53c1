"""Errors that the device raises on purpose are shown at the user's own line."""

import sys

import pytest

from tests.harness import DEVICE

LINES = {
    "wrong call": "x @ x.reshape(3, 2).T",
    "truth": "bool(x)",
    "usage": "lazyrt.materialise(3)",
    "step": "with lazyrt.step(): (x + 1).tolist()",
    "reading": "lazyviz.read('no such file')",
}


@pytest.fixture
def session(shell):
    shell.run_line_magic("load_ext", "lazyviz")
    shell.run_cell(
        f"import lazyrt, lazyviz, torch; x = torch.ones(2, 3, device={DEVICE!r})"
    )
    yield shell
    shell.run_line_magic("unload_ext", "lazyviz")


@pytest.mark.parametrize("name", LINES)
def test_a_refusal_is_shown_at_the_users_line_where_a_debugger_begins(
    session, capsys, name
):
    result = session.run_cell(LINES[name])

    shown = "".join(capsys.readouterr())
    assert type(result.error_in_exec).__name__ in shown
    innermost = result.error_in_exec.__traceback__
    while innermost.tb_next is not None:
        innermost = innermost.tb_next
    assert innermost.tb_frame.f_globals is session.user_global_ns
    assert "/lazyrt/" not in shown
    assert "<lazyrt kernel" not in shown
    assert sys.last_traceback is not None


def test_an_error_that_nobody_meant_to_raise_keeps_its_frames(
    session, capsys, monkeypatch
):
    with monkeypatch.context() as patch:
        patch.setattr("lazyrt.frontend.reads.require_lazy", divmod)
        session.run_cell("lazyrt.materialise(x)")
        shown = "".join(capsys.readouterr())

    assert "/lazyrt/api.py" in shown
    assert "unsupported operand" in shown


@pytest.mark.parametrize(
    "source",
    [
        "@lazyrt.step()\ndef f():\n    raise KeyError('mine')\nf()",
        (
            "def f(t):\n    raise KeyError('mine')\n"
            "with lazyrt.step():\n    lazyrt.add_step_closure(f, (x,))"
        ),
        (
            "def f():\n    raise KeyError('mine')\n    yield\n"
            "for batch in lazyrt.DeviceLoader(f()):\n    pass"
        ),
        "def f(*_):\n    raise KeyError('mine')\nlazyviz.minimise((x + 1), f)",
    ],
)
def test_an_error_of_the_users_own_is_shown_with_the_users_lines_alone(
    session, capsys, source
):
    session.run_cell(source)

    shown = "".join(capsys.readouterr())
    assert "raise KeyError('mine')" in shown
    assert source.splitlines()[-1 if "pass" not in source else -2].strip() in shown
    assert "/lazyrt/" not in shown
    assert "/lazyviz/" not in shown


def test_a_count_that_a_block_did_not_have_is_told_at_its_line(session, capsys):
    session.run_cell(
        "from lazyrt.testing import assert_compiles\nwith assert_compiles(1):\n    pass"
    )

    shown = "".join(capsys.readouterr())
    assert "AssertionError: expected 1 new step graph, found 0" in shown
    assert "contextlib.py" not in shown
    assert "testing.py" not in shown


def test_unloading_gives_the_shell_its_own_traceback_back(shell):
    before = shell.showtraceback
    shell.run_line_magic("load_ext", "lazyviz")
    assert shell.showtraceback != before

    shell.run_line_magic("unload_ext", "lazyviz")

    assert shell.showtraceback == before
    assert "showtraceback" not in vars(shell)
