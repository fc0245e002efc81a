import { signal, type ReadonlySignal } from "@preact/signals";

/** Whether something holds of the window, such as "(max-width: 640px)", now and as it changes. */
export function mediaSignal(query: string): ReadonlySignal<boolean> {
  const list = matchMedia(query);
  const now = signal(list.matches);
  list.addEventListener("change", (event) => (now.value = event.matches));
  return now;
}

/** A window of a telephone's width: tables become lists, and panels cover the page. */
export const isNarrow = mediaSignal("(max-width: 640px)");

/** The time, once in so many milliseconds, for what is told as an age. */
export function clockSignal(everyMs: number): ReadonlySignal<number> {
  const now = signal(Date.now());
  setInterval(() => (now.value = Date.now()), everyMs);
  return now;
}

export const clock = clockSignal(5_000);
