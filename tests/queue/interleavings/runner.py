"""Runs interleavings of sessions from specifications, in the manner of PostgreSQL's isolationtester.

A file `*.spec` has a comment, then `setup` with a call or a statement in each line, then permutations. A permutation
has a name, which is a promise, and one step in each line: a session, a call, and after `->` what the step has to give.

    permutation a registration during an expiry takes over no task if the expiry commits
        one   expire()           -> 1
        two   register('owner')  -> waits for one
        one   commit
        two                      -> f
        then  states()           -> a READY

- A session with `commit` or `rollback` in the permutation is in a transaction from each first step. Any other session
  commits each step. `given` and `then` are the session of the setup.
- `waits for one`: the step waits for a lock of that session. `waits`: for any lock, or it sleeps before it looks again.
  A later line with the session alone has its result. A step without this mark must not wait: it fails if it waits for a
  session of the permutation.
- `error NAME: text`: the error of the queue or of psycopg, and a part of its message, which has the names of sessions
  instead of their numbers. `nothing`: no row, NULL or ''. `anything`, or no arrow: no error.
- `1, perhaps after a wait`: the step may wait for a lock, for a limited time only. `waits, perhaps`: so may this step,
  and the next step starts once it waits or has ended.
- `for name in a, b`: one permutation for each value, which replaces `{name}`; `for x y in a b, c d` for each pair.
- A line that is indented further continues the line above. The calls are in verbs.sql, which names only the public
  functions and views of schema `taskq`.
"""

import re
import select
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
from psycopg.pq import ExecStatus, TransactionStatus

from airflow_provider_taskq.queue.errors import to_queue_error

FOLDER = Path(__file__).parent
SECONDS = 300.0  # a limit for a machine that is busy, not a time that a result depends on
MAIN = ("given", "then")
PERHAPS = ", perhaps after a wait"
WAITING = """SELECT pg_blocking_pids(a.pid), a.wait_event = 'PgSleep' FROM pg_stat_activity a
    WHERE a.pid = %s AND (a.wait_event_type = 'Lock' OR a.wait_event = 'PgSleep')"""


@dataclass(frozen=True)
class Step:
    """A line of a permutation: the call is empty for the result of a step that waited."""

    session: str
    call: str
    expected: str
    line: str

    @property
    def waits(self) -> bool:
        """Whether the step has to wait, or may and has its result in a later line."""
        return bool(self.call) and self.expected.startswith("waits")

    @property
    def may_wait(self) -> bool:
        """Whether a wait is no failure."""
        return self.waits or not self.call or self.expected.endswith(PERHAPS)

    def awaits(self, blockers: set[str]) -> bool:
        """Whether these are the sessions for which the step has to wait."""
        named = set(self.expected.split()[2:])
        return self.waits and bool(blockers & named if named else blockers)

    def fits(self, given: str) -> bool:
        """Whether the step has given what it has to give."""
        expected = self.expected.removesuffix(PERHAPS)
        if expected == "anything":
            return not given.startswith("error ")
        if expected.startswith("error "):
            kind, _, text = expected.partition(": ")
            return given.partition(": ")[0] == kind and text in given
        return given == expected


@dataclass(frozen=True)
class Permutation:
    """A promise, and the steps that show it. The name of one of a loop ends with its values in brackets."""

    name: str
    setup: tuple[str, ...]
    steps: tuple[Step, ...]

    @property
    def test(self) -> str:
        """The name under which documents name it."""
        return "test_" + re.sub(r"\W+", "_", self.name.partition(" [")[0]).strip("_")


def read_specs() -> dict[str, Permutation]:
    """All permutations of all files, by file and name."""
    return {
        f"{path.stem}: {each.name}": each
        for path in sorted(FOLDER.glob("*.spec"))
        for each in parse(path.read_text(encoding="utf-8"))
    }


def parse(text: str) -> Iterator[Permutation]:
    """The permutations of a file."""
    setup: tuple[str, ...] = ()
    for head, body in _sections(text):
        if head == "setup":
            setup = tuple(body)
            continue
        kind, _, name = head.partition(" ")
        assert kind == "permutation", f"expected setup or permutation: {head}"
        loops = [line for line in body if line.startswith("for ")]
        lines = [line for line in body if line not in loops]
        for values in _values(loops):
            filled = [_fill(line, values) for line in [name, *lines]]
            suffix = "".join(f" [{value}]" for key, value in values.items() if f"{{{key}}}" not in name)
            yield Permutation(filled[0] + suffix, setup, tuple(map(_step, filled[1:])))


def _sections(text: str) -> Iterator[tuple[str, list[str]]]:
    """Heads with their lines; continuations are joined."""
    head, indent = "", 0
    body: list[str] = []
    for raw in text.splitlines():
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        depth = len(raw) - len(raw.lstrip())
        if depth == 0:
            if head:
                yield head, body
            head, body, indent = line, [], 0
        elif indent and depth > indent:
            body[-1] += " " + line
        else:
            indent = depth
            body.append(line)
    yield head, body


def _values(loops: list[str]) -> Iterator[dict[str, str]]:
    if not loops:
        yield {}
        return
    names, _, values = loops[0].removeprefix("for ").partition(" in ")
    for value in values.split(", "):
        for rest in _values(loops[1:]):
            each = value.split() if " " in names else [value]
            yield {**dict(zip(names.split(), each, strict=True)), **rest}


def _fill(line: str, values: dict[str, str]) -> str:
    for name, value in values.items():
        line = line.replace(f"{{{name}}}", value)
    return line


def _step(line: str) -> Step:
    does, arrow, expected = line.partition(" -> ")
    session, _, call = does.partition(" ")
    return Step(session, call.strip(), expected.strip() if arrow else "anything", " ".join(line.split()))


class Session:
    """A connection that carries out one step after the other, and does not block this process."""

    def __init__(self, conn: psycopg.Connection, transactions: bool) -> None:
        self.conn, self.transactions = conn, transactions
        self.waits = False

    def start(self, call: str) -> None:
        """Sends a step."""
        if self.transactions and self.conn.pgconn.transaction_status == TransactionStatus.IDLE:
            self.conn.pgconn.exec_(b"BEGIN")
        self.conn.pgconn.send_query(statement(call).encode())

    def is_done(self) -> bool:
        """Whether the step has ended. Waits for an answer for a moment."""
        select.select([self.conn.fileno()], [], [], 0.005)
        self.conn.pgconn.consume_input()
        return not self.conn.pgconn.is_busy()

    def result(self) -> str:
        """The rows, or the error, of the step that has ended."""
        last = None
        while (found := self.conn.pgconn.get_result()) is not None:
            last = last if last is not None and last.status == ExecStatus.FATAL_ERROR else found
        assert last is not None
        if last.status == ExecStatus.FATAL_ERROR:
            raised = psycopg.errors.error_from_result(last)
            error = to_queue_error(raised) or raised
            return f"error {type(error).__name__}: {error}"
        rows = [
            [(last.get_value(row, column) or b"").decode() for column in range(last.nfields)]
            for row in range(last.ntuples)
        ]
        return ", ".join(" ".join(row) for row in rows).strip() or "nothing"


def statement(call: str) -> str:
    """The statement of a step: a call is a query of it."""
    return f"SELECT {call}" if re.match(r"[\w.]+\(", call) else call


class Run:
    """One run of a permutation."""

    def __init__(self, main: psycopg.Connection, monitor: psycopg.Connection, opened: Callable[[], Session]) -> None:
        self.monitor, self.opened = monitor, opened
        session = Session(main, False)
        self.sessions: dict[str, Session] = dict.fromkeys(MAIN, session)

    def take(self, permutation: Permutation) -> None:
        """Takes all steps, and compares what each gives."""
        for call in permutation.setup:
            self._take(Step("given", call, "anything", call))
        for step in permutation.steps:
            if step.session not in self.sessions:
                self.sessions[step.session] = self.opened()
                ends = {each.call for each in permutation.steps if each.session == step.session}
                self.sessions[step.session].transactions = bool(ends & {"commit", "rollback"})
        for step in permutation.steps:
            self._take(step)
        assert not [name for name, session in self.sessions.items() if session.waits], "a step has no result"

    def _take(self, step: Step) -> None:
        session = self.sessions[step.session]
        assert session.waits is not bool(step.call), f"{step.line}: a session has one step at a time"
        if step.call:
            session.start(step.call)
        session.waits = self._await(session, step) or step.expected == "waits, perhaps"
        if session.waits:
            return
        given = session.result()
        for name, each in self.sessions.items():
            given = given.replace(f"session {each.conn.info.backend_pid} ", f"session {name} ")
        assert step.fits(given), f"{step.line}: gave {given}"
        for each in self.sessions.values():  # what waited for this step ends, or waits for another one
            if each.waits:
                self._await(each, Step("", "", "", step.line), settles=True)

    def _await(self, session: Session, step: Step, settles: bool = False) -> bool:
        """Waits until a step has ended, or waits as it has to. Returns whether it waits."""
        deadline = time.monotonic() + SECONDS
        while not session.is_done():
            blockers = self._blockers(session)
            if step.awaits(blockers) or (settles and blockers):
                return True
            assert step.may_wait or not blockers - {"a sleep"}, f"{step.line}: waits for {', '.join(blockers)}"
            assert time.monotonic() < deadline, f"{step.line}: has not ended"
        return False

    def _blockers(self, session: Session) -> set[str]:
        """The sessions of the permutation for which a session waits, and 'a sleep' if it sleeps."""
        pids = {each.conn.info.backend_pid: name for name, each in self.sessions.items()}
        found: set[str] = set()
        for blocking, sleeps in self.monitor.execute(WAITING, (session.conn.info.backend_pid,)).fetchall():
            found |= {"a sleep"} if sleeps else {pids[pid] for pid in blocking if pid in pids}
        return found
