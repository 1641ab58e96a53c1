"""`lazyviz.find_nan` and `%lazy nan`: the op where NaN begins, and what it was made of."""

import pytest
import torch

import lazyrt
import lazyviz
from tests.conftest import displayed
from tests.harness import lazy


def origins(*tensors):
    return lazyviz.find_nan(*tensors).found.origins


def test_a_logarithm_of_negative_numbers_is_named_with_them():
    x = lazy(torch.tensor([[4.0, 1.0, -2.0], [9.0, -1.0, 1.0]]))
    root = torch.sqrt(x)
    loss = (root * 2 + 1).sum()

    view = lazyviz.find_nan(loss)

    (origin,) = view.found.origins
    assert bool(view)
    assert origin.node.op.name == "aten.sqrt.default"
    assert (origin.counts, origin.first) == ((2, 0, 0), (0, 2))
    (operand,) = origin.operands
    assert (operand.summary.low, operand.summary.high, operand.element) == (-2, 9, -2)
    assert "1 result is not finite. It begins at 1 op: 4 values checked" in str(view)
    assert "x: -2 to 9, -2 at [0, 2]" in str(view)
    assert "aten.sqrt.default" in view._repr_html_().replace("<wbr/>", "")


def test_one_op_is_found_among_two_thousand():
    x = lazy(torch.linspace(1.0, 2.0, 8))
    for k in range(1_999):
        x = torch.log(x - x) * 0 + 1 if k == 700 else x + 0.5
    lazyrt.reset_counters()

    view = lazyviz.find_nan(x)

    assert [o.node.op.name for o in view.found.origins] == [
        "aten.log.default",  # of zeros: infinities
        "aten.mul.Tensor",  # and times zero: NaN
    ]
    assert view.found.origins[0].operands[0].element == 0.0
    assert view.found.checked > 1_999
    assert lazyrt.counters()["executions"] == 0


def test_infinities_that_lead_nowhere_are_no_finding():
    scores = lazy(torch.arange(9.0).reshape(3, 3))
    seen = lazy(torch.ones(3, 3).tril().bool())
    weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)

    view = lazyviz.find_nan(weights.sum())

    assert not view
    assert view.found.origins == ()
    assert (
        str(view) == "Every result is finite: 4 values checked, each op run by itself."
    )


def test_a_causal_mask_is_no_culprit_of_a_nan_that_passes_it_by():
    """It is read beside the NaN, as an input and as an op's result."""
    scores = lazy(torch.tensor([[1.0, -1.0], [2.0, 3.0]]))
    mask = lazy(torch.tensor([[0.0, float("-inf")], [0.0, 0.0]]))
    seen = lazy(torch.tensor([[True, False], [True, True]]))
    masked = (scores.log() + mask).masked_fill(~seen, float("-inf"))

    view = lazyviz.find_nan(masked.softmax(-1).sum() + scores.log().sum())

    assert [each.node.op.name for each in view.found.origins] == ["aten.log.default"]
    assert view.found.inputs == {}


def test_a_row_that_is_masked_whole_leads_from_the_mask_to_the_softmax():
    scores = lazy(torch.arange(4.0).reshape(2, 2))
    seen = lazy(torch.tensor([[True, False], [False, False]]))

    mask, softmax = origins(scores.masked_fill(~seen, float("-inf")).softmax(-1).sum())

    assert mask.counts == (0, 0, 3)
    assert (softmax.counts.nan, softmax.first) == (2, (1, 0))
    assert softmax.operands[0].summary.infinite == 3
    assert softmax.operands[0].element is None  # no op of single elements


def test_an_input_that_came_in_broken_is_named():
    weights = lazy(torch.tensor([1.0, float("nan"), float("inf")]))

    view = lazyviz.find_nan(weights * 2)

    assert view.found.origins == ()
    assert "It begins at 1 input" in str(view)
    assert "weights f32[3] came in with 1 NaN, 1 Inf." in str(view)


def test_all_that_is_pending_is_searched_where_no_tensor_is_named():
    x = lazy(torch.zeros(2))
    kept = [x / x, torch.log(x), x + 1]

    names = {origin.node.op.name for origin in origins()}

    assert names == {"aten.div.Tensor", "aten.log.default"}
    assert len(kept) == 3


def test_what_is_computed_already_is_refused_with_advice():
    done = lazy(torch.zeros(2))

    with pytest.raises(lazyrt.errors.UsageError, match="Call it before the barrier"):
        lazyviz.find_nan(done)


def test_the_search_leaves_the_step_its_numbers_and_its_memory_alone():
    def run(*, look):
        lazyrt.clear_caches()
        torch.manual_seed(3)
        x = lazy(torch.rand(4, 4))
        y = torch.nn.functional.dropout(x, 0.5) / (x - x)
        if look:
            assert lazyviz.find_nan(y)
        fingerprint = lazyrt.pending_graph().fingerprint
        before = lazyrt.counters()
        lazyrt.mark_step()
        after = lazyrt.counters() - before
        found = after["compiles"] + after["disk_hits"]
        return fingerprint, after["executions"], found, y.cpu()

    *seen, value = run(look=True)
    *unseen, expected = run(look=False)

    assert seen == unseen
    torch.testing.assert_close(value, expected, rtol=0, atol=0, equal_nan=True)


def test_the_magic_shows_a_table_and_takes_nothing_pending(lab):
    lab.run_cell(
        "import torch, lazyrt\nq = torch.zeros(3, device='lazyrt')\nbad = q / q"
    )
    lab.display_pub.outputs.clear()
    lab.run_cell("%lazy nan bad")
    shown = "\n".join(displayed(lab))

    assert "aten.div.Tensor" in shown
    assert "3 NaN" in shown
    lab.display_pub.outputs.clear()
    lab.run_cell("lazyrt.mark_step()\n%lazy nan bad")
    assert "bad has 3 NaN. Where that began" in "\n".join(displayed(lab))


def test_a_batch_that_no_step_has_computed_leads_to_its_value(lab):
    lab.run_cell("batch = torch.tensor([1.0, torch.nan]).to('lazyrt')")
    lab.display_pub.outputs.clear()

    lab.run_cell("%lazy nan batch", store_history=True)
    said = displayed(lab)[0]

    assert "`batch` f32[2]: copied from the host" in said
    assert "A cell that ends in it shows its value, with what is not finite" in said


def test_a_number_of_the_program_that_is_not_finite_is_named():
    x = lazy(torch.ones(3))
    views = []
    for scale in (2.0, 3.0, float("nan"), float("inf")):
        y = (x + 1) * scale  # a constant at first, an input once it varies
        views.append(str(lazyviz.find_nan(y)))
        lazyrt.mark_step()

    assert [each.count("the number") for each in views] == [0, 0, 1, 1]
    assert "the number nan" in views[2]
    assert "the number inf" in views[3]
