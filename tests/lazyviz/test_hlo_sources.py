"""Programs as jax, XLA and our own runtime write them: text, protos, before and after XLA."""

import random
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch

import lazyrt
import lazyviz
from lazyviz.hlo import HloError, diff, parse, read


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
        assert any("test_hlo_sources.py:" in origin.site for origin in origins)
        assert any(origin.op_name == "w['first']" for origin in origins)


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
