/** The JSON API next to these files, called with the browser's Airflow session. */

// Relative to the folder of this file, for any URL prefix of Airflow.
const API = new URL("../api/", import.meta.url);

/** An error answer of the server, with its message. */
class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

const DEFAULT_MESSAGES = {
  401: "You are signed out. Sign in to Airflow again.",
  403: "You may not view this.",
  404: "Not found.",
};

async function answer(response) {
  const body = await response.json().catch(() => null);
  if (response.ok && body) return body;
  const message = typeof body?.error === "string" ? body.error : typeof body?.detail === "string" ? body.detail : null;
  throw new ApiError(
    response.status,
    message ?? DEFAULT_MESSAGES[response.status] ?? `The server answered ${response.status}.`,
  );
}

async function send(url, options) {
  let response;
  try {
    response = await fetch(url, { credentials: "same-origin", headers: { Accept: "application/json" }, ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "The browser cannot reach Airflow's server.");
  }
  return answer(response);
}

/** Gets a path of the API. Empty values of the query are left out. */
export function get(where, query = {}, signal = undefined) {
  const url = new URL(where, API);
  for (const [name, value] of Object.entries(query)) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== null && one !== undefined && one !== "") url.searchParams.append(name, one);
    }
  }
  return send(url, { signal });
}

/** Sends an action. */
export function post(where, body) {
  const headers = { Accept: "application/json", "Content-Type": "application/json" };
  return send(new URL(where, API), { method: "POST", headers, body: JSON.stringify(body) });
}
