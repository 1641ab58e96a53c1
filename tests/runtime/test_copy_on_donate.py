"""What is shown of a large tensor is kept without a copy, and nothing else changes by that."""

import random
import threading

import pytest
import torch

import lazyrt
from lazyrt import jax_compat
from lazyrt.errors import OutOfMemoryError
from lazyrt.execution import copy_on_donate, memory, transfer
from lazyrt.frontend import reads
from lazyrt.observe import events
from tests.harness import DEVICE, cold_start, recorded, thinned

pytestmark = pytest.mark.usefixtures("everything_is_large")


@pytest.fixture
def everything_is_large(monkeypatch):
    monkeypatch.setattr(copy_on_donate, "_MIN_SHARED", 0)
    monkeypatch.setattr(reads, "_LARGE", 0)


def ready(*sizes):
    """Return a computed tensor that differs from others of its size."""
    x = torch.arange(float(torch.Size(sizes).numel())).reshape(sizes).to(DEVICE) + 1
    lazyrt.mark_step()
    return x


def donations(run):
    """Return fingerprint and number of donated inputs of each step that a function runs."""
    with recorded(events.ExecuteStarted) as found:
        run()
        lazyrt.mark_step()
    return [
        (each.fingerprint, each.donated) for each in found if each.purpose == "step"
    ]


def test_a_large_tensor_that_is_kept_takes_no_memory_of_its_own(monkeypatch):
    """Showing a gigabyte does not take another one."""
    monkeypatch.setattr(copy_on_donate, "_MIN_SHARED", 2**20)
    large, small = ready(512, 512), ready(4)
    before = memory.in_use()

    kept = lazyrt.snapshot(large), lazyrt.snapshot(small)

    assert memory.in_use() - before == small.nbytes
    del large
    assert memory.in_use() - before == small.nbytes
    assert kept[0][511, 511].item() == 512 * 512
    assert kept[1].tolist() == [1, 2, 3, 4]


@pytest.mark.not_eager("the op has computed it, not a look")
def test_what_a_look_has_computed_is_kept_without_a_copy():
    y = ready(8, 8) * 2
    value = lazyrt.materialise(y)
    before = memory.in_use()

    kept = lazyrt.snapshot(y)
    lazyrt.mark_step()
    y.add_(1)
    lazyrt.mark_step()

    assert memory.in_use() - before == 2 * y.nbytes
    assert torch.equal(kept.cpu(), value)
    assert torch.equal(y.cpu(), value + 1)


@pytest.mark.lazy_only("counts what steps give away")
def test_a_step_gives_the_same_memory_away_whether_somebody_keeps_a_copy_or_not():
    x = ready(8, 8)
    plain = donations(lambda: x.add_(1))
    now = x.cpu()

    kept = lazyrt.snapshot(x)
    looked = donations(lambda: x.add_(1))

    assert looked == plain
    assert plain[0][1] == 1
    assert torch.equal(kept.cpu(), now)
    assert torch.equal(x.cpu(), now + 1)


READS = {
    "print": repr,
    "look": lazyrt.look,
    "read": lambda x: x.numpy(),
    "view": lambda x: x[1:].tolist(),
    "several": lambda x: reads.peek_all([x, x]),
    "several views": lambda x: reads.peek_all([x[1:], x[:4]]),
}


@pytest.mark.lazy_only("counts what steps give away")
@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_a_step_that_runs_while_another_thread_reads_gives_the_same_memory_away(
    read, monkeypatch
):
    """The copy is made without the lock: whether it has ended must not be the step's key."""
    x = ready(8, 8)
    plain = donations(lambda: x.add_(1))

    meanwhile = in_each_copy(monkeypatch, lambda: donations(lambda: x.add_(1)))
    read(x)
    monkeypatch.undo()

    assert plain[0][1] == 1
    assert meanwhile
    assert all(each == plain for each in meanwhile)
    assert x[0, 0].item() == 2 + len(meanwhile)


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_a_read_that_is_interrupted_leaves_nothing_in_its_traceback(read, monkeypatch):
    x = ready(8, 8)
    plain = donations(lambda: x.add_(1))

    def interrupted(real):
        def run(*args):
            if threading.current_thread() is threading.main_thread():
                del args  # a traceback keeps this frame
                raise KeyboardInterrupt
            return real(*args)  # the runtime's own threads wait for steps

        return run

    with monkeypatch.context() as patched:
        for name in ("block", "on_host"):
            patched.setattr(jax_compat, name, interrupted(getattr(jax_compat, name)))
        with pytest.raises(KeyboardInterrupt) as kept:
            read(x)

    assert donations(lambda: x.add_(1)) == plain
    assert kept.value.__traceback__ is not None
    assert x[0, 0].item() == 3


@pytest.mark.not_eager("looks at the inputs of what is pending")
def test_an_input_may_be_looked_at_while_its_step_gives_it_away(monkeypatch):
    x = ready(8, 8)
    plain = donations(lambda: x.add_(1))
    x.add_(1)
    found = lazyrt.inspect()

    meanwhile = in_each_copy(monkeypatch, lambda: donations(lambda: None))
    value = found.parameter(found.graph.parameters[0])
    monkeypatch.undo()

    assert meanwhile == [plain]
    assert value[0, 0] == 2
    assert x[0, 0].item() == 3


def in_each_copy(monkeypatch, run):
    """Let another thread call `run` whenever data is copied; return what it gave."""
    given = []
    for name in ("to_host", "own_copy"):
        copy = getattr(transfer, name)

        def copy_late(*args, copy=copy, **options):
            worker = threading.Thread(target=lambda: given.append(run()))
            worker.start()
            worker.join()
            return copy(*args, **options)

        monkeypatch.setattr(transfer, name, copy_late)
    return given


@pytest.mark.lazy_only("counts what steps give away")
def test_either_may_be_written_to_alone_and_both_in_one_step():
    x = ready(8)
    first, second = lazyrt.snapshot(x), lazyrt.snapshot(x)

    assert donations(lambda: first.mul_(2))[0][1] == 1
    assert x.tolist() == second.tolist() == list(range(1, 9))
    assert donations(lambda: (x.add_(1), second.sub_(1)))[0][1] == 2

    assert first.tolist() == list(range(2, 18, 2))
    assert x.tolist() == list(range(2, 10))
    assert second.tolist() == list(range(8))


@pytest.mark.lazy_only("counts what steps give away")
def test_a_copy_that_the_step_reads_is_separated_from_what_the_step_overwrites():
    x = ready(8)
    kept = lazyrt.snapshot(x)
    made = []

    def use():
        made.append(kept * 10)
        x.add_(kept)

    assert donations(use)[0][1] == 1
    assert kept.tolist() == list(range(1, 9))
    assert x.tolist() == list(range(2, 18, 2))
    assert made[0].tolist() == list(range(10, 90, 10))


@pytest.mark.not_eager("the op takes memory, not a barrier")
def test_a_copy_is_told_as_one_that_takes_memory_with_the_step():
    x = ready(64, 64)
    kept = lazyrt.snapshot(x)
    x.add_(1)
    limit = memory.in_use() + x.nbytes // 2

    with (
        lazyrt.config.scoped(max_memory_bytes=limit),
        pytest.raises(OutOfMemoryError, match=r"needs 16\.0 KiB of memory"),
    ):
        lazyrt.mark_step()

    lazyrt.mark_step()
    assert (kept[0, 0].item(), x[0, 0].item()) == (1.0, 2.0)


def some_program(seed, *, keeps):
    """Write to, drop and keep tensors at random; return what a run gave, and what was kept."""
    pick = random.Random(seed)  # noqa: S311
    tensors = [torch.full((4, 4), float(k)).to(DEVICE) for k in range(3)]
    lazyrt.mark_step()
    kept, expected = [], []
    with recorded(events.ExecuteStarted) as found:
        for _ in range(40):
            k = pick.randrange(len(tensors))
            match pick.randrange(7):
                case 0:
                    tensors[k].add_(1)
                case 1:
                    tensors[k][1:].mul_(1.5)
                case 2:
                    tensors[k] = tensors[k] + tensors[pick.randrange(len(tensors))]
                case 3:
                    tensors[k] = tensors[k].t().clone()
                case 4 | 5 if keeps:
                    expected.append(lazyrt.materialise(tensors[k]))
                    kept.append(lazyrt.snapshot(tensors[k]))
                case 6:
                    lazyrt.mark_step()
        lazyrt.mark_step()
    runs = [(e.fingerprint, e.donated) for e in found if e.purpose == "step"]
    return runs, [t.tolist() for t in tensors], kept, expected


@pytest.mark.parametrize("seed", thinned(range(12), 4))
def test_random_programs_run_the_same_steps_and_keep_what_was_shown(seed):
    """Fingerprints, donations and bits, with copies kept at random places."""
    cold_start()
    runs, values, _, _ = some_program(seed, keeps=False)
    cold_start()

    looked, same, kept, expected = some_program(seed, keeps=True)

    assert looked == runs
    assert same == values
    assert all(map(torch.equal, [each.cpu() for each in kept], expected))


def test_nothing_is_remembered_of_what_is_gone():
    x = ready(8)
    kept = lazyrt.snapshot(x)
    del x, kept
    other = ready(9)

    lazyrt.snapshot(other)

    assert len(copy_on_donate._holders) == 1


@pytest.mark.lazy_only("a step that runs as one executable forgets what it gives away")
def test_what_is_no_longer_shown_costs_later_steps_nothing():
    """A barrier asks for shared arrays for as long as there are any."""
    x = ready(3)
    shown = lazyrt.snapshot(x)
    x.add_(1)
    lazyrt.mark_step()
    assert shown.tolist() == [1.0, 2.0, 3.0]
    again = lazyrt.snapshot(x)
    assert copy_on_donate._holders

    del again
    x.add_(1)
    lazyrt.mark_step()

    assert not copy_on_donate._holders
    assert x.tolist() == [3.0, 4.0, 5.0]
