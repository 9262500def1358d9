/** The DAGs that use a topic, with the role of their tasks. */
import { Fragment, h, To, UI } from "../airflow_globals.js";
import { useView } from "../polling.js";

const ROLES = [
  ["pushes", "Push to it"],
  ["starts", "Started by it"],
  ["waits", "Wait for it"],
  ["drains", "Drain it"],
  ["maintains", "Maintain it"],
];

function Use({ use }) {
  const dag = h(To, { to: `/${use.links.dag}` }, use.dag_id);
  return h(
    UI.Box,
    { as: "li", overflowWrap: "anywhere" },
    dag,
    use.task_id === null ? null : [" / ", h(To, { key: "task", to: `/${use.links.task}` }, use.task_id)],
  );
}

function Role({ title, uses }) {
  if (!uses.length) return null;
  const one = (use) => h(Use, { key: `${use.dag_id}/${use.task_id}`, use });
  const list = h(UI.Stack, { as: "ul", gap: 0.5, listStyleType: "none" }, uses.map(one));
  return h(
    UI.Box,
    { minW: 0 },
    h(UI.Text, { as: "dt", fontSize: "xs", fontWeight: "semibold", color: "fg.muted" }, title),
    h(UI.Box, { as: "dd", fontSize: "sm" }, list),
  );
}

const NONE = "No DAG that you may read names this topic. Code that calls the hook or the queue directly is not listed.";

export function Dags({ conn, topic }) {
  const { data, error } = useView(conn, "dags", { topic });
  if (error) return h(UI.Text, { fontSize: "sm", color: "fg.muted" }, error.message);
  if (!data) return h(UI.Skeleton, { height: 5 });
  const { uses, templated, partial } = data;
  const roles = ROLES.map(([role, title]) =>
    h(Role, { key: role, title, uses: uses.filter((use) => use.role === role) })
  );
  const columns = { gridTemplateColumns: "repeat(auto-fill, minmax(min(100%, 15rem), 1fr))", columnGap: 6, rowGap: 3 };
  const note = (key, text) => h(UI.Text, { key, fontSize: "sm", color: "fg.muted" }, text);
  return h(
    Fragment,
    null,
    uses.length
      ? h(UI.Grid, { as: "dl", "data-testid": "dags", ...columns }, roles)
      : note("none", partial ? "Airflow's DAGs are being read." : NONE),
    templated.length
      ? h(
        "details",
        null,
        h(
          UI.Box,
          { as: "summary", cursor: "pointer", fontSize: "sm", color: "fg.muted" },
          "Tasks whose topic comes from a template, possibly this one",
        ),
        h(
          UI.Stack,
          { as: "ul", gap: 0.5, fontSize: "sm", listStyleType: "none", mt: 1 },
          templated.map((use) => h(Use, { key: `${use.dag_id}/${use.task_id}`, use })),
        ),
      )
      : null,
  );
}
