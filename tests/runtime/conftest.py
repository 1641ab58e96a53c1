import pytest

import lazyrt
from lazyrt.lowering import registry
from tests.harness import cold_start, fresh_runtime


@pytest.fixture(autouse=True)
def _fresh_runtime():
    with fresh_runtime():
        yield


@pytest.fixture
def cold_and_fast():
    """Nothing is compiled yet, and what will be is compiled quickly."""
    cold_start()
    lazyrt.config.compile_tier = "fast"
    yield
    lazyrt.config.compile_tier = "optimised"


@pytest.fixture
def fast():
    """What is compiled is compiled quickly: for what ops do, not for what XLA makes of them."""
    lazyrt.config.compile_tier = "fast"  # until the fresh runtime is left


@pytest.fixture
def rules(monkeypatch):
    """Let a test register rules that are gone after it."""
    monkeypatch.setattr(registry, "_rules", dict(registry._rules))
    monkeypatch.setattr(registry, "_given", {})
    monkeypatch.setattr(registry, "_versions", {})
    yield
    monkeypatch.undo()
    cold_start()
