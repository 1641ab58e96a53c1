"""`lazyviz.diff` and `python -m lazyviz diff`."""

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
import torch

import lazyrt
import lazyviz
from lazygraph import HloError
from lazyviz.__main__ import main
from lazyviz.draw.diff_text import summary
from lazyviz.inspection import comparison, subjects
from tests.harness import cold_start
from tests.lazyviz.test_render_diff import AFTER, BEFORE


@pytest.fixture
def files(tmp_path):
    paths = tmp_path / "a.hlo", tmp_path / "b.hlo"
    for path, text in zip(paths, (BEFORE, AFTER), strict=True):
        path.write_text(text, "utf-8")
    return [str(path) for path in paths]


def test_texts_paths_and_graphs_can_be_compared(files):
    from_texts = lazyviz.diff(BEFORE, AFTER)
    from_files = lazyviz.diff(*files)
    mixed = lazyviz.diff(from_texts.diff.a, AFTER)

    assert from_texts.diff.cost == from_files.diff.cost == mixed.diff.cost == 3
    assert str(from_texts) == str(from_files) == str(mixed)


@pytest.mark.parametrize(
    ("thing", "message"),
    [([], "type list holds no graph"), ("", "the text is empty")],
)
def test_what_holds_no_graph_is_refused(thing, message):
    with pytest.raises(HloError, match=message):
        lazyviz.diff(thing, BEFORE)


def test_what_is_pending_under_two_tensors_can_be_compared():
    x = torch.ones(3).to("lazyrt")
    one, two = x * 2, x * 2 + 1
    before = lazyrt.pending_graph().fingerprint

    found = lazyviz.diff(one, two).diff

    assert [found.b.ops[node] for node in found.added] == ["aten.add.Tensor"]
    assert not found.removed
    assert lazyrt.pending_graph().fingerprint == before


def test_the_command_prints_text_and_tells_a_difference_by_its_status(files, capsys):
    assert main(["diff", *files]) == 1
    assert capsys.readouterr().out.startswith("before → after\n3 → 4 instructions")
    assert main(["diff", files[0], files[0]]) == 0


def test_the_command_writes_a_page(files, tmp_path, capsys):
    page = tmp_path / "page.html"

    assert main(["diff", *files, "--html", str(page)]) == 1
    assert "negate" in page.read_text("utf-8")
    assert str(page) in capsys.readouterr().out


def test_a_side_can_come_from_stdin(files, monkeypatch, capsys):
    stdin = io.TextIOWrapper(io.BytesIO(AFTER.encode()))
    monkeypatch.setattr(sys, "stdin", stdin)

    assert main(["diff", files[0], "-"]) == 1
    assert "3 → 4 instructions" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["diff", "-", "-"])


@pytest.mark.parametrize("command", ["diff", "read"])
def test_what_is_to_be_read_is_not_written_over(command, files, capsys):
    inputs = files if command == "diff" else files[:1]

    with pytest.raises(SystemExit) as ended:
        main([command, *inputs, "--html", files[0]])

    assert ended.value.code == 2
    assert "is what is to be read. Name another file" in capsys.readouterr().err
    assert Path(files[0]).read_text("utf-8") == BEFORE


def test_programs_of_one_name_are_called_after_their_files(tmp_path, capsys):
    paths = [tmp_path / name for name in ("one.hlo", "two.hlo", "sub/two.hlo")]
    paths[2].parent.mkdir()
    for path, op in zip(paths, ("tanh", "sine", "cosine"), strict=True):
        path.write_text(BEFORE.replace("before", "jit_main").replace("tanh", op))

    main(["diff", *map(str, paths[:2])])
    assert capsys.readouterr().out.startswith("one.hlo (jit_main) → two.hlo (jit_main)")
    assert str(lazyviz.diff(*paths[1:])).startswith(
        f"{paths[1]} (jit_main) → {paths[2]}"
    )


def test_a_terminal_gets_colours_and_nobody_else(files, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    def shown(out, *words):
        comparison.main([*files, *words], out)
        return out.getvalue()

    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    plain, coloured = shown(io.StringIO()), shown(Terminal())
    assert "\x1b" not in plain
    assert "\n \x1b[32m+ %n = f32[4] negate(%f)\x1b[0m\n" in coloured
    assert re.sub(r"\x1b\[\d+m", "", coloured) == plain
    assert shown(io.StringIO(), "--color", "always") == coloured
    monkeypatch.setenv("NO_COLOR", "1")
    assert shown(Terminal()) == plain


def test_programs_in_two_notations_are_said_to_be_so():
    stable = jax.jit(lambda x: (jnp.tanh(x), x)).lower(jnp.ones(4)).as_text()
    torch_ir = (
        "IR {\n  %0 = f32[4]{0} xla::device_data(), xla_shape=f32[4]{0}\n"
        "  %1 = f32[4]{0} aten::exp(%0), xla_shape=f32[4]{0}, ROOT=0\n}\n"
    )
    told = summary(lazyviz.diff(BEFORE, stable).diff)
    other = summary(lazyviz.diff(torch_ir, lazyrt.pending_graph(ones() + 1)).diff)

    assert told[1].startswith("the first is HLO and the second StableHLO, which call")
    assert "torch_xla's IR and the second lazyrt's IR" in other[1]
    assert "notation" not in str(lazyviz.diff(BEFORE, AFTER))


def test_what_jax_has_lowered_is_told_with_its_lines():
    def lowered(function):
        return jax.jit(function).lower(jnp.ones(4))

    shown = str(lazyviz.diff(lowered(jnp.tanh), lowered(lambda x: jnp.sin(x) + 1)))
    assert f"{Path(__file__).name}:" in shown
    with pytest.raises(HloError, match=r"what jax.jit\(f\).lower\(...\) returns"):
        lazyviz.diff(jax.jit(jnp.tanh), BEFORE)


def test_lines_of_a_notebook_that_jax_names_by_file_are_told_by_cell(shell):
    shell.run_line_magic("load_ext", "lazyviz")
    space = shell.user_ns
    space.update(jax=jax, x=jnp.ones(4), tanh=jnp.tanh, lazyviz=lazyviz)
    for op in ("2", "jax.lax.while_loop(lambda c: c.sum() < 3, lambda c: c * 2, x)"):
        cell = f"def f(x):\n    y = tanh(x)\n    return y * {op}\nlow = jax.jit(f).lower(x)"
        shell.run_cell(
            f"{cell}\nseen = globals().get('seen', []) + [low]", store_history=True
        )

    one, other = space["seen"]
    assert "at cell 2 line 3" in str(lazyviz.diff(one, other))
    optimised = lazyviz.diff(one.compile(), other.compile())
    for shown in (
        str(optimised), optimised.to_html(), lazyviz.diff(one, other).to_html(),
        str(lazyviz.minimise(other, lambda part: "while" in part.ops)),
        subjects.subject_of(other).program("stablehlo").listing(),
    ):  # fmt: skip
        assert "cell 2 line 3" in shown
        assert "ipython-input" not in shown


def ones():
    return torch.ones(4).to("lazyrt")


def test_a_path_may_look_like_a_line_of_a_program(files, tmp_path):
    odd = tmp_path / "lr=0.1.hlo"
    odd.write_text(AFTER)

    assert lazyviz.diff(files[0], str(odd)).diff.cost == 3
    with pytest.raises(HloError, match=r"is a folder\. Name a file in it"):
        lazyviz.diff(files[0], tmp_path)


def test_the_command_prints_json(files, capsys):
    main(["diff", *files, "--json"])
    data = json.loads(capsys.readouterr().out)

    assert data["cost"] == 3
    assert data["added"] == ["%n"]
    assert data["changed"] == [["%f", "%f"]]
    assert data["rewired"] == [["%e", "%e", 0]]
    assert data["hunks"][0]["site"] == "m.py:3"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1, column 1: the text is empty"),
        (BEFORE[:300], "ends within the computation"),
        (BEFORE + AFTER, "has 2 modules: before, after. Choose one"),
    ],
)
def test_the_command_names_file_and_place_of_an_error(
    files, text, message, tmp_path, capsys
):
    broken = tmp_path / "broken.hlo"
    broken.write_text(text, "utf-8")

    assert main(["diff", files[0], str(broken)]) == 2
    error = capsys.readouterr().err
    assert str(broken) in error
    assert message in error


def test_a_module_of_several_can_be_named(files, tmp_path, capsys):
    both = tmp_path / "both.hlo"
    both.write_text(BEFORE + AFTER, "utf-8")

    assert main(["diff", files[0], str(both), "--module-b", "before"]) == 0
    assert main(["diff", files[0], str(both), "--module-b", "1"]) == 1
    capsys.readouterr()


def test_whatever_holds_a_program_of_the_session_can_be_compared():
    """Names and fingerprints of graphs, records, pending tensors, inspections, jax's objects."""
    cold_start()
    x = torch.ones(2, 2).to("lazyrt")
    with lazyrt.step():
        kept = (x @ x).tanh()
    (record,) = [each for each in lazyrt.compiled_graphs() if each.nodes > 1]
    pending = (x @ x).tanh()
    lowered = jax.jit(lambda a: jnp.tanh(a @ a)).lower(jnp.ones((2, 2)))
    alike = [
        record, record.name, record.key.fingerprint, record.key.fingerprint[:10],
        record.snapshot, record.last_step, pending, [pending], lazyrt.pending_graph(pending),
        lazyrt.inspect(pending),
    ]  # fmt: skip
    from_jax = [lowered, lowered.compiler_ir(), lowered.as_text()]

    for one, *others in (alike, from_jax):
        for other in others:
            assert lazyviz.diff(one, other).diff.is_empty, type(other)
    assert lazyviz.diff(lowered.compile(), lowered).diff is not None
    assert lazyrt.is_pending(pending)
    assert not lazyrt.is_pending(kept)
    for wrong in (None, True, 1.5, len, torch.ones(2), [1], -1, "deadbeef00"):
        with pytest.raises(HloError):
            lazyviz.diff(wrong, record)


@pytest.mark.parametrize(
    "encode",
    [
        lambda text: b"\xef\xbb\xbf" + text.encode(),
        lambda text: text.encode("utf-16"),
        lambda text: text.replace("\n", "\r\n").encode(),
    ],
)
def test_files_that_an_editor_saved_anew_are_read(files, encode, tmp_path, capsys):
    again = tmp_path / "again.hlo"
    again.write_bytes(encode(BEFORE))

    assert main(["diff", files[0], str(again)]) == 0
    capsys.readouterr()


@pytest.mark.parametrize(
    ("callee", "message"),
    [("gone", "calls %gone, which it does not define"), ("f", "%f of m calls itself")],
)
def test_a_wrong_call_is_named_with_line_and_column(callee, message, tmp_path, capsys):
    body = f"  %p = f32[] parameter(0)\n  ROOT %c = f32[] call(%p), to_apply=%{callee}\n}}\n"
    broken = tmp_path / "broken.hlo"
    broken.write_text(
        "HloModule m\n\n%f (p: f32[]) -> f32[] {\n" + body
        + "\nENTRY %e (p: f32[]) -> f32[] {\n" + body.replace(callee, "f"), "utf-8",
    )  # fmt: skip

    assert main(["diff", str(broken), str(broken)]) == 2
    error = capsys.readouterr().err
    assert f"{broken}, line 5, column 38: " in error
    assert message in error


_SHARDED = """
import sys
from pathlib import Path
import jax, jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

both = Mesh(jax.devices(), ("rows",))
sums = jax.jit(lambda a: jnp.tanh(a).sum(0))
rows = NamedSharding(both, PartitionSpec("rows"))
whole = NamedSharding(both, PartitionSpec())
for name, place in (("rows", rows), ("whole", whole), ("one", jax.devices()[0])):
    text = sums.lower(jax.device_put(jnp.ones((8, 4)), place)).compile().as_text()
    (Path(sys.argv[1]) / name).write_text(text)
"""


@pytest.mark.slow
def test_programs_that_xla_compiled_for_two_devices_differ_by_placement(tmp_path):
    """Sharding and devices, from XLA's own dumps: lazyrt itself has one device."""
    environment = dict(os.environ, XLA_FLAGS="--xla_force_host_platform_device_count=2")
    subprocess.run(
        [sys.executable, "-c", _SHARDED, str(tmp_path)], check=True, env=environment
    )

    more = summary(lazyviz.diff(tmp_path / "one", tmp_path / "whole").diff)
    assert "the number of partitions (num_partitions) is 2, was 1" in more
    laid_out = summary(lazyviz.diff(tmp_path / "whole", tmp_path / "rows").diff)
    assert "sharding of %param is {devices=[2,1]<=[2]}, was {replicated}" in laid_out
    assert "input `a` is f32[4,4], was f32[8,4]" in laid_out
