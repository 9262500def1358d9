"use strict";
// graphile-worker: its library functions, with the settings of its own performance page for the best mode.
const { Pool } = require("pg");
const { makeWorkerUtils, run, runMigrations, runOnce, Logger } = require("graphile-worker");
const { makeEnhancedWithPgClient, processSharedOptions } = require("graphile-worker/dist/lib.js");
const { makeWithPgClientFromPool } = require("graphile-worker/dist/helpers.js");
const { batchGetJobs } = require("graphile-worker/dist/sql/getJobs.js");
const { serve } = require("./program.js");

const TASK = "bench";
const logger = new Logger(() => (level, message) => {
  if (level === "error") console.error(message);
});

/** Modes: `worker`, the part of a preset. */
const peer = {
  async open(dsn) {
    this.dsn = dsn;
  },

  async install() {
    await runMigrations({ connectionString: this.dsn, logger });
  },

  async utils() {
    this.made ||= await makeWorkerUtils({ connectionString: this.dsn, logger });
    return this.made;
  },

  async push(payloads) {
    const utils = await this.utils();
    await utils.addJobs(payloads.map((payload) => ({ identifier: TASK, payload })));
  },

  async pushOne(payload) {
    const utils = await this.utils();
    await utils.addJob(TASK, payload);
  },

  options(mode) {
    return { preset: { worker: { connectionString: this.dsn, ...mode.worker } }, logger, noHandleSignals: true };
  },

  /** Runs its worker until no job is left; if the meter ends before, stops the worker gracefully. */
  async drain(meter, mode) {
    if (meter.seconds === Infinity && meter.most === Infinity) {
      await runOnce(this.options(mode), { [TASK]: async (payload) => void meter.handle(payload) });
    } else {
      await this.work(meter, mode);
    }
  },

  async work(meter, mode) {
    const runner = await run(this.options(mode), { [TASK]: async (payload) => void meter.handle(payload) });
    await Promise.race([meter.over, runner.promise]); // the runner's promise is rejected if its worker gives up
    await runner.stop();
  },

  /** The statement of its workers, with batches as its local queue takes them. */
  async claim(size) {
    this.pool ||= new Pool({ connectionString: this.dsn });
    this.shared ||= processSharedOptions(this.options({}));
    this.client ||= makeEnhancedWithPgClient(makeWithPgClientFromPool(this.pool));
    const tasks = { [TASK]: async () => undefined };
    return (await batchGetJobs(this.shared, this.client, tasks, "bench", null, size)).length;
  },
};

serve(peer);
