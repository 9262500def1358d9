/** Data that is loaded again every few seconds while the tab is visible. */
import { createContext, useCallback, useContext, useEffect, useRef, useState } from "./airflow_globals.js";
import { get } from "./api.js";

const EVERY = 5000; // milliseconds
const AT_MOST = 60000;

/** {live, report(moment)}: whether views refresh, and the function that reports the time of new data. */
export const Liveness = createContext({ live: true, report: () => {} });

/** The pause is at least ten times as long as the request took, so that no page keeps a slow server busy. */
const pause = (took, failures) => Math.min(AT_MOST, Math.max(EVERY, 10 * took) * 2 ** Math.min(failures, 4));

/** Loads a view of a connection as `useLive` does; nothing if the name of the view is null. */
export const useView = (conn, view, query) =>
  useLive(view === null ? null : `${encodeURIComponent(conn.conn_id)}/${view}`, query);

/**
 * Loads a path of the API again and again: {data, error, loading, reload}. If `where` is null it loads nothing.
 *
 * A hidden tab loads nothing; a tab that becomes visible loads at once. The old data stays during a request and after an
 * error, except after status 404. `once`: stops after the first answer.
 */
export function useLive(where, query = {}, { once = false } = {}) {
  const { live, report } = useContext(Liveness);
  const key = where === null ? null : JSON.stringify([where, query]);
  const [state, setState] = useState({ key: null, data: null, error: null });
  const liveNow = useRef(live);
  const again = useRef(() => {});
  liveNow.current = live;

  useEffect(() => {
    if (key === null) return undefined;
    const [path, parameters] = JSON.parse(key);
    const abort = new AbortController();
    let timer = null;
    let failures = 0;
    let turn = 0;
    let answered = false;

    async function look() {
      if (answered) return;
      turn += 1;
      const mine = turn;
      clearTimeout(timer);
      const began = performance.now();
      try {
        const data = await get(path, parameters, abort.signal);
        if (mine !== turn) return; // a newer request is under way
        failures = 0;
        setState({ key, data, error: null });
        answered = once;
        if (once) return;
        report(data.as_of);
      } catch (error) {
        if (abort.signal.aborted || mine !== turn) return;
        failures += 1;
        setState((before) => ({ key, data: before.key === key && error.status !== 404 ? before.data : null, error }));
      }
      if (!abort.signal.aborted) timer = setTimeout(lookIfSeen, pause(performance.now() - began, failures));
    }

    function lookIfSeen() {
      clearTimeout(timer);
      timer = null;
      if (!document.hidden && liveNow.current) look();
    }

    const shown = () => (document.hidden ? clearTimeout(timer) : lookIfSeen());
    again.current = look;
    document.addEventListener("visibilitychange", shown);
    look();
    return () => {
      abort.abort();
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", shown);
    };
  }, [key, once, report]);

  const first = useRef(true);
  useEffect(() => {
    if (!first.current && live) again.current();
    first.current = false;
  }, [live]);

  const current = state.key === key;
  const reload = useCallback(() => again.current(), []);
  return {
    data: current ? state.data : null,
    error: current ? state.error : null,
    loading: key !== null && (!current || (!state.data && !state.error)),
    reload,
  };
}
