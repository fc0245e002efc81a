import { expect, test } from "vitest";
import { commonTurns, stepsOf, turnsOf } from "./conversation.ts";
import type { LogEntry } from "./records.ts";
import type { Marks } from "./template.ts";

const MARKS: Marks = { opening: "User: ", answer: "\n\nAssistant:", next: "<|end|>\n\nUser: ", system: null, ends: ["<|end|>"] };

function entry(ref: string, operation: string, length: number, parent = "", parameters: object = {}): LogEntry {
  const [name = "", version] = ref.split("@");
  const parents = parent ? [[parent, "id"] as const] : [];
  return {
    name, version: Number(version), content_id: ref, created_ms: 1, n_computed: length - 1, n_pending: 1,
    provenance: { operation, parameters: { ...parameters }, parents },
  };
}

const FIRST = entry("tale@1", "generate", 40, "", { n_prompt: 16, n_output: 24 });
const SECOND = entry("tale@2", "generate", 83, "tale@1", { n_prompt: 13, n_output: 30 });

test("of a turn the tokens that were put in and those that were generated are told apart", () => {
  const steps = stepsOf({ entries: [FIRST, SECOND], hasMore: false });
  expect(steps.map((step) => step.spans)).toEqual([
    [
      { start: 0, end: 16, isOutput: false },
      { start: 16, end: 40, isOutput: true },
    ],
    [
      { start: 40, end: 53, isOutput: false },
      { start: 53, end: 83, isOutput: true },
    ],
  ]);
});

test("copies and mutations add no tokens", () => {
  const fork = entry("b@1", "fork", 83, "tale@2", { replay: false });
  const decay = entry("b@2", "decay", 83, "b@1", { factor: 0.5, revision: 1, layers: null, tensors: ["matrices"] });
  const steps = stepsOf({ entries: [FIRST, SECOND, fork, decay], hasMore: false });
  expect(steps.slice(2).map((step) => step.spans)).toEqual([[], []]);
  const turns = turnsOf(steps, ["", "", "", ""], MARKS);
  expect(turns.map((turn) => turn.note)).toEqual([
    ...["", "", "forked from tale@2"],
    "decay · factor 0.5 · tensors matrices",
  ]);
});

test("a rollback shows nothing, and what it took back is not on the line", () => {
  const back = entry("tale@3", "rollback", 40, "tale@1", { version: 1 });
  const again = entry("tale@4", "generate", 60, "tale@3", { n_prompt: 10, n_output: 10 });
  const steps = stepsOf({ entries: [FIRST, back, again], hasMore: false });
  const turns = turnsOf(steps, ["User: a\n\nAssistant:", " b<|end|>", "\n\nUser: c\n\nAssistant:", " d"], MARKS);
  expect(turns.map((turn) => [turn.ref, turn.before, turn.messages.map((one) => one.text)])).toEqual([
    ["tale@1", "", ["a", "b"]],
    ["tale@4", "tale@3", ["c", "d"]],
  ]);
});

test("an answer is open unless the token that ends answers ended it", () => {
  const steps = stepsOf({ entries: [FIRST, SECOND], hasMore: false });
  const turns = turnsOf(steps, ["User: a\n\nAssistant:", " b<|end|>", "\n\nUser: c\n\nAssistant:", " cut"], MARKS);
  expect(turns.map((turn) => turn.isOpen)).toEqual([false, true]);
});

test("where the line begins in the middle, the tokens before are not taken for the first turn's", () => {
  const [step] = stepsOf({ entries: [SECOND], hasMore: true });
  expect(step!.spans.map((span) => span.start)).toEqual([40, 53]);
});

test("an import is all put in", () => {
  const file = entry("imp@1", "import", 83, "", { form: "state", n_operations: 2 });
  const [step] = stepsOf({ entries: [file], hasMore: false });
  expect(step!.spans).toEqual([{ start: 0, end: 83, isOutput: false }]);
});

test("two conversations have their first turns in common, up to where one leaves", () => {
  const texts = ["", "", "", "", "", ""];
  const one = turnsOf(stepsOf({ entries: [FIRST, SECOND], hasMore: false }), texts, MARKS);
  const fork = entry("b@1", "fork", 40, "tale@1");
  const other = turnsOf(stepsOf({ entries: [FIRST, fork], hasMore: false }), texts, MARKS);
  expect(commonTurns(one, other)).toBe(1);
  expect(commonTurns(one, one)).toBe(2);
  expect(commonTurns(one, [])).toBe(0);
});
