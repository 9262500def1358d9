"""A program that the chaos test starts and kills: a consumer that writes its effects with its progress.

    python -m tests.consumer.consumer_program NAME PARTITIONS LEASE

The DSN comes from TASKQ_DSN. It runs until SIGTERM, or until it is killed.
"""

import logging
import sys
from datetime import timedelta

from airflow_provider_taskq.consumer import Consumer, ConsumerConfig, ConsumerGroup
from airflow_provider_taskq.queue import Task, TaskQueue, partition_of

EFFECT_COLUMNS = """nth bigserial PRIMARY KEY, sequence bigint, identifier text, by text, generation int, partition int,
    fence bigint,
    at timestamptz NOT NULL DEFAULT clock_timestamp()"""

ENTER = "INSERT INTO handled (sequence, identifier, by, generation, partition, fence) VALUES (%s, %s, %s, %s, %s, %s)"


def main() -> None:
    """Runs a consumer until SIGTERM."""
    name, partitions, lease = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(threadName)s %(message)s")
    group = ConsumerGroup("readers")

    @group.on()
    def enter(event: Task, queue: TaskQueue) -> None:
        # The current partition of the event. If its fence is not that of this program, the transaction fails.
        states = queue.partition_states("work")
        number = partition_of(event.identifier, states[0].partitions, states[0].level, event.sequence)
        [state] = (each for each in states if each.partition == number)
        row = (event.sequence, event.identifier, name, state.generation, state.partition, state.fence)
        queue.conn.execute(ENTER, row)

    settings = ConsumerConfig(
        partitions=partitions,
        lease=timedelta(seconds=lease),
        transactional=True,
        size=20,
        pause=timedelta(milliseconds=50),
    )
    Consumer(None, group, "work", settings).run()


if __name__ == "__main__":
    main()
