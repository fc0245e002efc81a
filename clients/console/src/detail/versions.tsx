import { useSignal } from "@preact/signals";
import type { StateInfo } from "wkvm-client";
import { useConsole } from "../app/context.ts";
import { hashOf } from "../app/routes.ts";
import { ageOf, countOf, many, refOf } from "../app/words.ts";
import { Button } from "../ui/controls.tsx";
import { clock } from "../ui/media.ts";
import { OriginSign } from "../ui/signs.tsx";
import { tokensOf } from "../states/query.ts";
import { useAnswer } from "./use.ts";

const N_FIRST = 10;

/** The versions of a handle, the newest first. */
export function Versions({ info }: { info: StateInfo }) {
  const { router } = useConsole();
  const limit = useSignal(N_FIRST);
  const asked = useAnswer(
    async (client) => {
      const found: StateInfo[] = [];
      const options = { versions_of: info.name, limit: Math.min(256, limit.value) };
      for await (const one of client.states.list(options)) {
        if (found.push(one) >= limit.value) break;
      }
      return found;
    },
    [info.name, info.head, Number(info.n_versions), limit.value],
  );
  const { value: versions, problem } = asked.value;
  const nLeft = Number(info.n_versions) - (versions?.length ?? 0);
  const { pane, query } = router.route.value;
  if (problem) return <p class="inspector-part faint">{problem}</p>;
  return (
    <section class="inspector-part">
      <h3>
        Versions <span class="faint number">{countOf(info.n_versions)}</span>
      </h3>
      <ul class="versions">
        {versions?.map((one) => (
          <li key={String(one.version)}>
            <a
              href={hashOf(pane, [refOf(one)], Object.fromEntries(query))}
              aria-current={one.version === info.version ? "true" : undefined}
            >
              <span class="number versions-number">{String(one.version)}</span>
              <OriginSign operation={one.operation} />
              <span class="number versions-right">{many(tokensOf(one), "token")}</span>
              <span class="number faint versions-right">{ageOf(clock.value - Number(one.created_ms))}</span>
            </a>
          </li>
        ))}
      </ul>
      {versions && nLeft > 0 && (
        <Button small kind="plain" onClick={() => (limit.value *= 8)}>
          {countOf(nLeft)} older
        </Button>
      )}
    </section>
  );
}
