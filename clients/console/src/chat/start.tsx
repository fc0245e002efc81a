import { useSignal } from "@preact/signals";
import { useConsole } from "../app/context.ts";
import { hashOf } from "../app/routes.ts";
import { ageOf, countOf, many, messageOf } from "../app/words.ts";
import { Button, Field } from "../ui/controls.tsx";
import type { Http } from "./http.ts";
import { freeName } from "../actions/names.ts";
import { toGoOn } from "./pending.ts";
import { SamplingFields } from "./sampling.tsx";
import { begin } from "./talk.ts";

/** Conversations that were used last, so many of them. */
const N_SHOWN = 50;

/** Where a conversation begins, or one is picked that there is. */
export function Start({ http }: { http: Http }) {
  return (
    <div class="chat-start">
      <New http={http} />
      <Known />
    </div>
  );
}

function New({ http }: { http: Http }) {
  const { router, feed } = useConsole();
  const name = useSignal("");
  const message = useSignal("");
  const system = useSignal("");
  const problem = useSignal("");
  const isBusy = useSignal(false);
  const suggested = feed.states.value.has("talk")
    ? freeName("talk", (taken) => feed.states.value.has(taken))
    : "talk";
  const submit = async (event: Event): Promise<void> => {
    event.preventDefault();
    if (isBusy.value || !message.value.trim()) return;
    isBusy.value = true;
    problem.value = "";
    const given = name.value.trim() || suggested;
    try {
      await begin(http, given, message.value.trim(), system.value.trim());
      toGoOn.set(given, null);
      feed.refresh();
      router.go("chat", [given]);
    } catch (error) {
      problem.value = messageOf(error);
    } finally {
      isBusy.value = false;
    }
  };
  return (
    <form class="panel chat-new" onSubmit={submit} aria-label="New conversation">
      <h1>New conversation</h1>
      <Field label="First message">
        {(tied) => (
          <textarea
            {...tied}
            class="input"
            rows={3}
            value={message}
            onInput={(event) => {
              message.value = event.currentTarget.value;
            }}
          />
        )}
      </Field>
      <Field label="Name of the state" hint={`Left empty: ${suggested}`}>
        {(tied) => (
          <input
            {...tied}
            class="input mono"
            maxLength={128}
            value={name}
            onInput={(event) => {
              name.value = event.currentTarget.value;
            }}
          />
        )}
      </Field>
      <Field label="System message" hint="What the model is told before, if its template has such messages">
        {(tied) => (
          <input
            {...tied}
            class="input"
            value={system}
            onInput={(event) => {
              system.value = event.currentTarget.value;
            }}
          />
        )}
      </Field>
      <details>
        <summary>Sampling</summary>
        <SamplingFields />
      </details>
      {problem.value && (
        <p class="alert" role="alert">
          {problem}
        </p>
      )}
      <div class="bar">
        <Button type="submit" kind="main" disabled={!message.value.trim() || isBusy.value}>
          Begin
        </Button>
      </div>
    </form>
  );
}

function Known() {
  const { feed } = useConsole();
  const filter = useSignal("");
  const now = Date.now();
  const known = [...feed.states.value.values()]
    .filter(({ info }) => info.name.includes(filter.value.trim()))
    .sort((one, other) => other.usedMs - one.usedMs);
  return (
    <section class="panel chat-known" aria-label="States">
      <div class="bar">
        <h1 class="grow">Go on with a state</h1>
        <input
          id="filter"
          class="input chat-filter"
          type="search"
          aria-label="Filter by name"
          placeholder="Filter by name"
          value={filter}
          onInput={(event) => {
            filter.value = event.currentTarget.value;
          }}
        />
      </div>
      <ul class="list">
        {known.slice(0, N_SHOWN).map(({ info, usedMs }) => (
          <li key={info.name}>
            <a class="grow clip mono" href={hashOf("chat", [info.name])}>
              {info.name}
            </a>
            <span class="number faint">{many(Number(info.n_computed) + Number(info.n_pending), "token")}</span>
            <span class="number faint">{ageOf(now - usedMs)}</span>
          </li>
        ))}
      </ul>
      {!known.length && <p class="faint">{feed.isWhole.value ? "None yet: each conversation is kept as one." : "Asking for them."}</p>}
      {known.length > N_SHOWN && (
        <p class="faint">{countOf(known.length - N_SHOWN)} more: filter, or open one in the table of states.</p>
      )}
    </section>
  );
}
