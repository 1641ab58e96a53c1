"""What `torch.compile` did is told: functions, guards that failed, graph breaks; and costs nothing."""

import enum
from collections import defaultdict
from typing import Any

import pytest
import torch
from torch import nn

import lazyrt
from lazyrt.control import compiled_frames
from lazyrt.frontend import recorded_calls, torch_compat
from lazyrt.observe import events
from lazyrt.observe.events import FrameCompiled, GraphBreakReached
from tests.harness import DEVICE, cold_start, recorded

pytestmark = pytest.mark.lazy_only("is about graphs that are recorded as one call")


@pytest.fixture(autouse=True)
def _no_graphs_of_others():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def ones(*shape, **options):
    return torch.ones(*shape, device=DEVICE, **options)


def told(function, *calls):
    """Return what `torch.compile` told while it called a function with some arguments."""
    compiled = torch.compile(function, backend="lazyrt")
    with recorded(FrameCompiled, GraphBreakReached) as found:
        for args in calls:
            compiled(*args)
    return found


def frames(found):
    return [event for event in found if isinstance(event, FrameCompiled)]


def reached(found):
    return [event for event in found if isinstance(event, GraphBreakReached)]


def scaled(x, factor):
    return x * factor


NUMBER = 2


def by_global(x):
    return x * NUMBER


@pytest.mark.parametrize(
    ("function", "first", "second", "says"),
    [
        (scaled, (4, 2), (5, 2), "`x.shape[0]` is 5, was 4"),
        (scaled, (4, 2), (4, 3), "`factor` is 3, was 2"),
        (scaled, (4, 2), (4, 2.5), "`factor` is 2.5, was 2"),
        (scaled, (4, 2.5), (4, True), "`factor` is True, was 2.5"),
    ],
)
def test_a_value_that_differs_is_told_with_what_it_was(function, first, second, says):
    again = frames(told(function, *((ones(n), by) for n, by in (first, second))))[1]

    assert again.function == "scaled"
    assert again.guard.text == says


def test_a_dtype_a_rank_a_gradient_and_a_device_are_told_by_name():
    calls = [
        (ones(4),),
        (ones(4, dtype=torch.float64),),
        (ones(4, 1, dtype=torch.float64),),
        (ones(4, 1, dtype=torch.float64, requires_grad=True),),
        (torch.ones(4, 1, dtype=torch.float64, requires_grad=True),),
    ]

    found = frames(told(lambda x: x * 2, *calls))

    assert [frame.guard.text for frame in found[1:]] == [
        "`x.dtype` is float64, was float32",
        "`x.dim()` is 2, was 1",
        "`x.requires_grad` is True, was False",
        "`x` is on cpu, was on lazyrt",
    ]


def test_globals_closures_attributes_and_the_mode_of_a_model_are_told(monkeypatch):
    step = 2
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5)).to(DEVICE)

    def by_closure(x):
        return x * step

    compiled = [torch.compile(f, backend="lazyrt") for f in (by_global, by_closure)]
    whole = torch.compile(model, backend="lazyrt")
    with recorded(FrameCompiled) as found:
        for each in (*compiled, whole):
            each(ones(2, 2))
        monkeypatch.setattr(f"{__name__}.NUMBER", 3)
        step = 4
        model.eval()
        for each in (*compiled, whole):
            each(ones(2, 2))
        with torch.no_grad():
            whole(ones(2, 2))

    assert [(frame.function, frame.guard.text) for frame in found[3:]] == [
        ("by_global", "`NUMBER` is 3, was 2"),
        ("by_closure", "`step` is 4, was 2"),
        ("Sequential", "`Sequential.1.training` is False, was True"),
        ("Sequential", "grad_mode is False, was True"),
    ]


def test_lists_of_another_length_and_tensors_that_are_one_are_told():
    one, two = ones(2), ones(2)

    summed = frames(told(lambda parts: sum(parts) * 2, ([one],), ([one, two],)))
    added = frames(told(lambda x, y: x + y, (one, two), (one, one)))

    assert summed[1].guard.text == "`len(parts)` is 2, was 1"
    assert added[1].guard.text == "`x` and `y` are one tensor, were several"


class Kind(enum.Enum):
    SINE = 1
    COSINE = 2


def by_kind(x, kind):
    return x.sin() if kind is Kind.SINE else x.cos()


def by_function(x, function):
    return function(x)


def by_even_size(x):
    return x * 2 if x.shape[0] % 2 == 0 else x + 1


def by_equal_sizes(x, y):
    return x + 1 if x.shape[0] == y.shape[0] else y.sum() + x


def by_dictionary(x, numbers):
    return x * 2 if len(numbers) == 0 else x + 1


def by_option(x, option):
    return x * 2 if option is None else x * option


@pytest.mark.parametrize(
    ("function", "calls", "says"),
    [
        (by_kind, [(4, Kind.SINE), (4, Kind.COSINE)], "`kind` is Kind.COSINE, was another Kind"),
        (by_function, [(4, torch.sin), (4, torch.cos)], "`function` is cos, was another builtin_function_or_method"),
        (by_option, [(4, None), (4, 2.5)], "`option` is 2.5, was None"),
        (by_dictionary, [(4, defaultdict(int)), (4, defaultdict(int, a=1))], "`len(numbers)` is 1, was 0"),
        (lambda x, dtype: x.to(dtype), [(4, torch.float64), (4, torch.int32)], "`dtype` is torch.int32, was torch.float64"),
        (lambda x, f: x * f, [(4, 2.5), (4, 3.5), (4, float("nan"))], "`not math.isnan(f)` does not hold any more: `f` is nan"),
        (by_even_size, [(4,), (6,), (7,)], "`(x.shape[0] % 2) == 0` does not hold any more: `x.shape[0]` is 7"),
    ],
)  # fmt: skip
def test_a_guard_of_another_kind_than_a_number_is_told_with_what_is_there_now(
    function, calls, says
):
    given = [(ones(n), *rest) for n, *rest in calls]

    again = frames(told(function, *given))[-1]

    assert again.guard.text == says


def test_two_sizes_that_differ_now_are_told():
    given = [(ones(n), ones(m)) for n, m in ((4, 4), (5, 5), (6, 7))]

    again = frames(told(by_equal_sizes, *given))[-1]

    assert again.guard.text.startswith("`y.shape[0] == x.shape[0]` does not hold")
    assert "`y.shape[0]` is 7" in again.guard.text
    assert "`x.shape[0]` is 6" in again.guard.text


def test_a_parameter_that_is_frozen_or_replaced_is_told():
    model: Any = nn.Linear(2, 2).to(DEVICE)
    whole = torch.compile(model, backend="lazyrt")
    with recorded(FrameCompiled) as found:
        whole(ones(2, 2))
        model.weight.requires_grad_(requires_grad=False)
        whole(ones(2, 2))
        model.bias = None
        whole(ones(2, 2))

    assert [frame.guard.text for frame in found[1:]] == [
        "`Linear.weight.requires_grad` is False, was True",
        "`Linear.bias` is of type NoneType, was a tensor of another type",
    ]


def test_modes_around_a_call_are_told_with_what_they_were():
    compiled = torch.compile(lambda x: x @ x, backend="lazyrt")
    with recorded(FrameCompiled) as found:
        compiled(ones(2, 2))
        with torch.autocast(DEVICE, torch.bfloat16):
            compiled(ones(2, 2))
            with torch.no_grad():
                compiled(ones(2, 2))

    assert [frame.guard.text for frame in found[1:]] == [
        "autocast(lazyrt)_enabled is True, was False",
        "grad_mode is False, was True",
    ]


def test_the_lines_of_function_call_and_read_are_told():
    first = scaled.__code__.co_firstlineno

    found = frames(told(scaled, (ones(4), 2), (ones(4), 3)))

    assert [frame.guard is None for frame in found] == [True, False]
    again = found[1]
    assert (again.definition.file, again.definition.line) == (__file__, first)
    assert again.guard.site.line == first + 1
    call = told.__code__.co_firstlineno + 5
    assert (again.site.function, again.site.line) == ("told", call)
    assert again.ops == 1
    assert min(again.dynamo_ns, again.aot_ns, again.guards_ns) > 0
    assert again.duration_ns == again.dynamo_ns + again.aot_ns


def test_a_method_is_told_by_its_qualified_name_and_its_own_attributes():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Dropout(0.0)
            self.inner.p = 0.25

        def forward(self, x):
            return x * self.inner.p

    model = Model()
    compiled = torch.compile(model, backend="lazyrt")
    with recorded(FrameCompiled) as found:
        compiled(ones(2))
        model.inner.p = 0.5
        compiled(ones(2))

    assert [frame.function for frame in found] == ["Model.forward"] * 2
    assert found[1].guard.text == "`self.inner.p` is 0.5, was 0.25"


def test_what_compiles_anew_in_a_backward_belongs_to_its_function():
    weight = ones(3, requires_grad=True)

    with recorded(FrameCompiled) as found:
        torch.compile(scaled, backend="lazyrt")(weight, 2).sum().backward()

    assert [(f.function, f.backward) for f in found] == [
        ("scaled", False),
        ("scaled", True),
    ]


# ----------------------------------------------------------------------- graph breaks


def branching(x):
    y = x * 2
    if y.sum() > 0:
        return y + 1
    return y - 1


def printing(x):
    print(end="")  # noqa: T201 - a graph break
    return x + 1


def reading(x):
    return x * (x * 2).sum().item()


@torch.compiler.disable
def left_out(x):
    return x + 1


def disabling(x):
    return left_out(x * 2) * 3


@pytest.mark.parametrize(
    ("function", "line", "says"),
    [
        (branching, 2, "a branch depends on a tensor's value"),
        (printing, 1, "Dynamo does not know how to trace builtin operator `print`"),
        (reading, 1, "does not support tracing `Tensor.item()`"),
        (disabling, 1, "since it was wrapped with `torch.compiler.disable`"),
    ],
)
def test_a_graph_break_is_told_with_its_line_and_each_call_that_reaches_it(
    function, line, says
):
    found = told(function, *[(ones(4),)] * 3)

    breaks = [frame.graph_break for frame in frames(found) if frame.graph_break]
    assert len(breaks) == 1
    assert says in breaks[0].reason
    assert "0x" not in breaks[0].reason
    assert breaks[0].site.line == function.__code__.co_firstlineno + line
    assert [(r.reason, r.site) for r in reached(found)] == [
        (breaks[0].reason, breaks[0].site)
    ] * 3
    rest = frames(found)[1]
    assert rest.is_rest
    assert rest.definition == breaks[0].site


def test_breaks_with_nothing_recorded_between_them_are_all_told_as_reached():
    def printing_twice(x):
        print(end="")  # noqa: T201 - a graph break
        print(end="")  # noqa: T201
        return x + 1

    found = told(printing_twice, *[(ones(4),)] * 3)

    first = printing_twice.__code__.co_firstlineno
    assert [each.site.line - first for each in reached(found)] == [1, 2] * 3


def test_a_break_is_told_after_a_reset_as_before():
    for _ in range(2):
        torch.compiler.reset()
        found = told(branching, (ones(4),))
        assert [f.graph_break is not None for f in frames(found)] == [True, False]


def test_a_value_that_a_graph_break_gave_is_told_as_such():
    found = frames(told(reading, (ones(4),), (ones(4) * 2,)))

    assert found[-1].guard.text == "the value at the graph break is 16.0, was 8.0"


def test_the_hooks_of_an_optimizers_step_leave_no_function_uncompiled():
    weight = ones(2, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)

    def step(x):
        (weight * x).sum().backward()
        optimizer.step()
        return x + 1

    found = frames(told(step, (ones(2),)))

    assert [frame.failed for frame in found if frame.failed] == []
    assert [frame.function for frame in found].count("SGD.step") == 1
    reasons = [frame.graph_break.reason for frame in found if frame.graph_break]
    assert reasons[-1] == (
        "TorchDynamo does not trace the function `_before_optimizer_step` of lazyrt"
    )


def test_a_function_that_is_left_uncompiled_is_told_with_the_reason():
    def looping(x):
        for _ in range(2):
            print(end="")  # noqa: T201 - a graph break
            x = x * 2
        return x

    (frame,) = frames(told(looping, (ones(4),)))

    assert "`print`" in frame.failed.reason
    assert frame.failed.site.line == looping.__code__.co_firstlineno + 2
    assert frame.graph_break is None


def test_a_function_beyond_the_limit_of_compiles_is_told():
    calls = [(ones(2), "a" * n) for n in range(4)]

    with torch._dynamo.config.patch(recompile_limit=2):
        found = frames(told(lambda x, text: x * len(text), *calls))

    assert [frame.failed is not None for frame in found] == [False, False, True]
    assert "recompile_limit" in found[2].failed.reason
    assert found[2].guard.text == "`text` is 'aa', was 'a'"


def test_graphs_of_other_backends_are_not_told():
    compiled = torch.compile(branching, backend="eager")

    with recorded(FrameCompiled, GraphBreakReached) as found:
        compiled(torch.ones(4))

    assert [event for event in found if event.ops] == []


def test_a_reason_of_an_unknown_form_is_told_as_torch_words_it():
    frame = torch_compat.CompilingFrame(scaled.__code__, {"x": [1]}, {})

    for reason, says in (
        ("0/0: not hasattr(L, 'a')", "`not hasattr(L, 'a')` does not hold any more"),
        ("0/0: some check (failed", "`some check (failed` does not hold any more"),
        ("0/0: G['a'].b == 2", "`a.b` was 2, and is not"),
        ("0/0: GLOBAL_STATE changed: torch_function ", "torch_function is another"),
        (
            "0/0: tensor 'x' Tensor type mismatch. expected int",
            "`x (Tensor type)` was int, and is not",
        ),
    ):
        assert compiled_frames.failed_guard(reason, frame).text == says


# --------------------------------------------------------------------- counts and causes


def test_counters_count_functions_recompiles_and_breaks():
    lazyrt.reset_counters()

    told(branching, (ones(4),), (ones(4),), (ones(4, dtype=torch.float64),))

    counts = lazyrt.counters()
    names = ("frames_compiled", "frames_recompiled", "frames_uncompiled",
             "graph_breaks_compiled", "graph_breaks_reached")  # fmt: skip
    assert [counts[name] for name in names] == [4, 2, 0, 2, 3]
    metrics = lazyrt.metrics_report("dict")["metrics"]
    assert metrics["lazyrt::DynamoTime"]["all"]["samples"] == 4
    assert metrics["lazyrt::GuardTime"]["all"]["samples"] == 4


def test_a_watch_times_each_call_and_leaves_none_timed():
    compiled = torch.compile(scaled, backend="lazyrt")
    call = recorded_calls.RecordedCall.__call__
    x = ones(3)
    compiled(x, 2)

    with recorded(events.CompiledCallTraced) as found:
        compiled(x, 2)
        with lazyrt.watch_tracing():
            compiled(x, 2)
            compiled(x, 2)

    assert len(found) == 2
    assert all(event.duration_ns > 0 for event in found)
    assert recorded_calls.RecordedCall.__call__ is call


def test_why_a_step_was_compiled_names_the_guard():
    def pick(x, mode):
        y = x.exp()
        if mode == "sine":
            y = y.sin()
        return y + 1

    cold_start()
    compiled = torch.compile(pick, backend="lazyrt")
    for mode in ("sine", "none"):
        x = ones(4)
        lazyrt.mark_step()
        result: Any = compiled(x, mode)
        lazyrt.mark_step()
        del result

    explanation = lazyrt.explain()

    assert explanation is not None
    top = explanation.causes[0]
    line = pick.__code__.co_firstlineno
    assert top.kind == "guard"
    assert top.text.startswith(
        f"torch.compile compiled `pick` (test_compiled_frames.py:{line}) again for the call at "
    )
    assert top.text.endswith("`mode` is 'none', was 'sine'")
    assert top.fix


def test_a_backward_of_another_step_than_its_forward_names_the_guard_as_well():
    cold_start()
    compiled = torch.compile(scaled, backend="lazyrt")
    for factor in (2.0, 3.0):
        x = ones(4).requires_grad_()
        result: Any = compiled(x, factor)
        lazyrt.mark_step()
        result.sum().backward()
        lazyrt.mark_step()
        del x, result

    told = [graph.explanation for graph in lazyrt.compiled_graphs()[-2:]]
    causes = [explanation.causes if explanation else () for explanation in told]

    assert [[c.kind for c in each].count("guard") for each in causes] == [1, 1]
    assert all("is 3.0, was 2.0" in str(each) for each in causes)


def test_a_new_shape_is_the_cause_and_the_guard_is_named_with_it():
    cold_start()
    compiled = torch.compile(scaled, backend="lazyrt")
    for n in (4, 5):
        x = ones(n)
        lazyrt.mark_step()
        result: Any = compiled(x, 2.0)
        lazyrt.mark_step()
        del result

    explanation = lazyrt.explain()

    assert explanation is not None
    kinds = [cause.kind for cause in explanation.causes]
    assert kinds == ["input_shape", "guard"]
    assert "`x.shape[0]` is 5, was 4" in explanation.causes[1].text


def test_telling_changes_no_graph_and_no_count(monkeypatch):
    def run():
        torch.compiler.reset()
        cold_start()
        lazyrt.reset_counters()
        compiled = torch.compile(branching, backend="lazyrt")
        values = []
        for n in (4, 4, 5):
            with lazyrt.step(on_read="allow"):
                values.append(compiled(ones(n)))
        made = [(g.fingerprint, g.nodes, g.runs) for g in lazyrt.compiled_graphs()]
        return made, [value.tolist() for value in values]

    with monkeypatch.context() as patched:
        patched.setattr(events, "_subscriptions", ())
        alone = run()
    with lazyrt.watch_tracing(), recorded(FrameCompiled, GraphBreakReached) as found:
        watched = run()

    assert found
    assert watched == alone
