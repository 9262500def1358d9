"use strict";
// pg-boss: send, insert, fetch and complete; work() for an idle worker.
const PgBoss = require("pg-boss");
const { setTimeout: sleep } = require("node:timers/promises");
const { serve } = require("./program.js");

const QUEUE = "bench";

/** Modes: `size` of a fetch; `threads`, the loops at once; `interval`, the seconds between looks of work(), at least 0.5;
 * `pause`, the seconds between looks of a loop over fetch() that replaces work(). */
const peer = {
  async open(dsn) {
    this.boss = new PgBoss(dsn);
    this.boss.on("error", (error) => console.error(error.message));
  },

  /** It makes its schema when it starts. */
  async install() {
    await this.started();
    await this.boss.createQueue(QUEUE);
  },

  async started() {
    this.starting ||= this.boss.start();
    await this.starting;
  },

  async push(payloads) {
    await this.started();
    await this.boss.insert(payloads.map((data) => ({ name: QUEUE, data })));
  },

  async pushOne(payload) {
    await this.started();
    await this.boss.send(QUEUE, payload);
  },

  /** fetch() and complete() in loops: work() would wait half a second or more between two batches. */
  async drain(meter, mode) {
    await this.started();
    await Promise.all(Array.from({ length: mode.threads ?? 1 }, () => this.loop(meter, mode)));
  },

  async loop(meter, mode) {
    while (!meter.isOver) {
      const jobs = await this.boss.fetch(QUEUE, { batchSize: mode.size });
      if (jobs.length === 0) return;
      for (const job of jobs) meter.handle(job.data);
      await this.boss.complete(QUEUE, jobs.map((job) => job.id));
    }
  },

  async work(meter, mode) {
    await this.started();
    if (mode.pause) return this.keepFetching(meter, mode);
    await this.boss.work(QUEUE, { pollingIntervalSeconds: mode.interval, batchSize: mode.size }, async (jobs) => {
      for (const job of jobs) meter.handle(job.data);
    });
    await meter.over;
    await this.boss.offWork(QUEUE);
    await sleep(100);
  },

  /** The loop of drain() that waits after an empty fetch: work() would look every half second at most. */
  async keepFetching(meter, mode) {
    while (!meter.isOver) {
      await this.loop(meter, mode);
      await sleep(mode.pause * 1000);
    }
  },

  async claim(size) {
    await this.started();
    return (await this.boss.fetch(QUEUE, { batchSize: size })).length;
  },
};

serve(peer);
