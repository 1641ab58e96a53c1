"""The forms of a module's instructions: each of them once."""

from __future__ import annotations

from lazygraph.brackets import fault_of
from lazygraph.common_lines import FaultError
from lazygraph.module import Form
from lazygraph.tokens import COMMENT


class Forms:
    """The forms of one module by what makes them. It knows no reader, which holds the text.

    Attributes:
        numbers: Their positions in the module's table, by head, attributes and literal.
    """

    def __init__(self, table: list[Form]) -> None:
        self.numbers: dict[tuple[str, ...], int] = {}
        self._table = table

    def common(self, key: tuple[str, ...]) -> int:
        """Return the number of the form of a common line.

        Raises:
            FaultError: Its attributes cannot be right.
        """
        found = self.numbers.get(key)
        if found is not None:
            return found
        if key[1] and fault_of(key[1]) is not None:
            raise FaultError
        return self.add(key)

    def add(self, key: tuple[str, ...]) -> int:
        """Return the number of a new form."""
        type_text, _, op = key[0].rpartition(" ")
        number = self.numbers[key] = len(self._table)
        plain = [COMMENT.sub("", part) if "/*" in part else part for part in key[1:]]
        self._table.append(Form(op, type_text, *plain))
        return number
