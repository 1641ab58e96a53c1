"""A third maker of pairs: a chain of layers as text, edited row by row, the script's length known.

It counts while it edits, where the others compare keys; so it knows an upper bound for edits that
move, exchange or repeat what the program has already.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

SQUARE = "f32[8,8]"
_DOT = "lhs_contracting_dims={1}, rhs_contracting_dims={0}"
_UNARY = ("negate", "abs", "cosine", "floor", "ceil", "sign")


@dataclass
class Row:
    """One instruction; operands are names."""

    name: str
    type: str
    op: str
    operands: list[str]
    attrs: str = ""
    literal: str = ""
    scope: str = ""


@dataclass
class Chain:
    """A program: rows, the names of its results, and how many layers it has."""

    rows: list[Row] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    layers: int = 0

    def add(self, op, *operands, kind=SQUARE, attrs="", literal="", scope=""):
        name = f"{op}.{len(self.rows)}"
        self.rows.append(Row(name, kind, op, list(operands), attrs, literal, scope))
        return name

    def copy(self):
        rows = [Row(**{**vars(row), "operands": [*row.operands]}) for row in self.rows]
        return Chain(rows, [*self.outputs], self.layers)

    def users(self, name):
        """Return rows and slots that read a value."""
        return [
            (row, slot)
            for row in self.rows
            for slot, operand in enumerate(row.operands)
            if operand == name
        ]

    def layer(self, number):
        """Return a layer's rows, what it reads of the one before, and what it gives."""
        rows = [row for row in self.rows if row.scope == f"net.{number}"]
        own = {row.name for row in rows}
        read = [name for row in rows for name in row.operands if name not in own]
        return rows, read[0], rows[-1].name

    def redirect(self, users, old, new):
        """Let users read, and results be, another value; return what that costs."""
        for row, slot in users:
            row.operands[slot] = new
        cost = len(users) + 2 * self.outputs.count(old)
        self.outputs = [new if name == old else name for name in self.outputs]
        return cost

    def text(self, *, scopes=True):
        rows, number = [], 0
        for row in self._in_order():
            inside = ", ".join(f"%{name}" for name in row.operands) or row.literal
            if row.op == "parameter":
                inside, number = str(number), number + 1
            rest = f", {row.attrs}" if row.attrs else ""
            if scopes and row.scope:
                rest += f', metadata={{op_name="jit(f)/{row.scope}/{row.op}"}}'
            rows.append(f"  %{row.name} = {row.type} {row.op}({inside}){rest}")
        kinds = {row.name: row.type for row in self.rows}
        results = ", ".join(kinds[name] for name in self.outputs)
        names = ", ".join(f"%{name}" for name in self.outputs)
        end = f"  ROOT %out = ({results}) tuple({names})"
        return "\n".join(["HloModule m", "ENTRY %main () -> f32[] {", *rows, end, "}"])

    def _in_order(self):
        by_name = {row.name: row for row in self.rows}
        done: dict[str, Row] = {}
        for start in self.rows:
            stack = [start]
            while stack:
                row = stack[-1]
                missing = [by_name[n] for n in row.operands if n not in done]
                if not missing:
                    done[row.name] = row
                    stack.pop()
                stack += missing
        return done.values()


def chain(rng, size):
    """Return a program of at least so many rows; some layers are read again at its end."""
    made = Chain()
    x = made.add("parameter")
    kinds = [rng.choice(_LAYERS) for _ in range(rng.choice((1, 2, 4)))]
    skips = []
    while len(made.rows) < size:
        x = kinds[made.layers % len(kinds)](made, x, rng, f"net.{made.layers}")
        made.layers += 1
        if rng.random() < 0.1:
            skips.append(x)
    for skip in skips[:6]:
        x = made.add("add", x, skip)
    made.outputs = [x, *rng.sample(skips, min(2, len(skips)))]
    return made


def _attention(made, x, rng, scope):
    def dot(a, b):
        return made.add("dot", a, b, attrs=_DOT, scope=scope)

    weights = [made.add("parameter", scope=scope) for _ in range(4)]
    q, k, v = (dot(x, weight) for weight in weights[:3])
    turned = made.add("transpose", k, attrs="dimensions={1,0}", scope=scope)
    e = made.add("exponential", dot(q, turned), scope=scope)
    share = made.add("divide", e, e, scope=scope)
    return made.add("add", x, dot(dot(share, v), weights[3]), scope=scope)


def _gated(made, x, rng, scope):
    gate, up = (
        made.add("dot", x, made.add("parameter", scope=scope), attrs=_DOT, scope=scope)
        for _ in range(2)
    )
    gate = made.add("logistic", gate, scope=scope)
    return made.add("add", made.add("multiply", gate, up, scope=scope), x, scope=scope)


def _filled(made, value, scope):
    c = made.add("constant", kind="f32[]", literal=value, scope=scope)
    return made.add("broadcast", c, attrs="dimensions={}", scope=scope)


def _wave(made, x, rng, scope):
    low = made.add(
        "maximum", x, _filled(made, f"{rng.random():.3f}", scope), scope=scope
    )
    one, two = made.add("tanh", low, scope=scope), made.add("sine", x, scope=scope)
    return made.add(
        "multiply", made.add("subtract", one, two, scope=scope), low, scope=scope
    )


def _scaled(made, x, rng, scope):
    y = made.add("multiply", x, x, scope=scope)
    y = made.add("rsqrt", made.add("add", y, _filled(made, "1e-05", scope), scope=scope), scope=scope)  # fmt: skip
    y = made.add("multiply", x, y, scope=scope)
    return made.add("multiply", y, made.add("parameter", scope=scope), scope=scope)


_LAYERS = (_attention, _gated, _wave, _scaled)


# Edits return the length of a script that makes them.


def op_behind_each_layer(made, rng):
    cost = 0
    for number in range(made.layers):
        *_, given = made.layer(number)
        users = made.users(given)
        new = made.add("cosine", given)
        cost += 1 + made.redirect(users, given, new)
    return cost


def layer_again(made, rng):
    """A copy of a layer behind it."""
    rows, read, given = made.layer(made.layers // 2)
    users = made.users(given)
    names = {read: given}
    for row in rows:
        operands = [names.get(name, name) for name in row.operands]
        names[row.name] = made.add(row.op, *operands, kind=row.type, attrs=row.attrs, literal=row.literal)  # fmt: skip
    return len(rows) + made.redirect(users, given, names[given])


def layer_gone(made, rng):
    rows, read, given = made.layer(made.layers // 2)
    own = {row.name for row in rows}
    users = [(row, slot) for row, slot in made.users(given) if row.name not in own]
    made.rows = [row for row in made.rows if row.name not in own]
    return len(rows) + made.redirect(users, given, read)


def layers_exchanged(made, rng):
    (one, read, given), (two, _, last) = (made.layer(made.layers // 2 + k) for k in (-1, 0))  # fmt: skip
    of_one = [(row, slot) for row, slot in made.users(read) if row in one]
    of_two = [(row, slot) for row, slot in made.users(given) if row in two]
    behind = made.users(last)
    cost = made.redirect(behind, last, given)
    return cost + sum(
        made.redirect(users, "", name)
        for users, name in ((of_one, last), (of_two, read))
    )


def layers_side_by_side(made, rng):
    """A layer reads what the one before reads, and their sum goes on."""
    (_, read, given), (two, _, last) = (made.layer(made.layers // 2 + k) for k in (-1, 0))  # fmt: skip
    cost = made.redirect([(r, s) for r, s in made.users(given) if r in two], "", read)
    behind = made.users(last)
    total = made.add("add", given, last)
    return 1 + cost + made.redirect(behind, last, total)


def constants(made, rng):
    found = [row for row in made.rows if row.op == "constant"]
    for row in found:
        row.literal = "0.777"
    return len(found)


def scopes_renamed(made, rng):
    for row in made.rows:
        row.scope = row.scope.replace("net.", "model.body.")
    return 0


def dead_code(made, rng):
    for row in rng.sample(made.rows, 9):
        made.add("negate", row.name, kind=row.type)
    return 0


def op_exchanged(made, rng):
    found = [row for row in made.rows if len(row.operands) == 1 and not row.attrs]
    row = rng.choice(found or [Row("", "", "", [])])
    row.op = rng.choice([op for op in _UNARY if op != row.op])
    return bool(found)


def op_between(made, rng):
    """Behind one value: all that read it go by the new op."""
    value = rng.choice([row.name for row in made.rows if row.type == SQUARE])
    users = made.users(value)
    return 1 + made.redirect(users, value, made.add(rng.choice(_UNARY), value))


def there_and_back(made, rng):
    """A value goes through another dtype."""
    value = rng.choice([row.name for row in made.rows if row.type == SQUARE])
    users = made.users(value)
    there = made.add("convert", value, kind="bf16[8,8]")
    return 2 + made.redirect(users, value, made.add("convert", there))


def operands_turned(made, rng):
    found = [row for row in made.rows if len(set(row.operands)) == 2]
    rng.choice(found).operands.reverse()
    return 2


STRUCTURED = (
    op_behind_each_layer, layer_again, layer_gone, layers_exchanged, layers_side_by_side,
    constants, scopes_renamed, dead_code,
)  # fmt: skip
SINGLE = (op_exchanged, op_between, there_and_back, operands_turned)


def pair(seed, size, edits):
    """Return two programs, of which the second is edited, and the length of a script."""
    rng = random.Random(seed)  # noqa: S311 - reproducible
    one = chain(rng, size)
    two = one.copy()
    return one, two, sum(edit(two, rng) for edit in edits)
