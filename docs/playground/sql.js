/** SQL as text: literals, statements in color, and results as psql prints them. */
import { h } from "./dom.js";

const NUMERIC = new Set([20, 21, 23, 26, 700, 701, 1700]); // the types that psql aligns to the right

/** A value as an SQL literal. */
export function literal(value) {
  if (value === null || value === undefined) return "NULL";
  return typeof value === "number" ? String(value) : `'${String(value).replaceAll("'", "''")}'`;
}

const shown = (value) => (value === null ? "" : value.replaceAll("\n", "⏎ "));

function aligned({ fields, rows }) {
  const cells = rows.map((row) => row.map(shown));
  const widths = fields.map(({ name }, i) => Math.max(name.length, ...cells.map((row) => row[i].length)));
  const centered = (text, width) => text.padStart(text.length + Math.floor((width - text.length) / 2)).padEnd(width);
  const padded = (text, i) => (NUMERIC.has(fields[i].dataTypeID) ? text.padStart(widths[i]) : text.padEnd(widths[i]));
  return [
    fields.map(({ name }, i) => ` ${centered(name, widths[i])} `).join("|"),
    widths.map((width) => "-".repeat(width + 2)).join("+"),
    ...cells.map((row) =>
      row
        .map((text, i) => ` ${padded(text, i)} `)
        .join("|")
        .trimEnd()
    ),
    `(${rows.length} row${rows.length === 1 ? "" : "s"})`,
  ].join("\n");
}

function expanded({ fields, rows }) {
  const width = Math.max(...fields.map(({ name }) => name.length));
  return fields.map(({ name }, i) => `${name.padEnd(width)} | ${shown(rows[0][i])}`.trimEnd()).join("\n");
}

/** A result as psql prints it: {text, wrapped}. A single value, and a row wider than the columns, is expanded. */
export function printed(result, columns) {
  const { fields, rows, command, affected } = result;
  if (!fields.length) return { text: affected ? `${command} ${affected}` : command };
  const table = aligned(result);
  const single = rows.length === 1 && (fields.length === 1 || table.indexOf("\n") > columns);
  return single ? { text: expanded(result), wrapped: true } : { text: table };
}

/** An error as psql prints it with its code. */
export function printedError({ code, message, detail, hint }) {
  const lines = [`ERROR:  ${code ? `${code}: ` : ""}${message}`];
  if (detail) lines.push(`DETAIL:  ${detail}`);
  if (hint) lines.push(`HINT:  ${hint}`);
  return lines.join("\n");
}

const WORDS =
  "SELECT|FROM|WHERE|AND|OR|NOT|AS|ORDER|BY|LIMIT|DESC|INSERT|INTO|VALUES|UPDATE|SET|DELETE|CREATE|TABLE|BEGIN|COMMIT|" +
  "ROLLBACK|ARRAY|NULL|TRUE|FALSE|SHOW|JOIN|LEFT|ON|GROUP";
const TOKENS = new RegExp(
  [
    "(?<comment>--[^\\n]*)",
    "(?<string>'(?:[^']|'')*')",
    "(?<function>\\btaskq\\.\\w+)",
    "(?<name>:\\w+|\\bp_\\w+|\\b(?:insertion|priority|delay)\\b(?=\\s*=>))",
    `(?<keyword>\\b(?:${WORDS})\\b)`,
    "(?<number>\\b\\d+(?:\\.\\d+)?\\b)",
  ].join("|"),
  "gi",
);

/** A statement in the colors of the site's code blocks. */
export function colored(sql) {
  const parts = [];
  let end = 0;
  for (const match of sql.matchAll(TOKENS)) {
    const [kind] = Object.entries(match.groups).find(([, text]) => text !== undefined);
    parts.push(sql.slice(end, match.index), h("span", { class: `tq-${kind}` }, match[0]));
    end = match.index + match[0].length;
  }
  return [...parts, sql.slice(end)];
}
