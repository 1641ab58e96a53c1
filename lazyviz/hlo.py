"""The former name of `lazygraph`, for one release."""

from __future__ import annotations

import warnings

from lazygraph import *  # noqa: F403 - all that it hands on

warnings.warn(
    "lazyviz.hlo is now the package lazygraph; the old name goes in the next release. "
    "Write `import lazygraph`.",
    DeprecationWarning,
    stacklevel=2,
)
