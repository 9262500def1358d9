"use strict";
// The producer and the consumer of `make bench ARGS=pressure` on Node, as load.py has them for Python.
const fs = require("node:fs");
const { setTimeout: sleep } = require("node:timers/promises");

const PERIOD = 0.025; // seconds between two pushes of a producer
const LARGEST = 1_000; // jobs of one push
const PERIODS = 4; // of which one push takes the jobs at most, when a producer is behind
const RETRY_AFTER = 0.2; // seconds after a push that failed
const LOOK = 0.25; // seconds between two looks for the file that ends a consumer
const RECORD = 16; // bytes

const monotonic = () => Number(process.hrtime.bigint()) / 1e9;

/** Appends a line of JSON at each tick, and when the process ends. */
class Log {
  constructor(file, timing, line) {
    this.write = () => {
      const at = Math.round((monotonic() - timing.origin) * 1000) / 1000;
      fs.appendFileSync(file, JSON.stringify({ at, process: process.pid, ...line() }) + "\n");
    };
    const schedule = () => {
      const passed = monotonic() - timing.origin;
      const next = (Math.floor(passed / timing.every) + 1) * timing.every;
      this.timer = setTimeout(() => {
        this.write();
        schedule();
      }, (next - passed) * 1000 + 1);
    };
    schedule();
    process.on("exit", this.write);
  }

  close() {
    clearTimeout(this.timer);
    process.off("exit", this.write);
    this.write();
  }
}

/** Pushes numbered jobs at the rates of a plan. */
async function produce(peer, payloads, { plan, timing, first, log: file, mode }) {
  let next = first;
  let turn = 0;
  let pushed = 0;
  let failed = 0;
  let ranges = [];
  const log = new Log(file, timing, () => {
    const line = { pushed, failed, ranges };
    ranges = [];
    return line;
  });
  const job = (number) => ({ ...payloads[turn++ % payloads.length], number, pushed: monotonic() });
  const push = async (count) => {
    const start = next;
    next += count;
    try {
      await peer.push(Array.from({ length: count }, (_, index) => job(start + index)), mode);
      pushed += count;
      ranges.push([start, count]);
    } catch (error) {
      console.error(`a push failed: ${error.name}: ${error.message}`);
      failed += count;
      await sleep(RETRY_AFTER * 1000);
    }
  };
  await sleep(Math.max(0, (timing.origin - monotonic()) * 1000));
  let last = Math.max(0, monotonic() - timing.origin); // a timer may fire a moment early
  let credit = 0;
  for (let now = last; now < timing.until; now = monotonic() - timing.origin) {
    const rate = plan.filter(([start]) => start <= now).at(-1)[1];
    const largest = Math.min(LARGEST, Math.max(1, Math.floor(PERIODS * PERIOD * rate)));
    credit = Math.min(credit + rate * (now - last), Math.max(rate, 1));
    last = now;
    const count = Math.min(Math.floor(credit), largest);
    credit -= count;
    if (count) await push(count);
    if (credit < largest) await sleep(Math.max(0, (now + PERIOD - (monotonic() - timing.origin)) * 1000));
  }
  log.close();
}

/**
 * The handler under load: records each handled job and its repetitions, as RECORD of load.py; takes the latency of the
 * first time. With `atOnce`, the record is in the file before the job ends.
 */
class LoadMeter {
  constructor(records, timing, atOnce) {
    this.timing = timing;
    this.atOnce = atOnce;
    this.seen = new Set();
    this.unwritten = [];
    this.latencies = [];
    this.most = Infinity;
    this.seconds = Infinity;
    this.isOver = false;
    this.over = new Promise((resolve) => (this.end = resolve));
    this.file = fs.openSync(records, "a");
    const bytes = fs.readFileSync(records);
    for (let at = 0; at + RECORD <= bytes.length; at += RECORD) this.seen.add(Number(bytes.readBigUInt64LE(at)));
  }

  handle(payload) {
    const record = Buffer.alloc(RECORD);
    record.writeBigUInt64LE(BigInt(payload.number), 0);
    record.writeDoubleLE(monotonic() - this.timing.origin, 8);
    this.unwritten.push(record);
    if (this.atOnce) this.write();
    if (!this.seen.has(payload.number)) {
      this.seen.add(payload.number);
      this.latencies.push((monotonic() - payload.pushed) * 1000);
    }
    return { delay: payload.arr_delay };
  }

  line() {
    const sorted = this.latencies.sort((left, right) => left - right);
    const at = (share) => Math.round(sorted[Math.floor(share * (sorted.length - 1))] * 100) / 100;
    this.latencies = [];
    this.write();
    return sorted.length ? { p50: at(0.5), p99: at(0.99), most: at(1) } : {};
  }

  write() {
    fs.writeSync(this.file, this.unwritten.length === 1 ? this.unwritten[0] : Buffer.concat(this.unwritten));
    this.unwritten = [];
  }

  finish() {
    this.isOver = true;
    this.end();
  }
}

/** Works until the file that ends it exists. */
async function consume(peer, { timing, log: file, at_once: atOnce, mode }) {
  const meter = new LoadMeter(file.replace(/\.[^.]*$/, ".records"), timing, atOnce);
  const log = new Log(file, timing, () => meter.line());
  const look = setInterval(() => fs.existsSync(`${file}.stop`) && meter.finish(), LOOK * 1000);
  try {
    await peer.work(meter, mode);
  } finally {
    clearInterval(look);
    log.close();
  }
}

module.exports = { produce, consume };
