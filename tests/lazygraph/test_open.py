"""Programs as jax, XLA and our own runtime write them: text, protos, before and after XLA."""

import importlib
import random
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import lazyrt
import lazyviz
from lazygraph import HloError, HloSyntaxError, diff, parse, read
from lazyviz.draw.diff_text import summary

_hlo: Any = importlib.import_module("jaxlib._hlo")


def program(scale):
    def step(x, w):
        with jax.named_scope("encoder"):
            y = jnp.tanh(x @ w["first"])
        _, z = jax.lax.scan(lambda c, row: (c + row, c * scale), y[0], y)
        return jnp.sort(z), jax.nn.softmax(z).sum()

    weights = {"first": jnp.ones((4, 4))}
    return jax.jit(step).lower(jnp.ones((3, 4)), weights)


def hlo(lowered):
    return lowered.compiler_ir("hlo")


def framed(data):
    """A module as XLA's dumps hold it: in the first field of an HloProto."""
    size, head = len(data), b"\x0a"
    while size >= 0x80:
        head += bytes([size & 0x7F | 0x80])
        size >>= 7
    return head + bytes([size]) + data


@pytest.fixture(scope="module")
def pair():
    return program(2.0), program(3.0)


@pytest.mark.parametrize(
    "text",
    [
        lambda lowered: lowered.as_text(),
        lambda lowered: lowered.as_text(debug_info=True),
        lambda lowered: hlo(lowered).as_hlo_text(),
        lambda lowered: lowered.compile().as_text(),
    ],
    ids=["stablehlo", "stablehlo with locations", "hlo", "optimised hlo"],
)
def test_what_jax_writes_differs_where_the_program_does(pair, text):
    one, two = (parse(text(each)) for each in pair)

    found = diff(one, two)

    assert diff(one, one).is_empty
    assert 0 < found.cost <= 4
    assert not found.added
    assert not found.removed


def test_what_jax_and_xla_hand_out_needs_no_text_of_it(pair):
    """Lowered and compiled programs, modules of MLIR, computations and modules of XLA."""
    lowered = pair[0]
    module: Any = hlo(lowered).as_hlo_module()
    forms: list[tuple[Any, str]] = [
        (lowered, lowered.as_text()),
        (lowered.compiler_ir("stablehlo"), lowered.as_text()),
        (lowered.compile(), lowered.compile().as_text()),
        (hlo(lowered), module.to_string()),
        (module, module.to_string()),
    ]

    assert all(diff(thing, text).is_empty for thing, text in forms)


def test_scopes_and_lines_are_read_before_and_after_xla(pair):
    for text in (
        pair[0].as_text(debug_info=True),
        pair[0].compile().as_text(),
    ):
        graph = parse(text)
        origins = [graph.origin(node) for node in range(len(graph))]

        assert any(origin.scope == "encoder" for origin in origins)
        assert any("test_open.py:" in origin.site for origin in origins)
        assert any(origin.op_name == "w['first']" for origin in origins)


def test_layers_of_a_jax_program_are_named_in_its_derivative_too():
    """`jvp(h_0)` and `transpose(jvp(h_0))` are the scope `h_0`, forward and backward."""

    def lowered(count):
        def loss(weights, x):
            for k, weight in enumerate(weights):
                with jax.named_scope(f"h_{k}"):
                    x = x + jnp.tanh(x @ weight) * jnp.sin(x)
            return x.sum()

        return jax.jit(jax.grad(loss)).lower([jnp.ones((4, 4))] * count, jnp.eye(4))

    one, two = lowered(2), lowered(5)
    graph = parse(one.as_text(debug_info=True))
    named = diff(one.as_text(debug_info=True), two.as_text(debug_info=True))
    plain = diff(one.as_text(), two.as_text())

    assert {"h_0", "h_1", "h_0 (backward)"} <= set(map(graph.scope, range(len(graph))))
    assert re.match(r"3 layers `h_\d`-`h_\d` were added: \d+ ops", summary(named)[1])
    assert re.match(r"a block of \d+ ops .*was added 3 times", summary(plain)[1])


def test_a_proto_and_its_text_are_one_graph(pair, tmp_path):
    data = hlo(pair[0]).as_serialized_hlo_module_proto()
    (tmp_path / "module.pb").write_bytes(data)
    (tmp_path / "dump.hlo.pb").write_bytes(framed(data))
    text = parse(hlo(pair[0]).as_hlo_text())

    assert diff(read(tmp_path / "module.pb"), text).is_empty
    assert diff(read(tmp_path / "dump.hlo.pb"), text).is_empty


@pytest.mark.slow
def test_broken_protos_are_refused_and_end_no_process(pair):
    data = hlo(pair[0]).as_serialized_hlo_module_proto()
    rng = random.Random(3)  # noqa: S311
    refused = 0

    for _ in range(12):
        broken = bytearray(data)
        for _ in range(rng.choice([1, 4, 16])):
            broken[rng.randrange(len(broken))] = rng.randrange(256)
        try:
            parse(bytes(broken[: rng.randrange(10, len(broken))]))
        except HloError:
            refused += 1

    assert refused > 6


def large(last):
    values = np.arange(64, dtype="float32")
    values[-1] = last
    return jax.jit(lambda x: x + values).lower(values)


def test_large_constants_are_compared_or_said_not_to_be():
    """XLA's text has `{...}` for them, unless it is asked for more; a proto has them all."""
    one, two = map(hlo, (large(1), large(2)))
    data = [each.as_serialized_hlo_module_proto() for each in (one, two)]
    texts = [each.as_hlo_module().to_string() for each in (one, two)]

    found, unknown = diff(*data), diff(*texts)

    assert found.cost == len(found.changed) == 1
    assert not any("not compared" in each for each in summary(found))
    (said,) = summary(unknown)[1:]
    assert said == (
        "not compared: the value of a constant, which both dumps leave out; print with "
        "`print_large_constants`"
    )
    assert "which the second dump leaves out" in summary(diff(data[0], texts[1]))[1]


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("print_extra_attributes", ""),
        ("print_percent", ""),
        ("print_metadata", ""),
        ("print_program_shape", ""),
        ("include_layout_in_shapes", ""),
        ("print_operand_shape", ""),
        ("canonicalize_computations", ""),
        ("print_ids", r"printed without `print_ids`"),
        ("print_operand_names", r"names nothing that it reads.* with `print_operand_names`"),
        ("print_result_shape", r"has no type.* with `print_result_shape`"),
    ],
)  # fmt: skip
def test_what_an_option_of_xlas_printer_leaves_out_is_read_around_or_named(
    pair, option, said
):
    options = _hlo.HloPrintOptions()
    setattr(options, option, not getattr(options, option))
    texts = [hlo(each).as_hlo_module().to_string(options) for each in pair]

    if said:
        with pytest.raises(HloSyntaxError, match=said) as caught:
            parse(texts[0])
        assert caught.value.line > 1
        assert caught.value.column > 1
        return
    found = diff(*texts)
    assert diff(texts[0], texts[0]).is_empty
    assert found.cost == 1  # the loop, in whose body a number is another
    assert any("constant changed: 3, was 2" in each for each in summary(found))
    is_bare = option == "print_extra_attributes"
    assert is_bare == any("elements of tuples, which both" in s for s in summary(found))


def test_computations_in_the_place_of_their_names_are_refused(pair):
    options = _hlo.HloPrintOptions.canonical()
    text = hlo(pair[0]).as_hlo_module().to_string(options)

    with pytest.raises(HloSyntaxError, match="without that option"):
        parse(text)


def test_a_proto_where_there_is_no_jaxlib_is_refused_with_what_is_missing(
    pair, tmp_path, monkeypatch
):
    proto = hlo(pair[0]).as_serialized_hlo_module_proto()
    (tmp_path / "jaxlib").mkdir()
    (tmp_path / "jaxlib/__init__.py").write_text("")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    with pytest.raises(HloError, match=r"cannot be imported .*'_hlo'.*Install jaxlib"):
        parse(proto)


def test_data_that_is_no_proto_is_refused(tmp_path):
    path = tmp_path / "noise.pb"
    path.write_bytes(b"\x0a\x05\x00\xff\xfe noise")

    with pytest.raises(HloError, match=r"noise.pb is no HLO proto that XLA reads"):
        read(path)


def test_our_own_steps_differ_alike_before_and_after_xla():
    x = torch.ones(2, 3).to("lazyrt")
    y = (x * 2).tanh().sum(0)
    first = lazyrt.pending_graph(y).lower()
    z = (x * 2).sin().sum(0)
    second = lazyrt.pending_graph(z).lower()

    texts = [
        [each.as_text(d) for d in ("stablehlo", "hlo")] for each in (first, second)
    ]
    lowered = lazyviz.diff(texts[0][0], texts[1][0])
    optimised = lazyviz.diff(texts[0][1], texts[1][1])

    assert lowered.diff.cost == 1
    assert len(optimised.diff.changed) == 1
    assert "differs within" in lowered.to_html()
    assert "differs within" in optimised.to_html()
