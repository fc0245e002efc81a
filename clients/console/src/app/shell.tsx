import { ChatPane } from "../chat/index.tsx";
import { Button } from "../ui/controls.tsx";
import { useConsole } from "./context.ts";
import { KeyForm } from "./keyform.tsx";
import { hashOf, type Pane } from "./routes.ts";
import "./shell.css";

const PANES: readonly [Pane, string][] = [
  ["states", "States"],
  ["lineage", "Lineage"],
  ["chat", "Chat"],
];

/** The frame of the page: where it is connected to, the panes, and what the user is told. */
export function Shell() {
  const { link, router } = useConsole();
  const route = router.route.value;
  const state = link.state.value;
  return (
    <div class="shell">
      <header class="shell-head bar">
        <a class="shell-name" href={hashOf("states")}>
          wkvm
        </a>
        <nav class="bar" aria-label="Panes">
          {PANES.map(([pane, title]) => (
            <a
              key={pane}
              class="shell-tab"
              href={hashOf(pane, pane === route.pane ? route.parts : route.parts.slice(0, 1))}
              aria-current={pane === route.pane ? "page" : undefined}
            >
              {title}
            </a>
          ))}
        </nav>
        <span class="grow" />
        <Where />
      </header>
      <Lost />
      <main class="shell-main">
        {state.kind === "key" ? <KeyForm problem={state.problem} /> : <PaneOf />}
      </main>
      <Told />
    </div>
  );
}

function PaneOf() {
  const { router } = useConsole();
  const { pane, parts, query } = router.route.value;
  switch (pane) {
    case "chat":
      return <ChatPane parts={parts} query={query} />;
    default:
      return <p>{pane}</p>;
  }
}

function Where() {
  const { link } = useConsole();
  const info = link.info.value;
  const state = link.state.value;
  if (!info) return <span class="faint">{state.kind === "connecting" ? "connecting" : ""}</span>;
  return (
    <span class="shell-where bar soft">
      <span class="clip" title={info.model}>
        {info.model}
      </span>
      {info.tenant && <span class="badge">{info.tenant}</span>}
    </span>
  );
}

function Lost() {
  const { link } = useConsole();
  const state = link.state.value;
  if (state.kind !== "lost") return null;
  return (
    <div class="alert warn shell-lost bar" role="status">
      <span class="grow">
        {state.message}. What is shown may be old; the console goes on by itself when the server is back.
      </span>
      <Button small onClick={() => link.start()}>
        Try now
      </Button>
    </div>
  );
}

function Told() {
  const { notices } = useConsole();
  return (
    <ul class="told" aria-live="polite">
      {notices.shown.value.map((one) => (
        <li key={one.id} class={`told-one ${one.kind}`}>
          <span class="grow">{one.text}</span>
          <Button small kind="plain" icon label="Dismiss" onClick={() => notices.dismiss(one.id)}>
            ×
          </Button>
        </li>
      ))}
    </ul>
  );
}
