"""Modes that run ops one by one refuse what the CPU refuses for what operands hold."""

import pytest
import torch
from torch.nn import functional as F  # noqa: N812 - torch's own name for it

import lazyrt
from lazyrt.errors import LostValueError
from lazyrt.observe import events
from tests.harness import DEVICE, recorded


def far(x):
    return x.new_tensor([1, 5], dtype=torch.int64)


BAD = {
    "floor division": lambda x: x.int() // (x * 0).int(),
    "floor division by a number": lambda x: x.int() // 0,
    "division that rounds": lambda x: torch.div(
        x.int(), x.int() - 1, rounding_mode="trunc"
    ),
    "remainder": lambda x: x.long() % (x * 0).long(),
    "fmod": lambda x: x.long().fmod(x.long() - 1),
    "power": lambda x: x.int() ** -1,
    "powers of a list": lambda x: torch._foreach_pow([x.int()], -2)[0],
    "index": lambda x: x[far(x)],
    "index below zero": lambda x: x[-far(x)],
    "index of two": lambda x: x.view(3, 1)[far(x), x.new_zeros(2).long()],
    "index that is written": lambda x: x.index_put((far(x),), x[0]),
    "index select": lambda x: x.index_select(0, far(x)),
    "index add": lambda x: x.index_add(0, far(x), x[:2]),
    "index copy": lambda x: x.index_copy(0, far(x), x[:2]),
    "index fill": lambda x: x.index_fill(0, far(x), 1.0),
    "gather": lambda x: x.gather(0, far(x)),
    "scatter": lambda x: x.scatter(0, far(x), 1.0),
    "scatter add": lambda x: x.scatter_add(0, far(x), x),
    "scatter reduce": lambda x: x.scatter_reduce(0, far(x), x, "amax"),
    "take": lambda x: x.take(far(x)),
    "put": lambda x: x.put(far(x), x[:2]),
    "embedding": lambda x: F.embedding(far(x), x.view(3, 1)),
    "cross entropy": lambda x: F.cross_entropy(x.expand(2, 3), far(x)),
    "nll loss": lambda x: F.nll_loss(x.expand(2, 3), -far(x)),
    "nll loss of pictures": lambda x: F.nll_loss(
        x.view(1, 3, 1, 1).expand(1, 3, 1, 2), far(x).view(1, 1, 2)
    ),
    "multi margin loss": lambda x: F.multi_margin_loss(x.expand(2, 3), far(x)),
}


def error_of(call):
    with pytest.raises((RuntimeError, IndexError)) as found:
        call()
    return type(found.value), str(found.value).rstrip(".")


@pytest.mark.parametrize("name", BAD)
def test_eager_debug_mode_refuses_what_the_cpu_refuses(name):
    kind, words = error_of(lambda: BAD[name](torch.ones(3)))
    x = torch.ones(3, device=DEVICE)

    with lazyrt.eager_mode():
        found, said = error_of(lambda: BAD[name](x))

        assert found is kind
        assert said.startswith(words)
        assert (x + 1).tolist() == [2, 2, 2]


def test_eager_debug_mode_refuses_a_bag_with_a_row_that_is_not_there():
    x = torch.ones(3, device=DEVICE)

    with (
        lazyrt.eager_mode(),
        pytest.raises(RuntimeError, match="but found idx to be 5"),
    ):
        F.embedding_bag(far(x)[None], x.view(3, 1))


@pytest.mark.parametrize("name", ["remainder", "index", "cross entropy"])
def test_op_by_op_a_read_refuses_what_the_cpu_refuses_and_tells_the_line(name):
    expected = error_of(lambda: BAD[name](torch.ones(3)))

    with (
        lazyrt.eager_mode(on=False),
        lazyrt.config.scoped(op_by_op_reads=True, op_by_op_barriers=True),
    ):
        y = BAD[name](torch.ones(3, device=DEVICE))
        with pytest.raises((RuntimeError, IndexError)) as caught:
            y.tolist()
        del y

    assert (type(caught.value), str(caught.value).rstrip(".")) == expected
    assert caught.value.__notes__[0].startswith("recorded at test_value_checks.py:")


def test_op_by_op_a_barrier_drops_what_it_refuses_and_goes_on():
    x = torch.tensor([4, 5]).to(DEVICE)
    other = torch.ones(2).to(DEVICE)
    with (
        lazyrt.eager_mode(on=False),
        lazyrt.config.scoped(op_by_op_reads=True, op_by_op_barriers=True),
    ):
        later = other + 1
        lost = x % (x - 4)
        x.floor_divide_(x - 5)
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            lazyrt.mark_step()
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            lazyrt.mark_step()
        lazyrt.mark_step()

    assert x.tolist() == [4, 5]
    assert later.tolist() == [2, 2]
    with pytest.raises(LostValueError, match=r"aten.remainder.Tensor was refused"):
        lost.tolist()


GOOD = {
    "index from the end": lambda x: x[-far(x).clamp(max=3)],
    "ignored target": lambda x: F.cross_entropy(
        x.expand(2, 3), far(x).clamp(max=2), ignore_index=2
    ),
    "division of floats": lambda x: (x // 0, x % 0, x.fmod(0), (x * 2) ** -1),
    "true division": lambda x: x.int() / (x * 0).int(),
    "power of tensors": lambda x: (x.int() * 2) ** (-x).int(),
    "mask": lambda x: x[x.bool()],
    "half": lambda x: x.half()[far(x).clamp(max=2)].float(),
    "eight bits": lambda x: x.to(torch.float8_e5m2)[far(x).clamp(max=2)].float(),
    "nothing": lambda x: x[far(x)[:0]],
}


@pytest.mark.parametrize("name", GOOD)
def test_eager_debug_mode_refuses_nothing_else(name):
    x = torch.tensor([1.0, 2.0, -3.0])

    with lazyrt.eager_mode():
        found = GOOD[name](x.to(DEVICE))
        torch.testing.assert_close(
            torch.utils._pytree.tree_map(torch.Tensor.cpu, found),
            GOOD[name](x),
            equal_nan=True,
        )


IN_PLACE = {
    "a tensor": lambda x: x.floor_divide_(0),
    "a view": lambda x: x[1:].remainder_(0),
    "an element": lambda x: x.index_fill_(0, far(x), 7),
}


@pytest.mark.parametrize("pending", [False, True])
@pytest.mark.parametrize("name", IN_PLACE)
def test_a_refused_op_in_place_leaves_what_it_writes_as_it_was(name, pending):
    x = torch.tensor([4, 5, 6]).to(DEVICE)
    with lazyrt.eager_mode(on=False):
        if pending:
            x.mul_(2)

    with lazyrt.eager_mode():
        error_of(lambda: IN_PLACE[name](x))
        assert x.tolist() == [4 * (1 + pending), 5 * (1 + pending), 6 * (1 + pending)]
        x.add_(1)

    lazyrt.mark_step()
    assert x[0].item() == 5 + 4 * pending


def test_looking_at_operands_moves_nothing_and_keeps_nothing():
    x, index = torch.ones(3, device=DEVICE), torch.tensor([1, 5]).to(DEVICE)
    lazyrt.mark_step()
    live = len(lazyrt.live_tensors())
    state = torch.get_rng_state()

    with lazyrt.eager_mode(), recorded(events.TransferFinished) as moved:
        y = x[index.clamp(max=2)]
        with pytest.raises(IndexError) as caught:
            x[index]

    assert moved == []
    assert len(lazyrt.live_tensors()) == live + 1
    assert caught.value.__traceback__ is not None
    assert torch.equal(torch.get_rng_state(), state)
    del y
