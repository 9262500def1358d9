/** The current view. The URL holds all of it, so that a link shows the same view to another user. */
import { useCallback, useLocation, useMemo, useSearchParams } from "./airflow_globals.js";

export const FILTERS = ["state", "status", "identifier", "reference", "since", "until", "error", "error_group", "order"];
const KEPT = ["conn_id"];

/** The search of a place; what is empty is left out. */
export function search(place) {
  const asked = new URLSearchParams();
  for (const [name, value] of Object.entries(place)) {
    if (value !== null && value !== undefined && value !== "") asked.set(name, value);
  }
  return `?${asked}`;
}

/** The view that a URL means: links of operators name a topic only. */
function viewOf(asked) {
  if (asked.view) return asked.view;
  return asked.topic ? (asked.sequence ? "task" : "topic") : "topics";
}

/** What the user looks at: where it changes, a new view begins, whose heading takes the focus. */
export function whereabouts(asked) {
  const { topic, sequence, owner } = asked;
  const view = viewOf(asked);
  const subject = { topic, task: `${topic}#${sequence}`, owner, search: asked.text }[view];
  return `${view} ${subject ?? ""}`;
}

/** The same in words, for the browser's tab and its history. */
export function titleOf(asked) {
  const { topic, sequence, owner, text } = asked;
  const view = viewOf(asked);
  const name = view.charAt(0).toUpperCase() + view.slice(1).replaceAll("_", " ");
  const subject = { task: `#${sequence} · ${topic}`, topic, owner, search: text }[view];
  return subject ?? (topic ? `${name} · ${topic}` : name);
}

/**
 * {view, ...parameters} of the URL; `at(place)`: the link to another; `go(changes)`: the same one changed.
 *
 * The address changes before what it means is shown, so that `go` changes what the address says by now. `ifHere`: nothing
 * where that is another view already, so that what was typed here does not lead back.
 */
export function usePlace() {
  const { pathname } = useLocation();
  const [params, setParams] = useSearchParams();
  const text = params.toString();
  const asked = useMemo(() => Object.fromEntries(new URLSearchParams(text)), [text]);
  const at = useCallback(
    (place) => ({ search: search({ ...Object.fromEntries(KEPT.map((name) => [name, asked[name]])), ...place }) }),
    [asked],
  );
  const go = useCallback(
    (changes, { ifHere, ...options } = {}) => {
      const now = Object.fromEntries(new URLSearchParams(globalThis.location.search));
      const same = whereabouts(now) === whereabouts(asked) && now.conn_id === asked.conn_id;
      const here = same && globalThis.location.pathname.endsWith(pathname);
      if (ifHere && !here) return;
      setParams(new URLSearchParams(search({ ...(here ? now : asked), ...changes }).slice(1)), options);
    },
    [asked, pathname, setParams],
  );
  return { ...asked, view: viewOf(asked), at, go };
}

/** The filter of tasks that a URL holds, as the API and the actions take it. */
export function filterOf(place) {
  const named = FILTERS.filter((name) => name !== "order" && place[name]).map((name) => [name, place[name]]);
  return Object.fromEntries(named);
}
