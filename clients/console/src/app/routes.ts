import { signal, type ReadonlySignal } from "@preact/signals";

/** The panes of the console. */
export type Pane = "states" | "lineage" | "chat";

/** Where the page is: `#/PANE/PART/PART?NAME=VALUE`. */
export interface Route {
  readonly pane: Pane;
  /** The parts behind the pane, decoded: for "states" and "lineage" the state, if there is one. */
  readonly parts: readonly string[];
  readonly query: URLSearchParams;
}

const PANES: ReadonlySet<string> = new Set(["states", "lineage", "chat"]);

/** What a hash says; one that says nothing known is the table of states. */
export function parseHash(hash: string): Route {
  const [path = "", query = ""] = hash.replace(/^#?\/?/, "").split(/\?(.*)/s, 2);
  const [first = "", ...parts] = path.split("/").filter(Boolean).map(decoded);
  const pane = PANES.has(first) ? (first as Pane) : "states";
  return { pane, parts: PANES.has(first) ? parts : [], query: new URLSearchParams(query) };
}

/** The hash of a place, for `href`. */
export function hashOf(
  pane: Pane,
  parts: readonly string[] = [],
  query: Readonly<Record<string, string>> = {},
): string {
  const search = new URLSearchParams(query).toString();
  const path = [pane, ...parts].map(encodeURIComponent).join("/");
  return `#/${path}${search ? `?${search}` : ""}`;
}

/** Follows the address of the page, and changes it. */
export class Router {
  private readonly now = signal<Route>(parseHash(""));
  readonly route: ReadonlySignal<Route> = this.now;

  constructor(private readonly page: Window) {
    this.read();
    page.addEventListener("hashchange", () => this.read());
  }

  /** Go somewhere: a step that "back" takes back, unless it replaces the one before. */
  go(pane: Pane, parts: readonly string[] = [], query: Record<string, string> = {}, replace = false): void {
    const hash = hashOf(pane, parts, query);
    if (hash === this.page.location.hash) return;
    if (!replace) {
      this.page.location.hash = hash;
      return;
    }
    this.page.history.replaceState(null, "", hash);
    this.read();
  }

  private read(): void {
    this.now.value = parseHash(this.page.location.hash);
  }
}

function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}
