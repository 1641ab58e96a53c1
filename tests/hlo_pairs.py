"""Pairs of HLO programs with known differences, small and large, from a seed.

A `Program` is a list of steps with keys. Two programs' steps with one key are the same step, so
the keys say what the true difference is: `truth` gives its cost by the rule that `GraphDiff`
uses. Texts carry none of it: names are drawn anew, lines and parameters may be shuffled.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

from lazygraph import Graph, GraphDiff, parse

LAYER = "encoder.layer"


@dataclass(frozen=True)
class Step:
    """One instruction; operands are keys."""

    key: str
    op: str
    shape: tuple[int, ...]
    operands: tuple[str, ...] = ()
    attrs: str = ""
    literal: str = ""
    dtype: str = "f32"
    scope: str = ""
    line: int = 0

    @property
    def type(self):
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


@dataclass
class Program:
    steps: dict[str, Step] = field(default_factory=dict)
    outputs: list[str] = field(default_factory=list)
    scope: str = ""
    line: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    tape: list[tuple[str, str, tuple[str, ...]]] = field(default_factory=list)

    def add(self, op, shape, operands=(), attrs="", literal="", name=""):
        stem = f"{self.scope}/{name or op}"
        number = self.counts[stem] = self.counts.get(stem, -1) + 1
        key = f"{stem}.{number}"
        self.steps[key] = Step(
            key, op, tuple(shape), tuple(operands), attrs, literal,
            scope=self.scope, line=self.line,
        )  # fmt: skip
        return key

    def shape(self, key):
        return self.steps[key].shape

    def parameter(self, name, shape):
        return self.add("parameter", shape, name=name)

    def constant(self, value):
        return self.add("constant", (), literal=str(value))

    def elementwise(self, op, *keys):
        return self._taped(op, self.add(op, self.shape(keys[0]), keys), keys)

    def broadcast(self, key, shape, dims):
        text = ",".join(map(str, dims))
        made = self.add("broadcast", shape, [key], f"dimensions={{{text}}}")
        return self._taped(f"broadcast:{text}", made, (key,))

    def spread(self, value, like):
        """A constant as large as another value; no gradient."""
        return self.add(
            "broadcast", self.shape(like), [self.constant(value)], "dimensions={}"
        )

    def dot(self, x, w):
        (rows, _), (_, columns) = self.shape(x), self.shape(w)
        attrs = "lhs_contracting_dims={1}, rhs_contracting_dims={0}"
        return self._taped(
            "dot", self.add("dot", (rows, columns), [x, w], attrs), (x, w)
        )

    def transpose(self, x):
        rows, columns = self.shape(x)
        made = self.add("transpose", (columns, rows), [x], "dimensions={1,0}")
        return self._taped("transpose", made, (x,))

    def total(self, x, dim):
        """Sum over one dimension of a matrix."""
        kept = self.shape(x)[1 - dim]
        zero = self.constant(0)
        attrs = f"dimensions={{{dim}}}, to_apply=%add"
        return self._taped(
            f"reduce:{dim}", self.add("reduce", (kept,), [x, zero], attrs), (x,)
        )

    def _taped(self, op, key, operands):
        self.tape.append((op, key, operands))
        return key


def transformer(
    layers=2, *, width=16, batch=8, names=None, optimizer="adam", norm=False,
    dropout=(), extra=0, lr=0.01, bucket=0,
):  # fmt: skip
    """A training step of a small transformer.

    Args:
        names: The layers' names; equal names in two programs are the same layer.
        optimizer: `adam`, `sgd` or empty for the forward pass only.
        norm: Keep the gradients' norm as one more output: a live tensor.
        dropout: Names of the layers that multiply by a mask.
        extra: Further linear modules after the layers.
        lr: Baked into the graph.
        bucket: Coalesce so many gradients in one reduce-scatter; 0: none.
    """
    p = Program()
    names = list(range(layers)) if names is None else names
    p.line = 4
    x = p.parameter("batch", (batch, width))
    weights: list[str] = []
    for name in names:
        p.scope, p.line = f"{LAYER}.{name}", 10
        x = _layer(p, x, width, weights, dropout=name in dropout)
    for name in range(extra):
        p.scope, p.line = f"head.{name}", 20
        x = _linear(p, x, width, weights)
    p.scope, p.line = "loss", 30
    loss = p.total(x, 1)
    p.outputs = [loss]
    if optimizer:
        gradients = _backward(p, loss, weights)
        if bucket:
            gradients = _bucketed(p, weights, gradients, bucket)
        p.scope, p.line = "", 40
        if norm:
            p.outputs.append(_norm(p, [gradients[w] for w in weights]))
        p.line = 50
        for weight in weights:
            _update(p, weight, gradients[weight], optimizer, lr)
    return p


def _linear(p, x, width, weights):
    w, b = p.parameter("weight", (width, width)), p.parameter("bias", (width,))
    weights += [w, b]
    y = p.dot(x, w)
    return p.elementwise("add", y, p.broadcast(b, p.shape(y), [1]))


def _layer(p, x, width, weights, *, dropout):
    q, k, v = (_linear(p, x, width, weights) for _ in range(3))
    p.line += 1
    scores = p.elementwise("exponential", p.dot(q, p.transpose(k)))
    scale = p.broadcast(p.total(scores, 1), p.shape(scores), [0])
    y = p.dot(p.elementwise("divide", scores, scale), v)
    p.line += 1
    y = _linear(p, y, width, weights)
    if dropout:
        mask = p.add("rng", p.shape(y), attrs="distribution=rng_uniform")
        y = p.elementwise("multiply", y, mask)
    x = p.elementwise("add", x, y)
    p.line += 1
    y = p.elementwise("tanh", _linear(p, x, width, weights))
    y = _linear(p, y, width, weights)
    return p.elementwise("add", x, y)


def _backward(p, loss, weights):
    """Gradients by reverse mode over the tape; keys follow the forward's scopes."""
    tape, p.tape = p.tape, []
    p.scope, p.line = "loss (backward)", 31
    start = p.add("broadcast", p.shape(loss), [p.constant(1)], "dimensions={}")
    gradients = {loss: start}
    for op, key, operands in reversed(tape):
        if key not in gradients:
            continue
        step = p.steps[key]
        p.scope, p.line = f"{step.scope} (backward)", step.line
        for operand, gradient in _pullback(p, op, key, operands, gradients[key]):
            known = gradients.get(operand)
            gradients[operand] = (
                gradient if known is None else p.elementwise("add", known, gradient)
            )
    return gradients


def _pullback(p, op, key, operands, g):
    x = operands[0]
    match op.split(":"):
        case ["add"]:
            return [(x, g), (operands[1], g)]
        case ["multiply"]:
            y = operands[1]
            return [(x, p.elementwise("multiply", g, y))]
        case ["divide"]:
            y = operands[1]
            part = p.elementwise("divide", g, y)
            other = p.elementwise("negate", p.elementwise("multiply", part, key))
            return [(x, part), (y, other)]
        case ["exponential"]:
            return [(x, p.elementwise("multiply", g, key))]
        case ["tanh"]:
            one = p.spread(1, key)
            slope = p.elementwise("subtract", one, p.elementwise("multiply", key, key))
            return [(x, p.elementwise("multiply", g, slope))]
        case ["dot"]:
            y = operands[1]
            return [(x, p.dot(g, p.transpose(y))), (y, p.dot(p.transpose(x), g))]
        case ["transpose"]:
            return [(x, p.transpose(g))]
        case ["reduce", dim]:
            return [(x, p.broadcast(g, p.shape(x), [1 - int(dim)]))]
        case ["broadcast", dim]:
            return [(x, p.total(g, 1 - int(dim)))]
    raise AssertionError(op)


def _norm(p, gradients):
    p.scope, p.line = "grad_norm", 45
    total = p.constant(0)
    for gradient in gradients:
        square = p.elementwise("multiply", gradient, gradient)
        rank = len(p.shape(square))
        dims = ",".join(map(str, range(rank)))
        attrs = f"dimensions={{{dims}}}, to_apply=%add"
        part = p.add("reduce", (), [square, p.constant(0)], attrs)
        total = p.elementwise("add", total, part)
    return p.elementwise("sqrt", total)


def _update(p, weight, gradient, optimizer, lr):
    p.scope = f"{p.steps[weight].scope} (update {weight})"
    step = gradient
    if optimizer == "adam":
        first = p.parameter("exp_avg", p.shape(weight))
        second = p.parameter("exp_avg_sq", p.shape(weight))
        first = _mixed(p, first, gradient, 0.9)
        square = p.elementwise("multiply", gradient, gradient)
        second = _mixed(p, second, square, 0.999)
        root = p.elementwise("sqrt", second)
        root = p.elementwise("add", root, p.spread(1e-8, root))
        step = p.elementwise("divide", first, root)
        p.outputs += [first, second]
    scaled = p.elementwise("multiply", step, p.spread(lr, step))
    p.outputs.append(p.elementwise("subtract", weight, scaled))


def _mixed(p, old, new, share):
    kept = p.elementwise("multiply", old, p.spread(share, old))
    fresh = p.elementwise("multiply", new, p.spread(round(1 - share, 6), new))
    return p.elementwise("add", kept, fresh)


def _bucketed(p, weights, gradients, size):
    found = dict(gradients)
    p.scope = "reduce_scatter"
    for number, start in enumerate(range(0, len(weights), size)):
        members = weights[start : start + size]
        operands = tuple(found[w] for w in members)
        for w, operand in zip(members, operands, strict=True):
            key = f"reduce_scatter/{w}"
            p.steps[key] = Step(
                key, "all-reduce", p.shape(w), (operand,), f"group={number}",
                scope=p.scope, line=p.line,
            )  # fmt: skip
            found[w] = key
    return found


# --- texts -------------------------------------------------------------------------------


def text_of(program, *, seed=0, shuffle=False, metadata=True, name="main"):
    """HLO text of a program, and each step's instruction name.

    Args:
        seed: Of the names and, with `shuffle`, of the order of lines and parameters.
        metadata: Whether instructions carry op_name and source line.
    """
    rng = random.Random(seed)  # noqa: S311
    steps = _ordered(program, rng) if shuffle else list(program.steps.values())
    numbers = list(range(10, 10 + 3 * len(steps)))
    parameters = [step.key for step in steps if step.op == "parameter"]
    if shuffle:
        rng.shuffle(parameters)
    position = {key: k for k, key in enumerate(parameters)}
    names = {
        step.key: f"{step.op}.{numbers[3 * k + rng.randrange(3)]}"
        for k, step in enumerate(steps)
    }
    lines = []
    waiting: dict[str, list[Step]] = {}
    for step in steps:
        if step.op == "all-reduce":
            waiting.setdefault(step.attrs, []).append(step)
    for step in steps:
        if step.op == "all-reduce":
            group = waiting[step.attrs]
            if group[-1] is step:
                lines += _collective(program, group, names)
            continue
        lines.append(_line(program, step, names, position, metadata=metadata))
    outputs = list(program.outputs)
    if shuffle:
        rng.shuffle(outputs)
    types = ", ".join(_layout(program.steps[key].type) for key in outputs)
    refs = ", ".join(f"%{names[key]}" for key in outputs)
    lines.append(f"  ROOT %tuple.{9} = ({types}) tuple({refs})")
    body = "\n".join(lines)
    head = (
        f"HloModule {name}\n\n%add (x: f32[], y: f32[]) -> f32[] {{\n"
        "  %x = f32[] parameter(0)\n  %y = f32[] parameter(1)\n"
        "  ROOT %add.1 = f32[] add(%x, %y)\n}\n"
    )
    return f"{head}\nENTRY %main (p: f32[]) -> ({types}) {{\n{body}\n}}\n", names


def _line(program, step, names, position, *, metadata):
    body = step.literal or ", ".join(f"%{names[key]}" for key in step.operands)
    if step.op == "parameter":
        body = str(position[step.key])
    rest = f", {step.attrs}" if step.attrs else ""
    if metadata:
        rest += (
            f', metadata={{op_name="jit(step)/{step.scope}/{step.op}" '
            f'source_file="train.py" source_line={step.line}}}'
        )
    return f"  %{names[step.key]} = {_layout(step.type)} {step.op}({body}){rest}"


def _collective(program, group, names):
    """One coalesced collective and the elements of its result."""
    stem = names[group[0].key].replace("all-reduce", "coalesced")
    types = ", ".join(_layout(step.type) for step in group)
    refs = ", ".join(f"%{names[step.operands[0]]}" for step in group)
    yield f"  %{stem} = ({types}) all-reduce({refs}), replica_groups={{}}, to_apply=%add"
    for k, step in enumerate(group):
        yield (
            f"  %{names[step.key]} = {_layout(step.type)} "
            f"get-tuple-element(%{stem}), index={k}"
        )


def _layout(type_text):
    if type_text.endswith("[]"):
        return type_text
    rank = type_text.count(",") + 1
    return f"{type_text}{{{','.join(map(str, reversed(range(rank))))}}}"


def _ordered(program, rng):
    """The steps in a random order in which operands come first."""
    users: dict[str, list[str]] = {key: [] for key in program.steps}
    missing = {}
    groups: dict[str, set[str]] = {}
    for step in program.steps.values():
        if step.op == "all-reduce":
            groups.setdefault(step.attrs, set()).update(step.operands)
    for step in program.steps.values():
        needed = groups[step.attrs] if step.op == "all-reduce" else set(step.operands)
        missing[step.key] = len(needed)
        for key in needed:
            users[key].append(step.key)
    return [program.steps[key] for key in drawn(missing, users, rng)]


def drawn(missing, users, rng):
    """The keys in a random order, each once nothing is missing: `missing` counts, `users` wait."""
    ready = [key for key, count in missing.items() if not count]
    while ready:
        k = rng.randrange(len(ready))
        ready[k], ready[-1] = ready[-1], ready[k]
        key = ready.pop()
        yield key
        for user in users[key]:
            missing[user] -= 1
            if not missing[user]:
                ready.append(user)


def graph_of_program(program, **options):
    """The parsed graph of a program's text, and each node's key."""
    text, names = text_of(program, **options)
    graph = parse(text)
    return graph, keys_of(graph, names)


def keys_of(graph, names):
    key_of = {f"%{name}": key for key, name in names.items()}
    return [key_of[name] for name in graph.names]


def truth(a: Graph, keys_a, b: Graph, keys_b) -> GraphDiff:
    """The difference that the keys tell."""
    node_b = {key: node for node, key in enumerate(keys_b)}
    node_a = {key: node for node, key in enumerate(keys_a)}
    return GraphDiff(
        a,
        b,
        [node_b.get(key, -1) for key in keys_a],
        [node_a.get(key, -1) for key in keys_b],
    )


# --- random edits ------------------------------------------------------------------------

_UNARY = ("tanh", "exponential", "negate", "sqrt", "abs", "sine")
_BINARY = ("add", "multiply", "subtract", "divide", "maximum", "power")


def edited(program, rng, count):
    """A copy of a program with random edits; not all of them need to show in the result."""
    made = Program(dict(program.steps), list(program.outputs))
    for number in range(count):
        rng.choice((_relabel, _insert, _remove, _rewire, _drop_output, _new_output))(
            made, rng, number
        )
    made.steps = {step.key: step for step in _ordered(made, rng)}
    return made


def _inner(program, rng):
    """Some step with operands of its own shape."""
    found = [
        step
        for step in program.steps.values()
        if step.operands
        and step.op != "all-reduce"
        and program.steps[step.operands[0]].type == step.type
    ]
    return rng.choice(found)


def _relabel(program, rng, number):
    step = _inner(program, rng)
    if step.op in _UNARY or step.op in _BINARY:
        row = _UNARY if step.op in _UNARY else _BINARY
        op = rng.choice([each for each in row if each != step.op])
        program.steps[step.key] = replace(step, op=op)


def _insert(program, rng, number):
    step = _inner(program, rng)
    slot = rng.randrange(len(step.operands))
    old = program.steps[step.operands[slot]]
    key = f"inserted.{number}"
    program.steps[key] = Step(
        key, rng.choice(_UNARY), old.shape, (old.key,), scope=step.scope, line=step.line
    )
    row = list(step.operands)
    row[slot] = key
    program.steps[step.key] = replace(step, operands=tuple(row))


def _remove(program, rng, number):
    step = _inner(program, rng)
    into = step.operands[0]
    for user in list(program.steps.values()):
        if step.key in user.operands:
            row = tuple(into if key == step.key else key for key in user.operands)
            program.steps[user.key] = replace(user, operands=row)
    program.outputs = [into if key == step.key else key for key in program.outputs]
    del program.steps[step.key]


def _rewire(program, rng, number):
    step = _inner(program, rng)
    slot = rng.randrange(len(step.operands))
    old = program.steps[step.operands[slot]]
    above = _above(program, step.key)
    found = [
        each.key
        for each in program.steps.values()
        if each.type == old.type and each.key not in above and each.key != old.key
    ]
    if found:
        row = list(step.operands)
        row[slot] = rng.choice(found)
        program.steps[step.key] = replace(step, operands=tuple(row))


def _above(program, key):
    """A step and all that depend on it."""
    users: dict[str, list[str]] = {}
    for step in program.steps.values():
        for operand in step.operands:
            users.setdefault(operand, []).append(step.key)
    found, stack = {key}, [key]
    while stack:
        for user in users.get(stack.pop(), ()):
            if user not in found:
                found.add(user)
                stack.append(user)
    return found


def _drop_output(program, rng, number):
    if len(program.outputs) > 1:
        program.outputs.pop(rng.randrange(len(program.outputs)))


def _new_output(program, rng, number):
    program.outputs.append(_inner(program, rng).key)
