import { expect, test } from "vitest";
import { branchesOf, type Kin } from "./kin.ts";

function kin(ref: string, parent = "", madeAs?: string): Kin {
  const [name = "", version] = ref.split("@");
  return {
    name, version: Number(version), madeAs: madeAs ?? name,
    parents: parent ? [parent] : [],
  };
}

const TALE = [kin("tale@1"), kin("tale@2", "tale@1"), kin("tale@3", "tale@2")];
const LINE = ["tale@1", "tale@2", "tale@3"];

test("a fork is a branch of the version that it left", () => {
  const lineage = [...TALE, kin("b@1", "tale@2"), kin("b@2", "b@1")];
  expect(branchesOf(LINE, lineage)).toEqual([{ ref: "b@2", from: "tale@2", isHead: true }]);
});

test("an answer that was rolled back is a branch, of which no name is the newest", () => {
  const lineage = [...TALE.slice(0, 2), kin("tale@3", "tale@1"), kin("tale@4", "tale@3")];
  expect(branchesOf(["tale@1", "tale@3", "tale@4"], lineage)).toEqual([{ ref: "tale@2", from: "tale@1", isHead: false }]);
});

test("a branch of a branch leaves where the first one left", () => {
  const lineage = [...TALE, kin("b@1", "tale@1"), kin("c@1", "b@1"), kin("b@2", "b@1")];
  expect(branchesOf(LINE, lineage).map((one) => [one.ref, one.from])).toEqual([
    ["c@1", "tale@1"],
    ["b@2", "tale@1"],
  ]);
});

test("what was renamed since is found by the name that it had", () => {
  const lineage = [...TALE, kin("new@1", "tale@2", "old"), kin("new@2", "old@1")];
  expect(branchesOf(LINE, lineage).map((one) => one.ref)).toEqual(["new@2"]);
});

test("what has nothing in common is no branch", () => {
  expect(branchesOf(LINE, [...TALE, kin("other@1"), kin("other@2", "gone@7")])).toEqual([]);
});
