"""Which graph before a new one is compared with: exact, and quick for hundreds of them."""

import random
from collections import Counter
from dataclasses import replace

import pytest

from lazygraph.explain import compare as search
from lazygraph.explain.model import StepKey
from lazygraph.snapshot import Name, Snapshot, Vertex
from lazyrt.execution.graph_registry import CompiledGraph
from lazyrt.observe.events import SourceLocation

pytestmark = pytest.mark.lazy_only("is about compiled steps")


def record(number, counts, *, line=9, after=9, names=()):
    leaves = [Vertex("data", (), ("f32[2]",), ()) for _ in names] or [
        Vertex("data", (), ("f32[2]",), ())
    ]
    held = {
        k: Name(name, "module" if name.startswith("model.") else "variable")
        for k, name in enumerate(names)
    }
    return CompiledGraph(
        name=f"graph.{number}",
        key=StepKey(
            fingerprint=f"{number:08}",
            ended_by=("mark_step()", SourceLocation("train.py", line, "f")),
            began_after=("mark_step()", SourceLocation("train.py", after, "f")),
        ),
        nodes=sum(counts.values()),
        inputs=len(leaves),
        outputs=1,
        first_step=number,
        last_step=number,
        snapshot=Snapshot(f"{number:08}", tuple(leaves), (), leaf_names=held),
        labels=Counter(counts),
    )


def some_records(seed, number):
    """Return graphs of a few programs, with batches of many sizes, that end at a few lines."""
    rng = random.Random(seed)  # noqa: S311 - a seeded test
    programs = [{f"op{rng.randrange(30)}": rng.randrange(1, 9) for _ in range(12)} for _ in range(4)]  # fmt: skip
    found = []
    for k in range(number):
        program = rng.choice(programs)
        rows = rng.randrange(5)
        counts = {
            (op, (f"f32[{rows},{op[2:]}]",)): n + (rng.random() < 0.1)
            for op, n in program.items()
        }
        names = rng.sample(["w", "v", "u", "b"], rng.randrange(5))
        line, after = rng.choice((9, 12)), rng.choice((9, 12))
        found.append(record(k, counts, line=line, after=after, names=names))
    return found


@pytest.mark.parametrize("seed", range(12))
def test_the_nearest_is_that_of_a_search_of_all(seed):
    *others, new = some_records(seed, 60)

    found = search.nearest(new, [*others, new])

    alike = {other: search.closeness(new, other) for other in others}
    scores = {
        other: (
            alike[other] + search._boundary_similarity(new, other),
            -(other.ops - new.ops).total(),
            other.last_step,
        )
        for other in others
    }
    best = max(scores, key=scores.__getitem__)
    assert found == (best, alike[best])


def test_of_hundreds_few_are_compared_type_by_type(monkeypatch):
    compared: list[CompiledGraph] = []
    closeness = search.closeness

    def counted(one, other):
        compared.append(other)
        return closeness(one, other)

    monkeypatch.setattr(search, "closeness", counted)
    others = [
        record(k, {(f"op{n}", ("f32[2]",)): 1 for n in range(k, k + 40)})
        for k in range(600)
    ]
    new = record(600, {(f"op{n}", ("f32[2]",)): 1 for n in range(300, 341)})

    found = search.nearest(new, others)

    assert found is not None
    assert found[0].name == "graph.301"
    assert len(compared) < 20


def test_what_ends_at_the_same_lines_comes_before_what_has_an_op_less():
    ops = {(f"op{n}", ("f32[2]",)): 1 for n in range(20)}
    new = record(3, ops | {("aten.zeros", ("f32[2]",)): 2}, line=12, names=("w", "v"))
    other_step = record(2, ops | {("aten.zeros", ("f32[2]",)): 1}, line=30, after=30, names=("w", "v"))  # fmt: skip
    same_step = record(1, ops, line=12, names=("w", "v"))

    found = search.nearest(new, [same_step, other_step])

    assert found is not None
    assert found[0] is same_step


def test_lines_do_not_make_up_for_operations():
    new = record(3, {(f"op{n}", ("f32[2]",)): 1 for n in range(20)}, line=12)
    like = record(1, {(f"op{n}", ("f32[2]",)): 1 for n in range(19)}, line=30, after=30)
    other = record(2, {(f"op{n}", ("f32[2]",)): 1 for n in range(12, 32)}, line=12)

    found = search.nearest(new, [like, other])

    assert found is not None
    assert found[0] is like


def test_the_graph_that_other_work_joined_comes_before_one_that_has_an_op_more():
    ops = {(f"op{n}", ("f32[2]",)): 1 for n in range(40)}
    program, changed = record(1, ops), record(2, ops | {("tanh", ("f32[2]",)): 1})
    new = record(3, ops | {("cos", ("f32[2]",)): 2})

    found = search.nearest(new, [program, changed])

    assert found is not None
    assert found[0] is program


def test_of_equals_it_is_the_one_that_ran_last():
    ops = {("aten.add", ("f32[2]",)): 3}
    one, other, new = (record(k, ops) for k in range(3))
    one.last_step = 7

    assert search.nearest(new, [one, other]) == (one, 1.0)
    assert search.nearest(new, [new]) is None


def test_names_of_data_decide_between_graphs_and_those_of_a_model_do_not():
    counts = {("op", ("f32[2]",)): 5}
    model = ("model.w", "model.u", "model.b")
    new = record(3, counts, names=("cache", "extra", *model))
    others = [record(1, counts, names=("cache",)), record(2, counts, names=model)]

    found = search.nearest(new, others)
    assert found is not None
    assert found[0].name == "graph.1"


def test_a_graph_that_began_with_the_program_begins_where_later_ones_do():
    first = record(1, {("op", ("f32[2]",)): 5}, after=0)
    first.key = replace(first.key, began_after=("", None))
    second = record(2, {("op", ("f32[2]",)): 5, ("other", ("f32[2]",)): 1}, after=9)
    joined = record(3, {("op", ("f32[2]",)): 5, ("part", ("f32[1]",)): 1}, after=9)

    found = search.nearest(joined, [first, second])
    assert found is not None
    assert found[0].name == "graph.1"
