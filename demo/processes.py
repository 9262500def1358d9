"""Server processes that never outlive the program that started them."""

from __future__ import annotations

import contextlib
import errno
import json
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from demo import guardian

PORTS = range(20_000, 32_768)  # below the ephemeral ports


def free_port() -> int:
    """Return a port of the loopback address that is free and not ephemeral.

    The system gives such a port to no other program. So the port is most likely still free when a server binds it,
    which Airflow does half a minute later.
    """
    while True:
        port = secrets.choice(PORTS)
        try:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
        else:
            return port


def tail(log: Path, lines: int = 20) -> str:
    """Return the last lines of a log, for an error that quotes it."""
    if not log.exists():
        return "(no log)"
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])


class Servers:
    """Processes that each lead a session; a guardian ends them if this program dies first."""

    def __init__(self, temporary: Path | None = None) -> None:
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._signals: dict[str, signal.Signals] = {}
        self._temporary = temporary
        self._guardian: subprocess.Popen[bytes] | None = None

    @property
    def pids(self) -> Mapping[str, int]:
        """The pid of each process started and not yet stopped."""
        return {name: process.pid for name, process in self._running.items()}

    def _order(self, **order: int | str) -> None:
        """Send an order to the guardian, or to a new one if it has ended."""
        if self._guardian is None or self._guardian.poll() is not None:
            self._guardian = self._new_guardian()
            if self._temporary is not None:
                self._order(folder=str(self._temporary))
            for name, process in self._running.items():
                self._order(watch=process.pid, signal=int(self._signals[name]))
        if self._guardian.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._guardian.stdin.write(json.dumps(order).encode() + b"\n")

    def _new_guardian(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-I", guardian.__file__],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # so that it does not get the terminal's Ctrl-C
            cwd="/",
        )

    def start(
        self,
        name: str,
        command: Sequence[str],
        *,
        log: Path,
        env: Mapping[str, str],
        cwd: Path,
        account: tuple[int, int] | None = None,
        stop_signal: signal.Signals = signal.SIGTERM,
    ) -> subprocess.Popen[bytes]:
        """Start one process; `account` is a user and group id to run it under."""
        user, group = account or (None, None)
        with log.open("ab") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=dict(env),
                cwd=cwd,
                start_new_session=True,
                user=user,
                group=group,
                extra_groups=[] if account else None,
            )
        self._running[name], self._signals[name] = process, stop_signal
        self._order(watch=process.pid, signal=int(stop_signal))
        return process

    def exit_code(self, name: str) -> int | None:
        """Return the exit code of the process, negative for a signal. Return None while the process runs."""
        return self._running[name].poll()

    def stop(self, *names: str, with_signal: signal.Signals | None = None, patience: float = 30) -> None:
        """Send all of them their signals at once, and kill what is left of each session after `patience` seconds."""
        leaders = {self._running[name].pid: int(with_signal or self._signals[name]) for name in names}
        guardian.end_all(leaders, patience)
        self._reap(*names)

    def kill(self, name: str) -> None:
        """Send SIGKILL to the process and all processes that it started."""
        guardian.kill_family(self._running[name].pid)
        self._reap(name)

    def close(self) -> None:
        """Stop all processes, and then the guardian, which removes the temporary folder."""
        self.stop(*self._running)
        if self._guardian is not None:
            self._guardian.communicate(timeout=60)
            self._guardian = None

    def _reap(self, *names: str) -> None:
        for name in names:
            process = self._running.pop(name)
            process.wait(timeout=10)
            self._order(forget=process.pid)
