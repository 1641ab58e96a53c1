"""What goes on until it is closed: each such thing closes in `with`, and twice is harmless."""

import pytest
from torch import nn

import lazyrt
from lazyrt.observe import events
from lazyrt.observe.events import Closing

MAKERS = {
    "subscription": lambda: lazyrt.subscribe(lambda event: None, events.StepFinished),
    "barrier hook": lambda: lazyrt.on_barrier(lambda event: None),
    "background flush": lambda: lazyrt.background_flush(60),
    "tracing watch": lazyrt.watch_tracing,
    "pause watch": lambda: lazyrt.watch_pauses(lambda pause: None),
    "eager module": lambda: lazyrt.eager_module(nn.Linear(1, 1)),
}


@pytest.mark.parametrize("kind", MAKERS)
def test_each_of_them_closes_in_with_also_on_an_error(kind, monkeypatch):
    thing: Closing = MAKERS[kind]()
    closed = []
    close = thing.close

    def note_and_close():
        closed.append(1)
        close()

    monkeypatch.setattr(thing, "close", note_and_close)
    with pytest.raises(ValueError, match="mine"), thing as entered:  # noqa: PT012
        assert entered is thing
        raise ValueError("mine")

    assert closed == [1]
    assert isinstance(thing, Closing)
    close()
