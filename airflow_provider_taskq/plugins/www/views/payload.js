/** A task's payload and output: their size, and their text after a click on Reveal. */
import { useActing } from "../actions/context.js";
import { h, UI, useEffect, useState } from "../airflow_globals.js";
import { indent } from "../json.js";
import { ActionButton, Failure, Part, Verbatim } from "../components.js";
import { post } from "../api.js";
import { bytes } from "../format.js";

const masked = (size, name) => (size === null ? null : `${name}, ${bytes(size)}`);

export function Payload({ conn, task }) {
  const { mayAct } = useActing();
  const [state, setState] = useState({});
  useEffect(() => setState({}), [task.topic, task.sequence]);
  const sizes = [masked(task.payload_bytes, "payload"), masked(task.output_bytes, "output")].filter(Boolean);
  if (!sizes.length) return null;

  async function reveal() {
    setState({ loading: true });
    try {
      const texts = await post(`${encodeURIComponent(conn.conn_id)}/reveal`, {
        topic: task.topic,
        sequence: task.sequence,
      });
      setState({ texts });
    } catch (error) {
      setState({ error });
    }
  }

  if (!state.texts) {
    const note = mayAct
      ? "Reveal shows the text and writes an audit line with your name."
      : "You need the right to edit this connection to see the text.";
    return h(
      UI.Stack,
      { gap: 3, "data-testid": "masked" },
      h(Part, null, "Payload"),
      h(UI.Text, { fontSize: "sm", color: "fg.muted" }, `Hidden: ${sizes.join(" and ")}. ${note}`),
      mayAct
        ? h(ActionButton, { icon: "eye", onClick: reveal, loading: state.loading, alignSelf: "start" }, "Reveal")
        : null,
      state.error ? h(Failure, { error: state.error }) : null,
    );
  }
  const { payload, output, cut } = state.texts;
  const shown = (title, text) =>
    text === null ? null : h(
      UI.Stack,
      { key: title, gap: 2 },
      h(Part, null, title),
      h(Verbatim, { label: title, "data-testid": title.toLowerCase() }, indent(text)),
    );
  return h(
    UI.Stack,
    { gap: 3, minW: 0, "aria-live": "polite" },
    shown("Payload", payload),
    shown("Output", output),
    cut ? h(UI.Text, { fontSize: "sm", color: "fg.muted" }, "Only the first 64 KiB are shown.") : null,
    h(ActionButton, { onClick: () => setState({}), alignSelf: "start" }, "Hide"),
  );
}
