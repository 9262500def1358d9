/** The current view. The URL holds all of it, so that a link shows the same view to another user. */
import { useCallback, useLocation, useMemo, useSearchParams } from "./airflow_globals.js";

export const FILTERS = [
  "state",
  "status",
  "identifier",
  "reference",
  "since",
  "until",
  "error",
  "error_group",
  "order",
];
const KEPT = ["conn_id"];

/** The query string of a place, without empty values. */
export function search(place) {
  const params = new URLSearchParams();
  for (const [name, value] of Object.entries(place)) {
    if (value !== null && value !== undefined && value !== "") params.set(name, value);
  }
  return `?${params}`;
}

/** The view of a URL. The links of operators name only a topic. */
function viewOf(params) {
  if (params.view) return params.view;
  return params.topic ? (params.sequence ? "task" : "topic") : "topics";
}

/** Identifies what the user looks at. When it changes, a new view is shown and its heading takes the focus. */
export function viewKey(params) {
  const { topic, sequence, owner } = params;
  const view = viewOf(params);
  const subject = { topic, task: `${topic}#${sequence}`, owner, search: params.text }[view];
  return `${view} ${subject ?? ""}`;
}

/** The title of a view, for the browser's tab and history. */
export function titleOf(params) {
  const { topic, sequence, owner, text } = params;
  const view = viewOf(params);
  const name = view.charAt(0).toUpperCase() + view.slice(1).replaceAll("_", " ");
  const subject = { task: `#${sequence} · ${topic}`, topic, owner, search: text }[view];
  return subject ?? (topic ? `${name} · ${topic}` : name);
}

/**
 * {view, ...parameters} of the URL. `at(place)`: the link to another place. `go(changes)`: goes to this place with changes.
 *
 * The URL changes before React renders the new view, so `go` applies its changes to the current URL. With `ifHere` it
 * does nothing if that is another view already, so that late input does not lead back.
 */
export function usePlace() {
  const { pathname } = useLocation();
  const [searchParams, setSearchParams] = useSearchParams();
  const text = searchParams.toString();
  const params = useMemo(() => Object.fromEntries(new URLSearchParams(text)), [text]);
  const at = useCallback(
    (place) => ({ search: search({ ...Object.fromEntries(KEPT.map((name) => [name, params[name]])), ...place }) }),
    [params],
  );
  const go = useCallback(
    (changes, { ifHere, ...options } = {}) => {
      const now = Object.fromEntries(new URLSearchParams(globalThis.location.search));
      const same = viewKey(now) === viewKey(params) && now.conn_id === params.conn_id;
      const here = same && globalThis.location.pathname.endsWith(pathname);
      if (ifHere && !here) return;
      setSearchParams(new URLSearchParams(search({ ...(here ? now : params), ...changes }).slice(1)), options);
    },
    [params, pathname, setSearchParams],
  );
  return { ...params, view: viewOf(params), at, go };
}

/** The filter of tasks that a URL holds, as the API and the actions take it. */
export function filterOf(place) {
  const named = FILTERS.filter((name) => name !== "order" && place[name]).map((name) => [name, place[name]]);
  return Object.fromEntries(named);
}
