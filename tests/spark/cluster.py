"""A Spark cluster on this machine, from the pip distribution: a master, two workers, a Python without our package.

All processes are under a guardian (demo/guardian.py), which ends them if this program dies, also by `kill -9`.
"""

import json
import sys
import time
import urllib.request
import venv
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import distribution
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType

import psutil

from demo.processes import Servers, free_port, tail
from tests.spark.session import SHORT_LIVED

HOST = "127.0.0.1"
# What executors have to have installed: psycopg and pyarrow, which are compiled, and what these and Spark import.
NEEDED = (
    "psycopg",
    "psycopg-binary",
    "typing-extensions",
    "pyarrow",
    "numpy",
    "pandas",
    "python-dateutil",
    "pytz",
    "six",
)


@dataclass(frozen=True)
class Cluster:
    """The address of the cluster, and its processes."""

    master: str
    folder: Path
    workers: tuple[int, ...]

    def executors(self) -> list[psutil.Process]:
        """The processes that run tasks of Spark now."""
        started = [child for worker in self.workers for child in psutil.Process(worker).children()]
        return [each for each in started if is_executor(each)]


def is_executor(process: psutil.Process) -> bool:
    """Whether a process is the JVM of a running executor."""
    try:
        return "org.apache.spark.executor.CoarseGrainedExecutorBackend" in process.cmdline()
    except psutil.NoSuchProcess:  # ended between two checks, or a zombie that its parent has not noticed yet
        return False


@contextmanager
def standalone_cluster(
    folder: Path, hosts: Sequence[str] = (HOST, HOST), environment: Mapping[str, str] = MappingProxyType({})
) -> Iterator[Cluster]:
    """A worker with one core and 1 GiB for each of the loopback addresses; executors inherit the environment."""
    port, page = free_port(), free_port()
    master = f"spark://{HOST}:{port}"
    shared = {
        "PATH": "/usr/bin:/bin",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_LOCAL_DIRS": str(folder / "local"),
        **SHORT_LIVED,
        **environment,
    }
    servers = Servers()

    def start(name: str, role: str, host: str, *arguments: str) -> None:
        command = [str(spark_home() / "bin" / "spark-class"), f"org.apache.spark.deploy.{role}", "--host", host]
        env = {**shared, "SPARK_LOCAL_IP": host}
        servers.start(name, [*command, *arguments], log=folder / f"{name}.log", env=env, cwd=folder)

    try:
        start("master", "master.Master", HOST, "--port", str(port), "--webui-port", str(page))
        _until_alive(page, 0, folder / "master.log")
        for number, host in enumerate(hosts):
            room = ("--cores", "1", "--memory", "1g", "--work-dir", str(folder / f"work-{number}"))
            start(f"worker-{number}", "worker.Worker", host, *room, "--webui-port", "0", master)
        _until_alive(page, len(hosts), folder / "worker-0.log")
        workers = tuple(pid for name, pid in servers.pids.items() if name.startswith("worker"))
        yield Cluster(master, folder, workers)
    finally:
        servers.close()


def _until_alive(page: int, workers: int, log: Path) -> None:
    """Waits until the master's page shows this number of workers."""
    deadline = time.monotonic() + 600
    while _alive(page) != workers:
        assert time.monotonic() < deadline, tail(log)
        time.sleep(0.1)  # between two checks


def _alive(page: int) -> int:
    """The number of workers that the master knows; -1 if it does not answer yet."""
    try:
        with urllib.request.urlopen(f"http://{HOST}:{page}/json/", timeout=10) as answer:
            return int(json.load(answer)["aliveworkers"])
    except (OSError, ValueError):  # ValueError: Spark's page answers before it has its JSON
        return -1


def spark_home() -> Path:
    """The folder of the installed pyspark."""
    spec = find_spec("pyspark")
    assert spec is not None
    return Path(str(spec.origin)).parent


def python_without_us(folder: Path) -> Path:
    """Makes a Python with the requirements of executors, but without this package; returns its program."""
    venv.create(folder, symlinks=True)
    libraries = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    for name in NEEDED:
        for file in distribution(name).files or ():
            top = file.parts[0]
            if top not in ("..", "__pycache__") and not (libraries / top).exists():
                (libraries / top).symlink_to(Path(str(distribution(name).locate_file(top))))
    return folder / "bin" / "python"


def submit_environment(environment: Mapping[str, str], workers_python: Path) -> dict[str, str]:
    """The environment for spark-submit: the driver runs with this Python, the executors with another."""
    kept = {name: value for name, value in environment.items() if name != "PYTHONPATH"}
    return {**kept, **SHORT_LIVED, "PYSPARK_DRIVER_PYTHON": sys.executable, "PYSPARK_PYTHON": str(workers_python)}
