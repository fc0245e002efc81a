import type { ComponentChildren } from "preact";
import { hashOf } from "../app/routes.ts";
import { countOf, many, partsOf } from "../app/words.ts";
import { Button } from "../ui/controls.tsx";
import type { Branch } from "./kin.ts";
import type { Turn } from "./conversation.ts";
import type { Message, Role } from "./template.ts";
import type { Asked } from "./talk.ts";

const SPEAKERS: Readonly<Record<Role, string>> = {
  system: "System",
  user: "You",
  assistant: "Model",
  text: "Text",
};

/** What can be done with a turn. */
export interface TurnActions {
  /** Go on from after it, elsewhere. */
  readonly branch: (turn: Turn) => void;
  /** Ask something else in its place, elsewhere; absent where nothing is there to go on from. */
  readonly edit: (turn: Turn) => void;
}

interface TurnsProps {
  readonly label: string;
  readonly turns: readonly Turn[];
  readonly branches: readonly Branch[];
  /** The state that branches are compared with. */
  readonly name: string;
  readonly actions: TurnActions;
  readonly children?: ComponentChildren;
}

/** Turns of a conversation, each with the version that it left. */
export function Turns({ label, turns, branches, name, actions, children }: TurnsProps) {
  return (
    <ol class="chat-turns" aria-label={label}>
      {turns.map((turn) => (
        <li key={turn.ref} class="chat-turn" aria-label={turn.ref}>
          {turn.note && <p class="chat-note">{turn.note}</p>}
          {turn.messages.map((message, at) => (
            <Said key={at} message={message} />
          ))}
          <TurnFoot turn={turn} actions={actions}>
            <Branches name={name} branches={branches.filter((branch) => branch.from === turn.ref)} />
          </TurnFoot>
        </li>
      ))}
      {children}
    </ol>
  );
}

/** Branches of one turn that are named; of the others it is told how many there are. */
const N_BRANCHES = 6;

function Branches({ name, branches }: { name: string; branches: readonly Branch[] }) {
  const nMore = branches.length - N_BRANCHES;
  return (
    <>
      {branches.slice(0, N_BRANCHES).map(({ ref, isHead }) => (
        <a
          key={ref}
          class="badge chat-branch"
          href={hashOf("chat", [name, isHead ? partsOf(ref).name : ref])}
          aria-label={`Compare with ${ref}`}
          title={`Compare with ${ref}, which goes on from here`}
        >
          {ref}
        </a>
      ))}
      {nMore > 0 && <a href={hashOf("lineage", [name])}>{countOf(nMore)} more</a>}
    </>
  );
}

function TurnFoot({
  turn,
  actions,
  children,
}: {
  turn: Turn;
  actions: TurnActions;
  children: ComponentChildren;
}) {
  const canEdit = turn.before && turn.messages.some((one) => one.role === "user");
  return (
    <div class="chat-turn-foot bar">
      <span class="mono faint" title={`${many(turn.end, "token")}`}>
        {turn.ref}
      </span>
      {children}
      <Button small kind="plain" label={`Branch from ${turn.ref}`} onClick={() => actions.branch(turn)}>
        Branch
      </Button>
      {canEdit && (
        <Button
          small
          kind="plain"
          label={`Ask something else instead of ${turn.ref}`}
          onClick={() => actions.edit(turn)}
        >
          Ask otherwise
        </Button>
      )}
    </div>
  );
}

export function Said({ message }: { message: Message }) {
  return (
    <div class={`chat-said ${message.role}`}>
      <span class="chat-speaker">{SPEAKERS[message.role]}</span>
      <p class="chat-text">{message.text}</p>
    </div>
  );
}

/** Characters of an answer that are shown while it runs: all of it is, when it is over. */
const N_RUNNING = 12_000;

/** A turn that runs. */
export function RunningTurn({ asked }: { asked: Asked }) {
  const isCut = asked.text.length > N_RUNNING;
  const said = isCut ? `… ${asked.text.slice(-N_RUNNING)}` : asked.text.replace(/^ /, "");
  return (
    <li class="chat-turn running" aria-busy="true">
      {asked.message !== null && <Said message={{ role: "user", text: asked.message }} />}
      <div class="chat-said assistant">
        <span class="chat-speaker">{SPEAKERS.assistant}</span>
        <p class="chat-text">
          {said}
          <span class="chat-caret" aria-hidden="true" />
        </p>
      </div>
      {asked.nLost > 0 && (
        <p class="chat-note" role="status">
          The connection is lost. It goes on by itself when the server is back.
        </p>
      )}
    </li>
  );
}
