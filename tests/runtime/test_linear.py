"""A linear layer is one kernel, and the graph is what torch's composite of it records."""

import sys
from collections import Counter

import pytest
import torch
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

import lazyrt
from lazyrt.control.dry_run import dry_run
from lazyrt.frontend import linear, record
from lazyrt.observe import events

CASES = {
    "3d": ((2, 3, 4), (5,)),
    "2d": ((3, 4), (5,)),
    "1d": ((4,), (5,)),
    "without bias": ((2, 3, 4), None),
    "2d without bias": ((3, 4), None),
    "bias of each row": ((3, 4), (3, 5)),
    "one bias": ((3, 4), (1,)),
    "no rows": ((0, 3, 4), (5,)),
}


def _operands(case, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    shape, bias = CASES[case]
    shapes = [shape, (5, 4), *([bias] if bias else [])]
    return [torch.randn(shape, generator=generator, dtype=dtype) for shape in shapes]


def _on_device(tensors):
    return [t.to("lazyrt").requires_grad_() for t in tensors]


def _trained(tensors, *, turn=False):
    """Return the result and the gradients of a layer; `turn` makes operands that are not contiguous."""
    used = tensors[:2]
    if turn:
        used = [t.mT.contiguous().mT if t.dim() > 1 else t for t in used]
    result = functional.linear(*used, *tensors[2:])
    loss = (result * torch.arange(5, device=result.device)).sum()
    if loss.is_complex():
        loss = loss.abs()
    return [result, *torch.autograd.grad(loss, tensors)]


@pytest.mark.parametrize("turn", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_results_and_gradients_are_those_of_the_cpu(case, turn):
    tensors = _operands(case)
    wanted = _trained([t.requires_grad_() for t in tensors], turn=turn)

    found = _trained(_on_device(t.detach() for t in tensors), turn=turn)

    for each, oracle in zip(found, wanted, strict=True):
        torch.testing.assert_close(each.cpu(), oracle, rtol=1e-5, atol=1e-6)


def test_complex_gradients_are_those_of_the_cpu():
    tensors = _operands("3d", torch.complex64)
    wanted = _trained([t.requires_grad_() for t in tensors])

    found = _trained(_on_device(t.detach() for t in tensors))

    for each, oracle in zip(found, wanted, strict=True):
        torch.testing.assert_close(each.cpu(), oracle, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("case", ["3d", "2d", "without bias", "2d without bias"])
def test_the_graph_is_that_of_the_composite(case, monkeypatch):
    def recorded():
        operands = _on_device(_operands(case))
        names = []

        def note(event):
            if isinstance(event, events.OpRecorded):
                names.append(event.op)

        lazyrt.mark_step()
        with lazyrt.subscribe(note):
            results = _trained(operands)
        return Counter(names), lazyrt.pending_graph(*results).fingerprint

    found = recorded()
    monkeypatch.setattr(linear, "is_followed", lambda: True)
    composite = recorded()

    assert found == composite


@pytest.mark.lazy_only("counts the calls that record")
def test_a_layer_is_two_kernels():
    x, weight, bias = _on_device(_operands("3d"))
    calls = []

    def count(frame, event, _):
        name = frame.f_code.co_qualname
        if event == "call" and name in {"kernel", "linear_kernel", "linear_backward"}:
            calls.append(name)

    grad = functional.linear(x, weight, bias).detach()
    sys.setprofile(count)
    try:
        result = functional.linear(x, weight, bias)
        torch.autograd.grad(result, (x, weight, bias), grad)
    finally:
        sys.setprofile(None)

    assert calls == ["linear_kernel", "linear_backward"]


def test_transforms_tangents_and_modes_see_the_composite():
    x, weight, bias = _operands("2d")
    lazy = [t.to("lazyrt") for t in (x, weight, bias)]

    def loss(weight, x, bias):
        return functional.linear(x, weight, bias).square().sum()

    each = torch.func.vmap(torch.func.grad(loss), (None, 0, None))
    tangent = torch.func.jvp(
        lambda w: loss(w, lazy[0], lazy[2]), (lazy[1],), (lazy[1],)
    )
    with FlopCounterMode(display=False) as flops:
        _trained(_on_device((x, weight, bias)))

    torch.testing.assert_close(
        each(lazy[1], lazy[0], lazy[2]).cpu(), each(weight, x, bias)
    )
    wanted = torch.func.jvp(lambda w: loss(w, x, bias), (weight,), (weight,))
    torch.testing.assert_close(tangent[1].cpu(), wanted[1])
    assert flops.get_total_flops() == 3 * 2 * 3 * 4 * 5


def test_gradients_of_gradients_and_batches_of_gradients_are_those_of_the_cpu():
    def second(tensors):
        first = torch.autograd.grad(
            functional.linear(*tensors).pow(3).sum(), tensors, create_graph=True
        )
        return torch.autograd.grad(sum(g.square().sum() for g in first), tensors)

    def batch(tensors):
        result = functional.linear(*tensors)
        many = torch.stack([torch.ones_like(result), result.detach()])
        return torch.autograd.grad(result, tensors, many, is_grads_batched=True)

    tensors = _operands("3d", torch.float64)  # the processor decides how float32 rounds
    for function in (second, batch):
        wanted = function([t.requires_grad_() for t in tensors])
        found = function(_on_device(t.detach() for t in tensors))
        for each, oracle in zip(found, wanted, strict=True):
            torch.testing.assert_close(each.cpu(), oracle, rtol=1e-5, atol=1e-5)


@pytest.mark.lazy_only("records and forgets")
def test_what_a_layer_has_recorded_is_forgotten_with_the_nodes_of_its_ops():
    x, weight, bias = _on_device(_operands("3d"))
    first = functional.linear(x, weight, bias)

    lazyrt.frontend.record.begin_run()
    second = functional.linear(x, weight, bias)

    nodes = [lazyrt.pending_graph(t).nodes for t in (first, second)]
    assert not set(nodes[0]) & set(nodes[1])


@pytest.mark.lazy_only("counts the calls that record")
def test_a_strided_result_takes_no_second_op():
    x = torch.ones(2, 3).to("lazyrt")
    calls = []
    transposed = x.transpose(0, 1)
    sys.setprofile(
        lambda _, event, what: (
            calls.append(what.__name__) if event == "c_call" else None
        )
    )
    try:
        transposed = x.transpose(0, 1)
    finally:
        sys.setprofile(None)

    assert transposed.stride() == (1, 3)
    assert "_reinterpret_tensor" in calls
    assert "redispatch_boxed" not in calls


@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 4)])
@pytest.mark.lazy_only("compares what is pending")
def test_a_derivative_has_its_forward_calls_nodes_whatever_lies_between(shape):
    """A cell begins with empty tables; a rehearsal calls the layer and takes it back."""
    layer = torch.nn.Linear(4, 5).to("lazyrt")
    first = torch.nn.Linear(4, 4).to("lazyrt")
    x = torch.ones(shape).to("lazyrt")
    found = []
    for between in (False, True):
        lazyrt.mark_step()
        hidden = first(x)
        loss = layer(hidden).sum()
        if between:
            record.begin_run()
            dry_run(layer, hidden)
            record.begin_run()
        loss.backward()
        found.append(lazyrt.pending_graph().fingerprint)
        layer.zero_grad()
        first.zero_grad()
        del hidden, loss

    assert found[0] == found[1]
