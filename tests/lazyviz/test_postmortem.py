import gc
import types
import weakref

from lazyviz.shell import tracebacks
from tests.lazyviz.fakes import fake_tensor


def stand_in(tensor):
    return "stand-in"


def caught(function, *args):
    try:
        function(*args)
    except BaseException as error:  # noqa: BLE001
        return error
    raise AssertionError("nothing was raised")


def frame_of(error, name):
    traceback = error.__traceback__
    while traceback.tb_frame.f_code.co_name != name:
        traceback = traceback.tb_next
    return traceback.tb_frame


def test_locals_of_dead_frames_become_stand_ins():
    def fails():
        hidden = fake_tensor(1.0)  # noqa: F841
        other = 5
        raise ValueError(other)

    error = caught(fails)
    count = tracebacks.let_go(error, stand_in)

    assert count == 1
    assert frame_of(error, "fails").f_locals == {"hidden": "stand-in", "other": 5}


def test_the_tensor_itself_is_freed():
    def fails():
        hidden = fake_tensor(1.0)
        refs.append(weakref.ref(hidden))
        pair = [hidden, (hidden, 1)]  # noqa: F841
        raise ValueError

    refs: list[weakref.ref[object]] = []
    error = caught(fails)
    assert refs[0]() is not None
    gc.disable()
    try:
        tracebacks.let_go(error, stand_in)
        assert refs[0]() is None
    finally:
        gc.enable()

    local = frame_of(error, "fails").f_locals
    assert local["pair"] == ["stand-in", ("stand-in", 1)]


def test_a_list_that_somebody_else_holds_is_not_changed():
    tensor = fake_tensor(1.0)
    shared = [tensor]

    def fails(items):
        raise ValueError

    error = caught(fails, shared)
    tracebacks.let_go(error, stand_in)

    assert shared[0] is tensor
    assert frame_of(error, "fails").f_locals["items"] == ["stand-in"]


def test_one_tensor_in_two_frames_has_one_stand_in():
    made = []

    def make(tensor):
        made.append(object())
        return made[-1]

    def inner(x):
        raise ValueError

    def outer():
        x = fake_tensor(1.0)
        inner(x)

    error = caught(outer)
    assert tracebacks.let_go(error, make) == 1
    assert frame_of(error, "outer").f_locals["x"] is made[0]
    assert frame_of(error, "inner").f_locals["x"] is made[0]


def test_a_namespace_at_module_level_is_left_alone():
    namespace = {"t": fake_tensor(1.0)}
    error = caught(exec, "raise ValueError", namespace)

    tracebacks.let_go(error, stand_in)

    assert namespace["t"] is not None
    assert namespace["t"] != "stand-in"


def test_a_variable_of_a_living_closure_is_left_alone():
    def maker():
        state = fake_tensor(1.0)

        def step(*, fail):
            nonlocal state
            if fail:
                raise ValueError
            return state

        return step

    step = maker()
    error = caught(lambda: step(fail=True))
    tracebacks.let_go(error, stand_in)

    assert step(fail=False) != "stand-in"


def test_running_frames_are_left_alone():
    tensor = fake_tensor(1.0)
    try:
        raise ValueError  # noqa: TRY301
    except ValueError as error:
        tracebacks.let_go(error, stand_in)

    assert not isinstance(tensor, str)


def test_a_suspended_generator_is_left_alone():
    def generator():
        tensor = fake_tensor(1.0)
        try:
            raise ValueError  # noqa: TRY301
        except ValueError as error:
            yield error
        yield tensor

    running = generator()
    error = next(running)
    tracebacks.let_go(error, stand_in)

    assert not isinstance(next(running), str)


def test_a_finished_generator_is_cleared():
    def generator():
        tensor = fake_tensor(1.0)  # noqa: F841
        yield 1
        raise ValueError

    error = caught(list, generator())

    assert tracebacks.let_go(error, stand_in) == 1
    assert frame_of(error, "generator").f_locals["tensor"] == "stand-in"


def test_arguments_and_attributes_of_the_exception_are_replaced():
    error = ValueError("bad", fake_tensor(1.0))
    vars(error)["tensor"] = fake_tensor(2.0)
    missing = caught(getattr, fake_tensor(3.0), "misspelt")

    tracebacks.let_go(error, stand_in)
    tracebacks.let_go(missing, stand_in)

    assert error.args == ("bad", "stand-in")
    assert vars(error)["tensor"] == "stand-in"
    assert missing.obj == "stand-in"


def test_causes_contexts_and_groups_are_followed():
    def fails():
        t = fake_tensor(1.0)  # noqa: F841
        raise ValueError

    cause, member = caught(fails), caught(fails)
    error = ExceptionGroup("two", [member])
    error.__cause__ = cause

    assert tracebacks.let_go(error, stand_in) == 2
    assert frame_of(cause, "fails").f_locals["t"] == "stand-in"
    assert frame_of(member, "fails").f_locals["t"] == "stand-in"


def test_callers_that_the_traceback_no_longer_names_are_cleared():
    """An error told in other words, whose traceback was cut at the user's line."""

    def inner():
        raise KeyError("in torch's words")

    def kernel(tensor):
        try:
            inner()
        except KeyError:
            raise ValueError("in the words of the CPU") from None

    def fails():
        kernel(fake_tensor(1.0))

    error = caught(fails)
    assert error.__traceback__.tb_next is not None
    callers = error.__context__.__traceback__.tb_next.tb_frame.f_back
    error.__traceback__.tb_next.tb_next = None

    count = tracebacks.let_go(error, stand_in)

    assert count == 1
    assert callers.f_locals["tensor"] == "stand-in"


def test_a_chain_that_is_a_circle_ends():
    first, second = ValueError(), ValueError()
    first.__context__, second.__context__ = second, first

    assert tracebacks.let_go(first, stand_in) == 0


def test_class_bodies_and_builtin_frames_do_no_harm():
    source = "class A:\n    x = make()\n    raise ValueError"
    error = caught(exec, source, {"make": lambda: fake_tensor(1.0)})

    tracebacks.let_go(error, stand_in)

    assert isinstance(error.__traceback__, types.TracebackType)
