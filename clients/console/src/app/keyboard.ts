import { actionOfKey } from "../actions/list.ts";
import type { Console } from "./context.ts";
import { hashOf } from "./routes.ts";

/** What keys do beside the actions, for the page that tells. */
export const KEYS: readonly [string, string][] = [
  ["/", "to the filter; in a chat, to the message"],
  ["Arrows, j, k", "from row to row; in the lineage, from version to version"],
  ["Enter", "open the row"],
  ["Space", "mark the row, for actions on several"],
  ["Escape", "close what is open"],
  ["1, 2, 3", "states, lineage, chat"],
  ["c", "chat on the state"],
  ["l", "its lineage"],
  ["?", "this list"],
];

/** Keys of the whole page. They do nothing while something is typed or a dialog is open. */
export function listen(page: Document, all: Console, isHelpOpen: { value: boolean }): () => void {
  const onKey = (event: KeyboardEvent): void => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    if (page.querySelector("dialog[open]")) return;
    const target = event.target as Element | null;
    if (target?.closest("input:not([type=checkbox]), textarea, select, [contenteditable]")) {
      if (event.key === "Escape") (target as HTMLElement).blur();
      return;
    }
    if (press(event.key, page, all, isHelpOpen)) event.preventDefault();
  };
  page.addEventListener("keydown", onKey);
  return () => page.removeEventListener("keydown", onKey);
}

function press(key: string, page: Document, all: Console, isHelpOpen: { value: boolean }): boolean {
  const { router, marked, asked, link } = all;
  const { pane, parts, query } = router.route.peek();
  const current = parts[0];
  if (link.state.peek().kind === "key") return false;
  switch (key) {
    case "?":
      isHelpOpen.value = true;
      return true;
    case "/": {
      const filter = page.getElementById(pane === "chat" && current ? "message" : "filter");
      filter?.focus();
      return filter !== null;
    }
    case "1":
    case "2":
    case "3":
      router.go((["states", "lineage", "chat"] as const)[Number(key) - 1]!, current ? [current] : []);
      return true;
    default:
  }
  if (key === "Escape") {
    if (pane === "chat") return false;
    if (marked.peek().size) marked.value = new Set();
    else if (current) router.go(pane, [], Object.fromEntries(query));
    return true;
  }
  if ((key === "c" || key === "l") && current) {
    page.location.hash = hashOf(key === "c" ? "chat" : "lineage", [current]);
    return true;
  }
  const states = marked.peek().size && pane === "states" ? [...marked.peek()] : current ? [current] : [];
  const action = actionOfKey(key, states.length);
  if (!action) return false;
  asked.value = { action, states: action === "create" || action === "import" ? [] : states };
  return true;
}
