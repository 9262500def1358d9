"""Errors as text: a bounded traceback, and the one line that sums the error up."""

import traceback
from typing import Self

MAX_TRACE = 10_000
MAX_SUMMARY = 200
_MAX_LEAVES = 3


class ErrorTrace(str):
    """A traceback as text that still knows the summary of its exception, also after pickling."""

    __slots__ = ("summary",)
    summary: str

    @classmethod
    def of(cls, error: BaseException) -> Self:
        """The bounded traceback of an exception."""
        trace = cls(trace_text(error))
        trace.summary = _summary(error)
        return trace


def picklable_error(error: BaseException | str | None) -> str | None:
    """An error in a form that always pickles and loses neither traceback nor summary."""
    return ErrorTrace.of(error) if isinstance(error, BaseException) else error


def trace_text(error: BaseException | str | None) -> str | None:
    """An error as text of at most 10,000 characters: of a longer one the first line and the end, where the cause is."""
    if error is None:
        return None
    text = _storable(error if isinstance(error, str) else "".join(traceback.format_exception(error)))
    if len(text) <= MAX_TRACE:
        return text
    first = _summary(error) if isinstance(error, BaseException) else _shortened(text.split("\n", 1)[0])
    return f"{first}\n... {text[len(first) + 5 - MAX_TRACE :]}"


def error_summary(error: BaseException | str | None) -> str | None:
    """The error in one line of at most 200 characters, such as `ValueError: no mailbox for bad-1`.

    None for a plain text: the database finds the line in it (taskq.error_summary).
    """
    if isinstance(error, ErrorTrace):
        return error.summary
    return _summary(error) if isinstance(error, BaseException) else None


def _summary(error: BaseException) -> str:
    message = _group_message(error) if isinstance(error, BaseExceptionGroup) else _message(error)
    name = _type_name(type(error))
    return _shortened(f"{name}: {message}" if message else name)


def _type_name(kind: type[BaseException]) -> str:
    """The name of an exception's type as a traceback prints it."""
    module = kind.__module__
    return kind.__qualname__ if module in ("builtins", "__main__") else f"{module}.{kind.__qualname__}"


def _message(error: BaseException) -> str:
    """The first line of an exception's message that is not blank."""
    try:
        text = error.msg if isinstance(error, SyntaxError) else str(error)
    except Exception:  # noqa: BLE001 -- whatever a foreign __str__ raises, the task still failed
        return "<exception str() failed>"
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def _group_message(group: BaseExceptionGroup[BaseException]) -> str:
    """The message of a group and the summaries of the first different exceptions in it."""
    leaves = list(dict.fromkeys(_leaves(group)))
    shown = "; ".join(leaves[:_MAX_LEAVES])
    more = f"; {len(leaves) - _MAX_LEAVES} more" if len(leaves) > _MAX_LEAVES else ""
    return f"{group.message.splitlines()[0] if group.message else ''} ({shown}{more})".lstrip()


def _leaves(group: BaseExceptionGroup[BaseException]) -> list[str]:
    """The summaries of the exceptions in a group and in the groups inside it."""
    return [
        leaf
        for each in group.exceptions
        for leaf in (_leaves(each) if isinstance(each, BaseExceptionGroup) else [_summary(each)])
    ]


def _shortened(text: str) -> str:
    """A text of at most 200 characters that PostgreSQL can store."""
    text = _storable(text)
    return text if len(text) <= MAX_SUMMARY else text[: MAX_SUMMARY - 3] + "..."


def _storable(text: str) -> str:
    """The text without what PostgreSQL cannot store: NUL and lone surrogates."""
    return text.replace("\x00", "\\0").encode("utf-8", "backslashreplace").decode()
