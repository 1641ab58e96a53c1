"""See a lazy tensor runtime at work: `%load_ext lazyviz` in IPython or Jupyter.

Importing this package loads neither torch nor jax nor ipywidgets; the parts that need
them are loaded when they are used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

__all__ = ["__version__", "load_ipython_extension", "unload_ipython_extension"]

__version__ = "0.1.0.dev0"


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Hook lazyviz into an IPython shell; `%load_ext lazyviz` calls this."""
    from lazyviz import extension

    extension.load(shell)


def unload_ipython_extension(shell: InteractiveShell) -> None:
    """Leave the shell as loading found it; `%unload_ext lazyviz` calls this."""
    from lazyviz import extension

    extension.unload(shell)
