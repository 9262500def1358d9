"""Identifiers as a DAG gives them: a list, what another task returned, or the text that a template made of that."""

import ast
import json
from collections.abc import Iterable, Mapping
from typing import Any


def identifiers_of(given: Any) -> tuple[str, ...]:
    """The identifiers, each once. A text is one identifier, unless it is that of a list: `['a', 'b']`."""
    read = _read(given)
    return _identifiers([read] if isinstance(read, str) else read)


def groups_of(given: Any) -> tuple[tuple[str, ...], ...]:
    """The groups of identifiers. Each may be given as a text too, that of a list; so may all of them."""
    return tuple(_identifiers(_read(group)) for group in _listed(_read(given), "groups"))


def _identifiers(given: Any) -> tuple[str, ...]:
    listed = _listed(given, "identifiers")
    for identifier in listed:
        if not isinstance(identifier, str) or not identifier.strip():
            raise ValueError(f"an identifier is a text that is not blank, not {_shown(identifier)}")
    return tuple(dict.fromkeys(listed))


def _listed(given: Any, what: str) -> list[Any]:
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise ValueError(f"a list of {what} is needed, not {_shown(given)}")  # noqa: TRY004  one error for what is given
    return list(given)


def _read(given: Any) -> Any:
    """What a template's text says: JSON or, as Jinja renders a list, Python; anything else as it is."""
    if not isinstance(given, str) or not given.strip().startswith("["):
        return given
    try:
        return json.loads(given)
    except ValueError:
        pass
    try:
        return ast.literal_eval(given.strip())
    except (ValueError, SyntaxError):
        raise ValueError(f"the text {_shown(given)} begins like a list, but is none") from None


def _shown(given: Any) -> str:
    """A value, cut short for a message."""
    text = repr(given)
    return text if len(text) <= 80 else f"{text[:77]}..."
