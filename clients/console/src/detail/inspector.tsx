import type { StateInfo } from "wkvm-client";
import { actionsOn } from "../actions/list.ts";
import { useConsole } from "../app/context.ts";
import { hashOf } from "../app/routes.ts";
import { agoOf, bytesOf, countOf, partsOf, refOf } from "../app/words.ts";
import { Button } from "../ui/controls.tsx";
import { clock } from "../ui/media.ts";
import { OriginSign, TierSign } from "../ui/signs.tsx";
import { type ParentSaid, parentsSaid } from "./parents.ts";
import { Provenance } from "./provenance.tsx";
import { Tail } from "./tail.tsx";
import { useAnswer } from "./use.ts";
import { Versions } from "./versions.tsx";
import "./inspector.css";

interface InspectorProps {
  /** `NAME` or `NAME@VERSION`. */
  reference: string;
  onClose: () => void;
}

/** All that is known of one state, and what may be done to it. */
export function Inspector({ reference, onClose }: InspectorProps) {
  const { feed } = useConsole();
  const { name, version } = partsOf(reference);
  const head = feed.states.value.get(name)?.info;
  const isHead = version === null || Number(head?.head) === version;
  const asked = useAnswer(
    async (client) => (head && isHead ? null : await client.states.get(reference)),
    [reference, head?.head, head?.updated_ms],
  );
  const info = (isHead ? head : undefined) ?? asked.value.value;
  return (
    <aside class="inspector" aria-label={`State ${reference}`}>
      <header class="inspector-head">
        <h2 class="mono">
          {name}
          <span class="faint">@{String(info?.version ?? version ?? "")}</span>
        </h2>
        <Button small kind="plain" icon label="Close (Escape)" onClick={onClose}>
          ×
        </Button>
      </header>
      {info ? (
        <Found info={info} reference={version === null ? name : reference} />
      ) : (
        <p class={asked.value.value || !asked.value.problem ? "inspector-part faint" : "alert inspector-part"}>
          {asked.value.problem || "Looking for it"}
        </p>
      )}
    </aside>
  );
}

function Found({ info, reference }: { info: StateInfo; reference: string }) {
  const { feed } = useConsole();
  const isHead = info.version === info.head;
  return (
    <div class="inspector-body">
      <div class="inspector-part bar">
        <TierSign tier={info.tier} />
        <OriginSign operation={info.operation} />
        <span class="badge" title={ACKS[info.ack]}>
          {info.ack}
        </span>
        {!isHead && <span class="badge">newest is {String(info.head)}</span>}
      </div>
      <Actions info={info} reference={reference} />
      <dl class="inspector-part facts">
        <dt>Tokens</dt>
        <dd class="number">
          {countOf(info.n_computed)} absorbed{Number(info.n_pending) > 0 && `, ${info.n_pending} pending`}
        </dd>
        <dt>Bytes</dt>
        <dd class="number">{bytesOf(info.n_bytes)}</dd>
        {info.parents.length > 0 && (
          <>
            <dt>Made from</dt>
            <dd>
              {parentsSaid(info.operation, info.parents).map((one, at) => (
                <Parent key={at} {...one} />
              ))}
            </dd>
          </>
        )}
        <dt>Made</dt>
        <dd>
          <Time ms={Number(info.created_ms)} />
        </dd>
        <dt>Last use</dt>
        <dd>
          <Time ms={feed.states.value.get(info.name)?.usedMs ?? Number(info.updated_ms)} />
        </dd>
        {info.expires_ms !== null && (
          <>
            <dt>Expires</dt>
            <dd>{new Date(Number(info.expires_ms)).toLocaleString()}</dd>
          </>
        )}
        {info.tags.size > 0 && (
          <>
            <dt>Tags</dt>
            <dd class="bar">
              {[...info.tags].map(([key, value]) => (
                <span key={key} class="badge inspector-tag">
                  {key}={value}
                </span>
              ))}
            </dd>
          </>
        )}
        <dt>Content</dt>
        <dd class="mono clip" title={info.content_id}>
          {info.content_id.slice(0, 16)}
        </dd>
      </dl>
      <Tail tail={info.tail} />
      <Versions info={info} />
      <Provenance reference={refOf(info)} />
    </div>
  );
}

const ACKS: Readonly<Record<string, string>> = {
  durable: "It survives a crash and a loss of power",
  visible: "It is in memory: a crash loses it",
};

function Actions({ info, reference }: { info: StateInfo; reference: string }) {
  const { asked, router } = useConsole();
  const pane = router.route.value.pane;
  return (
    <div class="inspector-part inspector-actions" role="group" aria-label="Actions">
      <a class="button small main" href={hashOf("chat", [reference])} title="Chat (c)">
        Chat
      </a>
      {pane !== "lineage" && (
        <a class="button small" href={hashOf("lineage", [reference])} title="Lineage (l)">
          Lineage
        </a>
      )}
      {actionsOn(info).map((one) => (
        <Button
          key={one.id}
          small
          {...(one.isDanger ? { kind: "danger" as const } : {})}
          title={`${one.title}: ${one.says} (${one.key})`}
          onClick={() => (asked.value = { action: one.id, states: [reference] })}
        >
          {one.title}
        </Button>
      ))}
    </div>
  );
}

function Parent({ reference, says }: ParentSaid) {
  const { router } = useConsole();
  if (!reference) return <div class="faint">{says}</div>;
  const { pane, query } = router.route.value;
  return (
    <div>
      {says && <span class="faint">{says} </span>}
      <a class="mono" href={hashOf(pane, [reference], Object.fromEntries(query))}>
        {reference}
      </a>
    </div>
  );
}

function Time({ ms }: { ms: number }) {
  return (
    <time dateTime={new Date(ms).toISOString()}>
      {new Date(ms).toLocaleString()} <span class="faint">({agoOf(clock.value - ms)})</span>
    </time>
  );
}
