from types import ModuleType

from lazyviz.shell import displayed
from tests.lazyviz.fakes import fake_tensor


class Runtime(ModuleType):
    def __init__(self):
        super().__init__("fakert")

    def snapshot(self, tensor):
        return ("snapshot", tensor.item())

    def stand_in(self, tensor):
        return ("stand-in", tensor.item())

    def is_pending(self, tensor):
        return tensor.item() > 0


class Broken(Runtime):
    def snapshot(self, tensor):
        raise RuntimeError


def test_a_tensor_becomes_its_snapshot_even_when_ready():
    assert displayed.kept_value(fake_tensor(1.0), Runtime()) == ("snapshot", 1.0)
    assert displayed.kept_value(fake_tensor(-1.0), Runtime()) == ("snapshot", -1.0)


def test_a_container_is_rebuilt_only_when_something_is_pending():
    ready = [fake_tensor(-1.0)]
    mixed = [fake_tensor(-1.0), fake_tensor(1.0)]

    assert displayed.kept_value(ready, Runtime()) is ready
    assert displayed.kept_value(mixed, Runtime()) == [
        ("snapshot", -1.0),
        ("snapshot", 1.0),
    ]


def test_one_tensor_in_two_places_has_one_snapshot():
    tensor = fake_tensor(1.0)

    kept = displayed.kept_value([tensor, tensor], Runtime())

    assert kept[0] is kept[1]


def test_without_a_snapshot_a_stand_in_is_kept():
    assert displayed.kept_value(fake_tensor(1.0), Broken()) == ("stand-in", 1.0)


def test_undo_leaves_a_later_wrapper_in_place(shell):
    hook = shell.displayhook
    before = dict(vars(hook))
    undo = displayed.keep_snapshots(hook)

    def later(result):
        """Somebody else's wrapper."""

    vars(hook)["update_user_ns"] = later
    undo()

    assert vars(hook)["update_user_ns"] is later
    assert "fill_exec_result" not in vars(hook)
    del vars(hook)["update_user_ns"]
    assert vars(hook) == before
