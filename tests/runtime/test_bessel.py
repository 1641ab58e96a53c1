"""Bessel and Airy functions in float64; SciPy is the oracle, as torch's have 9 digits."""

import pytest
import torch

from tests.harness import assert_same, lazy

special = pytest.importorskip("scipy.special")

# Both sides of every change of method: 25, 1 and -7, 1e-8, zero.
POINTS = torch.tensor(
    [0.0, 1e-12, 1e-7, 0.3, 0.99, 1.01, 4.5, 6.99, 7.01, 14.0, 24.9, 25.1, 60.0, 300.0],
    dtype=torch.float64,
)
SIGNED = torch.cat([-POINTS.flip(0), POINTS])


@pytest.mark.parametrize(
    ("name", "oracle", "points"),
    [
        ("bessel_j0", special.j0, SIGNED),
        ("bessel_j1", special.j1, SIGNED),
        ("bessel_y0", special.y0, POINTS),
        ("bessel_y1", special.y1, POINTS),
        ("airy_ai", lambda x: special.airy(x)[0], SIGNED),
        ("modified_bessel_k0", special.k0, POINTS),
        ("modified_bessel_k1", special.k1, POINTS),
        ("scaled_modified_bessel_k0", special.k0e, POINTS),
        ("scaled_modified_bessel_k1", special.k1e, POINTS),
    ],
)
def test_a_function_has_ten_digits(name, oracle, points):
    expected = torch.from_numpy(oracle(points.numpy()))

    assert_same(getattr(torch.special, name)(lazy(points)), expected, 1e-10)


@pytest.mark.parametrize("name", ["bessel_y0", "modified_bessel_k1"])
def test_below_zero_there_is_no_value(name):
    function = getattr(torch.special, name)

    assert function(lazy(torch.tensor([-1.0, -30.0]))).isnan().all()
