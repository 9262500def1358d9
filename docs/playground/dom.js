/** Elements without a framework. */

/** Makes an element. Properties that start with `on` are listeners, the others are attributes; null leaves one out. */
export function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

let last = 0;

/** An id that no other element of the page has. */
export const uniqueId = (name) => `tq-${name}-${++last}`;

/** A button; `look`: primary, plain or quiet. */
export function button(label, look, onclick, properties = {}) {
  return h("button", { type: "button", class: `tq-button tq-button--${look}`, onclick, ...properties }, label);
}

/** A labeled form field; `width`: wide, third, or half of the form. */
export function field(label, control, width = "half") {
  control.id = uniqueId("field");
  return h("div", { class: `tq-field tq-field--${width}` }, h("label", { for: control.id }, label), control);
}

/** A button that shows and hides an element. */
export function disclosure(label, element) {
  element.id = uniqueId("disclosed");
  element.hidden = true;
  const toggle = button(
    label,
    "quiet",
    () => {
      element.hidden = !element.hidden;
      toggle.setAttribute("aria-expanded", String(!element.hidden));
    },
    { "aria-expanded": "false", "aria-controls": element.id },
  );
  return h("div", { class: "tq-source" }, toggle, element);
}

/** A select of values, or of [value, label] pairs. */
export function select(values, chosen) {
  const options = values.map((item) => (Array.isArray(item) ? item : [item, item]));
  return h(
    "select",
    { class: "tq-input" },
    options.map(([value, label]) => h("option", { value, selected: value === chosen }, label)),
  );
}

/** Copies a text, and says so on the button for two seconds. */
export async function copy(text, control) {
  const label = control.textContent;
  let said = "Copied";
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    said = "Not allowed";
  }
  control.textContent = said;
  setTimeout(() => (control.textContent = label), 2000);
}
