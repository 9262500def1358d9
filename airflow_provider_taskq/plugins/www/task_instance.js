/** What Airflow knows about a task instance: its rendered fields and its XCom, read with the user's own rights. */

/** The instance as parameters of the API. */
export const named = ({ dagId, runId, taskId, mapIndex }) => ({
  dag_id: dagId,
  run_id: runId,
  task_id: taskId,
  map_index: mapIndex,
});

async function ask(path, signal) {
  const response = await fetch(new URL(path, document.baseURI), { credentials: "same-origin", signal });
  if (response.status === 404) return null;
  if (!response.ok) throw new Error(`Airflow answered ${response.status}`);
  return response.json();
}

/** The value of an XCom, which Airflow returns as JSON or as its text. */
function parsed(value) {
  if (typeof value !== "string") return value;
  try {
    return JSON.parse(value);
  } catch {
    return null;
  }
}

const list = (
  value,
) => (Array.isArray(value) ? value.filter((one) => typeof one === "string") : typeof value === "string" ? [value] : []);
const text = (value) => (typeof value === "string" ? value : null);

/**
 * {conn, topic, identifiers, first, last, claimedAs, claimed, since, ours, wait, refused} of a task instance.
 *
 * conn, topic, identifiers: what it works on. first, last: the tasks that it pushed. claimedAs, claimed, since: the owner,
 * the number of tasks and the start of a sensor's claim. ours: whether it runs an operator of TaskQ; null if Airflow
 * refused the answer. wait: what a sensor waits for now, as parameters of the API. refused: a message if Airflow refused.
 */
export async function loadInstance({ dagId, runId, taskId, mapIndex }, signal) {
  const [dag, run, task] = [dagId, runId, taskId].map(encodeURIComponent);
  const instance = `api/v2/dags/${dag}/dagRuns/${run}/taskInstances/${task}`;
  const mapped = mapIndex === "-1" ? instance : `${instance}/${encodeURIComponent(mapIndex)}`;
  const xcom = `${instance}/xcomEntries/return_value?stringify=false&map_index=${encodeURIComponent(mapIndex)}`;
  const [known, returned] = await Promise.allSettled([ask(mapped, signal), ask(xcom, signal)]);
  signal.throwIfAborted();
  const fields = known.value?.rendered_fields ?? {};
  const result = parsed(returned.value?.value);
  const pushed = result && Number.isInteger(result.first) ? result : {};
  const claimed = result && Number.isInteger(result.claimed) && typeof result.owner === "string"
    ? result.claimed
    : null;
  const refused = known.status === "rejected" || returned.status === "rejected";
  return {
    conn: text(fields.taskq_conn_id) || null,
    topic: text(pushed.topic) ?? text(result?.topic) ?? text(fields.topic),
    identifiers: identifiersOf(fields.identifiers),
    first: pushed.first ?? null,
    last: pushed.last ?? null,
    claimedAs: text(result?.owner),
    claimed,
    since: claimed === null ? null : text(known.value?.start_date),
    ours: known.status === "rejected" ? null : known.value !== null && isOurs(known.value, result),
    wait: WAITING.includes(known.value?.state) && claimed === null ? waitOf(fields) : null,
    refused: refused
      ? "Airflow did not return what this instance pushed or waits for. The list of held tasks is complete."
      : null,
  };
}

// States of a task instance in which a sensor still waits.
const WAITING = ["running", "deferred", "up_for_reschedule", "up_for_retry", "scheduled", "queued"];

/** What a sensor waits for, by the fields that only sensors have; null for another operator. */
function waitOf(fields) {
  const condition = text(fields.condition);
  if (fields.min_tasks !== undefined) {
    return { waits_for: "ready", number: Math.max(1, Number(fields.min_tasks) || 1), condition };
  }
  if (fields.groups !== undefined) {
    return { waits_for: "groups", number: Math.max(1, parsed(fields.groups)?.length ?? 1), condition };
  }
  if (fields.identifiers !== undefined) return { waits_for: "states", wanted: list(parsed(fields.states)) };
  return null;
}

/** Whether the instance runs an operator of TaskQ. All of them have the field taskq_conn_id. */
function isOurs(instance, result) {
  return instance.rendered_fields?.taskq_conn_id !== undefined ||
    /TaskQ|@task\.taskq/.test(instance.operator_name ?? instance.operator ?? "") || Boolean(result?.topic);
}

/** A rendered field holds a list, or the text of a list. */
function identifiersOf(value) {
  const whole = list(value);
  if (whole.length !== 1 || !whole[0].startsWith("[")) return whole;
  const read = parsed(whole[0]);
  return read === null ? whole : list(read);
}
