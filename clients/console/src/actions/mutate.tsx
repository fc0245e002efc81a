import { useSignal, type Signal } from "@preact/signals";
import { useConsole } from "../app/context.ts";
import { partsOf, refOf } from "../app/words.ts";
import { Button, Dialog, Field } from "../ui/controls.tsx";
import { doOne } from "./do.ts";
import { LAYERS, MUTATIONS, valueOf, type Parameter } from "./mutations.ts";
import { isName, NameField } from "./namefield.tsx";
import type { DialogProps } from "./simple.tsx";
import { StateField } from "./statefield.tsx";

const OTHER = "other";

export function MutateDialog({ states: [state = ""], onClose }: DialogProps) {
  const all = useConsole();
  const { name: own } = partsOf(state);
  const chosen = useSignal("decay");
  const typed = useSignal<Readonly<Record<string, string>>>({});
  const others = useSignal<readonly string[]>([""]);
  const saveAs = useSignal(own);
  const plugin = useSignal("");
  const raw = useSignal("{}");
  const mutation = MUTATIONS.find((one) => one.name === chosen.value);
  const parameters = mutation ? [...mutation.parameters, layersOf(chosen.value)] : [];
  const [least, most] = mutation?.others ?? [0, 15];
  const given = others.value.slice(0, Math.max(most, 0)).filter(Boolean);
  const isReady = isName(saveAs.value) && given.length >= least && (mutation || plugin.value);
  const submit = async (): Promise<void> => {
    const values = mutation
      ? Object.fromEntries(parameters.map((one) => [one.name, valueOf(one, textOf(one, typed.value))]))
      : (JSON.parse(raw.value) as object);
    const operation = mutation?.name ?? plugin.value;
    const [made] = await doOne(all, (states) =>
      states.mutate(operation, [state, ...given], saveAs.value, values),
    );
    all.notices.done(`${operation} made ${refOf(made!)}`);
    const { pane, query } = all.router.route.peek();
    if (pane !== "chat") all.router.go("states", [made!.name], Object.fromEntries(query));
  };
  return (
    <Dialog title={`Mutate ${state}`} verb="Mutate" disabled={!isReady} onSubmit={submit} onClose={onClose}>
      <Field label="Operation" hint={mutation?.says ?? "Of a plug-in of the server."}>
        {(tied) => (
          <select
            {...tied}
            autofocus
            class="input"
            value={chosen.value}
            onChange={(event) => {
              chosen.value = event.currentTarget.value;
              typed.value = {};
            }}
          >
            {MUTATIONS.map(({ name }) => (
              <option key={name}>{name}</option>
            ))}
            <option value={OTHER}>another one, by name</option>
          </select>
        )}
      </Field>
      {!mutation && <PluginFields plugin={plugin} raw={raw} />}
      {most > 0 && <Others others={others} most={most} least={least} />}
      {parameters.map((one) => (
        <ParameterField key={`${chosen.value}.${one.name}`} parameter={one} typed={typed} />
      ))}
      <NameField name={saveAs} label="Kept under" autofocus={false} hint="The same name: its next version. The one before stays." />
    </Dialog>
  );
}

function layersOf(operation: string): Parameter {
  if (operation !== "transplant") return LAYERS;
  return { ...LAYERS, isNeeded: true, hint: "Such as 0-3, 7: those that are taken." };
}

function textOf(parameter: Parameter, typed: Readonly<Record<string, string>>): string {
  return typed[parameter.name] ?? parameter.initial;
}

function ParameterField(props: { parameter: Parameter; typed: Signal<Readonly<Record<string, string>>> }) {
  const { parameter, typed } = props;
  const value = textOf(parameter, typed.value);
  const set = (text: string): void => {
    typed.value = { ...typed.value, [parameter.name]: text };
  };
  if (parameter.kind === "flag") {
    return (
      <label class="check">
        <input
          type="checkbox"
          checked={value === "true"}
          onChange={(event) => set(String(event.currentTarget.checked))}
        />
        {parameter.label}
      </label>
    );
  }
  let wrong = "";
  try {
    valueOf({ ...parameter, isNeeded: false }, value);
  } catch (error) {
    wrong = (error as Error).message;
  }
  return (
    <Field label={parameter.label} hint={parameter.hint} wrong={wrong}>
      {(tied) =>
        parameter.of ? (
          <select {...tied} class="input" value={value} onChange={(event) => set(event.currentTarget.value)}>
            {parameter.of.map((one) => (
              <option key={one}>{one}</option>
            ))}
          </select>
        ) : (
          <input
            {...tied}
            class="input number"
            inputMode={parameter.kind === "number" || parameter.kind === "integer" ? "decimal" : "text"}
            value={value}
            onInput={(event) => set(event.currentTarget.value)}
          />
        )
      }
    </Field>
  );
}

function Others({ others, least, most }: { others: Signal<readonly string[]>; least: number; most: number }) {
  return (
    <fieldset class="choices">
      <legend>{most > 1 ? "With" : "The other state"}</legend>
      {others.value.slice(0, most).map((one, at) => (
        <StateField
          key={at}
          label={`State ${at + 2}`}
          value={one}
          onInput={(value) => (others.value = others.value.with(at, value))}
        />
      ))}
      {others.value.length < most && least > 0 && (
        <div>
          <Button small onClick={() => (others.value = [...others.value, ""])}>
            One more
          </Button>
        </div>
      )}
    </fieldset>
  );
}

function PluginFields({ plugin, raw }: { plugin: Signal<string>; raw: Signal<string> }) {
  return (
    <>
      <Field label="Its name">
        {(tied) => (
          <input
            {...tied}
            class="input mono"
            value={plugin.value}
            onInput={(event) => (plugin.value = event.currentTarget.value)}
          />
        )}
      </Field>
      <Field label="Parameters" hint="A JSON object.">
        {(tied) => (
          <textarea
            {...tied}
            class="input mono"
            rows={3}
            value={raw.value}
            onInput={(event) => (raw.value = event.currentTarget.value)}
          />
        )}
      </Field>
    </>
  );
}
