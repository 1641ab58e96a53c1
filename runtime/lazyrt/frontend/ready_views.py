"""Views of ready data, for looking at them: no input is used, and only what is shown moves.

Where torch can read the device's memory, as on the CPU, the view is taken there, in place.
Elsewhere the device takes it, and what is copied to the host is the part asked for, not all that
it is a part of.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from lazyrt import jax_compat
from lazyrt.execution import compiler, memory, transfer
from lazyrt.frontend.buffers import State, View
from lazyrt.frontend.infer import call_arguments
from lazyrt.frontend.record import complete
from lazyrt.ir.live import Buffer, lock
from lazyrt.ir.node import Leaf, Node, Provenance, Value
from lazyrt.lowering.spec import SpecFailure, spec_of

if TYPE_CHECKING:
    import torch

    from lazyrt.ir.live import Type
    from lazyrt.observe.events import Site

# Bytes; what is smaller is copied sooner than a program is compiled for it.
_LARGE = 2**20
_NOBODY = Provenance(None, "")


class Chain(NamedTuple):
    """A ready base, its data, and the views to take of it, the innermost first."""

    base: Buffer
    data: Any
    views: list[View]

    @property
    def dtype(self) -> torch.dtype:
        """Type of the base's elements."""
        return self.base.type[1]


def chain_to(view: View) -> tuple[Buffer, list[View]]:
    """Return the base of a view, and the views on the way to it, the innermost first."""
    views: list[View] = []
    state: State = view
    while isinstance(state, View):
        views.append(state)
        state = state.parent
    return state, views[::-1]


def to_look_at(chain: Chain) -> Any:
    """Return an array with a view's elements, to be read and not kept."""
    memory.wait_for(chain.data)
    on_device = _by_the_device(chain)
    if on_device is not None:
        return on_device
    return transfer.as_array(_on_host(chain))


def to_host(chain: Chain, site: Site | None) -> torch.Tensor:
    """Return a view's elements as a new CPU tensor."""
    memory.wait_for(chain.data)
    on_device = _by_the_device(chain)
    if on_device is not None:
        return transfer.to_host(on_device, chain.views[-1].type[1], site)
    return transfer.own_copy(_on_host(chain), site)


def same_views(chain: Chain, base: Buffer) -> View:
    """Return the state of a tensor that shows the same of another buffer."""
    state: State = base
    for link in chain.views:
        view = View(state, link.op, link.args, Value(None, 0, *link.type))
        view.offset = link.offset
        state = view
    assert isinstance(state, View)
    return state


def is_most_of_its_base(chain: Chain) -> bool:
    """Return whether keeping a large base for a view costs no more than two copies of the view."""
    base, view = (
        math.prod(shape) * dtype.itemsize
        for shape, dtype, _ in (chain.base.type, chain.views[-1].type)
    )
    return base >= _LARGE and 2 * view >= base


def _by_the_device(chain: Chain) -> Any:
    """Return the view as the device takes it; None where the host does so sooner, or must."""
    if chain.data.nbytes < _LARGE or transfer.lends(chain.dtype):
        return None
    data, type_ = chain.data, chain.base.type
    with lock, jax_compat.scope():
        for link in chain.views:
            node = _node_of(link, type_)
            if node is None:
                return None
            executable = compiler.compile_spec(node.spec, "peek", node)
            with memory.explained(link.op.name):
                data = jax_compat.dispatcher(executable)(data)[0]
            type_ = link.type
    return data


def _node_of(link: View, parent: Type) -> Node | None:
    """Return a view's op on its parent's type, in no graph; None if the device has no such op."""
    args = complete(link.op, (Leaf("data", 0, *parent[:2]), *link.args))
    node = Node(-1, link.op, args, _NOBODY)
    node.outputs = (Value(node, 0, *link.type),)
    node.spec = spec_of(node)
    try:
        node.spec.check()
    except SpecFailure:
        return None
    return node if len(node.operands) == 1 else None


def _on_host(chain: Chain) -> torch.Tensor:
    host = transfer.borrowed(chain.data, chain.dtype)
    for link in chain.views:
        host = _shown(host, link)
    return host


# View ops whose result only has another shape; their strides are those of the device.
_RESHAPES = frozenset(("aten.view.default", "aten._reshape_alias.default"))
# View ops that go by the layout in memory: the copy lists elements in logical order.
_BY_LAYOUT = frozenset(
    ("aten.as_strided.default", "aten.view.dtype", "aten.view_as_complex.default")
)


def _shown(host: torch.Tensor, link: View) -> torch.Tensor:
    """Apply one view op to a host copy, whose layout is not the one on the device."""
    if link.op.name in _RESHAPES:
        return host.reshape(link.args[0])
    args = [list(arg) if arg.__class__ is tuple else arg for arg in link.args]
    host = host.contiguous() if link.op.name in _BY_LAYOUT else host
    positional, keywords = call_arguments(link.op.func, [host, *args])
    return link.op.func(*positional, **keywords).resolve_conj().resolve_neg()  # type: ignore[no-any-return]
