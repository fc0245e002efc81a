/** What a value of a field may be. Limits of integers are decimal, since some are above 2^53. */
export type Kind =
  | { readonly kind: "bool" | "float" | "ids" | "floats" }
  | { readonly kind: "int"; readonly min?: string; readonly max?: string }
  | { readonly kind: "enum"; readonly of: readonly number[] }
  | { readonly kind: "text"; readonly max?: number }
  | { readonly kind: "bytes"; readonly min: number; readonly max: number }
  | { readonly kind: "nil"; readonly of: Kind }
  | { readonly kind: "list"; readonly of: Kind; readonly max?: number }
  | { readonly kind: "map"; readonly key: Kind; readonly of: Kind; readonly max?: number }
  | { readonly kind: "struct"; readonly of: string };

/** A field of a message, in the order in which it travels. */
export interface Field {
  readonly name: string;
  readonly field: Kind;
  /** What it is if it is left out; fields without this cannot be. */
  readonly default?: () => unknown;
}
