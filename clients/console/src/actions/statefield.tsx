import { useId } from "preact/hooks";
import { useConsole } from "../app/context.ts";

/** How many names are offered: a browser takes its time with thousands. */
const N_OFFERED = 50;

interface StateFieldProps {
  label: string;
  value: string;
  autofocus?: boolean;
  onInput: (value: string) => void;
}

/** Asks for a state that there is: names are offered as they are typed, `NAME@VERSION` is taken too. */
export function StateField({ label, value, autofocus, onInput }: StateFieldProps) {
  const { feed } = useConsole();
  const id = useId();
  const offered: string[] = [];
  for (const name of feed.states.value.keys()) {
    if (offered.length === N_OFFERED) break;
    if (name.includes(value)) offered.push(name);
  }
  return (
    <>
      <input
        class="input mono"
        aria-label={label}
        placeholder="NAME or NAME@VERSION"
        list={id}
        autofocus={autofocus}
        autocomplete="off"
        spellcheck={false}
        value={value}
        onInput={(event) => onInput(event.currentTarget.value)}
      />
      <datalist id={id}>
        {offered.map((name) => (
          <option key={name} value={name} />
        ))}
      </datalist>
    </>
  );
}
