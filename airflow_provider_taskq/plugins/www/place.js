/** Where the user is: the URL says all of it, so that a link shows somebody else the same. */
import { useCallback, useMemo, useSearchParams } from "./host.js";

export const FILTERS = ["state", "status", "identifier", "reference", "since", "until", "error", "order"];
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

/** {view, ...parameters} of the URL; `at(place)`: the link to another; `go(changes)`: the same one changed. */
export function usePlace() {
  const [params, setParams] = useSearchParams();
  const text = params.toString();
  const asked = useMemo(() => Object.fromEntries(new URLSearchParams(text)), [text]);
  const at = useCallback(
    (place) => ({ search: search({ ...Object.fromEntries(KEPT.map((name) => [name, asked[name]])), ...place }) }),
    [asked],
  );
  const go = useCallback(
    (changes, options) => setParams(new URLSearchParams(search({ ...asked, ...changes }).slice(1)), options),
    [asked, setParams],
  );
  return { ...asked, view: viewOf(asked), at, go };
}

/** The filter of tasks that a URL holds, as the API and the actions take it. */
export function filterOf(place) {
  const named = FILTERS.filter((name) => name !== "order" && place[name]).map((name) => [name, place[name]]);
  return Object.fromEntries(named);
}
