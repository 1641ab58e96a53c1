"""What LBFGS keeps: the one optimizer of torch that calls the user's closure in the middle of its step.

Its state is one for all parameters, under the first of them and in lists; while a step runs, most
of it is in the step's variables alone.
"""

from __future__ import annotations

import inspect
import sys
from typing import TYPE_CHECKING, Any

import torch

from lazygraph.snapshot import OF_LBFGS, Name
from lazyrt.frontend.namespaces import locals_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import FrameType

# torch wraps the method once more when the first LBFGS is made.
_STEP = inspect.unwrap(torch.optim.LBFGS.step).__code__


def running(depth: int) -> Iterator[dict[str, Any]]:
    """Yield copies of the variables of steps that are running, `self` among them.

    Args:
        depth: Frames to skip.
    """
    frame: FrameType | None = sys._getframe(depth)
    while frame is not None:
        if frame.f_code is _STEP:
            yield locals_of(frame)
        frame = frame.f_back


def kept_by(
    name: str, optimizer: torch.optim.LBFGS, variables: Mapping[str, Any]
) -> Iterator[tuple[Name, Any]]:
    """Yield the tensors of an LBFGS with their names, such as `optimizer.old_dirs[2]`.

    Args:
        name: What the user calls the optimizer.
        optimizer: It.
        variables: Those of its step, empty where none is running.
    """
    states = list(optimizer.state.values())
    for members in (*states, variables):
        for key, value in list(members.items()):
            if isinstance(value, torch.Tensor):
                yield Name(f"{name}.{key}", OF_LBFGS), value
            elif isinstance(value, list):
                for number, item in enumerate(value):
                    if isinstance(item, torch.Tensor):
                        yield Name(f"{name}.{key}[{number}]", OF_LBFGS), item
