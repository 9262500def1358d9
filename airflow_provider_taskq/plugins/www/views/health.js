/** What slows or threatens the queue, the worst first. */
import { h, UI } from "../host.js";
import { useLive } from "../live.js";
import { Empty, Shown, State, Title } from "../parts.js";
import { Rows } from "../table.js";
import { sentence } from "../words.js";

const COLUMNS = [
  { title: "Subject", look: { fontWeight: "semibold" }, show: (row) => row.subject },
  { title: "Severity", show: (row) => h(State, { name: row.severity }) },
  { title: "What was found", show: (row) => sentence(row.detail) },
  { title: "Process", number: true, empty: (row) => row.pid === null, show: (row) => row.pid ?? "–" },
];

/** The verdict in one line. */
function verdict(findings) {
  const bad = findings.filter(({ severity }) => severity === "critical" || severity === "warning").length;
  if (bad) return `${bad} of ${findings.length} findings need somebody to look.`;
  return findings.some(({ severity }) => severity === "notice") ? "Nothing is wrong; some things are worth knowing." : "All is well.";
}

export function Health({ conn, focus }) {
  const health = useLive(`${encodeURIComponent(conn.conn_id)}/health`);
  return h(
    UI.Stack,
    { gap: 3 },
    h(Title, { focus }, "Health"),
    h(Shown, { of: health }, ({ findings }) =>
      findings.length
        ? [
            h(UI.Text, { key: "verdict", fontSize: "sm" }, verdict(findings)),
            h(Rows, { key: "rows", label: "Findings", testid: "health", rows: findings, keyOf: (row) => `${row.subject}${row.detail}`, columns: COLUMNS }),
          ]
        : h(Empty, { title: "Nothing was looked at" }),
    ),
  );
}
