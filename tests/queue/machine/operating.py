"""The steps of operators and of readers."""

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from airflow_provider_taskq.queue import Junction, Result, Revival, State
from tests.queue.machine.driver import IDENTIFIERS, POLICIES, picked, step
from tests.queue.machine.flow import Flow, numbers, topics, which
from tests.queue.model.tasks import ENDED, HOUR


@dataclass(frozen=True)
class Some:
    """A way to choose tasks before they exist."""

    state: State | None
    numbers: list[int]
    stray: bool
    low: int | None
    high: int | None


states = st.sampled_from([*ENDED, *ENDED, *State])

bounds = st.sampled_from([None] * 20 + list(range(20)))
some = st.builds(Some, st.none() | states, numbers, st.sampled_from([False] * 5 + [True]), bounds, bounds)
filters = st.fixed_dictionaries(
    {
        "state": st.sampled_from([*State] + [None] * 18),
        "identifier": st.sampled_from([*IDENTIFIERS] + [None] * 6),
        "reference": st.sampled_from([None, None, None, "r"]),
    }
)


class Operating(Flow):
    """Steps of operators."""

    @step(
        4,
        number=which,
        revival=st.sampled_from([Revival.RESET, *Revival]),
        some=some,
        size=st.none() | st.integers(0, 2),
    )
    def revive(self, number: int, revival: Revival, some: Some, size: int | None) -> None:
        """Revives tasks by state, with a limit, or by name."""
        topic = self.topic_with(number, *ENDED)
        state, sequences, from_, to = self.some_tasks(topic, some)
        size = size if sequences is None else None
        self.both(
            lambda: self.queue.revive(topic, state, revival, sequences=sequences, from_=from_, to=to, size=size),
            lambda: self.model.revive(
                topic, self.model.chosen(topic, state, sequences, from_, to)[:size], revival, self.new_sequences()
            ),
        )

    @step(2, number=which, result=st.sampled_from(Result), some=some)
    def reassign(self, number: int, result: Result, some: Some) -> None:
        """Reassigns tasks to another result."""
        topic = self.topic_with(number, *ENDED)
        state, sequences, from_, to = self.some_tasks(topic, some)
        self.both(
            lambda: self.queue.reassign(topic, result, sequences=sequences, state=state, from_=from_, to=to),
            lambda: self.model.reassign(self.model.chosen(topic, state, sequences, from_, to), result, state),
        )

    def some_tasks(self, topic: str, some: Some) -> tuple[State | None, list[int] | None, int, int | None]:
        """Tasks for `revive` and `reassign`: by state, or by name. Most named tasks have ended."""
        if some.state is not None:
            return some.state, None, *self.some_range(topic, some)
        ended = [task.sequence for task in self.model.of_topic(topic, *ENDED)]
        return None, picked([*self.model.tasks, 0] if some.stray else ended, some.numbers), 0, None

    def some_range(self, topic: str, some: Some) -> tuple[int, int | None]:
        """A range of sequences; mostly the unbounded one."""
        bounds = self.sequences(topic)
        low, high = (None if place is None else bounds[place % len(bounds)] for place in (some.low, some.high))
        return low or 0, high

    def sequences(self, topic: str) -> list[int]:
        """The sequences of a topic, and one before them."""
        return [0, *(task.sequence for task in self.model.tasks.values() if task.topic == topic)]

    @step(
        3,
        number=which,
        groups=st.lists(st.lists(st.sampled_from(IDENTIFIERS), max_size=3), max_size=3),
        junction=st.sampled_from(Junction),
    )
    def junction(self, number: int, groups: list[list[str]], junction: Junction) -> None:
        """Releases suspended tasks by groups."""
        topic = self.topic_with(number, State.SUSPENDED)
        self.same("junction", topic, groups, junction)

    @step(2, topic=topics, some=some, everything=st.sampled_from([False] * 5 + [True]))
    def purge(self, topic: str, some: Some, everything: bool) -> None:
        if everything:
            self.same("purge_all", topic)
        else:
            self.same("purge", topic, *self.some_range(topic, some), some.state)

    @step(2, topic=topics, policy=st.sampled_from(POLICIES), verb=st.sampled_from(["drop", "alter", "alter"]))
    def change_topic(self, topic: str, policy: object, verb: str) -> None:
        """Alters the policy of a topic, or drops the topic and creates it again."""
        if verb == "alter":
            self.same("alter_topic", topic, policy)
            return
        self.same("drop_topic", topic)
        for _ in range(2):
            self.same("create_topic", topic, policy)

    @step(1, topic=topics, paused=st.booleans(), then=st.booleans())
    def pause(self, topic: str, paused: bool, then: bool) -> None:
        """Pauses a topic, which then hands out nothing; mostly resumes it soon."""
        for each in (paused, paused and then):
            self.set_paused(topic, each)

    def set_paused(self, topic: str, paused: bool) -> None:
        """Pauses or resumes a topic, and compares whether that changed anything."""
        change = self.queue.pause_topic if paused else self.queue.resume_topic
        self.both(lambda: change(topic), lambda: self.model.set_paused(topic, paused))

    @step(2,
        name=st.sampled_from("xy"), by=st.sampled_from("pq"), at_most=st.integers(1, 3), at_least=st.integers(0, 3),
        taken=st.booleans(),
    )  # fmt: skip
    def lock(self, name: str, by: str, at_most: int, at_least: int, taken: bool) -> None:
        if taken:
            least = min(at_least, at_most)
            self.both(
                lambda: self.queue.lock(name, by, at_most * HOUR, least * HOUR),
                lambda: self.model.lock(name, by, at_most, least),
            )
        else:
            self.both(lambda: self.queue.unlock(name, by), lambda: self.model.unlock(name, by))


class Reading(Operating):
    """Steps of readers."""

    @step(6,
        topic=topics, filters=filters, some=some, everywhere=st.booleans(), recent=st.booleans(), bound=bounds,
        backwards=st.booleans(), size=st.integers(0, 5),
    )  # fmt: skip
    def look(
        self, topic: str, filters: dict[str, Any], some: Some, everywhere: bool, recent: bool, bound: int | None,
        backwards: bool, size: int,
    ) -> None:  # fmt: skip
        """Compares the counts and a page of the tasks that match."""
        from_, to = self.some_range(topic, some)
        matching = {**filters, "from_": from_, "to": to}
        self.same("count", None if everywhere else topic, recent=recent, **matching)
        at = None if bound is None else picked(self.sequences(topic), [bound])[0]
        place: dict[str, Any] = {"before" if backwards else "after": at}
        found = [info.sequence for info in self.queue.page(topic, size=size, **place, **matching)]
        assert found == self.model.page(topic, size=size, **place, **matching)

    @step(4,
        topic=topics, identifiers=st.lists(st.sampled_from([*IDENTIFIERS, "unknown"]), max_size=4),
        back=st.integers(0, 6), width=st.integers(-1, 6), preceding=st.booleans(),
    )  # fmt: skip
    def look_back(self, topic: str, identifiers: list[str], back: int, width: int, preceding: bool) -> None:
        """Compares the latest tasks, the results between two moments, and the first task since a moment."""
        found = {name: info.sequence for name, info in self.queue.latest(topic, identifiers).items()}
        assert found == self.model.latest(topic, identifiers)
        since = self.model.now.hours - back
        until = since + width
        assert self.queue.results(self.half_past(since), self.half_past(until)) == self.model.results(since, until)
        assert self.queue.resolve(self.half_past(since), preceding) == self.model.resolve(since, preceding)
