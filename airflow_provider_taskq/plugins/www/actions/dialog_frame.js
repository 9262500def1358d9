/** The frame of every dialog: a title, a body, and its buttons. */
import { h, UI } from "../airflow_globals.js";

/** The first field or button has the focus. Escape closes the dialog, unless it is busy; a click outside does not. */
export function Frame({ title, close, busy, footer, children, size = "md" }) {
  const root = { open: true, size, scrollBehavior: "inside", role: "dialog" };
  const closing = { onOpenChange: ({ open }) => !open && !busy && close(), closeOnInteractOutside: false };
  const dialog = h(
    UI.Dialog.Positioner,
    { px: 2 },
    h(
      UI.Dialog.Content,
      { "data-testid": "dialog" },
      h(UI.Dialog.Header, { pb: 2 }, h(UI.Dialog.Title, { fontSize: "md", overflowWrap: "anywhere" }, title)),
      h(UI.Dialog.Body, { as: UI.Stack }, h(UI.Stack, { gap: 4 }, children)),
      h(UI.Dialog.Footer, { flexWrap: "wrap" }, footer),
    ),
  );
  return h(UI.Dialog.Root, { ...root, ...closing }, h(UI.Portal, null, h(UI.Dialog.Backdrop), dialog));
}

/** A message of the server: an error, a preview or a result. */
export function Message({ status, children }) {
  return h(
    UI.Alert.Root,
    { status, size: "sm", role: status === "error" ? "alert" : "status", "data-testid": `message-${status}` },
    h(UI.Alert.Indicator),
    h(UI.Alert.Content, { overflowWrap: "anywhere" }, children),
  );
}
