/** What is said of a parent that has no name. */
export const UNNAMED = "bytes without a name";
/** What a rollback goes on from where no state is kept before its position. */
export const START = "the start, before any token";

/** What a version was made from: a reference, or what is said where there is none. */
export interface ParentSaid {
  readonly reference: string;
  readonly says: string;
}

/**
 * Say what a version was made from, in order.
 *
 * A rollback to before all that is kept continues nothing: its first parent has neither name nor
 * bytes, and the second is the version that it left.
 */
export function parentsSaid(operation: string, references: readonly string[]): ParentSaid[] {
  const isFromStart = operation === "rollback" && references.length > 1 && !references[0];
  return references.map((reference, at) => {
    if (isFromStart && at === 0) return { reference: "", says: START };
    return { reference, says: isFromStart ? "in place of" : reference ? "" : UNNAMED };
  });
}

/** The same as one text. */
export function parentsText(operation: string, references: readonly string[]): string {
  return parentsSaid(operation, references)
    .map(({ reference, says }) => [says, reference].filter(Boolean).join(" "))
    .join(", ");
}
