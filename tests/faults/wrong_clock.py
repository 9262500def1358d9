"""A process whose clock is wrong: Debian's library libfaketime changes what it reads."""

from collections.abc import Mapping
from pathlib import Path

LIBRARY = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1")


def wrong_clock(offset: str) -> Mapping[str, str]:
    """The environment of a process whose clock is wrong by an offset, such as `+5h`. Its monotonic clock is right."""
    return {"LD_PRELOAD": str(LIBRARY), "FAKETIME": offset, "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
