import { useSignal } from "@preact/signals";
import { useEffect, useMemo } from "preact/hooks";
import type { Client, StateInfo } from "wkvm-client";
import { actionsOn, type ActionId } from "../actions/list.ts";
import { useConsole } from "../app/context.ts";
import { hashOf } from "../app/routes.ts";
import { many, partsOf } from "../app/words.ts";
import { askVersions } from "../lineage/source.ts";
import { Button } from "../ui/controls.tsx";
import { TierSign } from "../ui/signs.tsx";
import { BranchDialog, type Branching } from "./branching.tsx";
import { Column, LastTurn } from "./column.tsx";
import { Composer } from "./composer.tsx";
import { commonTurns, type Turn } from "./conversation.ts";
import { DifferenceView } from "./difference.tsx";
import type { Http } from "./http.ts";
import { branchesOf, type Branch, type Kin } from "./kin.ts";
import { toGoOn } from "./pending.ts";
import type { Reader } from "./reading.ts";
import { sampling } from "./sampling.tsx";
import { askedIn, Talk } from "./talk.ts";
import { Turns, type TurnActions } from "./turns.tsx";

interface TalksProps {
  readonly http: Http;
  readonly reader: Reader;
  readonly one: string;
  readonly other: string | undefined;
}

/** One conversation, or two side by side: what both have stands above them once. */
export function Talks({ http, reader, one, other }: TalksProps) {
  const left = useTalk(http, reader, one);
  const right = useTalk(http, reader, other ?? "");
  const branching = useSignal<Branching | null>(null);
  const actions: TurnActions = {
    branch: (turn) => {
      branching.value = { from: turn.ref, message: null };
    },
    edit: (turn) => {
      branching.value = { from: turn.before, message: askedIn(turn) };
    },
  };
  const talks = right ? [left!, right] : [left!];
  const nCommon = right ? common(left!, right) : 0;
  const branches = useBranches(talks);
  return (
    <section class={`chat ${right ? "beside" : ""}`} aria-label="Chat">
      <header class="chat-head">
        {talks.map((talk, at) => (
          <Head key={talk.ref} talk={talk} against={talks.length > 1 ? talks[1 - at]! : null} />
        ))}
        {right && <Apart http={http} left={left!} right={right} />}
      </header>
      <div class="chat-scroll" tabIndex={-1}>
        {nCommon > 0 && (
          <details class="chat-common" open={nCommon <= 4}>
            <summary class="faint">
              {many(nCommon, "step")} in common
            </summary>
            <Turns
              label="In common"
              turns={left!.conversation.value!.turns.slice(0, nCommon)}
              branches={[]}
              name={left!.ref}
              actions={actions}
            />
          </details>
        )}
        <div class="chat-columns">
          {talks.map((talk) => (
            <Column
              key={talk.ref}
              talk={talk}
              from={nCommon}
              branches={right ? [] : branches}
              actions={actions}
            />
          ))}
        </div>
      </div>
      <Foot talks={talks} branch={actions.branch} />
      {branching.value && (
        <BranchDialog
          http={http}
          {...branching.value}
          beside={left!.ref}
          onClose={() => {
            branching.value = null;
          }}
        />
      )}
    </section>
  );
}

/** A conversation that is kept up to date while it is shown. */
function useTalk(http: Http, reader: Reader, ref: string): Talk | null {
  const { feed, link } = useConsole();
  const talk = useMemo(
    () => (ref ? new Talk(http, reader, ref, () => feed.refresh()) : null),
    [http, reader, ref],
  );
  const head = talk && feed.states.value.get(talk.name);
  const newest = talk?.version === null && head ? Number(head.info.head) : 0;
  const client = link.client.value;
  useEffect(() => {
    if (!talk) return undefined;
    void talk.read().then(() => {
      const message = toGoOn.get(talk.name);
      if (message === undefined) return talk.follow();
      toGoOn.delete(talk.name);
      return talk.send(message, sampling.value);
    });
    return () => talk.close();
  }, [talk]);
  // What others do to the state, or the console itself, is shown as soon as it is known.
  useEffect(() => {
    const shown = talk?.conversation.peek();
    const isOld = shown ? newest > partsOf(shown.ref).version! : talk?.trouble.peek()?.isReading;
    if (talk && isOld && !talk.asked.peek()) void talk.read();
  }, [talk, newest, client]);
  return talk;
}

/** The ways that leave the first of the conversations shown. */
function useBranches([talk]: readonly Talk[]): readonly Branch[] {
  const { link, feed } = useConsole();
  const found = useSignal<readonly Branch[]>([]);
  const refs = talk!.conversation.value?.refs;
  const client = link.client.value;
  const nStates = feed.states.value.size;
  useEffect(() => {
    if (!client || !refs) return undefined;
    let isOver = false;
    void kinOf(client, [...feed.states.peek().values()].map(({ info }) => info)).then(
      (kin) => {
        if (!isOver) found.value = branchesOf(refs, kin);
      },
      () => {}, // The connection is lost: it is asked again when there is another one.
    );
    return () => {
      isOver = true;
    };
  }, [client, refs, nStates]);
  return found.value;
}

/** Versions that are looked at for branches, at most. */
const MAX_KIN = 20_000;

async function kinOf(client: Client, heads: readonly StateInfo[]): Promise<readonly Kin[]> {
  if (!client.canWatch) return (await askVersions(client, heads)).versions;
  const found: Kin[] = [];
  for await (const { name, version, made_as, parents } of client.states.lineage()) {
    found.push({ name, version: Number(version), madeAs: made_as, parents });
    if (found.length === MAX_KIN) break;
  }
  return found;
}

function common(one: Talk, other: Talk): number {
  const [first, second] = [one.conversation.value, other.conversation.value];
  if (!first || !second) return 0;
  return commonTurns(first.turns, second.turns);
}

/** What is done to a state while one talks with it; the rest is in the table of states. */
const OFFERED: readonly ActionId[] = ["mutate", "hibernate", "resume"];

function Head({ talk, against }: { talk: Talk; against: Talk | null }) {
  const { feed, asked } = useConsole();
  const conversation = talk.conversation.value;
  const info = talk.version === null ? feed.states.value.get(talk.name)?.info : undefined;
  return (
    <div class="chat-title bar">
      <h1 class="mono clip" title={talk.ref}>
        {talk.ref}
      </h1>
      {conversation && <span class="number faint">{many(conversation.nTokens, "token")}</span>}
      {info && <TierSign tier={info.tier} />}
      <span class="grow" />
      {info &&
        actionsOn(info)
          .filter(({ id }) => OFFERED.includes(id))
          .map(({ id, title, says }) => (
            <Button
              key={id}
              small
              kind="plain"
              title={says}
              aria-label={`${title} ${talk.name}`}
              onClick={() => {
                asked.value = { action: id, states: [talk.name] };
              }}
            >
              {title}
            </Button>
          ))}
      <a class="button small plain" href={hashOf("states", [talk.name])} aria-label={`State ${talk.name}`}>
        State
      </a>
      {against && (
        <a class="button small plain" href={hashOf("chat", [against.ref])} aria-label={`Close ${talk.ref}`}>
          Close
        </a>
      )}
    </div>
  );
}

function Apart({ http, left, right }: { http: Http; left: Talk; right: Talk }) {
  const one = left.conversation.value?.ref;
  const other = right.conversation.value?.ref;
  if (!one || !other) return null;
  return <DifferenceView http={http} one={one} other={other} />;
}

/** Where messages are written, to one conversation or to both. */
function Foot({ talks, branch }: { talks: readonly Talk[]; branch: (turn: Turn) => void }) {
  const to = useSignal("both");
  const live = talks.filter((talk) => talk.version === null);
  const asked = live.filter((talk) => live.length < 2 || to.value === "both" || to.value === talk.ref);
  const [only] = live;
  if (!only) {
    const last = talks[0]!.conversation.value?.turns.at(-1);
    return (
      <footer class="chat-foot bar">
        <p class="soft grow">An older version is read, and not written to. Branch to go on from it.</p>
        {last && (
          <Button kind="main" onClick={() => branch({ ...last, ref: talks[0]!.ref })}>
            Branch from {talks[0]!.ref}
          </Button>
        )}
      </footer>
    );
  }
  const label = asked.length > 1 ? "Message to both" : `Message to ${asked[0]!.name}`;
  return (
    <footer class="chat-foot">
      {live.length > 1 && (
        <fieldset class="chat-to bar">
          <legend class="unseen">To whom</legend>
          {["both", ...live.map((talk) => talk.ref)].map((who) => (
            <label key={who} class="check">
              <input
                type="radio"
                name="to"
                checked={to.value === who}
                onChange={() => {
                  to.value = who;
                }}
              />
              <span class={who === "both" ? "" : "mono"}>{who}</span>
            </label>
          ))}
        </fieldset>
      )}
      <Composer
        label={label}
        isBusy={asked.some((talk) => talk.asked.value !== null)}
        onSend={(message) => {
          for (const talk of asked) void talk.send(message, sampling.value);
        }}
        onStop={() => {
          for (const talk of asked) void talk.stop();
        }}
      >
        {asked.length === 1 && <LastTurn talk={asked[0]!} />}
      </Composer>
    </footer>
  );
}
