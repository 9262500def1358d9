/** What ran, as psql would show it, and a prompt for SQL of the visitor's own. */
import { button, copy, h, uniqueId } from "./dom.js";
import { colored, printed, printedError } from "./sql.js";

const KEPT = 200; // statements in the transcript
const CHARACTER = 7.3; // pixels, at the usual size of text

export class Transcript {
  #entries = h("ol", { class: "tq-entries", tabindex: "0", "aria-label": "Statements and their results" });
  #statements = [];

  /** `run(sql)` runs a statement of the visitor, and shows it here. */
  constructor(run) {
    const hint = h("span", { class: "tq-hint" }, "Each action is a statement, which works in psql, too.");
    const title = h("h3", { class: "tq-title", id: uniqueId("transcript") }, "In SQL");
    const copyAll = button("Copy as a script", "quiet", () => copy(this.script, copyAll));
    this.element = h(
      "section",
      { class: "tq-transcript", "aria-labelledby": title.id },
      h("div", { class: "tq-bar" }, title, hint, copyAll),
      this.#entries,
      this.#prompt(run),
    );
  }

  /** All statements so far, to be run in psql. */
  get script() {
    return this.#statements.map((sql) => `${sql};\n`).join("");
  }

  add(sql, results) {
    const columns = Math.min(96, Math.floor(this.element.clientWidth / CHARACTER) - 4);
    const all = results.map((result) => printed(result, columns));
    const wrapped = all.every((result) => result.wrapped) ? " tq-wrapped" : "";
    this.#append(sql, all.map(({ text }) => text).join("\n\n"), `tq-result${wrapped}`);
  }

  /** `expected`: the error is what the step shows, not a fault. */
  addError(sql, error, expected = false) {
    this.#append(sql, printedError(error), `tq-result tq-wrapped ${expected ? "tq-refused" : "tq-failed"}`);
  }

  #append(sql, text, look) {
    this.#statements.push(sql);
    const copyOne = button("Copy", "quiet", () => copy(`${sql};`, copyOne), { "aria-label": "Copy this statement" });
    this.#entries.append(
      h(
        "li",
        {},
        h("pre", { class: "tq-statement" }, h("code", {}, colored(`${sql};`))),
        copyOne,
        h("pre", { class: look }, text),
      ),
    );
    if (this.#entries.childElementCount > KEPT) this.#entries.firstElementChild.remove();
    this.#entries.scrollTop = this.#entries.scrollHeight;
  }

  #prompt(run) {
    const text = h("textarea", {
      class: "tq-input tq-sql",
      id: uniqueId("sql"),
      rows: "1",
      spellcheck: "false",
      autocapitalize: "off",
      placeholder: "SELECT * FROM taskq.tasks",
    });
    const submit = (event) => {
      event.preventDefault();
      const sql = text.value.trim().replace(/;+$/, "");
      if (sql) run(sql);
    };
    const keys = (event) => (event.ctrlKey || event.metaKey) && event.key === "Enter" && submit(event);
    text.addEventListener("keydown", keys);
    text.addEventListener("input", () => (text.rows = Math.min(8, text.value.split("\n").length)));
    return h(
      "form",
      { class: "tq-prompt", onsubmit: submit },
      h("label", { for: text.id }, "Your own SQL"),
      text,
      h("button", { class: "tq-button tq-button--plain", title: "Ctrl+Enter" }, "Run"),
    );
  }
}
