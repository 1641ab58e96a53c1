import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import lazyrt
from lazyrt.config import Config, config
from lazyrt.errors import UsageError
from lazyrt.observe import events
from tests.harness import DEVICE, cold_start


def test_settings_have_documented_defaults(monkeypatch):
    for name in (
        "READ_POLICY",
        "BARRIER_AFTER_OPTIMIZER",
        "MAX_PENDING_NODES",
        "MAX_INTERNED_NODES",
        "COMPILE_TIER",
        "CACHE_DIR",
    ):
        monkeypatch.delenv(f"LAZYRT_{name}", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)

    fresh = Config()

    assert fresh.read_policy == "barrier"
    assert fresh.barrier_after_optimizer
    assert fresh.cache_dir == Path("~/.cache/lazyrt").expanduser()
    for field in dataclasses.fields(Config):
        assert field.name in str(Config.__doc__)


def test_the_environment_gives_defaults(monkeypatch):
    monkeypatch.setenv("LAZYRT_READ_POLICY", "peek")
    monkeypatch.setenv("LAZYRT_BARRIER_AFTER_OPTIMIZER", "off")
    monkeypatch.setenv("LAZYRT_MAX_PENDING_NODES", "12")
    monkeypatch.setenv("LAZYRT_CACHE_DIR", "~/mine")

    fresh = Config()

    assert fresh.read_policy == "peek"
    assert not fresh.barrier_after_optimizer
    assert fresh.max_pending_nodes == 12
    assert fresh.cache_dir == Path("~/mine").expanduser()


def test_the_origin_of_each_setting_knows_its_variable(monkeypatch):
    from lazyrt.config import _initial_origin, _variables_of

    documented = set(re.findall(r"LAZY(?:RT|VIZ)_\w+", str(Config.__doc__)))
    monkeypatch.setenv("LAZYRT_COMPILE_TIER", "fast")

    variables = [
        name for f in dataclasses.fields(Config) for name in _variables_of(f.name)
    ]
    assert set(variables) == documented
    found = _initial_origin("compile_tier")
    assert found == "environment variable LAZYRT_COMPILE_TIER"


@pytest.mark.parametrize("text", ["", "0", "false", "No", " off "])
def test_flags_understand_words_for_no(monkeypatch, text):
    monkeypatch.setenv("LAZYRT_BARRIER_AFTER_OPTIMIZER", text)

    assert not Config().barrier_after_optimizer


def test_an_empty_cache_folder_switches_the_cache_off(monkeypatch):
    monkeypatch.setenv("LAZYRT_CACHE_DIR", "")

    assert Config().cache_dir is None


def test_the_users_cache_home_is_respected(monkeypatch, tmp_path):
    monkeypatch.delenv("LAZYRT_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    assert Config().cache_dir == tmp_path / "lazyrt"


def test_a_bad_number_in_the_environment_is_named(monkeypatch):
    monkeypatch.setenv("LAZYRT_MAX_PENDING_NODES", "many")

    with pytest.raises(
        UsageError, match=r"LAZYRT_MAX_PENDING_NODES is 'many'.*200,000"
    ):
        Config()


def test_a_bad_choice_in_the_environment_is_named(monkeypatch):
    monkeypatch.setenv("LAZYRT_READ_POLICY", "never")

    with pytest.raises(UsageError, match=r"'never'.*'barrier', 'peek'"):
        Config()


def test_a_bad_choice_is_refused_and_changes_nothing():
    with pytest.raises(UsageError, match="read_policy is 'sometimes'"):
        setattr(config, "read_policy", "sometimes")  # noqa: B010

    assert config.read_policy == "barrier"


def test_an_unknown_setting_is_refused_with_the_known_ones():
    with pytest.raises(UsageError, match=r"no setting 'speed'.*read_policy"):
        setattr(config, "speed", 9)  # noqa: B010
    with pytest.raises(UsageError, match="no setting 'speed'"), config.scoped(speed=9):
        pass


def test_scoped_settings_are_restored_after_errors_too():
    with (  # noqa: PT012
        pytest.raises(ValueError, match="mine"),
        config.scoped(read_policy="peek", max_pending_nodes=3),
    ):
        assert str(config.read_policy) == "peek"
        raise ValueError("mine")

    assert config.read_policy == "barrier"
    assert config.max_pending_nodes != 3


def test_a_scope_that_fails_half_way_restores_what_it_set():
    before = config.max_pending_nodes

    with (
        pytest.raises(UsageError),
        config.scoped(max_pending_nodes=3, read_policy="sometimes"),
    ):
        pass

    assert config.max_pending_nodes == before


def test_scopes_may_be_nested():
    with config.scoped(read_policy="peek"):
        with config.scoped(read_policy="barrier"):
            assert str(config.read_policy) == "barrier"
        assert str(config.read_policy) == "peek"


@pytest.mark.lazy_only("counts graphs and executions of steps")
def test_the_compile_tier_applies_to_steps_from_then_on():
    cold_start()
    x = torch.ones(3, device=DEVICE)
    lazyrt.mark_step()
    found: list[Any] = []

    with lazyrt.subscribe(found.append, events.CompileFinished):
        for tier in ("fast", "optimised"):
            with config.scoped(compile_tier=tier):
                y = x.sin() if tier == "fast" else x.cos()
                lazyrt.mark_step()
                z = x.sin()
                lazyrt.mark_step()

    assert [event.tier for event in found] == ["fast", "optimised", "optimised"]
    assert torch.allclose(y.cpu(), torch.ones(3).cos())
    assert torch.allclose(z.cpu(), torch.ones(3).sin())


@pytest.mark.parametrize(
    ("name", "value", "takes"),
    [
        ("max_plans", "many", "a whole number from 0"),
        ("max_plans", -1, "a whole number from 0"),
        ("max_graphs", True, "a whole number from 0"),
        ("eager", "no", "True or False"),
        ("cache_dir", 5, "a folder"),
        ("progress_after_s", float("inf"), "a number of seconds from 0"),
        ("progress_after_s", None, "a number of seconds from 0"),
    ],
)
def test_a_value_of_another_kind_is_refused_and_changes_nothing(name, value, takes):
    before = getattr(config, name)

    with pytest.raises(UsageError, match=f"the setting {name} is .*; it takes {takes}"):
        setattr(config, name, value)

    assert getattr(config, name) == before


def test_a_folder_may_be_a_text(tmp_path):
    with config.scoped(cache_dir=str(tmp_path)):
        assert config.cache_dir == tmp_path


def test_whole_numbers_of_other_libraries_are_whole_numbers():
    import numpy as np

    with config.scoped(max_plans=np.int64(7)):
        assert type(config.max_plans) is int


@pytest.mark.parametrize(
    "name", ["LAZYVIZ_EAGER", "LAZYVIZ_OPBYOP", "LAZYRT_BARRIER_AFTER_OPTIMIZER"]
)
def test_a_word_that_is_neither_yes_nor_no_is_named(monkeypatch, name):
    """A mode is not switched on by a word that nobody meant so."""
    monkeypatch.setenv(name, "lazy")

    with pytest.raises(UsageError, match=f"{name} is 'lazy', which says neither"):
        Config()


@pytest.mark.parametrize("word", ["1", "true", "ON", " yes "])
def test_words_for_yes_switch_eager_debug_mode_on(monkeypatch, word):
    monkeypatch.setenv("LAZYVIZ_EAGER", word)

    assert Config().eager


def test_a_negative_number_in_the_environment_is_named(monkeypatch):
    monkeypatch.setenv("LAZYRT_MAX_PLANS", "-3")

    with pytest.raises(UsageError, match="LAZYRT_MAX_PLANS is '-3'"):
        Config()
