"""How lazy tensors meet other libraries: arrays, capsules, pickles, other layouts."""

import copy
import gc
import io
import pickle
import traceback

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils import dlpack

import lazyrt
from lazyrt.errors import DeviceError
from lazyrt.frontend import reads
from tests.harness import DEVICE, assert_same, lazy
from tests.runtime.semantics import grid, on_both

# ---------------------------------------------------------------- numpy and DLPack


def test_numpy_gives_values_dtype_and_shape():
    on_both(
        lambda d, x, i, b: [
            (a.dtype.name, a.shape, a.tolist())
            for a in (x.numpy(), x.t().numpy(), i.numpy(), b.numpy(), x[1].numpy())
        ],
        grid(2, 3),
        grid(3, dtype=torch.int64),
        torch.tensor([True, False]),
    )


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_array_protocols_give_what_the_cpu_gives():
    def program(device, x):
        arrays = [np.asarray(x), np.array(x, dtype=np.float64), np.stack([x[0], x[1]])]
        made = torch.from_numpy(np.asarray(x) * 2)
        return (
            [(a.dtype.name, a.tolist()) for a in arrays],
            made.tolist(),
            float(x.sum()),
        )

    on_both(program, grid(2, 3))


def test_an_array_of_a_lazy_tensor_is_a_copy():
    x = torch.ones(3, device=DEVICE)
    array = np.asarray(x)

    array[0] = 9

    assert x.tolist() == [1.0, 1.0, 1.0]


def test_numpy_of_a_tensor_that_requires_grad_is_refused_unless_forced():
    x = torch.ones(3, device=DEVICE, requires_grad=True)

    with pytest.raises(RuntimeError, match="requires grad"):
        np.asarray(x)
    with pytest.raises(RuntimeError, match="requires grad"):
        x.numpy()

    assert x.numpy(force=True).tolist() == [1.0, 1.0, 1.0]


def test_dlpack_exports_a_copy_to_the_cpu():
    x = lazy(grid(2, 3)) * 2

    arrays = [np.from_dlpack(x), np.from_dlpack(x.t())]
    capsule = torch.to_dlpack(x)  # type: ignore[attr-defined]
    tensors = [
        dlpack.from_dlpack(capsule),
        dlpack.from_dlpack(x),
        dlpack.from_dlpack(x, device="cpu"),
    ]

    assert arrays[0].tolist() == (grid(2, 3) * 2).tolist()
    assert arrays[1].tolist() == (grid(2, 3) * 2).t().tolist()
    for tensor in tensors:
        assert tensor.device.type == "cpu"
        assert torch.equal(tensor, grid(2, 3) * 2)
        tensor.zero_()
    assert x.sum().item() == 42.0


def test_dlpack_of_what_cannot_be_exported_is_refused():
    with pytest.raises(BufferError, match="require gradient"):
        dlpack.from_dlpack(torch.ones(2, device=DEVICE, requires_grad=True))
    with pytest.raises(BufferError, match="require gradient"):
        torch.ones(2, device=DEVICE, requires_grad=True).__dlpack__()
    with pytest.raises(BufferError, match="Leave `copy` out"):
        torch.ones(2, device=DEVICE).__dlpack__(copy=False)


def test_dlpack_imports_make_cpu_tensors_that_can_be_moved():
    imported = dlpack.from_dlpack(np.arange(4.0))

    assert lazy(imported).tolist() == [0.0, 1.0, 2.0, 3.0]


# ---------------------------------------------------------------- copies and pickles


def test_shallow_copies_are_shared_as_on_the_cpu():
    def program(device, x, w):
        plain, leaf, parameter = copy.copy(x), copy.copy(w), copy.copy(nn.Parameter(x))
        x.add_(1)
        return plain, leaf, parameter, plain.data_ptr() == x.data_ptr()

    on_both(program, grid(3), grid(2).requires_grad_())


@pytest.mark.not_eager("looks at what is pending")
def test_a_shallow_copy_computes_nothing():
    x = torch.ones(2, device=DEVICE) * 2

    copied = copy.copy(x)

    assert lazyrt.is_pending(copied)
    assert lazyrt.counters()["executions"] == lazyrt.counters()["peek_executions"] == 0


@pytest.mark.parametrize("weights_only", [True, False])
@pytest.mark.parametrize("location", [None, "cpu", DEVICE])
def test_a_checkpoint_loads_anywhere(weights_only, location):
    state = {
        "w": lazy(grid(2, 3)).t(),
        "n": torch.tensor(3, device=DEVICE),
        "v": [1, "a"],
    }
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)

    loaded = torch.load(file, weights_only=weights_only, map_location=location)

    # The value is stored with the device's name; the place is chosen when it is loaded.
    assert loaded["w"].device.type == (location or DEVICE)
    assert torch.equal(loaded["w"].cpu(), grid(2, 3).t())
    assert loaded["n"].item() == 3
    assert loaded["v"] == [1, "a"]


def test_tied_weights_are_saved_once_and_a_change_between_saves_is_saved():
    table = lazy(grid(50, 20))
    one, two = io.BytesIO(), io.BytesIO()
    torch.save({"embed": table}, one)
    held = reads.value_to_save(table)

    table.add_(1)
    torch.save({"embed": table.detach(), "head": table.detach()}, two)

    assert len(two.getvalue()) < 1.5 * len(one.getvalue())
    two.seek(0)
    loaded = torch.load(two, map_location="cpu")
    assert loaded["embed"].data_ptr() == loaded["head"].data_ptr()
    assert torch.equal(loaded["head"], grid(50, 20) + 1)
    assert torch.equal(held, grid(50, 20))
    del loaded
    assert all(storage() is None for _, storage, _ in reads._saved.values())


def test_deep_copies_of_one_memory_are_one_memory():
    def program(device, x):
        state = copy.deepcopy({"embed": x, "head": x.detach(), "other": x.clone()})
        state["head"].add_(1)
        return x, *state.values()

    on_both(program, grid(2, 3))


def test_pickles_of_containers_keep_one_tensor_one():
    x = lazy(grid(3))

    a, b = pickle.loads(pickle.dumps([x, x]))  # noqa: S301

    assert a is b
    assert a.device.type == DEVICE
    assert torch.equal(a.cpu(), grid(3))


# ---------------------------------------------------------------- layouts without arrays

DENSE = torch.eye(3)
REFUSED = {
    "coo-made": lambda x: torch.sparse_coo_tensor(
        torch.tensor([[0], [1]]),
        torch.tensor([1.0]),
        (2, 2),
        device=DEVICE,
        check_invariants=False,
    ),
    "coo-moved": lambda x: DENSE.to_sparse().to(DEVICE),
    "coo-converted": lambda x: x.to_sparse(),
    "csr-converted": lambda x: x.to_sparse_csr(),
    "bsr-converted": lambda x: x.to_sparse_bsr((1, 1)),
    "csr-moved": lambda x: DENSE.to_sparse_csr().to(DEVICE).to_dense(),
    "product": lambda x: DENSE.to_sparse() @ x,
    "torch.sparse.mm": lambda x: torch.sparse.mm(DENSE.to_sparse(), x),
    "sum": lambda x: x + DENSE.to_sparse(),
    "sparse-gradient": lambda x: (
        nn.functional.embedding(
            torch.tensor([0], device=DEVICE), x.requires_grad_(), sparse=True
        )
        .sum()
        .backward()
    ),
    "quantised-moved": lambda x: torch.quantize_per_tensor(
        DENSE, 0.1, 0, torch.qint8
    ).to(DEVICE),
    "quantised": lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8),
    "quantised-channels": lambda x: torch.quantize_per_channel(
        x, torch.ones_like(x[0]), torch.zeros_like(x[0]), 0, torch.qint8
    ),
    "nested": lambda x: torch.nested.nested_tensor([x, x]),
    "mkldnn": lambda x: x.to_mkldnn(),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("call", REFUSED)
def test_a_layout_without_arrays_is_refused_with_advice(call):
    x = lazy(DENSE.clone())

    with pytest.raises(lazyrt.errors.DeviceError) as caught:
        REFUSED[call](x)

    what, meaning, *advice = str(caught.value).split(". ")
    assert "tensor on lazyrt" in what
    assert "dense arrays" in meaning
    assert advice
    assert (x.detach() * 2).sum().item() == 6.0


def test_fake_quantisation_works_on_dense_numbers():
    on_both(
        lambda d, x: torch.fake_quantize_per_tensor_affine(x, 0.1, 0, -128, 127),
        torch.linspace(-20, 20, 9),
    )


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_sparse_tensor_that_came_to_the_device_can_be_printed():
    text = repr(DENSE.to_sparse_csr().to(DEVICE))

    assert "sparse_csr" in text
    assert "dense arrays only" in text


# ---------------------------------------------------------------- torch.accelerator


def test_the_accelerator_waits_for_what_is_pending():
    t = torch.arange(3.0, device=DEVICE) + 1

    torch.accelerator.synchronize()

    assert not lazyrt.is_pending(t)


@pytest.mark.not_eager("looks at what is pending")
def test_the_accelerator_counts_the_bytes_of_live_data():
    gc.collect()  # what earlier tests left behind
    lazyrt.mark_step()
    before = torch.accelerator.memory_allocated()
    t = torch.ones(1000, device=DEVICE)
    pending = torch.accelerator.memory_allocated()
    lazyrt.mark_step()

    assert pending == before
    assert torch.accelerator.memory_allocated() == before + t.nbytes
    assert torch.get_device_module(DEVICE).memory_allocated() == before + t.nbytes
    free, total = torch.accelerator.get_memory_info()
    assert 0 < free < total
    torch.accelerator.empty_cache()
    torch.accelerator.reset_peak_memory_stats()


def test_a_peak_of_memory_that_nobody_records_is_refused():
    with pytest.raises(
        lazyrt.errors.UsageError, match=r"max_memory_allocated.* nobody records"
    ):
        torch.accelerator.max_memory_allocated()


def test_pinning_gives_a_copy_that_keeps_its_gradient():
    t = torch.ones(3, requires_grad=True)

    pinned = t.pin_memory()
    pinned.sum().backward()

    assert pinned.data_ptr() != t.data_ptr()
    assert t.grad is not None
    assert t.grad.tolist() == [1, 1, 1]


@pytest.mark.parametrize("make", [
    lambda: torch.empty(3, pin_memory=True).fill_(2.0),
    lambda: torch.tensor([1.0, 2.0], pin_memory=True),
    lambda: torch.zeros_like(torch.ones(2, 3), pin_memory=True),
    lambda: torch.full((2, 2), 4, pin_memory=True).pin_memory(),
])  # fmt: skip
def test_all_memory_counts_as_pinned(make):
    host = make()

    moved = host.to(DEVICE, non_blocking=True)

    assert host.device.type == "cpu"
    assert host.is_pinned()
    assert torch.ones(1).is_pinned()
    assert torch.equal((moved + 1).cpu(), host + 1)


def test_a_host_tensor_that_was_pinned_may_change_after_its_transfer():
    host = torch.zeros(1000, pin_memory=True)
    moved = host.to(DEVICE, non_blocking=True)
    host.fill_(5)

    assert not moved.cpu().any()


@pytest.mark.not_eager("looks at what is pending")
def test_events_of_the_one_stream_are_no_reason_to_compute():
    module = torch.get_device_module(DEVICE)
    stream = torch.Stream(DEVICE)
    event = stream.record_event()
    x = torch.ones(3, device=DEVICE) + 1
    later = torch.Event(DEVICE)
    later.record(stream)
    stream.wait_event(event)
    stream.wait_event(module.Event())
    later.wait(module.Stream(priority=-1))
    later.synchronize()

    assert event.query()
    assert lazyrt.is_pending(x)
    with torch.Stream(DEVICE):
        assert (x * 2).tolist() == [4.0] * 3


def test_events_do_not_tell_a_time():
    first, second = (torch.Event(DEVICE, enable_timing=True) for _ in range(2))
    first.record()
    second.record()

    with pytest.raises(RuntimeError, match="elapsedTime"):
        first.elapsed_time(second)


@pytest.mark.parametrize("steps", [0, 1, 5])
def test_a_range_between_ends_on_the_device_is_that_of_the_cpu(steps):
    def program(device):
        low = torch.tensor([3.0, 0.5]).to(device).amin()
        high = torch.tensor(8.0, dtype=torch.float64).to(device) * 2
        both = torch.linspace(low, high, steps, device=device)
        one = torch.linspace(1, high, steps, dtype=torch.float64, device=device)
        return both, one, torch.signal.windows.kaiser(steps, beta=5.0, device=device)

    for mine, theirs in zip(program(DEVICE), program("cpu"), strict=True):
        assert_same(mine, theirs, 1e-6)


def test_the_end_of_a_range_is_one_number():
    for device in ("cpu", DEVICE):
        with pytest.raises(RuntimeError, match=r"got end with 1 dimension\(s\)"):
            torch.linspace(0, torch.ones(2, device=device), 3, device=device)


@pytest.mark.parametrize(
    "mixed",
    [
        lambda x, there: x + there,
        lambda x, there: there + x,
        lambda x, there: torch.nn.functional.linear(there, x),
        lambda x, there: torch.cat([x, there]),
        lambda x, there: torch.where(there > 0, x, x),
        lambda x, there: x.add_(there),
    ],
)
def test_a_tensor_left_on_the_cpu_is_told_by_one_error(mixed):
    x = lazy(DENSE.clone())

    with pytest.raises(lazyrt.errors.DeviceError) as caught:
        mixed(x, DENSE.clone())

    assert "found one on cpu with shape" in str(caught.value)
    assert "Move it with `.to('lazyrt')`" in str(caught.value)
    shown = "".join(traceback.format_exception(caught.value))
    assert shown.count("Traceback") == 1


# ---------------------------------------------------------------- DataParallel


@pytest.mark.parametrize("device", ["cpu", DEVICE])
def test_data_parallel_leaves_a_module_where_it_is(device):
    model = nn.DataParallel(nn.Linear(4, 2).to(device))

    y = model(torch.ones(2, 4, device=device))

    assert y.device.type == model.module.weight.device.type == device


@pytest.mark.filterwarnings("ignore:ComplexHalf support")
def test_an_operator_names_the_dtype_that_the_device_lacks():
    x = torch.tensor(1j, dtype=torch.complex128, device=DEVICE)

    with pytest.raises(DeviceError, match=r"torch\.complex32 cannot go to the device"):
        x + torch.ones(2, dtype=torch.float16, device=DEVICE)
