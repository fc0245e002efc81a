import type { Signal } from "@preact/signals";
import { Field } from "../ui/controls.tsx";
import { problemOfName } from "./names.ts";

interface NameFieldProps {
  label?: string;
  hint?: string;
  name: Signal<string>;
  autofocus?: boolean;
}

/** Asks for the name of a handle. */
export function NameField({ label = "Name", hint, name, autofocus = true }: NameFieldProps) {
  return (
    <Field label={label} hint={hint} wrong={problemOfName(name.value)}>
      {(tied) => (
        <input
          {...tied}
          class="input mono"
          autofocus={autofocus}
          autocomplete="off"
          spellcheck={false}
          maxLength={128}
          value={name.value}
          onInput={(event) => (name.value = event.currentTarget.value)}
        />
      )}
    </Field>
  );
}

/** Whether a name may be sent. */
export function isName(name: string): boolean {
  return name !== "" && !problemOfName(name);
}
