/** What Airflow itself knows of a task instance: its rendered fields and what it returned, by the user's own rights. */

/** The instance as the API's parameters name it. */
export const named = ({ dagId, runId, taskId, mapIndex }) => ({ dag_id: dagId, run_id: runId, task_id: taskId, map_index: mapIndex });

async function ask(path, signal) {
  const response = await fetch(new URL(path, document.baseURI), { credentials: "same-origin", signal });
  if (response.status === 404) return null;
  if (!response.ok) throw new Error(`Airflow answered ${response.status}`);
  return response.json();
}

/** XComs come as they are, or as the text of them. */
function parsed(value) {
  if (typeof value !== "string") return value;
  try {
    return JSON.parse(value);
  } catch {
    return null;
  }
}

const list = (value) => (Array.isArray(value) ? value.filter((one) => typeof one === "string") : typeof value === "string" ? [value] : []);
const text = (value) => (typeof value === "string" ? value : null);

/**
 * {conn, topic, identifiers, first, last, claimedAs, refused}: where the instance works, what it waits for, which tasks it pushed.
 * `claimedAs`: the owner of a gate's claim. `refused`: a sentence where Airflow would not tell.
 */
export async function askInstance({ dagId, runId, taskId, mapIndex }, signal) {
  const [dag, run, task] = [dagId, runId, taskId].map(encodeURIComponent);
  const instance = `api/v2/dags/${dag}/dagRuns/${run}/taskInstances/${task}`;
  const mapped = mapIndex === "-1" ? instance : `${instance}/${encodeURIComponent(mapIndex)}`;
  const xcom = `${instance}/xcomEntries/return_value?stringify=false&map_index=${encodeURIComponent(mapIndex)}`;
  const [known, returned] = await Promise.allSettled([ask(mapped, signal), ask(xcom, signal)]);
  signal.throwIfAborted();
  const fields = known.value?.rendered_fields ?? {};
  const result = parsed(returned.value?.value);
  const pushed = result && Number.isInteger(result.first) ? result : {};
  const refused = known.status === "rejected" || returned.status === "rejected";
  return {
    conn: text(fields.taskq_conn_id) || null,
    topic: text(pushed.topic) ?? text(result?.topic) ?? text(fields.topic),
    identifiers: identifiersOf(fields.identifiers),
    first: pushed.first ?? null,
    last: pushed.last ?? null,
    claimedAs: text(result?.owner),
    refused: refused ? "Airflow did not tell what this instance pushed or waits for; what it holds is shown all the same." : null,
  };
}

/** Rendered fields keep a list as a list, or as the text of one. */
function identifiersOf(value) {
  const whole = list(value);
  if (whole.length !== 1 || !whole[0].startsWith("[")) return whole;
  const read = parsed(whole[0]);
  return read === null ? whole : list(read);
}
