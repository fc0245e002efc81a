import { useComputed } from "@preact/signals";
import { useRef } from "preact/hooks";
import { ACTIONS } from "../actions/list.ts";
import { useConsole } from "../app/context.ts";
import { hashOf } from "../app/routes.ts";
import { countOf, many, partsOf } from "../app/words.ts";
import { Inspector } from "../detail/inspector.tsx";
import { Button, Empty } from "../ui/controls.tsx";
import { isNarrow } from "../ui/media.ts";
import { TierSign } from "../ui/signs.tsx";
import {
  ORDERS,
  queryOf,
  rowsOf,
  searchOf,
  sortedBy,
  tiersOf,
  TIERS,
  TITLES,
  type Order,
  type Query,
} from "./query.ts";
import { Table } from "./table.tsx";
import "./pane.css";

/** The table of states, what it is filtered by, and beside it the state that is open. */
export function StatesPane() {
  const { feed, router, link, marked, asked } = useConsole();
  const query = useComputed(() => queryOf(router.route.value.query));
  const rows = useComputed(() => rowsOf(feed.states.value.values(), query.value));
  const current = router.route.value.parts[0] ?? null;
  const wasOpen = useRef(false);
  wasOpen.current = current !== null;
  const ask = (next: Query): void => router.go("states", current ? [current] : [], searchOf(next), true);
  const show = (name: string, replace: boolean): void =>
    router.go("states", [name], searchOf(query.value), replace);
  const total = feed.states.value.size;
  return (
    <div class="states">
      <section class="states-list" aria-label="States of this server">
        {marked.value.size > 0 ? <MarkedBar /> : <Filters query={query.value} onChange={ask} />}
        {total === 0 ? (
          <Nothing />
        ) : rows.value.length === 0 ? (
          <Empty title="No state is like that">
            <Button onClick={() => ask({ ...query.value, words: "", tier: null })}>Show all</Button>
          </Empty>
        ) : (
          <Table
            rows={rows.value}
            query={query.value}
            tenant={link.info.value?.tenant ?? ""}
            current={current && partsOf(current).name}
            marked={marked}
            onMove={(name) => show(name, true)}
            onOpen={(name) => show(name, !isNarrow.value)}
            onSort={(order) => ask(sortedBy(query.value, order))}
          />
        )}
        <p class="states-foot faint number" role="status">
          {countOf(rows.value.length)} of {many(total, "state")}
          {link.info.value?.tenant && ` of tenant ${link.info.value.tenant}`}
          {feed.problem.value && link.client.value ? `: ${feed.problem.value}` : feed.isWhole.value ? "" : ", more are coming"}
        </p>
      </section>
      {current && (
        <Inspector
          reference={current}
          onClose={() => {
            router.go("states", [], searchOf(query.value));
            asked.value = null;
          }}
        />
      )}
    </div>
  );
}

function Filters({ query, onChange }: { query: Query; onChange: (query: Query) => void }) {
  const { feed, asked } = useConsole();
  const tiers = useComputed(() => tiersOf(feed.states.value.values()));
  return (
    <div class="states-bar bar">
      <input
        id="filter"
        class="input states-filter"
        type="search"
        aria-label="Filter by name, tag or origin"
        placeholder="Filter: name, tag=value, origin"
        autocomplete="off"
        spellcheck={false}
        value={query.words}
        onInput={(event) => onChange({ ...query, words: event.currentTarget.value })}
      />
      <div class="bar states-tiers" role="group" aria-label="Tier">
        {TIERS.map((tier) => (
          <Button
            key={tier}
            small
            aria-pressed={query.tier === tier}
            onClick={() => onChange({ ...query, tier: query.tier === tier ? null : tier })}
          >
            <TierSign tier={tier} />
            <span class="number faint">{countOf(tiers.value.get(tier)!.n)}</span>
          </Button>
        ))}
      </div>
      {isNarrow.value && (
        <select
          class="input states-sort"
          aria-label="Order"
          value={query.order}
          onChange={(event) => onChange(sortedBy({ ...query, order: "name" }, event.currentTarget.value as Order))}
        >
          {ORDERS.map((order) => (
            <option key={order} value={order}>
              {TITLES[order]}
            </option>
          ))}
        </select>
      )}
      <span class="grow" />
      <Button small onClick={() => (asked.value = { action: "import", states: [] })}>
        Import
      </Button>
      <Button small kind="main" onClick={() => (asked.value = { action: "create", states: [] })}>
        New state
      </Button>
    </div>
  );
}

function MarkedBar() {
  const { marked, asked } = useConsole();
  const states = [...marked.value];
  const fitting = ACTIONS.filter((one) => one.on === "several" || (states.length === 1 && one.on === "one"));
  return (
    <div class="states-bar bar" role="toolbar" aria-label="Actions on the marked states">
      <strong class="number">{countOf(states.length)} marked</strong>
      {fitting
        .filter((one) => one.id !== "compare" || states.length === 2)
        .map((one) => (
          <Button
            key={one.id}
            small
            {...(one.isDanger ? { kind: "danger" as const } : {})}
            onClick={() => (asked.value = { action: one.id, states })}
          >
            {one.title}
          </Button>
        ))}
      <span class="grow" />
      <Button small kind="plain" onClick={() => (marked.value = new Set())}>
        Unmark
      </Button>
    </div>
  );
}

function Nothing() {
  const { feed, link, asked } = useConsole();
  if (!feed.isWhole.value) {
    if (feed.problem.value && link.client.value) return <Empty title={feed.problem.value} />;
    return <Empty title={link.client.value ? "Looking for states" : "Not connected"} />;
  }
  const line = `curl ${location.origin}/v1/chat/completions -d '{"model": "${link.info.value?.model ?? "..."}", "messages": [{"role": "user", "content": "Tell me a short story about a fox named Omar."}], "save_as": "tale"}'`;
  return (
    <Empty title="No states yet">
      <p>A state is what the model remembers of a text. Begin a chat, or let one read something:</p>
      <div class="bar">
        <a class="button main" href={hashOf("chat", [])}>
          Chat
        </a>
        <Button onClick={() => (asked.value = { action: "create", states: [] })}>New state</Button>
      </div>
      <p>The same chat in a terminal:</p>
      <pre class="states-line mono">{line}</pre>
    </Empty>
  );
}
