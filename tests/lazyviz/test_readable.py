"""What a cell shows of the runtime's own results, and what their wrong use says."""

import pytest
import torch
from IPython.lib.pretty import pretty

import lazyrt
import lazyviz
from lazyrt.errors import UsageError
from tests.harness import lazy


def test_records_show_a_line_each_and_no_internals():
    x = lazy(torch.ones(3))
    total = (x * 2).sum()
    lazyrt.mark_step()

    graphs = pretty(lazyrt.compiled_graphs())
    texts = [
        pretty(shown)
        for shown in (
            lazyrt.status(),
            lazyrt.counters(),
            lazyrt.look(x),
            lazyrt.inspect(total + 1),
            lazyrt.config,
            lazyrt.cached_executables()[:3],
        )
    ]

    assert graphs.count("\n") <= len(lazyrt.compiled_graphs())
    assert "· 2 ops, 1 input, 1 output ·" in graphs
    assert "Vertex" not in repr(lazyrt.compiled_graphs())
    assert texts[0].splitlines()[-1].startswith("last barrier: 2 ops, mark_step() at ")
    assert "executions " in texts[1]
    assert "others are 0" in texts[1]
    assert texts[2].startswith(
        "float32[3] · 1 to 1 · mean 1, std 0\ntensor([1., 1., 1.])"
    )
    assert "1 op, 1 input, 1 output; pending" in texts[3]
    assert "8589934592 (8.0 GiB)" in texts[4]
    assert all("object at 0x" not in text for text in texts)
    assert total.item() == 6


def test_a_list_of_tensors_is_refused_without_a_look_at_them():
    pending = lazy(torch.ones(3)) * 5
    lazyrt.reset_counters()

    with pytest.raises(UsageError, match=r"got a list of 2, and takes tensors"):
        lazyrt.materialise([pending, pending])  # type: ignore[call-overload]

    assert lazyrt.counters()["peek_executions"] == 0
    assert lazyrt.is_pending(pending)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lazyrt.lowers, "got no name"),
        (lambda: lazyrt.lowers("aten.add.Tensor")(3), "cannot be called"),  # type: ignore[type-var]
        (lambda: lazyrt.look(lazy(torch.ones(2, 3)), 5), "not the numbers of two"),  # type: ignore[arg-type]
        (lambda: lazyrt.pending_graph(torch.nn.Linear(2, 2)), "got a module"),  # type: ignore[arg-type]
        (lambda: lazyviz.minimise(lazy(torch.ones(2)) + 1, None), "cannot be called"),  # type: ignore[arg-type]
        (lambda: lazyviz.read(3), "no path"),  # type: ignore[arg-type]
        (lambda: lazyviz.report(3), "no path"),  # type: ignore[arg-type]
        (
            lambda: lazyviz.explore(torch.nn.Linear(2, 2), 1, 2),
            r"Linear cannot be called so: too many positional arguments",
        ),
        (lambda: lazyviz.timeline("a"), "a number of cells"),
        (lambda: lazyviz.diff(torch.ones(2), 3), "a tensor on cpu has no graph"),
    ],
)
def test_a_wrong_argument_is_named(call, said):
    with pytest.raises(Exception, match=said) as caught:
        call()

    assert caught.type is not TypeError
    assert torch.equal((lazy(torch.ones(2)) + 1).cpu(), torch.full((2,), 2.0))


def test_values_without_an_element_are_compared_too():
    empty = lazy(torch.ones(4))[:0] * 2

    assert "agree" in str(lazyviz.compare_modes(empty, lazy(torch.ones(2)) + 1))
