"""Walking through a difference, request by request, without a browser."""

import html
import re

import pytest
import torch
from torch import nn

import lazyrt
import lazyviz
from lazygraph import diff, parse
from lazyviz.draw.model import MARKS, label_text
from lazyviz.inspection.comparison import DiffExplorer
from lazyviz.inspection.protocol import RequestError
from tests.conftest import displayed
from tests.harness import thinned
from tests.lazyviz.test_render_diff import AFTER, BEFORE


@pytest.fixture
def explorer():
    return DiffExplorer(diff(parse(BEFORE), parse(AFTER)))


def ask(explorer, **request):
    return list(explorer.handle(request))


def panel_of(replies):
    (told,) = [reply for reply in replies if reply["kind"] == "panel"]
    return told["html"]


def words(markup):
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", markup)).split())


def box_of(explorer, mark):
    boxes = enumerate(explorer.shown.boxes)
    return next(k for k, box in boxes if MARKS[box.change] == mark)


def select(explorer, mark):
    return ask(explorer, kind="select", box=box_of(explorer, mark))


def numbers(markup, kind="node"):
    return [
        int(n) for n in re.findall(rf'data-kind="{kind}" data-node="(\d+)"', markup)
    ]


def test_it_begins_with_what_the_diff_comes_to_and_its_places(explorer):
    told = words(explorer.overview())

    assert told.startswith(
        "before → after 3 → 4 instructions; +1 added, ~1 changed, ⇄1 with other operands"
    )
    assert "Where they differ enc.0, enc.1 m.py:3 (3 instructions)" in told
    assert explorer.crumbs == ["all places"]


def test_each_box_is_a_button_that_says_what_became_of_it(explorer):
    drawn = explorer.drawing()

    labels = re.findall(r'data-b="\d+"[^>]*role="button" aria-label="([^"]*)"', drawn)
    assert len(labels) == len(explorer.shown.boxes)
    assert any(
        label.startswith("added, + negate, negate %n, f32[4]") for label in labels
    )
    assert "<a " not in drawn  # a link in an output leads somewhere else


def test_a_changed_node_has_both_sides_its_line_and_its_module(explorer):
    told = panel_of(select(explorer, "~"))

    assert words(told).startswith("fusion: changed")
    assert "attributes calls=%fused, kind=kLoop line m.py:3 module enc.0" in words(told)
    assert "changed in calls: tanh → sine" in words(told)
    assert words(told).count("type f32[4]") == 1


def test_what_reads_another_value_names_the_old_and_the_new(explorer):
    told = words(panel_of(select(explorer, "⇄")))

    assert told.startswith("exponential: reads another value")
    assert "reads − %f fusion + %n negate" in told
    assert "module enc.1 from <b>" in told


def test_what_only_one_side_has_says_so(explorer):
    assert words(panel_of(select(explorer, "+"))).startswith(
        "negate: only in the second"
    )


def test_what_it_reads_leads_on_and_what_is_not_drawn_is_drawn(explorer):
    ask(explorer, kind="focus", node=explorer._program.number("b", 2), hops=0)
    assert [box.label for box in explorer.shown.boxes] == ["+ negate"]
    told = panel_of(ask(explorer, kind="node", node=explorer._program.number("b", 2)))

    drawn, shown = ask(explorer, kind="node", node=numbers(told)[0])

    assert drawn["kind"] == "drawing"
    assert words(shown["html"]).startswith("fusion: changed")
    assert explorer.crumbs == ["all places", "%n ±0", "%f ±1"]
    ask(explorer, kind="back", level=0)
    assert explorer.crumbs == ["all places"]


def test_a_node_of_the_first_graph_is_that_of_its_pair(explorer):
    (told,) = ask(explorer, kind="node", node=2)

    assert words(told["html"]).startswith("exponential: reads another value")


def test_a_place_is_drawn_alone(explorer):
    drawn, told = ask(explorer, kind="place", level=0)

    assert drawn["crumbs"] == ["all places", "enc.0, enc.1"]
    assert told["box"] is not None


def test_what_a_changed_fusion_computes_is_compared_as_well(explorer):
    told = panel_of(select(explorer, "~"))
    assert "differs within calls: %fused → %fused" in words(told)
    (number,) = numbers(told, "inside")

    drawn, overview = ask(explorer, kind="inside", node=number, call=0)

    assert "tanh → sine" in html.unescape(drawn["svg"])
    assert words(overview["html"]).startswith("calls: %fused → %fused 2 → 2")
    inner = panel_of(select(explorer, "~"))
    assert "op − tanh + sine" in words(inner)
    # And back to the whole programs, whose numbers are others.
    ask(explorer, kind="back", level=0)
    assert words(panel_of(select(explorer, "+"))).startswith("negate")


def test_a_double_click_opens_a_changed_fusion_only(explorer):
    ask(explorer, kind="open", box=box_of(explorer, "~"))
    assert len(explorer.crumbs) == 2
    ask(explorer, kind="back", level=0)

    with pytest.raises(RequestError, match="nothing differs within this box"):
        ask(explorer, kind="open", box=box_of(explorer, "+"))


def test_a_value_is_followed_through_tuples_and_fusions(explorer):
    """The way of a value, by a click."""
    number = explorer._program.number("b", 1)

    told = panel_of(ask(explorer, kind="follow", node=number))

    assert words(told).startswith("The way of %f f32[4], fusion")
    assert "operand 0 of %n" in words(told)
    assert "← the root of %fused: %t = sine" in words(told)
    assert "result 1 of the program" in words(told)
    assert explorer._program.number("b", 2) in numbers(told)
    back = numbers(told)[-1]
    assert words(panel_of(ask(explorer, kind="node", node=back))).startswith("fusion")


def test_a_search_finds_on_both_sides_what_differs_first(explorer):
    found, told = ask(explorer, kind="search", text="f32[4] m.py")

    assert found["count"] == 2
    assert {explorer.shown.boxes[k].label for k in found["boxes"]} == {
        "~ fusion: f",
        "⇄ exponential",
    }
    assert words(told["html"]).startswith("2 matches")
    (_, nothing) = ask(explorer, kind="search", text="conv <b>")
    assert "None of 4 instructions has 'conv <b>'" in words(nothing["html"])


@pytest.mark.parametrize(
    "request_",
    [
        {"kind": "select", "box": 99},
        {"kind": "node", "node": 7},
        {"kind": "node", "node": True},
        {"kind": "inside", "node": 0, "call": 0},
        {"kind": "place", "level": 5},
        {"kind": "back", "level": -1},
        {"kind": "search", "text": 3},
        {"kind": "value", "node": 0},
        "x",
    ],
)
def test_what_no_page_of_ours_asks_is_refused(explorer, request_):
    with pytest.raises(RequestError):
        list(explorer.handle(request_))


def test_a_diff_of_two_steps_is_shown_with_lines_modules_and_a_live_view(lab):
    lab.run_cell(
        "from torch import nn\nimport lazyviz\n"
        "net = nn.Linear(4, 4).to('lazyrt')\nlazyrt.mark_step()\n"
        "kept = [net(torch.ones(2, 4, device='lazyrt'))]\nlazyrt.mark_step()\n"
        "kept.append(torch.relu(net(torch.ones(2, 4, device='lazyrt'))))\nlazyrt.mark_step()\n"
        "last, = [r.first_step for r in lazyrt.compiled_graphs()][-1:]\nview = lazyviz.diff(last - 1, last)",
        store_history=True,
    )
    view = lab.user_ns["view"]
    widget = view._widget()

    assert widget.twin == view._twin != ""
    assert view._twin in view._repr_mimebundle_()["text/html"]
    told = panel_of(select(view.explorer, "+"))
    assert "aten.relu.default: only in the second" in words(told)
    assert "line cell" in words(told)
    widget.close()


def test_showing_a_diff_holds_no_tensor_and_runs_nothing(lab):
    x = torch.ones(3, device="lazyrt")
    net = nn.Linear(3, 3).to("lazyrt")
    lazyrt.mark_step()
    one, two = net(x), torch.relu(net(x))
    before = lazyrt.counters(), lazyrt.pending_graph().fingerprint

    explorer = lazyviz.diff(one, two).explorer
    for k in range(len(explorer.shown.boxes)):
        ask(explorer, kind="select", box=k)
    after = lazyrt.counters(), lazyrt.pending_graph().fingerprint
    live = len(lazyrt.live_tensors())
    del one, two

    assert after == before
    assert len(lazyrt.live_tensors()) == live - 2


def test_a_diff_as_a_cells_result_is_shown_once(lab):
    lab.run_cell("import lazyviz\nlazyviz.diff(x + 1, x * 2)", store_history=True)

    shown = [page for page in displayed(lab, "text/html") if "lzt-diff" in page]
    assert len(shown) == 1


LAYERS = """
import lazyviz
from torch import nn
net = nn.Sequential(*[nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(6)]).to('lazyrt')
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
def train(size, act=torch.tanh):
    batch = torch.ones(size, 8).to('lazyrt')
    with lazyrt.step():
        loss = act(net(batch)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
lazyrt.mark_step()
train(4); train(5); train(5, torch.relu)
steps = [record.first_step for record in lazyrt.compiled_graphs()][-3:]
"""


@pytest.fixture
def trained(lab):
    """Return a shell, and the views of what another batch and another line changed."""
    lab.run_cell(LAYERS, store_history=True)
    steps = lab.user_ns["steps"]
    return lab, lazyviz.diff(*steps[:2]), lazyviz.diff(*steps[1:])


def test_a_diff_opens_on_its_cause_and_folds_what_follows(trained):
    _, resized, _ = trained
    explorer = resized.explorer
    boxes = explorer.shown.boxes

    first = [box for box in boxes if box.is_first]
    assert [(box.label, box.detail) for box in first] == [
        ("~ batch", "f32[4,8] → f32[5,8]")
    ]
    follow = [box for box in boxes if box.kind == "group"]
    assert all(
        box.follows for box in boxes if box.change == "changed" and box not in first
    )
    assert len(boxes) < 24 < len(resized.diff.changed)
    assert "data-first" in explorer.drawing()
    assert "follows from it" in explorer.legend()

    own, folded = explorer.overview().split("<details")[:2]
    assert own.count('data-kind="place"') == 1
    assert "changed only by what they read" in folded
    told = words(panel_of(ask(explorer, kind="select", box=boxes.index(follow[0]))))
    assert "These changed only because of what they read." in told
    ask(explorer, kind="open", box=boxes.index(follow[0]))
    assert len(explorer.crumbs) == 2
    shown = {member for box in explorer.shown.boxes for member in box.members}
    assert shown >= set(follow[0].members)


@pytest.mark.parametrize("form", ["stablehlo", "hlo", "optimised"])
def test_a_lowered_diff_opens_on_the_input_that_changed(trained, form):
    _, resized, _ = trained
    explorer = resized.explorer
    ask(explorer, kind="form", form=form)

    first = [box.label for box in explorer.shown.boxes if box.is_first]
    assert first == ["~ batch"]
    assert "input batch is f32[5,8], was f32[4,8]" in words(explorer.overview())
    # Also where one place is drawn, and others come before it.
    small = explorer._program.overview(1)
    assert [box.label for box in small.boxes if box.is_first] == first
    if form == "stablehlo":
        calls = [box for box in explorer.shown.boxes if "addmm" in box.detail]
        assert calls
        assert all(box.follows for box in calls)


def test_a_line_that_changed_is_a_cause_also_where_sizes_changed(trained):
    lab, _, scaled = trained
    first, _, last = lab.user_ns["steps"]
    both = lazyviz.diff(first, last)

    def begun(view):
        boxes = view.explorer.shown.boxes
        return [b.label for b in boxes if b.change != "same" and not b.follows]

    for view in (scaled, both):
        assert any("relu" in label for label in begun(view))
    assert "~ batch" in begun(both)


def test_a_page_switches_between_the_forms_of_two_steps(trained):
    _, view, _ = trained
    explorer = view.explorer
    before = lazyrt.counters()

    assert [form for form, _ in explorer.controls["form"]] == [
        *("ir", "stablehlo", "hlo", "optimised")
    ]
    kinds = {"stablehlo": "MlirModule", "optimised": "HloModule", "ir": "NoneType"}
    for form, kind in kinds.items():
        replies = ask(explorer, kind="form", form=form)
        drawing = next(reply for reply in replies if reply["kind"] == "drawing")
        assert drawing["controls"]["chosen"]["form"] == form
        assert type(explorer._program.found.b.source).__name__ == kind
        assert explorer.title == view.explorer.title
    sites = {box.site for box in explorer.shown.boxes if box.site}
    assert sites
    assert all(site.startswith("cell ") for site in sites)
    assert lazyrt.counters() == before


def test_a_form_that_must_be_compiled_is_offered_with_its_cost(lab):
    pending = lazyviz.diff(lab.user_ns["x"] + 1, lab.user_ns["x"] * 2 + 1)
    before = lazyrt.counters()["compiles"]

    (offer, state) = ask(pending.explorer, kind="form", form="optimised")

    assert "XLA compiles a copy" in words(offer["html"])
    assert state["controls"]["chosen"]["form"] == "ir"
    with pytest.raises(RequestError):
        ask(pending.explorer, kind="form", form="ptx")
    ask(pending.explorer, kind="form", form="optimised", go=True)
    assert pending.explorer.controls["chosen"]["form"] == "optimised"
    assert lazyrt.counters()["compiles"] == before


def test_a_picture_is_written_as_svg_and_for_graphviz(trained, tmp_path):
    lab, view, _ = trained

    view.save(tmp_path / "d.svg")
    view.save(tmp_path / "d.dot")
    lab.run_cell(f"%lazy diff last --hlo --export {tmp_path}/h.svg", store_history=True)

    assert (tmp_path / "d.svg").read_text("utf-8").startswith("<svg")
    assert (tmp_path / "d.dot").read_text("utf-8").startswith("digraph")
    assert "fusion" in (tmp_path / "h.svg").read_text("utf-8")


def test_state_of_many_parameters_is_one_entry_with_its_optimizers_class(lab):
    lab.run_cell(
        LAYERS.replace("train(4); train(5); train(5, torch.relu)", "train(4)")
        + "optimizer = torch.optim.Adam(net.parameters())\ntrain(4)",
        store_history=True,
    )
    first, second = [record.first_step for record in lazyrt.compiled_graphs()][-2:]

    view = lazyviz.diff(first, second)
    text, boxes = str(view), view.explorer.shown.boxes

    assert "inputs Adam: `exp_avg` of 12 parameters, " in text
    assert "Adam: `exp_avg_sq` of 12 parameters, " in text
    assert text.splitlines()[2].startswith("optimizer changed at ")  # as %lazy why says
    assert "another order" not in text
    drawn = {f"+ Adam: {slot} of 12 parameters" for slot in ("exp_avg", "exp_avg_sq")}
    assert drawn <= {label_text(box) for box in boxes}
    assert "Adam: `exp_avg` of 12 parameters" in str(lazyviz.diff(first, second, "hlo"))
    assert not any(box.op.startswith("getitem") for box in boxes)
    state = next(k for k, box in enumerate(boxes) if "exp_avg of" in box.label)
    told = words(panel_of(ask(view.explorer, kind="select", box=state)))
    assert "only because" not in told
    ask(view.explorer, kind="open", box=state)
    opened = [box.label for box in view.explorer.shown.boxes]
    assert sum(label.endswith(".exp_avg") for label in opened) == 12


def test_a_cause_is_drawn_however_much_follows_in_its_place(lab):
    lab.run_cell(
        LAYERS.replace("train(4); train(5); train(5, torch.relu)", "")
        + "for way in (False, True):\n"
        "    optimizer = torch.optim.AdamW(net.parameters(), maximize=way)\n    train(4)",
        store_history=True,
    )
    first, second = [record.first_step for record in lazyrt.compiled_graphs()][-2:]

    boxes = lazyviz.diff(first, second).explorer.shown.boxes

    assert any(box.is_first and "_foreach" in box.label for box in boxes)


@pytest.mark.parametrize("how", thinned(["foreach", "fused"], 2))
def test_parameters_in_another_order_are_no_line_however_an_optimizer_takes_them(
    lab, how
):
    lab.run_cell(
        LAYERS.replace("train(4); train(5); train(5, torch.relu)", "")
        + "for order in (1, -1):\n"
        "    optimizer = torch.optim.AdamW(list(net.parameters())[::order], "
        f"{how}=True)\n    train(4)",
        store_history=True,
    )
    first, second = [record.first_step for record in lazyrt.compiled_graphs()][-2:]

    view = lazyviz.diff(first, second)

    assert first != second
    assert view.diff.is_empty
    assert "no difference" in str(view)
    assert "of tensors, such as an optimizer's parameters, in another" in str(view)
    assert "in another order" in view._repr_html_()
    for form in ("stablehlo", "hlo"):
        assert lazyviz.diff(first, second, form).diff.is_empty, form
    assert "has its tensors in another order" in str(lazyrt.explain(second))
    assert not [each for each in view.diff.dead[1] if f"_{how}" in each.label.op]


BLOCKS = """
import lazyviz
from torch import nn
class Block(nn.Module):
    def __init__(self, second):
        super().__init__()
        self.norm1, self.fc1, self.fc2 = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)
        self.norm2 = nn.LayerNorm(16) if second else nn.Identity()
    def forward(self, x):
        return x + self.fc2(nn.functional.gelu(self.norm2(self.fc1(self.norm1(x)))))
def made(second=True):
    net = nn.Sequential(*[Block(k or second) for k in range(2)]).to('lazyrt')
    return net, torch.optim.AdamW(net.parameters())
def train(net, optimizer, size):
    batch, weight = (torch.randn(size, 5, 8).to('lazyrt') for _ in range(2))
    with lazyrt.step():
        loss = (net(batch) * weight).mean()
        optimizer.zero_grad(); loss.backward(); optimizer.step()
lazyrt.mark_step()
first = made()
train(*first, 8)
"""


def compared(lab, code, form):
    lab.run_cell(BLOCKS + code, store_history=True)
    before, after = lazyrt.compiled_graphs()[-2:]
    return lazyviz.diff(before.first_step, after.first_step, form)


@pytest.mark.slow
def test_what_xla_fuses_otherwise_follows_from_the_input_that_changed(lab):
    view = compared(lab, "train(*first, 6)", "optimised")
    shown = view.explorer.shown

    assert len(view.diff.added) + len(view.diff.removed) > 0
    first = {(box.label, box.detail) for box in shown.boxes if box.is_first}
    sizes = "f32[8,5,8] → f32[6,5,8]"
    assert first == {("~ batch", sizes), ("~ weight", sizes)}
    assert all(
        box.follows or box.is_first for box in shown.boxes if box.change != "same"
    )
    assert len(shown.boxes) < 40
    assert shown.left_out == 0
    told = str(view).partition("@@")[0]
    assert "was removed" not in told
    assert "code path" not in told
    assert " for what both programs do" in told


@pytest.mark.slow
@pytest.mark.parametrize("form", ["ir", "stablehlo", "optimised"])
def test_a_diff_opens_on_the_layer_that_was_dropped(lab, form):
    """An optimizer's lists are shorter, which is no cause; its other state is the same."""
    view = compared(lab, "train(*made(second=False), 8)", form)
    found, boxes = view.diff, view.explorer.shown.boxes

    gone = [
        found.a.holders.get(node) or found.a.origin(node).op_name
        for node in found.removed
        if found.a.ops[node] == "parameter" and found.a.attrs[node] != "float"
    ]
    slots = ("", ".exp_avg", ".exp_avg_sq")
    layer = [f"0.norm2.{part}{slot}" for part in ("weight", "bias") for slot in slots]
    assert sorted(name.partition(".")[2] for name in gone) == sorted(layer)
    first = [box for box in boxes if box.is_first]
    assert first
    assert all("0" in box.path for box in first)
    if form != "optimised":  # there each op is a part of a fusion
        assert any("native_layer_norm" in box.label for box in first)
    lists = [box for box in boxes if "_foreach" in box.label]
    assert all(box.follows for box in lists)
    assert "AdamW: `exp_avg` of 2 parameters" in str(view)
    assert "<b>inputs" not in view.explorer.overview()
    assert view.explorer._program.places[0].exemplar.scope.startswith("0")


def test_an_optimizers_lists_are_pairs_in_another_order_and_with_fewer_tensors(lab):
    code = "net, _ = made(second=False); parameters = [*net.parameters()][::-1]\n"
    view = compared(lab, code + "train(net, torch.optim.AdamW(parameters), 6)", "ir")
    found = view.diff

    assert not any("_foreach" in found.b.ops[node] for node in found.added)
    assert not any("_foreach" in found.a.ops[node] for node in found.removed)
    own = {box.label for box in view.explorer.shown.boxes if not box.follows}
    assert not any("getitem" in label or "_foreach" in label for label in own)
    assert found.reordered > 0
