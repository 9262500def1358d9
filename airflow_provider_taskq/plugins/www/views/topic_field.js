/** A field for the name of a topic. It suggests the names that contain the text. */
import { h, UI, useEffect, useId, useRef, useState } from "../airflow_globals.js";
import { useView } from "../polling.js";
import { Labelled } from "./filter.js";

export function TopicField({ conn, value = "", onChoose }) {
  const [text, setText] = useState(value);
  const shown = useRef(value);
  useEffect(() => {
    if (value !== shown.current) setText(value); // else this field chose it, and the user may have typed more since
    shown.current = value;
  }, [value]);
  const list = useId();
  const found = useView(conn, "topics", { search: text === value ? "" : text, size: 100 });
  const names = (found.data?.topics ?? []).map(({ topic }) => topic);
  const choose = (name) => {
    shown.current = name;
    onChoose(name);
  };
  const typed = ({ target }) => {
    setText(target.value);
    // A name of the list takes effect at once, other text on Enter or when the field loses the focus.
    if (names.includes(target.value)) choose(target.value);
  };
  const submit = () => text !== shown.current && choose(text);
  const enter = (event) => event.key === "Enter" && submit();
  const field = (id) =>
    h(UI.Input, {
      id,
      list,
      size: "sm",
      value: text,
      placeholder: "name",
      onChange: typed,
      onBlur: submit,
      onKeyDown: enter,
      autoComplete: "off",
    });
  const options = names.map((name) => h("option", { key: name, value: name }));
  return h(
    Labelled,
    { label: "Topic" },
    (id) => [h("span", { key: "field" }, field(id)), h("datalist", { key: "list", id: list }, options)],
  );
}
