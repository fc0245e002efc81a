import type { ComponentChildren, ComponentProps } from "preact";
import { useId, useLayoutEffect, useRef } from "preact/hooks";
import { useSignal } from "@preact/signals";
import { messageOf } from "../app/words.ts";

type ButtonProps = Omit<ComponentProps<"button">, "icon" | "label"> & {
  /** `main` is what Enter would do, `danger` cannot be taken back, `plain` has no border. */
  kind?: "main" | "danger" | "plain";
  small?: boolean;
  /** A sign alone: then `label` is needed. */
  icon?: boolean;
  /** The accessible name, where the text is not one. Also shown when the pointer rests on it. */
  label?: string;
};

export function Button({ kind, small, icon, label, class: more, ...rest }: ButtonProps) {
  const names = ["button", kind, small && "small", icon && "icon", more].filter(Boolean);
  return (
    <button type="button" aria-label={label} title={label} {...rest} class={names.join(" ")} />
  );
}

interface FieldProps {
  label: string;
  hint?: ComponentChildren;
  wrong?: string | undefined;
  /** Gets what ties the control to its label, its hint and its error. */
  children: (tied: {
    id: string;
    "aria-describedby": string;
    "aria-invalid": boolean;
  }) => ComponentChildren;
}

/** A labelled control, with a hint below it, or what is wrong with it. */
export function Field({ label, hint, wrong, children }: FieldProps) {
  const id = useId();
  const tied = { id, "aria-describedby": `${id}-more`, "aria-invalid": Boolean(wrong) };
  return (
    <div class="field">
      <label class="label" for={id}>
        {label}
      </label>
      {children(tied)}
      <span id={`${id}-more`} class={wrong ? "wrong" : "hint"}>
        {wrong || hint}
      </span>
    </div>
  );
}

interface DialogProps {
  title: string;
  /** What the button says that does it: a verb. Without one there is something to read alone. */
  verb?: string;
  danger?: boolean;
  disabled?: boolean;
  /** It stays open when it was done: what came of it is shown in it. */
  stays?: boolean;
  /** Do it. While it is done the dialog waits; what it throws is shown, and the dialog stays. */
  onSubmit?: () => Promise<void> | void;
  onClose: () => void;
  children?: ComponentChildren;
}

/** A question over the page. Escape closes it, Enter answers it, and the focus goes back after it. */
export function Dialog({ title, verb, danger, disabled, stays, onSubmit, onClose, children }: DialogProps) {
  const element = useRef<HTMLDialogElement>(null);
  const id = useId();
  const isBusy = useSignal(false);
  const problem = useSignal("");
  // At once, both ways: a key that is pressed when the dialog is gone must find the focus back.
  useLayoutEffect(() => {
    const before = document.activeElement;
    element.current?.showModal();
    return () => {
      if (before instanceof HTMLElement) before.focus();
    };
  }, []);
  const isGone = useRef(false);
  const close = (): void => {
    if (isGone.current) return;
    isGone.current = true;
    onClose();
  };
  // The browser closes it first and says so later: a key in between would find the focus in it.
  const cancel = (event: Event): void => {
    event.preventDefault();
    close();
  };
  const submit = async (event: Event): Promise<void> => {
    event.preventDefault();
    if (isBusy.value) return;
    isBusy.value = true;
    problem.value = "";
    try {
      await onSubmit?.();
      if (!stays) onClose();
    } catch (error) {
      problem.value = messageOf(error);
    } finally {
      isBusy.value = false;
    }
  };
  return (
    <dialog ref={element} class="dialog" aria-labelledby={id} onCancel={cancel} onClose={close}>
      <form onSubmit={submit}>
        <h2 id={id} tabIndex={-1} autofocus={!verb}>
          {title}
        </h2>
        {children}
        {problem.value && (
          <p class="alert" role="alert">
            {problem}
          </p>
        )}
        <div class="buttons">
          <Button kind="plain" onClick={onClose}>
            {stays || !verb ? "Close" : "Cancel"}
          </Button>
          {verb && (
            <Button
              type="submit"
              kind={danger ? "danger" : "main"}
              disabled={Boolean(disabled) || isBusy.value}
            >
              {verb}
            </Button>
          )}
        </div>
      </form>
    </dialog>
  );
}

/** Says that there is nothing, and what to do about it. */
export function Empty({ title, children }: { title: string; children?: ComponentChildren }) {
  return (
    <div class="empty">
      <h2>{title}</h2>
      {children}
    </div>
  );
}
