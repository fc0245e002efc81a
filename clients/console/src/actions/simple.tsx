import { useSignal } from "@preact/signals";
import type { Integer } from "wkvm-client";
import { useConsole } from "../app/context.ts";
import { many, partsOf, refOf } from "../app/words.ts";
import { Button, Dialog, Field } from "../ui/controls.tsx";
import { doAll, doOne } from "./do.ts";
import { isName, NameField } from "./namefield.tsx";
import { freeName, numbered } from "./names.ts";

export interface DialogProps {
  /** `NAME` or `NAME@VERSION`: one at least. */
  readonly states: readonly string[];
  readonly onClose: () => void;
}

export function ForkDialog({ states: [state = ""], onClose }: DialogProps) {
  const all = useConsole();
  const name = useSignal(freeName(partsOf(state).name, (one) => all.feed.states.peek().has(one)));
  const n = useSignal("1");
  const count = Number(n.value);
  const isCount = Number.isInteger(count) && count >= 1 && count <= 64;
  const submit = async (): Promise<void> => {
    const made = await doOne(all, (states) => states.fork(state, numbered(name.value, count)));
    all.notices.done(`Forked ${state}: ${made.length > 1 ? `${made.length} handles` : made[0]!.name}`);
    all.router.go("states", [made[0]!.name], Object.fromEntries(all.router.route.peek().query));
  };
  return (
    <Dialog
      title={`Fork ${state}`}
      verb="Fork"
      disabled={!isName(name.value) || !isCount}
      onSubmit={submit}
      onClose={onClose}
    >
      <NameField name={name} hint="The bytes are shared until one of the two goes on." />
      <Field
        label="How many"
        wrong={isCount ? "" : "From 1 to 64."}
        hint={count > 1 ? `${numbered(name.value, count)[0]} to ${numbered(name.value, count).at(-1)}` : ""}
      >
        {(tied) => (
          <input
            {...tied}
            class="input number"
            type="number"
            min={1}
            max={64}
            value={n.value}
            onInput={(event) => (n.value = event.currentTarget.value)}
          />
        )}
      </Field>
    </Dialog>
  );
}

export function SnapshotDialog({ states: [state = ""], onClose }: DialogProps) {
  const all = useConsole();
  const { name: own } = partsOf(state);
  const name = useSignal(own);
  const submit = async (): Promise<void> => {
    const [made] = await doOne(all, (states) => states.snapshot({ state: own, save_as: name.value }));
    all.notices.done(`Kept as ${refOf(made!)}`);
  };
  return (
    <Dialog
      title={`Snapshot of ${own}`}
      verb="Keep"
      disabled={!isName(name.value)}
      onSubmit={submit}
      onClose={onClose}
    >
      <p class="soft">
        A version of the state as it is now. What runs on it goes on, and is kept on top of it.
      </p>
      <NameField name={name} label="Kept under" />
    </Dialog>
  );
}

const TIERS_DOWN: readonly [string, string][] = [
  ["disk", "Disk: survives the server"],
  ["cold", "Cold: the object store, where the server has one"],
  ["host", "Host memory: off the device alone"],
];

export function HibernateDialog({ states, onClose }: DialogProps) {
  const all = useConsole();
  const tier = useSignal("disk");
  const submit = async (): Promise<void> => {
    await doAll(states, (state) =>
      doOne(all, (call) =>
        call.hibernate(partsOf(state).name, tier.value as "host" | "disk" | "cold"),
      ),
    );
    all.notices.done(`${several(states)} to ${tier.value}`);
  };
  return (
    <Dialog title={`Hibernate ${several(states)}`} verb="Hibernate" onSubmit={submit} onClose={onClose}>
      <p class="soft">
        What runs on it is interrupted and kept first. It comes back by itself when it is used.
      </p>
      <fieldset class="choices">
        <legend class="unseen">Where to</legend>
        {TIERS_DOWN.map(([value, says], at) => (
          <label key={value} class="check">
            <input
              type="radio"
              name="tier"
              autofocus={at === 0}
              checked={tier.value === value}
              onChange={() => (tier.value = value)}
            />
            {says}
          </label>
        ))}
      </fieldset>
    </Dialog>
  );
}

export function RenameDialog({ states: [state = ""], onClose }: DialogProps) {
  const all = useConsole();
  const { name: own } = partsOf(state);
  const name = useSignal(own);
  const submit = async (): Promise<void> => {
    const [made] = await doOne(all, (states) => states.rename(own, name.value));
    all.feed.remove(own);
    all.notices.done(`${own} is ${made!.name} now`);
    const { pane, query } = all.router.route.peek();
    all.router.go(pane === "chat" ? "states" : pane, [made!.name], Object.fromEntries(query), true);
  };
  return (
    <Dialog
      title={`Rename ${own}`}
      verb="Rename"
      disabled={!isName(name.value) || name.value === own}
      onSubmit={submit}
      onClose={onClose}
    >
      <NameField name={name} label="New name" hint="Versions keep their numbers." />
    </Dialog>
  );
}

export function RollbackDialog({ states: [state = ""], onClose }: DialogProps) {
  const all = useConsole();
  const { name, version } = partsOf(state);
  const head = all.feed.states.value.get(name)?.info;
  const isOlder = version !== null && head !== undefined && version !== Number(head.head);
  const by = useSignal<"version" | "position">(isOlder ? "version" : "position");
  const to = useSignal(isOlder ? String(version) : "");
  const n = Number(to.value);
  const isGood = to.value !== "" && Number.isInteger(n) && n >= (by.value === "version" ? 1 : 0);
  const tokens = head ? Number(head.n_computed) + Number(head.n_pending) : null;
  const submit = async (): Promise<void> => {
    const target = by.value === "version" ? { version: n } : { position: n };
    const expected_version: Integer | null = head?.head ?? null;
    const [made] = await doOne(all, (states) => states.rollback(name, { ...target, expected_version }));
    all.notices.done(`${name} went back: ${refOf(made!)}`);
  };
  return (
    <Dialog title={`Roll back ${name}`} verb="Roll back" disabled={!isGood} onSubmit={submit} onClose={onClose}>
      <p class="soft">A new version that equals an older point. The versions after it stay.</p>
      <div class="bar">
        {(["version", "position"] as const).map((one) => (
          <Button
            key={one}
            aria-pressed={by.value === one}
            onClick={() => {
              by.value = one;
              to.value = "";
            }}
          >
            {one === "version" ? "To a version" : "To a number of tokens"}
          </Button>
        ))}
      </div>
      <Field
        label={by.value === "version" ? "Version" : "Tokens"}
        hint={
          by.value === "version"
            ? `The newest is ${head?.head ?? "unknown"}.`
            : `It has ${tokens === null ? "some tokens" : many(tokens, "token")}. Where no checkpoint is near, those before are computed again.`
        }
      >
        {(tied) => (
          <input
            {...tied}
            autofocus
            class="input number"
            type="number"
            min={0}
            value={to.value}
            onInput={(event) => (to.value = event.currentTarget.value)}
          />
        )}
      </Field>
    </Dialog>
  );
}

export function DeleteDialog({ states, onClose }: DialogProps) {
  const all = useConsole();
  const isVersion = states.length === 1 && partsOf(states[0]!).version !== null;
  const submit = async (): Promise<void> => {
    const client = all.link.openNow();
    await doAll(states, async (state) => {
      await client.states.delete(state);
      if (partsOf(state).version === null) all.feed.remove(state);
    });
    all.marked.value = new Set();
    all.notices.done(`Deleted ${several(states)}`);
    const { pane, parts, query } = all.router.route.peek();
    if (pane !== "chat" && parts[0] && states.includes(parts[0])) {
      const name = isVersion ? [partsOf(parts[0]).name] : [];
      all.router.go(pane, name, Object.fromEntries(query), true);
    }
  };
  const what = isVersion
    ? "This version alone. The others of its handle stay, and so does what was made from it."
    : "With all versions. What was forked or made from them stays.";
  return (
    <Dialog
      title={`Delete ${several(states)}?`}
      verb={states.length > 1 ? `Delete ${states.length} states` : "Delete"}
      danger
      onSubmit={submit}
      onClose={onClose}
    >
      <p>{what} This cannot be taken back.</p>
      {states.length > 1 && (
        <ul class="panel list dialog-list mono">
          {states.map((state) => (
            <li key={state} class="clip">
              {state}
            </li>
          ))}
        </ul>
      )}
    </Dialog>
  );
}

/** "tale", or "12 states". */
export function several(states: readonly string[]): string {
  return states.length === 1 ? states[0]! : `${states.length} states`;
}
