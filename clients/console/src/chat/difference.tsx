import { useEffect } from "preact/hooks";
import { useSignal } from "@preact/signals";
import type { Http } from "./http.ts";
import { many } from "../app/words.ts";

/** How far two states are apart; see "Difference" in docs/states.md. */
export interface Difference {
  readonly equal: boolean;
  readonly n_common: number;
  readonly tensors: readonly {
    readonly name: string;
    readonly whole: { readonly relative: number };
    readonly layers: readonly { readonly whole: { readonly relative: number } }[];
  }[];
}

/** Asks how far two states are apart whenever one of them is another one, and shows it. */
export function DifferenceView({ http, one, other }: { http: Http; one: string; other: string }) {
  const found = useSignal<Difference | null>(null);
  const problem = useSignal("");
  useEffect(() => {
    let isOver = false;
    http.post<Difference>(`/v1/states/${one}/diff`, { other }).then(
      (difference) => {
        if (isOver) return;
        found.value = difference;
        problem.value = "";
      },
      (error: Error) => {
        if (!isOver) problem.value = error.message;
      },
    );
    return () => {
      isOver = true;
    };
  }, [http, one, other]);
  if (problem.value) return <p class="chat-difference faint">{problem}</p>;
  const difference = found.value;
  if (!difference) return <p class="chat-difference faint">Comparing</p>;
  return (
    <div class="chat-difference">
      <span class="number">{many(difference.n_common, "token")} in common</span>
      {!difference.equal && (
        <span class="faint" title="Per tensor of the state, a square per layer: 0 is equal">
          apart, by layer:
        </span>
      )}
      {difference.equal ? (
        <span class="badge">equal in every bit</span>
      ) : (
        difference.tensors.map((tensor) => (
          <span key={tensor.name} class="chat-tensor">
            <span class="mono faint">{tensor.name}</span>
            <span class="chat-layers" role="img" aria-label={spoken(tensor)}>
              {tensor.layers.map((layer, at) => (
                <span
                  key={at}
                  class="chat-layer"
                  title={`layer ${at}: ${layer.whole.relative.toFixed(3)}`}
                  style={{ "--far": Math.min(layer.whole.relative, 1) }}
                />
              ))}
            </span>
            <span class="number">{tensor.whole.relative.toFixed(2)}</span>
          </span>
        ))
      )}
    </div>
  );
}

function spoken(tensor: Difference["tensors"][number]): string {
  const layers = tensor.layers.map((layer) => layer.whole.relative.toFixed(2)).join(", ");
  return `Distance by layer, from 0 to 1: ${layers}`;
}
