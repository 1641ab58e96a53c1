"""Storages: sizes, addresses and bytes, next to the CPU."""

import copy
import io
import itertools

import pytest
import torch
from torch import nn

import lazyrt
from lazyrt.errors import LostValueError, NoLoweringError, UsageError
from lazyrt.observe import events
from tests.harness import DEVICE, lazy, recorded
from tests.runtime.semantics import grid, on_both

# torch warns of typed storages once in a process.
pytestmark = [
    pytest.mark.filterwarnings("ignore:TypedStorage is deprecated"),
]


def test_storages_have_the_sizes_of_the_cpu():
    def program(device, x):
        tensors = [
            x,
            x[1],
            x.half(),
            x[1].clone(),
            x.t(),
            x.t() + 1,
            x.view(torch.uint8),
        ]
        tensors += [torch.empty(0, device=device), torch.tensor(1, device=device)]
        sizes = [tensor.untyped_storage().nbytes() for tensor in tensors]
        whole = x.untyped_storage()
        return sizes, len(whole), whole.size(), x.nbytes, x.element_size()

    on_both(program, grid(4, 6))


def test_addresses_tell_which_tensors_share_memory_and_where():
    def program(device, x):
        def first(t):
            return t.data_ptr()

        def storage(t):
            return t.untyped_storage().data_ptr()

        distances = [
            first(part) - first(x) for part in (x[1], x[:, 2], x[1:, 2:], x[2][3:])
        ]
        same = [x.view(-1), x.detach(), x.data, nn.Parameter(x), x.t(), x.unsqueeze(0)]
        other = [x.clone(), x + 0, x.contiguous().clone()]
        return (
            distances,
            [first(t) == first(x) and storage(t) == storage(x) for t in same],
            [first(t) != first(x) and storage(t) != storage(x) for t in other],
            [storage(part) == storage(x) for part in (x[1], x[:, 2])],
            [first(x) != 0, first(x[3:3]), first(torch.empty(0, device=device))],
        )

    on_both(program, grid(4, 6))


def test_an_address_lasts_over_writes_and_barriers_and_is_nobody_elses():
    x = torch.ones(4, device=DEVICE)
    address = x.data_ptr()
    x.add_(1)
    lazyrt.mark_step()
    others = [torch.ones(n, device=DEVICE) for n in (1, 100, 4)]

    assert x.data_ptr() == address
    spans = sorted((t.data_ptr(), t.data_ptr() + t.nbytes) for t in (x, *others))
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))


@pytest.mark.not_eager("looks at what is pending")
def test_asking_a_storage_computes_nothing():
    with recorded(events.BarrierFinished, events.TensorMaterialised) as found:
        x = torch.ones(4, device=DEVICE) * 2
        x[1:].data_ptr()
        x.untyped_storage().nbytes()

    assert not found
    assert lazyrt.is_pending(x)


def test_tied_weights_are_found_as_checkpoint_libraries_find_them():
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    model.to(DEVICE)

    groups: dict[tuple[int, int], list[str]] = {}
    for name, tensor in model.state_dict().items():
        storage = tensor.untyped_storage()
        groups.setdefault((storage.data_ptr(), storage.nbytes()), []).append(name)

    assert [names for names in groups.values() if len(names) > 1] == [
        ["0.weight", "1.weight"]
    ]


def test_a_storages_bytes_can_be_read():
    on_both(
        lambda d, x: (
            x[1].untyped_storage().tolist(),
            list(x.untyped_storage().cpu()),
        ),
        grid(2, 2, dtype=torch.int16),
    )


REFUSED = {
    "a new one": lambda s: torch.UntypedStorage(8, device=DEVICE),
    "a copy": lambda s: s.clone(),
    "a move": lambda s: s.cpu().to(device=DEVICE),
    "a byte": lambda s: s.__setitem__(0, 1),
    "all bytes": lambda s: s.fill_(1),
    "other bytes": lambda s: s.copy_(torch.UntypedStorage(8)),
    "another order": lambda s: s.byteswap(torch.int16),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bytes_are_written_by_tensors_alone(name):
    x = lazy(grid(2))

    with pytest.raises(NoLoweringError, match="Write to a tensor"):
        REFUSED[name](x.untyped_storage())

    assert x.tolist() == grid(2).tolist()


def test_deep_copies_of_storages_and_tensors_on_them_stay_together():
    def program(device, x):
        storage, typed, part, turned, same = copy.deepcopy(
            [x.untyped_storage(), x.storage(), x[1:], x.t(), x]
        )
        part.add_(1)
        return x, part, turned, same, storage.tolist(), typed.tolist()

    on_both(program, grid(3, 3, dtype=torch.int16))


def test_deep_copies_of_views_show_a_copy_of_the_same_memory():
    def program(device, x):
        views = [x.view(torch.int32), x.as_strided((2, 2), (1, 2)), x[:1].expand(2, 4)]
        copies = copy.deepcopy(views)
        copies[0].add_(1)
        layouts = [(c.shape, c.stride(), c.storage_offset()) for c in copies]
        return x, *copies, layouts

    on_both(program, grid(2, 4))


def test_deep_copies_of_conjugate_views_hold_the_numbers_of_the_cpu():
    def program(device, x):
        copies = copy.deepcopy([x.conj(), x.imag, x])
        return [c.resolve_conj() for c in copies]

    on_both(program, torch.complex(grid(2, 2), grid(2, 2)))


def test_bytes_are_read_one_by_one_and_as_a_part():
    def program(device, x):
        storage = x.untyped_storage()
        host = torch.UntypedStorage(8).copy_(storage)
        return storage[2], storage[:4].tolist(), host.tolist()

    on_both(program, grid(4, dtype=torch.int16))


@pytest.mark.parametrize("location", [None, "cpu", DEVICE])
def test_a_saved_storage_keeps_its_bytes(location):
    file = io.BytesIO()
    torch.save(lazy(grid(4)).untyped_storage(), file)
    file.seek(0)

    loaded = torch.load(file, weights_only=False, map_location=location).untyped()

    assert loaded.device.type == (location or DEVICE)
    assert loaded.nbytes() == 16
    assert loaded.tolist() == grid(4).untyped_storage().tolist()
    assert loaded.data_ptr() == loaded.data_ptr() != 0
    shown = torch.empty(0, device=loaded.device).set_(loaded)
    assert shown.tolist() == grid(4).tolist()


@pytest.mark.not_eager("looks at what is pending")
def test_printing_a_storage_is_a_peek():
    x = torch.ones(2, device=DEVICE) * 2

    text = repr(x.untyped_storage())

    assert text.splitlines()[3] == " 64"
    assert text.endswith("(device=lazyrt:0) of size 8]")
    assert lazyrt.is_pending(x)


def test_a_storage_of_another_size_or_device_is_refused_by_name():
    storage = lazy(grid(4)).untyped_storage()

    assert storage.resize_(16) is storage
    with pytest.raises(UsageError, match=r"resize_\(20\) of a storage of 16 bytes"):
        storage.resize_(20)


def test_a_storage_is_freed_and_given_back():
    tensor = lazy(grid(4))
    part = tensor[1:3]
    storage = tensor.untyped_storage()
    storage.resize_(0)

    assert storage.size() == 0
    with pytest.raises(LostValueError, match="resized to 0 bytes"):
        tensor + 1
    storage.resize_(16)
    tensor.copy_(lazy(grid(4)))
    assert storage.size() == 16
    assert part.tolist() == grid(4)[1:3].tolist()


def test_what_was_pending_for_a_freed_storage_is_not_computed():
    tensor = lazy(grid(4)) * 2
    tensor.untyped_storage().resize_(0)
    before = lazyrt.counters()
    lazyrt.mark_step()

    assert (lazyrt.counters() - before)["executions"] == 0
