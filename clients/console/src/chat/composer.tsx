import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import type { ComponentChildren } from "preact";
import { Button } from "../ui/controls.tsx";
import { SamplingFields } from "./sampling.tsx";

interface ComposerProps {
  /** What the field is called: whom the message goes to. */
  readonly label: string;
  readonly isBusy: boolean;
  readonly onSend: (message: string) => void;
  readonly onStop: () => void;
  /** What else may be done, beside the button that sends. */
  readonly children?: ComponentChildren;
}

/** Where a message is written. Enter sends it, Shift and Enter begin a line, Escape stops an answer. */
export function Composer({ label, isBusy, onSend, onStop, children }: ComposerProps) {
  const draft = useSignal("");
  const hasSettings = useSignal(false);
  const field = useRef<HTMLTextAreaElement>(null);
  useEffect(() => field.current?.focus({ preventScroll: true }), [label]);
  const send = (): void => {
    const message = draft.value.trim();
    if (!message || isBusy) return;
    draft.value = "";
    onSend(message);
  };
  return (
    <form
      class="chat-composer"
      onSubmit={(event) => {
        event.preventDefault();
        send();
      }}
      onKeyDown={(event) => {
        if (event.key === "Escape" && isBusy) onStop();
      }}
    >
      {hasSettings.value && <SamplingFields />}
      <textarea
        ref={field}
        id="message"
        class="input"
        rows={2}
        aria-label={label}
        placeholder={label}
        value={draft}
        onInput={(event) => {
          draft.value = event.currentTarget.value;
        }}
        onKeyDown={(event) => {
          if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
          event.preventDefault();
          send();
        }}
      />
      <div class="bar">
        <Button
          small
          kind="plain"
          aria-expanded={hasSettings.value}
          onClick={() => {
            hasSettings.value = !hasSettings.value;
          }}
        >
          Sampling
        </Button>
        <span class="grow" />
        {children}
        {isBusy ? (
          <Button onClick={onStop}>Stop</Button>
        ) : (
          <Button type="submit" kind="main" disabled={!draft.value.trim()}>
            Send
          </Button>
        )}
      </div>
    </form>
  );
}
