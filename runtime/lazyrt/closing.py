"""What everything has that goes on until it is closed: listeners, hooks, background threads."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import TracebackType


class Closing(ABC):
    """Something to close, or to use in `with`, which closes it."""

    @abstractmethod
    def close(self) -> None:
        """End it; closing twice is harmless."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
