"""What everything has that goes on until it is closed: listeners, hooks, background threads."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self


class Closing(ABC):
    """Something to close, or to use in `with`, which closes it."""

    @abstractmethod
    def close(self) -> None:
        """End it; closing twice is harmless."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
