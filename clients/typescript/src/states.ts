import type { Client, LaneReader } from "./client.js";
import type { Draft } from "./codec.js";
import { WkvmError } from "./errors.js";
import {
  MAX_CHUNK_BYTES,
  type ClientMessage,
  type Integer,
  type ServerMessage,
  type StateCreate,
  type StateFork,
  type LineageEntry,
  type StateImport,
  type StateInfo,
  type StateLineage,
  type StateLineagePage,
  type StateList,
  type StateMutate,
  type StatePage,
  type StateRollback,
  type StateSnapshot,
  type StateText,
  type StateVersions,
} from "./messages.js";

/** Fields of a message that may be left out, without those that the client fills in. */
type Optional<M, Without extends keyof M> = Partial<
  Omit<M, "type" | "request_id" | Without>
>;
type Opening = Draft<ClientMessage> & { readonly request_id: number };
type Asked = Opening extends infer M ? (M extends unknown ? Omit<M, "request_id"> : never) : never;

/** A part of a log: entries from the newest on, and where the next part begins; 0 at the end. */
export interface LogPart {
  readonly entries: unknown;
  readonly next: number;
}

const CREDIT = 4 * MAX_CHUNK_BYTES;

/**
 * Operations on states. Names are `NAME` or, where a version is meant, `NAME@VERSION`; options have
 * the names of docs/protocol.md. Each fails with a RequestFailedError, or a StateMovedError.
 */
export class States {
  /** Use `Client.states`. */
  constructor(private readonly client: Client) {}

  get(state: string): Promise<StateInfo> {
    return this.one({ type: "StateGet", state });
  }

  /** Handles by name, a page at a time; with `versions_of` the versions of one, newest first. */
  async *list(options: Optional<StateList, "cursor"> = {}): AsyncGenerator<StateInfo, void> {
    let cursor = "";
    do {
      const page = (await this.ask({ type: "StateList", ...options, cursor })) as StatePage;
      yield* page.states;
      cursor = page.next;
    } while (cursor);
  }

  /** What all versions were made from, by name and version, a page at a time. */
  async *lineage(options: Optional<StateLineage, "cursor"> = {}): AsyncGenerator<LineageEntry, void> {
    let cursor = "";
    do {
      const asked = { type: "StateLineage", ...options, cursor } as const;
      const page = (await this.ask(asked)) as StateLineagePage;
      yield* page.entries;
      cursor = page.next;
    } while (cursor);
  }

  /** Absorb exactly these ids, after `state` if there is one, and keep what comes of them. */
  create(
    name: string,
    prompt: Iterable<number>,
    options: Optional<StateCreate, "name" | "prompt"> = {},
  ): Promise<StateInfo> {
    return this.one({ type: "StateCreate", name, prompt: Uint32Array.from(prompt), ...options });
  }

  /** New handles on the bytes of one state. */
  async fork(
    state: string,
    names: readonly string[],
    options: Optional<StateFork, "state" | "names"> = {},
  ): Promise<readonly StateInfo[]> {
    return await this.several({ type: "StateFork", state, names, ...options });
  }

  snapshot(options: Optional<StateSnapshot, never>): Promise<StateInfo> {
    return this.one({ type: "StateSnapshot", ...options });
  }

  hibernate(state: string, tier: "host" | "disk" | "cold" = "disk"): Promise<StateInfo> {
    return this.one({ type: "StateHibernate", state, tier });
  }

  resume(state: string): Promise<StateInfo> {
    return this.one({ type: "StateResume", state });
  }

  /** A new head that equals an older `version`, or the first `position` tokens. */
  rollback(state: string, to: Optional<StateRollback, "state">): Promise<StateInfo> {
    return this.one({ type: "StateRollback", state, ...to });
  }

  rename(state: string, name: string): Promise<StateInfo> {
    return this.one({ type: "StateEdit", state, rename: name });
  }

  tag(state: string, tags: ReadonlyMap<string, string>): Promise<StateInfo> {
    return this.one({ type: "StateEdit", state, tags });
  }

  async delete(state: string, expectedVersion: Integer | null = null): Promise<void> {
    await this.ask({ type: "StateDelete", state, expected_version: expectedVersion });
  }

  /** Change a state other than by tokens: see "Mutations" in docs/states.md. */
  mutate(
    operation: string,
    states: readonly string[],
    saveAs: string,
    parameters: object = {},
    options: Optional<StateMutate, "operation" | "states" | "save_as" | "parameters"> = {},
  ): Promise<StateInfo> {
    const given = JSON.stringify(parameters);
    return this.one({
      ...{ type: "StateMutate", operation, states, save_as: saveAs, parameters: given },
      ...options,
    });
  }

  /** How far two states are apart, layer by layer. */
  async diff(state: string, other: string): Promise<unknown> {
    return JSON.parse((await this.text({ type: "StateDiff", state, other })).text);
  }

  /** How a state came to be: versions before `before`, or from the newest on. */
  async log(state: string, before: Integer = 0, limit: Integer = 100): Promise<LogPart> {
    const reply = await this.text({ type: "StateLog", state, before, limit });
    return { entries: JSON.parse(reply.text), next: Number(reply.next) };
  }

  /** Do again what made a state, and compare the bytes. */
  async replay(state: string): Promise<unknown> {
    return JSON.parse((await this.text({ type: "StateReplay", state })).text);
  }

  /** The bytes of a state, as one file. */
  export(state: string, format = "state"): Promise<Uint8Array> {
    const request_id = this.client.newRequestId();
    return new Promise((resolve, reject) => {
      const reader = new ExportReader(this.client, request_id, resolve, reject);
      const opening = { type: "StateExport", request_id, state, format, credit: CREDIT } as const;
      this.client.open(opening, reader);
    });
  }

  /** Keep a state whose file was read from somewhere. */
  import(
    name: string,
    file: Uint8Array,
    options: Optional<StateImport, "name" | "n_bytes"> = {},
  ): Promise<StateInfo> {
    const request_id = this.client.newRequestId();
    return new Promise((resolve, reject) => {
      const reader = new ImportReader(this.client, request_id, file, resolve, reject);
      const n_bytes = file.length;
      this.client.open({ type: "StateImport", request_id, name, n_bytes, ...options }, reader);
    });
  }

  private ask(asked: Asked): Promise<ServerMessage> {
    return this.client.ask({ ...asked, request_id: this.client.newRequestId() } as Opening);
  }

  private async several(asked: Asked): Promise<readonly StateInfo[]> {
    return ((await this.ask(asked)) as StateVersions).states;
  }

  private async one(asked: Asked): Promise<StateInfo> {
    return first(await this.ask(asked));
  }

  private async text(asked: Asked): Promise<StateText> {
    return (await this.ask(asked)) as StateText;
  }
}

function first(reply: ServerMessage): StateInfo {
  const info = (reply as StateVersions).states[0];
  if (info === undefined) throw new WkvmError("the server named no state");
  return info;
}

class ExportReader implements LaneReader {
  private file = new Uint8Array();
  private size = 0;

  constructor(
    private readonly client: Client,
    private readonly requestId: number,
    private readonly resolve: (file: Uint8Array) => void,
    readonly fail: (error: Error) => void,
  ) {}

  take(message: ServerMessage): void {
    if (message.type === "StateExportBegin") this.file = new Uint8Array(Number(message.n_bytes));
    if (message.type === "StateBytesEnd") this.resolve(this.file);
    if (message.type === "StateChunk") {
      this.file.set(message.data, this.size);
      this.size += message.data.length;
      const n_bytes = message.data.length;
      this.client.send({ type: "StateCredit", request_id: this.requestId, n_bytes });
    }
  }
}

class ImportReader implements LaneReader {
  private nSent = 0;

  constructor(
    private readonly client: Client,
    private readonly requestId: number,
    private readonly file: Uint8Array,
    private readonly resolve: (info: StateInfo) => void,
    readonly fail: (error: Error) => void,
  ) {}

  take(message: ServerMessage): void {
    if (message.type === "StateVersions") this.resolve(first(message));
    if (message.type === "StateCredit") this.send();
  }

  private send(): void {
    const request_id = this.requestId;
    for (let room = this.client.roomUp(request_id); room; room = this.client.roomUp(request_id)) {
      const end = this.nSent + Math.min(room, MAX_CHUNK_BYTES);
      const data = this.file.subarray(this.nSent, end);
      this.client.send({ type: "StateChunk", request_id, data });
      this.nSent = end;
    }
    if (this.nSent === this.file.length) this.client.send({ type: "StateBytesEnd", request_id });
  }
}
