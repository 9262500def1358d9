"""CPU time and memory of Spark's JVM, of Python and of the server, from /proc: a busy machine does not distort it."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

TICK = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Cpu:
    """CPU seconds by process; those of processes that have ended are counted for their parents."""

    jvm: float
    python: float
    server: float

    def since(self, before: "Cpu") -> "Cpu":
        """The difference to an earlier reading."""
        return Cpu(self.jvm - before.jvm, self.python - before.python, self.server - before.server)

    def __str__(self) -> str:
        return f"CPU: Python {self.python:.2f} s, JVM {self.jvm:.2f} s, server {self.server:.2f} s"


def cpu(server_pid: int | None) -> Cpu:
    """The CPU time so far of this process and its descendants, and of a server on this machine."""
    jvm = python = 0.0
    processes = [server_pid, *below(server_pid)] if server_pid else []
    for pid in [os.getpid(), *below(os.getpid())]:
        own, ended = _seconds(pid)
        if pid in processes:
            continue
        if is_java(pid):
            jvm, python = jvm + own, python + ended
        else:
            python += own + (ended if pid != os.getpid() else 0)
    return Cpu(jvm, python, sum(sum(_seconds(pid)) for pid in processes))


def below(pid: int) -> Iterator[int]:
    """The processes that a process has started, and those that they have."""
    try:
        children = [int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in _children(task)]
    except OSError:
        return
    for child in children:
        yield child
        yield from below(child)


def is_java(pid: int) -> bool:
    """Whether this is Spark's JVM."""
    try:
        return "java" in Path(f"/proc/{pid}/exe").readlink().name
    except OSError:
        return False


def resident(pid: int) -> float:
    """The memory of a process in MB; 0 when it has ended."""
    try:
        text = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in text.splitlines() if line.startswith("VmRSS")), 0.0)


def _children(task: Path) -> list[str]:
    return (task / "children").read_text(encoding="ascii").split()


def _seconds(pid: int) -> tuple[float, float]:
    """CPU seconds of a process, and of its children that have ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    except OSError:
        return 0.0, 0.0
    return (int(fields[11]) + int(fields[12])) / TICK, (int(fields[13]) + int(fields[14])) / TICK
