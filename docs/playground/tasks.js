/** The tasks of a topic with their states, read from the view taskq.task_info. */
import { button, disclosure, h } from "./dom.js";
import { colored, literal } from "./sql.js";

const NEWEST = 30;

/** The statement that reads the newest tasks of a topic. */
export const tasksQuery = (topic) =>
  `SELECT sequence, identifier, payload, taskq.state_name(state) AS state, status,
       taskq.state_name(descent) AS descent, attempt, priority, owner,
       ceil(extract(epoch FROM available_at - clock_timestamp())) AS due_in
FROM taskq.task_info WHERE topic = ${literal(topic)}
ORDER BY sequence DESC LIMIT ${NEWEST}`;

/** The rows of a result as objects. */
export function records({ fields, rows }) {
  return rows.map((row) => Object.fromEntries(fields.map(({ name }, i) => [name, row[i]])));
}

/** Whether the text of a task changes with time. */
export const isTimed = ({ state, due_in: due }) => state === "READY" && Number(due) > 0;

function note(task) {
  const attempt = Number(task.attempt);
  const tried = attempt === 1 ? "1 attempt" : `${attempt} attempts`;
  const notes = {
    ACTIVE: [`held by ${task.owner}`, `attempt ${attempt}`],
    READY: [
      task.status === "blocked" && "waits for another task",
      task.status === "paused" && "paused",
      isTimed(task) && `${attempt ? "retry" : "due"} in ${task.due_in} s`,
      attempt > 0 && `${tried} failed`,
    ],
    FAILED: [`after ${tried}`],
    REDUNDANT: [task.descent && `was ${task.descent}`],
    RECREATED: [task.descent && `was ${task.descent}`],
  }[task.state];
  return (notes ?? []).filter(Boolean).join(" · ");
}

/** Changes a text only if it differs, so that a screen reader's place and a selection stay. */
function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

class Row {
  #offered = null;
  #parts = {};

  constructor(task, perform) {
    this.perform = perform;
    const part = (name, tag = "span") => (this.#parts[name] = h(tag, { class: `tq-task-${name}` }));
    this.element = h(
      "li",
      { class: "tq-task", "data-sequence": task.sequence },
      h("span", { class: "tq-task-number" }, h("span", { class: "tq-hidden" }, "Task "), task.sequence),
      h(
        "span",
        { class: "tq-task-about" },
        h("span", {}, part("identifier"), part("priority")),
        part("payload", "code"),
      ),
      h("span", { class: "tq-task-now" }, part("state"), part("note")),
      part("actions"),
      part("reason", "p"),
    );
    this.#parts.reason.hidden = true;
    this.update(task, []);
  }

  update(task, offered) {
    const { identifier, priority, payload, state, note: about } = this.#parts;
    setText(identifier, task.identifier);
    setText(priority, Number(task.priority) ? `priority ${task.priority}` : "");
    setText(payload, task.payload ?? "");
    setText(state, task.state);
    state.dataset.state = task.state;
    setText(about, note(task));
    if (this.state && this.state !== task.state) this.explain("");
    this.state = task.state;
    this.#offer(task, offered);
  }

  /** The sentence of taskq.explain, below the task. */
  explain(reason) {
    setText(this.#parts.reason, reason);
    this.#parts.reason.hidden = !reason;
  }

  #offer(task, offered) {
    const names = offered.map(({ label }) => label).join();
    if (names === this.#offered) return;
    this.#offered = names;
    const { actions } = this.#parts;
    const focused = actions.contains(document.activeElement);
    const make = ({ label, look = "plain", act }) =>
      button(label, look, () => this.perform(act, task.sequence), { "aria-label": `${label}: task ${task.sequence}` });
    actions.replaceChildren(...offered.map(make));
    if (focused) actions.querySelector("button")?.focus();
  }
}

/** The list. `offers(task)` names the actions of a task; `perform(act, sequence)` carries one out. */
export class TaskList {
  #rows = new Map();
  #empty = h("p", { class: "tq-empty" }, "No task yet.");
  #list = h("ol", { class: "tq-tasks", "aria-label": "Tasks by sequence" });
  #query = h("code");

  constructor(offers = () => [], perform = () => {}) {
    this.offers = offers;
    this.perform = perform;
    const source = disclosure("SQL of this list", h("pre", { class: "tq-statement" }, this.#query));
    this.element = h("div", { class: "tq-list" }, this.#empty, this.#list, source);
  }

  update(topic, tasks) {
    const query = `${tasksQuery(topic)};`;
    if (this.#query.textContent !== query) this.#query.replaceChildren(...colored(query));
    const sequences = new Set(tasks.map(({ sequence }) => sequence));
    for (const [sequence, row] of this.#rows) {
      if (sequences.has(sequence)) continue;
      row.element.remove();
      this.#rows.delete(sequence);
    }
    let place = this.#list.firstElementChild;
    const before = this.#list.childElementCount;
    for (const task of tasks.toReversed()) {
      let row = this.#rows.get(task.sequence);
      if (!row) {
        row = new Row(task, (act, sequence) => this.perform(act, sequence));
        this.#rows.set(task.sequence, row);
      }
      row.update(task, this.offers(task));
      if (row.element === place) place = place.nextElementSibling;
      else this.#list.insertBefore(row.element, place);
    }
    if (this.#list.childElementCount > before) this.#list.scrollTop = this.#list.scrollHeight;
    this.#empty.hidden = tasks.length > 0;
  }

  explain(sequence, reason) {
    this.#rows.get(sequence)?.explain(reason);
  }
}
