/** The form that pushes one task. It checks the payload while the user types. */
import { h, UI, useEffect, useRef, useState } from "../airflow_globals.js";
import { Icon } from "../icons.js";
import { jsonError } from "../json.js";
import { post } from "../api.js";
import { Choice, Labelled, option } from "../views/filter.js";
import { bytes } from "../format.js";
import { fromLocal } from "../time_zone.js";
import { Frame, Message } from "./dialog_frame.js";

const INSERTIONS = [
  ["APPEND", "Append: older tasks stay as they are"],
  ["SUPERSEDE", "Supersede: waiting tasks become REDUNDANT"],
  ["REPLACE", "Replace: waiting and ended tasks become REDUNDANT"],
  ["DELETE", "Delete: waiting and ended tasks are deleted"],
];
const BLANK = {
  identifier: "",
  payload: "",
  reference: "",
  priority: "0",
  available_at: "",
  insertion: "APPEND",
  suspended: false,
};

/** The form as options of the API. The payload stays a text: JavaScript would round its numbers. */
function optionsOf(form) {
  const given = { identifier: form.identifier, insertion: form.insertion, suspended: form.suspended };
  const priority = form.priority === "" ? 0 : Number(form.priority);
  return {
    ...given,
    priority,
    payload: form.payload.trim() ? form.payload : null,
    reference: form.reference || null,
    ...(form.available_at ? { available_at: fromLocal(form.available_at) } : {}),
  };
}

function Text({ label, note, value, onChange, ...props }) {
  const field = (id) =>
    h(UI.Input, { id, size: "sm", value, onChange: ({ target }) => onChange(target.value), ...props });
  return h(Labelled, { label: note ? `${label} (${note})` : label }, field);
}

function Payload({ value, onChange }) {
  const error = jsonError(value);
  const size = new TextEncoder().encode(value.trim()).length;
  const note = error ?? (value.trim() ? `JSON, ${bytes(size)}` : "no payload");
  const field = (id) => [
    h(UI.Textarea, {
      key: "field",
      id,
      value,
      rows: 6,
      fontFamily: "mono",
      fontSize: "xs",
      spellCheck: false,
      "aria-invalid": error !== null,
      "aria-describedby": `${id}-note`,
      onChange: ({ target }) => onChange(target.value),
    }),
    h(
      UI.Text,
      {
        key: "note",
        id: `${id}-note`,
        fontSize: "xs",
        mt: 1,
        color: error ? "fg.error" : "fg.muted",
        overflowWrap: "anywhere",
        "data-testid": "json",
      },
      note,
    ),
  ];
  return h(Labelled, { label: "Payload, JSON" }, field);
}

function Fields({ form, set }) {
  const columns = { gridTemplateColumns: "repeat(auto-fit, minmax(min(100%, 12rem), 1fr))", gap: 4 };
  return h(
    UI.Stack,
    { gap: 4 },
    h(Text, {
      label: "Identifier",
      value: form.identifier,
      onChange: set("identifier"),
      required: true,
      maxLength: 500,
    }),
    h(Payload, { value: form.payload, onChange: set("payload") }),
    h(
      UI.Grid,
      columns,
      h(Text, { label: "Reference", value: form.reference, onChange: set("reference") }),
      h(Text, {
        label: "Priority",
        note: "-100 to 100",
        type: "number",
        min: -100,
        max: 100,
        value: form.priority,
        onChange: set("priority"),
      }),
      h(Text, {
        label: "Due",
        note: "now unless set",
        type: "datetime-local",
        step: 1,
        value: form.available_at,
        onChange: set("available_at"),
      }),
    ),
    h(
      Choice,
      { label: "Older tasks of this identifier", value: form.insertion, onChange: set("insertion") },
      INSERTIONS.map(option),
    ),
    h(
      UI.Checkbox.Root,
      { size: "sm", checked: form.suspended, onCheckedChange: ({ checked }) => set("suspended")(checked === true) },
      h(UI.Checkbox.HiddenInput),
      h(UI.Checkbox.Control),
      h(UI.Checkbox.Label, null, "Suspended: wait until the task is released or retried"),
    ),
  );
}

const button = (key, props, ...words) => h(UI.Button, { key, size: "sm", ...props }, ...words);

/** request: {topic, onDone()}. Three steps: the form, the preview, the result. */
export function PushDialog({ conn, request, close, done, busy, setBusy }) {
  const [form, setForm] = useState(BLANK);
  const [step, setStep] = useState({ name: "form" });
  const main = useRef(null);
  const set = (name) => (value) => setForm((before) => ({ ...before, [name]: value }));
  useEffect(() => {
    if (step.name !== "form") main.current?.focus();
  }, [step.name]);

  async function send(confirm) {
    setBusy(true);
    const body = {
      action: "push",
      topic: request.topic,
      sequences: null,
      filter: null,
      options: optionsOf(form),
      confirm,
    };
    try {
      const answer = await post(`${encodeURIComponent(conn.conn_id)}/actions`, body);
      setStep({ name: confirm ? "done" : "preview", sentence: answer.sentence });
      if (confirm) done(answer.sentence);
    } catch (error) {
      setStep({ name: "form", error: error.message });
    }
    setBusy(false);
  }

  const ready = form.identifier.trim() !== "" && jsonError(form.payload) === null;
  const plain = { variant: "outline", disabled: busy };
  const footers = {
    form: () => [
      button("cancel", { ...plain, onClick: close }, "Cancel"),
      button("check", {
        colorPalette: "brand",
        disabled: !ready,
        loading: busy,
        onClick: () => send(false),
        "data-testid": "preview",
      }, "Preview"),
    ],
    preview: () => [
      button("back", { ...plain, onClick: () => setStep({ name: "form" }) }, "Back"),
      button(
        "go",
        { colorPalette: "brand", loading: busy, ref: main, onClick: () => send(true), "data-testid": "confirm" },
        h(Icon, { name: "plus" }),
        "Push",
      ),
    ],
    done: () => [button("close", { colorPalette: "brand", ref: main, onClick: close }, "Close")],
  };
  const status = { preview: "info", done: "success" }[step.name];
  return h(
    Frame,
    { title: `Push to ${request.topic}`, close, busy, footer: footers[step.name](), size: "lg" },
    step.name === "form" ? h(Fields, { form, set }) : h(Message, { status }, step.sentence),
    step.error ? h(Message, { status: "error" }, step.error) : null,
  );
}
