"""free_port() chooses ports for servers that bind them later. A guardian ends the processes of a killed program."""

import os
import secrets
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from demo.processes import free_port

PROGRAM = """
import os, time
from pathlib import Path
from demo.processes import Servers

log = Path("log")
Servers().start("leader", ["sh", "-c", "sleep 600 & echo $!"], log=log, env=os.environ, cwd=Path.cwd()).wait()
print(log.read_text(), end="", flush=True)
time.sleep(600)
"""


def test_a_free_port_is_never_an_ephemeral_port() -> None:
    first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="utf-8").split())
    assert not any(first <= free_port() <= last for _ in range(100))


def test_a_port_in_use_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    free = free_port()
    with socket.create_server(("127.0.0.1", 0)) as server:
        ports = iter([server.getsockname()[1], free])
        monkeypatch.setattr(secrets, "choice", lambda _: next(ports))
        assert free_port() == free


def test_the_guardian_ends_processes_whose_leader_has_ended(tmp_path: Path, repository: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(repository)}
    command = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        left = psutil.Process(int(program.stdout.readline()))
        program.kill()
    assert psutil.wait_procs([left], timeout=60)[1] == []
