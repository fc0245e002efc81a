import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { Button, Field } from "../ui/controls.tsx";
import { useConsole } from "./context.ts";
import type { KeyProblem } from "./link.ts";

const SAID: Record<KeyProblem, string> = {
  needed: "",
  wrong: "The server does not know this key.",
  limited:
    "This key has limits, and the console needs one without: what it shows comes over one connection, on which limits cannot be kept.",
};

/** Asks for the key of a server that has keys. */
export function KeyForm({ problem }: { problem: KeyProblem }) {
  const { link } = useConsole();
  const key = useSignal("");
  const remember = useSignal(false);
  const input = useRef<HTMLInputElement>(null);
  useEffect(() => input.current?.focus(), []);
  const submit = (event: Event): void => {
    event.preventDefault();
    if (key.value.trim()) link.useKey(key.value.trim(), remember.value);
  };
  return (
    <form class="panel key-form" onSubmit={submit}>
      <h1>This server has keys</h1>
      <input class="unseen" type="text" autocomplete="username" value="wkvm" tabIndex={-1} aria-hidden="true" readOnly />
      <Field
        label="Key"
        wrong={SAID[problem]}
        hint="States belong to the tenant whose key it is. It stays in this browser."
      >
        {(tied) => (
          <input
            {...tied}
            ref={input}
            class="input mono"
            type="password"
            autocomplete="current-password"
            spellcheck={false}
            value={key.value}
            onInput={(event) => (key.value = event.currentTarget.value)}
          />
        )}
      </Field>
      <label class="check">
        <input
          type="checkbox"
          checked={remember.value}
          onChange={(event) => (remember.value = event.currentTarget.checked)}
        />
        Remember it on this machine
      </label>
      <Button type="submit" kind="main" disabled={!key.value.trim()}>
        Open the console
      </Button>
    </form>
  );
}
