import { ConnectionLostError, type Client } from "wkvm-client";
import { rowOf, type Row, type Shown } from "./feed.ts";
import { messageOf } from "./words.ts";

const STATS_MS = 1_000;
const LIST_MS = 2_000;
/** Of its time a client spends at most one part in so many listing: long lists are asked for rarely. */
const LIST_SHARE = 10;
const PAGE = 256;

/**
 * Ask a server that tells nothing by itself: for its counters once a second, for the list of
 * handles every two seconds or more rarely, and for neither while nobody looks at the page.
 */
export async function poll(client: Client, shown: Shown, end: AbortSignal): Promise<void> {
  const read = async (): Promise<void> => {
    const values = await client.stats();
    shown.count({ at: performance.now(), values });
  };
  const list = async (): Promise<void> => {
    const found = new Map<string, Row>();
    for await (const one of client.states.list({ limit: PAGE })) {
      if (end.aborted) return;
      found.set(one.name, rowOf(one));
    }
    shown.replace(found);
  };
  await Promise.all([
    repeat(shown, end, read, () => STATS_MS, () => {}),
    repeat(
      shown,
      end,
      list,
      (tookMs) => Math.max(LIST_MS, LIST_SHARE * tookMs),
      (wake) => (shown.lookAgain = wake),
    ),
  ]);
}

async function repeat(
  shown: Shown,
  end: AbortSignal,
  ask: () => Promise<void>,
  pauseMs: (tookMs: number) => number,
  waking: (wake: () => void) => void,
): Promise<void> {
  while (!end.aborted) {
    const start = performance.now();
    try {
      await ask();
      shown.problem.value = "";
    } catch (error) {
      if (error instanceof ConnectionLostError) throw error;
      // Such as too many operations at once: the next time may do.
      shown.problem.value = messageOf(error);
    }
    await pause(pauseMs(performance.now() - start), end, waking);
  }
}

/** Wait so long, and then as long as nobody looks at the page; shorter if woken. */
function pause(ms: number, end: AbortSignal, waking: (wake: () => void) => void): Promise<void> {
  return new Promise((resolve) => {
    const over = (): void => {
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", seen);
      end.removeEventListener("abort", over);
      resolve();
    };
    const seen = (): void => {
      if (!document.hidden) over();
    };
    const timer = setTimeout(() => {
      if (!document.hidden) over();
      else document.addEventListener("visibilitychange", seen);
    }, ms);
    end.addEventListener("abort", over);
    waking(over);
  });
}
