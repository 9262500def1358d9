"""The steps of leases and of time."""

from hypothesis import strategies as st

from airflow_provider_taskq.queue import Owner
from tests.internals import advance_fronts
from tests.queue.conftest import lapse
from tests.queue.machine.driver import NAMES, Driver, picked, step
from tests.queue.machine.flow import names, numbers, topics
from tests.queue.model.tasks import HOUR, Moment


class Owning(Driver):
    """Steps of owners and of the clock."""

    @step(2, name=names, lease=st.integers(1, 9))
    def register_again(self, name: str, lease: int) -> None:
        """A registration takes over the tasks that its name holds."""
        self.register(name, lease)

    @step(1, numbers=numbers)
    def come_back(self, numbers: list[int]) -> None:
        """The previous user of a name is locked out."""
        for owner in picked(self.former, numbers):
            self.heartbeat_of(owner)
            assert self.queue.held(owner) == []
            assert self.queue.release(owner) == self.model.release(owner) == 0

    @step(1, name=names)
    def heartbeat(self, name: str) -> None:
        if name in self.owners:
            self.heartbeat_of(self.owners[name])

    def heartbeat_of(self, owner: Owner) -> None:
        """Raises LeaseLost if the lease is gone."""

        def beat() -> None:
            self.queue.heartbeat(owner)  # its time is of no model's clock

        self.both(beat, lambda: self.model.heartbeat(owner))

    @step(2, name=names)
    def release(self, name: str) -> None:
        if name in self.owners:
            self.same("release", self.owners[name])

    @step(3, name=names, at_once=st.booleans())
    def let_lapse(self, name: str, at_once: bool) -> None:
        """Lets a lease lapse without a heartbeat."""
        known = self.model.owners.get(name)
        if known is None or known.gone or not self.model.held_by(name):
            return
        lapse(self.queue, self.owners[name])
        known.until = Moment(self.model.now.hours, self.model.now.step)
        if at_once:
            self.expire(0)

    @step(2, grace=st.sampled_from([0, 0, 0, 1, 3]))
    def expire(self, grace: int) -> None:
        self.both(lambda: self.queue.expire(grace * HOUR), lambda: self.model.expire(grace))

    @step(6, hours=st.sampled_from([1, 1, 2, 3]))
    def time_passes(self, hours: int) -> None:
        self.pass_time(hours)

    @step(4, topic=topics, backwards=st.booleans())
    def advance_fronts(self, topic: str, backwards: bool) -> None:
        """Polls advance the fronts at random; here they advance often, and as far as possible."""
        advance_fronts(self.conn, topic, backwards)

    @step(1, older_than=st.integers(0, 3))
    def purge_owners(self, older_than: int) -> None:
        self.both(lambda: self.queue.purge_owners(older_than * HOUR), lambda: self.model.purge_owners(older_than))
        self.owners = {name: owner for name, owner in self.owners.items() if name in self.model.owners}

    @step(2, within=st.none() | st.integers(0, 3))
    def look_at_owners(self, within: int | None) -> None:
        """Compares the owners with a running lease, and the tasks of each, in order."""
        self.model.tick()
        at = None if within is None else within * HOUR
        assert [owner.name for owner in self.queue.owners(at)] == self.model.running(within)
        for name in set(self.owners) & set(NAMES):
            expected = [] if self.model.owners[name].gone else self.model.held_by(name)
            assert [task.sequence for task in self.queue.held(self.owners[name])] == [
                task.sequence for task in expected
            ]
