"""A program that the chaos test starts and kills: a consumer that writes its effects with its progress.

    python -m tests.consumer.consumer_program NAME PARTITIONS LEASE

The DSN comes from TASKQ_DSN. It runs until SIGTERM, or until it is killed.
"""

import logging
import sys
from datetime import timedelta

from airflow_provider_taskq.consumer import Consumer, ConsumerConfig, ConsumerGroup
from airflow_provider_taskq.queue import Task, TaskQueue

EFFECT_COLUMNS = """nth bigserial PRIMARY KEY, sequence bigint, identifier text, by text, generation int, partition int,
    fence bigint,
    at timestamptz NOT NULL DEFAULT clock_timestamp()"""

# The current partition of the event in its group. If the fence is not that of this program, the transaction fails.
ENTER = """INSERT INTO handled (sequence, identifier, by, generation, partition, fence)
    SELECT %(sequence)s, %(identifier)s, %(by)s, r.generation, h.partition, h.fence FROM taskq_internal.consumer_group r
    JOIN taskq_internal.consumer_partition h USING (group_name, topic_id)
    WHERE h.partition = taskq_internal.partition_of(%(identifier)s, r.partitions, r.level, %(sequence)s)"""


def main() -> None:
    """Runs a consumer until SIGTERM."""
    name, partitions, lease = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(threadName)s %(message)s")
    group = ConsumerGroup("readers")

    @group.on()
    def enter(event: Task, queue: TaskQueue) -> None:
        row = {"sequence": event.sequence, "identifier": event.identifier, "by": name}
        entered = queue.conn.execute(ENTER, row)
        if entered.rowcount != 1:
            raise RuntimeError(f"entered {entered.rowcount} rows")

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
