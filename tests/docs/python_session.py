"""Program that executes the Python blocks of a page in one namespace.

It reads a block as a JSON line from stdin, and answers with a JSON line of its output and its error.
"""

import json
import linecache
import os
import signal
import sys
import traceback
import types
from pathlib import Path
from typing import Any


def execute(module: types.ModuleType, block: dict[str, Any]) -> str:
    """Execute a block; return the traceback of its error. An interrupt ends a block that runs until a condition."""
    page, line, text = block["page"], block["line"], block["text"]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    padded = "\n" * (line - 1) + text  # so that tracebacks have the lines of the page
    linecache.cache[page] = (len(padded), None, padded.splitlines(keepends=True), page)
    try:
        exec(compile(padded, page, "exec"), vars(module))  # noqa: S102  a block of our own page
    except KeyboardInterrupt:
        return "" if block["until"] else "interrupted"
    except BaseException as error:  # noqa: BLE001  also SystemExit
        shown = error.__traceback__.tb_next if error.__traceback__ else None
        return "".join(traceback.format_exception(type(error), error, shown))
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # one that comes too late
    return ""


def main() -> None:
    """Execute blocks until the end of stdin."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    output = Path("python-output.txt")
    os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 1)  # also for the processes that blocks start
    module = sys.modules["__main__"] = types.ModuleType("__main__")  # where pickle looks for what blocks define
    sys.path.insert(0, "")
    size = 0
    for line in sys.stdin:
        error = execute(module, json.loads(line))
        sys.stdout.flush()
        text = output.read_bytes()
        answers.write(json.dumps({"output": text[size:].decode(errors="replace"), "error": error}) + "\n")
        answers.flush()
        size = len(text)


if __name__ == "__main__":
    main()
