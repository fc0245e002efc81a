const NAME = "wkvm.key";

/**
 * The key of this browser: for this tab alone, or for all tabs until it is forgotten.
 *
 * Storage may be refused (private windows, policies): then the key lasts as long as the page.
 */
export class KeyRing {
  private held = "";

  constructor(
    private readonly tab: Storage | null,
    private readonly machine: Storage | null,
  ) {
    this.held = read(tab) || read(machine);
  }

  get key(): string {
    return this.held;
  }

  /** Take a key; with `remember` it is still there when the browser was closed. */
  set(key: string, remember: boolean): void {
    this.forget();
    this.held = key;
    if (key) write(remember ? this.machine : this.tab, key);
  }

  forget(): void {
    this.held = "";
    write(this.tab, "");
    write(this.machine, "");
  }
}

/** `localStorage` or `sessionStorage`, or null where the browser refuses it. */
export function storage(which: () => Storage): Storage | null {
  try {
    return which();
  } catch {
    return null;
  }
}

function read(from: Storage | null): string {
  try {
    return from?.getItem(NAME) ?? "";
  } catch {
    return "";
  }
}

function write(to: Storage | null, key: string): void {
  try {
    if (key) to?.setItem(NAME, key);
    else to?.removeItem(NAME);
  } catch {
    // It is in memory, and lasts as long as the page.
  }
}
