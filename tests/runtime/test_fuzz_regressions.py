"""Programs that once differed from the CPU, found by `python -m benchmarks fuzz` and shrunk."""

import pytest

from benchmarks.programs import START, Program, check, is_as_said

PROGRAMS = {
    "a write to a part of an expanded view that shows each element once": (
        "d = a[1:2]",
        "e = d.unsqueeze(0).expand(2, -1, -1)",
        "e[0] = 0.5",
        "e[1, 0, 2] = 9",
    ),
    "a number for all elements of a view that repeats them": (
        "d = b.unsqueeze(0).expand(2, -1, -1, -1)",
        "d.fill_(3)",
        "e = a[1:].t().unsqueeze(1).expand(-1, 3, -1)",
        "e[2:].zero_()",
        "f = b[0].expand(2, 3, 4)",
    ),
    "the gradient of a write to a part of a tensor": (
        "d = w * 2",
        "d[1:3].mul_(a[1:3])",
        "(d * d.detach().cos()).sum().backward()",
    ),
    "the gradient of a write through a chain of views": (
        "d = w * 2",
        "e = d.t()[1:3]",
        "e.select(1, 2).copy_(a[0, :2])",
        "(d * e.detach().sum()).sum().backward()",
    ),
}


@pytest.mark.parametrize("lines", PROGRAMS.values(), ids=PROGRAMS)
def test_a_program_that_differed_once_does_so_no_longer(lines):
    check(Program((*START, *lines)))


def test_a_view_of_which_torch_says_nothing_does_not_stop_the_search_for_names(caplog):
    lines = ("d = w * 2", "e = d.chunk(2, 0)[0]", "d.mul_(0.5)", "mark_step()")

    check(Program((*START, *lines)))

    assert caplog.text == ""


def test_a_write_to_repeated_elements_is_refused_as_on_the_cpu():
    lines = (*START, "d = a[:1].expand(2, 4)", "d.mul_(2)")

    check(Program(lines, RuntimeError))


def test_a_list_op_in_place_spoils_what_autograd_has_saved_as_on_the_cpu():
    lines = ("d = w.softmax(-1)", "torch._foreach_mul_([d], 0.5)", "d.sum().backward()")

    check(Program((*START, *lines), RuntimeError))


def test_a_shorter_program_must_end_as_it_says():
    write = ("d = w.softmax(-1)", "torch._foreach_mul_([d], 0.5)")
    end = "d.sum().backward()"

    assert is_as_said(Program((*START, *write, end), RuntimeError))
    assert not is_as_said(Program((*START, *write, end)))
    assert not is_as_said(Program((*START, end), RuntimeError))
