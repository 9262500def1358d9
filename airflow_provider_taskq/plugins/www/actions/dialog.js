/** The dialog of an action: the server's preview, the confirmation, the result. */
import { h, UI, useCallback, useEffect, useRef, useState } from "../airflow_globals.js";
import { Icon } from "../icons.js";
import { post } from "../api.js";
import { count } from "../format.js";
import { Frame, Message } from "./dialog_frame.js";
import { KINDS, Options } from "./options.js";

/** Sends the action, to preview or to confirm it. */
function send(conn, request, options, confirm, expected, token) {
  const { action, topic = null, sequences = null, filter = null } = request;
  const body = { action, topic, sequences, filter, options, confirm, expected, token };
  return post(`${encodeURIComponent(conn.conn_id)}/actions`, body);
}

/** {preview, error}: the preview for these options, loaded again when they change. */
function usePreview(conn, request, options, turn) {
  const [loaded, setLoaded] = useState({ preview: null, error: null });
  useEffect(() => {
    let wanted = true;
    setLoaded({ preview: null, error: null });
    send(conn, request, options, false, null).then(
      (preview) => wanted && setLoaded({ preview, error: null }),
      (error) => wanted && setLoaded({ preview: null, error }),
    );
    return () => {
      wanted = false;
    };
  }, [conn, request, options, turn]);
  return loaded;
}

/** The label of the confirm button, with the number of tasks that it changes. */
function label(kind, preview) {
  return preview && preview.count !== null && preview.count !== undefined
    ? `${kind.verb} ${count(preview)}`
    : kind.verb;
}

/**
 * request: {action, topic, sequences or filter, options, subject (in words), onDone()}.
 * It calls `done(sentence)` after the action. While it is `busy` it cannot be closed.
 */
export function ActionDialog({ conn, request, close, done, busy, setBusy }) {
  const kind = KINDS[request.action];
  const [options, setOptions] = useState({ ...kind.options, ...request.options });
  const [turn, setTurn] = useState(0);
  const [outcome, setOutcome] = useState(null);
  const { preview, error } = usePreview(conn, request, options, turn);
  const finish = useRef(null);

  const again = useCallback(() => {
    setOutcome(null);
    setTurn((before) => before + 1);
  }, []);

  useEffect(() => {
    if (outcome) finish.current?.focus();
  }, [outcome]);

  async function confirm() {
    setBusy(true);
    try {
      const result = await send(conn, request, options, true, preview.count, preview.token);
      setOutcome({ result });
      done(result.sentence);
    } catch (failure) {
      setOutcome({ failure });
    }
    setBusy(false);
  }

  const nothing = preview && preview.count === 0;
  const cancel = h(
    UI.Button,
    { key: "cancel", size: "sm", variant: "outline", disabled: busy, onClick: close },
    kind.done ?? "Cancel",
  );
  const confirmButton = h(
    UI.Button,
    {
      key: "confirm",
      size: "sm",
      colorPalette: kind.danger ? "danger" : "brand",
      disabled: !preview || nothing,
      loading: busy,
      onClick: confirm,
      "data-testid": "confirm",
    },
    h(Icon, { name: kind.icon }),
    label(kind, preview),
  );
  const more = outcome?.failure || outcome?.result?.more;
  const ended = [
    more ? h(UI.Button, { key: "again", size: "sm", variant: "outline", onClick: again }, "Preview again") : null,
    h(UI.Button, { key: "done", size: "sm", ref: finish, colorPalette: "brand", onClick: close }, "Close"),
  ];
  return h(
    Frame,
    { title: `${kind.verb} ${request.subject}`, close, busy, footer: outcome ? ended : [cancel, confirmButton] },
    outcome ? null : h(Options, { action: request.action, options, onChange: setOptions }),
    outcome ? h(Outcome, outcome) : h(Preview, { preview, error, danger: kind.danger }),
  );
}

function Preview({ preview, error, danger }) {
  if (error) return h(Message, { status: "error" }, error.message);
  if (!preview) return h(UI.Skeleton, { height: 10, role: "status", "aria-label": "Loading the preview" });
  const warned = danger && preview.count > 0 ? " This cannot be undone." : "";
  return h(Message, { status: danger ? "warning" : "info" }, preview.sentence + warned);
}

function Outcome({ result, failure }) {
  return failure
    ? h(Message, { status: "error" }, failure.message)
    : h(Message, { status: "success" }, result.sentence);
}
