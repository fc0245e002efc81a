import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { useConsole } from "../app/context.ts";

/** So many ids a server tells of a state at most: there may be more before them. */
const N_TAIL = 32;

/** The last that a state has read, as text: what its next token would follow. */
export function Tail({ tail }: { tail: Uint32Array }) {
  const { link } = useConsole();
  const text = useSignal("");
  const ids = tail.join(",");
  useEffect(() => {
    let isOld = false;
    const ask = async (): Promise<void> => {
      const body = `{"tokens": [${ids}]}`;
      const response = await link.fetch("/detokenize", { method: "POST", body });
      const { prompt = "" } = (await response.json()) as { prompt?: string };
      if (!isOld) text.value = prompt;
    };
    // Without a tokenizer, or without a server, there is no text to show.
    if (ids) ask().catch(() => {});
    else text.value = "";
    return () => {
      isOld = true;
    };
  }, [ids]);
  if (!ids || !text.value) return null;
  return (
    <section class="inspector-part">
      <h3>Last read</h3>
      <blockquote class="inspector-tail">
        {tail.length >= N_TAIL && "… "}
        {text}
      </blockquote>
    </section>
  );
}
