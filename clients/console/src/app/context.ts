import { createContext } from "preact";
import { useContext } from "preact/hooks";
import type { Signal } from "@preact/signals";
import type { Asked } from "../actions/list.ts";
import type { Feed } from "./feed.ts";
import type { Link } from "./link.ts";
import type { Notices } from "./notices.ts";
import type { Router } from "./routes.ts";
import type { ThemeChoice } from "./theme.ts";

/** What every pane works with. It is made once, in `main.tsx`. */
export interface Console {
  /** The connection and the key. */
  readonly link: Link;
  /** The states and the gauges, kept up to date. */
  readonly feed: Feed;
  /** Where the page is. */
  readonly router: Router;
  /** What the user is told. */
  readonly notices: Notices;
  /** Light or dark. */
  readonly theme: ThemeChoice;
  /** The action whose dialog is open, and on what. */
  readonly asked: Signal<Asked | null>;
  /** Names of the handles that are marked in the table, for actions on several. */
  readonly marked: Signal<ReadonlySet<string>>;
}

const Context = createContext<Console | null>(null);
export const ConsoleProvider = Context.Provider;

export function useConsole(): Console {
  const found = useContext(Context);
  if (!found) throw new Error("there is no console around this component");
  return found;
}
