"""The lines of random programs: what may be written next, given the tensors so far.

A line is Python text. The tables map a tensor's name and shape to lines, so that a program
can be read, run by itself and kept as a test.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

T = TypeVar("T")

MAX_ELEMENTS = 64
MAX_DIMENSIONS = 4
_MATRIX = 2
_FEWEST_TENSORS = 4
_MARGIN = 1e-2
_TOO_LARGE = 100.0


@dataclass(slots=True)
class Desk:
    """What a line is written from: the tensors so far on the CPU, and a way to choose.

    Attributes:
        tensors: By name, in order of creation.
        choose: Returns one of the options; decides everything that is random.
    """

    tensors: dict[str, torch.Tensor]
    choose: Callable[[Sequence[Any]], Any]

    def name(self, accept: Callable[[torch.Tensor], bool]) -> str | None:
        """Return a tensor's name that is accepted, None if there is none."""
        found = [name for name, tensor in self.tensors.items() if accept(tensor)]
        chosen: str | None = self.choose(found[::-1]) if found else None
        return chosen

    def floats(self) -> str | None:
        """Return the name of a tensor of floats."""
        return self.name(torch.is_floating_point)

    def apart(self, name: str, other: str) -> str:
        """Return an expression for a tensor that shares no memory with another one."""
        mine, theirs = self.tensors[name], self.tensors[other]
        shared = _storage(mine) == _storage(theirs)
        return f"{name}.clone()" if shared else name


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def is_written_alike(tensor: torch.Tensor) -> bool:
    """Return whether torch defines what a write in place does.

    It refuses elements that repeat with a stride of 0, and leaves open what becomes of windows
    that overlap, as `unfold` makes them: each element is written once or more often.
    """
    pairs = [
        (size, step)
        for size, step in zip(tensor.shape, tensor.stride(), strict=True)
        if size > 1
    ]
    if any(step == 0 for _, step in pairs):
        return True
    places = [0]
    for size, step in pairs:
        places = [place + k * step for place in places for k in range(size)]
    return len(set(places)) == len(places)


def has_history(tensor: torch.Tensor) -> bool:
    """Return whether torch can differentiate through a tensor.

    It cannot through one of several views made at once, after a write to their base: then every
    op refuses it, also a copy to the host, which on the CPU is none.
    """
    try:
        return tensor.is_leaf or tensor.grad_fn is not None
    except RuntimeError:
        return False


def is_leaf(tensor: torch.Tensor) -> bool:
    """Return whether autograd begins at a tensor; False where torch refuses to say.

    It refuses for one of several views made at once, after a write to their base.
    """
    try:
        return tensor.is_leaf
    except RuntimeError:
        return False


def is_far_from(tensor: torch.Tensor, numbers: torch.Tensor) -> bool:
    """Return whether no element is so near to its number that rounding could decide."""
    return bool(((tensor.detach().double() - numbers).abs() > _MARGIN).all())


# ------------------------------------------------------------------ views


def view(desk: Desk) -> str | None:
    """Return an expression for a view of a tensor."""
    name = desk.name(lambda t: t.numel() > 1 and t.dim() > 0)
    if name is None:
        return None
    t = desk.tensors[name]
    dim = desk.choose(range(t.dim()))
    size = t.shape[dim]
    options = [
        _slice(desk, name, dim, size),
        _slice(desk, name, dim, size),
        f"{name}.select({dim}, {desk.choose(range(size))})",
        f"{name}.transpose(0, {t.dim() - 1})",
        f"{name}.movedim({dim}, -1)",
        f"{name}.squeeze()",
        f"{name}.detach()",
        f"{name}.flatten()",
        f"{name}.chunk(2, {dim})[0]",
        f"{name}.unbind({dim})[-1]",
        f"{name}.narrow({dim}, {size // 2}, {size - size // 2})",
    ]
    if t.is_contiguous():
        options += [f"{name}.view(-1)", f"{name}.view({size}, -1)"]
        half = t.numel() // 2
        options += [
            f"{name}.as_strided(({half},), (1,), {t.storage_offset() + half})",
            f"{name}.as_strided((2, {half}), (1, 1))",
        ]
    if t.dim() < MAX_DIMENSIONS:
        options += [f"{name}.unsqueeze({dim})", f"{name}[None]"]
        options.append(f"{name}.unfold({dim}, {min(2, size)}, 1)")
        options.append(f"{name}.unsqueeze(0).expand(2, {', '.join(['-1'] * t.dim())})")
    if t.dim() >= _MATRIX:
        options += [f"{name}.diagonal()", f"{name}.mT", f"{name}[..., 0]"]
    return str(desk.choose(options))


def _slice(desk: Desk, name: str, dim: int, size: int) -> str:
    first = desk.choose(range(size))
    last = desk.choose(range(first + 1, size + 1))
    step = desk.choose((1, 1, 2))
    text = f"{first}:{last}" + (f":{step}" if step > 1 else "")
    return f"{name}[{':, ' * dim}{text}]"


# ------------------------------------------------------------------ writes


def write(desk: Desk) -> str | None:
    """Return a statement that writes to a tensor of floats in place, seldom to a parameter."""
    also_parameters = desk.choose((False, False, False, True))
    name = desk.name(
        lambda t: (
            t.is_floating_point()
            and is_written_alike(t)
            and (also_parameters or not (is_leaf(t) and t.requires_grad))
        )
    )
    other = desk.floats()
    if name is None or other is None:
        return None
    t = desk.tensors[name]
    source = desk.apart(other, name)
    options = [
        f"{name}.add_({desk.choose((1, 0.5, -2.0))})",
        f"{name}.mul_({desk.choose((0.5, -1, 0.75))})",
        f"{name}.fill_({desk.choose((0.0, 3))})",
        f"{name}.tanh_()",
        f"{name}.clamp_(-1, 1)",
        f"{name}.zero_()",
        f"{name}.neg_()",
        f"{name}.data.mul_(0.5)",
        f"{name} += 0.25",
        f"{name}.sub_({name}.clone().mean())",
        f"{name}.copy_(torch.full((), 2.0))",
        f"{name}.add_({source}.reshape(-1)[0])",
        f"torch._foreach_mul_([{name}], 0.5)",
        f"torch.sin({name}.clone(), out={name})",
    ]
    if t.dim():
        options += [
            f"{name}[0] = 0.5",
            f"{name}[..., -1] = {name}[..., 0].clone()",
            f"{name}.index_fill_(0, index({t.shape[0] - 1}), 1.5)",
            f"{name}.index_add_(0, index(0), {name}[:1].clone())",
            f"{name}[{name}.detach().clone() > 0.33] = 0.25",
        ]
    fits = desk.tensors[other].numel() >= t.numel()
    if fits:
        part = f"{source}.reshape(-1)[:{t.numel()}].reshape({tuple(t.shape)})"
        options += [
            f"{name}.copy_({part})",
            f"{name}.lerp_({part}.to({t.dtype}), 0.5)",
            f"{name}.addcmul_({part}.to({t.dtype}), {part}.to({t.dtype}).sin(), value=0.5)",
        ]
    return str(desk.choose(options))


def write_list(desk: Desk) -> str | None:
    """Return a statement that writes to several views of a tensor at once.

    Some share elements, and some had equal values before on storages that were apart.
    """
    name = desk.name(
        lambda t: (
            t.is_floating_point()
            and t.dim() > 0
            and t.shape[0] > 1
            and is_written_alike(t)
            and not t.requires_grad
        )
    )
    other = desk.floats()
    if name is None or other is None:
        return None
    first, last = desk.choose(((":1", "1:2"), (":-1", "1:"), (":1", "-1:")))
    one, two = f"one[{first}]", f"two[{last}]"
    body = desk.choose(
        (
            f"torch._foreach_add_([{one}, {two}], 1)",
            f"torch._foreach_mul_([{one}, {two}], [2, 0.5])",
            f"torch._foreach_mul_([{one}, {two}], [{two}.clone(), {one}.clone()])",
            f"torch._foreach_copy_([{one}, {two}], [{two}.clone(), {one}.clone()])",
            f"torch._foreach_sub_([{one}, {two}], [{two}, {one}], alpha=0.5)",
            f"torch._foreach_mul_([one.view(-1)[0], {two}], two.view(-1)[0])",
            f"torch._foreach_add_([{one}, {two}, {name}], {desk.apart(other, name)}.detach().sum().to(one))",
            f"torch._foreach_lerp_([{one}, {two}], [{two}.sin(), {one}.cos()], 0.5)",
            f"torch._foreach_addcmul_([{one}, {two}], [{two}.sin(), {one}], [{one}, {one}], 0.5)",
            f"torch._foreach_add([{one}, {two}], 1); torch._foreach_add_([{one}, {two}], 1)",
        )
    )
    pairs = desk.choose(
        (
            f"(({name}, {name}),)",
            f"(({name}.clone(), {name}.clone()), ({name}, {name}))",
            f"(({name} * 1, {name} * 1), ({name}.mul_(1), {name}))",
            f"([{name} * 2, {name} * 2], [{name} * 2] * 2, [{name}] * 2)",
        )
    )
    return f"for one, two in {pairs}:\n    {body}"


def replace(desk: Desk) -> str | None:
    """Return a statement that gives a tensor other storage or another size, or an `out=`."""
    name = desk.name(
        lambda t: t.is_floating_point() and is_written_alike(t) and not t.requires_grad
    )
    if name is None:
        return None
    t = desk.tensors[name]
    other = desk.name(lambda o: o.dtype == t.dtype and not o.requires_grad)
    like = desk.name(lambda o: o.shape == t.shape and o.dtype == t.dtype)
    options = [
        f"{name}.resize_({max(1, t.numel() // 2)})",
        f"{name}.data = {name}.data.clone()",
    ]
    if other is not None:
        options += [
            f"{name}.data = {other}",
            f"{name}.data = {other}.detach()",
            f"{name}.set_({other})",
            f"{name}.set_({other}.untyped_storage(), 1, (2,), (1,))",
            f"{name}.swap_dims_(0, -1)" if t.dim() else f"{name}.unsqueeze_(0)",
        ]
    if like is not None:
        options += [
            f"torch.add({like}.detach(), 0.5, out={name})",
            f"torch.mul({like}.detach(), {like}.detach(), out={name})",
            f"torch.cumsum({like}.detach().view({tuple(t.shape)}), 0, out={name})"
            if t.dim()
            else f"torch.exp({like}.detach(), out={name})",
        ]
    return str(desk.choose(options))


# ------------------------------------------------------------------ new tensors


def compute(desk: Desk) -> str | None:
    """Return an expression for a new tensor of floats."""
    name, other = desk.floats(), desk.floats()
    if name is None or other is None:
        return None
    t, o = desk.tensors[name], desk.tensors[other]
    options = [
        f"{name} * {desk.choose((0.5, -1.0, 2))}",
        f"{name} + {other}.reshape(-1)[0]",
        f"{name}.sin() + {desk.choose((1, 0.5))}",
        f"{name}.clone()",
        f"{name}.contiguous()",
        f"torch.where({name} > 0, {name}, {name} / 2)",
        f"{name}.sum(){desk.choose(('', ' / 8'))}",
        f"{name}.sigmoid()",
        f"{name}.double()",
        f"{name}.float()",
        f"torch.zeros_like({name}) + {name}.abs().mean()",
    ]
    if t.dim():
        options += [
            f"{name}.flip(0)",
            f"{name}.roll(1, 0)",
            f"{name}.cumsum(0) / 2",
            f"{name}.softmax(-1)",
            f"{name}.mean(-1, keepdim=True)",
            f"{name}.amax(0)",
            f"{name}.sort(-1).values",
            f"torch.nn.functional.pad({name}, (1, 0))",
            f"torch.cat([{name}, {name} * 0.5])",
            f"torch.stack([{name}, {name}.sin()]).mean(0)",
            f"{name}.index_select(0, index({desk.choose(range(t.shape[0]))}, 0))",
            f"{name}.gather(0, torch.zeros_like({name}[:1], dtype=torch.long))",
            f"torch.nn.functional.layer_norm({name}, {name}.shape[-1:])",
        ]
    if t.dim() == _MATRIX:
        options += [
            f"({name} @ {name}.t()).tanh()",
            f"{name}.tril()",
            f"torch.einsum('ij,kj->ik', {name}, {name}).tanh()",
        ]
    if t.shape == o.shape:
        options += [
            f"({name} * {other}).tanh()",
            f"torch.maximum({name}, {other})",
            f"{name} - {other}",
        ]
    return str(desk.choose(options))


def convert(desk: Desk) -> str | None:
    """Return an expression for a tensor of integers, truth values, or floats from these."""
    name = desk.name(lambda t: bool(t.numel()))
    if name is None:
        return None
    t = desk.tensors[name]
    if not t.is_floating_point():
        options = [
            f"{name}.float() / 4",
            f"{name}.double() - 1",
            f"{name}.to(torch.int32)",
        ]
        if t.dtype != torch.bool:
            options += [
                f"{name} * 2 + 1",
                f"{name} // 2",
                f"{name} % 3",
                f"{name}.sum()",
            ]
            options += [f"{name} & 3", f"{name}.clamp(0, 2)"]
        return str(desk.choose(options))
    options = []
    for number in (0.1, -0.6):
        if is_far_from(t, torch.tensor(number)):
            options += [
                f"({name} > {number})",
                f"({name} > {number}).long().cumsum(-1)",
            ]
    scaled = t.detach().double() * 4
    if is_far_from(scaled, scaled.round()) and bool((scaled.abs() < _TOO_LARGE).all()):
        options.append(f"({name} * 4).to({desk.choose((torch.int64, torch.int16))})")
    # Raises, in every mode.
    options.append(f"{name}.to(torch.int32) {desk.choose(('// 0', '% 0', '** -1'))}")
    return str(desk.choose(options))


def draw(desk: Desk) -> str | None:
    """Return an expression that draws random numbers: mostly on the host, alike for all devices.

    What the device draws is no number of the CPU's. It is small, so that conditions stay as
    they are, and such programs are compared between modes.
    """
    name = desk.floats()
    if name is None:
        return None
    t = desk.tensors[name]
    number = desk.choose(range(5))
    shape = ", ".join(map(str, t.shape))
    host = f"{name} + 0.1 * noise({number}, {shape}).to({t.dtype})"
    device = f"{name} + 0.001 * torch.rand_like({name})"
    return str(desk.choose((host, host, host, device)))


# ------------------------------------------------------------------ gradients


def leaf(desk: Desk) -> str | None:
    """Return an expression for a parameter."""
    number, shape = desk.choose(range(5)), desk.choose(("3, 4", "4", "2, 3, 2", ""))
    return f"noise({number}, {shape}).requires_grad_()"


def backward(desk: Desk) -> str | None:
    """Return a statement that adds to the gradients of parameters."""
    name = desk.name(lambda t: t.requires_grad and not is_leaf(t))
    if name is None:
        return None
    keep = desk.choose(("", "retain_graph=True"))
    return f"({name} * {name}.detach().cos()).sum().backward({keep})"


def update(desk: Desk) -> str | None:
    """Return statements that change a parameter as an optimizer does."""
    name = desk.name(lambda t: is_leaf(t) and t.grad is not None)
    if name is None:
        return None
    options = [
        f"with torch.no_grad():\n    {name}.sub_({name}.grad, alpha=0.1)",
        f"with torch.no_grad():\n    {name} -= 0.5 * {name}.grad.tanh()",
        f"{name}.grad = None",
        f"{name}.grad.zero_()",
    ]
    return str(desk.choose(options))


# ------------------------------------------------------------------ control flow, looks


def branch(desk: Desk) -> str | None:
    """Return a conditional whose condition reads a tensor, far from where it turns."""
    name = desk.floats()
    if name is None or not desk.tensors[name].numel():
        return None
    if not is_far_from(desk.tensors[name].mean(), torch.tensor(0.25)):
        return None
    read = desk.choose((".item()", ".cpu()", ".tolist()"))
    return f"if {name}.mean(){read} > 0.25:\n    {name} = {name} * 0.5\nelse:\n    {name} = {name} + 0.5"


def loop(desk: Desk) -> str | None:
    """Return a loop that changes a tensor in place, with or without a barrier in each round."""
    name = desk.name(lambda t: t.is_floating_point() and is_written_alike(t))
    if name is None:
        return None
    body = desk.choose(
        (f"{name}.mul_(0.5).add_(step)", f"{name} = {name} * 0.5 + step")
    )
    end = desk.choose(("", "\n    mark_step()", f"\n    show({name})"))
    return f"for step in range({desk.choose((2, 3))}):\n    {body}{end}"


def forget(desk: Desk) -> str | None:
    """Return a statement that deletes a tensor."""
    if len(desk.tensors) < _FEWEST_TENSORS:
        return None
    return f"del {desk.choose(list(desk.tensors))}"


def look(desk: Desk) -> str | None:
    """Return a statement that looks at a tensor, or at what is pending."""
    name = desk.name(lambda _: True)
    if name is None:
        return None
    options = (
        f"show({name})",
        f"peek({name})",
        "graph()",
        f"keep({name})",
        "new_cell()",
    )
    return str(desk.choose(options))


def barrier(desk: Desk) -> str | None:
    """Return a statement that ends a step, or reads a tensor."""
    name = desk.name(has_history)
    if name is None:
        return "mark_step()"
    options = [
        "mark_step()",
        "mark_step()",
        f"{name}.cpu()",
        f"{name}.detach().numpy()",
    ]
    if desk.tensors[name].dim() == 0:
        options.append(f"{name}.item()")
    return str(desk.choose(options))
