/** The right to act, and the dialog that previews and confirms every action. */
import { createContext, Fragment, h, UI, useCallback, useContext, useMemo, useState } from "../airflow_globals.js";
import { ActionDialog } from "./dialog.js";
import { PushDialog } from "./push.js";

const Context = createContext({ mayAct: false, act: () => {} });

/** {mayAct, act(request)}: see dialog.js for what a request says. */
export const useActing = () => useContext(Context);

/**
 * Its children may open the dialog. A live region announces the last result to screen readers.
 *
 * The dialog is of what is looked at `here`: it goes with it, unless it is doing something.
 */
export function Acting({ conn, here, children }) {
  const [request, setRequest] = useState(null);
  const [busy, setBusy] = useState(false);
  const [at, setAt] = useState(here);
  const [announcement, setAnnouncement] = useState("");
  const act = useCallback((asked) => setRequest({ ...asked, began: Date.now() }), []);
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
