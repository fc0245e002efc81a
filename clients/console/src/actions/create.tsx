import { useSignal } from "@preact/signals";
import { useConsole, type Console } from "../app/context.ts";
import { bytesOf, many, refOf } from "../app/words.ts";
import { Dialog, Field } from "../ui/controls.tsx";
import { doOne } from "./do.ts";
import { isName, NameField } from "./namefield.tsx";
import type { DialogProps } from "./simple.tsx";

const N_CHARACTERS = 1_048_576;

/** Token ids of a text, from the server's tokenizer. */
async function idsOf({ link }: Console, prompt: string): Promise<number[]> {
  const body = JSON.stringify({ prompt });
  const response = await link.fetch("/tokenize", { method: "POST", body });
  const answer = (await response.json()) as { tokens?: number[]; error?: { message: string } };
  if (!answer.tokens) throw new Error(answer.error?.message ?? "the text could not be tokenized");
  return answer.tokens;
}

export function CreateDialog({ onClose }: DialogProps) {
  const all = useConsole();
  const name = useSignal("");
  const text = useSignal("");
  const isTaken = all.feed.states.value.has(name.value);
  const submit = async (): Promise<void> => {
    const ids = await idsOf(all, text.value);
    const [made] = await doOne(all, (states) => states.create(name.value, ids));
    all.notices.done(`${refOf(made!)} has read ${many(ids.length, "token")}`);
    all.router.go("states", [made!.name]);
  };
  return (
    <Dialog
      title="New state"
      verb="Create"
      disabled={!isName(name.value) || !text.value || isTaken}
      onSubmit={submit}
      onClose={onClose}
    >
      <NameField name={name} hint={isTaken ? "There is a state of this name." : ""} />
      <Field label="Text" hint="What it is to have read: exactly this, and nothing is generated.">
        {(tied) => (
          <textarea
            {...tied}
            class="input"
            rows={8}
            maxLength={N_CHARACTERS}
            value={text.value}
            onInput={(event) => (text.value = event.currentTarget.value)}
          />
        )}
      </Field>
    </Dialog>
  );
}

const FORMATS: readonly [string, string][] = [
  ["state", "A state of wkvm: everything"],
  ["blinkdl", "Matrices alone, as BlinkDL's tools have them"],
  ["fla", "Matrices alone, as flash-linear-attention has them"],
];

function FormatField({ format }: { format: { value: string } }) {
  return (
    <Field label="Format">
      {(tied) => (
        <select
          {...tied}
          class="input"
          value={format.value}
          onChange={(event) => (format.value = event.currentTarget.value)}
        >
          {FORMATS.map(([value, says]) => (
            <option key={value} value={value}>
              {says}
            </option>
          ))}
        </select>
      )}
    </Field>
  );
}

export function ImportDialog({ onClose }: DialogProps) {
  const all = useConsole();
  const name = useSignal("");
  const file = useSignal<File | null>(null);
  const format = useSignal("state");
  const choose = (chosen: File | undefined): void => {
    file.value = chosen ?? null;
    const stem = (chosen?.name ?? "").replace(/\.(safetensors|pth)$/i, "").replace(/@\d+$/, "");
    if (!name.value) name.value = stem.replace(/[^A-Za-z0-9._-]+/g, "-").replace(/^[^A-Za-z0-9]+/, "").slice(0, 128);
  };
  const submit = async (): Promise<void> => {
    const bytes = new Uint8Array(await file.value!.arrayBuffer());
    const [made] = await doOne(all, (states) =>
      states.import(name.value, bytes, { format: format.value }),
    );
    all.notices.done(`Imported ${refOf(made!)}`);
    all.router.go("states", [made!.name]);
  };
  return (
    <Dialog
      title="Import a state"
      verb="Import"
      disabled={!isName(name.value) || !file.value}
      onSubmit={submit}
      onClose={onClose}
    >
      <Field
        label="File"
        hint={file.value ? bytesOf(file.value.size) : "Made by Export, here or elsewhere, of the same model."}
      >
        {(tied) => (
          <input
            {...tied}
            class="input"
            type="file"
            accept=".safetensors,.pth"
            onChange={(event) => choose(event.currentTarget.files?.[0])}
          />
        )}
      </Field>
      <NameField name={name} autofocus={false} />
      <FormatField format={format} />
    </Dialog>
  );
}

export function ExportDialog({ states: [state = ""], onClose }: DialogProps) {
  const all = useConsole();
  const format = useSignal("state");
  const submit = async (): Promise<void> => {
    const client = all.link.openNow();
    const bytes = await client.states.export(state, format.value);
    save(bytes, `${state}.safetensors`);
    all.notices.done(`Exported ${state}: ${bytesOf(bytes.length)}`);
  };
  return (
    <Dialog title={`Export ${state}`} verb="Export" onSubmit={submit} onClose={onClose}>
      <FormatField format={format} />
    </Dialog>
  );
}

/** Give the browser bytes to keep as a file. */
function save(bytes: Uint8Array, name: string): void {
  const url = URL.createObjectURL(new Blob([bytes as BlobPart]));
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
  // The browser has taken hold of the bytes by the next turn of its loop at the latest.
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
