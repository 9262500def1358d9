/** Free play in the topic `parcels`: forms for push and poll, workers with their leases, actions for each task. */
import { button, field, h, select } from "./dom.js";
import { literal } from "./sql.js";
import { isTimed, records } from "./tasks.js";

export const TOPIC = "parcels";
const WORKERS = ["worker-a", "worker-b"];
const INSERTIONS = [
  ["APPEND", "APPEND: older tasks stay"],
  ["SUPERSEDE", "SUPERSEDE: waiting → REDUNDANT"],
  ["REPLACE", "REPLACE: waiting and ended → REDUNDANT"],
  ["DELETE", "DELETE: waiting and ended are removed"],
];
const CONDITIONS = [
  ["NONE", "NONE: any due task"],
  ["SINGULAR_BY_IDENTIFIER", "SINGULAR: one at a time per identifier"],
  ["SINGULAR_BY_IDENTIFIER_SUSPEND_ON_FAILURE", "… SUSPEND_ON_FAILURE: none after a failure"],
  ["SINGULAR_BY_IDENTIFIER_SUSPEND_UNTIL_SUCCESS", "… SUSPEND_UNTIL_SUCCESS: none until a success"],
];
const LEASES = ["20 seconds", "5 minutes", "2 seconds"];
const RESULTS = { FAILURE: 0, SUCCESS: 3 };

/** The statement that reads the leases of the workers. A lease that expire() has ended has no row. */
export const WORKERS_QUERY =
  `SELECT o.name, o.fence, ceil(extract(epoch FROM o.lease_until - clock_timestamp())) AS seconds
FROM unnest(ARRAY[${WORKERS.map(literal).join(", ")}]) AS n (name), taskq.owner(n.name) o`;

/** The statements that free play begins with. */
export const PREPARATION = [
  `SELECT taskq.create_topic('${TOPIC}', p_max_attempts => 3, p_base => '10 s')`,
  `SELECT taskq.push('${TOPIC}', 'parcel-1', '{"to": "Lima"}')`,
];

const number = (properties) => h("input", { class: "tq-input", type: "number", ...properties });
const line = (properties) => h("input", { class: "tq-input", autocomplete: "off", spellcheck: "false", ...properties });

export class FreePlay {
  #workers = new Map(); // by name: fence and seconds of the lease
  #tasks = [];
  #leases = h("ul", { class: "tq-workers", "aria-label": "Workers" });

  /** `run(sql)` runs a statement and shows it; `say(text)` announces an outcome; `explain(sequence, reason)` shows it. */
  constructor({ run, say, explain }) {
    Object.assign(this, { run, say, explain });
    this.element = h("div", { class: "tq-free" }, this.#pushForm(), this.#pollForm(), this.#leaseCard());
  }

  #form(title, act, fields, label) {
    const submit = async (event) => {
      event.preventDefault();
      await this.#attempt(act);
    };
    return h(
      "form",
      { class: "tq-card", onsubmit: submit },
      h("h3", { class: "tq-title" }, title),
      h("div", { class: "tq-fields" }, fields),
      h("button", { class: "tq-button tq-button--primary", "data-act": label.toLowerCase() }, label),
    );
  }

  #pushForm() {
    const identifier = line({ value: "parcel-1", required: true });
    const payload = line({ value: '{"to": "Oslo"}' });
    const insertion = select(INSERTIONS, "APPEND");
    const priority = number({ value: "0" });
    const delay = number({ value: "0", min: "0" });
    const push = async () => {
      const parts = [TOPIC, identifier.value, payload.value || null].map(literal);
      if (insertion.value !== "APPEND") parts.push(`insertion => ${literal(insertion.value)}`);
      if (Number(priority.value)) parts.push(`priority => ${Number(priority.value)}`);
      if (Number(delay.value)) parts.push(`delay => '${Number(delay.value)} s'`);
      const [{ rows }] = await this.run(`SELECT taskq.push(${parts.join(", ")})`);
      return `Task ${rows[0][0]} was pushed.`;
    };
    return this.#form(
      "Push a task",
      push,
      [
        field("Identifier", identifier),
        field("Payload (JSON)", payload),
        field("Insertion", insertion, "wide"),
        field("Priority (-100 to 100)", priority),
        field("Delay (seconds)", delay),
      ],
      "Push",
    );
  }

  #pollForm() {
    const worker = select(WORKERS, WORKERS[0]);
    const size = number({ value: "1", min: "1" });
    const condition = select(CONDITIONS, "NONE");
    const lease = select(LEASES, LEASES[0]);
    const poll = async () => {
      const fence = await this.#fence(worker.value, lease.value);
      const named = condition.value === "NONE" ? "" : `, p_condition => ${literal(condition.value)}`;
      const call = `taskq.poll('${TOPIC}', '${worker.value}', ${fence}, ${Number(size.value) || 1}${named})`;
      const polled = records((await this.run(`SELECT * FROM ${call}`))[0]).map(({ sequence }) => sequence);
      return polled.length
        ? `${worker.value} holds task ${polled.join(", ")}.`
        : "The poll got no task. Ask a READY task why.";
    };
    return this.#form(
      "Poll as a worker",
      poll,
      [
        field("Condition", condition, "wide"),
        field("Worker", worker, "third"),
        field("Tasks at most", size, "third"),
        field("Lease", lease, "third"),
      ],
      "Poll",
    );
  }

  #leaseCard() {
    const expire = button("Expire lapsed leases", "plain", () => this.#attempt(() => this.#expire()), {
      "data-act": "expire",
    });
    return h(
      "section",
      { class: "tq-card", "aria-label": "Leases" },
      h("h3", { class: "tq-title" }, "Leases"),
      this.#leases,
      expire,
    );
  }

  /** The fence of a worker that may poll. It registers first, or extends a lease that has lapsed. */
  async #fence(name, lease) {
    const known = this.#workers.get(name);
    if (!known) {
      const [registered] = await this.run(`SELECT * FROM taskq.register('${name}', '${lease}')`);
      return records(registered)[0].fence;
    }
    if (known.seconds <= 0) await this.run(`SELECT taskq.heartbeat('${name}', ${known.fence})`);
    return known.fence;
  }

  async #expire() {
    const [{ rows }] = await this.run("SELECT taskq.expire()");
    if (rows[0][0] !== "0") return `Tasks of lapsed leases: ${rows[0][0]}. They were given back.`;
    const running = [...this.#workers.values()].filter(({ seconds }) => seconds > 0);
    return running.length ? "No task was given back: a lease that runs is never touched." : "No task was given back.";
  }

  async #heartbeat(name) {
    await this.run(`SELECT taskq.heartbeat('${name}', ${this.#workers.get(name).fence})`);
    return `The lease of ${name} runs again for its whole length.`;
  }

  async #release(name) {
    const [{ rows }] = await this.run(`SELECT taskq.release('${name}', ${this.#workers.get(name).fence})`);
    return `${name} gave back ${rows[0][0]} tasks and ended its lease.`;
  }

  async #attempt(act) {
    try {
      this.say(await act());
    } catch (error) {
      this.say(error.message, "error");
    }
  }

  /** The actions of a task in its state. */
  offers(task) {
    const why = { label: "Why?", act: "why" };
    const revive = { label: "Revive", act: "revive" };
    return (
      {
        ACTIVE: [{ label: "Success", act: "SUCCESS" }, { label: "Failure", act: "FAILURE" }, why],
        READY: isTimed(task) ? [{ label: "Run now", act: "run_now" }, why] : [why],
        EXPIRED: [revive, why],
        FAILED: [revive, why],
        SUSPENDED: [revive, why],
        FILTERED: [revive],
        SUCCEEDED: [revive],
      }[task.state] ?? []
    );
  }

  perform(act, sequence) {
    const acts = {
      SUCCESS: () => this.#complete(sequence, act),
      FAILURE: () => this.#complete(sequence, act),
      why: () => this.#why(sequence),
      run_now: async () => {
        await this.run(`SELECT taskq.change_waiting('${TOPIC}', '{${sequence}}', p_due => now())`);
        return `Task ${sequence} is due now.`;
      },
      revive: async () => {
        await this.run(`SELECT * FROM taskq.revive('${TOPIC}', 'RESET', '{${sequence}}')`);
        return `Task ${sequence} starts again, without attempts.`;
      },
    };
    return this.#attempt(acts[act]);
  }

  async #why(sequence) {
    const [{ rows }] = await this.run(`SELECT reason FROM taskq.explain('${TOPIC}', ${sequence})`);
    this.explain(sequence, rows[0][0]); // the status repeats it, for screen readers and long lists
    return `Task ${sequence}: ${rows[0][0]}`;
  }

  async #complete(sequence, result) {
    const { owner } = this.#tasks.find((task) => task.sequence === sequence);
    const fence = this.#workers.get(owner)?.fence ?? 0;
    const error = result === "FAILURE" ? ",\n    p_errors => ARRAY['Timeout: no answer in 30 s']" : "";
    await this.run(`SELECT taskq.complete('${owner}', ${fence}, '{${sequence}}', '{${RESULTS[result]}}'${error})`);
    return `${owner} reported ${result} for task ${sequence}.`;
  }

  /** Shows the state that was just read. */
  update(tasks, workers) {
    this.#tasks = tasks;
    this.#workers = new Map(workers.map(({ name, fence, seconds }) => [name, { fence, seconds: Number(seconds) }]));
    for (const name of WORKERS) this.#showLease(name);
  }

  #showLease(name) {
    const known = this.#workers.get(name);
    const held = this.#tasks.filter(({ state, owner }) => state === "ACTIVE" && owner === name).length;
    const holds = `holds ${held} task${held === 1 ? "" : "s"}`;
    let text = "no lease: it registers at its next poll";
    if (known?.seconds > 0) text = `fence ${known.fence} · lease ends in ${known.seconds} s · ${holds}`;
    else if (known) text = `fence ${known.fence} · lease lapsed, expire() may take it · ${holds}`;
    const item = this.#leases.querySelector(`[data-worker="${name}"]`) ?? this.#newLease(name);
    const line = item.querySelector(".tq-worker-lease");
    if (line.textContent !== text) line.textContent = text;
    item.dataset.lease = !known ? "none" : known.seconds > 0 ? "runs" : "lapsed";
    for (const control of item.querySelectorAll("button")) control.hidden = !known;
  }

  #newLease(name) {
    const act = (label, method) =>
      button(label, "quiet", () => this.#attempt(() => method(name)), { "aria-label": `${label}: ${name}` });
    const item = h(
      "li",
      { class: "tq-worker", "data-worker": name },
      h("strong", {}, name),
      h("span", { class: "tq-worker-lease" }),
      act("Heartbeat", (worker) => this.#heartbeat(worker)),
      act("Release", (worker) => this.#release(worker)),
    );
    this.#leases.append(item);
    return item;
  }
}
