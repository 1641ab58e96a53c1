"""The former name of lazygraph."""

import importlib
import sys

import pytest

import lazygraph


def test_the_former_name_of_the_package_of_programs_still_works_and_names_the_new_one(
    monkeypatch,
):
    monkeypatch.delitem(sys.modules, "lazyviz.hlo", raising=False)
    with pytest.warns(DeprecationWarning, match="Write `import lazygraph`"):
        former = importlib.import_module("lazyviz.hlo")

    assert {name for name in lazygraph.__all__ if hasattr(former, name)} == set(
        lazygraph.__all__
    )
