"""The steps of readers."""

from typing import Any

from hypothesis import strategies as st

from airflow_provider_taskq.queue import State
from tests.queue.machine.driver import IDENTIFIERS, picked, step
from tests.queue.machine.flow import topics
from tests.queue.machine.operating import Operating, Some, bounds, some

filters = st.fixed_dictionaries(
    {
        "state": st.sampled_from([*State] + [None] * 18),
        "identifier": st.sampled_from([*IDENTIFIERS] + [None] * 6),
        "reference": st.sampled_from([None, None, None, "r"]),
    }
)


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
        place = {"before" if backwards else "after": at}
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
