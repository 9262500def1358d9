/** Data that is loaded again every few seconds while the tab is visible. */
import { createContext, useCallback, useContext, useEffect, useRef, useState } from "./airflow_globals.js";
import { get } from "./api.js";

const EVERY = 5000;
const AT_MOST = 60000;

/** Whether the page is live, how to switch it, the moment of the newest data, and how to tell of one. */
export const Liveness = createContext({ live: true, tell: () => {} });

/** A look that took long is repeated after ten times as long, so that no page keeps a slow server busy. */
const pause = (took, failures) => Math.min(AT_MOST, Math.max(EVERY, 10 * took) * 2 ** Math.min(failures, 4));

/**
 * What a path of the API tells, again and again: {data, error, loading, reload}. `where` null asks nothing.
 *
 * Nothing is asked while the tab is hidden; when it is shown again, at once. Data stays while newer is on its way and
 * where that fails, beside the error, unless it is gone. `once`: asked until it is answered, and not again.
 */
export function useLive(where, query = {}, { once = false } = {}) {
  const { live, tell } = useContext(Liveness);
  const key = where === null ? null : JSON.stringify([where, query]);
  const [state, setState] = useState({ key: null, data: null, error: null });
  const liveNow = useRef(live);
  const again = useRef(() => {});
  liveNow.current = live;

  useEffect(() => {
    if (key === null) return undefined;
    const [asked, asking] = JSON.parse(key);
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
        const data = await get(asked, asking, abort.signal);
        if (mine !== turn) return; // asked again since: that one counts
        failures = 0;
        setState({ key, data, error: null });
        answered = once;
        if (once) return;
        tell(data.as_of);
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
  }, [key, once, tell]);

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
