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
    def broken(*_):
        raise KeyError("a bug")

    with monkeypatch.context() as patch:
        patch.setattr("lazyrt.frontend.reads.require_lazy", broken)
        session.run_cell("lazyrt.materialise(x)")
        shown = "".join(capsys.readouterr())

    assert "/lazyrt/api.py" in shown
    assert "a bug" in shown


def test_unloading_gives_the_shell_its_own_traceback_back(shell):
    before = shell.showtraceback
    shell.run_line_magic("load_ext", "lazyviz")
    assert shell.showtraceback != before

    shell.run_line_magic("unload_ext", "lazyviz")

    assert shell.showtraceback == before
    assert "showtraceback" not in vars(shell)
