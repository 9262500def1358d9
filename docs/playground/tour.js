/** The guided tour: six steps in the topic `orders`, each with the statements that it runs. */
import { button, h } from "./dom.js";
import { colored } from "./sql.js";

export const TOPIC = "orders";
const CONDITION = "SINGULAR_BY_IDENTIFIER";

const cell = (results, name) => {
  const { fields, rows } = results.at(-1);
  return rows[0]?.[name ? fields.findIndex((field) => field.name === name) : 0] ?? null;
};
const push = (identifier, payload, key) => ({
  sql: () => `SELECT taskq.push('${TOPIC}', '${identifier}', '${payload}')`,
  keep: (results) => ({ [key]: cell(results) }),
});
const explain = (task, key) => ({
  sql: (at) => `SELECT reason FROM taskq.explain('${TOPIC}', ${at[task]})`,
  keep: (results) => ({ [key]: cell(results) }),
});
const poll = (owner, size, fence) => ({
  sql: (at) => `SELECT * FROM taskq.poll('${TOPIC}', '${owner}', ${at[fence]}, ${size}, p_condition => '${CONDITION}')`,
});
const register = (owner, lease, fence) => ({
  sql: () => `SELECT * FROM taskq.register('${owner}', '${lease}')`,
  keep: (results) => ({ [fence]: cell(results, "fence") }),
});

/**
 * `sql(at)` makes a statement; `at` has what earlier statements kept: the sequences `a1`, `a2`, `b1`, fences, reasons.
 * A statement with `refused` is to fail with that code. `done(at)` says what happened, from what was kept.
 */
export const STEPS = [
  {
    title: "Push three tasks",
    text: "A producer pushes a task in the transaction that writes its own rows. " +
      "This topic allows two attempts, 30 seconds apart. Two of the tasks belong to one customer.",
    statements: [
      { sql: () => `SELECT taskq.create_topic('${TOPIC}', p_max_attempts => 2, p_base => '30 s')` },
      push("customer-17", '{"total": 12}', "a1"),
      push("customer-17", '{"total": 30}', "a2"),
      push("customer-18", '{"total": 7}', "b1"),
    ],
    done: (at) => `Tasks ${at.a1}, ${at.a2} and ${at.b1} are READY. The numbers are their sequences.`,
  },
  {
    title: "Poll, one at a time per customer",
    text: "A worker registers for a lease, and gets a fence: a number that grows with each registration. " +
      "Then it polls up to ten tasks, under the condition that an identifier has one task at a time.",
    statements: [register("worker-1", "5 minutes", "fence1"), poll("worker-1", 10, "fence1")],
    done: (at) => `worker-1 holds tasks ${at.a1} and ${at.b1}. Task ${at.a2} stays READY.`,
  },
  {
    title: "Ask why a task is not running",
    text:
      "Every task can be asked. The answer is one sentence. The page in Airflow and the command line show the same.",
    statements: [explain("a2", "why")],
    done: (at) => `Task ${at.a2}: “${at.why}”.`,
  },
  {
    title: "Fail one task, finish the other",
    text: "The worker commits both decisions in one statement: 0 is FAILURE, 3 is SUCCESS. " +
      "A task that fails with attempts left is READY again after a delay.",
    statements: [
      {
        sql: (at) =>
          `SELECT taskq.complete('worker-1', ${at.fence1}, '{${at.a1}, ${at.b1}}', '{0, 3}',\n` +
          `    p_errors => ARRAY['CardDeclined: no funds', NULL])`,
      },
      explain("a1", "why"),
    ],
    done: (at) => `Task ${at.a1}: “${at.why}”. Task ${at.b1} is SUCCEEDED.`,
  },
  {
    title: "Use the last attempt, then revive",
    text:
      "An operator runs the task now instead of waiting. The second failure is final, because the topic allows two " +
      "attempts. When the cause is mended, the operator revives the task.",
    statements: [
      { sql: (at) => `SELECT taskq.change_waiting('${TOPIC}', '{${at.a1}}', p_due => now())` },
      poll("worker-1", 1, "fence1"),
      {
        sql: (at) =>
          `SELECT taskq.complete('worker-1', ${at.fence1}, '{${at.a1}}', '{0}',\n` +
          `    p_errors => ARRAY['CardDeclined: no funds'])`,
      },
      explain("a1", "why"),
      { sql: (at) => `SELECT * FROM taskq.revive('${TOPIC}', 'RESET', '{${at.a1}}')` },
    ],
    done: (at) => `Before its revival, task ${at.a1} said: “${at.why}”. Now it is READY.`,
  },
  {
    title: "Lose a worker",
    text:
      "worker-2 takes the task under a lease of two seconds, and stalls. When the lease has lapsed, expire() gives the task " +
      "back. Then worker-2 wakes up and reports a success. Its fence is refused, so it cannot overwrite anything.",
    statements: [
      register("worker-2", "2 seconds", "fence2"),
      poll("worker-2", 1, "fence2"),
      { sql: () => "SELECT pg_sleep(2.1)" },
      { sql: () => "SELECT taskq.expire()" },
      { sql: (at) => `SELECT taskq.complete('worker-2', ${at.fence2}, '{${at.a1}}', '{3}')`, refused: "TQ005" },
      { sql: (at) => `SELECT happened, what, holder, error FROM taskq.timeline('${TOPIC}', ${at.a1})` },
    ],
    done: (at) => `Task ${at.a1} is READY again, and its history tells what happened. You have seen the whole cycle.`,
  },
];

/** A value that a statement of the same step will return is shown as a variable of psql. */
const preview = (at) => new Proxy(at, { get: (kept, key) => kept[key] ?? `:${String(key).replace(/\d$/, "")}` });

export class Tour {
  #at = {};
  #step = 0;
  #card = h("div", { class: "tq-card" });
  #marks = h("ol", { class: "tq-marks", "aria-label": "Steps of the tour" });

  /** `run(sql, refused)` runs a statement and shows it; `say` announces an outcome; `leave` goes on to free play. */
  constructor({ run, say, leave }) {
    Object.assign(this, { run, say, leave });
    this.element = h("div", { class: "tq-tour" }, this.#marks, this.#card);
    this.#show();
  }

  #show(focus = false) {
    const step = STEPS[this.#step];
    const at = preview(this.#at);
    const statements = step.statements.map(({ sql }) => `${sql(at)};`).join("\n");
    const title = h("h3", { class: "tq-title", tabindex: "-1" }, `${this.#step + 1}. ${step.title}`);
    const go = button("Run this step", "primary", () => this.#play(step, go), { "data-act": "run" });
    this.#card.replaceChildren(
      title,
      h("p", {}, step.text),
      h(
        "pre",
        { class: "tq-statement", tabindex: "0", "aria-label": "SQL of this step" },
        h("code", {}, colored(statements)),
      ),
      h("div", { class: "tq-foot" }, go),
    );
    this.#marks.replaceChildren(...STEPS.map((each, i) => this.#mark(each, i)));
    if (focus) title.focus();
  }

  #mark({ title }, i) {
    const state = i < this.#step ? "done" : i === this.#step ? "current" : "open";
    const said = { done: "done: ", current: "", open: "" }[state];
    return h(
      "li",
      { class: `tq-mark tq-mark--${state}`, "aria-current": state === "current" ? "step" : null, title },
      h("span", { class: "tq-hidden" }, `${said}${title}`),
    );
  }

  async #play(step, go) {
    if (go.getAttribute("aria-disabled") === "true") return;
    go.setAttribute("aria-disabled", "true");
    go.textContent = "Running …";
    let outcome = null;
    try {
      for (const { sql, keep, refused } of step.statements) {
        const results = await this.run(sql(this.#at), refused);
        if (keep) Object.assign(this.#at, keep(results));
      }
      outcome = step.done(this.#at);
    } catch {
      outcome = "This statement failed: the transcript shows why. Start over to begin the tour again.";
    }
    this.#conclude(outcome, go);
  }

  #conclude(outcome, go) {
    const last = this.#step === STEPS.length - 1;
    const next = last
      ? button("Play freely", "primary", this.leave, { "data-act": "leave" })
      : button("Next", "primary", () => this.#advance(), { "data-act": "next" });
    const focused = document.activeElement === go;
    this.#card.querySelector(".tq-foot").replaceChildren(h("p", { class: "tq-outcome" }, outcome), next);
    this.say(outcome, "quiet"); // the card shows it
    if (focused) next.focus();
  }

  #advance() {
    this.#step += 1;
    this.#show(true);
  }
}
