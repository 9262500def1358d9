/** A search field. It searches when the user stops typing or presses Enter. */
import { h, UI } from "./airflow_globals.js";
import { useTyped } from "./text_input.js";

export function Search({ label, value = "", onSearch }) {
  const { text, type, submit } = useTyped(value, onSearch);
  const now = (event) => {
    event.preventDefault();
    submit();
  };
  const field = { type: "search", size: "sm", width: { base: "full", sm: "18rem" }, "aria-label": label, placeholder: label };
  return h("form", { role: "search", onSubmit: now }, h(UI.Input, { ...field, value: text, onChange: ({ target }) => type(target.value) }));
}
