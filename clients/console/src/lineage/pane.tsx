import { useComputed } from "@preact/signals";
import { useConsole } from "../app/context.ts";
import { hashOf } from "../app/routes.ts";
import { countOf, partsOf } from "../app/words.ts";
import { Inspector } from "../detail/inspector.tsx";
import { useAnswer } from "../detail/use.ts";
import { Button, Empty } from "../ui/controls.tsx";
import { OriginSign } from "../ui/signs.tsx";
import { Graph } from "./graph.tsx";
import { layOut, relatives } from "./layout.ts";
import { askVersions } from "./source.ts";
import "./lineage.css";

const EMPTY = layOut([]);

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
  const asked = useAnswer(
    (client) => askVersions(client, [...feed.states.peek().values()].map((row) => row.info)),
    ["all", mark.value],
  );
  const found = asked.value.value;
  const whole = found ? layOut(found.versions) : EMPTY;
  const near = name !== null && !isAll ? relatives(whole, name) : null;
  const picture = near && found ? layOut(found.versions.filter((one) => near.has(one.name))) : whole;
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
            {countOf(picture.rows.length)} handles, {countOf(picture.dots.size)} versions
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
