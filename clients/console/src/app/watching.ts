import type { Client, Integer, StateChanges } from "wkvm-client";
import { rowOf, type Row, type Shown } from "./feed.ts";
import { poll } from "./polling.ts";

const STATS_MS = 1_000;
const INTERVAL_MS = 250;

/** Be told of what changes, where the server can do that; else ask. */
export async function follow(client: Client, shown: Shown, end: AbortSignal): Promise<void> {
  if (!client.canWatch) return await poll(client, shown, end);
  const options = { interval_ms: INTERVAL_MS, stats_ms: STATS_MS, signal: end };
  /** The picture that is being told, until it is complete. */
  let picture: Map<string, Row> | null = null;
  let values: ReadonlyMap<string, Integer> = new Map();
  for await (const message of client.watch(options)) {
    shown.problem.value = "";
    if (message.type === "StatsChanges") {
      values = new Map([...values, ...message.values]);
      shown.count({ at: Number(message.at_us) / 1000, values });
      continue;
    }
    const isFirst = message.restarts;
    if (isFirst) picture = new Map();
    const rows = rowsOf(message);
    if (picture) {
      for (const row of rows) picture.set(row.info.name, row);
      for (const name of message.gone) picture.delete(name);
      if (message.is_complete) {
        shown.replace(picture);
        picture = null;
      } else if (isFirst) {
        // Something to see at once. The others come together, and what is no more goes then.
        shown.change(rows, []);
      }
    } else shown.change(rows, message.gone);
  }
}

function rowsOf(changes: StateChanges): Row[] {
  return changes.states.map((info, at) => {
    const usedS = changes.used_s[at] ?? 0;
    return usedS ? { info, usedMs: usedS * 1000 } : rowOf(info);
  });
}
