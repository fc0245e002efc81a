import { Empty } from "../ui/controls.tsx";

export interface ChatPaneProps {
  /** The parts of the address behind `#/chat`, decoded; the first is `NAME` or `NAME@VERSION`. */
  readonly parts: readonly string[];
  /** What follows a `?` in the address. */
  readonly query: URLSearchParams;
}

/** The pane under `#/chat`. All below this folder is its own. */
export function ChatPane({ parts }: ChatPaneProps) {
  return <Empty title={parts[0] ? `Chat on ${parts[0]}` : "Chat"}>Not there yet.</Empty>;
}
