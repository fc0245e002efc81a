import { useComputed } from "@preact/signals";
import { useMemo, useRef } from "preact/hooks";
import { useConsole } from "../app/context.ts";
import { hashOf } from "../app/routes.ts";
import { many, partsOf } from "../app/words.ts";
import { Inspector } from "../detail/inspector.tsx";
import { useAnswer, useSettled } from "../detail/use.ts";
import { Button, Empty } from "../ui/controls.tsx";
import { OriginSign } from "../ui/signs.tsx";
import { Graph } from "./graph.tsx";
import { layOut, relatives } from "./layout.ts";
import { askVersions } from "./source.ts";
import "./lineage.css";

const EMPTY = layOut([]);
/** While states change, the lineage is asked for no more often than this, and for one part in so many of the time. */
const SETTLE_MS = 500;
const SHARE = 10;

/** Where states came from: all of them, or those that have to do with the one that is open. */
export function LineagePane() {
  const { feed, router } = useConsole();
  const { parts, query } = router.route.value;
  const reference = parts[0] ?? null;
  const name = reference === null ? null : partsOf(reference).name;
  const isAll = name === null || query.has("all");
  // What may change the picture: a version more or less, or another name.
  const mark = useComputed(() => {
    let text = "";
    for (const { info } of feed.states.value.values()) text += `${info.name}@${info.head};`;
    return text;
  });
  const took = useRef(0);
  const settled = useSettled(mark.value, () => Math.max(SETTLE_MS, SHARE * took.current));
  const asked = useAnswer(
    async (client) => {
      const start = performance.now();
      const found = await askVersions(client, [...feed.states.peek().values()].map((row) => row.info));
      took.current = performance.now() - start;
      return found;
    },
    ["all", settled],
  );
  const found = asked.value.value;
  const whole = useMemo(() => (found ? layOut(found.versions) : EMPTY), [found]);
  const picture = useMemo(() => {
    if (name === null || isAll || !found) return whole;
    const near = relatives(whole, name);
    return layOut(found.versions.filter((one) => near.has(one.name)));
  }, [whole, isAll ? null : name]);
  const open = (ref: string | null, replace: boolean): void =>
    router.go("lineage", ref ? [ref] : [], isAll && ref ? { all: "1" } : {}, replace);
  return (
    <div class="states">
      <section class="states-list" aria-label="Lineage">
        <div class="states-bar bar">
          {name !== null && (
            <Button
              small
              aria-pressed={!isAll}
              onClick={() => router.go("lineage", [reference!], isAll ? {} : { all: "1" }, true)}
            >
              Only what is related
            </Button>
          )}
          <span class="faint number">
            {many(picture.rows.length, "handle")}, {many(picture.dots.size, "version")}
            {found?.isPart && ", the newest"}
          </span>
          <span class="grow" />
          <span class="lineage-key bar" aria-hidden="true">
            <OriginSign operation="tokens" />
            <OriginSign operation="fork" />
            <OriginSign operation="mutation" />
            <OriginSign operation="copied" />
          </span>
        </div>
        {picture.dots.size ? (
          <Graph picture={picture} current={reference} onOpen={open} />
        ) : (
          <Nothing problem={asked.value.problem} isFound={found !== null} isPart={found?.isPart ?? false} />
        )}
      </section>
      {reference && <Inspector reference={reference} onClose={() => open(null, false)} />}
    </div>
  );
}

function Nothing({ problem, isFound, isPart }: { problem: string; isFound: boolean; isPart: boolean }) {
  if (problem) return <Empty title={problem} />;
  if (!isFound) return <Empty title="Looking for versions" />;
  if (isPart) return <Empty title="There are too many versions: this state is not among those that are drawn" />;
  return (
    <Empty title="No states yet">
      <a href={hashOf("states")}>Make one</a>
    </Empty>
  );
}
