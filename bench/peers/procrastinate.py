"""procrastinate: its App with the asynchronous psycopg connector, and its worker."""

import asyncio
import logging
from typing import Any

import procrastinate

from bench.peers.program import Job, Meter, Peer, serve

RETRY_STALLED = "* * * * * */2"  # every two seconds


class Procrastinate(Peer):
    """Modes: `concurrency` of the worker; `delete`, which finished jobs it deletes (never unless said).

    `lease`: seconds without a heartbeat of the worker after which a periodic task retries its jobs.
    """

    async def open(self, dsn: str) -> None:
        """The app, with a task that calls the current meter."""
        self._meter = Meter()
        self._worker = 0
        self._app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=dsn))
        self._task = self._app.task(name="bench")(self._handle)
        await self._app.open_async()

    async def install(self) -> None:
        await self._app.schema_manager.apply_schema_async()

    async def push(self, jobs: list[Job]) -> None:
        await self._task.batch_defer_async(*({"payload": job.payload} for job in jobs))

    async def push_one(self, job: Job) -> None:
        await self._task.defer_async(payload=job.payload)

    async def drain(self, meter: Meter) -> None:
        """Its worker, which ends when no job is left."""
        await self._run(meter, wait=False)

    async def work(self, meter: Meter) -> None:
        """Its worker, with LISTEN as by default."""
        await self._run(meter, wait=True)

    async def recover(self, dsn: str) -> None:
        """Does nothing: the pool of its connector opens other connections by itself."""

    async def claim(self, size: int) -> int:
        """It fetches one job a statement."""
        if not self._worker:
            self._worker = await self._app.job_manager.register_worker()
        taken = 0
        while taken < size and await self._app.job_manager.fetch_job(None, self._worker):
            taken += 1
        return taken

    async def _handle(self, payload: dict[str, Any]) -> dict[str, Any]:
        return self._meter.handle(payload)

    async def _run(self, meter: Meter, *, wait: bool) -> None:
        """Runs the worker until it ends, or the meter is over: then it is cancelled, which stops it gracefully."""
        self._meter = meter
        options: dict[str, float] = {}
        if lease := self.mode.get("lease"):
            self._retry_stalled_jobs(lease)
            options = {"update_heartbeat_interval": lease / 2, "stalled_worker_timeout": lease}
        worker = asyncio.create_task(
            self._app.run_worker_async(
                wait=wait,
                concurrency=self.mode["concurrency"],
                delete_jobs=self.mode.get("delete", "never"),
                install_signal_handlers=False,
                **options,
            )
        )
        over = asyncio.create_task(meter.over.wait())
        await asyncio.wait((worker, over), return_when=asyncio.FIRST_COMPLETED)
        if not worker.done():
            worker.cancel()
        over.cancel()
        await asyncio.gather(worker, over, return_exceptions=True)

    def _retry_stalled_jobs(self, lease: float) -> None:
        """The periodic task of its guide "Retry stalled jobs", more often than there."""

        async def retry_stalled_jobs(**_: int) -> None:
            for job in await self._app.job_manager.get_stalled_jobs(seconds_since_heartbeat=lease):
                await self._app.job_manager.retry_job(job)

        task = self._app.task(name="retry_stalled_jobs", queueing_lock="retry_stalled_jobs")(retry_stalled_jobs)
        self._app.periodic(cron=RETRY_STALLED)(task)


if __name__ == "__main__":
    logging.basicConfig(level=logging.ERROR)
    serve(Procrastinate())
