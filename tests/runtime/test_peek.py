"""How a peek computes what it is asked for, in counts: op by op, as one slice, or not at all."""

import pytest
import torch

import lazyrt
from lazyrt import config
from lazyrt.execution import compiler, cost_model, peek
from lazyrt.observe import events
from tests.harness import DEVICE

pytestmark = pytest.mark.lazy_only("is about the pending graph")


@pytest.fixture
def peeks():
    """Events of the peeks of a test, which finds no kind of op compiled."""
    found: list[events.Event] = []
    with (
        config.scoped(cache_dir=None),
        lazyrt.subscribe(found.append, events.TensorMaterialised),
    ):
        lazyrt.drop_executables()
        lazyrt.reset_counters()
        yield found


def six_kinds(x):
    """Return the result of six ops of different kinds, each cheap to compile."""
    for op in (torch.abs, torch.neg, torch.sign, torch.ceil, torch.floor, torch.square):
        x = op(x)
    return x


def test_unknown_kinds_of_ops_are_one_slice_and_one_compile(peeks):
    x = torch.ones(7, 11, device=DEVICE)
    lazyrt.mark_step()

    lazyrt.materialise(six_kinds(x))

    assert [(peek.strategy, peek.nodes) for peek in peeks] == [("slice", 6)]
    assert lazyrt.counters()["peek_compiles"] == 1


def test_known_kinds_of_ops_run_one_by_one_and_compile_nothing(peeks):
    x, y = torch.ones(7, 11, device=DEVICE), torch.rand(7, 11, device=DEVICE)
    lazyrt.mark_step()
    for op in (torch.abs, torch.neg, torch.sign):
        lazyrt.materialise(op(x))
    compiled = lazyrt.counters()["peek_compiles"]

    lazyrt.materialise(y.abs().neg().sign().neg().abs())

    assert (peeks[-1].strategy, peeks[-1].nodes) == ("op by op", 5)
    assert (compiled, lazyrt.counters()["peek_compiles"]) == (3, 3)


def test_what_builds_on_a_peeked_value_does_not_compute_that_again(peeks):
    h = torch.ones(7, 11, device=DEVICE).cos().exp()
    lazyrt.materialise(h)

    lazyrt.materialise(six_kinds(h))

    assert (peeks[-1].strategy, peeks[-1].nodes, peeks[-1].reused) == ("op by op", 6, 1)


def test_peeked_values_are_kept_within_the_stated_bytes(peeks):
    x = torch.ones(7, 11, device=DEVICE)
    lazyrt.mark_step()
    first, second = x + 1, x + 2

    with config.scoped(peek_memo_bytes=x.nbytes):
        for tensor in (first, second, first, second):
            lazyrt.materialise(tensor)

    assert [peek.strategy for peek in peeks] == [
        "op by op", "op by op", "memo", "op by op",
    ]  # fmt: skip


def test_an_op_on_an_input_and_on_a_pending_value_is_one_kind():
    x = torch.ones(7, 11, device=DEVICE)
    lazyrt.mark_step()

    nodes = lazyrt.pending_graph(x.neg().neg()).nodes

    assert len(nodes) == 2
    assert len({node.spec for node in nodes}) == 1


def test_executables_of_single_ops_are_begun_before_their_turn(peeks, monkeypatch):
    """XLA compiles some of a first print's kinds while Python traces the next."""
    begin, order = compiler.begin_spec, []

    def noted(spec, *args, **kwargs):
        order.append(f"begin {spec.name.split('.')[1]}")
        finish = begin(spec, *args, **kwargs)

        def finish_noted():
            order.append(f"finish {spec.name.split('.')[1]}")
            finish()

        return finish_noted

    monkeypatch.setattr(cost_model, "runs_as_slice", lambda *_, **__: False)
    x = torch.ones(7, 11, device=DEVICE)
    lazyrt.mark_step()
    monkeypatch.setattr(compiler, "begin_spec", noted)

    lazyrt.materialise(six_kinds(x).abs())

    names = ["abs", "neg", "sign", "ceil", "floor", "pow"]
    assert [each for each in order if each.startswith("begin")] == [
        f"begin {name}" for name in names
    ]
    assert order.index("finish abs") == peek._AHEAD + 1
    assert [each for each in order if each.startswith("finish")] == [
        f"finish {name}" for name in names
    ]
    assert (peeks[-1].strategy, lazyrt.counters()["peek_compiles"]) == ("op by op", 6)
