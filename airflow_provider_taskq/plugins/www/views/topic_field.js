/** A field for a topic's name, which knows the names that begin so or have it in them. */
import { h, UI, useEffect, useId, useRef, useState } from "../airflow_globals.js";
import { useLive } from "../polling.js";
import { Labelled } from "./filter.js";

export function TopicField({ conn, value = "", onChoose }) {
  const [text, setText] = useState(value);
  const told = useRef(value);
  useEffect(() => {
    if (value !== told.current) setText(value); // else it is what was chosen here, and more may have been typed since
    told.current = value;
  }, [value]);
  const list = useId();
  const found = useLive(`${encodeURIComponent(conn.conn_id)}/topics`, { search: text === value ? "" : text, size: 100 });
  const names = (found.data?.topics ?? []).map(({ topic }) => topic);
  const choose = (name) => {
    told.current = name;
    onChoose(name);
  };
  const typed = ({ target }) => {
    setText(target.value);
    // What was chosen from the list counts at once; what is typed, on Enter or on leaving.
    if (names.includes(target.value)) choose(target.value);
  };
  const settle = () => text !== told.current && choose(text);
  const enter = (event) => event.key === "Enter" && settle();
  const field = (id) =>
    h(UI.Input, { id, list, size: "sm", value: text, placeholder: "name", onChange: typed, onBlur: settle, onKeyDown: enter, autoComplete: "off" });
  const options = names.map((name) => h("option", { key: name, value: name }));
  return h(Labelled, { label: "Topic" }, (id) => [h("span", { key: "field" }, field(id)), h("datalist", { key: "list", id: list }, options)]);
}
