import random
import sys

import pytest
import torch
from torch import nn

import lazyrt
from lazyrt import Graph
from lazyrt.ir.fingerprint import canonicalise
from lazyrt.ir.node import Leaf, Node, Op, Provenance, Value
from tests.graphs import Program
from tests.harness import DEVICE, cold_start, lazy, run_python

OPS = {name: Op(torch.ops.aten.add.Tensor, name) for name in ("f", "g", "h")}
_numbers = iter(range(10**9))


def leaf(position, shape=(2,), kind="data"):
    return Leaf(kind, position, shape, torch.float32)


def node(name, *args, outputs=1):
    made = Node(next(_numbers), OPS[name], args, Provenance(None, ""))
    made.outputs = tuple(
        Value(made, k, (2,), torch.float32, None) for k in range(outputs)
    )
    return made.outputs[0] if outputs == 1 else made.outputs


def fingerprint(*roots):
    return canonicalise(roots).fingerprint


def of(*tensors):
    return lazyrt.pending_graph(*tensors).fingerprint


def inputs(count=2):
    return [lazy(torch.full((2,), float(k))) for k in range(count)]


# ---------------------------------------------------------------- what must not count


@pytest.mark.lazy_only("is about executables of steps")
def test_a_program_in_another_order_with_other_names_and_dead_code_compiles_once():
    """Three programs that a step cache by names or positions would compile anew."""
    cold_start()
    numbers = {"a": 1.0, "b": 2.0, "c": 3.0}

    def run(order, *, dead=False):
        data = {name: lazy(torch.arange(4.0) * numbers[name]) for name in order}
        if dead:
            (data["a"].sin() * 3).sum()  # nobody keeps it
        made = {}
        for name in order:
            made[name] = data[name].exp() + torch.ones(4, device=DEVICE)
        other = made["a"] * made["b"] + made["c"]
        del made, data
        lazyrt.mark_step()
        return other.cpu()

    results = [run("abc"), run("cba", dead=True), run("bca")]

    counted = lazyrt.counters()
    assert (counted["compiles"], counted["executions"]) == (1, 3)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


@pytest.mark.parametrize("seed", range(20))
def test_the_order_in_which_tensors_are_made_and_freed_does_not_count(seed):
    rng = random.Random(seed)  # noqa: S311
    reference = _many_live_tensors(range(6), [])
    expected = lazyrt.pending_graph().fingerprint
    del reference
    order = rng.sample(range(6), 6)

    kept = _many_live_tensors(order, rng.sample(range(6), 3))

    assert lazyrt.pending_graph().fingerprint == expected
    assert len(kept) == 6


def _many_live_tensors(order, doomed):
    """Make six live tensors in some order; those in `doomed` are made twice, freed once."""
    x = torch.ones(2, device=DEVICE)
    made = {}
    for number in order:
        if number in doomed:
            made[number] = (x * number).exp()
            del made[number]
        made[number] = (x * number).sin() if number % 2 else x + number
    return made


def test_training_steps_with_live_tensors_in_any_order_share_one_fingerprint():
    a, b, c = inputs(3)

    def program(order):
        made = {}
        for name in order:
            made[name] = {
                "sum": lambda: a + b,
                "product": lambda: a * c,
                "difference": (b - c).exp,
                "square": lambda: b * b,
            }[name]()
        return lazyrt.pending_graph().fingerprint

    names = ["sum", "product", "difference", "square"]
    found = set()
    for seed in range(20):
        random.Random(seed).shuffle(names)  # noqa: S311
        found.add(program(names))

    assert len(found) == 1


@pytest.mark.parametrize("seed", range(30))
def test_a_random_program_has_one_fingerprint_in_every_order(seed):
    program = Program(seed)
    found = set()
    for shuffle in range(5):
        data = program.data(DEVICE)
        random.Random(shuffle).shuffle(aside := list(range(3)))  # noqa: S311
        touched = [data[k] + 0 for k in aside]
        results = program.run(data, program.shuffled(shuffle))
        found.add(of(*results))
        random.Random(shuffle).shuffle(results)  # noqa: S311
        found.add(of(*results))
        del results, touched
        lazyrt.mark_step()

    assert len(found) == 1


def test_dead_code_does_not_count():
    a, b = inputs()
    alone = of(a + b)

    (b * 7).exp().sum()
    torch.rand(3, device=DEVICE)
    kept = b - a
    with_dead = of(a + b)

    assert with_dead == alone
    assert kept is not None


def test_lines_names_and_functions_do_not_count():
    def somewhere(x):
        return x + x

    a, b = inputs()
    first = of(a + a)
    second = of(somewhere(b))

    assert first == second


def test_the_position_of_an_input_among_the_steps_inputs_does_not_count():
    a, b, c = inputs(3)
    first = of((a - b) * 2)
    lazyrt.mark_step()
    _ = c + 1

    assert of((a - b) * 2) == first
    lazyrt.mark_step()
    _ = b + a
    assert of((a - b) * 2) == first


@pytest.mark.slow
def test_fingerprints_are_the_same_in_another_process():
    a, b = inputs()
    code = """
import torch, lazyrt
a, b = (torch.full((2,), float(k)).to("lazyrt") for k in range(2))
_ = torch.rand(4, device="lazyrt")
print(lazyrt.pending_graph((a - b).exp() * 2.5 + (a == b)).fingerprint)
"""

    assert run_python(code, PYTHONHASHSEED="5") == of((a - b).exp() * 2.5 + (a == b))


# ---------------------------------------------------------------- what must count


@pytest.mark.not_eager("is about recorded graphs")
def test_which_operand_comes_first_counts():
    a, b = inputs()
    p, q = a.exp(), b.sin()

    assert of(p - q) != of(q - p)
    assert of(a - b, a) == of(b - a, b)
    assert of(a - b, a * 2) != of(a - b, b * 2)


@pytest.mark.not_eager("is about recorded graphs")
def test_which_of_two_equal_inputs_is_used_twice_counts():
    a, b = inputs()

    assert of((a - b) + a) != of((a - b) + b)
    assert of((a - b) * (a - b)) != of((a - b) * (b - a))
    assert of(a + a) != of(a + b)


@pytest.mark.not_eager("is about recorded graphs")
def test_parameters_of_equal_shape_in_other_places_count():
    layers = [nn.Linear(3, 3, bias=False).to(DEVICE) for _ in range(2)]
    x = torch.ones(1, 3, device=DEVICE)

    straight = of(layers[1](layers[0](x).exp()))
    turned = of(layers[0](layers[1](x).exp()))
    shared = of(layers[0](layers[0](x).exp()))

    assert straight == turned
    assert shared != straight


@pytest.mark.not_eager("is about recorded graphs")
def test_two_results_and_their_order_in_an_op_count():
    x = lazy(torch.tensor([3.0, 1.0, 2.0]))
    values, indices = x.sort()

    assert of(values) != of(indices)
    assert of(values * 1.5) != of(indices * 1.5)


@pytest.mark.not_eager("is about recorded graphs")
def test_which_values_are_results_counts():
    a, b = inputs()
    c = a + b
    d = c.exp()

    assert of(d) != of(c, d)
    assert of(c, d) == of(d, c)


CONSTANTS = [0.0, -0.0, 1, 1.0, True, float("nan"), float("inf"), 1e-45, 2**40]


@pytest.mark.not_eager("is about recorded graphs")
def test_constants_that_compare_equal_are_told_apart():
    (a,) = inputs(1)
    b = lazy(torch.ones(2, dtype=torch.int64))

    found = {repr(number): of(torch.full_like(a, number)) for number in CONSTANTS}
    on_ints = {repr(number): of(b + number) for number in (1, 1.0, True)}
    signs = {of(torch.copysign(a, 0.0)), of(torch.copysign(a, -0.0))}

    assert len(set(found.values())) == len(found)
    assert len(set(on_ints.values())) == 3
    assert len(signs) == 2
    assert torch.copysign(a + 1, -0.0).tolist() == [-1.0, -1.0]
    assert (b + True).dtype is torch.int64
    assert (b + 1.0).dtype is torch.float32


def test_equal_nans_are_one_constant():
    (a,) = inputs(1)

    assert of(torch.full_like(a, float("nan"))) == of(torch.full_like(a, -float("nan")))
    assert torch.full_like(a, float("nan")).isnan().all()


@pytest.mark.not_eager("is about recorded graphs")
def test_shapes_dtypes_and_strides_that_matter_count():
    found = {
        of(torch.ones(2, device=DEVICE) + 1),
        of(torch.ones(3, device=DEVICE) + 1),
        of(torch.ones(1, 2, device=DEVICE) + 1),
        of(torch.ones(2, device=DEVICE, dtype=torch.float64) + 1),
        of(lazy(torch.ones(2)) + 1),
        of(lazy(torch.ones(2, dtype=torch.float16)) + 1),
        of(lazy(torch.ones(3)) + 1),
    }

    assert len(found) == 7


@pytest.mark.not_eager("is about recorded graphs")
def test_attributes_of_ops_count():
    x = lazy(torch.ones(3, 3))

    assert of(x.sum(0)) != of(x.sum(1))
    assert of(x.sum(0)) != of(x.sum(0, keepdim=True))
    assert of(x[0] + 0) != of(x[1] + 0)
    assert of(x.t() + 0) != of(x + 0)


# ---------------------------------------------------------------- the algorithm by itself


@pytest.mark.parametrize("seed", range(40))
def test_leaf_numbers_and_root_order_never_matter(seed):
    found = set()
    for shuffle in range(6):
        rng = random.Random(seed * 1000 + shuffle)  # noqa: S311
        positions = rng.sample(range(4), 4)
        roots = _random_graph(random.Random(seed), [leaf(p) for p in positions])  # noqa: S311
        rng.shuffle(roots)
        found.add(fingerprint(*roots))

    assert len(found) == 1


def _random_graph(rng, leaves, size=10):
    values = list(leaves)
    for _ in range(size):
        operands = [rng.choice(values) for _ in range(rng.choice((1, 2, 2, 3)))]
        values.append(node(rng.choice("fgh"), *operands))
    return rng.sample(values[len(leaves) :], 4)


def test_symmetric_graphs_have_one_fingerprint():
    def twins(order):
        leaves = [leaf(p) for p in order]
        return [node("f", leaves[0], leaves[1]), node("f", leaves[1], leaves[0])]

    first, second = twins((0, 1)), twins((1, 0))

    assert fingerprint(*first) == fingerprint(*second) == fingerprint(*first[::-1])


def test_a_ring_is_not_a_pair_of_rings():
    def rings(*lengths):
        roots, start = [], 0
        for length in lengths:
            leaves = [leaf(start + k) for k in range(length)]
            roots += [
                node("f", leaves[k], leaves[(k + 1) % length]) for k in range(length)
            ]
            start += length
        return roots

    assert fingerprint(*rings(6)) != fingerprint(*rings(3, 3))
    assert fingerprint(*rings(6)) == fingerprint(*rings(6)[::-1])
    turned = rings(3, 3)
    assert fingerprint(*turned[2:], *turned[:2]) == fingerprint(*turned)


def test_many_equal_towers_have_one_fingerprint_in_any_order():
    towers = [node("g", node("f", leaf(k))) for k in range(24)]
    expected = fingerprint(*towers)

    for seed in range(5):
        random.Random(seed).shuffle(towers)  # noqa: S311
        assert fingerprint(*towers) == expected


def test_towers_that_share_an_input_pairwise_have_one_fingerprint_in_any_order():
    shared = [leaf(k) for k in range(5)]
    roots = [node("f", shared[k // 2], leaf(10 + k)) for k in range(10)]
    expected = fingerprint(*roots)

    for seed in range(10):
        random.Random(seed).shuffle(roots)  # noqa: S311
        assert fingerprint(*roots) == expected


def test_which_symmetric_twin_is_used_further_down_counts():
    a, b = leaf(0), leaf(1)
    left, right = node("f", a, b), node("f", b, a)

    assert fingerprint(left, right, node("g", left)) == fingerprint(
        left, right, node("g", right)
    )
    assert fingerprint(node("h", left, node("g", left))) != fingerprint(
        node("h", left, node("g", right))
    )


def test_kinds_of_leaves_and_nesting_of_arguments_count():
    a, b = leaf(0), leaf(1)

    found = {
        fingerprint(node("f", a, b)),
        fingerprint(node("f", (a, b))),
        fingerprint(node("f", (a,), b)),
        fingerprint(node("f", a, b, None)),
        fingerprint(node("f", a, leaf(0, (), "float"))),
        fingerprint(node("f", a, leaf(0, (), "int"))),
        fingerprint(node("f", a, leaf(0, (2,), "rng"))),
        fingerprint(node("f", a, leaf(1, (3,)))),
    }

    assert len(found) == 8


def test_results_of_one_node_are_told_apart():
    first = node("f", leaf(0), outputs=2)

    assert fingerprint(first[0]) != fingerprint(first[1])
    assert fingerprint(*first) == fingerprint(*first[::-1])
    assert fingerprint(node("g", *first)) != fingerprint(node("g", *first[::-1]))


def test_roots_named_twice_count_once():
    root = node("f", leaf(0))

    assert fingerprint(root, root) == fingerprint(root)


def test_a_root_under_another_root_is_no_problem():
    inner = node("f", leaf(0))
    outer = node("g", inner)

    assert fingerprint(inner, outer) == fingerprint(outer, inner)
    assert fingerprint(inner, outer) != fingerprint(outer)


def test_long_chains_need_no_recursion():
    value = leaf(0)
    for _ in range(20_000):
        value = node("f", value)

    graph = Graph([value])

    assert len(graph) == 20_000
    assert len(graph.fingerprint) == 32
    assert len(graph.to_text().splitlines()) == 20_002


@pytest.mark.not_eager("is about recorded graphs")
def test_long_recorded_chains_need_no_recursion():
    x = torch.zeros(1, device=DEVICE)
    for _ in range(5_000):
        x.add_(1)

    graph = lazyrt.pending_graph(x)

    assert len(graph.nodes) == 5_001 > sys.getrecursionlimit()
    assert graph.fingerprint == graph.fingerprint


# ---------------------------------------------------------------- graphs


@pytest.mark.not_eager("is about recorded graphs")
def test_a_graph_holds_nodes_in_order_and_its_parameters_once():
    a, b = inputs()
    c = a + b

    graph = lazyrt.pending_graph((c * a).exp(), c)

    seen = set()
    for graph_node in graph.nodes:
        for operand in graph_node.operands:
            assert operand.node is None or operand.node in seen
        seen.add(graph_node)
    assert [str(n.op) for n in graph.nodes] == [
        "aten.add.Tensor",
        "aten.mul.Tensor",
        "aten.exp.default",
    ]
    assert len(graph.parameters) == 2
    assert len(graph.roots) == 2
    assert repr(graph) == (
        f"<Graph {graph.fingerprint[:12]}: 3 nodes, 2 parameters, 2 roots>"
    )


@pytest.mark.not_eager("is about recorded graphs")
def test_the_text_of_a_graph_shows_ops_operands_types_and_lines():
    cold_start()
    a, b = inputs()
    line = test_the_text_of_a_graph_shows_ops_operands_types_and_lines.__code__
    c = (a + b) * 2.5
    first = line.co_firstlineno + 5

    lines = lazyrt.pending_graph(c).to_text().splitlines()

    where = f"test_fingerprint.py:{first}"
    add, mul = (n.id for n in lazyrt.pending_graph(c).nodes)
    p, q = (leaf.position for leaf in lazyrt.pending_graph(c).parameters)
    assert lines == [
        f"%p{p} : f32[2]",
        f"%p{q} : f32[2]",
        f"%{add} = aten.add.Tensor(%p{p}, %p{q}, 1) : f32[2]  # {where}",
        f"%{mul} = aten.mul.Tensor(%{add}, 2.5) : f32[2]  # {where}",
        f"return %{mul}",
    ]


@pytest.mark.not_eager("is about recorded graphs")
def test_looking_at_the_graph_numbers_no_input_and_makes_no_root():
    a, b = inputs()
    c = a + b
    before = lazyrt.pending_graph().fingerprint

    for tensor in (a, b, c, a.t(), b[0]):
        lazyrt.pending_graph(tensor)
        lazyrt.plan(tensor)
    graph = lazyrt.pending_graph(a, b)

    assert lazyrt.pending_graph().fingerprint == before
    assert len(graph) == 0
    assert lazyrt.is_pending(c)


@pytest.mark.not_eager("is about recorded graphs")
def test_a_graph_keeps_no_tensor_alive():
    from lazyrt.ir import live

    a, b = inputs()
    c = a + b
    graph = lazyrt.pending_graph(c)
    roots = len(list(live.pending.live()))

    del c

    assert len(list(live.pending.live())) == roots - 1
    assert len(graph) == 1


@pytest.mark.lazy_only("is about pending graphs")
@pytest.mark.parametrize(
    ("given", "left_out"),
    [
        (
            lambda: torch.zeros(2, device=DEVICE, dtype=torch.float32),
            lambda: torch.zeros(2, device=DEVICE),
        ),
        (
            lambda: torch.full((2,), 3, device=DEVICE, dtype=torch.int64),
            lambda: torch.full((2,), 3, device=DEVICE),
        ),
        (
            lambda: torch.rand(2, device=DEVICE, dtype=torch.float32),
            lambda: torch.rand(2, device=DEVICE),
        ),
    ],
)
def test_a_dtype_that_an_op_gives_anyway_makes_no_other_program(given, left_out):
    found = {lazyrt.pending_graph(make() + 1).fingerprint for make in (given, left_out)}

    assert len(found) == 1


@pytest.mark.lazy_only("is about pending graphs")
def test_a_dtype_that_an_op_does_not_give_by_itself_counts():
    made = [torch.zeros(2, device=DEVICE, dtype=d) for d in (torch.float64, None)]

    assert [each.dtype for each in made] == [torch.float64, torch.float32]
    assert len({lazyrt.pending_graph(each).fingerprint for each in made}) == 2
