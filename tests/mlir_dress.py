"""Other clothes for StableHLO text: names drawn anew, lines in another order, dead lines."""

from __future__ import annotations

import re

_VALUE = re.compile(r"%([\w$.\-]+)(#\d+)?")
_RESULTS = re.compile(r"\s*((?:%\w+(?::\d+)?(?:, )?)+) = ")
_PLAIN = re.compile(r"(\s+)%\w+ = (stablehlo\.(?!custom_call|constant)\w+ [^{}]*)$")
_HEADS = ("cond", "} do", "}", "reducer", "^bb")


def _functions(text):
    """Yield the text's lines; those of a function in one list."""
    body = None
    for line in text.split("\n"):
        if line.startswith("  func.func"):
            body = [line]
        elif body is None:
            yield line
        else:
            body.append(line)
            if line == "  }":
                yield body
                body = None


def _indent(line):
    return len(line) - len(line.lstrip())


def _statements(lines):
    least = min(_indent(line) for line in lines)
    found = []
    for line in lines:
        if _indent(line) == least and not line.strip().startswith(_HEADS):
            found.append([line])
        else:
            found[-1].append(line)
    return found


def _defined(statement):
    found = _RESULTS.match(statement[0])
    return set(re.findall(r"%(\w+)", found[1])) if found else set()


def _shuffled(lines, rng):
    *rows, last = _statements(lines)
    defined = [_defined(row) for row in rows]
    here = set().union(*defined) if rows else set()
    needed = [
        ({name for name, _ in _VALUE.findall("\n".join(row))} & here) - mine
        for row, mine in zip(rows, defined, strict=True)
    ]
    left = list(range(len(rows)))
    done: set[str] = set()
    found: list[str] = []
    while left:
        chosen = rng.choice([k for k in left if needed[k] <= done])
        left.remove(chosen)
        done |= defined[chosen]
        found += _shuffled_inside(rows[chosen], rng)
    return [*found, *last]


def _shuffled_inside(statement, rng):
    if len(statement) == 1:
        return statement
    outer = _indent(statement[0])
    found: list[str] = []
    inner: list[str] = []
    for line in statement:
        if _indent(line) <= outer or line.strip().startswith("reducer"):
            found += _shuffled(inner, rng) if inner else []
            inner = []
            found.append(line)
        else:
            inner.append(line)
    return found


def shuffled(text, rng):
    """Draw the order of the lines anew, in regions too; operands stay before users."""
    parts = []
    for part in _functions(text):
        if isinstance(part, list):
            part = [part[0], *_shuffled(part[1:-1], rng), part[-1]]  # noqa: PLW2901
            parts.append("\n".join(part))
        else:
            parts.append(part)
    return "\n".join(parts)


def renamed(text, rng):
    """Draw the names of values, functions and meshes anew."""
    parts = []
    for part in _functions(text):
        if not isinstance(part, list):
            parts.append(part)
            continue
        names: dict[str, str] = {}

        def name(found, names=names):
            new = names.setdefault(found[1], f"v{rng.randrange(1 << 40):x}")
            return f"%{new}{found[2] or ''}"

        parts.append(_VALUE.sub(name, "\n".join(part)))
    text = "\n".join(parts)
    for old in re.findall(r"(?:func\.func private|sdy\.mesh) @(\w+)", text):
        text = re.sub(rf"@{old}(?!\w)", f"@f{rng.randrange(1 << 40):x}", text)
    return text


def deadened(text, rng):
    """Write some lines twice, of which nobody reads the first."""
    found = []
    for line in text.split("\n"):
        plain = _PLAIN.match(line)
        if plain and rng.random() < 0.3:
            found.append(f"{plain[1]}%dead{rng.randrange(10**9)} = {plain[2]}")
        found.append(line)
    return "\n".join(found)
