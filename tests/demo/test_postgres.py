import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import psycopg
import pytest

from demo.guardian import alive
from demo.postgres import EmbeddedPostgres, EmbeddedPostgresError

pytestmark = [pytest.mark.slow, pytest.mark.documents]

FAST = {"fsync": "off"}
CHILD = """
import os, sys
from pathlib import Path
from demo.postgres import EmbeddedPostgres
server = EmbeddedPostgres(Path(sys.argv[1]) if len(sys.argv) > 1 else None, settings={"fsync": "off"})
server.start()
print(server.pid, server.folder, server._servers._guardian.pid, flush=True)
sys.stdin.readline()
raise RuntimeError("ended by its own fault")
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that the account `nobody` can enter; tmp_path of root is closed to it."""
    path = Path(tempfile.mkdtemp(prefix="taskq-test-"))
    path.chmod(0o711)
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres(settings=FAST) as running:
        yield running


def processes_of(folder: Path) -> list[psutil.Process]:
    return [p for p in psutil.process_iter() if alive(p) and any(str(folder) in part for part in command(p))]


def command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def gone(pid: int, seconds: float = 200) -> bool:
    try:
        process = psutil.Process(pid)
    except psutil.NoSuchProcess:
        return True
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not alive(process):
            return True
        time.sleep(0.05)  # between two checks
    return False


def count(dsn: str) -> int:
    with psycopg.connect(dsn) as conn:
        row = conn.execute("SELECT count(*) FROM kept").fetchone()
    assert row is not None
    return int(row[0])


def test_the_server_requires_the_password_on_the_loopback_address_only_and_does_not_run_as_root(
    server: EmbeddedPostgres,
) -> None:
    assert psutil.Process(server.pid).uids().real != 0
    listening = [tuple(each.laddr) for each in psutil.net_connections("inet") if each.status == "LISTEN"]
    assert [address for address, port in listening if port == server.port] == ["127.0.0.1"]
    right = server.dsn.split("@")[1]
    for wrong in (f"postgresql://taskq@{right}", f"postgresql://taskq:guess@{right}"):
        with pytest.raises(psycopg.OperationalError, match="password"):
            psycopg.connect(wrong, passfile="/dev/null").close()


def test_a_given_folder_is_kept_and_opened_again(folder: Path) -> None:
    with EmbeddedPostgres(folder / "below", settings=FAST) as server:
        password = server.dsn
        with psycopg.connect(server.dsn) as conn:
            conn.execute("CREATE TABLE kept AS SELECT 1 AS x")
        with pytest.raises(EmbeddedPostgresError, match="Another program runs"):
            EmbeddedPostgres(folder / "below").start()
        with pytest.raises(EmbeddedPostgresError, match=f"port {server.port}(.|\n)*Address already in use"):
            EmbeddedPostgres(port=server.port).__enter__()
    with EmbeddedPostgres(folder / "below", port=server.port, settings=FAST) as again:
        assert again.dsn == password
        assert count(again.dsn) == 1
    assert (folder / "below" / "password").stat().st_mode & 0o077 == 0
    assert not processes_of(folder)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL, None])
def test_the_server_ends_however_its_program_ends(number: signal.Signals | None) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert child.stdout is not None
    postmaster, place, guardian = child.stdout.readline().split()
    if number is None:
        child.communicate("go on\n", timeout=300)
    else:
        child.send_signal(number)
        child.communicate(timeout=300)
    assert gone(int(postmaster))
    assert gone(int(guardian))
    assert not Path(place).exists()
    assert not processes_of(Path(place))


def test_a_server_that_lost_program_and_guardian_is_ended_by_the_next_start(folder: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    orphan, _, guardian = child.stdout.readline().split()
    os.kill(int(guardian), signal.SIGKILL)
    child.kill()
    child.communicate(timeout=300)
    assert alive(psutil.Process(int(orphan)))
    with EmbeddedPostgres(folder, settings=FAST) as server:
        assert gone(int(orphan))
        assert server.pid != int(orphan)
