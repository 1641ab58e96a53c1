"""What recording learned of ops is read by the next process, and nothing wrong is believed."""

import pytest
import torch

import lazyrt
from lazyrt.config import config
from lazyrt.execution import cache
from lazyrt.frontend import infer
from lazyrt.lowering import registry
from lazyrt.lowering.spec import Spec, forget_specs
from tests.harness import DEVICE, cold_start, run_python, start_python

TRAINING = """
import torch, lazyrt
from lazyrt.frontend import infer
from lazyrt.lowering.spec import Spec
asked = []
types, check = infer._run_meta, Spec.check
infer._run_meta = lambda func, args: asked.append(func) or types(func, args)
Spec.check = lambda self: asked.append(self) or check(self)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.GELU(), torch.nn.Linear(5, 1))
model.to("lazyrt")
optimizer = torch.optim.AdamW(model.parameters())
loss = model(torch.ones(2, 4, device="lazyrt")).std(0, correction=0).sum()
loss.backward()
optimizer.step()
print(loss.item(), sum(p.sum().item() for p in model.parameters()), "asked", len(asked))
"""


@pytest.fixture
def folder(tmp_path):
    cold_start()
    forget_specs()  # what a test before has made is asked nothing
    config.cache_dir = tmp_path
    return tmp_path


@pytest.fixture
def asked(monkeypatch):
    """What torch's meta kernels and the abstract checks of rules are asked."""
    found = []
    types, check = infer._run_meta, Spec.check

    def noted_types(func, args):
        found.append(str(func))
        return types(func, args)

    def noted_check(spec):
        found.append(f"rule of {spec.name}")
        return check(spec)

    monkeypatch.setattr(infer, "_run_meta", noted_types)
    monkeypatch.setattr(Spec, "check", noted_check)
    return found


def work():
    return (torch.arange(6.0).to(DEVICE).reshape(2, 3).tanh() * 2.5).tolist()


def anew():
    """Do the work as a process would that knows nothing of its ops."""
    cold_start()
    cache.forget_answers()
    forget_specs()
    return work()


def file_of(folder):
    (found,) = folder.rglob("learned-*")
    return found


@pytest.mark.slow
def test_two_processes_write_one_file_and_a_third_asks_only_what_torch_warns_of(
    tmp_path,
):
    programs = [
        start_python(TRAINING, LAZYRT_CACHE_DIR=str(tmp_path)) for _ in range(2)
    ]
    first, second = (
        program.communicate(timeout=300)[0].strip().split(" asked ")
        for program in programs
    )
    lines = file_of(tmp_path).read_text().splitlines()
    third = run_python(TRAINING, LAZYRT_CACHE_DIR=str(tmp_path)).split(" asked ")

    assert all(len(line.split("\t")) == 3 for line in lines)
    assert first[0] == second[0] == third[0]
    assert max(int(first[1]), int(second[1])) > 50
    assert int(third[1]) <= 1


@pytest.mark.lazy_only("is about what a step's compile leaves on disk")
def test_what_was_learned_is_neither_asked_again_nor_written_again(folder, asked):
    expected = work()
    text = file_of(folder).read_text()
    asked.clear()

    assert anew() == expected
    assert asked == []
    assert file_of(folder).read_text() == text


@pytest.mark.lazy_only("is about what a step's compile leaves on disk")
@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text.replace("[2,3]", "[3,2]"),
        lambda text: text[: len(text) // 2],
        lambda text: text.replace("\t", " "),
        lambda text: "\0" * len(text),
        lambda text: text.replace("float32", "nonsense"),
    ],
    ids=["other shapes", "cut", "no columns", "zeros", "no dtype"],
)
def test_a_damaged_line_is_passed_over_and_asked_again(folder, asked, damage):
    expected = work()
    path = file_of(folder)
    path.write_text(damage(path.read_text()))
    asked.clear()

    assert anew() == expected
    assert asked
    asked.clear()
    assert anew() == expected


@pytest.mark.lazy_only("is about what a step's compile leaves on disk")
def test_a_file_of_another_version_is_not_read(folder, asked, monkeypatch):
    expected = work()
    monkeypatch.setattr(cache, "_learned_name", lambda: "learned-other.txt")
    asked.clear()

    assert anew() == expected
    assert asked


@pytest.mark.lazy_only("is about what a step's compile leaves on disk")
def test_with_a_rule_of_the_programs_own_each_rule_is_checked(
    folder, asked, monkeypatch
):
    work()
    monkeypatch.setitem(registry._given, "aten.frexp.Tensor", 1)
    asked.clear()

    anew()

    assert "rule of aten.tanh.default" in asked


def test_ops_of_other_packages_and_objects_without_a_value_are_asked_each_time(folder):
    questions = [
        cache.Question("mine.op.default", 1),
        cache.Question("aten.op.default", object()),
    ]
    for question in questions:
        question.learn(1)
    cache.store_answers()

    assert [question.answer() for question in questions] == [None, None]
    assert not list(folder.rglob("learned-*"))


def test_without_a_folder_nothing_is_kept(folder):
    config.cache_dir = None
    question = cache.Question("aten.op.default", 1)
    question.learn(1)
    cache.store_answers()

    assert question.answer() is None


def test_clearing_the_disk_clears_what_was_learned(folder):
    question = cache.Question("aten.op.default", 1)
    question.learn([2])
    cache.store_answers()
    assert question.answer() == [2]

    lazyrt.clear_caches(disk=True)

    assert question.answer() is None
    assert not list(folder.rglob("learned-*"))
