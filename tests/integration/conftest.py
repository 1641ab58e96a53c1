import pytest

from tests.harness import fresh_runtime


@pytest.fixture(autouse=True)
def _fresh_runtime():
    with fresh_runtime():
        yield
