"""The smallest cut of a program that still shows something."""

import random

import pytest

from lazyviz.hlo import GraphBuilder, HloError, diff, minimise


def planted(seed, size=200):
    """Return a random program in which tanh feeds the log that feeds sqrt, far apart."""
    rng = random.Random(seed)  # noqa: S311
    builder = GraphBuilder("planted")
    nodes = [builder.add(builder.label("parameter", "f32[4]")) for _ in range(3)]
    places = sorted(rng.sample(range(20, size), 3))
    last = nodes[0]
    for number in range(size):
        if number in places:
            op = ("tanh", "log", "sqrt")[places.index(number)]
            last = builder.add(builder.label(op, "f32[4]"), [last])
            nodes.append(last)
            continue
        operands = rng.choices(nodes, k=2)
        op = rng.choice(["add", "multiply", "subtract"])
        nodes.append(builder.add(builder.label(op, "f32[4]"), operands))
    return builder.finish([*nodes[-40:], last])


def has_chain(graph):
    ops = graph.ops
    return any(
        ops[node] == "sqrt"
        and ops[one] == "log"
        and ops[graph.operands[one][0]] == "tanh"
        for node in range(len(graph))
        for one in graph.operands[node]
        if graph.operands[one]
    )


@pytest.mark.parametrize("seed", range(5))
def test_a_planted_case_of_two_hundred_nodes_shrinks_to_what_matters(seed):
    asked = []

    def shows(graph):
        asked.append(graph)
        return has_chain(graph)

    found = minimise(planted(seed), shows)

    assert found.ops == ["parameter", "tanh", "log", "sqrt"]
    assert found.outputs == (3,)
    assert len(asked) < 200


def test_a_difference_from_another_program_is_cut_down_to_its_node():
    def chain(*ops):
        builder = GraphBuilder("chain")
        last = builder.add(builder.label("parameter", "f32[4]"))
        for op in ops:
            last = builder.add(builder.label(op, "f32[4]"), [last])
        return builder.finish([last])

    old = chain(*["exp", "sine"] * 10)
    new = chain(*["exp", "sine"] * 5, "tanh", *["exp", "sine"] * 5)

    def shows(part):
        found = diff(old, part)
        return any(part.ops[k] == "tanh" for k in found.added)

    assert minimise(new, shows).ops == ["parameter", "tanh"]


def test_a_predicate_that_is_false_for_the_whole_is_refused():
    with pytest.raises(HloError, match=r"planted with its .* nodes does not show"):
        minimise(planted(0), lambda graph: "cosine" in graph.ops)
