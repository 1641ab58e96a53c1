"""What a step forbids: each dangerous operation, at the user's own line."""
# ruff: noqa: PLW0108, PT012 - the source of each operation is what is tested

import contextlib
import io
import pickle
import warnings

import pytest
import torch

import lazyrt
from lazyrt.config import config
from lazyrt.errors import StepSyncError, StepSyncWarning
from lazyrt.observe import events
from tests.harness import DEVICE, recorded

# Each on one line, so that the line of the error can be told from the function's.
DANGEROUS = {
    ".cpu()": lambda loss: loss.cpu(),
    ".to('cpu')": lambda loss: loss.to("cpu"),
    ".item()": lambda loss: loss.item(),
    "float()": lambda loss: float(loss),
    "bool()": lambda loss: bool(loss),
    ".tolist()": lambda loss: loss.tolist(),
    ".numpy()": lambda loss: loss.numpy(),
    "torch.save": lambda loss: torch.save({"loss": loss}, io.BytesIO()),
    "pickle": lambda loss: pickle.dumps(loss),
    "mark_step": lambda loss: lazyrt.mark_step(),
    "synchronize": lambda loss: torch.get_device_module(DEVICE).synchronize(),
    "data-dependent shape": lambda loss: loss.nonzero(),
    "copy_": lambda loss: torch.zeros(()).copy_(loss),
    "equal": lambda loss: torch.equal(loss, loss + 0),
}
# Of these no tensor has a name: they read none, or one that the call has made.
NAMELESS = {"mark_step", "synchronize", "equal"}


def line_of(caught):
    site = caught.value.site
    assert site is not None
    return site.file, site.line


def work():
    return (torch.ones(3, device=DEVICE) * 2).sum()


@pytest.mark.not_eager("reads what is pending")
@pytest.mark.parametrize("operation", DANGEROUS)
def test_each_dangerous_operation_raises_and_names_tensor_call_and_fix(operation):
    with pytest.raises(StepSyncError) as caught, lazyrt.step("train"):
        DANGEROUS[operation](work())

    error = caught.value
    text = str(error)
    assert "inside the step 'train'" in text
    assert 'step(on_read="allow")' in text
    assert error.tensor == ("" if operation in NAMELESS else "loss")
    assert error.operation
    assert f"`{error.operation}`" in text
    assert error.fix in text
    assert "behind the block that begins at" in error.fix


@pytest.mark.parametrize("operation", DANGEROUS)
def test_each_dangerous_operation_works_outside_of_a_step(operation):
    with lazyrt.step():
        loss = work()

    DANGEROUS[operation](loss)
    DANGEROUS[operation](work())


@pytest.mark.not_eager("reads what is pending")
@pytest.mark.parametrize("operation", DANGEROUS)
def test_the_error_comes_at_the_guilty_line(operation):
    function = DANGEROUS[operation]

    with pytest.raises(StepSyncError) as caught, lazyrt.step():
        function(work())

    lines = [
        (entry.frame.code.path, entry.lineno + 1)
        for entry in caught.traceback
        if str(entry.frame.code.path) == __file__
    ]
    assert lines[-1][1] == function.__code__.co_firstlineno
    assert line_of(caught) == (__file__, function.__code__.co_firstlineno)


@pytest.mark.not_eager("reads what is pending")
def test_the_fix_names_both_lines_of_a_with_block():
    with pytest.raises(StepSyncError) as caught, lazyrt.step():
        loss = work()
        loss.item()

    _, line = line_of(caught)
    begin = line - 2
    assert f"line {line} below the `with` block of line {begin}" in caught.value.fix
    assert any(f":{begin}" in note for note in caught.value.__notes__)


@pytest.mark.not_eager("reads what is pending")
def test_the_fix_for_a_decorated_function_is_to_return_the_tensor():
    @lazyrt.step()
    def train():
        return work().item()

    with pytest.raises(StepSyncError, match=r"Return the tensor from .*train\(\)"):
        train()


@pytest.mark.not_eager("reads what is pending")
def test_a_condition_is_named_by_its_source():
    best = 3.0

    with pytest.raises(StepSyncError) as caught, lazyrt.step():
        loss = work()
        if loss < best:
            pass

    assert caught.value.tensor == "loss < best"


@pytest.mark.not_eager("reads what is pending")
@pytest.mark.parametrize("look", [print, repr, str, lazyrt.materialise, "{}".format])
def test_prints_and_peeks_pass_and_disturb_nothing(look, capsys):
    def run(*, looking):
        with lazyrt.step(), recorded(events.GraphCaptured) as found:
            loss = work()
            if looking:
                look(loss)
            assert lazyrt.is_pending(loss)
        return loss.item(), [event.fingerprint for event in found]

    assert run(looking=False) == run(looking=True)


def test_reading_what_is_computed_already_passes():
    x = torch.ones(3).to(DEVICE)

    with lazyrt.step("outer"):
        with lazyrt.step("inner"):
            y = x * 2
        assert y.tolist() == [2.0, 2.0, 2.0]
        assert x.sum().is_floating_point()
        assert x.tolist() == [1.0, 1.0, 1.0]
        torch.save(y, io.BytesIO())


@pytest.mark.not_eager("reads what is pending")
def test_warn_says_the_same_at_the_same_line_and_goes_on():
    with warnings.catch_warnings(record=True) as caught, lazyrt.step(on_read="warn"):
        warnings.simplefilter("always")
        value = work().item()

    assert value == 6.0
    (warning,) = caught
    assert warning.category is StepSyncWarning
    assert warning.filename == __file__
    assert "`work().item()` reads work()" in str(warning.message)


@pytest.mark.parametrize("operation", DANGEROUS)
def test_allow_lets_each_of_them_cut_the_step(operation):
    with lazyrt.step(on_read="allow"):
        DANGEROUS[operation](work())


@pytest.mark.lazy_only("reads what is pending")
def test_an_allowed_read_is_named_with_its_tensor_and_the_step_that_it_cut():
    with recorded(events.BarrierFinished) as found, lazyrt.step("t", on_read="allow"):
        loss = work()
        loss.item()

    cut, end = found
    assert (cut.cut, cut.tensor) == ("t", "loss")
    assert (end.cut, end.tensor) == (None, "")


@pytest.mark.not_eager("reads what is pending")
def test_an_inner_step_takes_over_what_the_outer_one_allows():
    with lazyrt.step(on_read="allow"):
        with lazyrt.step():
            work().item()
        with pytest.raises(StepSyncError), lazyrt.step(on_read="error"):
            work().item()
        work().item()


@pytest.mark.lazy_only("reads what is pending")
def test_the_peek_policy_applies_to_allowed_reads():
    with config.scoped(read_policy="peek"), lazyrt.step(on_read="allow"):
        loss = work()
        assert loss.item() == 6.0
        assert lazyrt.is_pending(loss)

    assert lazyrt.counters()["executions"] == 1


def test_wrong_policies_are_refused_with_the_right_ones():
    with pytest.raises(lazyrt.errors.UsageError, match=r"on_read='never'.*'allow'"):
        lazyrt.step(on_read="never")  # type: ignore[call-overload]
    with pytest.raises(lazyrt.errors.UsageError, match=r"on_error='keep'.*'rollback'"):
        lazyrt.step(on_error="keep")  # type: ignore[call-overload]


def test_other_threads_are_not_in_the_step():
    from concurrent.futures import ThreadPoolExecutor

    with lazyrt.step(), ThreadPoolExecutor(1) as pool:
        assert pool.submit(lambda: work().item()).result() == 6.0


def in_a_block(x):
    with lazyrt.step():
        return x + 1


@lazyrt.step
def decorated(x):
    return x + 1


@pytest.mark.parametrize("call", [in_a_block, decorated])
def test_a_block_at_whose_end_ctrl_c_comes_is_over(call, monkeypatch):
    """It is raised while `__exit__` is being called, before that has done anything."""

    def interrupted(*_):
        raise KeyboardInterrupt

    x = torch.ones(2).to(DEVICE)
    with monkeypatch.context() as patched:
        patched.setattr(lazyrt.step, "__exit__", interrupted)
        with pytest.raises(KeyboardInterrupt):
            call(x)
        with pytest.raises(KeyboardInterrupt), lazyrt.step("here"):
            y = x * 3

    assert y.tolist() == [3.0, 3.0]
    for _ in range(2):
        assert call(x).tolist() == [2.0, 2.0]


def entered_by_a_helper(opened):
    opened.__enter__()


def entered_by_a_stack(opened):
    with contextlib.ExitStack() as stack:
        stack.enter_context(opened)
        stack.pop_all()


@pytest.mark.not_eager("reads what is pending")
@pytest.mark.parametrize("enter", [entered_by_a_helper, entered_by_a_stack])
def test_a_step_that_a_function_has_entered_is_open_after_it(enter):
    y = torch.ones(2).to(DEVICE) + 1
    opened = lazyrt.step()
    enter(opened)
    try:
        with pytest.raises(StepSyncError):
            y.tolist()
    finally:
        opened.__exit__(None, None, None)


@pytest.mark.not_eager("reads what is pending")
def test_handlers_and_loops_in_a_block_are_within_it():
    y = torch.ones(2).to(DEVICE) + 1

    with lazyrt.step():
        for _ in range(2):
            try:
                try:
                    raise ValueError
                finally:
                    with pytest.raises(StepSyncError):
                        y.tolist()
            except ValueError:
                with contextlib.suppress(KeyError), pytest.raises(StepSyncError):
                    y.tolist()
        with pytest.raises(StepSyncError), lazyrt.step():
            [each.tolist() for each in (y,)]


def test_one_coroutine_in_a_step_does_not_forbid_reads_to_another():
    import asyncio

    async def stepping(inside, done):
        with lazyrt.step():
            inside.set()
            await done.wait()

    async def reading(inside, done):
        await inside.wait()
        value = work().item()
        done.set()
        return value

    async def both():
        inside, done = asyncio.Event(), asyncio.Event()
        return await asyncio.gather(stepping(inside, done), reading(inside, done))

    assert asyncio.run(both()) == [None, 6.0]


def trained():
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters())
    lazyrt.mark_step()
    return model, optimizer


def update(model, optimizer):
    model(torch.ones(4, 3, device=DEVICE)).sum().backward()
    lazyrt.optimizer_step(optimizer)


CHECKPOINTS = {
    "model and optimizer": lambda m, o: torch.save({"model": m.state_dict(), "optim": o.state_dict()}, io.BytesIO()),
    "a module": lambda m, o: torch.save(m, io.BytesIO()),
    "its dict moved": lambda m, o: {k: v.cpu() for k, v in m.state_dict().items()},
    "its dict by .to()": lambda m, o: {k: v.to("cpu") for k, v in m.state_dict().items()},
    "the parameters": lambda m, o: [p.detach().cpu() for p in m.parameters()],
}  # fmt: skip


@pytest.mark.not_eager("reads what is pending")
@pytest.mark.parametrize("way", CHECKPOINTS)
def test_a_checkpoint_in_a_step_names_the_tensors_as_the_program_holds_them(way):
    model, optimizer = trained()
    save = CHECKPOINTS[way]

    with config.scoped(barrier_after_optimizer=False):  # noqa: SIM117
        with pytest.raises(StepSyncError) as caught, lazyrt.step("train"):
            update(model, optimizer)
            save(model, optimizer)

    error = caught.value
    assert "model.weight" in str(error)
    assert "f32[2,3], inside the step 'train'" in str(error)
    assert line_of(caught) == (__file__, save.__code__.co_firstlineno)
    if "save" in str(error.operation):
        assert error.tensor == "model.weight"
        (note,) = (n for n in error.__notes__ if n.startswith("pending in the same"))
        assert "`model.bias`" in note
        assert "`model.weight.exp_avg`" in note
    save(model, optimizer)  # behind the block it works


@pytest.mark.not_eager("reads what is pending")
def test_an_optimizers_state_is_named_by_its_parameter():
    model, optimizer = trained()

    with config.scoped(barrier_after_optimizer=False):  # noqa: SIM117
        with pytest.raises(StepSyncError) as caught, lazyrt.step():
            update(model, optimizer)
            torch.save(optimizer.state_dict()["state"][0]["exp_avg"], io.BytesIO())

    assert caught.value.tensor == "model.weight.exp_avg"


@pytest.mark.not_eager("reads what is pending")
def test_naming_a_tensor_keeps_none_alive():
    with lazyrt.step(on_read="error"):
        dead = work()
        kept = work()
        with pytest.raises(StepSyncError):
            torch.save({"loss": kept}, io.BytesIO())
        del dead
        assert len(lazyrt.pending_graph().roots) == 1
