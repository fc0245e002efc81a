import { useComputed } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useConsole } from "../app/context.ts";
import { N_READINGS } from "../app/feed.ts";
import { bytesOf, countOf, durationOf } from "../app/words.ts";
import { TIERS, tiersOf } from "../states/query.ts";
import { numberOf, percentile, rateNow, rates } from "./figures.ts";
import { Spark } from "./spark.tsx";
import "./strip.css";

/** The server's gauges in one line: how full it is, how fast, how late, and where states are. */
export function Gauges() {
  const { feed, link } = useConsole();
  const readings = feed.readings.value;
  const last = readings.at(-1);
  const isOld = link.client.value === null;
  const slots = numberOf(last, "n_slots") ?? 0;
  const used = slots - (numberOf(last, "n_free_slots") ?? 0);
  const queued = numberOf(last, "n_queued") ?? 0;
  const tokens = rateNow(readings, "output_tokens_total");
  const prompts = rateNow(readings, "prompt_tokens_total");
  const lag = numberOf(last, "loop_lag_us");
  return (
    <section class={`gauges${isOld ? " old" : ""}`} aria-label="Gauges">
      <Gauge title="Slots" figure={last ? `${countOf(used)} of ${countOf(slots)}` : "–"} note={`${countOf(queued)} queued`}>
        <Bar parts={[["device", slots ? used / slots : 0]]} />
      </Gauge>
      <Gauge
        title="Tokens/s"
        figure={tokens === null ? "–" : short(tokens)}
        note={prompts === null ? "" : `${short(prompts)} read`}
      >
        <Spark values={rates(readings, "output_tokens_total")} n={N_READINGS - 1} />
      </Gauge>
      <Gauge title="Between tokens" {...times(readings, "inter_token_us")} />
      <Gauge title="First token" {...times(readings, "first_token_us")} />
      <Tiers />
      <Gauge
        title="Loop lag"
        figure={lag === null ? "–" : durationOf(lag)}
        note={healthOf(last)}
        isBad={healthOf(last) !== "well"}
      />
    </section>
  );
}

interface GaugeProps {
  title: string;
  figure: string;
  note?: string;
  isBad?: boolean;
  /** What the note means, where that is not plain. */
  says?: string;
  children?: ComponentChildren;
}

function Gauge({ title, figure, note, isBad, says, children }: GaugeProps) {
  return (
    <div class="gauge">
      <span class="gauge-title">{title}</span>
      <span class="gauge-figure number">{figure}</span>
      <span class={`gauge-note number${isBad ? " bad" : ""}`} title={says ?? note}>
        {note}
      </span>
      {children}
    </div>
  );
}

function Tiers() {
  const { feed } = useConsole();
  const tiers = useComputed(() => tiersOf(feed.states.value.values()));
  const total = [...tiers.value.values()].reduce((sum, one) => sum + one.bytes, 0);
  const kept = TIERS.filter((tier) => tiers.value.get(tier)!.n > 0);
  return (
    <Gauge
      title="States"
      figure={countOf(feed.states.value.size)}
      says="Bytes of the newest versions; what is shared counts once"
      note={kept.map((tier) => `${tier} ${bytesOf(tiers.value.get(tier)!.bytes)}`).join(", ")}
    >
      <Bar parts={TIERS.map((tier) => [tier, total ? tiers.value.get(tier)!.bytes / total : 0])} />
    </Gauge>
  );
}

function Bar({ parts }: { parts: readonly (readonly [string, number])[] }) {
  return (
    <span class="gauge-bar" aria-hidden="true">
      {parts.map(([name, share]) => (
        <span key={name} class={`tier-${name}`} style={{ width: `${share * 100}%` }} />
      ))}
    </span>
  );
}

type Readings = Parameters<typeof percentile>[0];

/** Median and 99th percentile of a histogram, over the last seconds. */
function times(readings: Readings, name: string): { figure: string; note: string } {
  const median = percentile(readings, name, 0.5);
  const late = percentile(readings, name, 0.99);
  return {
    figure: median === null ? "–" : durationOf(median),
    note: late === null ? "none lately" : `99%: ${durationOf(late)}`,
  };
}

/** The worst that the server says of itself. */
function healthOf(reading: Readings[number] | undefined): string {
  if (numberOf(reading, "draining")) return "draining";
  if (numberOf(reading, "store_refuses") === 2) return "the disk fails";
  if (numberOf(reading, "store_refuses") === 1) return "the disk is full";
  if (numberOf(reading, "memory_refuses")) return "short of memory";
  return "well";
}

function short(value: number): string {
  return value >= 100 || value === 0 ? countOf(Math.round(value)) : value.toFixed(1);
}
