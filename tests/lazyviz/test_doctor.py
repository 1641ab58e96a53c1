"""`%lazy doctor` and `python -m lazyviz doctor`: what is found, and what to do about it."""

import importlib
import importlib.metadata
from types import SimpleNamespace

import pytest

import lazyrt
from lazyrt.config import config
from lazyviz.__main__ import main
from lazyviz.inspection import doctor


def found(shell=None):
    """Return the checks by name, with those of settings apart."""
    every = doctor.checks(lazyrt, shell)
    return {check.name: check for check in every if check.name != "setting"}


def advised_settings():
    return {
        check.found.partition(" ")[0]: check
        for check in doctor.checks(lazyrt)
        if check.name == "setting"
    }


@pytest.mark.slow
def test_versions_device_cache_memory_and_processors_are_told():
    names = set(found())

    assert names >= {
        "versions", "processors", "threads", "graphs", "front end", "device", "cache folder",
        "memory",
    }  # fmt: skip
    assert "cpu" in found()["device"].found


def test_a_version_that_lazyviz_does_not_take_is_a_fault(monkeypatch):
    monkeypatch.setattr(
        importlib.metadata,
        "requires",
        lambda _name: ["jax<0.10,>=0.9", "nbval>99; extra == 'test'"],
    )

    versions = found()["versions"]

    assert versions.kind == "fault"
    assert (
        f"jax is {importlib.metadata.version('jax')}, lazyviz takes" in versions.advice
    )
    assert "nbval" not in versions.advice


def test_a_package_that_is_not_there_is_a_fault(monkeypatch):
    real = importlib.metadata.version

    def version(name):
        if name == "jaxlib":
            raise importlib.metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(importlib.metadata, "version", version)

    assert "jaxlib is not installed" in found()["versions"].advice


@pytest.mark.lazy_only("it is about the modes, which other runs set for all tests")
def test_each_setting_that_costs_speed_says_who_set_it_and_what_undoes_it():
    assert "eager" not in advised_settings()
    with config.scoped(
        eager=True, compile_tier="fast", stop_at_nan=True, keep_values=2
    ):
        told = advised_settings()

    assert set(told) >= {"eager", "compile_tier", "stop_at_nan", "keep_values"}
    assert "lazyrt.config.eager = False undoes it" in told["eager"].advice
    assert "test_doctor.py" in told["eager"].found


def test_what_undoes_a_setting_is_the_default_even_where_the_environment_says_the_same(
    monkeypatch,
):
    monkeypatch.setenv("LAZYRT_CACHE_DIR", "")
    monkeypatch.setenv("XDG_CACHE_HOME", "/kept")
    with config.scoped(cache_dir=None):
        advice = advised_settings()["cache_dir"].advice

    assert "lazyrt.config.cache_dir = '/kept/lazyrt' undoes it" in advice


def test_settings_that_cost_nothing_are_said_to_be_none():
    with config.scoped(compile_tier="optimised", cache_dir="somewhere"):
        told = [c for c in doctor.checks(lazyrt) if c.name in {"setting", "settings"}]

    names = {each.found.partition(" ")[0] for each in told}
    assert not {"compile_tier", "cache_dir"} & names


def test_a_cache_folder_that_cannot_be_written_to_is_a_fault(tmp_path):
    (tmp_path / "file").write_text("")
    with config.scoped(cache_dir=tmp_path / "file" / "cache"):
        cache = found()["cache folder"]

    assert cache.kind == "fault"
    assert "LAZYRT_CACHE_DIR" in cache.advice


def test_a_cache_that_may_outgrow_the_disk_is_told(tmp_path):
    with config.scoped(cache_dir=tmp_path, max_cache_bytes=2**62):
        assert "max_cache_bytes" in found()["disk"].advice
    with config.scoped(cache_dir=tmp_path, max_cache_bytes=1):
        assert found()["disk"].advice == ""


def test_flags_of_xla_and_modes_of_torch_are_told(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=folder --xla_foo=1")
    import torch

    with torch.autograd.set_detect_anomaly(mode=True, check_nan=False):
        told = found()

    assert told["XLA_FLAGS"].found == "--xla_dump_to=folder"
    assert "set_detect_anomaly(False)" in told["torch"].advice
    assert "torch" not in found()


def test_a_container_with_fewer_processors_than_threads_is_told(monkeypatch):
    monkeypatch.setattr(doctor, "_quota", lambda: 0.5)

    assert "taskset" in found()["processors"].advice


def test_a_notebook_without_the_packages_of_widgets_is_a_fault(monkeypatch):
    page = SimpleNamespace(kernel=SimpleNamespace(comm_manager=None))
    assert found(page)["widgets"].advice == ""
    real = importlib.metadata.version

    def version(name):
        if name == "anywidget":
            raise importlib.metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(importlib.metadata, "version", version)

    versions = found(page)["versions"]
    assert versions.kind == "fault"
    assert "anywidget is not installed" in versions.advice


def test_what_to_do_comes_first_and_nothing_to_do_is_said():
    checks = [
        doctor.Check("disk", "full", "free some", "fault"),
        doctor.Check("a", "b"),
    ]

    assert doctor.doc(checks).to_text().splitlines() == [
        "2 checks: 1 fault.",
        "",
        "disk: free some",
        "",
        "disk           full",
        "a              b",
    ]
    assert doctor.doc(checks[1:]).to_text().startswith("1 check, nothing to do.")


def test_the_command_ends_with_1_where_something_does_not_work(
    tmp_path, monkeypatch, capsys
):
    with config.scoped(cache_dir=tmp_path):
        assert main(["doctor"]) == 0
    (tmp_path / "file").write_text("")
    with config.scoped(cache_dir=tmp_path / "file" / "cache"):
        assert main(["doctor"]) == 1
    monkeypatch.setattr(importlib, "import_module", _refuse)
    assert doctor.main([]) == 1

    assert "ImportError: no wheel" in capsys.readouterr().out


def _refuse(_name):
    raise ImportError("no wheel")


def test_looking_records_nothing():
    before = lazyrt.counters(), len(lazyrt.pending_graph().nodes)

    doctor.doc(doctor.checks(lazyrt)).to_html()

    assert (lazyrt.counters(), len(lazyrt.pending_graph().nodes)) == before
