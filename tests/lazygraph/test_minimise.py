"""The smallest cut of a program that still shows something."""

import random

import pytest

import lazyviz
from lazygraph import GraphBuilder, HloError, diff, minimise


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
        new_or_other = [*found.added, *(y for _, y in found.changed)]
        return any(part.ops[k] == "tanh" for k in new_or_other)

    assert minimise(new, shows).ops == ["parameter", "tanh"]


def test_a_predicate_that_is_false_for_the_whole_is_refused():
    with pytest.raises(HloError, match=r"planted with its .* nodes does not show"):
        minimise(planted(0), lambda graph: "cosine" in graph.ops)


def test_a_programs_text_is_cut_down_and_shown_with_lines():
    """S4.17: 200 nodes of HLO, of which the planted three are left."""
    lines = ["  %p = f32[4] parameter(0)", "  %n0 = f32[4] negate(%p)"]
    for k in range(1, 200):
        op = {70: "tanh", 71: "log", 72: "sqrt"}.get(k, "add")
        operands = f"%n{k - 1}" if op != "add" else f"%n{k - 1}, %n{k // 2}"
        lines.append(
            f"  %n{k} = f32[4] {op}({operands}), metadata={{"
            f'op_name="block/{op}" source_file="train.py" source_line={k}}}'
        )
    text = "\n".join(
        ["HloModule planted", "", "ENTRY %main (p: f32[4]) -> f32[4] {", *lines]
    ).replace("  %n199", "  ROOT %n199")

    found = lazyviz.minimise(f"{text}\n}}\n", has_chain)

    assert len(found.graph) <= 10
    assert str(found).splitlines() == [
        "planted: 4 of 201 instructions show it",
        "   %n69 = f32[4] parameter()  # block, train.py:69",
        "   %n70 = f32[4] tanh(%n69)  # block, train.py:70",
        "   %n71 = f32[4] log(%n70)  # block, train.py:71",
        " → %n72 = f32[4] sqrt(%n71)  # block, train.py:72",
    ]
    assert "&gt;" not in found._repr_mimebundle_()["text/html"]
