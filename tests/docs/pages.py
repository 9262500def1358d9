"""Runs a page as a program: its blocks one after the other, in one database, one folder and one Python namespace."""

import configparser
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

import psycopg
import yaml
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import ExecStatus

from tests.docs.blocks import Block, BlockError, check_output, read_commands, split_statements
from tests.docs.installs import INSTALL

HERE = Path(__file__).parent
PATIENCE = 900  # seconds for a block, and until a condition holds

# `taskq` is that of this checkout. `pip` installs nothing: test_installs.py runs the install commands of all pages.
TASKQ = '#!/bin/sh\nexec "{python}" -m airflow_provider_taskq.cli "$@"\n'
PIP = "#!/bin/sh\necho 'pip: a page installs in lines that start with pip install' >&2\nexit 1\n"

# A page writes its database like this.
PLACEHOLDER = re.compile(r"\b(postgres|postgresql|taskq)://user(?::password)?@host(?::5432)?/database\b")
_DEFINES_DAG = re.compile(r"\bDAG\(|^@dag\b", re.MULTILINE)


class Page:
    """A page that runs. Use it in a `with` block, which ends all that the page has started."""

    def __init__(self, folder: Path, dsn: str, environment: Mapping[str, str]) -> None:
        self._folder, self._dsn = folder, dsn
        self._uri = _uri(dsn)
        self._env = {**environment, **_own_environment(folder, dsn)}
        self._conn = psycopg.connect(dsn, autocommit=True)
        self._python: subprocess.Popen[str] | None = None
        self._behind: list[subprocess.Popen[bytes]] = []
        self._dags: list[Block] = []

    def __enter__(self) -> Self:
        """Make the programs that the shell of the page finds first."""
        programs = self._folder / "bin"
        programs.mkdir()
        for name, text in {"taskq": TASKQ, "pip": PIP}.items():
            (programs / name).write_text(text.format(python=sys.executable))
            (programs / name).chmod(0o755)
        return self

    def __exit__(self, *_: object) -> None:
        """End all processes."""
        for process in self._behind:
            _end(process)
        if self._python and self._python.stdin:
            with suppress(OSError):
                self._python.stdin.close()  # it ends at the end of its input
            with suppress(subprocess.TimeoutExpired):
                self._python.wait(10)
            _end(self._python)
        self._conn.close()

    def run(self, blocks: list[Block]) -> None:
        """Run all blocks, then parse the DAGs. Raise BlockError for the first block that fails."""
        handlers: dict[str, Callable[[Block], None]] = {
            "sql": self._run_sql,
            "bash": self._run_bash,
            "console": self._run_console,
            "python": self._run_python,
            "java": self._run_java,
        }
        for place, block in enumerate(blocks):
            if block.title:
                self._save(block, blocks[:place] + blocks[place + 1 :])
            if block.language in handlers and not (block.title and block.language in ("python", "sql")):
                handlers[block.language](block)
            else:
                _parse(block)
        self._parse_dags()

    def _save(self, block: Block, others: list[Block]) -> None:
        """Save a block as the file of its title. Another block has to use it, unless it is data or a DAG."""
        file = self._folder / block.title
        if not file.resolve().is_relative_to(self._folder):
            raise BlockError(f"{block.place}: {block.title} is not in the folder of the page")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(self._named(block.text), encoding="utf-8")
        if block.language == "python" and _DEFINES_DAG.search(block.text):
            self._keep_dag(block, Path(block.title).name)
        elif block.language in ("python", "sql") and not any(file.stem in other.text for other in others):
            raise BlockError(f"{block.place}: no other block uses {block.title}")

    def _keep_dag(self, block: Block, name: str) -> None:
        dags = self._folder / "airflow" / "dags"
        dags.mkdir(parents=True, exist_ok=True)
        (dags / name).write_text(block.text, encoding="utf-8")
        self._dags.append(block)

    # ------------------------------------------------------------------------------------------------------- SQL

    def _run_sql(self, block: Block) -> None:
        """Execute the statements of a block, each on its own; compare as psql prints results."""
        output, failed = "", ""
        for statement in split_statements(block.text):
            result = self._conn.pgconn.exec_(statement.encode())
            if result.status == ExecStatus.TUPLES_OK:
                cells = [[_name(result, column) for column in range(result.nfields)]]
                cells += [
                    [_value(result, row, column) for column in range(result.nfields)] for row in range(result.ntuples)
                ]
                rows = "row" if result.ntuples == 1 else "rows"
                output += "".join("|".join(row) + "\n" for row in cells) + f"({result.ntuples} {rows})\n"
            elif result.status not in (ExecStatus.COMMAND_OK, ExecStatus.EMPTY_QUERY):
                failed = f"ERROR:  {result.error_message.decode().removeprefix('ERROR:').strip()}"
                output += failed.splitlines()[0] + "\n"
        _compare(block, output, failed)

    def _holds(self, condition: str) -> bool:
        """Return whether a condition holds: a query with one true value, or a command of the shell that succeeds."""
        if not condition.startswith("SELECT "):
            return self._shell(condition).returncode == 0
        row = self._conn.execute(condition.encode()).fetchone()
        return bool(row and row[0])

    def _await(self, condition: str, ended: Callable[[], bool]) -> bool:
        """Wait until a condition holds. Return False if the block ends first or the condition never becomes true."""
        deadline = time.monotonic() + PATIENCE
        while not self._holds(condition):
            if ended() or time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True

    # ----------------------------------------------------------------------------------------------------- shell

    def _run_bash(self, block: Block) -> None:
        if not block.condition:
            done = self._shell(block.text)
            _compare(block, done.stdout, "" if done.returncode == 0 else f"exit code {done.returncode}", done.stderr)
            return
        with (self._folder / f"output-{block.line}.txt").open("w+b") as output:
            process = subprocess.Popen(
                self._command(block.text), stdout=output, stderr=subprocess.STDOUT, **self._process()
            )
            self._behind.append(process)
            came_true = self._await(block.condition, lambda: process.poll() is not None)
            if not (came_true and block.background):
                _end(process)
            output.seek(0)
            text = output.read().decode(errors="replace")
            if not came_true:
                raise BlockError(f"{block.place}: this did not become true: {block.condition}\n{text}")
            _compare(block, text, "")

    def _run_console(self, block: Block) -> None:
        for command in read_commands(block):
            done = self._shell(command.text)
            shown = Block(block.page, block.line, "text", command.expected) if command.expected else None
            ran = Block(block.page, block.line, "bash", command.text, expected=shown)
            _compare(ran, done.stdout, "" if done.returncode == 0 else f"exit code {done.returncode}", done.stderr)

    def _shell(self, text: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self._command(text), capture_output=True, text=True, check=False, timeout=PATIENCE, **self._process()
        )

    def _command(self, text: str) -> list[str]:
        """Return the command of a shell that starts with the exported variables and the folder of the block before."""
        state = self._folder.parent
        before = (
            f'[ ! -f {state}/exports ] || . {state}/exports; [ ! -f {state}/folder ] || cd "$(cat {state}/folder)"\n'
            f"trap 'export -p >{state}/exports; pwd >{state}/folder' EXIT\nset -e -o pipefail\n"
        )
        return ["bash", "-c", before + self._named(INSTALL.sub("", text))]

    def _named(self, text: str) -> str:
        """Return the text with the database of the page in the place of the one that pages name."""
        return PLACEHOLDER.sub(lambda found: found[1] + self._uri, text)

    def _process(self) -> dict[str, Any]:
        return {"cwd": self._folder, "env": self._env, "stdin": subprocess.DEVNULL, "start_new_session": True}

    # ---------------------------------------------------------------------------------------------------- Python

    def _run_python(self, block: Block) -> None:
        if _DEFINES_DAG.search(block.text):
            self._keep_dag(block, f"{Path(block.page).stem.replace('-', '_')}_{block.line}.py")
            return
        if self._python is None:
            self._python = subprocess.Popen(
                [sys.executable, str(HERE / "python_session.py")],
                stdout=subprocess.PIPE,
                text=True,
                **{**self._process(), "stdin": subprocess.PIPE},
            )
        assert self._python.stdin is not None
        assert self._python.stdout is not None
        request = {
            "page": block.page,
            "line": block.line,
            "text": self._named(block.text),
            "until": bool(block.condition),
        }
        self._python.stdin.write(json.dumps(request) + "\n")
        self._python.stdin.flush()
        came_true = True
        if block.condition:
            answers = [self._python.stdout]
            came_true = self._await(block.condition, lambda: bool(select.select(answers, [], [], 0)[0]))
            self._python.send_signal(signal.SIGINT)
        line = self._python.stdout.readline()
        if not line:
            raise BlockError(f"{block.place}: Python ended with {self._python.wait()}")
        answer = json.loads(line)
        error = str(answer["error"]) or ("" if came_true else f"this did not become true: {block.condition}")
        last = re.sub(r"^(?:\w+\.)+(?=\w+(?::|$))", "", error.strip().splitlines()[-1]) if error else ""
        _compare(block, answer["output"] + last, error)

    def _parse_dags(self) -> None:
        """Parse the DAG files by a DagBag in a process of its own."""
        if not self._dags:
            return
        command = [sys.executable, str(HERE / "dag_parser.py"), str(self._folder / "airflow" / "dags")]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE, **self._process())
        if done.returncode:
            raise BlockError(f"{self._dags[0].page}: the DAGs cannot be parsed\n{done.stderr[-4000:]}")
        found = json.loads(done.stdout.splitlines()[-1])
        for file, error in found["errors"].items():
            raise BlockError(f"{self._dags[0].page}: {Path(file).name}\n{error}")
        if len(found["files"]) != len(self._dags):
            raise BlockError(f"{self._dags[0].page}: {len(self._dags)} files, but DAGs only in {found['files']}")

    # ------------------------------------------------------------------------------------------------------ Java

    def _run_java(self, block: Block) -> None:
        """Compile a class, and run it if the driver of PostgreSQL is at hand."""
        named = re.search(r"\bclass (\w+)", block.text)
        if not named:
            raise BlockError(f"{block.place}: the block has no class")
        (self._folder / f"{named[1]}.java").write_text(block.text, encoding="utf-8")
        driver = next(
            iter(sorted(Path.home().glob(".m2/repository/org/postgresql/postgresql/*/postgresql-*.jar"))), None
        )
        done = self._shell(f"javac -Xlint:all -Werror -d classes {named[1]}.java")
        if done.returncode == 0 and driver:
            done = self._shell(f"java -cp classes:{driver} {named[1]}")
            _compare(block, done.stdout, "" if done.returncode == 0 else f"exit code {done.returncode}", done.stderr)
        else:
            _compare(Block(block.page, block.line, "java", ""), "", done.stderr if done.returncode else "")


def _uri(dsn: str) -> str:
    """Return the part of a connection's URI after its scheme."""
    given = {name: quote(str(value), safe="") for name, value in conninfo_to_dict(dsn).items()}
    return f"://{given['user']}:{given.get('password', '')}@{given['host']}:{given['port']}/{given['dbname']}"


def _own_environment(folder: Path, dsn: str) -> dict[str, str]:
    """Return the environment variables of the page's programs."""
    psql = [] if shutil.which("psql") else [str(path.parent) for path in Path(sys.prefix).glob("**/pginstall/bin/psql")]
    path = [str(folder / "bin"), str(Path(sys.executable).parent), *psql, os.environ.get("PATH", os.defpath)]
    return {
        "PATH": os.pathsep.join(path),
        "PYTHONPATH": os.pathsep.join([str(HERE.parents[1]), str(folder)]),
        "HOME": str(folder),
        "LC_ALL": "C.UTF-8",
        "TZ": "UTC",
        "TASKQ_DSN": dsn,
        "AIRFLOW_HOME": str(folder / "airflow"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "PYTHONUNBUFFERED": "1",
    }


def _parse(block: Block) -> None:
    """Parse a block that is only data, or a file of Python."""
    parsers: dict[str, Callable[[str], Any]] = {
        "yaml": lambda text: list(yaml.safe_load_all(text)),
        "json": json.loads,
        "toml": tomllib.loads,
        "ini": configparser.ConfigParser().read_string,
        "python": lambda text: compile(text, block.place, "exec"),
        "sql": split_statements,
    }
    try:
        parsers[block.language](block.text)
    except Exception as error:
        raise BlockError(f"{block.place}: {error}") from error


def _compare(block: Block, output: str, failed: str, more: str = "") -> None:
    """Raise BlockError for an error that the page does not show, and for another output than the page shows."""
    if failed and not block.expected:
        raise BlockError(f"{block.place}: {failed}\n{output}{more}\n{block.text}")
    if block.expected:
        shown = check_output(block.expected.text, output + more if failed else output)
        if shown:
            raise BlockError(f"{block.place}: {block.text}\n{shown}\n{failed}\n{more}")


def _name(result: Any, column: int) -> str:
    return (result.fname(column) or b"").decode()


def _value(result: Any, row: int, column: int) -> str:
    return (result.get_value(row, column) or b"").decode()


def _end(process: subprocess.Popen[Any]) -> None:
    """Interrupt a process and all that it has started; kill what does not end."""
    for number, patience in ((signal.SIGINT, 30), (signal.SIGTERM, 10), (signal.SIGKILL, 10)):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(patience)
            break
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    for stream in filter(None, (process.stdin, process.stdout)):
        with suppress(OSError):
            stream.close()
