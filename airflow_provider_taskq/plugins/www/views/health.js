/** Health findings by subject, the worst first. */
import { h, To, UI } from "../airflow_globals.js";
import { useView } from "../polling.js";
import { Empty, Loaded, State, Title } from "../components.js";
import { Rows } from "../table.js";
import { plural, sentence } from "../format.js";

/** Links to the topic, task and owner of a finding. */
function FindingLinks({ finding, place }) {
  const { topic, sequence, owner } = finding;
  const links = [
    topic && h(To, { key: "topic", to: place.at({ topic }) }, topic),
    topic && sequence !== null && h(To, { key: "task", to: place.at({ topic, sequence }) }, `#${sequence}`),
    owner && h(To, { key: "owner", to: place.at({ view: "owner", owner }) }, owner),
  ].filter(Boolean);
  return links.length ? h(UI.HStack, { as: "span", gap: 2, wrap: "wrap", display: "inline-flex", ml: 2 }, links) : null;
}

const REMEDY = {
  fontFamily: "mono",
  fontSize: "xs",
  color: "fg.muted",
  whiteSpace: "pre-wrap",
  overflowWrap: "anywhere",
};

function FindingList({ findings, place }) {
  const line = (finding) =>
    h(
      UI.Box,
      { as: "li", key: finding.detail },
      sentence(finding.detail),
      finding.pid === null ? null : h(UI.Text, { as: "span", color: "fg.muted" }, ` Process ${finding.pid}.`),
      h(FindingLinks, { finding, place }),
      finding.remedy ? h(UI.Text, { as: "pre", ...REMEDY, "data-testid": "remedy" }, finding.remedy) : null,
    );
  return h(UI.Stack, { as: "ul", gap: 1.5, listStyleType: "none" }, findings.map(line));
}

const columns = (place) => [
  { title: "Subject", look: { fontWeight: "semibold" }, show: (row) => row.subject },
  { title: "Severity", show: (row) => h(State, { name: row.severity }) },
  { title: "Findings", show: (row) => h(FindingList, { findings: row.findings, place }) },
];

/** Findings by subject, ordered by the worst of each. A fine finding is left out if its subject has a worse one. */
function bySubject(findings) {
  const subjects = new Map();
  for (const finding of findings) {
    const found = subjects.get(finding.subject) ??
      { subject: finding.subject, severity: finding.severity, findings: [] };
    const isKnown = found.findings.some(({ detail }) => detail === finding.detail);
    if (!isKnown && (finding.severity !== "fine" || found.severity === "fine")) found.findings.push(finding);
    subjects.set(finding.subject, found);
  }
  return [...subjects.values()];
}

/** The verdict in one line. */
function verdict(subjects) {
  const bad = subjects.filter(({ severity }) => severity === "critical" || severity === "warning").length;
  if (bad) return `${plural(bad, "subject")} of ${subjects.length} ${bad === 1 ? "needs" : "need"} attention.`;
  return subjects.some(({ severity }) => severity === "notice")
    ? "No problems; see the notices."
    : "All subjects are fine.";
}

export function Health({ conn, place, focus }) {
  const health = useView(conn, "health");
  return h(
    UI.Stack,
    { gap: 3 },
    h(Title, { focus }, "Health"),
    h(Loaded, { of: health }, ({ findings }) => {
      const subjects = bySubject(findings);
      return subjects.length
        ? [
          h(UI.Text, { key: "verdict", fontSize: "sm" }, verdict(subjects)),
          h(Rows, {
            key: "rows",
            label: "Findings",
            testid: "health",
            rows: subjects,
            keyOf: (row) => row.subject,
            columns: columns(place),
          }),
        ]
        : h(Empty, { title: "No subject was checked" });
    }),
  );
}
