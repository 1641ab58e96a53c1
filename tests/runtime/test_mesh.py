"""Tensors that are split over the devices of one process."""

import json
import os
import re
import subprocess
import tempfile
from pathlib import Path

import pytest
import torch

import lazyrt
from lazyrt.control.mesh import Mesh
from lazyrt.errors import UsageError
from lazyrt.frontend.buffers import state_of
from lazyrt.ir import sharding
from lazyrt.ir.live import Buffer
from lazyrt.ir.sharding import ShardedType
from tests.harness import DEVICE
from tests.quick_python import interpreter

ROOT = Path(__file__).parents[2]


def run(*names):
    """Return what programs of `tests.mesh_programs` tell, on eight devices."""
    with tempfile.TemporaryDirectory() as folder:
        given = {
            "LAZYRT_NUM_DEVICES": "8",
            "LAZYRT_COMPILE_TIER": "fast",
            "LAZYRT_CACHE_DIR": folder,
            "PYTHONPATH": f"{ROOT}:{ROOT / 'runtime'}",
        }
        environment = {k: v for k, v in os.environ.items() if not k.startswith("LAZY")}
        done = subprocess.run(
            [*interpreter(environment | given), "-m", "tests.mesh_programs", *names],
            cwd=ROOT,
            env=environment | given,
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith('["')]
    return dict(map(json.loads, lines))


@pytest.fixture(scope="module")
def small():
    """What the small programs tell, which share a process."""
    return run(
        "reads", "looks", "writes", "constraints", "reasons", "exchanges", "products", "gathers", "profiled", "disk", "refused",
        "names_of_torch_xla",
    )  # fmt: skip


@pytest.mark.slow
def test_reading_a_split_tensor_gathers_it(small):
    assert small["reads"] == [True] * 4
    assert small["item"]


def test_a_device_has_a_part_of_a_split_tensor(small):
    on_first, whole = small["bytes"]

    assert on_first * 8 == whole


def test_looking_leaves_a_split_step_what_it_is(small):
    assert small["look is right"]
    assert small["watched"] == small["unwatched"]
    assert small["watched"][1:3] == [1, 1]


@pytest.mark.parametrize(
    "how",
    ["in_lazy_mode", "in_eager_mode", "op_by_op", "with_kept_values", "from_the_host", "by_a_peek", "discarded"],
)  # fmt: skip
def test_a_tensor_that_is_written_keeps_its_sharding(small, how):
    assert small[how] == [True, ["data", "model"]]


def test_a_pending_tensor_is_split_when_its_step_runs(small):
    assert small["gradient"] == [True, 0]
    assert small["constraint"] == [["data", None], 1]


def test_a_pending_view_is_split_with_its_tensor(small):
    assert small["view"] == [True, 4 * 64 // 2]


def test_a_tensor_is_split_anew_or_made_whole(small):
    assert small["split anew"] == [True, [None, "data"]]
    assert small["whole again"] is None


def test_a_mesh_in_with_is_the_default(small):
    assert small["default mesh"] == ["all", None]


def test_another_sharding_is_the_reason_of_a_compile(small):
    ((kind, text),) = small["reason"]

    assert kind == "sharding"
    assert "('model', None) over data = 4, model = 2, was ('data', 'model')" in text
    assert small["compiles again"] == 0


def test_collectives_have_size_and_line(small):
    ((kind, nbytes, devices, line),) = small["collectives"]

    assert (kind, nbytes, devices) == ("all-reduce", 256, 2)
    assert re.fullmatch(r".*mesh_programs\.py:\d+", line)
    assert small["compiles for them"] == 0


def test_live_tensors_have_their_bytes_on_each_device(small):
    summary, own = small["live bytes"]

    assert own == [{str(device): 128 for device in range(8)}] * 2  # 256 bytes over two
    assert re.search(r" on each of 8 devices", summary)


def test_the_parts_of_a_tensor_have_their_devices_and_its_display_draws_them(small):
    columns, grid, whole = small["shards"]

    assert columns == [
        [[[0, 8], [0, 4]], [0, 2, 4, 6]],
        [[[0, 8], [4, 8]], [1, 3, 5, 7]],
    ]
    assert [devices for _, devices in grid] == [[k] for k in range(8)]
    assert whole == []
    assert " ".join(small["page"][:6]) == "dim 0 \\ dim 1 0:4 4:8 0:2 0 1"
    assert small["terminal"][0].startswith("-----")
    assert small["terminal"][1].split() == ["0:2", "0", "1"]


def test_collectives_say_why_data_moves_and_what_to_do(small):
    added, *moved = small["reasons"]

    assert added == ["all-reduce", "", "each device has added up its own part: the sum is over all", ""]  # fmt: skip
    assert moved
    for _, tensor, why, fix in moved:
        assert tensor == "input 0 (f32[8,8])"
        assert why.startswith(
            "`input 0 (f32[8,8])` is split (None, 'model') over data = 4"
        )
        assert fix.startswith("split it as its readers do")


def test_a_gather_for_a_product_names_its_operands_and_the_mend_ends_it(small):
    (gather,), mended, cheaper = small["products"]

    assert gather[:3] == ["all-gather", "h @ w", "h"]
    assert gather[3].startswith("`h` is split on dim 1")
    assert gather[4].startswith("shard `w` on dim 0")
    assert [kind for kind, *_ in mended] == ["all-reduce"]
    assert cheaper[0][:3] == ["all-gather", "x @ v", "v"]
    assert cheaper[0][3].endswith("an all-reduce of the result would move more")
    assert not cheaper[0][4]


def test_a_gather_that_no_device_needs_is_a_warning_at_its_line_and_the_mend_ends_it(
    small,
):
    (told, is_right), (mended, is_still_right) = small["gathers"]

    ((kind, line, text),) = told
    assert (kind, line) == ("ShardingWarning", small["line of the gather"])
    assert text.startswith(
        "each device gathers 16.0 KiB (f32[64,64]) for `turned = (x * 2).t().contiguous()`: no device "
        "needs it whole, each keeps 4.0 KiB of it"
    )
    assert not mended
    assert is_right
    assert is_still_right


def test_a_profile_has_the_time_of_all_devices_at_the_lines_and_a_row_for_each(small):
    share, behind = small["profiled share"]

    assert small["profiled devices"] == list(range(8))
    assert len(small["profiled runs"]) == 1
    assert share > 0.9
    assert behind >= 0
    assert small["profiled table"] == 1


def test_an_executable_for_a_mesh_comes_from_disk(small):
    assert small["disk"] == [0, True]


def test_what_cannot_be_split_is_refused(small):
    errors = " ".join(
        text for name, text in small.items() if name.startswith("refused")
    )

    assert "needs 16 devices, and this process has 8" in errors
    assert "cannot split dimension 0 of (3, 8), of size 3, into 4 equal parts" in errors
    assert "a view of a tensor that is computed" in errors
    assert "a step has data of several meshes" in errors


def test_a_script_of_torch_xla_splits_tensors(small):
    assert small["loaded"] == ["fsdp", None]
    assert small["wrapped"] == [["fsdp", None], ["fsdp"]]
    assert small["output"] == [True, ["fsdp", None]]
    assert small["cleared"] is None


@pytest.mark.slow
@pytest.mark.parametrize("model", ["bert", "gpt"])
def test_models_train_on_eight_devices_as_on_one(trained, model):
    alone = trained[f"{model} one device"]

    for way in ("data", "tensor", "fully"):
        found = trained[f"{model} {way}"]
        assert found["losses"] == pytest.approx(alone["losses"], abs=1e-5)
        assert found["sum"] == pytest.approx(alone["sum"], rel=1e-6)
        assert (found["compiles"], found["executions"]) == (1, 3)
    whole = alone["parameters"]
    assert trained[f"{model} data"]["parameters"] == whole
    assert trained[f"{model} tensor"]["parameters"] < 0.75 * whole
    assert trained[f"{model} fully"]["parameters"] < 0.26 * whole
    assert trained[f"{model} fully"]["states"] < 0.26 * alone["states"]


@pytest.fixture(scope="module")
def trained():
    """What the programs tell that train models."""
    return run("bert", "gpt")


# ---------------------------------------------------------------------------- one process


GRID = Mesh({"data": 4, "model": 2})


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (("rows",), "the axis 'rows', which the mesh does not have: its axes are 'data', 'model'"),
        (("data", "data"), "the axis 'data' twice"),
        (("data", None, None), "3 entries .* for a tensor of 2 dimensions"),
        ((None, "data"), r"cannot split dimension 1 of \(8, 6\), of size 6, into 4 equal parts"),
        ((3,), "the entry 3 in"),
    ],
)  # fmt: skip
def test_a_specification_that_does_not_fit_says_why(spec, message):
    with pytest.raises(UsageError, match=message):
        GRID.sharding(spec, (8, 6))


def test_a_dimension_is_split_over_several_axes():
    found = GRID.sharding((("data", "model"),), (8, 6))

    assert found.parts() == (8, 1)
    assert str(found) == "('data'+'model', None) over data = 4, model = 2"


def test_an_axis_of_one_device_splits_nothing():
    found = Mesh({"data": 1, "model": 2}).sharding(("data", "model"), (8, 6))

    assert found.split == ((), ("model",))


@pytest.mark.parametrize("axes", [{"data": 0}, {"data": 2.0}, {"my axis": 2}, {3: 2}])
def test_a_mesh_of_no_axes_or_devices_is_refused(axes):
    with pytest.raises(UsageError, match="Give each axis a name and a number"):
        lazyrt.mesh(axes)


def test_a_mesh_larger_than_the_process_says_how_to_get_more_devices():
    with pytest.raises(UsageError, match="LAZYRT_NUM_DEVICES=64 before Python starts"):
        lazyrt.mesh({"data": 64})


def test_sharding_without_a_mesh_is_refused():
    with pytest.raises(UsageError, match="got no mesh"):
        lazyrt.shard(torch.ones(8).to(DEVICE), spec=("data",))


def test_a_number_of_devices_that_is_none_is_refused(monkeypatch):
    from lazyrt.control.mesh import use_device_count

    monkeypatch.setenv("LAZYRT_NUM_DEVICES", "many")
    with pytest.raises(
        UsageError, match="LAZYRT_NUM_DEVICES is 'many', which is not a whole"
    ):
        use_device_count()
    torch.ones(1).to(DEVICE)
    monkeypatch.setenv("LAZYRT_NUM_DEVICES", "64")
    with pytest.raises(UsageError, match="LAZYRT_NUM_DEVICES=64 comes too late"):
        use_device_count()


def _graph(spec):
    x = torch.ones(8, 6).to(DEVICE)
    if spec is not None:
        state = state_of(x)
        assert isinstance(state, Buffer)
        state.meta = ShardedType(state.type, GRID.sharding(spec, (8, 6)))
    y = x * 2
    return lazyrt.pending_graph(y)


@pytest.mark.lazy_only("is about pending graphs")
def test_a_sharding_is_a_part_of_the_fingerprint():
    whole, rows, columns = _graph(None), _graph(("data",)), _graph((None, "model"))
    lazyrt.discard_pending()

    assert len({each.fingerprint for each in (whole, rows, columns)}) == 3
    assert whole.fingerprint == _graph(None).fingerprint


@pytest.mark.lazy_only("is about pending graphs")
def test_the_program_of_a_mesh_states_shardings():
    text = _graph(("data",)).lower().as_text()

    assert '#sdy.sharding<mesh<["data"=4, "model"=2]>, [{"data"}, {}]>' in text
    assert "sdy" not in _graph(None).lower().as_text()


def test_types_that_differ_in_sharding_differ():
    plain = ((8, 6), torch.float32, None)
    split = ShardedType(plain, GRID.sharding(("data",), (8, 6)))
    again = ShardedType(plain, GRID.sharding(("data",), (8, 6)))

    assert split == again
    assert hash(split) == hash(again)
    assert split != plain
    assert plain != split
    assert split != ShardedType(plain, GRID.sharding(("model",), (8, 6)))


def test_a_program_without_a_mesh_asks_for_no_sharding(monkeypatch):
    monkeypatch.setattr(sharding, "in_use", False)
    monkeypatch.setattr(sharding, "of_data", None)

    x = torch.ones(3).to(DEVICE)
    x.mul_(2)
    lazyrt.mark_step()

    assert x.tolist() == [2.0] * 3


def test_groups_of_devices_are_counted_in_each_notation():
    from lazyrt.lowering.partitioning import _group_size

    assert _group_size("channel_id=1, replica_groups={{0,2,4,6},{1,3,5,7}}") == 4
    assert _group_size("replica_groups=[4,2]<=[8], dimensions={0}") == 2
    axes = "replica_groups=mesh['a'=1,'b'=2,'c'=4]"
    assert _group_size(f"device_ids=([4,2]T(1,0)){{'b'}}, {axes}") == 2
    assert _group_size(f"{axes} {{'b','c'}}") == 8
    assert _group_size("source_target_pairs={{0,1}}") == 0
