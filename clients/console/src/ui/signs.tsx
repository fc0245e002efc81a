import "./signs.css";
import { TIERS, type Tier } from "../states/query.ts";

/** Where a state is, in colour alone: beside its name. */
export function TierDot({ tier }: { tier: string }) {
  const known = (TIERS as readonly string[]).includes(tier) ? (tier as Tier) : "disk";
  return <span class={`tier-dot tier-${known}`} title={tier} aria-hidden="true" />;
}

/** Where a state is, in colour and in words. */
export function TierSign({ tier }: { tier: string }) {
  return (
    <span class="tier">
      <TierDot tier={tier} />
      {tier}
    </span>
  );
}

const KINDS: Readonly<Record<string, string>> = {
  fork: "fork",
  copied: "copied",
  import: "copied",
  snapshot: "copied",
  rollback: "copied",
  migrate: "copied",
  tokens: "tokens",
  create: "tokens",
  append: "tokens",
  generate: "tokens",
  checkpoint: "tokens",
};

/** What kind of thing an operation is, for its colour: whatever is not known is a mutation. */
export function kindOf(operation: string): string {
  return KINDS[operation] ?? "mutation";
}

/** How a state came to be, in colour and in words. */
export function OriginSign({ operation }: { operation: string }) {
  return (
    <span class="tier">
      <span class={`origin-dot origin-${kindOf(operation)}`} aria-hidden="true" />
      {operation}
    </span>
  );
}
