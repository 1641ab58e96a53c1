"""What a read in a step is said to read, for expressions of every kind."""

import linecache
import math

import pytest
import torch

import lazyrt
from lazyrt.errors import StepSyncError
from tests.harness import DEVICE

pytestmark = pytest.mark.not_eager("reads what is pending")

# A statement, and how the error's first words name the operation and what it reads.
STATEMENTS = {
    "out['loss'].item()": "`out['loss'].item()` reads out['loss'] (`loss`), f32[],",
    "ts[-1].item()": "`ts[-1].item()` reads ts[-1] (`loss`), f32[],",
    "if (v := loss.item()) > 0: pass": "`loss.item()` reads loss, f32[],",
    "if (v := loss) > 0: pass": "`(v := loss) > 0` reads loss > 0, bool[],",
    "[t.item() for t in ts]": "`t.item()` reads t, f32[],",
    "{k: v.item() for k, v in out.items()}": "`v.item()` reads v, f32[],",
    "(lambda t: t.item())(loss)": "`t.item()` reads t, f32[],",
    "list(map(float, ts))": "`list(map(float, ts))` reads loss, f32[],",
    "y.mean().exp().item()": "`y.mean().exp().item()` reads y.mean().exp(), f32[],",
    "y.sum(\n    ).exp(\n    ).item()": "`y.sum().exp().item()` reads y.sum().exp(), f32[],",
    "(y\n     .sum()\n     .item())": "`y.sum().item()` reads y.sum(), f32[],",
    "not loss": "`not loss` reads loss, f32[],",
    "loss > 0 and print()": "`loss > 0 and print()` reads loss > 0, bool[],",
    "0 < loss < 10": "`0 < loss < 10` reads 0 < loss, bool[],",
    "min(9.0, loss)": "`min(9.0, loss)` reads a pending bool[]",
    "loss in [y[0]]": "`loss in [y[0]]` reads a pending bool[]",
    "ts.index(y[0])": "`ts.index(y[0])` reads a pending bool[]",
    "y.equal(y + 1)": "`y.equal(y + 1)` reads a pending bool[]",
    "'%.3f' % loss": "`'%.3f' % loss` reads loss, f32[],",
    "math.sqrt(loss)": "`math.sqrt(loss)` reads loss, f32[],",
    "m.sqrt(loss)": "`m.sqrt(loss)` reads loss, f32[],",
    "torch.Tensor.item(loss)": "`torch.Tensor.item(loss)` reads loss, f32[],",
    "host[:] = y": "`host[:] = y` reads y, f32[3],",
    "range(loss.long())": "`range(loss.long())` reads loss.long(), i64[],",
    "range(1, loss.long())": "`range(1, loss.long())` reads loss.long(), i64[],",
    "f'{y[0].item():.3f}'": "`y[0].item()` reads y[0] (`y`), f32[],",
}
PROGRAM = """
def go(y, loss):
    out, ts, host = {{'loss': loss}}, [loss], torch.zeros(3)
    with lazyrt.step():
        y = y * 2
        loss *= 2
        {statement}
"""


@pytest.mark.parametrize("statement", STATEMENTS)
def test_the_error_names_what_an_odd_expression_reads(statement):
    source = PROGRAM.format(statement=statement)
    file = f"odd {statement}"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    scope = {"torch": torch, "lazyrt": lazyrt, "math": math, "m": math}
    exec(compile(source, file, "exec"), scope)  # noqa: S102 - of the table above
    y, loss = torch.ones(3).to(DEVICE), torch.ones(()).to(DEVICE)
    go = scope["go"]
    assert callable(go)

    with pytest.raises(StepSyncError) as caught:
        go(y, loss)

    assert str(caught.value).partition(" inside ")[0] == STATEMENTS[statement]
