import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { useConsole } from "../app/context.ts";
import { many, messageOf, partsOf, refOf } from "../app/words.ts";
import { Dialog, Field } from "../ui/controls.tsx";
import { doOne } from "./do.ts";
import { migrate } from "./migration.ts";
import { isName, NameField } from "./namefield.tsx";
import type { DialogProps } from "./simple.tsx";
import { StateField } from "./statefield.tsx";

export function MigrateDialog({ states: [state = ""], onClose }: DialogProps) {
  const all = useConsole();
  const { name: own } = partsOf(state);
  const address = useSignal("");
  const key = useSignal("");
  const name = useSignal(own);
  const submit = async (): Promise<void> => {
    const client = all.link.openNow();
    const to = { address: address.value.trim(), key: key.value.trim(), name: name.value };
    const moved = await migrate(client, own, to);
    all.notices.done(`${own} is ${refOf(moved)} at ${to.address} now`);
  };
  return (
    <Dialog
      title={`Migrate ${own}`}
      verb="Migrate"
      disabled={!isName(name.value) || !address.value.trim()}
      onSubmit={submit}
      onClose={onClose}
    >
      <p class="soft">
        A stream that runs on it stops here between two tokens, and goes on there. What is here stays,
        marked as moved, until it is deleted. The other server must run the same model, and allow this
        page: <code class="mono">--allowed-origins {location.origin}</code>.
      </p>
      <Field label="The other server" hint="Its HTTP address.">
        {(tied) => (
          <input
            {...tied}
            autofocus
            class="input mono"
            placeholder="http://127.0.0.1:8010"
            spellcheck={false}
            value={address.value}
            onInput={(event) => (address.value = event.currentTarget.value)}
          />
        )}
      </Field>
      <Field label="Its key" hint="Where it has keys. It is used once, and not kept.">
        {(tied) => (
          <input
            {...tied}
            class="input mono"
            type="password"
            autocomplete="off"
            value={key.value}
            onInput={(event) => (key.value = event.currentTarget.value)}
          />
        )}
      </Field>
      <NameField name={name} label="Name there" autofocus={false} />
    </Dialog>
  );
}

const HOUR_MS = 3_600_000;
const LIVES: readonly [string, number][] = [
  ["never", 0],
  ["in an hour", HOUR_MS],
  ["in a day", 24 * HOUR_MS],
  ["in a week", 168 * HOUR_MS],
  ["in 30 days", 720 * HOUR_MS],
];

export function TagDialog({ states: [state = ""], onClose }: DialogProps) {
  const all = useConsole();
  const { name: own } = partsOf(state);
  const info = all.feed.states.peek().get(own)?.info;
  const own_tags = [...(info?.tags ?? [])].filter(([key]) => !key.startsWith("wkvm."));
  const text = useSignal(own_tags.map(([key, value]) => `${key}=${value}`).join("\n"));
  const life = useSignal("");
  const submit = async (): Promise<void> => {
    const tags = new Map<string, string>();
    for (const line of text.value.split("\n").map((one) => one.trim()).filter(Boolean)) {
      const at = line.indexOf("=");
      if (at < 1) throw new Error(`${line}: a tag is written as key=value`);
      tags.set(line.slice(0, at).trim(), line.slice(at + 1).trim());
    }
    await doOne(all, (states) => states.tag(own, tags));
    if (life.value !== "") {
      const client = all.link.openNow();
      await client.ask({
        type: "StateEdit", request_id: client.newRequestId(), state: own,
        expires_in_ms: Number(life.value),
      });
    }
    all.notices.done(`Tags of ${own} are changed`);
  };
  return (
    <Dialog title={`Tags of ${own}`} verb="Keep" onSubmit={submit} onClose={onClose}>
      <Field label="Tags" hint="One a line, as key=value. At most 32.">
        {(tied) => (
          <textarea
            {...tied}
            autofocus
            class="input mono"
            rows={5}
            spellcheck={false}
            value={text.value}
            onInput={(event) => (text.value = event.currentTarget.value)}
          />
        )}
      </Field>
      <Field label="Expires" hint={info?.expires_ms ? `Now: ${new Date(Number(info.expires_ms)).toLocaleString()}` : "Now: never"}>
        {(tied) => (
          <select
            {...tied}
            class="input"
            value={life.value}
            onChange={(event) => (life.value = event.currentTarget.value)}
          >
            <option value="">as it is</option>
            {LIVES.map(([says, ms]) => (
              <option key={ms} value={ms}>
                {says}
              </option>
            ))}
          </select>
        )}
      </Field>
    </Dialog>
  );
}

interface Differs {
  /** 0 for equal, 1 where one of them is zero, 2 for opposite ones. */
  readonly relative: number;
  readonly max_abs: number;
}
/** As "Difference" in docs/states.md. */
interface Difference {
  readonly equal: boolean;
  readonly n_common: number;
  readonly tensors: readonly {
    readonly name: string;
    readonly whole: Differs;
    readonly layers: readonly { readonly layer: number; readonly whole: Differs }[];
  }[];
}

export function CompareDialog({ states: [state = "", second = ""], onClose }: DialogProps) {
  const all = useConsole();
  const other = useSignal(second);
  const found = useSignal<Difference | null>(null);
  const problem = useSignal("");
  const compare = async (): Promise<void> => {
    problem.value = "";
    const client = all.link.openNow();
    found.value = (await client.states.diff(state, other.value)) as Difference;
  };
  useEffect(() => {
    if (second) compare().catch((error: unknown) => (problem.value = messageOf(error)));
  }, []);
  return (
    <Dialog
      title={`Compare ${state}`}
      verb="Compare"
      disabled={!other.value}
      stays
      onSubmit={compare}
      onClose={onClose}
    >
      <StateField label="With" value={other.value} autofocus={!second} onInput={(value) => (other.value = value)} />
      {problem.value && <p class="alert">{problem}</p>}
      {found.value && <Shown difference={found.value} />}
    </Dialog>
  );
}

function Shown({ difference }: { difference: Difference }) {
  return (
    <div class="compare">
      <p>
        {difference.equal ? "The same in every bit." : "Not the same."} The first{" "}
        {many(difference.n_common, "token is", "tokens are")} common to both.
      </p>
      {difference.tensors.map(({ name, whole, layers }) => (
        <section key={name}>
          <h3 class="bar">
            <span class="mono grow">{name}</span>
            <span class="number soft">{whole.relative.toFixed(4)}</span>
          </h3>
          <ul class="compare-layers" aria-label={`Layers of ${name}`}>
            {layers.map((one) => (
              <li key={one.layer} title={`At most ${one.whole.max_abs.toPrecision(3)} between two elements`}>
                <span class="faint number">{one.layer}</span>
                <span class="compare-bar" style={{ width: `${Math.min(1, one.whole.relative) * 100}%` }} />
                <span class="number soft">{one.whole.relative.toFixed(3)}</span>
              </li>
            ))}
          </ul>
        </section>
      ))}
    </div>
  );
}
