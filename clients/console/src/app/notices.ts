import { signal, type ReadonlySignal } from "@preact/signals";
import { messageOf } from "./words.ts";

/** One thing that the user is told, until it is read or its time is over. */
export interface Notice {
  readonly id: number;
  readonly kind: "done" | "failed";
  readonly text: string;
}

const N_SHOWN = 4;
const DONE_MS = 4_000;

/** What was done, and what failed: the latest few. What failed stays until it is dismissed. */
export class Notices {
  private readonly now = signal<readonly Notice[]>([]);
  readonly shown: ReadonlySignal<readonly Notice[]> = this.now;
  private lastId = 0;

  done(text: string): void {
    const id = this.add("done", text);
    setTimeout(() => this.dismiss(id), DONE_MS);
  }

  /** Tell of an error, after what was tried: "fork of tale: no slot is free". */
  failed(tried: string, error: unknown): void {
    this.add("failed", `${tried}: ${messageOf(error)}`);
  }

  dismiss(id: number): void {
    this.now.value = this.now.value.filter((one) => one.id !== id);
  }

  private add(kind: Notice["kind"], text: string): number {
    const id = (this.lastId += 1);
    this.now.value = [...this.now.value, { id, kind, text }].slice(-N_SHOWN);
    return id;
  }
}
