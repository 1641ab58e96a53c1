"""What a file that is passed on should not tell: the home directory, and obvious secrets."""

from __future__ import annotations

import base64
import re
from pathlib import Path

from lazyviz.render.escape import markup

_MASK = "•••"
_NAMES = r"token|secret|passw(?:or)?d|passphrase|api_?key|access_?key|private_?key|credentials?"
_NAMED = rf"\b[\w.\[\]'\"-]{{0,60}}(?:{_NAMES})\w{{0,20}}['\"\]]{{0,3}}\s{{0,3}}"
_ANNOTATION = r"(?::\s{0,3}[\w.\[\]| ]{1,40})?"
# A string of Python, one that the end of the text cuts off included.
_LITERAL = "|".join(
    rf"{mark}(?:\\[\s\S]|(?!{mark})[{inside}])*(?:{mark}|\Z)"
    for mark, inside in (
        ('"""', r"\s\S"),
        ("'''", r"\s\S"),
        ('"', r"^\n"),
        ("'", r"^\n"),
    )
)
# `hf_token = "..."`, `token: str = b"..."`, `{"password": "..."}`, `api_key=...` in a shell line or
# an address.
_ASSIGNED = re.compile(
    rf"(?i)({_NAMED}(?:{_ANNOTATION}=|:)[\s(]{{0,3}}[bfru]{{0,2}})({_LITERAL}|[^\s\"'(),;&]{{6,}})"
)
# `environ.setdefault("API_KEY", "...")`
_PASSED = re.compile(rf"(?i)([\"']{_NAMED},\s{{0,3}})({_LITERAL})")
# What the larger services' tokens look like, wherever they stand.
_TOKENS = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}"
    r"|sk-[\w-]{16,}|AKIA[0-9A-Z]{16}|xox[abprs]-[\w-]{10,}|AIza[\w-]{30,}"
    r"|eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]*)"
)
_USER_IN_ADDRESS = re.compile(r"(?<=://)[^\s/@:\"']+:[^\s/@\"']+(?=@)")
_EMBEDDED = re.compile(r"(data:image/svg\+xml;base64,)([A-Za-z0-9+/=]+)")


def masked(source: str) -> str:
    """Return source text with obvious secrets replaced: a best effort, and no promise.

    Example:
        >>> masked('hf_token = "abc"; n = 3')
        'hf_token = "•••"; n = 3'
    """
    for pattern in (_ASSIGNED, _PASSED):
        source = pattern.sub(_mask_value, source)
    source = _TOKENS.sub(_MASK, source)
    return _USER_IN_ADDRESS.sub(_MASK, source)


def _mask_value(found: re.Match[str]) -> str:
    name, value = found.groups()
    if value[0] in "\"'":
        quotes = value[:3] if value[:3] == 3 * value[0] else value[0]
        return f"{name}{quotes}{_MASK}{quotes}"
    # What is computed is no secret: `token = tokens[0]`, `api_key=None`.
    if re.fullmatch(r"[A-Za-z_][A-Za-z_.]*(\[.*)?", value):
        return found[0]
    return name + _MASK


def shortened(page: str, home: Path | None = None) -> str:
    """Return a page with the home directory written as `~`, also within its pictures.

    Args:
        page: HTML or text.
        home: By default the user's.
    """
    names = _names_of(home or _home())
    if not names:
        return page
    pattern = re.compile(
        rf"(?<![\w.~-])(?:{'|'.join(map(re.escape, names))})(?![\w.-])"
    )

    def in_picture(found: re.Match[str]) -> str:
        try:
            picture = base64.b64decode(found[2]).decode()
        except ValueError:  # what a cell of the user's has written in such a form
            return found[0]
        cleaned = pattern.sub("~", picture)
        if cleaned == picture:
            return found[0]
        return found[1] + base64.b64encode(cleaned.encode()).decode()

    return _EMBEDDED.sub(in_picture, pattern.sub("~", page))


def _home() -> Path | None:
    try:
        return Path.home()
    except RuntimeError:  # no home at all
        return None


def _names_of(home: Path | None) -> list[str]:
    """Return how a page may spell the directory, the longest first."""
    if home is None or len(home.parts) < 2:  # noqa: PLR2004 - the root itself
        return []
    names = {str(home), str(home.resolve())}
    names |= {markup(name) for name in names}
    return sorted(names, key=len, reverse=True)
