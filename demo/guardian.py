"""Ends the servers of a program that has died: a small process that waits for the end of its standard input.

The program that starts servers writes a line of JSON for each. The kernel closes the pipe when that program ends, even
by `kill -9`. The guardian runs as a script, and imports nothing of this package.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterable, Mapping

import psutil


def alive(process: psutil.Process) -> bool:
    """Return whether a process still runs. A process that only waits to be reaped does not run."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def family(leader: int) -> list[psutil.Process]:
    """Return the running processes that belong to the leader of a session.

    These are the leader and its descendants, and the other processes of the session.
    """
    found: dict[int, psutil.Process] = {}
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(leader)
        found = {each.pid: each for each in [process, *process.children(recursive=True)]}
    for pid in psutil.pids():
        with contextlib.suppress(OSError, psutil.NoSuchProcess):
            if os.getsid(pid) == leader:
                found.setdefault(pid, psutil.Process(pid))
    return [process for process in found.values() if alive(process)]


def wait_until_gone(processes: Iterable[psutil.Process], patience: float) -> None:
    """Wait until all processes have ended, at most `patience` seconds."""
    deadline = time.monotonic() + patience
    left = [process for process in processes if alive(process)]
    while left and time.monotonic() < deadline:
        time.sleep(0.02)  # not all of them are our children, so waitpid cannot wait for them
        left = [process for process in left if alive(process)]


def kill_family(leader: int, known: Iterable[psutil.Process] = ()) -> None:
    """Send SIGKILL to the remaining processes of a leader's family, until all have ended."""
    deadline = time.monotonic() + 10
    left = [*known, *family(leader)]
    while left and time.monotonic() < deadline:
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        wait_until_gone(left, 1)
        left = [process for process in [*left, *family(leader)] if alive(process)]


def end_all(leaders: Mapping[int, int], patience: float) -> None:
    """Send each leader (pid: signal) its signal, all at once; kill what is left of their families after a time."""
    families = {leader: family(leader) for leader in leaders}
    for leader, number in leaders.items():
        for process in families[leader]:
            if process.pid == leader:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.send_signal(number)
    wait_until_gone([each for some in families.values() for each in some if each.pid in leaders], patience)
    for leader, known in families.items():
        kill_family(leader, [process for process in known if alive(process)])


def main() -> None:
    """Read orders from standard input until it ends, then end the processes that are still watched."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # only the end of the pipe ends the guardian
    watched: dict[int, tuple[psutil.Process | None, int]] = {}  # pid: None if it has ended already, and its signal
    folders: set[str] = set()
    for line in sys.stdin:
        order = json.loads(line)
        if "watch" in order:
            watched[order["watch"]] = (None, order["signal"])
            with contextlib.suppress(psutil.NoSuchProcess):
                watched[order["watch"]] = (psutil.Process(order["watch"]), order["signal"])
        if "forget" in order:
            watched.pop(order["forget"], None)
        if "folder" in order:
            folders.add(order["folder"])
    # A process object knows its start time: a process that has reused the pid since then is not ended. No process gets
    # the pid of a dead leader while its session has processes: they are ended, too.
    ours = {
        pid: number
        for pid, (process, number) in watched.items()
        if (process and process.is_running()) or not psutil.pid_exists(pid)
    }
    end_all(ours, 30)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
