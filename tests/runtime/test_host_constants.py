"""Bounds of integers that nothing has computed: right for each op that carries them."""

import pytest
import torch

from lazyrt.frontend import host_constants
from lazyrt.frontend.buffers import value_of
from tests.harness import DEVICE

pytestmark = [pytest.mark.not_eager("looks at nodes")]

X = torch.tensor([[0.5, -1.0, 2.0], [0.0, 3.0, 1.0]])
CLASSES = torch.tensor([2, 0])
TIGHT = {
    "argmax": (lambda x, c: x.argmax(1), (0, 2)),
    "argmax-of-all": (lambda x, c: x.argmax(), (0, 5)),
    "truth": (lambda x, c: (x > 0).long(), (0, 1)),
    "data": (lambda x, c: c + 0, (0, 2)),
    "pairs": (lambda x, c: c * 3 + x.argmax(1), (0, 8)),
    "alpha": (lambda x, c: torch.sub(c, x.argmax(1), alpha=2), (-4, 2)),
    "arange": (lambda x, c: torch.arange(5, device=x.device) * -2, (-8, 0)),
    "arange-by-steps": (lambda x, c: torch.arange(9, 1, -3, device=x.device), (3, 9)),
    "one-hot": (lambda x, c: torch.nn.functional.one_hot(x.argmax(1), 3), (0, 1)),
    "where": (lambda x, c: torch.where(x[:, 0] > 0, c, x.argmax(1) - 7), (-7, 2)),
    "cat": (lambda x, c: torch.cat([c, x.argmax(1) + 4])[1:].flip(0), (0, 6)),
    "full": (lambda x, c: torch.full((2,), 9, device=x.device), (9, 9)),
    "always": (lambda x, c: x.argmax(1) >= 0, (1, 1)),
    "never": (lambda x, c: x.argmax(1) > 2, (0, 0)),
    "at-times": (lambda x, c: x.argmax(1) > 1, (0, 1)),
    "narrower": (lambda x, c: (x.argmax(1) * 100).to(torch.uint8), (0, 200)),
}  # fmt: skip
UNKNOWN = {
    "of-numbers": lambda x, c: x.long(),
    "wrapped": lambda x, c: (x.argmax(1) * 200).to(torch.uint8),
    "other-bits": lambda x, c: c.add(0).view(torch.int32),
    "without-elements": lambda x, c: c[:0] + 1,
    "summed-by-scatter": lambda x, c: c.scatter_reduce(0, x.argmax(1) * 0, c, "sum"),
}


@pytest.mark.parametrize("name", TIGHT)
def test_bounds_of_ops_on_classes_and_truth_values(name):
    call, expected = TIGHT[name]

    found = host_constants.bounds_of(value_of(call(X.to(DEVICE), CLASSES.to(DEVICE))))

    assert found == expected
    values = call(X, CLASSES)
    assert found[0] <= int(values.min()) <= int(values.max()) <= found[1]


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_may_be_any_number_has_no_bounds(name):
    assert (
        host_constants.bounds_of(
            value_of(UNKNOWN[name](X.to(DEVICE), CLASSES.to(DEVICE)))
        )
        is None
    )


def test_a_long_way_to_the_data_is_not_walked():
    found = CLASSES.to(DEVICE)
    for _ in range(40):
        found = found + 0

    assert host_constants.bounds_of(value_of(found)) is None


def test_data_are_looked_at_anew_once_they_are_written():
    classes = torch.arange(100).to(DEVICE)
    before = host_constants.bounds_of(value_of(classes + 1))
    classes.copy_(torch.full((100,), 7))

    assert before == (1, 100)
    assert host_constants.bounds_of(value_of(classes + 1)) == (8, 8)
