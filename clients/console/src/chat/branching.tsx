import { useSignal } from "@preact/signals";
import { isName, NameField } from "../actions/namefield.tsx";
import { freeName } from "../actions/names.ts";
import { useConsole } from "../app/context.ts";
import { partsOf } from "../app/words.ts";
import { Dialog, Field } from "../ui/controls.tsx";
import type { Http } from "./http.ts";
import { toGoOn } from "./pending.ts";

/** What a branch is to be made of. */
export interface Branching {
  /** The version that it goes on from. */
  readonly from: string;
  /** What it is asked at once; null for nothing. */
  readonly message: string | null;
}

interface BranchDialogProps extends Branching {
  readonly http: Http;
  /** The conversation that the branch is shown beside. */
  readonly beside: string;
  readonly onClose: () => void;
}

/** Asks for the name of a branch, and for what to ask there; shows it beside where it is from. */
export function BranchDialog({ http, from, message, beside, onClose }: BranchDialogProps) {
  const { router, feed } = useConsole();
  const isTaken = (taken: string): boolean => feed.states.value.has(taken);
  const name = useSignal(freeName(partsOf(from).name, isTaken));
  const draft = useSignal(message ?? "");
  const submit = async (): Promise<void> => {
    const given = name.value.trim();
    await http.post(`/v1/states/${from}/fork`, { names: [given] });
    if (draft.value.trim()) toGoOn.set(given, draft.value.trim());
    feed.refresh();
    router.go("chat", [beside, given]);
  };
  return (
    <Dialog
      title={`Branch from ${from}`}
      verb="Branch"
      disabled={!isName(name.value)}
      onSubmit={submit}
      onClose={onClose}
    >
      <NameField name={name} label="Name of the new state" />
      <Field label="Ask there" hint="Left empty, nothing is asked yet">
        {(tied) => (
          <textarea
            {...tied}
            class="input"
            rows={3}
            value={draft}
            onInput={(event) => {
              draft.value = event.currentTarget.value;
            }}
          />
        )}
      </Field>
    </Dialog>
  );
}
