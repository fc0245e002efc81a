import type { StateInfo } from "wkvm-client";

export type ActionId =
  | "create"
  | "import"
  | "fork"
  | "snapshot"
  | "hibernate"
  | "resume"
  | "mutate"
  | "compare"
  | "rollback"
  | "rename"
  | "tag"
  | "export"
  | "migrate"
  | "delete";

/** An action, and the states it is to be done to: `NAME` or `NAME@VERSION`. */
export interface Asked {
  readonly action: ActionId;
  readonly states: readonly string[];
}

export interface Action {
  readonly id: ActionId;
  readonly title: string;
  /** What is said of it where there is room. */
  readonly says: string;
  readonly key: string;
  /** On how many states it works: on none, on one, or on any number but none. */
  readonly on: "none" | "one" | "several";
  readonly isDanger?: boolean;
  /** Whether it makes sense now; the server has the last word. */
  readonly fits?: (info: StateInfo) => boolean;
}

const isDown = (info: StateInfo): boolean => info.tier === "disk" || info.tier === "cold";

export const ACTIONS: readonly Action[] = [
  { id: "create", title: "New", key: "a", on: "none", says: "a state that has read a text" },
  { id: "import", title: "Import", key: "i", on: "none", says: "a state from a file" },
  { id: "fork", title: "Fork", key: "f", on: "one", says: "new handles on the same bytes" },
  { id: "snapshot", title: "Snapshot", key: "s", on: "one", says: "keep it as it is now as a version" },
  {
    id: "hibernate", title: "Hibernate", key: "h", on: "several",
    says: "down to disk, its memory freed", fits: (info) => !isDown(info),
  },
  {
    id: "resume", title: "Resume", key: "r", on: "several",
    says: "up into memory", fits: isDown,
  },
  { id: "mutate", title: "Mutate", key: "m", on: "one", says: "change it other than by tokens" },
  { id: "compare", title: "Compare", key: "d", on: "several", says: "how far two states are apart" },
  { id: "rollback", title: "Roll back", key: "b", on: "one", says: "a new version that equals an older point" },
  { id: "rename", title: "Rename", key: "n", on: "one", says: "another name" },
  { id: "tag", title: "Tags", key: "t", on: "one", says: "tags, and when it expires" },
  { id: "export", title: "Export", key: "e", on: "one", says: "its bytes as a file" },
  { id: "migrate", title: "Migrate", key: "g", on: "one", says: "to another server, with what runs on it" },
  {
    id: "delete", title: "Delete", key: "Delete", on: "several",
    says: "the handle with all versions, or one version", isDanger: true,
  },
];

/** The actions on one state, in the order in which they are offered. */
export function actionsOn(info: StateInfo): Action[] {
  return ACTIONS.filter((one) => one.on !== "none" && (one.fits?.(info) ?? true));
}

/** What a pressed key asks for, with so many states at hand. */
export function actionOfKey(key: string, nStates: number): ActionId | null {
  const found = ACTIONS.find((one) => one.key === key || (one.key === "Delete" && key === "Backspace"));
  if (!found) return null;
  if (found.on === "none") return found.id;
  if (nStates === 0 || (found.on === "one" && nStates > 1)) return null;
  return found.id;
}
