"""Graphs of the runtime: from the pending graph, from snapshots, by `%lazy diff`."""

import pytest
import torch
from torch import nn

import lazyrt
import lazyviz
from lazygraph import HloSyntaxError, diff, from_ir, graph_of, parse


def model(layers):
    torch.manual_seed(0)
    blocks = [
        torch.nn.Sequential(
            torch.nn.Linear(8, 8), torch.nn.LayerNorm(8), torch.nn.ReLU()
        )
        for _ in range(layers)
    ]
    return torch.nn.Sequential(*blocks).to("lazyrt")


def graph(layers):
    net, x = model(layers), torch.ones(3, 8, device="lazyrt")
    loss = net(x).softmax(-1).max(1)[0].sum()
    loss.backward()
    return lazyrt.pending_graph(), (net, loss)


def test_the_ir_becomes_a_graph_without_tensors():
    ir, held = graph(1)

    made = from_ir(ir)

    assert len([node for node in made if node.op.startswith("aten.")]) == len(ir.nodes)
    assert len(made.inputs) == len(ir.parameters)
    assert len(made.outputs) == len(ir.roots)
    norm = next(node for node in made if node.op == "aten.native_layer_norm.default")
    assert norm.type == "(f32[3,8], f32[3,1], f32[3,1])"
    assert norm.scope == "0.1"
    assert norm.site.startswith("test_lazy_ir.py:")
    del held


def test_nodes_of_one_digest_compute_the_same_from_the_inputs_on():
    """What the runtime knows of its nodes stands for a look at all below them."""
    ir, held = graph(3)
    made = from_ir(ir)
    cones = made.ancestor_keys
    assert cones is not None

    below = [
        (made.label(node), *(cones[operand] for operand in made.operands[node]))
        for node in range(len(made))
    ]

    assert len(cones) == len(made) == len(made.names)
    assert (
        len(set(zip(cones, below, strict=True))) == len(set(cones)) == len(set(below))
    )
    del held


def test_a_shorter_way_to_equal_cones_finds_the_same():
    (one, held), (two, held_too) = graph(2), graph(4)
    a, b = from_ir(one), from_ir(two)
    quick = diff(a, b)

    a.ancestor_keys = None

    assert diff(a, b).partner_a == quick.partner_a
    del held, held_too


def test_to_compare_works_out_no_fingerprint_and_one_that_is_known_is_the_name():
    ir, held = graph(1)

    assert from_ir(ir).name == "pending graph"
    assert not ir.known_fingerprint
    assert from_ir(ir, "mine").name == "mine"
    assert ir.fingerprint.startswith(from_ir(ir).name)
    del held


def test_a_layer_more_is_what_is_added_in_each_notation():
    (one, held), (two, held_too) = graph(2), graph(3)

    in_ir = diff(from_ir(one), from_ir(two))
    in_text = diff(*(parse(each.lower().as_text("stablehlo")) for each in (one, two)))

    assert not in_ir.removed
    assert not in_ir.changed
    assert in_ir.cost == in_text.cost
    assert len(in_ir.added) == len(in_text.added)
    del held, held_too


def test_snapshots_and_pending_graphs_are_the_same_graph():
    x = torch.ones(2, 3, device="lazyrt")
    y = torch.nn.functional.layer_norm(x * 2, (3,))
    ir = from_ir(lazyrt.pending_graph())
    lazyrt.mark_step()

    record = lazyrt.compiled_graphs()[-1]
    found = diff(ir, graph_of(record))

    assert found.is_empty
    assert lazyviz.diff(ir, record).diff.is_empty
    del y


def test_a_graphs_text_is_read_as_the_graph_itself():
    """Layers, several results, numbers, random states and lists: what `to_text()` gives."""
    model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).to("lazyrt")
    x = torch.randn(2, 3, 8, device="lazyrt")
    loss = model(x).pow(2).mean() * 0.3
    loss.backward()
    values, places = torch.topk(torch.cat([x, x + 1]), 2)
    graph = lazyrt.pending_graph()
    text = graph.to_text()
    found = diff(parse(text), from_ir(graph))
    assert found.cost == 0
    assert len(found.a.inputs) == len(found.b.inputs)
    for node in range(len(found.a)):
        here, there = found.a.origin(node), found.b.origin(found.partner_a[node])
        # The text does not tell which ops run backward.
        assert (here.site, here.scope) == (
            there.site,
            there.scope.removesuffix("(backward)").strip(),
        )
    other = text.replace("aten.relu.default", "aten.gelu.default")
    assert len(diff(parse(text), parse(other)).changed) == 1
    del loss, values, places


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda text: text.rpartition("\n")[0], r"no line `return ...`.*cut off"),
        (lambda text: text.partition("\n")[2], r"line 1, .*reads %p\d+, which no line"),
        (lambda text: text.replace(" : f32[2,3]  #", " f32[2,3]  #"), "is no node"),
    ],
)
def test_a_damaged_text_of_a_graph_is_refused_with_its_line(damage, words):
    x = torch.ones(2, 3).to("lazyrt")
    y = x * 2
    text = damage(lazyrt.pending_graph(y).to_text())
    with pytest.raises(HloSyntaxError, match=words):
        parse(text)


def test_drawings_that_the_runtime_dumps_are_compared_with_all_arguments(tmp_path):
    texts = []
    for axis in (0, 1):
        y = torch.ones(3, 3, device="lazyrt").sum(axis)
        lazyrt.mark_step()
        name = lazyrt.compiled_graphs()[-1].name
        files = {
            file.name: file for file in lazyrt.dump_graphs(tmp_path, ["dot", "ir"])
        }
        texts += [files[f"{name}.dot"].read_text("utf-8")]
        assert diff(files[f"{name}.dot"], files[f"{name}.ir.txt"]).is_empty
        del y

    assert diff(*texts).cost == 1
    with pytest.raises(HloSyntaxError, match=r"lacks the IR .* Give the `\.ir\.txt`"):
        parse(texts[0].partition("\n// ")[0])
    with pytest.raises(HloSyntaxError, match="has no line `return") as caught:
        parse(texts[0].rpartition("\n// ")[0])
    assert caught.value.line > texts[0].count("\n") - 3


def test_a_type_is_spelled_as_in_the_program_whatever_its_graph_was_read_from():
    x = torch.arange(6).to("lazyrt")
    y = (x + 1) > 2
    graph = lazyrt.pending_graph(y)

    made = from_ir(graph), parse(graph.to_text())

    assert [each.types[each.outputs[0]] for each in made] == ["bool[6]"] * 2
    assert [each.types[each.inputs[0]] for each in made] == ["i64[6]"] * 2


def test_the_order_of_the_entries_of_an_op_on_lists_makes_no_difference():
    def program(order):
        rows = [torch.ones(n).to("lazyrt") for n in (2, 3, 4)]
        ups = [x.exp() if k else x.sin() for k, x in enumerate(rows)]
        sums = torch._foreach_add([rows[k] for k in order], [ups[k] for k in order])
        made = [x.cos() if k else x.tan() for k, x in zip(order, sums, strict=True)]
        return parse(lazyrt.pending_graph(*made).to_text())

    one, other, less = program((0, 1, 2)), program((2, 0, 1)), program((0, 1))

    assert diff(one, other).is_empty
    assert diff(other, one).is_empty
    assert not diff(one, less).is_empty
