import { useMemo } from "preact/hooks";
import { useConsole } from "../app/context.ts";
import "./chat.css";
import { Http } from "./http.ts";
import { Reader } from "./reading.ts";
import { Start } from "./start.tsx";
import { Talks } from "./talks.tsx";

export interface ChatPaneProps {
  /** The parts of the address behind `#/chat`, decoded; the first is `NAME` or `NAME@VERSION`. */
  readonly parts: readonly string[];
  /** What follows a `?` in the address. */
  readonly query: URLSearchParams;
}

/**
 * The pane under `#/chat`: `#/chat/STATE` is a conversation, `#/chat/STATE/OTHER` two of them side
 * by side.
 */
export function ChatPane({ parts }: ChatPaneProps) {
  const { link } = useConsole();
  // What was read with one key is nothing for another.
  const tenant = link.info.value?.tenant ?? "";
  const [http, reader] = useMemo(() => {
    const made = new Http("", "", (path, init) => link.fetch(String(path), init));
    return [made, new Reader(made)] as const;
  }, [link, tenant]);
  const [one, other] = parts;
  if (!one) return <Start http={http} />;
  return (
    <Talks key={`${tenant}/${one}/${other ?? ""}`} http={http} reader={reader} one={one} other={other} />
  );
}
