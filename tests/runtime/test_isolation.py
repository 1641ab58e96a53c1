"""Importing and using lazyrt changes nothing for other devices, other jax programs, torch."""

import functools
import signal
import threading
import time

import pytest
import torch
from torch import nn

import lazyrt
from tests.harness import DEVICE, run_python

pytestmark = pytest.mark.slow

USE = """
import torch, lazyrt
x = torch.ones(3, device="lazyrt", requires_grad=True)
(x * 2).sum().backward()
repr(x.grad)
x.grad.tolist()
m = torch.nn.Linear(2, 2).to("lazyrt")
torch.optim.SGD(m.parameters(), lr=0.1).step()
(torch.arange(3, device="lazyrt") * 2**40).tolist()
lazyrt.mark_step()
"""

PROBE = """
import jax, jax.numpy as jnp
def probe():
    import torch
    return [
        bool(jax.config.jax_enable_x64),
        str(jnp.arange(3).dtype), str(jnp.ones(2).dtype), str(jax.jit(lambda v: v + 1)(1.5).dtype),
        jax.config.jax_compilation_cache_dir,
        torch.autograd.is_multithreading_enabled(),
        torch.__future__.get_swap_module_params_on_conversion(),
        torch.__future__.get_overwrite_module_params_on_conversion(),
        str(torch.get_default_dtype()), str(torch.get_default_device()),
        torch.is_grad_enabled(), torch.get_num_threads(),
        torch.are_deterministic_algorithms_enabled(),
        repr(torch.tensor([1.0, 2.5])), repr(torch.ones(2, requires_grad=True) * 2),
        f"{torch.tensor(1.25):.1f}", str(torch.nn.Parameter(torch.zeros(1))),
        torch.ones(2).numpy().tolist(), torch.ones(2).tolist(),
    ]
"""


@functools.cache
def without_lazyrt():
    return run_python(PROBE + "print(probe())")


@pytest.mark.parametrize("first", ["probe", "use"])
def test_global_settings_of_jax_and_torch_stay(first):
    if first == "probe":
        code = PROBE + "before = probe()\n" + USE + "assert probe() == before\n"
    else:
        code = USE + PROBE

    assert run_python(code + "print(probe())") == without_lazyrt()


def test_a_users_jit_cache_and_dtypes_are_unaffected():
    code = """
import jax, jax.numpy as jnp
calls = []

@jax.jit
def double(v):
    calls.append(v.dtype)
    return v * 2

assert double(jnp.arange(3)).dtype == jnp.int32
"""
    after = """
assert double(jnp.arange(3)).dtype == jnp.int32
assert double(jnp.arange(3)).dtype == jnp.int32
assert jnp.array([1.0]).dtype == jnp.float32
assert len(calls) == 1, calls
print(double._cache_size())
"""

    assert run_python(code + USE + after) == "1"


def test_jax_works_between_the_ops_of_a_lazy_program():
    import jax
    import jax.numpy as jnp

    x = torch.ones(3, device=DEVICE, dtype=torch.float64)
    y = jnp.ones(3) * 2
    z = x * 3
    assert jax.jit(lambda v: v + 1)(y).dtype == jnp.float32
    assert z.tolist() == [3.0] * 3
    assert jnp.arange(2).dtype == jnp.int32


def test_threads_of_a_users_jax_program_keep_32_bits_during_a_barrier():
    import threading

    import jax.numpy as jnp

    seen = set()
    stop = threading.Event()

    def user():
        while not stop.is_set():
            seen.add(str(jnp.arange(3).dtype))

    thread = threading.Thread(target=user)
    thread.start()
    for number in range(3):
        (torch.ones(3, device=DEVICE, dtype=torch.float64) * number).exp().tolist()
    stop.set()
    thread.join()

    assert seen == {"int32"}


def test_modules_on_the_cpu_are_converted_as_before():
    model = nn.Linear(2, 2)
    weight = model.weight
    data = weight.data_ptr()

    model.to(torch.float64)
    model.half().float()
    model.to("cpu")

    assert model.weight is weight
    assert model.weight.dtype is torch.float32
    assert weight.data_ptr() != data
    assert not torch.__future__.get_swap_module_params_on_conversion()


def test_conversions_on_two_threads_leave_torchs_switch_as_it_was():
    inside = threading.Event()

    class Slow(nn.Linear):
        def _apply(self, *args, **kwargs):
            inside.set()
            time.sleep(0.05)
            return super()._apply(*args, **kwargs)

    thread = threading.Thread(target=lambda: Slow(2, 2).to(DEVICE))
    thread.start()
    assert inside.wait(60)

    nn.Linear(2, 2).to(DEVICE)
    thread.join()

    assert not torch.__future__.get_swap_module_params_on_conversion()


def test_modules_on_meta_are_converted_as_before():
    model = nn.Linear(2, 2)
    weight = model.weight

    model.to("meta")

    assert model.weight is not weight
    assert weight.device.type == "cpu"


def test_backward_on_the_cpu_may_use_threads():
    seen = []
    x = torch.ones(2, requires_grad=True)
    y = x * 2

    def look(gradient):
        seen.append(torch.autograd.is_multithreading_enabled())

    y.register_hook(look)

    y.sum().backward()
    (torch.ones(2, device=DEVICE, requires_grad=True) * 2).sum().backward()

    assert seen == [True]
    assert torch.autograd.is_multithreading_enabled()


def test_a_failing_backward_restores_the_setting():
    x = torch.ones(2, device=DEVICE, requires_grad=True)
    y = x * 2
    y.register_hook(lambda g: 1 / 0)

    with pytest.raises(ZeroDivisionError):
        y.sum().backward()

    assert torch.autograd.is_multithreading_enabled()


def test_pickles_of_cpu_tensors_need_no_lazyrt():
    import pickle
    import pickletools

    text = "".join(
        str(argument)
        for _, argument, _ in pickletools.genops(pickle.dumps(torch.ones(2)))
    )

    assert "lazyrt" not in text


def test_checkpoints_of_lazy_tensors_load_where_lazyrt_is_missing(tmp_path):
    path = tmp_path / "state.pt"
    torch.save(nn.Linear(2, 2).to(DEVICE).state_dict(), path)
    code = f"""
import sys, torch
state = torch.load({str(path)!r}, map_location="cpu", weights_only=True)
assert "lazyrt" not in sys.modules
print({{k: v.device.type for k, v in state.items()}})
"""

    assert run_python(code) == "{'weight': 'cpu', 'bias': 'cpu'}"


def test_subclasses_and_functions_of_torch_keep_working():
    class Mine(torch.Tensor):
        pass

    mine = torch.ones(2).as_subclass(Mine)

    assert mine.tolist() == [1.0, 1.0]
    assert isinstance(mine + 1, Mine)
    assert f"{torch.tensor(2.0):.2f}" == "2.00"
    assert repr(mine) == "Mine([1., 1.])"


def test_signal_handlers_are_given_back():
    before = signal.getsignal(signal.SIGINT)

    (torch.ones(3, device=DEVICE) * 2).tolist()
    repr(torch.ones(3, device=DEVICE) * 2)
    lazyrt.mark_step()

    assert signal.getsignal(signal.SIGINT) is before


def test_forked_data_loader_workers_are_unharmed():
    code = """
import torch, lazyrt
(torch.ones(2, device="lazyrt") * 2).tolist()
data = torch.utils.data.TensorDataset(torch.arange(8.0))
loader = torch.utils.data.DataLoader(data, batch_size=4, num_workers=1)
print([batch[0].to("lazyrt").sum().item() for batch in loader])
"""

    assert run_python(code) == "[6.0, 22.0]"


def test_a_loader_pins_memory_also_where_no_tensor_is_lazy():
    code = """
import torch, lazyrt
data = torch.utils.data.TensorDataset(torch.arange(8.0, requires_grad=True).detach())
loader = torch.utils.data.DataLoader(data, batch_size=4, pin_memory=True)
print([batch[0].sum().item() for batch in loader], lazyrt.counters()["executions"])
"""

    assert run_python(code) == "[6.0, 22.0] 0"


def test_importing_twice_registers_nothing_twice():
    code = """
import importlib, sys, torch, lazyrt
from lazyrt.observe import events
before = len(events._subscriptions)
importlib.import_module("lazyrt")
assert len(events._subscriptions) == before
print(torch._C._get_privateuse1_backend_name())
"""

    assert run_python(code) == "lazyrt"


def test_compilers_of_torch_still_work_on_the_cpu():
    compiled = torch.compile(lambda v: v * 2 + 1, backend="eager")

    assert compiled(torch.ones(2)).tolist() == [3.0, 3.0]


def test_a_print_that_fails_leaves_functorch_alone(monkeypatch):
    from lazyrt.execution import peek

    def energy(v):
        return (v.sin() * v).sum()

    def fail(*args):
        raise KeyboardInterrupt

    y = torch.ones(3, device=DEVICE) * 2.125
    with monkeypatch.context() as patch:
        patch.setattr(peek, "cone_of", fail)
        with pytest.raises(KeyboardInterrupt) as kept:
            repr(y)
    result = torch.func.vmap(torch.func.grad(energy))(torch.ones(3, 3))

    assert result.shape == (3, 3)
    assert kept.value.__traceback__ is not None
    assert repr(y).startswith("tensor([2.1250")
