/** The right to act, and the dialog that previews and confirms every action. */
import { createContext, Fragment, h, UI, useCallback, useContext, useMemo, useState } from "../airflow_globals.js";
import { ActionDialog } from "./dialog.js";
import { PushDialog } from "./push.js";

const Context = createContext({ mayAct: false, act: () => {} });

/** {mayAct, act(request)}; dialog.js describes a request. */
export const useActing = () => useContext(Context);

/**
 * Provides the dialog to its children. A live region announces the last result to screen readers.
 *
 * When the view (`here`) changes, the dialog closes, unless an action is running.
 */
export function Acting({ conn, here, children }) {
  const [request, setRequest] = useState(null);
  const [busy, setBusy] = useState(false);
  const [at, setAt] = useState(here);
  const [announcement, setAnnouncement] = useState("");
  const act = useCallback((wanted) => setRequest({ ...wanted, began: Date.now() }), []);
  const acting = useMemo(() => ({ mayAct: conn.may_act, act }), [conn.may_act, act]);
  const close = () => setRequest(null);
  if (at !== here) {
    setAt(here);
    if (!busy) close();
  }
  const done = (sentence) => {
    setAnnouncement(sentence);
    request.onDone?.();
  };
  const Dialog = request?.action === "push" ? PushDialog : ActionDialog;
  return h(
    Context.Provider,
    { value: acting },
    children,
    h(UI.VisuallyHidden, { role: "status", "aria-live": "polite", "data-testid": "announcement" }, announcement),
    request ? h(Fragment, { key: request.began }, h(Dialog, { conn, request, close, done, busy, setBusy })) : null,
  );
}
