"""A peer's program, as the benchmark talks to it."""

import json
import os
import subprocess
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

ROOT = Path(__file__).parent.parent.parent
INHERITED = ("PATH", "HOME", "LANG", "TMPDIR", "TASKQ_BENCH_PGMQ_SQL", "TASKQ_BENCH_PGQUE_SQL")


class PeerFailedError(Exception):
    """The error of the peer's program, in one sentence."""


class Process:
    """One process of a peer: `ask` sends a request and waits for its answer; `send` and `answer` do half of it."""

    def __init__(self, command: list[str], environment: dict[str, str], errors: IO[str] | None = None) -> None:
        kept = {name: os.environ[name] for name in INHERITED if name in os.environ}
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**kept, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )

    def __enter__(self) -> Self:
        """The process is running already."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends the process: by the end of its input, or at once after an error."""
        if kind is not None:
            self._process.kill()
        if self._process.stdin and self._process.stdout:
            self._process.stdin.close()
            self._process.stdout.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def kill(self) -> None:
        """Ends the process at once; an answer that is waited for becomes an error."""
        self._process.kill()

    def ask(self, verb: str, **arguments: object) -> Any:
        """The answer to a request."""
        self.send(verb, **arguments)
        return self.answer()

    def send(self, verb: str, **arguments: object) -> None:
        """Sends a request."""
        if self._process.stdin is None:
            raise PeerFailedError("the program has no input")
        self._process.stdin.write(json.dumps({"verb": verb, **arguments}, default=dict) + "\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        """Waits for the answer to the oldest request."""
        line = self._process.stdout.readline() if self._process.stdout else ""
        if not line:
            raise PeerFailedError(f"the program ended with status {self._process.wait(10)}")
        answer = json.loads(line)
        if "error" in answer:
            raise PeerFailedError(answer["error"])
        return answer["ok"]
