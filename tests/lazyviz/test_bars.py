"""The bars of a cell add up to its time, and each gets what is its own.

What takes long in each kind of cell is a sleep of known length at the place in question, so
the expected part is known without a second clock inside.
"""

import time

import pytest

from lazyviz import session

SLEEP_S = 0.3
LAB = "import time\nfrom lazyrt import jax_compat\nfrom lazyrt.execution import transfer\n"


def slowed(target, cell):
    """Return a cell during which a function of the runtime takes so much longer once."""
    owner, name = target.rsplit(".", 1)
    return (
        f"{LAB}from unittest.mock import patch\nreal, slow = {target}, [{SLEEP_S}]\n"
        "def slower(*args, **options):\n"
        "    if slow:\n        time.sleep(slow.pop())\n"
        "    return real(*args, **options)\n"
        f"with patch.object({owner}, {name!r}, slower):\n    {cell}"
    )


KINDS = {
    "compile": slowed("jax_compat.compile_text", "(x + 1).exp().sum().item()"),
    "transfer in": slowed("transfer._copy", "torch.ones(5).to('lazyrt')"),
    "transfer out": slowed("transfer._copy", "x.cpu()"),
    "python": f"y = x + 1\nimport time\ntime.sleep({SLEEP_S})\nz = y + 1",
    "lower": (
        "from lazyrt.execution import compiler\n"
        + slowed("compiler.emit_text", "(x + 2).exp().sum().item()")
    ),
    "fallback": (
        "import time\nfrom lazyrt.frontend import fallback\n"
        "from unittest.mock import patch\n"
        "class Slow:\n    def __getattr__(self, name):\n"
        "        return getattr(torch.ops.aten._unique2.default, name)\n"
        "    def __str__(self):\n        return 'aten._unique2.default'\n"
        "    def __call__(self, *args, **options):\n"
        f"        time.sleep({SLEEP_S})\n"
        "        return torch.ops.aten._unique2.default(*args, **options)\n"
        "found = fallback.run_on_cpu(Slow(), [x], {}, 'it sleeps')\n"
    ),
    "eager": slowed(
        "jax_compat.dispatcher", "with lazyrt.eager_mode():\n        (x * 4).cos()"
    ),
}
PARTS = {
    "compile": ("compile",),
    "transfer in": ("transfer",),
    "transfer out": ("transfer",),
    "python": ("python",),
    "lower": ("lower",),
    "fallback": ("fallback",),
    "eager": ("dispatch",),
}


def clocked(lab, cell):
    """Run a cell; return its strip, and its time by a clock within and by one around it."""
    clock = "time.perf_counter_ns()"
    started = time.perf_counter_ns()
    result = lab.run_cell(
        f"import time\nbegan = {clock}\n{cell}\nended = {clock}", store_history=True
    )
    outer_ns = time.perf_counter_ns() - started
    assert result.success
    found = session.current(lab)
    assert found is not None
    inner_ns = lab.user_ns["ended"] - lab.user_ns["began"]
    return found.cells[-1].strip, inner_ns, outer_ns


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_parts_of_a_cell_add_up_to_its_time_and_each_has_what_is_its_own(lab, kind):
    lab.run_cell(
        "y = x * 1\ny.sum().item()", store_history=True
    )  # loads what loads once

    strip, inner_ns, outer_ns = clocked(lab, KINDS[kind])

    parts = dict(strip.parts)
    # Each nanosecond belongs to one part; around the cell are IPython's own work and the strip.
    assert sum(parts.values()) == strip.wall_ns
    assert inner_ns <= strip.wall_ns <= outer_ns
    slept = sum(parts.get(name, 0) for name in PARTS[kind])
    assert slept > SLEEP_S * 0.5e9, parts  # of another part's time a guess may be off


@pytest.mark.slow
def test_a_cell_that_waits_for_the_device_says_so(lab):
    """What `.item()` waits for is not the item."""
    work = "z = a\nfor _ in range(60):\n    z = torch.tanh(z @ a)\nz.sum().item()"
    lab.run_cell("a = torch.rand(500, 500).to('lazyrt')\n" + work, store_history=True)

    lab.run_cell(work, store_history=True)

    found = session.current(lab)
    assert found is not None
    strip = found.cells[-1].strip
    parts = dict(strip.parts)
    assert sum(parts.values()) == strip.wall_ns
    assert parts["execute"] == max(parts.values()), parts
    assert parts["execute"] <= 1.1 * strip.execute_ns
