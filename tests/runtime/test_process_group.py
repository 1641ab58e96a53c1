"""Collectives of several processes, and the guard that compares ranks before each launch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist

import lazyrt
from lazyrt.errors import NoEquivalentError, ReplicaError
from lazyrt.execution import replicas
from lazyrt.frontend.buffers import state_of
from lazyrt.frontend.kernels import functional_kernel
from lazyrt.ir.fingerprint import canonicalise
from lazyrt.lowering import collectives
from lazyrt.lowering.emit import emit_text
from tests.replicas import run

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.lazy_only("other modes run a collective where it is called")

_WORLD = (0, 1)


_Store: Any = getattr(dist, "HashStore")  # noqa: B009 - untyped


def _value(tensor: torch.Tensor) -> Any:
    return state_of(tensor).value


def _text(*tensors: torch.Tensor) -> str:
    return emit_text(canonicalise([_value(each) for each in tensors]))


def _all_reduce(x: torch.Tensor, ranks: tuple[int, ...] = _WORLD) -> torch.Tensor:
    result: torch.Tensor = functional_kernel(collectives.all_reduce)(
        x, "sum", 0, [*ranks], 2
    )
    return result


# -------------------------------------------------------------------------- one process


@pytest.fixture
def group() -> Iterator[None]:
    """A process group of this process alone."""
    dist.init_process_group("lazyrt", store=_Store(), rank=0, world_size=1)
    yield
    lazyrt.discard_pending()
    dist.destroy_process_group()


@pytest.mark.usefixtures("group")
def test_collectives_of_one_process_return_what_they_get() -> None:
    x = torch.arange(4.0).to("lazyrt")
    y, z = torch.empty(4, device="lazyrt"), torch.empty(4, device="lazyrt")
    before = lazyrt.counters()
    dist.all_reduce(x)
    dist.all_gather([y], x)
    dist.all_to_all_single(z, x)
    dist.broadcast(z, 0)
    lazyrt.mark_step()
    assert (lazyrt.counters() - before)["executions"] == 1
    assert x.tolist() == y.tolist() == z.tolist() == [0, 1, 2, 3]


@pytest.mark.usefixtures("group")
def test_a_tensor_of_the_cpu_has_its_result_after_the_call() -> None:
    x = torch.arange(3.0)
    dist.all_reduce(x, dist.ReduceOp.AVG)
    assert x.tolist() == [0, 1, 2]


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize(
    ("call", "names"),
    [
        (dist.recv, "Name the rank"),
        (lambda x: dist.all_to_all_single(x, x, [1, 3], [1, 3]), r"\[1, 3\]"),
    ],
)
def test_what_one_program_cannot_do_is_refused_by_name(call: Any, names: str) -> None:
    with pytest.raises(NoEquivalentError, match=names):
        call(torch.ones(4, device="lazyrt"))


# ------------------------------------------------------------------------------ programs


def test_a_collective_is_lowered_with_its_group() -> None:
    text = _text(_all_reduce(torch.ones(4).to("lazyrt")))
    assert "stablehlo.all_reduce" in text
    assert "dense<[[0, 1]]>" in text


def test_each_collective_waits_for_the_one_recorded_before() -> None:
    x, y = torch.ones(4).to("lazyrt"), torch.ones(3, dtype=torch.complex64).to("lazyrt")
    first, second = _all_reduce(x), _all_reduce(y)
    text = _text(second, first)
    main = text.partition("func.func private")[0]
    assert main.count("stablehlo.select") == 1
    assert main.index("all_reduce") < main.index("stablehlo.select")
    alone = _text(_all_reduce(x)).partition("func.func private")[0]
    assert "stablehlo.select" not in alone


def test_ranks_of_two_groups_come_to_them_in_one_order() -> None:
    x = torch.ones(4).to("lazyrt")
    both, more = _all_reduce(x), _all_reduce(x * 2, (0, 1, 2))
    more_first = _all_reduce(x * 3, (0, 1, 2)), _all_reduce(x * 4)
    one, other = (
        replicas._Guard(canonicalise([*map(_value, each)]), "")._digests
        for each in ((both, more), more_first)
    )
    assert one[0, 1, 2] == other[0, 1, 2]
    assert one[_WORLD] != other[_WORLD]


def test_each_process_is_in_a_group_of_a_collectives_size() -> None:
    assert collectives.groups_with((0, 2), 4) == ((0, 2), (1, 3))
    assert collectives.groups_with((1, 3), 4) == ((0, 2), (1, 3))
    assert collectives.groups_with((0, 1, 2), 4) == ((0, 1, 2), (3, -1, -1))


# --------------------------------------------------------------------------------- guard


class _Launch:
    """An executable that counts its launches."""

    def __init__(self, hlo: str = "") -> None:
        self.hlo = hlo
        self.launches = 0

    def as_text(self) -> str:
        return self.hlo

    def launch(self, args: Any) -> list[Any]:
        self.launches += 1
        return []


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> replicas.World:
    """Rank 0 of two, whose other rank the test plays."""
    found = replicas.World(0, 2, _Store(), lambda _: "", lambda: "")
    monkeypatch.setattr(replicas, "_world", found)
    monkeypatch.setattr(replicas, "_boundary", ("mark_step()", None))
    return found


def _other_says(
    world: replicas.World, number: int, digest: str = "?", what: str = "2 ops"
) -> None:
    said = replicas._Launch(
        1, {_WORLD: (number, digest)}, what, "read by .item()", "b.py:7"
    )
    (key,) = said.keys
    world.store.set(key, str(said))


def _program() -> Any:
    graph = canonicalise([_value(_all_reduce(torch.ones(4).to("lazyrt")))])
    return replicas.guarded(_Launch(), graph)


def test_a_rank_with_other_collectives_is_named_and_nothing_is_launched(
    world: replicas.World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replicas, "_DEAD_S", 0.01)  # the other one publishes no program
    executable = _program()
    _other_says(world, 1)
    with pytest.raises(
        ReplicaError, match=r"rank 1: 2 ops, read by .item\(\) at b.py:7"
    ):
        executable.launch([])
    assert executable.launches == 0


def test_a_rank_that_does_not_come_is_named_with_its_line(
    world: replicas.World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lazyrt.config, "replica_timeout_s", 0.1)
    world.store.set("lazyrt/beat/1", "0 b.py:9")
    with pytest.raises(
        ReplicaError, match=r"rank 1 is alive; its main thread is at b.py:9"
    ):
        _program().launch([])


def test_a_rank_that_has_ended_is_named_at_once(world: replicas.World) -> None:
    world.store.set("lazyrt/end/1", "failed")
    with pytest.raises(ReplicaError, match=r"rank 1 has ended \(failed\)"):
        _program().launch([])


def test_equal_collectives_are_launched_whatever_else_the_ranks_compute(
    world: replicas.World,
) -> None:
    executable = _program()
    monkey = executable.launch.__closure__
    guard = next(
        c.cell_contents for c in monkey if isinstance(c.cell_contents, replicas._Guard)
    )
    _other_says(world, 1, digest=guard._digests[_WORLD], what="40 ops")
    executable.launch([])
    assert executable.launches == 1


def _other_comes(world: replicas.World, executable: Any, what: str) -> replicas._Sum:
    """Let the other rank come to the first launch, to run the same or something else."""
    found = executable.launch.__closure__
    guards = (c.cell_contents for c in found)
    guard = next(each for each in guards if isinstance(each, replicas._Guard))
    digest = guard._digests[_WORLD] if what == "the same" else what
    said = replicas._Launch(1, {_WORLD: (1, digest)}, "2 ops", "mark_step()", "b.py:7")
    return replicas._Sum(world, said)


class _Asked:
    """A store that notes what it is asked."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        self.calls.append(name)
        return getattr(self._store, name)


def test_the_rank_that_comes_last_asks_the_store_once(world: replicas.World) -> None:
    executable = _program()
    _other_comes(world, executable, "the same")
    world.store = asked = _Asked(world.store)

    executable.launch([])

    assert executable.launches == 1
    assert asked.calls == ["add"]


def test_a_rank_that_comes_after_another_gave_up_does_not_launch(
    world: replicas.World,
) -> None:
    executable = _program()
    _other_comes(world, executable, "the same").spoil()
    _other_says(world, 1, what=replicas._GAVE_UP)

    with pytest.raises(ReplicaError, match="rank 1 gave up waiting for this launch"):
        executable.launch([])
    assert executable.launches == 0


def test_ranks_whose_sum_differs_compare_what_they_say(
    world: replicas.World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replicas, "_DEAD_S", 0.01)  # the other one publishes no program
    executable = _program()
    _other_comes(world, executable, "something else")
    _other_says(world, 1)

    with pytest.raises(ReplicaError, match=r"rank 1: 2 ops, read by .item\(\)"):
        executable.launch([])
    assert executable.launches == 0


def test_the_guard_can_be_switched_off(world: replicas.World) -> None:
    executable = _program()
    with lazyrt.config.scoped(replica_guard=False):
        executable.launch([])  # no other rank has come
    assert executable.launches == 1


def test_a_rank_reads_what_depends_on_groups_that_are_not_its_own(
    world: replicas.World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replicas, "_DEAD_S", 0.01)  # the others publish no program
    executable = _program()
    guard = replicas._Guard(
        canonicalise([_value(_all_reduce(torch.ones(4).to("lazyrt")))]), ""
    )
    own = guard._digests[_WORLD]
    others: dict[int, dict[tuple[int, ...], tuple[int, str]]] = {
        1: {_WORLD: (1, own), (1, 3): (1, "one")},
        3: {(1, 3): (1, "other")},
    }
    for rank, digests in others.items():
        said = replicas._Launch(rank, digests, "2 ops", "mark_step()", "b.py:7")
        world.store.multi_set(said.keys, [str(said)] * len(said.keys))

    with pytest.raises(ReplicaError, match=r"rank 3: 2 ops, mark_step\(\) at b.py:7"):
        executable.launch([])
    assert executable.launches == 0


def test_a_look_that_needs_other_ranks_is_refused_with_the_line(
    world: replicas.World,
) -> None:
    x = _all_reduce(torch.ones(4).to("lazyrt"))
    with pytest.raises(
        ReplicaError, match=r"all_reduce.*of ranks 0, 1, recorded at .*py:\d+"
    ):
        lazyrt.materialise(x)


# ----------------------------------------------------------------------------- processes


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Return what two processes told, and where they saved."""
    folder = str(tmp_path_factory.mktemp("replicas") / "checkpoint")
    names = (
        "collectives",
        "messages",
        "training",
        "saving",
        "torch_xla_names",
        "divergence",
    )
    told = run(*names, CHECKPOINT=folder)
    for rank in told:
        assert rank["exit"] == 0, rank["errors"]
    return [{**rank, "folder": folder} for rank in told]


@pytest.mark.slow
def test_collectives_of_two_processes_give_what_torch_documents(
    pair: list[dict[str, Any]],
) -> None:
    for rank, told in enumerate(pair):
        assert told["executions"] == 1
        assert told["reduced"] == {
            "SUM": 3,
            "PRODUCT": 2,
            "MIN": 1,
            "MAX": 2,
            "AVG": 1.5,
        }
        assert told["sent"] == [1.0] * 4
        assert told["rows"] == [[0.0] * 4, [1.0] * 4]
        assert told["part"] == [[1.0, 3.0], [5.0, 7.0]][rank]
        assert told["swapped"] == [[0.0, 1.0, 10.0, 11.0], [2.0, 3.0, 12.0, 13.0]][rank]
        assert told["scattered"] == [5.0 + rank] * 2
        assert told["integers are there at once"] == [False, [3, 6]]
        assert told["objects"] == [{"rank": 0}, {"rank": 1}]
        assert told["group"] == [1.0] * 4
        assert told["filled"] == [1.0, 2.0]
    assert pair[0]["of one rank"] == [[3.0] * 4, [[0.0] * 4, [1.0] * 4]]


@pytest.mark.slow
def test_messages_and_what_ranks_read_cut_no_step(pair: list[dict[str, Any]]) -> None:
    for rank, told in enumerate(pair):
        assert told["counts"] == [True, [0, 1]]
        assert told["object"] == [True, [{"from": 0}]]
        assert told["messages"] == [[2.0, 3.0], [1.0, 2.0]][rank]


@pytest.mark.slow
def test_one_rank_reads_the_whole_of_a_sharded_model(
    pair: list[dict[str, Any]],
) -> None:
    assert pair[0]["whole"] == [[16, 8], [16], [4, 16], [4]]
    assert pair[1]["whole"] == []


@pytest.mark.slow
def test_torchs_own_wrappers_train_as_one_process_on_the_whole_batch(
    pair: list[dict[str, Any]],
) -> None:
    for told in pair:
        for name, compiles in (
            ("data parallel", 2),  # torch rebuilds its buckets after the first step
            ("unused", 2),
            ("fully sharded", 1),
            ("tensor parallel", 1),
        ):
            assert told[name][0] < 1e-5, name
            assert told[name][1] <= compiles, name


@pytest.mark.slow
def test_the_second_program_of_data_parallel_training_names_its_buckets(
    pair: list[dict[str, Any]],
) -> None:
    for told in pair:
        (cause,) = told["buckets"]
        assert "reduces gradients in 1 bucket of 848 bytes, in the order of" in cause


@pytest.mark.slow
def test_a_checkpoint_of_two_processes_is_read_by_one(
    pair: list[dict[str, Any]],
) -> None:
    from torch.distributed.checkpoint.state_dict_loader import load

    state = {"rows": torch.zeros(8).to("lazyrt"), "whole": torch.zeros(3).to("lazyrt")}
    with pytest.warns(UserWarning, match="single process"):
        load(state, checkpoint_id=pair[0]["folder"], no_dist=True)
    assert state["rows"].tolist() == [0, 1, 2, 3, 4, 5, 6, 7]
    assert state["whole"].tolist() == [1, 1, 1]


@pytest.mark.slow
def test_torch_xlas_names_act_through_the_process_group(
    pair: list[dict[str, Any]],
) -> None:
    for rank, told in enumerate(pair):
        assert told["ordinals"] == [rank, 2, 2]
        assert told["averaged"] == [-0.5, -0.5]
        assert told["names"] == [
            [0.5] * 4,
            [[0.0, 0.0, 1.0, 1.0]],
            [1.0, 1.0],
            [[0.0, 0.0], [1.0, 1.0]],
            [float(rank)] * 4,
            [1.0] * 4,
        ]
        assert told["met"]
        assert told["largest"] == 1
        assert told["saved"] == [1.0] * 4


@pytest.mark.slow
def test_ranks_that_differ_are_told_and_go_on(pair: list[dict[str, Any]]) -> None:
    for rank, told in enumerate(pair):
        assert "only rank 0: all_reduce" in told["one_more"]
        assert "only rank 1: all_reduce(f32[5]" in told["another_shape"]
        assert "the other ranks do not look" in told["alone"]
        assert told["harmless"] == ""
        assert told["harmless result"] == [[1.0] * 4, int(rank == 0)]


@pytest.fixture(scope="module")
def four() -> list[dict[str, Any]]:
    """Return what four processes told, the second of which was killed at the end."""
    return run("pipeline", "meshes", "three_of_four", "killed", count=4)


@pytest.fixture(scope="module")
def faults() -> list[dict[str, Any]]:
    """Return what two processes told of planted faults."""
    told = run("planted_faults")
    for rank in told:
        assert rank["exit"] == 0, rank["errors"]
    return told


_MEND = "mark_step() on all ranks in front of `if rank == 0:` at replica_programs.py:"


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["checkpoint_of_one_rank", "missing_barrier"])
def test_a_step_that_only_one_rank_ends_names_the_condition_and_the_line_before_it(
    fault: str, faults: list[dict[str, Any]]
) -> None:
    for told in faults:
        assert "rank 0: 2 ops, 1 collective" in told[fault]
        assert _MEND in told[fault]


@pytest.mark.slow
def test_a_read_under_a_condition_on_the_rank_warns_at_its_line(
    faults: list[dict[str, Any]],
) -> None:
    assert faults[1]["warnings"] == []
    (said,) = faults[0]["warnings"]
    assert "read by .tolist() at replica_programs.py:" in said
    assert "under `if is_first:` at replica_programs.py:" in said
    assert [told["read by one"] for told in faults] == ["", ""]


@pytest.mark.slow
def test_other_sizes_and_orders_are_named_before_anything_runs(
    faults: list[dict[str, Any]],
) -> None:
    for told in faults:
        assert "only rank 1: all_gather(f32[1,3]" in told["another_batch_size"]
        assert "only rank 0: all_reduce(f32[3]" in told["another_order"]


@pytest.mark.slow
def test_ranks_may_compile_what_others_have(faults: list[dict[str, Any]]) -> None:
    assert [told["compiled by one"] for told in faults] == [[3.0, 0], [3.0, 1]]


@pytest.mark.slow
def test_a_rank_that_is_stuck_is_named_with_its_line_and_finds_nobody_waiting(
    faults: list[dict[str, Any]],
) -> None:
    waited, stuck = (told["stuck"] for told in faults)
    assert "rank 1 is alive; its main thread is at replica_programs.py:" in waited
    assert "rank 0 gave up waiting for this launch" in stuck


@pytest.mark.slow
def test_uneven_inputs_and_a_mesh_are_refused_in_processes(
    faults: list[dict[str, Any]],
) -> None:
    for told in faults:
        assert "whose collectives differ" in told["uneven"]
        assert "a mesh has the devices of one process" in told["mesh"]
    assert [told["after all that"] for told in faults] == [3.0, 3.0]


# The first step asks its neighbours for shapes and makes buffers.
_COMPILES_OF_A_PIPELINE = 5


@pytest.mark.slow
def test_four_ranks_hand_on_a_batch_and_name_the_one_that_is_killed(
    four: list[dict[str, Any]],
) -> None:
    assert [told["exit"] for told in four].index(-9) == 1
    for told in (four[0], *four[2:]):
        error, compiles = told["pipeline"]
        assert error < 1e-5
        assert compiles <= _COMPILES_OF_A_PIPELINE
        assert "rank 1 was killed" in told["killed"]


@pytest.mark.slow
def test_a_mesh_of_two_dimensions_trains_in_one_program_a_step(
    four: list[dict[str, Any]],
) -> None:
    for told in four:
        for name in ("hybrid sharded", "sharded and tensor parallel"):
            error, compiles = told[name]
            assert error < 1e-5, name
            assert compiles == 1, name


@pytest.mark.slow
def test_ranks_without_a_common_group_are_told_of_each_others_difference(
    four: list[dict[str, Any]],
) -> None:
    for told in four:  # rank 3 has no group with rank 0
        assert "only rank 0: all_reduce(f32[4], sum, (0, 1))" in told["more on some"]


@pytest.mark.slow
def test_a_group_may_leave_out_any_process(four: list[dict[str, Any]]) -> None:
    for told in (four[0], *four[2:]):
        assert told["of three"] == [5, [0, 2, 3]]
        assert told["parts of three"] == [5, [0, 20, 30]]
