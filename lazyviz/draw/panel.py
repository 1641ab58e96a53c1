"""The panel beside a graph: facts about a box, its cost, its neighbours, what was found.

All text is escaped here. A button carries what it asks for in `data-` attributes; see
`lazyviz/static/graph_view.js`.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from lazyviz.draw.model import SAVED, path_text
from lazyviz.render import text
from lazyviz.render.html import markup, prose

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lazyrt.observe.events import TensorPrinted
    from lazyrt.tools import Cost, Look, Summary
    from lazyviz.draw.model import Box

_MAX_NEIGHBOURS = 12
_MAX_OVERVIEW = 6
_MAX_KINDS = 8
_MAX_SLOWEST = 15
_PLANE = 2


def node_facts(
    box: Box,
    *,
    upstream: Sequence[Box],
    downstream: Sequence[Box],
    rows: Sequence[tuple[str, str]] = (),
    python: str = "",
    inside: Sequence[str] = (),
    has_values: bool = True,
) -> str:
    """Return what is known of an op without computing anything.

    `python` has lines that run the op by itself, `inside` the names of what it calls.
    """
    node = box.members[0]
    output = "a live tensor" if box.is_root else ""
    if SAVED in box.marks:
        output = "held by no variable: autograd saves what its backward needs"
    shown = [
        ("op", markup(box.op)),
        ("type", markup(box.detail)),
        ("variable", markup(box.name)),
        ("step", markup(box.step)),
        ("scope", markup(box.scope)),
        ("module", markup(path_text(box.path))),
        ("line", markup(box.library or box.site)),
        ("called from", markup(box.site if box.library else "")),
        ("memory", "a view of what it reads" if "view" in box.marks else ""),
        *((name, markup(words)) for name, words in rows),
        ("reads", _neighbours(upstream)),
        ("read by", _neighbours(downstream)),
        ("output", output),
    ]
    buttons = [
        button_html(f"inside %{name}", kind="inside", node=node, call=call)
        for call, name in enumerate(inside)
    ]
    buttons.append(near_button(node))
    if has_values:
        buttons.append(button_html("Check ancestors for NaN", kind="check", node=node))
    code = f"<pre>{markup(python)}</pre>"
    code = f"<details><summary>op as Python</summary>{code}</details>" if python else ""
    return f"{heading_html(title_of(box))}{facts_table(shown)}<p>{' '.join(buttons)}</p>{code}"


def near_button(node: int) -> str:
    """Return a button that shows what is around a node."""
    tip = "as many hops as chosen above"
    return button_html("What is near", kind="focus", node=node, hops=2, title=tip)


def input_facts(
    box: Box,
    rows: Sequence[tuple[str, str]] = (),
    downstream: Sequence[Box] = (),
) -> str:
    """Return what is known of an input of the graph."""
    kind = (
        "a number, which changes without a recompile"
        if box.kind == "constant" and box.op.startswith(("%f", "%i"))
        else ""
    )
    owned = [mark for mark in box.marks if mark not in {"donated", "overwritten"}]
    shown = [
        ("input", markup(box.op)),
        ("type", markup(box.detail)),
        ("kind", kind or markup(", ".join(owned))),
        *((name, markup(words)) for name, words in rows),
        ("first read in", markup(path_text(box.path))),
        ("read by", _neighbours(downstream)),
    ]
    return f"{heading_html(box.label)}{facts_table(shown)}"


def note_html(words: str) -> str:
    """Return one quiet line, with what stands in backticks as code."""
    return f'<p class="lzc">{prose(words)}</p>'


def busy_html(words: str) -> str:
    """Return what is being done, for a wait."""
    return f'<p class="lzc" aria-busy="true">{markup(words)}</p>'


def ir_html(boxes: Sequence[Box]) -> str:
    """Return the IR ops that an instruction came from, as buttons that lead to them."""
    if not boxes:
        return note_html("No values here, and no IR op has its module, name and line.")
    items = "".join(
        f"<li>{button_html(title_of(box), kind='form', form='ir', node=box.members[0], go='true')} "
        f"<small>{markup(box.site)}</small></li>"
        for box in boxes[:_MAX_NEIGHBOURS]
    )
    more = len(boxes) - _MAX_NEIGHBOURS
    rest = f"<p>and {more:,} more</p>" if more > 0 else ""
    return f'<p class="lzc">Values are computed in the IR. It came from:</p><ul>{items}</ul>{rest}'


def form_offer(name: str, form: str, price: str) -> str:
    """Return what another form costs, and the button that pays for it."""
    button = button_html(f"Compile and show {name}", kind="form", form=form, go="true")
    return f"{heading_html(name)}<p>{markup(price)}</p><p>{button}</p>"


def measure_offer(cost: Cost) -> str:
    """Return what measuring each op takes, and the button that does it."""
    facts = (
        f"Shown is an estimate. Measuring runs {text.plural(cost.nodes, 'op')} one by one, three "
        f"times each, about {text.duration(3 * cost.estimate_ns)}"
    )
    if cost.compiles:
        facts += f" with {text.plural(cost.compiles, 'kind')} of op to compile"
    button = button_html("Measure each op", kind="measure", go="true")
    return (
        f"{heading_html('Time')}<p>{markup(facts)}. The step stays as it is. Fused, ops take less "
        f"time than alone.</p><p>{button}</p>"
    )


def measured_html(slowest: Sequence[Box], took: Mapping[int, int]) -> str:
    """Return the ops that took longest."""
    rows = "".join(
        f'<tr><td class="lzt">{text.duration(took[box.members[0]])}</td><td>{_link(box)}</td>'
        f"<td><small>{markup(box.site)}</small></td></tr>"
        for box in slowest[:_MAX_SLOWEST]
    )
    total = text.duration(sum(took.values()))
    count = text.plural(len(took), "op")
    return (
        f"{heading_html(f'{count} in {total}')}"
        f'<p class="lzc">Each op ran alone; the better of two runs counts.</p><table class="lzr">{rows}</table>'
    )


def checked_html(bad: Sequence[Box], values: int) -> str:
    """Return where NaN and infinities begin among an op and its ancestors, which were computed for it."""
    if not bad:
        return note_html(f"All {text.plural(values, 'value')} up to it are finite.")
    first, *others = bad
    have = "has" if len(others) == 1 else "have"
    more = f" {text.plural(len(others), 'later op')} {have} them too." if others else ""
    return (
        f'<p class="lzx" role="alert">NaN or infinities begin at {_link(first)} '
        f"<small>{markup(first.site)}</small>.{more}</p>"
    )


def nan_help(*, is_ir: bool, can_check: bool) -> str:
    """Return what the NaN overlay shows; only the IR's ops have values of their own."""
    words = (
        "Values are those of the IR. An instruction shows what is known of the IR ops behind it, "
        "which have its module, name and line: a fusion is bad if one of them is. Select it to go "
        "to them."
    )
    if is_ir:
        words = "Shown are values that are known already: inputs, and what was looked at. None is computed for it."
    if is_ir and can_check:
        words += " Select an op and choose <i>Check ancestors for NaN</i> to compute all that it needs."
    return f"{heading_html('NaN and infinities')}<p>{words}</p>"


def fallbacks_html(found: Sequence[tuple[Box, str]]) -> str:
    """Return the inputs that ops without a lowering computed on the CPU, and where."""
    if not found:
        return note_html(
            "No input of this graph was computed on the CPU. An op that runs there breaks the "
            "graph, and its result is an input of the next one."
        )
    items = "".join(
        f"<li>{_link(box)} <small>{markup(words)}</small></li>" for box, words in found
    )
    title = f"{text.plural(len(found), 'input')} from the CPU"
    return f"{heading_html(title)}<ul>{items}</ul>"


def slice_chooser(look: Look, **request: object) -> str:
    """Return fields for the part of a tensor that is shown; `request` asks for another."""
    shape = look.summary.shape
    if not shape or (look.is_whole and len(shape) <= _PLANE):
        return ""
    fields = []
    for axis, size in enumerate(shape):
        leads = axis < len(shape) - _PLANE if len(shape) > 1 else False
        if look.is_whole and not leads:
            fields.append(":")
            continue
        length = 1 if leads else look.value.shape[axis]
        start = look.at[axis]
        field = (
            f'<input type="number" min="0" max="{size - 1}" value="{start}" data-axis="{axis}" '
            f'aria-label="axis {axis} of {size:,}" title="0 to {size - 1}">'
        )
        whole = not leads and length == size
        fields.append(":" if whole else field + ("" if leads else f":{start + length}"))
    if all(each == ":" for each in fields):
        return ""
    data = "".join(
        f' data-{key}="{markup(str(value))}"' for key, value in request.items()
    )
    return (
        f'<p class="lzi"{data}>shown: [{", ".join(fields)}] <small>of '
        f"[{', '.join(f'{size:,}' for size in shape)}]</small></p>"
    )


def statistics_text(summary: Summary | TensorPrinted) -> str:
    """Return one line about a tensor from its statistics."""
    kind = str(summary.dtype).removeprefix("torch.")
    parts = [f"{kind}[{', '.join(map(str, summary.shape))}]"]
    if summary.elements <= 1:
        return parts[0]
    if kind == "bool":
        return f"{parts[0]} · {summary.nonzero:,} of {summary.elements:,} true"
    finite = summary.elements - summary.nan - summary.infinite
    if finite:
        parts.append(f"{summary.low:.4g} to {summary.high:.4g}")
        parts.append(f"mean {summary.mean:.4g}")
    if finite > 1:
        parts.append(f"std {summary.std:.4g}")
    minus = summary.minus_infinite
    counts = (summary.nan, summary.infinite - minus, minus)
    for name, count in zip(("NaN", "Inf", "-Inf"), counts, strict=True):
        if count:
            parts.append(f"{count:,} {name}")
    return " · ".join(parts)


def overview_html(
    title: str, ops: Sequence[Box], inputs: Sequence[Box], *, has_values: bool
) -> str:
    """Return what a program reads, holds and makes, before anything of it is chosen."""
    # What has a name comes first: a step keeps many values for its backward pass.
    inputs = sorted(inputs, key=lambda box: not box.name)
    saved = [box for box in ops if SAVED in box.marks]
    outputs = sorted((box for box in ops if box.is_root), key=lambda box: not box.name)
    rows = [
        ("ops", markup(_kinds_text(ops))),
        ("outputs", _neighbours(outputs, _MAX_OVERVIEW)),
        ("saved for backward", _neighbours(saved, _MAX_OVERVIEW)),
        ("inputs", _neighbours(inputs, _MAX_OVERVIEW)),
    ]
    shows = "see its value. The step stays as it is" if has_values else "see its facts"
    hint = f"Click an op, or walk to it with Tab and press Enter, to {shows}."
    opens = "A folded box opens where it stands with a double click, or with o; u folds it again."
    return (
        f"{heading_html(title)}{note_html(hint)}{note_html(opens)}{facts_table(rows)}"
    )


def _kinds_text(boxes: Sequence[Box]) -> str:
    """Return how many ops of which kind there are, the most frequent first."""
    kinds = Counter(each.label.rpartition(" = ")[2] for each in boxes).most_common()
    shown = ", ".join(f"{count:,}× {name}" for name, count in kinds[:_MAX_KINDS])
    if len(kinds) > _MAX_KINDS:
        shown += f" and {text.plural(len(kinds) - _MAX_KINDS, 'other kind')}"
    return shown


def group_panel(
    box: Box, index: int, members: Sequence[Box], results: Sequence[Box]
) -> str:
    """Return what a folded box holds and gives to others, and buttons that open it."""
    lines = sorted({each.library or each.site for each in members} - {""})
    rows = [
        ("holds", markup(f"{text.plural(len(members), 'op')}: {_kinds_text(members)}")),
        ("module", markup(path_text(box.path))),
        ("repeats", f"{box.count} times alike" if box.count > 1 else ""),
        ("lines", markup(", ".join(lines[:_MAX_KINDS]))),
        ("gives", _neighbours(results[::-1], _MAX_OVERVIEW)),
    ]
    opens = button_html("Open", kind="open", box=index, title="where it stands")
    opens += " " + button_html("Open alone", kind="alone", box=index)
    return f"{heading_html(path_text(box.path) or box.label)}{facts_table(rows)}<p>{opens}</p>"


def opened_panel(title: str, members: Sequence[Box], level: int) -> str:
    """Return what a box holds that was opened where it stands, and a button that folds it."""
    fold = button_html("Fold again", kind="close", level=level, title="or press u")
    holds = f"{text.plural(len(members), 'op')}: {_kinds_text(members)}"
    return (
        f"{heading_html(title)}{facts_table([('holds', markup(holds))])}<p>{fold}</p>"
    )


def cost_html(cost: Cost, node: int, *, asks: bool) -> str:
    """Return what computing a value takes, and a button for it if that is the reader's choice."""
    if not cost.nodes:
        return '<p class="lzc">known already</p>'
    facts = f"{text.plural(cost.nodes, 'op')} to run"
    if cost.reused:
        facts += f", {text.plural(cost.reused, 'value')} known"
    facts += f", {text.duration_range(cost.low_ns, cost.high_ns)}"
    if cost.compiles:
        facts += f", {text.plural(cost.compiles, 'executable')} to compile"
    if cost.loads:
        facts += f", {cost.loads:,} to load from the disk cache"
    if not (cost.compiles or cost.loads):
        facts += ", compiled already"
    if not asks:
        return f'<p class="lzc" aria-busy="true">{markup(facts)} …</p>'
    button = button_html("Compute this value", kind="value", node=node, output=0)
    return (
        f'<p class="lzc">{markup(facts)}; the step stays as it is.</p><p>{button}</p>'
    )


def value_html(
    value: str, took: str, node: int, outputs: Sequence[int], output: int
) -> str:
    """Return a node's value as HTML under what it took, with buttons for its other results."""
    others = ""
    if len(outputs) > 1:
        buttons = (
            f"<b>{k}</b>"
            if k == output
            else button_html(str(k), kind="value", node=node, output=k)
            for k in outputs
        )
        others = f" · result {' '.join(buttons)}"
    line = (
        f'<p class="lzc">computed in {markup(took)}, the step is as before{others}</p>'
    )
    return f'{line}<div data-value="{node}">{value}</div>'


def refusal_html(why: str) -> str:
    """Return why a request was not done."""
    return f'<p class="lzx" role="alert">{prose(why)}</p>'


def found_html(wanted: str, found: Sequence[Box], count: int) -> str:
    """Return the ops that a search found."""
    if not wanted.strip():
        return "<p>Type part of an op, a type, a variable, a module or a line.</p>"
    if not found:
        return f"<p>Nothing has {markup(repr(wanted))} in its op, type, variable, module or line.</p>"
    items = "".join(
        f"<li>{_link(box)} <small>{markup(box.detail)} {markup(path_text(box.path))} "
        f"{markup(box.library or box.site)}</small></li>"
        for box in found
    )
    return matches_html(items, len(found), count)


def matches_html(items: str, shown: int, count: int) -> str:
    """Return some of the things that a search found, under how many there are."""
    more = f"<p>and {count - shown:,} more</p>" if count > shown else ""
    title = heading_html(text.plural(count, "match", "matches"))
    return f"{title}<ul>{items}</ul>{more}"


def heading_html(title: str) -> str:
    """Return the first line of a panel."""
    return f"<h4>{markup(title)}</h4>"


def facts_table(rows: Sequence[tuple[str, str]]) -> str:
    """Return a table of names and HTML, the empty rows left out."""
    cells = "".join(
        f"<tr><th>{name}</th><td>{body}</td></tr>" for name, body in rows if body
    )
    return f"<table>{cells}</table>"


def _neighbours(boxes: Sequence[Box], most: int = _MAX_NEIGHBOURS) -> str:
    return links_html([_link(box) for box in boxes[:most]], len(boxes))


def links_html(links: Sequence[str], count: int) -> str:
    """Return the first few of some buttons that lead to others; empty for none."""
    more = count - len(links)
    parts = [*links, f"<span>and {more:,} more</span>"] if more > 0 else links
    return f'<span class="lzg-links">{" ".join(parts)}</span>' if parts else ""


def _link(box: Box) -> str:
    if not box.members:
        return button_html(box.label, kind="input", name=box.op)
    return button_html(title_of(box), kind="node", node=box.members[0])


def title_of(box: Box) -> str:
    """Return an op's name in listings and its label."""
    return f"{box.listed} {box.label}"


def button_html(label: str, *, title: str = "", **request: object) -> str:
    """Return a button that asks for something; `request` becomes its `data-` attributes."""
    tip = f' title="{markup(title)}"' if title else ""
    data = tip + "".join(
        f' data-{key}="{markup(str(value))}"' for key, value in request.items()
    )
    return f'<button type="button"{data}>{markup(label)}</button>'
