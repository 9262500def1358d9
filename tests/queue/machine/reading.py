"""The steps of readers."""

from hypothesis import strategies as st

from airflow_provider_taskq.queue import State
from tests.queue.machine.driver import IDENTIFIERS, step
from tests.queue.machine.flow import topics
from tests.queue.machine.operating import Operating, Some, bounds, some

state_or_none = st.none() | st.sampled_from(State)
identifier_or_none = st.none() | st.sampled_from(IDENTIFIERS)
reference_or_none = st.sampled_from([None, None, "r"])


class Reading(Operating):
    """Steps of readers."""

    @step(1,
        topic=st.none() | topics, some=some, recent=st.booleans(), state=state_or_none,
        identifier=identifier_or_none, reference=reference_or_none,
    )  # fmt: skip
    def count(
        self, topic: str | None, some: Some, recent: bool, state: State | None, identifier: str | None,
        reference: str | None,
    ) -> None:  # fmt: skip
        from_, to = self.some_range(some)
        self.both(
            lambda: self.queue.count(
                topic, recent=recent, state=state, identifier=identifier, reference=reference, from_=from_, to=to
            ),
            lambda: self.model.count(topic, recent, state, identifier, reference, from_, to),
        )

    @step(1,
        topic=topics, bound=bounds, some=some, size=st.integers(0, 5), state=state_or_none,
        identifier=identifier_or_none, reference=reference_or_none, backwards=st.booleans(),
    )  # fmt: skip
    def page(
        self, topic: str, bound: int | None, some: Some, size: int, state: State | None, identifier: str | None,
        reference: str | None, backwards: bool,
    ) -> None:  # fmt: skip
        at = None if bound is None else [0, *self.model.tasks][bound % (1 + len(self.model.tasks))]
        after, before = (None, at) if backwards else (at, None)
        from_, to = self.some_range(some)
        found = self.queue.page(
            topic, after=after, before=before, from_=from_, to=to, size=size, state=state, identifier=identifier,
            reference=reference,
        )  # fmt: skip
        expected = self.model.page(topic, after, before, from_, to, size, state, identifier, reference)
        assert [info.sequence for info in found] == expected

    @step(1, back=st.integers(0, 6), width=st.integers(-1, 6), preceding=st.booleans())
    def look_back(self, back: int, width: int, preceding: bool) -> None:
        """Compares the results between two moments, and the first task since a moment."""
        since = self.model.now.hours - back
        until = since + width
        assert self.queue.results(self.half_past(since), self.half_past(until)) == self.model.results(since, until)
        assert self.queue.resolve(self.half_past(since), preceding) == self.model.resolve(since, preceding)

    @step(1, topic=topics, identifiers=st.lists(st.sampled_from([*IDENTIFIERS, "unknown"]), max_size=4))
    def latest(self, topic: str, identifiers: list[str]) -> None:
        found = {name: info.sequence for name, info in self.queue.latest(topic, identifiers).items()}
        assert found == self.model.latest(topic, identifiers)
