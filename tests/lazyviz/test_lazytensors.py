import torch

from lazyviz.shell.lazytensors import is_lazy, lazy_tensors, named_tensors, replaced
from tests.lazyviz.fakes import fake_tensor


def test_only_tensors_of_the_lazy_device_are_lazy():
    assert is_lazy(fake_tensor(1.0))
    assert not is_lazy(torch.ones(2))
    assert not is_lazy("lazyrt")
    assert not is_lazy(None)


def test_lazy_tensors_are_found_in_nested_containers_in_order():
    a, b, c = fake_tensor(1.0), fake_tensor(2.0), fake_tensor(3.0)

    found = list(lazy_tensors([a, {"x": (b, 5)}, torch.ones(1), c]))

    assert [id(t) for t in found] == [id(a), id(b), id(c)]


def test_a_container_that_contains_itself_ends():
    loop: list[object] = []
    loop.append(loop)

    assert list(lazy_tensors(loop)) == []
    assert replaced(loop, str) is loop


def test_a_list_of_millions_costs_bounded_work(monkeypatch):
    tensor, row = fake_tensor(1.0), [0] * 10_000
    millions = [tensor, *[row] * 9_000]

    assert list(lazy_tensors(millions)) == [tensor]
    assert replaced(millions, lambda _: "value")[:2] == ["value", row]


def test_replacing_rebuilds_only_containers_that_hold_a_lazy_tensor():
    tensor = fake_tensor(1.0)
    plain = [1, 2]
    given = {"t": (tensor, 1), "plain": plain}

    result = replaced(given, lambda _: "value")

    assert result == {"t": ("value", 1), "plain": [1, 2]}
    assert result["plain"] is plain
    assert given["t"][0] is tensor


def test_a_container_without_lazy_tensors_is_returned_itself():
    given = [torch.ones(1), (1, {"a": "b"})]

    assert replaced(given, str) is given


def test_subclasses_of_containers_are_left_alone():
    class Mine(list[object]):
        pass

    given = Mine([fake_tensor(1.0)])

    assert replaced(given, str) is given


def test_named_tensors_leave_out_private_names_and_sort():
    namespace = {"z": fake_tensor(1.0), "_": fake_tensor(2.0), "a": fake_tensor(3.0)}

    names = [name for name, _ in named_tensors({**namespace, "k": 5})]

    assert names == ["a", "z"]
