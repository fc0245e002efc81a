import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { ActionDialog } from "../actions/dialogs.tsx";
import { ChatPane } from "../chat/index.tsx";
import { Gauges } from "../gauges/strip.tsx";
import { LineagePane } from "../lineage/pane.tsx";
import { StatesPane } from "../states/pane.tsx";
import { Button } from "../ui/controls.tsx";
import { useConsole } from "./context.ts";
import { Help } from "./help.tsx";
import { listen } from "./keyboard.ts";
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
  const all = useConsole();
  const { link, router } = all;
  const route = router.route.value;
  const state = link.state.value;
  const isHelpOpen = useSignal(false);
  useEffect(() => listen(document, all, isHelpOpen), [all]);
  const title = PANES.find(([pane]) => pane === route.pane)![1];
  const about = route.parts[0] ?? title;
  useEffect(() => {
    document.title = `${about} · wkvm`;
  }, [about]);
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
        <Buttons onHelp={() => (isHelpOpen.value = true)} />
      </header>
      <Lost />
      <main class="shell-main">
        {state.kind !== "key" && route.pane !== "chat" && <h1 class="unseen">{title}</h1>}
        {state.kind === "key" ? <KeyForm problem={state.problem} /> : <PaneOf />}
      </main>
      {state.kind !== "key" && <ActionDialog />}
      {isHelpOpen.value && <Help onClose={() => (isHelpOpen.value = false)} />}
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
    case "lineage":
      return <LineagePane />;
    case "states":
      return (
        <>
          <Gauges />
          <StatesPane />
        </>
      );
  }
}

const SCHEMES = { system: ["Colours: as the system", "◐"], light: ["Colours: light", "☀"], dark: ["Colours: dark", "☾"] } as const;

function Buttons({ onHelp }: { onHelp: () => void }) {
  const { link, theme } = useConsole();
  const [says, sign] = SCHEMES[theme.theme.value];
  return (
    <span class="bar shell-buttons">
      {link.state.value.kind !== "key" && link.hasKey && (
        <Button small kind="plain" title="Forget the key, and ask for another one" onClick={() => link.forgetKey()}>
          Sign out
        </Button>
      )}
      <Button small kind="plain" icon label={says} onClick={() => theme.next()}>
        {sign}
      </Button>
      <Button small kind="plain" icon class="shell-help" label="Keys (?)" onClick={onHelp}>
        ?
      </Button>
    </span>
  );
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
