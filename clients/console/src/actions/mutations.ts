/** How a parameter is asked for. */
export interface Parameter {
  readonly name: string;
  readonly label: string;
  readonly kind: "number" | "integer" | "flag" | "layers" | "choice" | "numbers";
  readonly initial: string;
  readonly min?: number;
  readonly max?: number;
  readonly of?: readonly string[];
  readonly isNeeded?: boolean;
  readonly hint?: string;
}

export interface Mutation {
  readonly name: string;
  readonly says: string;
  /** How many parents besides the first. */
  readonly others: readonly [least: number, most: number];
  readonly parameters: readonly Parameter[];
}

const number = (name: string, label: string, initial: string, min: number, max: number): Parameter => ({
  name, label, kind: "number", initial, min, max,
});

/** The operations of "Mutations" in docs/states.md. Others, of plug-ins, are asked for by name. */
export const MUTATIONS: readonly Mutation[] = [
  {
    name: "decay",
    says: "Times a factor: 1 forgets nothing, 0 all.",
    others: [0, 0],
    parameters: [{ ...number("factor", "Factor", "0.5", 0, 1), isNeeded: true }],
  },
  {
    name: "scale",
    says: "Times a factor.",
    others: [0, 0],
    parameters: [{ ...number("factor", "Factor", "1", -100, 100), isNeeded: true }],
  },
  {
    name: "blend",
    says: "The weighted mean of several states.",
    others: [1, 15],
    parameters: [
      {
        name: "weights", label: "Weights", kind: "numbers", initial: "",
        hint: "One for each state, of sum 1. Without them all count the same.",
      },
    ],
  },
  {
    name: "add",
    says: "This one, and so many times the other.",
    others: [1, 1],
    parameters: [number("weight", "Weight", "1", -100, 100)],
  },
  {
    name: "subtract",
    says: "This one, less so many times the other.",
    others: [1, 1],
    parameters: [number("weight", "Weight", "1", -100, 100)],
  },
  { name: "reset", says: "Zeros, as before the first token.", others: [0, 0], parameters: [] },
  {
    name: "transplant",
    says: "Layers of the other in place of its own.",
    others: [1, 1],
    parameters: [],
  },
  {
    name: "noise",
    says: "Random numbers on top.",
    others: [0, 0],
    parameters: [
      { ...number("deviation", "Standard deviation", "0.1", 0, 100), isNeeded: true },
      { name: "seed", label: "Seed", kind: "integer", initial: "0", min: 0, isNeeded: true },
      {
        name: "relative", label: "In units of each head's root mean square", kind: "flag",
        initial: "true",
      },
    ],
  },
  {
    name: "clip",
    says: "No element, or no head's matrix, beyond a bound. One of the two is needed.",
    others: [0, 0],
    parameters: [
      number("max_abs", "Largest element", "", 0, 1e6),
      number("max_norm", "Longest matrix", "", 0, 1e6),
    ],
  },
  {
    name: "cast",
    says: "Rounded to another type of number.",
    others: [0, 0],
    parameters: [
      {
        name: "dtype", label: "Type", kind: "choice", initial: "float16",
        of: ["float32", "float16", "bfloat16"],
      },
      {
        name: "keep_layout", label: "Stored as before", kind: "flag", initial: "true",
      },
    ],
  },
];

/** Which layers are changed; every operation takes it. */
export const LAYERS: Parameter = {
  name: "layers", label: "Layers", kind: "layers", initial: "",
  hint: "Such as 0-3, 7. Without them all.",
};

/**
 * The value of a parameter from what was typed; undefined where nothing was.
 *
 * @throws Error it is none, in words for people.
 */
export function valueOf(parameter: Parameter, typed: string): unknown {
  const text = typed.trim();
  if (!text) {
    if (parameter.isNeeded) throw new Error(`${parameter.label} is needed.`);
    return undefined;
  }
  switch (parameter.kind) {
    case "flag":
      return text === "true";
    case "choice":
      return text;
    case "layers":
      return layersOf(text);
    case "numbers":
      return text.split(/[\s,]+/).map((one) => checked(parameter, one));
    default:
      return checked(parameter, text);
  }
}

function checked(parameter: Parameter, text: string): number {
  const value = Number(text);
  const { label, min = -Infinity, max = Infinity } = parameter;
  if (!Number.isFinite(value)) throw new Error(`${label}: ${text} is no number.`);
  if (parameter.kind === "integer" && !Number.isSafeInteger(value)) {
    throw new Error(`${label}: ${text} is no whole number.`);
  }
  if (value < min || value > max) throw new Error(`${label} is from ${min} to ${max}.`);
  return value;
}

function layersOf(text: string): number[] {
  const layers: number[] = [];
  for (const part of text.split(/[\s,]+/)) {
    const [, first, last = first] = /^(\d{1,4})(?:-(\d{1,4}))?$/.exec(part) ?? [];
    // A range that ends before it begins would silently leave out what was meant.
    if (first === undefined || Number(last) < Number(first)) {
      throw new Error(`Layers: ${part} is no layer.`);
    }
    for (let layer = Number(first); layer <= Number(last); layer += 1) layers.push(layer);
  }
  return layers;
}
