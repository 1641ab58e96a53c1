"""Families of models train on the device as on the CPU: losses and every gradient.

`python -m benchmarks families` prints what the tests here assert, for more families.
"""

from collections import Counter

import pytest

from benchmarks.families import TOLERANCE
from benchmarks.family_run import STEPS, difference, observe, train
from benchmarks.family_table import FAMILIES
from lazyrt.config import config

IN_THE_PLAIN_SUITE = {"lstm"}
# Another family records each op that these record.
ONLY_IN_THE_BENCHMARK = {
    "albert", "bart", "dinov2", "gemma2", "gpt-neox", "hubert", "mamba2", "mistral", "modernbert",
    "phi3", "poolformer", "regnet", "roberta", "swin", "vit-mae",
}  # fmt: skip
CASES = [
    pytest.param(
        family,
        id=family.name,
        marks=() if family.name in IN_THE_PLAIN_SUITE else pytest.mark.slow,
    )
    for family in FAMILIES
    if family.name not in ONLY_IN_THE_BENCHMARK
]


def cuts_by_line(observed, known):
    """Count the cuts by cause and by the expected text that their line has."""
    found: Counter[tuple[str, str]] = Counter()
    for cut, count in observed.cuts.items():
        code = next((k.code for k in known if k.code in cut.place.code), cut.place.code)
        found[cut.cause, code] += count
    return found


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize("family", CASES)
def test_a_family_trains_as_on_the_cpu(family):
    expected = train(family, "cpu")

    with config.scoped(compile_tier="fast"):
        actual, observed = observe(family)

    apart = difference(actual, expected)
    assert apart.loss <= 1e-4
    assert apart.gradient <= TOLERANCE, apart.name
    assert cuts_by_line(observed, family.cuts) == {
        (cut.cause, cut.code): cut.per_step * STEPS for cut in family.cuts
    }
    assert len(observed.compiles) == family.compiles, observed.compiles
    assert all(observed.compiles)
    assert len(observed.fallbacks) == STEPS * family.fallbacks, observed.fallbacks


def test_the_goals_name_sixteen_families():
    named = [
        "bert",
        "distilbert",
        "gpt2",
        "llama",
        "qwen3",
        "t5",
        "vit",
        "resnet",
        "convnext",
        "clip",
        "whisper",
        "wav2vec2",
        "mamba",
        "mixtral",
        "lstm",
        "unet",
    ]

    assert set(named) <= {case.id for case in CASES}
    assert len({family.name for family in FAMILIES} - ONLY_IN_THE_BENCHMARK) == len(
        CASES
    )
    assert len({family.name for family in FAMILIES}) == len(FAMILIES)
