"use strict";
// What the program of every Node peer does, as program.py does it for those in Python: it answers requests, one line of
// JSON each, until its input ends.
const fs = require("node:fs");
const readline = require("node:readline");
const { setTimeout: sleep } = require("node:timers/promises");
const load = require("./load.js");

const now = () => Number(process.hrtime.bigint()) / 1e9; // seconds on the clock that Python calls monotonic

/** The handler of every job, and what it measures. */
class Meter {
  constructor(most, seconds) {
    this.most = most || Infinity;
    this.seconds = seconds || Infinity;
    this.handled = 0;
    this.first = 0;
    this.last = 0;
    this.latencies = [];
    this.isOver = false;
    this.over = new Promise((resolve) => (this.end = resolve));
  }

  handle(payload) {
    const moment = now();
    this.first ||= moment;
    this.last = moment;
    this.handled += 1;
    if (payload.pushed !== undefined) this.latencies.push((moment - payload.pushed) * 1000);
    if (this.handled >= this.most || moment - this.first >= this.seconds) this.finish();
    return { delay: payload.arr_delay };
  }

  finish() {
    this.isOver = true;
    this.end();
  }
}

/** Answers the requests of the benchmark on one peer, an object with the verbs of program.py's class Peer. */
class Program {
  constructor(peer) {
    this.peer = peer;
    this.payloads = [];
  }

  taken(count) {
    if (count > this.payloads.length) {
      throw new Error(`there are payloads for ${this.payloads.length} jobs, not for ${count}`);
    }
    return this.payloads.slice(0, count);
  }

  async open({ dsn, payloads }) {
    this.payloads = fs.readFileSync(payloads, "utf8").trimEnd().split("\n").map((line) => JSON.parse(line)[1]);
    await this.peer.open(dsn);
  }

  async install() {
    await this.peer.install();
  }

  async push({ count }) {
    const payloads = this.taken(count);
    const start = now();
    await this.peer.push(payloads);
    return now() - start;
  }

  async push_singles({ count, mode }) {
    const payloads = this.taken(count);
    const start = now();
    for (const payload of payloads) await this.peer.pushOne(payload, mode);
    return now() - start;
  }

  async drain({ most, seconds, settled, mode }) {
    const meter = new Meter(most, seconds);
    if (seconds) setTimeout(() => meter.finish(), 2000 * seconds).unref(); // if no job is left, no handler reads the clock
    await this.peer.drain(meter, mode);
    return { handled: meter.handled, first: meter.first, last: settled ? now() : meter.last };
  }

  async claim({ size, repetitions }) {
    const costs = [];
    for (let number = 0; number < repetitions; number++) {
      const start = now();
      const taken = await this.peer.claim(size);
      costs.push((now() - start) * 1000);
      if (taken !== size) throw new Error(`${taken} jobs were claimed instead of ${size}`);
    }
    return costs;
  }

  async serve({ count, mode }) {
    const meter = new Meter(count);
    await this.peer.work(meter, mode);
    return meter.latencies;
  }

  async trickle({ count, rate, mode }) {
    let due = now();
    for (const payload of this.taken(count)) {
      due += -Math.log(1 - Math.random()) / rate;
      await sleep(Math.max(0, (due - now()) * 1000));
      await this.peer.pushOne({ ...payload, pushed: now() }, mode);
    }
  }

  async produce(request) {
    await load.produce(this.peer, this.payloads, request);
  }

  async consume(request) {
    await load.consume(this.peer, request);
  }
}

async function serve(peer) {
  const program = new Program(peer);
  console.log = console.error; // the output of a library is not an answer
  const input = readline.createInterface({ input: process.stdin });
  input.on("close", () => process.exit(0)); // the benchmark has ended
  for await (const line of input) {
    const { verb, ...request } = JSON.parse(line);
    let answer;
    try {
      answer = { ok: (await program[verb](request)) ?? null };
    } catch (error) {
      answer = { error: `${error.name}: ${error.message}` };
    }
    process.stdout.write(JSON.stringify(answer) + "\n");
  }
}

module.exports = { serve };
