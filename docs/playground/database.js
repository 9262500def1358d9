/** The page's side of worker.js. */

/** An error that PostgreSQL reports, with its code such as TQ005. */
export class SqlError extends Error {
  constructor({ code, message, detail, hint }) {
    super(message);
    Object.assign(this, { code, detail, hint });
  }
}

/** A PostgreSQL of this page. It lives in memory, and ends with the page or with close(). */
export class Database {
  #worker = new Worker(new URL("worker.js", import.meta.url), { type: "module" });
  #waiting = new Map();
  #next = 1;

  /** Starts PostgreSQL and installs the schema. `onProgress` receives {stage, loaded, total}. */
  static async start(onProgress) {
    const database = new Database();
    database.#worker.addEventListener("message", ({ data }) => data.progress && onProgress(data.progress));
    try {
      Object.assign(database, await database.#ask({ kind: "start" }));
    } catch (error) {
      database.close();
      throw error;
    }
    return database;
  }

  constructor() {
    this.#worker.addEventListener("message", ({ data: { id, value, error } }) => {
      const waiting = this.#waiting.get(id);
      this.#waiting.delete(id);
      if (error) waiting?.reject(new SqlError(error));
      else waiting?.resolve(value);
    });
    this.#worker.addEventListener("error", (event) => {
      const error = new Error(event.message || "the browser cannot run the script of the database");
      for (const { reject } of this.#waiting.values()) reject(error);
      this.#waiting.clear();
    });
  }

  /** Runs one or more statements. Each result has `fields`, `rows` of texts, `command` and `affected`. */
  run(sql) {
    return this.#ask({ kind: "run", sql });
  }

  close() {
    this.#worker.terminate();
    this.#waiting.clear();
  }

  #ask(message) {
    const id = this.#next++;
    return new Promise((resolve, reject) => {
      this.#waiting.set(id, { resolve, reject });
      this.#worker.postMessage({ id, ...message });
    });
  }
}
