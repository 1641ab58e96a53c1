"""The executables in memory and on disk, listed and dropped."""

import os
import threading
import time

import jax
import pytest
import torch

import lazyrt
from lazyrt import jax_compat
from lazyrt.config import config
from lazyrt.errors import UsageError
from lazyrt.execution import cache, cache_miss, executables
from tests.harness import DEVICE, cold_start, run_python

DAY_S = 86_400

PROGRAM = """
import torch, lazyrt
y = torch.ones(3, device="lazyrt") * 6.5
print(y.tolist(), lazyrt.counters()["compiles"])
for e in lazyrt.cached_executables():
    print(e.holds.split(" ")[0], e.nodes, e.tier, e.line, e.in_memory, e.on_disk, e.nbytes > 0)
"""


@pytest.fixture
def folder(tmp_path):
    cold_start()
    config.cache_dir = tmp_path
    return tmp_path


def work(factor):
    return (torch.ones(3).to(DEVICE) * factor + 1).tolist()


def files(folder):
    return sorted(folder.rglob("*.xla"))


def compiles():
    return lazyrt.counters()["compiles"]


@pytest.mark.lazy_only("is about executables of steps")
def test_an_executable_is_listed_with_what_it_holds_and_where_it_came_from(folder):
    work(2.5)
    (entry,) = lazyrt.cached_executables()

    assert entry.holds.startswith("step graph ")
    assert entry.holds.endswith(lazyrt.compiled_graphs()[-1].fingerprint[:8])
    assert (entry.nodes, entry.tier) == (2, "fast")
    assert entry.line.startswith("test_disk_cache.py:")
    assert entry.nbytes == files(folder)[0].stat().st_size
    assert entry.in_memory
    assert entry.on_disk
    assert entry.is_usable
    assert 0 <= entry.age_s < 60
    assert files(folder)[0].stem == entry.key


@pytest.mark.lazy_only("is about executables of steps")
def test_the_latest_executables_are_found_without_reading_the_others(
    folder, monkeypatch
):
    """What a wait is expected to take must not take as long to look up."""
    for sizes in (2, 3, 4):
        torch.ones(sizes, device=DEVICE).exp().tolist()
    for age, path in enumerate(files(folder)):
        os.utime(path, (DAY_S * (9 - age), DAY_S * (9 - age)))
    lazyrt.clear_caches(disk=False)
    everything = lazyrt.cached_executables()
    read = []
    facts = cache.File.facts

    def noted(file):
        read.append(file.digest)
        return facts(file)

    monkeypatch.setattr(cache.File, "facts", noted)

    latest = lazyrt.cached_executables(limit=1)

    assert len(everything) == 3
    assert [entry.key for entry in latest] == read == [everything[0].key]
    with pytest.raises(UsageError, match=r"got limit=-1, which is no number"):
        lazyrt.cached_executables(limit=-1)


def test_a_single_op_is_listed_by_its_operands_and_line(folder):
    x = torch.ones(2, 3).to(DEVICE)
    with lazyrt.eager_mode():
        _ = x.tanh()

    (entry,) = lazyrt.cached_executables()

    assert entry.holds == "aten.tanh.default(f32[2,3])"
    assert (entry.nodes, entry.tier) == (1, "fast")
    assert entry.line.startswith("test_disk_cache.py:")


@pytest.mark.slow
def test_a_second_process_lists_what_the_first_one_wrote(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(PROGRAM)
    code = f"import runpy; runpy.run_path({str(script)!r})"
    first = run_python(code, LAZYRT_CACHE_DIR=str(tmp_path)).splitlines()
    second = run_python(code, LAZYRT_CACHE_DIR=str(tmp_path)).splitlines()

    assert first[0].endswith(" 1")
    assert second[0].endswith(" 0")
    assert first[1:] == second[1:]
    assert second[1].startswith("step ")
    assert second[1].endswith(" fast script.py:3 True True True")


@pytest.mark.lazy_only("is about executables of steps")
def test_an_entry_without_facts_still_loads_and_is_listed(folder):
    expected = work(3.5)
    (path,) = files(folder)
    data = path.read_bytes()
    path.write_bytes(data[: data.rindex(b'{"holds"')])
    cold_start()
    lazyrt.reset_counters()

    assert lazyrt.cached_executables()[0].holds == ""
    assert work(3.5) == expected
    assert compiles() == 0
    assert lazyrt.counters()["disk_hits"] == 1
    (entry,) = lazyrt.cached_executables()
    assert entry.holds.startswith("step graph ")


@pytest.mark.lazy_only("is about executables of steps")
def test_listing_changes_nothing(folder):
    work(4.5)
    (path,) = files(folder)
    os.utime(path, (0, 0))
    x = torch.ones(2).to(DEVICE) * 8
    before = lazyrt.counters()

    lazyrt.cached_executables()

    assert path.stat().st_mtime == 0
    assert lazyrt.counters() - before == dict.fromkeys(before, 0)
    assert lazyrt.is_pending(x)


@pytest.mark.lazy_only("is about executables of steps")
def test_one_executable_is_dropped_by_the_first_digits_of_its_key(folder):
    work(5.5)
    first = lazyrt.cached_executables()[0]
    with lazyrt.eager_mode():
        _ = torch.ones(5).to(DEVICE).tanh()
    lazyrt.reset_counters()

    dropped = lazyrt.drop_executables(first.key[:12])

    assert [entry.key for entry in dropped] == [first.key]
    assert first.key not in [entry.key for entry in lazyrt.cached_executables()]
    assert len(files(folder)) == 1
    work(5.5)
    assert compiles() == 1


@pytest.mark.lazy_only("is about executables of steps")
def test_those_unused_for_long_are_dropped(folder):
    work(6.5)
    (old,) = files(folder)
    with lazyrt.eager_mode():
        _ = torch.ones(5).to(DEVICE).tanh()
    weeks_ago = time.time() - 8 * DAY_S
    os.utime(old, (weeks_ago, weeks_ago))

    assert lazyrt.drop_executables(unused_s=9 * DAY_S) == ()
    dropped = lazyrt.drop_executables(unused_s=7 * DAY_S)

    assert [entry.key for entry in dropped] == [old.stem]
    assert not old.exists()
    assert len(files(folder)) == 1


@pytest.mark.lazy_only("is about executables of steps")
def test_what_killed_processes_left_half_written_is_deleted(folder):
    work(8.5)
    (kept,) = files(folder)
    old, new = (kept.with_name(f"tmp{name}") for name in ("killed", "writing"))
    for path in (old, new):
        path.write_bytes(b"half")
    hours_ago = time.time() - 7_200
    os.utime(old, (hours_ago, hours_ago))
    cache._sizes.clear()  # as in a new process

    work(9.5)

    assert not old.exists()
    assert new.exists()
    assert kept.exists()


@pytest.mark.not_eager("is about executables of steps")
def test_all_are_dropped_and_a_pending_graph_stays(folder):
    work(7.5)
    y = torch.ones(2).to(DEVICE) * 10
    repr(y)

    assert len(lazyrt.drop_executables()) >= 2

    assert files(folder) == []
    assert lazyrt.cached_executables() == ()
    assert lazyrt.is_pending(y)
    assert y.tolist() == [10.0, 10.0]


@pytest.mark.lazy_only("is about executables of steps")
def test_files_of_other_versions_are_listed_and_links_are_left_alone(folder):
    work(8.5)
    (path,) = files(folder)
    other = folder / "another-1" / path.parent.name / path.name
    other.parent.mkdir(parents=True)
    other.write_bytes(path.read_bytes())
    precious = folder / "precious"
    precious.write_text("mine")
    link = path.with_name(path.name[:2] + "0" * 30 + ".xla")
    link.symlink_to(precious)

    usable = sorted(entry.is_usable for entry in lazyrt.cached_executables())
    lazyrt.drop_executables()

    assert usable == [False, True]
    assert not other.exists()
    assert link.is_symlink()
    assert precious.read_text() == "mine"


@pytest.mark.lazy_only("is about executables of steps")
def test_a_damaged_end_of_a_file_is_no_fact(folder):
    work(9.5)
    (path,) = files(folder)
    data = path.read_bytes()

    for damage in (b"", b"short", data[:-1], data[:-12] + b"\xff" * 4 + data[-8:]):
        path.write_bytes(damage)
        (file,) = cache.files()
        assert file.facts() == cache.Facts()


@pytest.mark.lazy_only("is about executables of steps")
@pytest.mark.parametrize("key", ["", "zz", "0" * 33])
def test_a_key_of_no_executable_drops_nothing(folder, key):
    work(10.5)

    with pytest.raises(UsageError, match="no executable has a key that begins with"):
        lazyrt.drop_executables(key)
    assert len(files(folder)) == 1


@pytest.mark.lazy_only("is about executables of steps")
def test_a_key_of_several_executables_drops_nothing(folder):
    work(11.5)
    (path,) = files(folder)
    twin = path.with_name(path.name[:2] + "0" * 30 + ".xla")
    twin.write_bytes(path.read_bytes())

    with pytest.raises(UsageError, match=r"Give more digits"):
        lazyrt.drop_executables(path.stem[:2])
    assert len(files(folder)) == 2


def test_two_ways_to_choose_are_refused():
    with pytest.raises(UsageError, match="choose in two ways"):
        lazyrt.drop_executables("ab", unused_s=1)


@pytest.mark.lazy_only("is about executables of steps")
def test_a_file_of_another_user_is_never_loaded(folder, monkeypatch):
    work(9.5)
    assert files(folder)
    cold_start()
    before = compiles()
    another = os.getuid() + 1
    monkeypatch.setattr(os, "getuid", lambda: another)

    work(9.5)

    assert compiles() == before + 1


def scaled_erf(factor):
    @lazyrt.lowers("aten.erf.default")
    def erf(ctx, x):
        return x * factor


@pytest.mark.lazy_only("is about what is pending")
def test_each_op_of_a_step_is_lowered_by_the_rule_that_held_when_it_was_recorded(rules):
    x = torch.ones(2).to(DEVICE)
    results = []
    for factor in (2, 5):
        scaled_erf(factor)
        results.append(torch.special.erf(x))

    assert [y.tolist() for y in results] == [[2, 2], [5, 5]]


@pytest.mark.lazy_only("is about executables of steps")
def test_a_rule_that_is_registered_again_is_the_one_that_runs(folder, rules):
    x = torch.ones(2).to(DEVICE)

    def results():
        y = torch.special.erf(x) + 1
        looked = lazyrt.materialise(y)
        lazyrt.mark_step()
        return looked.tolist() + y.tolist()

    scaled_erf(2)
    assert results() == [3, 3, 3, 3]
    work(2.5)
    before = compiles()
    written = files(folder)

    scaled_erf(5)

    assert results() == [6, 6, 6, 6]
    assert compiles() == before + 1
    work(2.5)
    assert compiles() == before + 1
    explanation = lazyrt.compiled_graphs()[-1].explanation
    assert explanation is not None
    (cause,) = explanation.causes
    assert cause.kind == "lowering"
    assert "`aten.erf.default`" in cause.text
    assert files(folder) == written


@pytest.mark.lazy_only("is about executables of steps")
def test_no_other_process_takes_an_executable_with_a_users_rule(folder, rules):
    scaled_erf(2)

    torch.special.erf(torch.ones(2).to(DEVICE)).tolist()

    assert compiles() == 1
    assert files(folder) == []


def test_a_folder_of_another_torch_is_another_one(monkeypatch):
    before = cache._platform.__wrapped__()

    monkeypatch.setattr(torch, "__version__", "0.1")

    assert cache._platform.__wrapped__() != before


@pytest.mark.lazy_only("is about executables of steps")
def test_xla_is_asked_what_an_executable_allocates_by_the_process_that_compiles_it(
    folder, monkeypatch
):
    asked = []
    analysis = jax.stages.Compiled.memory_analysis

    def noted(executable):
        asked.append(executable)
        return analysis(executable)

    monkeypatch.setattr(jax.stages.Compiled, "memory_analysis", noted)
    first, found = work(2.5), len(asked)
    lazyrt.clear_caches(disk=False)
    again = work(2.5)

    assert first == again
    assert found == len(asked) == 1
    assert compiles() == 1


@pytest.mark.lazy_only("is about executables of steps")
def test_an_executable_is_read_while_its_step_is_described(folder, monkeypatch):
    work(2.5)
    cold_start_of_a_process(folder)
    read = threading.Event()
    load, describe = cache.load, cache_miss.describe
    loads = []

    def noted(key):
        loads.append(key)
        read.set()
        return load(key)

    def described(*args, **keywords):
        assert read.wait(10)
        return describe(*args, **keywords)

    monkeypatch.setattr(cache, "load", noted)
    monkeypatch.setattr(cache_miss, "describe", described)

    assert work(2.5) == [3.5, 3.5, 3.5]
    assert len(loads) == 1
    assert compiles() == 0


def every_kind_of_program():
    """A step with fusions, products, a sort, a loop, a convolution and several results."""
    torch.manual_seed(0)
    layers = [torch.nn.Conv1d(4, 8, 3), torch.nn.GELU(), torch.nn.Flatten()]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(240, 16)).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    x = torch.randn(6, 4, 32).to(DEVICE)
    for _ in range(2):
        optimizer.zero_grad()
        out = torch.softmax(model(x), 1)
        found = out.sort(1)[0].cumsum(0), torch.linalg.qr(out.T @ out)[0]
        (found[0].std() + torch.nn.functional.dropout(out).sum()).backward()
        optimizer.step()
        lazyrt.mark_step()
    texts = executables.compiled_texts(lazyrt.compiled_graphs()[0].fingerprint)
    return [each.tolist() for each in (*found, *model.parameters())], "".join(texts)


@pytest.mark.lazy_only("is about executables of steps")
@pytest.mark.parametrize("tier", ["fast", "optimised"])
def test_a_program_from_disk_gives_the_same_bits_and_shows_the_same_hlo(
    folder, tier, monkeypatch
):
    monkeypatch.setattr(config, "compile_tier", tier)
    values, text = every_kind_of_program()
    cold_start_of_a_process(folder)
    again, shown = every_kind_of_program()

    assert compiles() == 0
    assert again == values
    assert shown == text
    assert "metadata=" in text
    assert "fused_computation" in text
    stored = [path.read_bytes()[cache.HEAD.size :] for path in files(folder)]
    found = [jax_compat.deserialise(each) for each in stored]
    assert any("custom-call" in each.as_text() for each in found)


def cold_start_of_a_process(folder):
    """Forget all but what is on disk."""
    config.cache_dir = None
    cold_start()
    lazyrt.reset_counters()
    config.cache_dir = folder
