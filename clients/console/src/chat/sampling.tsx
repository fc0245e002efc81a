import { signal } from "@preact/signals";
import { Field } from "../ui/controls.tsx";
import type { Sampling } from "./asking.ts";

/** How the next answers are sampled, on the whole page. */
export const sampling = signal<Sampling>({ maxTokens: 200, temperature: null, topP: null });

interface Setting {
  readonly name: keyof Sampling;
  readonly label: string;
  readonly hint: string;
  readonly min: number;
  readonly max: number;
  readonly step: number;
}

const SETTINGS: readonly Setting[] = [
  {
    name: "maxTokens", label: "Most tokens", hint: "of an answer",
    min: 1, max: 2_000_000, step: 1,
  },
  {
    name: "temperature", label: "Temperature", hint: "0: always the likeliest",
    min: 0, max: 10, step: 0.05,
  },
  { name: "topP", label: "Top p", hint: "share of likely tokens", min: 0, max: 1, step: 0.01 },
];

/** The settings; one that is left empty is as the server has it. */
export function SamplingFields() {
  return (
    <div class="chat-sampling">
      {SETTINGS.map(({ name, label, hint, ...range }) => (
        <Field key={name} label={label} hint={hint}>
          {(tied) => (
            <input
              {...tied}
              {...range}
              class="input number"
              type="number"
              placeholder="the server's"
              value={sampling.value[name] ?? ""}
              onChange={({ currentTarget: { value, valueAsNumber, validity } }) => {
                if (!validity.valid) return;
                const given = value === "" ? null : valueAsNumber;
                sampling.value = { ...sampling.value, [name]: given };
              }}
            />
          )}
        </Field>
      ))}
    </div>
  );
}
