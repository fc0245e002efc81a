import { Fragment } from "preact";
import { parseExactly } from "./exact.ts";
import { parentsText } from "./parents.ts";
import { useAnswer } from "./use.ts";

interface Entry {
  readonly provenance: Readonly<Record<string, unknown>>;
}

/** What is said of some of its fields; the others are shown by name. */
const SAID: Readonly<Record<string, string>> = {
  n_before: "tokens before",
  n_after: "tokens after",
  n_output: "tokens generated",
  n_prompt: "tokens of the prompt",
  engine: "made by version",
  cuts: "checkpoints at",
};

/** How a version came to be: the operation and all that it was given. */
export function Provenance({ reference }: { reference: string }) {
  const asked = useAnswer(
    async (client) => {
      const request_id = client.newRequestId();
      const reply = await client.ask({ type: "StateLog", request_id, state: reference, limit: 1 });
      if (reply.type !== "StateText") return null;
      return (parseExactly(reply.text) as readonly Entry[])[0] ?? null;
    },
    [reference],
  );
  const { value, problem } = asked.value;
  if (problem) return <p class="inspector-part faint">{problem}</p>;
  if (!value) return null;
  return (
    <section class="inspector-part">
      <h3>Provenance</h3>
      <dl class="facts provenance">
        {Object.entries(flat(value.provenance)).map(([name, text]) => (
          <Fragment key={name}>
            <dt>{SAID[name] ?? name.replaceAll("_", " ")}</dt>
            <dd class="mono">{text}</dd>
          </Fragment>
        ))}
      </dl>
    </section>
  );
}

/** Fields with their values as text; those within another are named with it; empty ones are left out. */
function flat(fields: Readonly<Record<string, unknown>>): Record<string, string> {
  const found: Record<string, string> = {};
  for (const [name, value] of Object.entries(fields)) {
    if (value === null || value === "" || (Array.isArray(value) && !value.length)) continue;
    if (name === "parameters" && typeof value === "object") {
      Object.assign(found, flat(value as Record<string, unknown>));
    } else if (name === "parents" && Array.isArray(value)) {
      // A parent is its name and its content id; where it had no name, that is empty.
      const references = value.map((parent) => (parent as readonly string[])[0] ?? "");
      found[name] = parentsText(String(fields.operation), references);
    } else found[name] = typeof value === "string" ? value : JSON.stringify(value);
  }
  return found;
}
