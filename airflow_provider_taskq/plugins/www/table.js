/** A table in Airflow's style. In a narrow place its rows become cards. */
import { h, UI } from "./airflow_globals.js";
import { Icon } from "./icons.js";

// The width of the table counts, not of the window: Airflow's grid can take most of a wide window.
const NARROW = "@container taskq (max-width: 46rem)";

const CARDS = {
  [NARROW]: {
    "& thead": { position: "absolute", width: "1px", height: "1px", overflow: "hidden", clipPath: "inset(50%)" },
    "&, & tbody, & tfoot": { display: "block" },
    "& tbody tr, & tfoot tr": { display: "block", py: 2, borderBottomWidth: "1px" },
    "& tbody td, & tfoot td": {
      display: "flex",
      width: "auto",
      alignItems: "flex-start",
      gap: 3,
      border: "none",
      py: 1,
      textAlign: "start",
      whiteSpace: "normal",
    },
    "& td[data-empty]": { display: "none" },
    "& td[data-label]::before": {
      content: "attr(data-label)",
      flex: "0 0 7.5rem",
      color: "fg.muted",
      fontSize: "xs",
      fontWeight: "semibold",
      pt: "2px",
    },
  },
};

/** A checkbox with a label for screen readers. */
export function Checkbox({ checked, onChange, label }) {
  return h(
    UI.Checkbox.Root,
    {
      size: "sm",
      display: "flex",
      checked,
      onCheckedChange: (now) => onChange(now.checked === true),
      colorPalette: "brand",
    },
    h(UI.Checkbox.HiddenInput, { "aria-label": label }),
    h(UI.Checkbox.Control),
  );
}

const ORDERS = { asc: ["ascending", "↑"], desc: ["descending", "↓"] };

/** The head of a column; sorting: {key, order, by(key)}, if the column has a key to sort by. */
function header(column, sorting) {
  const look = { whiteSpace: "nowrap", textAlign: column.number ? "end" : "start", width: column.width };
  if (!sorting || !column.sort) {
    return h(UI.Table.ColumnHeader, { key: column.title, scope: "col", ...look }, column.title);
  }
  const [order, arrow] = column.sort === sorting.key ? ORDERS[sorting.order] : ["none", ""];
  const press = {
    variant: "plain",
    size: "xs",
    p: 0,
    h: "auto",
    minW: 0,
    fontWeight: "inherit",
    fontSize: "inherit",
    onClick: () => sorting.by(column.sort),
  };
  const mark = h(UI.Text, { as: "span", "aria-hidden": true, minW: "1ch" }, arrow);
  const button = h(
    UI.Button,
    { ...press, _hover: { textDecoration: "underline" } },
    column.number ? [mark, column.title] : [column.title, mark],
  );
  return h(UI.Table.ColumnHeader, { key: column.title, scope: "col", "aria-sort": order, ...look }, button);
}

function cell(column, row, place) {
  const look = column.number ? { textAlign: "end", fontVariantNumeric: "tabular-nums", whiteSpace: "nowrap" } : {};
  const shown = column.show(row);
  const bare = column.empty?.(row) ? { "data-empty": "" } : {};
  const inner = h(UI.Box, { as: "span", minW: 0, overflowWrap: "anywhere", ...column.look }, shown);
  return h(UI.Table.Cell, {
    key: column.title,
    role: place === 0 ? "rowheader" : "cell",
    "data-label": column.title,
    ...bare,
    ...look,
  }, inner);
}

/** The column of checkboxes. selection: {keys: Set, toggle(key), all(keys)}. */
function choices(selection, rows, keyOf) {
  const keys = rows.map(keyOf);
  const chosen = keys.filter((key) => selection.keys.has(key)).length;
  const state = chosen === 0 ? false : chosen === keys.length ? true : "indeterminate";
  return {
    head: h(
      UI.Table.ColumnHeader,
      { key: "-", width: 8, scope: "col" },
      h(Checkbox, {
        checked: state,
        onChange: () => selection.all(state === true ? [] : keys),
        label: "Select this page",
      }),
    ),
    cell: (row) =>
      h(
        UI.Table.Cell,
        { key: "-", width: 8, role: "cell" },
        h(Checkbox, {
          checked: selection.keys.has(keyOf(row)),
          onChange: () => selection.toggle(keyOf(row)),
          label: `Select task ${keyOf(row)}`,
        }),
      ),
  };
}

/**
 * Rows as a table. columns: [{title, show(row), number, look, width, empty(row), sort}]; the first one names the row. A card
 * leaves out empty cells. sorting: see header. foot: a last row with the totals.
 * The roles are explicit, because the layout as cards removes the implicit ones.
 */
export function Rows({ label, columns, rows, keyOf, selection, testid, sorting, foot }) {
  const chosen = selection ? choices(selection, rows, keyOf) : null;
  const line = (row) =>
    h(
      UI.Table.Row,
      { key: keyOf(row), role: "row" },
      chosen?.cell(row),
      columns.map((column, place) => cell(column, row, place)),
    );
  return h(
    UI.Box,
    { css: { containerType: "inline-size", containerName: "taskq" }, minW: 0 },
    h(
      UI.Box,
      { overflowX: "auto" },
      h(
        UI.Table.Root,
        { striped: true, role: "table", "aria-label": label, css: CARDS, "data-testid": testid, fontSize: "sm" },
        h(
          UI.Table.Header,
          { role: "rowgroup" },
          h(UI.Table.Row, { role: "row" }, chosen?.head, columns.map((column) => header(column, sorting))),
        ),
        h(UI.Table.Body, { role: "rowgroup" }, rows.map(line)),
        foot
          ? h(
            UI.Table.Footer,
            { role: "rowgroup" },
            h(
              UI.Table.Row,
              { role: "row", fontWeight: "semibold" },
              columns.map((column, place) => cell(column, foot, place)),
            ),
          )
          : null,
      ),
    ),
  );
}

/** The first and the next page of a list whose pages start `after` a place. */
export const turns = (place, next) => ({
  first: place.after ? () => place.go({ after: null }) : null,
  next: next ? () => place.go({ after: next }) : null,
});

const pageButton = (title, onClick, icon) =>
  h(
    UI.Button,
    { key: title, size: "sm", variant: "outline", disabled: !onClick, onClick: onClick ?? undefined },
    title,
    icon,
  );

/** The buttons for other pages of a list; none if there is one page. */
export function Pages({ first, previous, next, note }) {
  if (!first && !previous && !next && !note) return null;
  return h(
    UI.Flex,
    { as: "nav", "aria-label": "Pages", align: "center", gap: 2, justify: "flex-end", wrap: "wrap" },
    note ? h(UI.Text, { fontSize: "sm", color: "fg.muted", mr: "auto" }, note) : null,
    pageButton("First page", first),
    previous === undefined ? null : pageButton("Previous", previous),
    pageButton("Next", next, h(Icon, { name: "next" })),
  );
}
