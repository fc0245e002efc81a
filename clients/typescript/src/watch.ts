import type { Client } from "./client.js";
import type { StateChanges, StateInfo, StatsChanges, Watch } from "./messages.js";
import { Queue } from "./queue.js";

/** What a watch is to tell; fields that are left out have the protocol's defaults. */
export type WatchOptions = Partial<Omit<Watch, "type" | "request_id" | "credit">> & {
  readonly signal?: AbortSignal;
};

/** Messages that may be on their way: who reads slowly is told of what is newest, and less often. */
const WINDOW = 4;

/**
 * Be told what there is, and from then on what changes, until the loop over it is left or the signal
 * aborts. It ends with a RequestFailedError where the server goes away or has no room, and with a
 * ConnectionLostError with the connection: watch again, and all is told anew.
 */
export function watch(
  client: Client,
  { signal, ...options }: WatchOptions,
): AsyncIterableIterator<StateChanges | StatsChanges> {
  const request_id = client.newRequestId();
  const cancel = (): void => client.send({ type: "Cancel", request_id });
  const queue = new Queue<StateChanges | StatsChanges>(cancel);
  const stop = (): void => void queue.return();
  client.open(
    { type: "Watch", request_id, ...options, credit: WINDOW },
    {
      take: (message) => queue.push(message as StateChanges | StatsChanges),
      fail: (error) => {
        signal?.removeEventListener("abort", stop);
        queue.close(error);
      },
    },
  );
  if (signal?.aborted) stop();
  else signal?.addEventListener("abort", stop, { once: true });
  return {
    async next() {
      const result = await queue.next();
      if (!result.done) client.send({ type: "Credit", request_id, n_tokens: 1 });
      return result;
    },
    return: () => queue.return(),
    [Symbol.asyncIterator]() {
      return this;
    },
  };
}

/** A state as a watch tells of it. */
export interface WatchedState {
  readonly info: StateInfo;
  /** When it was used last, in seconds since 1970; 0 if that is not known. */
  readonly usedS: number;
}

/** Bring a table of states, by name, up to date with what a watch has told. */
export function applyChanges(table: Map<string, WatchedState>, changes: StateChanges): void {
  if (changes.restarts) table.clear();
  for (const name of changes.gone) table.delete(name);
  for (const [at, info] of changes.states.entries()) {
    table.set(info.name, { info, usedS: changes.used_s[at] ?? 0 });
  }
}
