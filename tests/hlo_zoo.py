"""A second maker of pairs of HLO programs, written from what a diff promises, not from how it works.

A program is a chain of named blocks of many kinds, with nested computations, a backward pass and
updates. Edits change the list of blocks, what blocks are made of, or single rows. Rows have keys
that an edit keeps, so the keys say what differs; `true_cost` counts it by the published rule. Texts
are written in one of many dresses: names, order, layouts, tuples, dead code and comments.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from lazygraph import parse
from tests.hlo_pairs import drawn


class Row(NamedTuple):
    """One instruction; operands are keys; `calls` are pairs of an attribute and a program."""

    key: str
    op: str
    type: str
    operands: tuple[str, ...] = ()
    attrs: str = ""
    literal: str = ""
    calls: tuple[tuple[str, Any], ...] = ()
    scope: str = ""
    line: int = 0


@dataclass
class Prog:
    """Rows by key, operands first; several outputs are a tuple."""

    rows: dict[str, Row] = field(default_factory=dict)
    outputs: list[str] = field(default_factory=list)
    block: str = ""
    scope: str = ""
    counts: Counter[str] = field(default_factory=Counter)

    def add(self, op, kind, *operands, attrs="", literal="", calls=(), name=""):
        stem = f"{self.block}/{name or op}"
        key = f"{stem}.{self.counts[stem]}"
        self.counts[stem] += 1
        line = 10 + sum(self.counts.values()) % 40
        self.rows[key] = Row(
            key, op, kind, operands, attrs, literal, tuple(calls), self.scope, line
        )
        return key

    def type(self, key):
        return self.rows[key].type

    def dims(self, key):
        inside = self.type(key).partition("[")[2].rstrip("]")
        return [int(d) for d in inside.split(",")] if inside else []


@dataclass(frozen=True)
class Spec:
    """What a program is made of."""

    blocks: tuple[tuple[str, str], ...]
    batch: int = 8
    width: int = 16
    dtype: str = "f32"
    act: str = "tanh"
    rate: float = 0.01
    backward: bool = True
    update: str = "sgd"
    depth: int = 2  # of what blocks call
    renumbered: bool = False  # scopes by position, as torch numbers layers
    keep: tuple[str, ...] = ()  # blocks of which a value is one more output
    trips: int = 3
    experts: int = 4


def typed(dtype, *dims):
    return f"{dtype}[{','.join(map(str, dims))}]"


def made(spec):
    """Return the program of a spec."""
    p = Prog(block="in")
    x = p.add("parameter", typed(spec.dtype, spec.batch, spec.width), name="batch")
    params: list[str] = []
    kept: list[str] = []
    for position, (name, kind) in enumerate(spec.blocks):
        p.block = name
        p.scope = f"layers.{position}" if spec.renumbered else f"layers.{name}"
        x = _BLOCKS[kind](p, spec, x, params)
        if name in spec.keep:
            kept.append(
                p.add(
                    "reduce",
                    f"{spec.dtype}[]",
                    x,
                    _const(p, spec, 0),
                    attrs="dimensions={0,1}",
                    calls=[("to_apply", _scalar(spec, "add"))],
                    name="kept",
                )
            )
    p.block = p.scope = "loss"
    loss = p.add(
        "reduce",
        f"{spec.dtype}[]",
        x,
        _const(p, spec, 0),
        attrs="dimensions={0,1}",
        calls=[("to_apply", _scalar(spec, "add"))],
    )
    p.outputs = [loss, *kept]
    if spec.backward:
        _backward(p, spec, loss, params)
    return p


def _const(p, spec, value, dtype=None):
    return p.add("constant", f"{dtype or spec.dtype}[]", literal=str(value))


def _scalar(spec, op):
    c = Prog(block="c")
    a = c.add("parameter", f"{spec.dtype}[]", name="a")
    b = c.add("parameter", f"{spec.dtype}[]", name="b")
    c.outputs = [c.add(op, f"{spec.dtype}[]", a, b)]
    return c


def _weight(p, spec, params, *dims):
    params.append(p.add("parameter", typed(spec.dtype, *dims), name="weight"))
    return params[-1]


def _dot(p, spec, x, w):
    (m, _), (_, n) = p.dims(x), p.dims(w)
    return p.add(
        "dot",
        typed(spec.dtype, m, n),
        x,
        w,
        attrs="lhs_contracting_dims={1}, rhs_contracting_dims={0}",
    )


def _filled(p, spec, value, like):
    return p.add(
        "broadcast", p.type(like), _const(p, spec, value), attrs="dimensions={}"
    )


def _mlp(p, spec, x, params):
    w, b = (
        _weight(p, spec, params, spec.width, spec.width),
        _weight(p, spec, params, spec.width),
    )
    y = _dot(p, spec, x, w)
    y = p.add(
        "add", p.type(y), y, p.add("broadcast", p.type(y), b, attrs="dimensions={1}")
    )
    y = p.add(spec.act, p.type(y), y)
    y = _dot(p, spec, y, _weight(p, spec, params, spec.width, spec.width))
    return p.add("add", p.type(x), x, y)


def _plain(p, spec, x, params):
    y = _dot(p, spec, x, _weight(p, spec, params, spec.width, spec.width))
    return p.add(spec.act, p.type(y), y)


def _by_rows(p, spec, op, x, start):
    """Reduce the second dimension."""
    return p.add(
        "reduce",
        typed(spec.dtype, spec.batch),
        x,
        _const(p, spec, start),
        attrs="dimensions={1}",
        calls=[("to_apply", _scalar(spec, op))],
    )


def _attention(p, spec, x, params):
    q, k, v = (
        _dot(p, spec, x, _weight(p, spec, params, spec.width, spec.width))
        for _ in "qkv"
    )
    turned = p.add(
        "transpose",
        typed(spec.dtype, spec.width, spec.batch),
        k,
        attrs="dimensions={1,0}",
    )
    scores = _dot(p, spec, q, turned)
    scores = p.add("multiply", p.type(scores), scores, _filled(p, spec, 0.125, scores))
    top = _by_rows(p, spec, "maximum", scores, "-inf")
    top = p.add("broadcast", p.type(scores), top, attrs="dimensions={0}")
    e = p.add(
        "exponential", p.type(scores), p.add("subtract", p.type(scores), scores, top)
    )
    total = _by_rows(p, spec, "add", e, 0)
    e = p.add(
        "divide",
        p.type(e),
        e,
        p.add("broadcast", p.type(e), total, attrs="dimensions={0}"),
    )
    y = _dot(
        p, spec, _dot(p, spec, e, v), _weight(p, spec, params, spec.width, spec.width)
    )
    return p.add("add", p.type(x), x, y)


def _experts(p, spec, x, params):
    parts = []
    for _ in range(spec.experts):
        y = _dot(p, spec, x, _weight(p, spec, params, spec.width, spec.width))
        parts.append(p.add(spec.act, p.type(y), y))
    while len(parts) > 1:
        a, b, *parts = parts
        parts.append(p.add("add", p.type(a), a, b))
    return parts[0]


def _inner(spec, depth, op="multiply"):
    """A computation of one input that calls another, to some depth."""
    kind = typed(spec.dtype, spec.batch, spec.width)
    c = Prog(block=f"inner{depth}")
    a = c.add("parameter", kind, name="a")
    y = c.add(spec.act, kind, a)
    y = c.add(op, kind, y, _filled(c, spec, 2, y))
    if depth > 1:
        y = c.add(
            "fusion",
            kind,
            y,
            attrs="kind=kLoop",
            calls=[("calls", _inner(spec, depth - 1))],
        )
    c.outputs = [c.add("add", kind, y, a)]
    return c


def _fusion(p, spec, x, params):
    y = p.add(
        "fusion",
        p.type(x),
        x,
        attrs="kind=kLoop",
        calls=[("calls", _inner(spec, spec.depth))],
    )
    return p.add("add", p.type(x), y, x)


def _call(p, spec, x, params):
    y = p.add("call", p.type(x), x, calls=[("to_apply", _inner(spec, spec.depth))])
    return p.add("negate", p.type(x), y)


def _loop(p, spec, x, params):
    kind, pair = p.type(x), f"(s32[], {p.type(x)})"
    body = Prog(block="body")
    s = body.add("parameter", pair, name="s")
    i = body.add("get-tuple-element", "s32[]", s, attrs="index=0")
    v = body.add("get-tuple-element", kind, s, attrs="index=1")
    i = body.add("add", "s32[]", i, _const(body, spec, 1, "s32"))
    v = body.add(
        "fusion",
        kind,
        v,
        attrs="kind=kLoop",
        calls=[("calls", _inner(spec, spec.depth))],
    )
    body.outputs = [i, v]
    test = Prog(block="test")
    s = test.add("parameter", pair, name="s")
    i = test.add("get-tuple-element", "s32[]", s, attrs="index=0")
    test.outputs = [
        test.add(
            "compare",
            "pred[]",
            i,
            _const(test, spec, spec.trips, "s32"),
            attrs="direction=LT",
        )
    ]
    start = p.add("tuple", pair, _const(p, spec, 0, "s32"), x)
    w = p.add("while", pair, start, calls=[("condition", test), ("body", body)])
    return p.add("get-tuple-element", kind, w, attrs="index=1")


def _choice(p, spec, x, params):
    kind = p.type(x)
    first = p.add("slice", typed(spec.dtype, 1, 1), x, attrs="slice={[0:1], [0:1]}")
    first = p.add("reshape", f"{spec.dtype}[]", first)
    pick = p.add("compare", "pred[]", first, _const(p, spec, 0), attrs="direction=GT")
    y = p.add(
        "conditional",
        kind,
        pick,
        x,
        x,
        calls=[
            ("true_computation", _inner(spec, spec.depth)),
            ("false_computation", _inner(spec, 1, "divide")),
        ],
    )
    return p.add("add", kind, y, x)


def _sorted(p, spec, x, params):
    c = Prog(block="by")
    a, b = (c.add("parameter", f"{spec.dtype}[]", name=n) for n in "ab")
    for n in "cd":
        c.add("parameter", "s32[]", name=n)
    c.outputs = [c.add("compare", "pred[]", a, b, attrs="direction=LT")]
    numbers = typed("s32", spec.batch, spec.width)
    place = p.add("iota", numbers, attrs="iota_dimension=1")
    both = f"({p.type(x)}, {numbers})"
    s = p.add("sort", both, x, place, attrs="dimensions={1}", calls=[("to_apply", c)])
    y = p.add("get-tuple-element", p.type(x), s, attrs="index=0")
    k = p.add("get-tuple-element", numbers, s, attrs="index=1")
    k = p.add("convert", p.type(x), k)
    return p.add("multiply", p.type(x), y, k)


def _dropped(p, spec, x, params):
    state = p.add("parameter", "u64[2]", name="state")
    bits = typed("u32", spec.batch, spec.width)
    r = p.add(
        "rng-bit-generator", f"(u64[2], {bits})", state, attrs="algorithm=rng_three_fry"
    )
    b = p.add("get-tuple-element", bits, r, attrs="index=1")
    u = p.add(
        "convert",
        p.type(x),
        p.add(
            "shift-right-logical",
            bits,
            b,
            p.add("broadcast", bits, _const(p, spec, 9, "u32"), attrs="dimensions={}"),
        ),
    )
    keep = p.add(
        "compare",
        typed("pred", spec.batch, spec.width),
        u,
        _filled(p, spec, 0.1, u),
        attrs="direction=GE",
    )
    return p.add("select", p.type(x), keep, x, _filled(p, spec, 0, x))


def _normed(p, spec, x, params):
    rows = typed(spec.dtype, spec.batch)
    total = _by_rows(p, spec, "add", x, 0)
    mean = p.add("divide", rows, total, _filled(p, spec, spec.width, total))
    y = p.add(
        "subtract",
        p.type(x),
        x,
        p.add("broadcast", p.type(x), mean, attrs="dimensions={0}"),
    )
    square = p.add("multiply", p.type(y), y, y)
    var = _by_rows(p, spec, "add", square, 0)
    y = p.add(
        "multiply",
        p.type(y),
        y,
        p.add(
            "broadcast", p.type(y), p.add("rsqrt", rows, var), attrs="dimensions={0}"
        ),
    )
    gain = _weight(p, spec, params, spec.width)
    return p.add(
        "multiply",
        p.type(y),
        y,
        p.add("broadcast", p.type(y), gain, attrs="dimensions={1}"),
    )


def _chain(p, spec, x, params):
    for k in range(12):
        x = p.add(("tanh", "exponential", "negate")[k % 3], p.type(x), x)
    return x


_BLOCKS = {
    "mlp": _mlp,
    "plain": _plain,
    "attention": _attention,
    "experts": _experts,
    "fusion": _fusion,
    "call": _call,
    "loop": _loop,
    "choice": _choice,
    "sorted": _sorted,
    "dropped": _dropped,
    "normed": _normed,
    "chain": _chain,
}
KINDS = tuple(_BLOCKS)


def _backward(p, spec, loss, params):
    """Gradients of a sort: each forward row has a row that reads it and its users' gradients."""
    forward = [r for r in p.rows.values() if r.type.startswith(f"{spec.dtype}[")]
    grads: dict[str, list[str]] = {loss: [_const(p, spec, 1)]}
    done: dict[str, str] = {}
    for row in reversed(forward):
        parts = grads.get(row.key)
        if not parts or row.op in {"constant", "broadcast"}:
            continue
        p.block, p.scope = f"{row.key.partition('/')[0]} back", row.scope
        g = parts[0]
        for other in parts[1:]:
            g = p.add("add", row.type, g, other, name=f"sum {row.key}")
        done[row.key] = g
        for slot, operand in enumerate(row.operands):
            source = p.rows[operand]
            if source.type.startswith(f"{spec.dtype}[") and source.op != "constant":
                name = f"{row.key} {slot}"
                made_ = p.add(
                    f"{'multiply' if row.op != 'dot' else 'dot'}",
                    source.type,
                    g,
                    row.key,
                    name=name,
                )
                grads.setdefault(operand, []).append(made_)
                if source.op == "broadcast":
                    inner = source.operands[0]
                    if p.rows[inner].op != "constant":
                        grads.setdefault(inner, []).append(
                            p.add(
                                "reduce",
                                p.type(inner),
                                made_,
                                _const(p, spec, 0),
                                attrs="dimensions={0}",
                                calls=[("to_apply", _scalar(spec, "add"))],
                                name=f"back {inner}",
                            )
                        )
    for param in params:
        if param in done and spec.update:
            p.block, p.scope = f"{param} update", ""
            _updated(p, spec, param, done[param])


def _updated(p, spec, param, g):
    kind = p.type(param)
    if spec.update == "momentum":
        v = p.add("parameter", kind, name="velocity")
        g = p.add("add", kind, p.add("multiply", kind, v, _filled(p, spec, 0.9, v)), g)
        p.outputs.append(g)
    step = p.add("multiply", kind, g, _filled(p, spec, spec.rate, g))
    p.outputs.append(p.add("subtract", kind, param, step))


# --- edits ------------------------------------------------------------------------------------


def _fresh(rng, spec, kinds, count):
    tag = rng.randrange(10**6)
    return [(f"new{tag}_{k}", rng.choice(kinds)) for k in range(count)]


def _kinds_of(spec):
    return sorted({kind for _, kind in spec.blocks})


def insert_at(where):
    def edit(rng, spec):
        new = _fresh(rng, spec, _kinds_of(spec), rng.choice([1, 2, 3]))
        blocks = list(spec.blocks)
        at = {"start": 0, "end": len(blocks)}.get(where, rng.randint(0, len(blocks)))
        return replace(spec, blocks=(*blocks[:at], *new, *blocks[at:]))

    return edit


def insert_many(rng, spec):
    blocks: list[tuple[str, str]] = []
    for block in spec.blocks:
        if rng.random() < 0.3:
            blocks += _fresh(rng, spec, [block[1]], 1)
        blocks.append(block)
    return replace(spec, blocks=tuple(blocks))


def remove_some(rng, spec):
    blocks = list(spec.blocks)
    for _ in range(rng.choice([1, 1, 2])):
        if len(blocks) > 1:
            del blocks[rng.randrange(len(blocks))]
    return replace(spec, blocks=tuple(blocks))


def remove_first(rng, spec):
    return replace(spec, blocks=spec.blocks[1:] or spec.blocks)


def replace_block(rng, spec):
    at = rng.randrange(len(spec.blocks))
    blocks = list(spec.blocks)
    blocks[at : at + 1] = _fresh(rng, spec, [k for k in KINDS if k != blocks[at][1]], 1)
    return replace(spec, blocks=tuple(blocks))


def keep_values(rng, spec):
    names = [name for name, _ in spec.blocks]
    return replace(
        spec, keep=tuple(rng.sample(names, min(len(names), rng.choice([1, 2, 5]))))
    )


def field_edit(**changed):
    return lambda rng, spec: replace(spec, **changed)


def drop_in_each(rng, spec):
    blocks = [
        b for block in spec.blocks for b in (block, (f"{block[0]} drop", "dropped"))
    ]
    return replace(spec, blocks=tuple(blocks))


STRUCTURED = {
    "nothing": lambda rng, spec: spec,
    "block inserted at the start": insert_at("start"),
    "block inserted in the middle": insert_at("middle"),
    "block inserted at the end": insert_at("end"),
    "blocks inserted in many places": insert_many,
    "first block removed": remove_first,
    "blocks removed": remove_some,
    "block replaced": replace_block,
    "batch": field_edit(batch=12),
    "width": field_edit(width=24),
    "dtype": field_edit(dtype="bf16"),
    "activation": field_edit(act="logistic"),
    "rate baked": field_edit(rate=0.02),
    "outputs kept": keep_values,
    "called deeper": field_edit(depth=3),
    "trips": field_edit(trips=4),
    "experts": field_edit(experts=6),
    "momentum": field_edit(update="momentum"),
    "no updates": field_edit(update=""),
    "forward only": field_edit(backward=False),
    "dropout in each": drop_in_each,
}


def _inner_rows(p):
    return [
        r
        for r in p.rows.values()
        if r.operands and r.op != "get-tuple-element" and not r.type.startswith("(")
    ]


def _number(p):
    p.counts["edit"] += 1
    return p.counts["edit"]


def rewire_one(rng, p):
    row = rng.choice(_inner_rows(p))
    known = list(p.rows)
    before = [
        k for k in known[: known.index(row.key)] if p.type(k) == p.type(row.operands[0])
    ]
    p.rows[row.key] = row._replace(operands=(rng.choice(before), *row.operands[1:]))


def swap_operands(rng, p):
    row = rng.choice(_inner_rows(p))
    p.rows[row.key] = row._replace(operands=row.operands[::-1])


def other_op(rng, p):
    rows = [
        r for r in _inner_rows(p) if r.op in {"add", "multiply", "tanh", "subtract"}
    ]
    if rows:
        row = rng.choice(rows)
        other = {
            "add": "maximum",
            "multiply": "power",
            "tanh": "sine",
            "subtract": "atan2",
        }
        p.rows[row.key] = row._replace(op=other[row.op])


def other_literal(rng, p):
    rows = [r for r in p.rows.values() if r.op == "constant"]
    row = rng.choice(rows)
    p.rows[row.key] = row._replace(literal="7")


def on_edge(rng, p):
    row = rng.choice(_inner_rows(p))
    new = Row(
        f"{row.key} in {_number(p)}",
        rng.choice(["abs", "copy", "cbrt"]),
        p.type(row.operands[0]),
        row.operands[:1],
    )
    _rebuilt(p, row.key, [new, row._replace(operands=(new.key, *row.operands[1:]))])


def behind(rng, p):
    """One more op behind a value, for all that read it."""
    row = rng.choice(_inner_rows(p))
    new = Row(f"{row.key} out {_number(p)}", "abs", row.type, (row.key,))
    for key, other in p.rows.items():
        p.rows[key] = other._replace(
            operands=tuple(new.key if o == row.key else o for o in other.operands)
        )
    _rebuilt(p, row.key, [row, new])


def bypass(rng, p):
    rows = [r for r in _inner_rows(p) if p.type(r.operands[0]) == r.type]
    if not rows:
        return
    gone = rng.choice(rows)
    into = gone.operands[0]
    del p.rows[gone.key]
    for key, other in p.rows.items():
        p.rows[key] = other._replace(
            operands=tuple(into if o == gone.key else o for o in other.operands)
        )
    p.outputs = [into if key == gone.key else key for key in p.outputs]


def twin(rng, p):
    """A value computed twice: some of its users read the copy."""
    row = rng.choice(_inner_rows(p))
    new = row._replace(key=f"{row.key} twin {_number(p)}")
    users = [k for k, r in p.rows.items() if row.key in r.operands]
    for key in users[: max(1, len(users) // 2)]:
        other = p.rows[key]
        p.rows[key] = other._replace(
            operands=tuple(new.key if o == row.key else o for o in other.operands)
        )
    if not users:
        p.outputs.append(new.key)
    _rebuilt(p, row.key, [row, new])


def one_more_output(rng, p):
    p.outputs.insert(rng.randint(0, len(p.outputs)), rng.choice(_inner_rows(p)).key)


def one_output_less(rng, p):
    if len(p.outputs) > 1:
        p.outputs.pop(rng.randrange(len(p.outputs)))


def other_attr(rng, p):
    rows = [r for r in _inner_rows(p) if r.attrs]
    if rows:
        row = rng.choice(rows)
        p.rows[row.key] = row._replace(
            attrs=f"{row.attrs}, operand_precision={{highest}}"
        )


def inside_call(rng, p):
    rows = [r for r in p.rows.values() if r.calls]
    if rows:
        row = rng.choice(rows)
        name, inner = row.calls[0]
        copy = Prog(dict(inner.rows), list(inner.outputs))
        has_literal = any(r.op == "constant" for r in copy.rows.values())
        (other_literal if has_literal and rng.random() < 0.5 else other_op)(rng, copy)
        p.rows[row.key] = row._replace(calls=((name, copy), *row.calls[1:]))


def _rebuilt(p, key, rows):
    new: dict[str, Row] = {}
    for each in p.rows.values():
        if each.key == key:
            new.update((row.key, row) for row in rows)
        else:
            new[each.key] = each
    p.rows = new


SMALL = {
    "rewired": rewire_one,
    "operands swapped": swap_operands,
    "op": other_op,
    "literal": other_literal,
    "op on an edge": on_edge,
    "op behind a value": behind,
    "op left out": bypass,
    "computed twice": twin,
    "output more": one_more_output,
    "output less": one_output_less,
    "attribute": other_attr,
    "inside of a call": inside_call,
}


# --- texts ------------------------------------------------------------------------------------


@dataclass
class Dress:
    """How a program is written; none of it is a difference."""

    seed: int = 0
    percent: bool = True
    layouts: bool = True
    metadata: bool = True
    shuffled: bool = True
    packed: float = 0.0  # share of values that pass through a tuple of their own
    dead: float = 0.0
    comments: bool = False


def dress(seed):
    rng = random.Random(seed)  # noqa: S311 - reproducible
    return Dress(
        seed,
        percent=rng.random() < 0.8,
        layouts=rng.random() < 0.5,
        metadata=rng.random() < 0.5,
        shuffled=rng.random() < 0.8,
        packed=rng.choice([0.0, 0.0, 0.1]),
        dead=rng.choice([0.0, 0.0, 0.1]),
        comments=rng.random() < 0.3,
    )


def text_of(p, how):
    """Return a program's HLO text, and the key of each instruction name."""
    writer = _Writer(how)
    body = writer.computation(p, "main", entry=True)
    text = "\n".join(
        [
            f"HloModule m{how.seed}, entry_computation_layout={{()->()}}",
            "",
            *writer.before,
            "ENTRY " + body,
            "",
        ]
    )
    return text, writer.keys


class _Writer:
    def __init__(self, how):
        self._how = how
        self._rng = random.Random(how.seed)  # noqa: S311
        self.before: list[str] = []
        self.keys: dict[str, str] = {}
        self._number = self._rng.randrange(1000)
        self._written: dict[int, str] = {}
        self._alive: list[Any] = []

    def computation(self, p, name, *, entry=False):
        rng, how = self._rng, self._how
        rows = _in_order(p, rng) if how.shuffled and entry else list(p.rows.values())
        inputs = [r.key for r in p.rows.values() if r.op == "parameter"]
        if entry and how.shuffled:
            rng.shuffle(inputs)
        number = {key: k for k, key in enumerate(inputs)}
        names: dict[str, str] = {}
        lines: list[str] = []
        for row in rows:
            names[row.key] = self._name(row.op)
            if entry:
                self.keys[names[row.key]] = row.key
            self._line(lines, row, names, number)
            if entry:
                self._noise(lines, row, names)
        outputs = list(p.outputs)
        if len(outputs) == 1 and not entry:
            mark = f"  {self._ref(names[outputs[0]])} = "
            at = next(k for k, line in enumerate(lines) if line.startswith(mark))
            lines[at] = f"  ROOT{lines[at][1:]}"
            result = p.type(outputs[0])
        else:
            if entry and how.shuffled:
                rng.shuffle(outputs)
            result = f"({', '.join(self._laid(p.type(k)) for k in outputs)})"
            refs = ", ".join(self._operand(k, names, p) for k in outputs)
            lines.append(
                f"  ROOT {self._ref(self._name('tuple'))} = {result} tuple({refs})"
            )
        signature = ", ".join(f"{self._name('p')}: {p.type(k)}" for k in inputs)
        return "\n".join(
            [f"{self._ref(name)} ({signature}) -> {result} {{", *lines, "}", ""]
        )

    def _name(self, op):
        self._number += self._rng.choice([1, 1, 1, 7])
        return f"{op.replace('_', '-')}.{self._number}"

    def _ref(self, name):
        return f"%{name}" if self._how.percent else name

    def _operand(self, key, names, p):
        ref = self._ref(names[key])
        typed_ = self._how.layouts and self._how.seed % 2
        return f"{self._laid(p.type(key))} {ref}" if typed_ else ref

    def _laid(self, kind):
        if not self._how.layouts or kind.startswith("("):
            return kind
        rank = kind.count(",") + 1 if not kind.endswith("[]") else 0
        order = list(range(rank))
        if self._how.shuffled:
            self._rng.shuffle(order)
        tile = ":T(8,128)" if self._how.seed % 3 == 0 and rank > 1 else ""
        return f"{kind}{{{','.join(map(str, order))}{tile}}}" if rank else kind

    def _called(self, inner):
        if id(inner) not in self._written:
            name = self._name("region")
            self._alive.append(inner)
            body = self.computation(inner, name)
            self._written[id(inner)] = name
            self.before.append(body)
        return self._written[id(inner)]

    def _line(self, lines, row, names, number):
        how = self._how
        refs = [self._ref(names[o]) for o in row.operands]
        if how.comments and len(refs) > 1:
            refs[1] = f"/*index=1*/{refs[1]}"
        inside = row.literal or ", ".join(refs)
        if row.op == "parameter":
            inside = str(number[row.key])
        rest = f", {row.attrs}" if row.attrs else ""
        rest += "".join(
            f", {name}={self._ref(self._called(c))}" for name, c in row.calls
        )
        if how.metadata:
            rest += f', metadata={{op_type="{row.op}" op_name="jit(step)/{row.scope}/{row.op}" source_file="train.py" source_line={row.line}}}'
        lines.append(
            f"  {self._ref(names[row.key])} = {self._laid(row.type)} {row.op}({inside}){rest}"
        )

    def _noise(self, lines, row, names):
        rng, how = self._rng, self._how
        if row.type.startswith("("):
            return
        if rng.random() < how.dead:
            k, d = self._name("constant"), self._name("dead")
            lines.append(f"  {self._ref(k)} = f32[] constant(9)")
            lines.append(
                f"  {self._ref(d)} = {row.type} negate({self._ref(names[row.key])})"
            )
        if rng.random() < how.packed:
            t, g = self._name("tuple"), self._name("gte")
            lines.append(
                f"  {self._ref(t)} = ({row.type}) tuple({self._ref(names[row.key])})"
            )
            lines.append(
                f"  {self._ref(g)} = {row.type} get-tuple-element({self._ref(t)}), index=0"
            )
            names[row.key] = g


def _in_order(p, rng):
    missing = {key: len(set(row.operands)) for key, row in p.rows.items()}
    users: dict[str, list[str]] = {key: [] for key in p.rows}
    for row in p.rows.values():
        for operand in set(row.operands):
            users[operand].append(row.key)
    for each in users.values():
        each.sort()
    return [p.rows[key] for key in drawn(missing, users, rng)]


# --- pairs -------------------------------------------------------------------------------------


class Pair(NamedTuple):
    """Two texts, the keys of their instructions, and what was edited.

    Attributes:
        edits: Names of the edits.
        is_structured: Whether they concern whole blocks alone, and not single rows.
    """

    a: tuple[str, dict[str, str]]
    b: tuple[str, dict[str, str]]
    edits: list[str]
    is_structured: bool

    def graphs(self):
        """Return both graphs, and the cost of the true difference."""
        a, b = parse(self.a[0]), parse(self.b[0])
        return a, b, true_cost(a, self.a[1], b, self.b[1])


def pair(seed, blocks):
    """Return a pair of programs of about so many blocks; each has 10 to 70 instructions."""
    rng = random.Random(seed)  # noqa: S311 - reproducible
    kinds = rng.sample(KINDS, rng.choice([1, 3, len(KINDS)]))
    random_order = rng.random() < 0.5
    chosen = (
        rng.choice(kinds) if random_order else kinds[k % len(kinds)]
        for k in range(blocks)
    )
    spec = Spec(
        tuple((f"b{k}", kind) for k, kind in enumerate(chosen)),
        renumbered=rng.random() < 0.5,
        backward=rng.random() < 0.7,
        update=rng.choice(["sgd", "momentum"]),
    )
    structured, small = rng.choice([(1, 0), (2, 0), (0, 1), (0, 4), (0, 8), (1, 3)])
    edits = rng.sample(sorted(STRUCTURED), structured)
    other = spec
    for name in edits:
        other = STRUCTURED[name](rng, other)
    a, b = made(spec), made(other)
    for name in rng.choices(sorted(SMALL), k=small):
        SMALL[name](rng, b)
        edits.append(name)
    texts = [text_of(each, dress(rng.randrange(10**6))) for each in (a, b)]
    return Pair(texts[0], texts[1], edits, not small)


# --- truth ------------------------------------------------------------------------------------


def true_cost(a, keys_a, b, keys_b):
    """Count what the keys say is different: the published rule, on graphs in normal form."""
    key_a = [keys_a[name.removeprefix("%")] for name in a.names]
    key_b = [keys_b[name.removeprefix("%")] for name in b.names]
    at = {key: node for node, key in enumerate(key_b)}
    cost = 0
    shared = set(at)
    shared &= set(key_a)
    cost += len(key_a) + len(key_b) - 2 * len(shared)
    for x, key in enumerate(key_a):
        if key not in shared:
            continue
        y = at[key]
        cost += a.label(x) != b.label(y)
        mine = [key_a[o] for o in a.operands[x]]
        theirs = [key_b[o] for o in b.operands[y]]
        longest = max(len(mine), len(theirs))
        mine += [""] * (longest - len(mine))
        theirs += [""] * (longest - len(theirs))
        cost += sum(m != t for m, t in zip(mine, theirs, strict=True))
    before = Counter(key_a[x] for x in a.outputs)
    after = Counter(key_b[y] for y in b.outputs)
    return cost + (before - after).total() + (after - before).total()


def identity(graph):
    """Return what a graph computes, as a string: nodes by what they read, outputs sorted."""
    seen: list[int] = []
    table: dict[Any, int] = {}
    for node in range(len(graph)):
        key = (graph.label(node), tuple(seen[o] for o in graph.operands[node]))
        seen.append(table.setdefault(key, len(table)))
    names = {number: key for key, number in table.items()}
    digests: list[Any] = []
    for number in range(len(table)):
        label, row = names[number]
        digests.append(hash((label, tuple(digests[o] for o in row))))
    nodes = sorted(digests[n] for n in seen)
    return nodes, sorted(digests[seen[o]] for o in graph.outputs)
