"""The steps of producers and consumers: push, offer, poll, complete."""

from dataclasses import replace

from hypothesis import strategies as st

from airflow_provider_taskq.queue import Condition, Decision, Insertion, Order, Outcome, Owner, Result, State, Task
from tests.internals import advance_identifiers
from tests.queue.machine.driver import IDENTIFIERS, NAMES, TOPICS, Driver, picked, step
from tests.queue.model.pushing import Draft
from tests.queue.model.tasks import HOUR, ModelTask

FIFO = Order.FIRST_IN_FIRST_OUT
RESULTS = st.sampled_from([Result.FAILURE, Result.FAILURE, Result.SUCCESS, Result.SUCCESS, *Result])
topics = st.sampled_from(TOPICS)
which = st.integers(0, 5)  # of the topics that fit
names = st.sampled_from(NAMES)
conditions = st.sampled_from([Condition.NONE, *Condition])
drafts = st.builds(
    Draft,
    st.sampled_from(IDENTIFIERS),
    st.sampled_from([0, 0, 0, 1, -1]),
    suspended=st.sampled_from([False] * 4 + [True]),
    ttl=st.sampled_from([None] * 4 + [0, 1, 2]),
    payload=st.sampled_from([None, {"n": 1}]),
    reference=st.sampled_from([None, "r"]),
)
later = st.builds(Draft, st.sampled_from(IDENTIFIERS), delay=st.integers(0, 2)) | st.builds(
    Draft, st.sampled_from(IDENTIFIERS), at=st.integers(-2, 2), priority=st.integers(0, 1)
)
dependent = st.builds(
    Draft,
    st.sampled_from(IDENTIFIERS),
    delay=st.sampled_from([None, None, 1]),
    suspended=st.sampled_from([False, False, True]),
    depends_on=st.lists(st.tuples(topics, st.sampled_from(IDENTIFIERS)), min_size=1, max_size=2).map(tuple),
)
numbers = st.lists(st.integers(0, 20), min_size=1, max_size=3)
decisions = st.builds(
    Decision, RESULTS, message=st.sampled_from([None, {"m": 1}]), error=st.sampled_from([None, "x"])
) | st.builds(Decision, st.just(Result.SUSPENSION), delay=st.integers(0, 2).map(lambda hours: hours * HOUR))


class Flow(Driver):
    """Steps of producers and consumers."""

    @step(
        6,
        topic=st.sampled_from([*TOPICS, *TOPICS, *TOPICS, "nowhere"]),
        new=st.lists(drafts | later | dependent, max_size=4),
        insertion=st.sampled_from([Insertion.APPEND] * 4 + list(Insertion)),
        streamed=st.booleans(),
    )
    def push(self, topic: str, new: list[Draft], insertion: Insertion, streamed: bool) -> None:
        """Pushes, and finds the stored tasks by their sequences, which are above all earlier ones."""
        clock, read_at = self.queue.now(), self.model.tick()

        def real() -> list[int]:
            tasks = [draft.new_task(clock) for draft in new]
            if streamed:
                pushed = self.queue.push_stream(topic, iter(tasks), insertion)
                given = self.new_sequences()
                assert (pushed.count, pushed.first, pushed.last) == (
                    len(new), min(given, default=None), max(given, default=None))  # fmt: skip
                return given
            return [task.sequence for task in self.queue.push(topic, tasks, insertion)]

        self.both(real, lambda: self.model.push(topic, new, insertion, read_at, self.new_sequences()))

    @step(10, topic=topics, new=st.lists(drafts | later | dependent, min_size=1, max_size=4))
    def append(self, topic: str, new: list[Draft]) -> None:
        """Pushes under APPEND, the usual insertion, with valid dependencies."""
        known = {(task.topic, task.identifier) for task in self.model.tasks.values()}
        drafts = [
            replace(draft, depends_on=tuple(sorted(known & set(draft.depends_on) - {(topic, draft.identifier)})))
            for draft in new
        ]
        self.push(topic, drafts, Insertion.APPEND, streamed=False)

    @step(
        5,
        topic=topics,
        new=st.lists(drafts | later, min_size=1, max_size=3),
        if_exists=st.sampled_from(["update", "update", "ignore"]),
    )
    def offer(self, topic: str, new: list[Draft], if_exists: str) -> None:
        """Offers at most one waiting task for each identifier."""
        clock, read_at = self.queue.now(), self.model.tick()
        new = [replace(draft, suspended=False) for draft in new]

        def real() -> list[tuple[Outcome, int]]:
            tasks = [draft.new_task(clock) for draft in new]
            offered = self.queue.offer_many(topic, tasks, if_exists=if_exists)
            return [(each.outcome, each.sequence) for each in offered]

        self.both(real, lambda: self.model.offer(topic, new, if_exists, read_at, self.new_sequences()))

    @step(1, topic=topics, identifier=st.sampled_from(IDENTIFIERS))
    def drop(self, topic: str, identifier: str) -> None:
        """Drops waiting tasks."""
        self.same("drop", topic, identifier)

    @step(8,
        name=names, number=which, size=st.integers(0, 4), order=st.sampled_from(Order), condition=conditions,
        claimed=st.booleans(), late=st.sampled_from([False, False, True]),
    )  # fmt: skip
    def poll(
        self, name: str, number: int, size: int, order: Order, condition: Condition, claimed: bool, late: bool
    ) -> None:
        """Polls, after `ready` has returned the number; both return the same tasks in the same order."""
        topic = self.topic_with(number, State.READY)
        owner = self.consumer(name, late)
        self.ready(topic, 1 + size, condition)
        if claimed:
            self.both(
                lambda: self.queue.claim(topic, owner, size, order, condition),
                lambda: len(self.model.poll(topic, owner, size, order, condition)),
            )
        else:

            def real() -> list[object]:
                with self.conn.transaction():
                    tasks = self.queue.poll(topic, owner, size, order, condition)
                    if condition is not Condition.NONE:
                        advance_identifiers(self.conn, tasks, topic)
                return [_fields(task) for task in tasks]

            self.both(
                real,
                lambda: [_fields(task) for task in self.model.poll(topic, owner, size, order, condition)],
            )

    @step(4, name=names, number=which, identifiers=st.integers(0, 3), size=st.sampled_from([-1, -1, 0, 1, 2]))
    def poll_batch(self, name: str, number: int, identifiers: int, size: int) -> None:
        """Polls whole groups, in the order of their first tasks."""
        topic = self.topic_with(number, State.READY)
        owner = self.consumer(name, late=False)

        def real() -> list[object]:
            with self.conn.transaction():
                groups = self.queue.poll_batch(topic, owner, identifiers, size)
                tasks = [task for group in groups.values() for task in group]
                advance_identifiers(self.conn, tasks, topic)
            return [_fields(task) for task in tasks]

        self.both(real, lambda: [_fields(task) for task in self.model.poll_batch(topic, owner, identifiers, size)])

    @step(
        6,
        made=st.lists(decisions, min_size=1, max_size=3),
        numbers=numbers,
        stray=st.sampled_from([False] * 5 + [True]),
    )
    def complete(self, made: list[Decision], numbers: list[int], stray: bool) -> None:
        """Completes some of an owner's tasks; sometimes others, or under an earlier fence."""
        busy = [name for name in NAMES if self.model.held_by(name)]
        if stray:
            [owner] = picked([*self.owners.values(), *self.former], numbers[:1])
            self.finish(owner, picked(sorted(self.model.tasks), numbers), made)
        elif busy:
            [name] = picked(busy, numbers[:1])
            held = [task.sequence for task in self.model.held_by(name)]
            self.finish(self.owners[name], picked(held, numbers), made)

    @step(10, name=names, number=which, condition=conditions, made=st.lists(decisions, min_size=1, max_size=4))
    def work(self, name: str, number: int, condition: Condition, made: list[Decision]) -> None:
        """Polls and completes, the usual work of a consumer."""
        topic = self.topic_with(number, State.READY)
        self.poll(name, number, len(made), FIFO, condition, claimed=False, late=False)
        held = [task.sequence for task in self.model.held_by(name) if task.topic == topic]
        if held:
            self.finish(self.owners[name], held[: len(made)], made)

    def finish(self, owner: Owner, sequences: list[int], made: list[Decision]) -> None:
        """Completes several tasks in one call, all or nothing."""
        decided = dict(zip(sequences, made, strict=False))
        given: dict[Task | int, Decision | Result] = dict(decided.items())
        self.both(lambda: self.queue.complete(owner, given), lambda: self.model.complete(owner, decided))

    def ready(self, topic: str, limit: int, condition: Condition) -> None:
        """Compares the number of tasks that can be polled."""
        self.same("ready", topic, limit, condition)

    def consumer(self, name: str, late: bool) -> Owner:
        """The owner of that name, registered again if its lease has lapsed, unless `late`."""
        known = self.model.owners.get(name)
        if name in self.owners and (late or (known is not None and not known.gone and known.until > self.model.now)):
            return self.owners[name]
        return self.register(name, 9)


def _fields(task: Task | ModelTask) -> object:
    return task.sequence, task.topic, task.identifier, task.payload, task.reference, task.attempt, task.redelivered
