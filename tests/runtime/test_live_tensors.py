"""Live tensors with their holders, and what keeps growing."""

import functools
import gc
import json
import sys
import weakref
from typing import Any, ClassVar, NamedTuple

import pytest
import torch
from torch import nn

import lazyrt
from lazyrt import Graph
from lazyrt.control.live_tensors import NOT_FOUND, LiveRow, held_by, line_of_keeping
from lazyrt.errors import UsageError
from lazyrt.execution.cost_model import ancestor_counts
from lazyrt.frontend import record
from lazyrt.frontend.buffers import state_of
from lazyrt.frontend.provenance import set_cell_namer
from lazyrt.observe import events
from lazyrt.observe.events import SourceLocation
from tests.graphs import Program
from tests.harness import DEVICE, recorded


class Pair(NamedTuple):
    first: object
    second: object


@pytest.fixture(autouse=True)
def _only_ours():
    """Drop what other tests left: an equal op would show the line that recorded it first."""
    gc.collect()
    lazyrt.mark_step()
    record.begin_run()


def row_of(tensor, report):
    number = state_of(tensor).base.number
    return next(row for row in report.rows if row.id == number)


def holders(tensor, **options):
    report = lazyrt.live_tensors_report(**options)
    return [tuple(each) for each in row_of(tensor, report).holders]


def made():
    return torch.ones(2, device=DEVICE) * 3


@pytest.mark.not_eager("looks at what is pending")
def test_tensors_are_summed_by_what_they_are_to_training():
    model = torch.nn.Linear(2, 3).to("lazyrt")
    optimizer = torch.optim.Adam(model.parameters())
    x = torch.ones(4, 2).to("lazyrt")
    model(x).sum().backward()
    optimizer.step()
    loss = model(x).exp().sum()
    lazyrt.mark_step()

    report = lazyrt.live_tensors_report(namespace=locals())

    assert report.totals == {
        "parameters": (2, 36),
        "gradients": (2, 36),
        "optimizer state": (4, 72),
        "activations": (1, 48),
        "others": (2, 36),
    }
    assert report.notes[0] == (
        "parameters: 2, 36 bytes · gradients: 2, 36 bytes · optimizer state: 4, 72 bytes · "
        "activations: 1, 48 bytes · others: 2, 36 bytes"
    )
    assert not loss.isnan()


@pytest.mark.not_eager("asks for what is pending")
def test_a_row_has_type_size_ops_age_and_line():
    x = torch.ones(4, 8).to(DEVICE)
    lazyrt.mark_step()
    lazyrt.mark_step()
    y = (x + 1).exp()

    report = lazyrt.live_tensors_report()
    ready, pending = row_of(x, report), row_of(y, report)

    assert (ready.type, ready.nbytes, ready.is_pending) == ("f32[4,8]", 128, False)
    assert (ready.age, ready.ir_nodes, ready.ir) == (2, 0, "")
    assert str(ready.site).startswith("test_live_tensors.py:")
    assert (pending.age, pending.ir_nodes, pending.op) == (0, 2, "aten.exp.default")
    assert pending.site == pending.frames[-1]
    assert "aten.exp.default(%" in pending.ir
    assert pending.device == "lazyrt:0"


class Shared:
    """A class with a cache that all its objects share."""

    cache: ClassVar[list[torch.Tensor]] = []


def remembers():
    """Have an attribute of its own."""


def test_what_a_class_or_a_function_holds_is_found():
    """Caches that no object holds."""
    x, y = made(), made()
    Shared.cache.append(x)
    remembers.last = y  # type: ignore[attr-defined]
    thing = Shared()
    try:
        places = holders(x), holders(y)
    finally:
        Shared.cache.clear()
        del remembers.last  # type: ignore[attr-defined]

    assert thing.cache == []
    assert ("Shared.cache[0]", "list") in places[0]
    assert ("remembers.last", "function") in places[1]


@pytest.mark.not_eager("looks at what is pending")
def test_the_threshold_is_one_of_pending_nodes():
    x = torch.ones(2, device=DEVICE)
    long = x
    for _ in range(6):
        long = long + 1

    everything = lazyrt.live_tensors_report(0)
    large = lazyrt.live_tensors_report(5)

    assert [row.ir_nodes for row in large.rows] == [7]
    assert large.left_out == len(everything.rows) - 1
    assert "that need at most 5 pending ops left out" in large.summary
    assert lazyrt.live_tensors_report(500).rows == ()


@pytest.mark.parametrize("threshold", [-1, 1.5, True, "500", None])
def test_a_threshold_that_is_no_count_is_refused(threshold):
    with pytest.raises(UsageError, match="500 those that hold large graphs"):
        lazyrt.live_tensors_report(threshold)


def test_the_number_of_a_tensor_stays():
    x = made()
    first = row_of_id(x)
    lazyrt.mark_step()

    assert row_of_id(x) == first


def row_of_id(tensor):
    lazyrt.live_tensors_report()
    return state_of(tensor).base.number


def test_a_view_is_held_with_its_base():
    base = made()
    view = base[:1]
    del base

    assert ("view", "local of test_a_view_is_held_with_its_base") in holders(view)


@pytest.mark.not_eager("a view owns a copy of its own shape")
def test_a_row_has_the_shape_of_the_tensor_that_is_held():
    """Autograd makes a bias's gradient as a view of a sum of shape [1, n]."""
    layer = torch.nn.Linear(3, 5).to(DEVICE)
    layer(torch.ones(2, 3).to(DEVICE)).sum().backward()
    part = made().reshape(1, -1)[:, :1]  # a part: its storage's own shape is told

    lazyrt.mark_step()

    shapes = {row.name: row.shape for row in lazyrt.live_tensors_report().rows}
    assert shapes["layer.bias.grad"] == (5,)
    assert shapes["layer.weight.grad"] == (5, 3)
    assert shapes["part"] == tuple(state_of(part).base.type[0]) != tuple(part.shape)


def test_locals_lists_dicts_and_tuples_are_named_with_their_paths():
    tensor = made()
    log = {"loss": [tensor], "pair": Pair(1, tensor)}

    found = holders(tensor)

    assert log["loss"]
    here = test_locals_lists_dicts_and_tuples_are_named_with_their_paths.__name__
    assert {("tensor", "local of holders"), ("tensor", f"local of {here}")} & set(found)
    assert ("log['loss'][0]", "list") in found
    assert ("log['pair'].second", "tuple") in found


def test_a_closure_a_default_and_a_partial_are_named():
    tensor = made()

    def show():
        return tensor

    def other(kept=tensor):
        return kept

    bound = functools.partial(print, tensor)

    found = holders(tensor)

    assert bound.args
    assert ("tensor", "closure of show") in found or any(
        "closure" in holder for _, holder in found
    )
    assert any("other's default 0" in text for text, _ in found)
    assert any("bound.args[0]" in text for text, _ in found)


def test_modules_gradients_and_optimizers_are_named():
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(3, 2, device=DEVICE)).sum().backward()
    optimizer.step()

    report = lazyrt.live_tensors_report()

    names = {name for row in report.rows for name in row.names}
    assert {
        "model.0.weight",
        "model.0.weight.grad",
        "model.1.running_mean",
        "model.0.weight.exp_avg",
    } <= names
    moment = next(row for row in report.rows if "model.0.weight.exp_avg" in row.names)
    assert moment.holders[0].holder == "optimizer"


def test_slots_sets_generators_and_keys_are_named():
    class Slotted:
        __slots__ = ("empty", "kept")

        def __init__(self, kept):
            self.kept = kept

    def batches():
        held = made()
        yield held
        yield held

    slotted, one, key = Slotted(made()), {made()}, made()
    by_tensor = {key: 1}
    generator = batches()
    next(generator)

    names = {
        holder.text
        for row in lazyrt.live_tensors_report().rows
        for holder in row.holders
    }

    assert {
        "slotted.kept",
        "one{...}",
        "generator: held",
        "a key of by_tensor",
    } <= names
    assert by_tensor[key] == len(one)
    assert slotted.kept is not None
    assert lazyrt.counters()["peek_executions"] == 0


@pytest.mark.not_eager("looks at what is pending")
def test_a_traceback_is_named_with_function_and_exception(monkeypatch):
    def fails(x):
        hidden = x * 5
        raise ValueError("no", hidden)

    try:
        fails(made())
    except ValueError as error:
        monkeypatch.setattr(sys, "last_value", error, raising=False)

    rows = lazyrt.live_tensors_report().rows

    hidden = next(
        row for row in rows if row.op == "aten.mul.Tensor" and row.ir_nodes > 2
    )
    found = [tuple(each) for each in hidden.holders]
    place = f"hidden in {fails.__qualname__}()"
    assert (place, "traceback of ValueError, sys.last_value") in found
    assert ("sys.last_value.args[1]", "traceback of ValueError") in found
    assert hidden.names == ()


@pytest.mark.not_eager("looks at what is pending")
def test_autograd_is_named_by_the_tensor_whose_backward_needs_it():
    weight = torch.ones(3, requires_grad=True, device=DEVICE)
    loss = (weight * 2).exp().sum()

    rows = lazyrt.live_tensors_report().rows

    saved = next(row for row in rows if row.op == "aten.exp.default")
    assert [tuple(each) for each in saved.holders] == [("backward of loss", "autograd")]
    loss.backward()
    assert not any(
        row.op == "aten.exp.default" for row in lazyrt.live_tensors_report().rows
    )


def test_hooks_on_saved_tensors_are_not_run():
    ran = []

    def unpack(packed):
        ran.append(packed)
        return packed

    weight = torch.ones(3, requires_grad=True, device=DEVICE)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, unpack):
        loss = (weight * 2).exp().sum()

    lazyrt.live_tensors_report()

    assert ran == []
    loss.backward()
    assert ran


def test_a_namespace_can_be_given():
    place = {"kept": [made()]}
    tensor = place["kept"][0]

    assert ("kept[0]", "list") in holders(tensor, namespace=place)


def test_what_nothing_in_python_leads_to_says_so():
    hidden = iter([torch.ones(5, 7, device=DEVICE)])  # C code holds it

    row = next(r for r in lazyrt.live_tensors_report().rows if r.shape == (5, 7))

    assert held_by(row) == NOT_FOUND
    assert row.names == ()
    assert next(hidden) is not None


def grow(history, steps, keep):
    for _ in range(steps):
        loss = torch.ones(3, device=DEVICE).exp().sum()
        history.append(keep(loss))
        lazyrt.mark_step()


def test_a_list_that_keeps_losses_is_named_with_its_line():
    history: list[Any] = []
    grow(history, 5, lambda loss: loss)
    source = grow.__code__.co_firstlineno + 3

    report = lazyrt.live_tensors_report()

    (growth,) = report.growth
    assert str(growth).startswith(
        "+1 live tensor per step, held by list history "
        f"(test_live_tensors.py:{source}): 5 since step "
    )
    assert growth.nbytes == 20
    assert [row.growth for row in report.rows if row.growth] == [1] * 5
    assert str(growth) in report.to_text()


def test_graphs_that_losses_keep_for_backward_are_named():
    weight = torch.ones(3, requires_grad=True, device=DEVICE)
    history = []
    for _ in range(4):
        history.append((weight * 2).exp().sum())
        lazyrt.mark_step()

    held = [growth.holder for growth in lazyrt.live_tensors_report().growth]

    assert sorted(held) == ["autograd's graphs under history", "list history"]


def test_detached_numbers_and_lists_made_at_once_do_not_grow():
    history: list[Any] = []
    grow(history, 5, lambda loss: loss.item())
    batches = [made() for _ in range(5)]

    assert lazyrt.live_tensors_report().growth == ()
    assert len(batches) == 5


@pytest.mark.parametrize(
    ("source", "path", "line"),
    [
        ("a = []\na.append(1)", "a", 2),
        ("log = {}\nlog['x'] = 1", "log", 2),
        ("s = 0\ns += 1", "s", 2),
        ("t = T()\nt.log['x'].extend(y)", "self.log", 2),
        ("a = []", "a", None),
        ("a = [", "a", None),
        ("a.append(1)", "a[", None),
    ],
)
def test_the_line_that_keeps_is_found_in_the_source(tmp_path, source, path, line):
    file = tmp_path / "program.py"
    file.write_text(source, encoding="utf-8")

    found = line_of_keeping(path, SourceLocation(str(file), 1, "f", 3))

    assert (found.line if found is not None else None) == line
    assert found is None or str(found) == f"cell 3 line {line}"


@pytest.mark.not_eager("looks at what is pending")
def test_an_earlier_cell_that_makes_the_next_graph_bigger_is_named():
    cells = {"cell7.py": 7, "cell9.py": 9}
    set_cell_namer(cells.get)
    space = {"torch": torch}
    try:
        early = (
            "x = torch.ones(4, device='lazyrt')\na, b, c = x.exp(), x.sin(), x.cos()"
        )
        exec(compile(early, "cell7.py", "exec"), space)  # noqa: S102
        exec(compile("y = x + 1", "cell9.py", "exec"), space)  # noqa: S102
        report = lazyrt.live_tensors_report(namespace=space)
        exec(compile("del a, b, c", "cell9.py", "exec"), space)  # noqa: S102
        after = lazyrt.live_tensors_report(namespace=space)
    finally:
        set_cell_namer(None)

    (waiting,) = report.waiting
    assert str(waiting) == (
        "cell 7 holds 3 tensors (a, b, c) that make the next step's graph bigger: 3 ops run "
        "only for them"
    )
    assert str(waiting) in report.notes
    assert after.waiting == ()


@pytest.mark.not_eager("looks at what is pending")
def test_rows_are_sorted_by_any_column():
    gc.collect()
    small, large = made(), torch.ones(9, 9, device=DEVICE)
    lazyrt.mark_step()
    young = large + 1
    report = lazyrt.live_tensors_report()

    by = {
        name: report.sorted(name).rows for name in ("size", "ops", "age", "name", "id")
    }

    assert [row.nbytes for row in by["size"]] == [324, 324, 8]
    assert by["ops"][0].id == by["id"][0].id == row_of(young, report).id
    assert by["age"][-1].id == row_of(young, report).id
    assert [row.name for row in by["name"]] == ["large", "small", "young"]
    assert report.sorted("size", reverse=True).rows[0].id == row_of(small, report).id
    with pytest.raises(UsageError, match="no column 'colour'"):
        report.sorted("colour")


@pytest.mark.not_eager("looks at what is pending")
def test_the_text_has_a_table_totals_and_a_limit():
    kept = [torch.ones(n + 1, device=DEVICE) for n in range(5)]

    text = lazyrt.live_tensors_report().to_text(limit=3)

    assert text.splitlines()[0].split() == [
        "id", "name", "type", "size", "ops", "age", "made", "at", "held", "by",
    ]  # fmt: skip
    assert "... and 2 more, 12 bytes" in text
    assert "5 live tensors, 60 bytes · 5 pending, 60 bytes" in text
    assert len(kept) == 5


@pytest.mark.not_eager("looks at what is pending")
def test_no_live_tensor_is_said():
    report = lazyrt.live_tensors_report()

    assert report.to_text() == "No tensor lives on the lazy device."


def test_plain_data_is_json():
    space = {"log": {"first": made()}}

    report = lazyrt.live_tensors_report(namespace=space)

    plain = json.loads(json.dumps(report.to_dict()))
    assert plain["rows"][0]["bytes"] == 8
    assert any(each["holder"] == "dict" for each in plain["rows"][0]["held_by"])


@pytest.mark.not_eager("looks at what is pending")
def test_the_number_of_nodes_is_that_of_each_cone():
    wanted = []
    for seed in range(5):
        program = Program(seed)
        tensors = program.run(program.data(DEVICE))
        values = [state_of(tensor).base.value for tensor in tensors]
        wanted += [v for v in values if v is not None and v.node is not None]
    assert len(wanted) > 10

    sizes = ancestor_counts(wanted)

    for value in wanted:
        assert sizes[value] == len(Graph([value]).nodes)


@pytest.mark.not_eager("looks at what is pending")
def test_cones_are_counted_over_blocks(monkeypatch):
    from lazyrt.execution import cost_model

    monkeypatch.setattr(cost_model, "_BLOCK", 7)
    x = torch.ones(2, device=DEVICE)
    for _ in range(30):
        x = x + x.sin()
    value = state_of(x).base.value
    assert value is not None

    assert ancestor_counts([value]) == {value: len(Graph([value]).nodes)}


def test_looking_changes_neither_graph_nor_counts():
    def program(look):
        torch.manual_seed(0)
        model = nn.Linear(4, 4).to(DEVICE)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        history = []
        with recorded(events.GraphCaptured, events.ExecuteStarted) as found:
            for _ in range(3):
                loss = model(torch.rand(3, 4, device=DEVICE)).square().sum()
                look()
                loss.backward()
                look()
                optimizer.step()
                optimizer.zero_grad()
                history.append(loss.detach())
                del loss
                look()
                lazyrt.mark_step()
        kinds = [
            (type(e).__name__, e.fingerprint, getattr(e, "donated", None), getattr(e, "roots", None))
            for e in found
        ]  # fmt: skip
        return kinds, [value.item() for value in history]

    plain = program(lambda: None)
    looked = program(lambda: str(lazyrt.live_tensors_report()))

    assert looked == plain


def test_the_walk_leaves_no_reference_behind():
    def inner():
        tensor = torch.ones(3, device=DEVICE, requires_grad=True)
        kept = [tensor.exp()]
        report = lazyrt.live_tensors_report()
        return report, weakref.ref(state_of(kept[0])), weakref.ref(tensor)

    report, buffer, tensor = inner()
    lazyrt.mark_step()

    assert buffer() is None
    assert tensor() is None
    assert report.rows


def test_a_dead_buffer_that_the_step_wrote_is_not_live():
    x = torch.ones(3).to(DEVICE)
    lazyrt.mark_step()
    x.add_(1)
    assert len(lazyrt.live_tensors()) == 1

    del x

    assert lazyrt.live_tensors() == []


def test_an_object_that_cannot_be_looked_into_is_skipped():
    class Broken:
        @property  # type: ignore[misc]
        def __class__(self):
            raise RuntimeError("no")

    broken, tensor = Broken(), made()

    found = holders(tensor)

    assert found[0][0] == "tensor"
    assert isinstance(row_of(tensor, lazyrt.live_tensors_report()), LiveRow)
    del broken


def test_only_buffers_are_named():
    from lazyrt.frontend.names import names_of_buffers

    tensor = made()
    view = tensor[:1]

    known = names_of_buffers()

    assert id(None) not in known
    assert known[id(state_of(view).base)].text in {"tensor", "view"}
