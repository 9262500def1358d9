/**
 * <taskq-playground>: the queue's SQL functions on a PostgreSQL in the page. Nothing is loaded before the visitor
 * starts it, except the manifest with the size of the download. All files come from the folder of this script.
 */
import { Database } from "./database.js";
import { button, h, uniqueId } from "./dom.js";
import * as free from "./free_play.js";
import { isTimed, records, TaskList, tasksQuery } from "./tasks.js";
import { STEPS, TOPIC, Tour } from "./tour.js";
import { Transcript } from "./transcript.js";

const here = (path) => new URL(path, import.meta.url);
const SECOND = 1000;

function loadStyle() {
  const href = here("playground.css").href;
  const existing = document.querySelector(`link[href="${href}"]`);
  if (existing) return Promise.resolve();
  const link = h("link", { rel: "stylesheet", href });
  const loaded = new Promise((resolve) => ["load", "error"].forEach((name) => link.addEventListener(name, resolve)));
  document.head.append(link);
  return loaded;
}

const megabytes = (bytes) => `${(bytes / 1e6).toFixed(1)} MB`;

/** What the browser lacks, or null. */
function missing() {
  if (typeof WebAssembly !== "object") return "WebAssembly";
  if (typeof DecompressionStream !== "function") return "DecompressionStream";
  return null;
}

class Playground extends HTMLElement {
  #database = null;
  #status = h("p", { class: "tq-status", role: "status" });
  #timer = null;

  async connectedCallback() {
    if (this.dataset.state) return;
    this.dataset.state = "new";
    const [manifest] = await Promise.all([this.#manifest(), loadStyle()]);
    if (!manifest) return this.#unavailable("This copy of the site was built without PostgreSQL for the browser.");
    if (missing()) return this.#unavailable(`This browser lacks ${missing()}.`);
    this.#offer(manifest);
  }

  disconnectedCallback() {
    clearTimeout(this.#timer);
    this.#database?.close();
    this.#database = null;
    delete this.dataset.state;
  }

  async #manifest() {
    try {
      const response = await fetch(here("files/manifest.json"));
      return response.ok ? await response.json() : null;
    } catch {
      return null;
    }
  }

  /** Nothing runs here: the text says why, and links to the session that was recorded in psql. */
  #unavailable(reason) {
    this.dataset.state = "unavailable";
    const recorded = h("a", { href: here("./#in-psql") }, "The same steps, recorded in psql");
    this.replaceChildren(
      h(
        "div",
        { class: "tq-frame tq-poster" },
        h("p", { role: "alert" }, `${reason} `, recorded, " show what it would do."),
      ),
    );
  }

  #offer(manifest) {
    this.dataset.state = "offered";
    const start = button("Start PostgreSQL in this page", "primary", () => this.#start(manifest), {
      "data-act": "start",
    });
    const told = `Downloads ${
      megabytes(manifest.bytes)
    } from this site, once. No server: it runs in your browser's memory.`;
    const size = h("p", { class: "tq-hint" }, told);
    const steps = h(
      "ol",
      { class: "tq-outline" },
      STEPS.map(({ title }) => h("li", {}, title)),
    );
    this.replaceChildren(
      h(
        "div",
        { class: "tq-frame tq-poster" },
        h(
          "div",
          {},
          h(
            "p",
            { class: "tq-lead" },
            "Push, poll, fail and ask why, on the real SQL functions. Every step shows the SQL that it ran.",
          ),
          start,
          size,
        ),
        h("div", {}, h("p", { class: "tq-title" }, "A tour of six steps, then free play"), steps),
      ),
    );
  }

  async #start(manifest) {
    this.dataset.state = "starting";
    const bar = h("progress", { max: "100", "aria-label": "Start of PostgreSQL" });
    const text = h("p", { role: "status" }, "Loading …");
    this.replaceChildren(h("div", { class: "tq-frame tq-poster tq-starting" }, h("div", {}, bar, text)));
    const stages = { download: "Loading …", server: "Starting PostgreSQL …", schema: "Installing the schema taskq …" };
    const progress = ({ stage, loaded, total }) => {
      if (stage === "download") bar.value = (80 * loaded) / total;
      else bar.removeAttribute("value");
      if (text.textContent !== stages[stage]) text.textContent = stages[stage];
    };
    try {
      this.#database = await Database.start(progress);
    } catch (error) {
      return this.#failed(error, manifest);
    }
    if (!this.isConnected) return this.#database.close();
    this.#open(manifest);
  }

  #failed(error, manifest) {
    this.#unavailable(`PostgreSQL could not start in this browser: ${error.message}.`);
    this.firstElementChild.append(button("Try again", "plain", () => this.#start(manifest)));
  }

  #open(manifest) {
    this.dataset.state = "running";
    this.#say("");
    this.tasks = new TaskList(
      (task) => this.#offers(task),
      (act, sequence) => this.free.perform(act, sequence),
    );
    this.transcript = new Transcript((sql) => this.#own(sql));
    const shared = { run: (...all) => this.#run(...all), say: (...all) => this.#say(...all) };
    this.tour = new Tour({ ...shared, leave: () => this.#choose("free", true) });
    this.free = new free.FreePlay({ ...shared, explain: (...all) => this.tasks.explain(...all) });
    this.tabs = this.#tabs();
    this.main = h(
      "div",
      { class: "tq-main" },
      h("div", { class: "tq-side" }, this.tabs.panels),
      h("section", { class: "tq-state", "aria-label": "Tasks" }, this.topicTitle, this.tasks.element),
      this.#status,
    );
    const { version, functions } = this.#database;
    const restart = button("Start over", "quiet", () => this.#restart(manifest));
    this.replaceChildren(
      h(
        "div",
        { class: "tq-frame" },
        h(
          "div",
          { class: "tq-bar tq-head" },
          this.tabs.element,
          h(
            "span",
            { class: "tq-hint tq-versions" },
            `PostgreSQL ${version} in your browser · all ${functions} functions of taskq`,
          ),
          restart,
        ),
        this.main,
        this.transcript.element,
      ),
    );
    this.#choose("tour");
    this.querySelector('[role="tab"]').focus({ preventScroll: true });
  }

  #tabs() {
    this.topicTitle = h("h3", { class: "tq-title tq-topic" });
    const names = { tour: "Guided tour", free: "Free play" };
    const tabs = {};
    const panels = {};
    for (const [name, label] of Object.entries(names)) {
      const panel = h("div", { role: "tabpanel", id: uniqueId("panel"), class: "tq-panel" }, this[name].element);
      const tab = h(
        "button",
        { type: "button", role: "tab", class: "tq-tab", id: uniqueId("tab"), "aria-controls": panel.id },
        label,
      );
      tab.addEventListener("click", () => this.#choose(name));
      panel.setAttribute("aria-labelledby", tab.id);
      tabs[name] = tab;
      panels[name] = panel;
    }
    const element = h("div", { role: "tablist", class: "tq-tabs", "aria-label": "Ways to play" }, Object.values(tabs));
    element.addEventListener("keydown", ({ key }) => {
      if (key === "ArrowRight" || key === "ArrowLeft") this.#choose(this.mode === "tour" ? "free" : "tour", true);
    });
    return { element, tabs, panels: Object.values(panels), panelOf: panels };
  }

  async #choose(mode, focus = false) {
    this.mode = mode;
    for (const [name, tab] of Object.entries(this.tabs.tabs)) {
      tab.setAttribute("aria-selected", String(name === mode));
      tab.tabIndex = name === mode ? 0 : -1;
      this.tabs.panelOf[name].hidden = name !== mode;
    }
    this.main.dataset.mode = mode;
    if (focus) this.tabs.tabs[mode].focus();
    this.#say("");
    this.topicTitle.replaceChildren("Tasks of topic", h("code", {}, this.#topic));
    if (mode === "free" && !this.prepared) {
      this.prepared = true;
      for (const sql of free.PREPARATION) await this.#run(sql);
    } else await this.#refresh();
  }

  get #topic() {
    return this.mode === "tour" ? TOPIC : free.TOPIC;
  }

  #offers(task) {
    return this.mode === "free" ? this.free.offers(task) : [];
  }

  /** Announces an outcome. `look`: error, or quiet for one that is shown elsewhere, too. */
  #say(text, look = null) {
    this.#status.textContent = text;
    this.#status.className = look ? `tq-status tq-status--${look}` : "tq-status";
  }

  /** Runs a statement and shows it. `refused`: the code of the error that it is to end with. Returns its results. */
  async #run(sql, refused) {
    const database = this.#database;
    try {
      const results = await database.run(sql);
      this.transcript.add(sql, results);
      if (refused) throw new Error(`the statement was not refused with ${refused}`);
      return results;
    } catch (error) {
      const expected = Boolean(refused) && error.code === refused;
      if (error.code || !refused) this.transcript.addError(sql, error, expected);
      if (!expected) throw error;
      return null;
    } finally {
      await this.#refresh();
    }
  }

  async #own(sql) {
    try {
      await this.#run(sql);
      this.#say("Done: the result is below the statement.");
    } catch (error) {
      this.#say(error.message, "error");
    }
  }

  /** Reads the state of the tasks again, and once a second while a time runs. */
  async #refresh() {
    clearTimeout(this.#timer);
    const database = this.#database;
    if (!database || !this.mode) return;
    let timed = false;
    try {
      const [read, owners] = await database.run(`${tasksQuery(this.#topic)};\n${free.WORKERS_QUERY}`);
      if (database !== this.#database) return;
      const [tasks, workers] = [records(read), records(owners)];
      this.free.update(tasks, workers);
      this.tasks.update(this.#topic, tasks);
      timed = tasks.some(isTimed) || workers.some(({ seconds }) => Number(seconds) > 0);
    } catch (error) {
      this.#say(`The list of tasks cannot be read: ${error.message}`, "error");
    }
    clearTimeout(this.#timer); // of a refresh at the same time
    if (timed) this.#timer = setTimeout(() => this.#tick(), SECOND);
  }

  #tick() {
    if (document.hidden) document.addEventListener("visibilitychange", () => this.#refresh(), { once: true });
    else this.#refresh();
  }

  #restart(manifest) {
    clearTimeout(this.#timer);
    this.#database.close();
    this.#database = null;
    this.prepared = false;
    this.#start(manifest);
  }
}

if (!customElements.get("taskq-playground")) customElements.define("taskq-playground", Playground);
