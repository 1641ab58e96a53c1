import pytest

from lazyrt.lowering import registry
from tests.harness import cold_start, fresh_runtime


@pytest.fixture(autouse=True)
def _fresh_runtime():
    with fresh_runtime():
        yield


@pytest.fixture
def cold():
    """Nothing is compiled yet."""
    cold_start()


@pytest.fixture
def rules(monkeypatch):
    """Let a test register rules that are gone after it."""
    monkeypatch.setattr(registry, "_rules", dict(registry._rules))
    monkeypatch.setattr(registry, "_given", {})
    monkeypatch.setattr(registry, "_versions", {})
    yield
    monkeypatch.undo()
    cold_start()
