"""Text of unknown origin, made safe for a terminal."""

import unicodedata

_SPACES = {"\t": "\\t", "\n": "\\n", "\r": "\\r"}


def plain(text: str, *, lines: bool = False) -> str:
    """The text with everything written out that would steer a terminal: escapes, controls, changes of direction.

    `lines`: line breaks stay, and tabs.
    """
    if text.isprintable():
        return text
    kept = "\n\t" if lines else ""
    return "".join(c if c in kept or not _steers(c) else _SPACES.get(c) or _written_out(c) for c in text)


def _steers(character: str) -> bool:
    """Whether it is a control, a format character, a line separator or half of a surrogate pair."""
    return unicodedata.category(character) in {"Cc", "Cf", "Cs", "Zl", "Zp"}


def _written_out(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 65536 else f"\\U{code:08x}"
