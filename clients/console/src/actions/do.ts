import type { StateInfo } from "wkvm-client";
import type { Console } from "../app/context.ts";
import { messageOf } from "../app/words.ts";

/** Do something to a state, and let the feed know what came of it. */
export async function doOne(
  { link, feed }: Console,
  call: (states: ReturnType<Console["link"]["openNow"]>["states"]) => Promise<StateInfo | readonly StateInfo[]>,
): Promise<readonly StateInfo[]> {
  const client = link.openNow();
  const made = await call(client.states);
  const list: readonly StateInfo[] = Array.isArray(made) ? made : [made as StateInfo];
  feed.put(list);
  return list;
}

/** How many operations on several states run side by side: a connection may have 256. */
const SIDE_BY_SIDE = 16;

/**
 * Do the same to several states. All are tried; what failed is thrown together, at the end.
 *
 * @throws Error how many failed, and why the first of them did.
 */
export async function doAll(
  states: readonly string[],
  call: (state: string) => Promise<unknown>,
): Promise<void> {
  const failures: string[] = [];
  const left = states.values();
  const work = async (): Promise<void> => {
    for (const state of left) {
      try {
        await call(state);
      } catch (error) {
        failures.push(`${state}: ${messageOf(error)}`);
      }
    }
  };
  await Promise.all(Array.from({ length: Math.min(SIDE_BY_SIDE, states.length) }, work));
  if (!failures.length) return;
  const others = failures.length > 1 ? ` And ${failures.length - 1} more.` : "";
  throw new Error(states.length === 1 ? failures[0]!.replace(/^.*?: /, "") : `${failures[0]}${others}`);
}
