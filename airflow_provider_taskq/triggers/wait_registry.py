"""Who waits for what: waits by question, questions by topic, so that a look touches only what it has to."""

from asyncio import Future
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from airflow_provider_taskq.queue import TopicStatus
from airflow_provider_taskq.triggers.wait_log import WaitLog
from airflow_provider_taskq.triggers.waits import NOTHING, UNKNOWN, Question, ReadyWait, Seen, Wait


class Asked:
    """A question, asked once for all waits that it concerns, and what was said to it last."""

    __slots__ = ("known", "question", "seen", "standing")

    def __init__(self, question: Question) -> None:
        self.question = question
        self.seen: Seen = NOTHING
        self.known = False
        """Whether a look has found the topic."""
        self.standing: set[Standing] = set()

    def answer(self, seen: Seen) -> None:
        """Keeps what a look has said; of an unknown topic also whether an earlier look has found it."""
        if seen.number == UNKNOWN:
            self.seen = seen._replace(known=self.known)
        else:
            self.seen, self.known = seen, True

    @property
    def limit(self) -> int:
        """How far ready tasks have to be counted: to the most that a wait wants."""
        return max((one.wait.min_tasks for one in self.standing if isinstance(one.wait, ReadyWait)), default=1)

    @property
    def aged(self) -> bool:
        """Whether a wait wants to know how long the oldest due task has waited."""
        return any(isinstance(one.wait, ReadyWait) and one.wait.max_wait is not None for one in self.standing)


class Standing:
    """A wait, with all who wait for just this."""

    __slots__ = ("answers", "asked", "wait")

    def __init__(self, wait: Wait[Any], asked: tuple[Asked, ...]) -> None:
        self.wait = wait
        self.asked = asked
        self.answers: dict[Future[Any], WaitLog | None] = {}

    def outcome(self) -> Any:
        """What it is answered by what was said last, or None as long as it goes on."""
        return self.wait.outcome([asked.seen for asked in self.asked])

    def sentence(self, status: TopicStatus) -> str:
        """What it waits for, by what was said last and the status of its topic."""
        return self.wait.sentence([asked.seen for asked in self.asked], status)

    @property
    def logs(self) -> list[WaitLog]:
        """The logs of the tasks that wait for this."""
        return [log for log in self.answers.values() if log is not None]


class Ledger:
    """The open waits of one watcher. Adding and removing one costs the same whatever the number of the others."""

    def __init__(self) -> None:
        self._standing: dict[Wait[Any], Standing] = {}
        self._asked: dict[Question, Asked] = {}
        self._topics: dict[str, dict[Asked, None]] = {}
        self._intervals: Counter[float] = Counter()
        self.changes = 0
        """Grows with each change of what is to be asked."""

    def __len__(self) -> int:
        """How many wait."""
        return self._intervals.total()

    def __contains__(self, topic: str) -> bool:
        """Whether anybody waits for something in a topic."""
        return topic in self._topics

    @property
    def shortest_interval(self) -> float:
        """The shortest interval between two looks that anybody wants."""
        return min(self._intervals, default=1.0)

    def add(self, wait: Wait[Any], answer: Future[Any], log: WaitLog | None = None) -> None:
        """Adds a wait; changes of it are written into the log."""
        standing = self._standing.get(wait)
        if standing is None:
            standing = self._standing[wait] = Standing(wait, tuple(map(self._asking, wait.questions)))
            for asked in standing.asked:
                asked.standing.add(standing)
            self.changes += 1
        standing.answers[answer] = log
        self._intervals[wait.poll_interval] += 1

    def remove(self, wait: Wait[Any], answer: Future[Any]) -> None:
        """Somebody waits no more, for whatever reason."""
        standing = self._standing[wait]
        del standing.answers[answer]
        self._intervals[wait.poll_interval] -= 1
        if not self._intervals[wait.poll_interval]:
            del self._intervals[wait.poll_interval]
        if standing.answers:
            return
        del self._standing[wait]
        self.changes += 1
        for asked in standing.asked:
            asked.standing.discard(standing)
            if not asked.standing:
                self._forget(asked)

    def asked(self, topics: Iterable[str] | None = None) -> list[Asked]:
        """All questions, or those about these topics."""
        if topics is None:
            return list(self._asked.values())
        return [asked for topic in topics for asked in self._topics.get(topic, ())]

    def standing(self, waits: Iterable[Wait[Any]] | None = None) -> list[Standing]:
        """All waits, or those of these that have not ended."""
        if waits is None:
            return list(self._standing.values())
        return [self._standing[wait] for wait in waits if wait in self._standing]

    def _asking(self, question: Question) -> Asked:
        """The one entry of a question."""
        asked = self._asked.get(question)
        if asked is None:
            asked = self._asked[question] = Asked(question)
            self._topics.setdefault(question.topic, {})[asked] = None
        return asked

    def _forget(self, asked: Asked) -> None:
        """Asks a question no more."""
        if self._asked.pop(asked.question, None) is not None:
            about = self._topics[asked.question.topic]
            del about[asked]
            if not about:
                del self._topics[asked.question.topic]


def concerned(asked: Collection[Asked]) -> Iterator[Standing]:
    """The waits that these questions were asked for, each once."""
    seen: dict[Standing, None] = {}
    for one in asked:
        seen.update(dict.fromkeys(one.standing))
    yield from seen
