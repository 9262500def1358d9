"""A guardian ends the processes of a killed program."""

import os
import subprocess
import sys
from pathlib import Path

import psutil

PROGRAM = """
import os, time
from pathlib import Path
from demo.processes import Servers

log = Path("log")
Servers().start("leader", ["sh", "-c", "sleep 600 & echo $!"], log=log, env=os.environ, cwd=Path.cwd()).wait()
print(log.read_text(), end="", flush=True)
time.sleep(600)
"""


def test_the_guardian_ends_processes_whose_leader_has_ended(tmp_path: Path, repository: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(repository)}
    command = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        left = psutil.Process(int(program.stdout.readline()))
        program.kill()
    assert psutil.wait_procs([left], timeout=60)[1] == []
