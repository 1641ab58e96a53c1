"""A step that does not fit: it is refused whole, and the error says who has the memory."""

import gc
import re

import pytest
import torch

import lazyrt
from lazyrt.config import config
from lazyrt.errors import OutOfMemoryError
from lazyrt.execution import memory
from tests.harness import DEVICE

HUGE = 2**40


def refused(make, match):
    """Run something that must not fit; return the error's text and no traceback."""
    with pytest.raises(OutOfMemoryError, match=match) as caught:
        make()
    text = str(caught.value)
    del caught
    gc.collect()
    return text


@pytest.mark.lazy_only("a mode runs the op at its line")
def test_p_out_of_memory_lists_size_name_and_line_and_leaves_every_tensor():
    """Which tensors, who holds them, and where they were made."""
    kept = torch.ones(300, 300, device=DEVICE)
    lazyrt.mark_step()
    huge = torch.ones(HUGE, device=DEVICE)
    half = kept / 2

    text = refused(lazyrt.mark_step, r"a graph of 2 ops needs 4\.0 TiB of memory")

    assert "Nothing was run, so every tensor is as it was." in text
    assert re.search(r"4\.0 TiB: aten\.ones\.default, .*test_memory\.py:\d+", text)
    assert re.search(
        r"4\.0 TiB: huge, f32\[\d+\], pending, made at .*test_memory\.py:\d+", text
    )
    assert re.search(r"352 KiB: kept, f32\[300,300\], ready", text)
    assert "`del name`" in text
    assert lazyrt.is_pending(half)
    assert lazyrt.is_pending(huge)

    del huge
    lazyrt.mark_step()

    assert half.sum().item() == 45_000.0
    assert kept.sum().item() == 90_000.0


@pytest.mark.parametrize(
    "read",
    [
        lambda t: t.sum().item() + (t * 2).cpu().numel(),
        lambda t: lazyrt.materialise(t + 1),
        lambda t: t.to("cpu"),
    ],
)
def test_every_way_to_run_is_refused(read):
    def make():
        read(torch.ones(HUGE, device=DEVICE))

    refused(make, "TiB of memory, and")


def test_eager_mode_is_refused_too():
    def make():
        with lazyrt.eager_mode():
            torch.ones(HUGE, device=DEVICE)

    refused(make, r"aten\.ones\.default needs 4\.0 TiB")


@pytest.mark.lazy_only("an op that runs by itself is refused at its own line")
def test_a_result_in_the_middle_is_named():
    a = torch.ones(2**20, 1, device=DEVICE)
    b = torch.ones(1, 2**20, device=DEVICE)
    total = (a * b).cumsum(0).sum()

    text = refused(total.item, "TiB of memory, and")

    assert "4.0 TiB: aten.cumsum.default, f32[1048576,1048576]" in text
    del total


def test_what_xla_cannot_allocate_is_the_same_error():
    """Without a look at the machine the allocation itself fails, while the step runs."""
    kept = torch.ones(4, device=DEVICE)
    lazyrt.mark_step()
    with config.scoped(max_memory_bytes=-1):

        def make():
            ramp = torch.ones(HUGE, device=DEVICE)
            float((ramp + 1).sort()[0][-1])

        text = refused(make, r"the device could not allocate \d\.\d TiB")

    assert "kept, f32[4], ready" in text
    assert kept.sum().item() == 4.0


def test_callers_that_look_for_memory_errors_find_it():
    """Libraries that try smaller batches catch torch's class or look for its words."""
    error = OutOfMemoryError("no room", needed=3, available=2)

    assert isinstance(error, torch.OutOfMemoryError)
    assert isinstance(error, MemoryError)
    assert isinstance(error, RuntimeError)
    assert (error.needed, error.available) == (3, 2)


@pytest.mark.lazy_only("a mode keeps each op's result")
def test_a_limit_counts_what_lives_and_what_a_step_adds():
    kept = torch.ones(1000, device=DEVICE)
    lazyrt.mark_step()
    lazyrt.wait()
    with config.scoped(max_memory_bytes=memory.in_use() + 10_000):
        fits = kept * 2
        lazyrt.mark_step()
        large = torch.cat([kept, kept, kept]).exp()

        text = refused(lazyrt.mark_step, r"the limit of [\d.]+ KiB")

        assert "(config.max_memory_bytes) leaves" in text
        assert lazyrt.is_pending(large)
    lazyrt.mark_step()
    assert large.shape == (3000,)
    assert fits.sum().item() == 2000.0


@pytest.mark.lazy_only("a mode keeps each op's result")
def test_memory_that_results_take_over_is_not_asked_for():
    """An update in place fits where a copy would not."""
    weight = torch.ones(50_000, device=DEVICE)
    lazyrt.mark_step()
    lazyrt.wait()
    with config.scoped(max_memory_bytes=memory.in_use() + 150_000):
        weight.mul_(3)
        lazyrt.mark_step()
        assert weight[0].item() == 3.0
        copy = weight * 2
        refused(lazyrt.mark_step, "a graph of 1 op needs")
        del copy


@pytest.mark.lazy_only("a mode runs the op at its line")
def test_dead_tensors_are_no_roots_after_a_refusal():
    """The error's traceback keeps frames of the barrier, but no tensor through them."""
    huge = torch.ones(HUGE, device=DEVICE)
    small = torch.ones(3, device=DEVICE) * 7
    with pytest.raises(OutOfMemoryError) as caught:
        lazyrt.mark_step()

    del huge

    assert caught.value.__traceback__ is not None
    assert (HUGE,) not in [t.shape for t in lazyrt.live_tensors()]
    assert small.sum().item() == 21.0


def test_copies_are_checked_before_they_are_made():
    source = torch.ones(1).expand(HUGE)

    refused(lambda: source.to(DEVICE), r"a copy to the device needs 4\.0 TiB")


@pytest.mark.lazy_only("a mode runs the op at its line")
def test_a_look_at_the_holders_that_fails_does_not_hide_the_error(monkeypatch):
    def broken():
        raise ValueError("no names today")

    monkeypatch.setattr(memory, "describe_holders", broken)
    huge = torch.ones(HUGE, device=DEVICE)

    refused(lazyrt.mark_step, "Nothing was run")
    del huge


def test_small_steps_ask_nobody(monkeypatch):
    def asked():
        raise AssertionError("asked for a small step")

    monkeypatch.setattr(memory, "available", asked)

    assert (torch.ones(3, device=DEVICE) * 2).sum().item() == 6.0


def test_a_container_s_limit_counts(monkeypatch, tmp_path):
    limit, used = tmp_path / "memory.max", tmp_path / "memory.current"
    limit.write_text("1000\n")
    used.write_text("900\n")
    (tmp_path / "memory.stat").write_text("anon 700\ninactive_file 200\n")
    monkeypatch.setattr(memory, "_CGROUPS", ((str(limit), str(used)),))

    assert memory.available() == 300

    limit.write_text("max\n")
    assert (memory.available() or 0) > 2**20
