import { Flow } from "./flow.js";
import {
  REPLIES,
  type AnyMessage,
  type End,
  type EndOn,
  type StateBytesEnd,
  type StateChunk,
  type StateCredit,
  type StateExportBegin,
  type Interrupt,
} from "./messages.js";

interface Lane {
  readonly closedBy: string;
  /** The number of choices; null where a reply closes the lane, and not an end. */
  readonly n: number | null;
  readonly ended: Set<number>;
  readonly up: Flow | null;
  readonly down: Flow | null;
  lacksEmbedding: boolean;
  /** Whether changes are told on it; only Failed closes it. */
  readonly isWatch: boolean;
}

/**
 * The open lanes of one connection. A method that finds a rule broken says which, in words, and
 * changes nothing; the caller knows whose fault it is.
 */
export class Lanes {
  private readonly lanes = new Map<number, Lane>();

  has(requestId: number): boolean {
    return this.lanes.has(requestId);
  }

  get size(): number {
    return this.lanes.size;
  }

  ids(): Iterable<number> {
    return this.lanes.keys();
  }

  /** Open the lane that a message asks for. */
  open(message: AnyMessage & { readonly request_id: number }): string | null {
    if (this.lanes.has(message.request_id)) return "its request_id is open already";
    this.lanes.set(message.request_id, laneOf(message));
    return null;
  }

  /** Take note of what the client says within a lane that is open. */
  applyFromClient(message: StateCredit | StateChunk | StateBytesEnd | Interrupt): string | null {
    const lane = this.lanes.get(message.request_id);
    if (message.type === "StateCredit" && lane?.down) {
      return lane.down.grant(message.n_bytes, false);
    }
    if (message.type === "StateChunk" && lane?.up) return lane.up.take(message.data.length);
    if (message.type === "StateBytesEnd" && lane?.up) return lane.up.end();
    if (message.type === "Interrupt" && lane?.closedBy === "EndOn") return null;
    return "the lane has no place for it";
  }

  /** How many bytes of a state may be sent on a lane now. */
  roomUp(requestId: number): number {
    const up = this.lanes.get(requestId)?.up;
    return up && !up.isOver ? up.room : 0;
  }

  /** Take note of a message from the server, if it concerns a lane. */
  apply(message: AnyMessage): string | null {
    switch (message.type) {
      case "Tokens": {
        for (const [at, requestId] of message.lanes.entries()) {
          const problem = this.choiceProblem(requestId, message.choices[at] ?? 0);
          if (problem !== null) return problem;
        }
        return null;
      }
      case "Logprobs":
      case "Reused":
        return this.choiceProblem(message.request_id, Number(message.choice));
      case "Embedding": {
        const lane = this.lanes.get(message.request_id);
        if (!lane?.lacksEmbedding) return "the lane lacks no embedding";
        lane.lacksEmbedding = false;
        return null;
      }
      case "End":
      case "EndOn":
        return this.end(message);
      case "Failed":
      case "StateMoved":
        return this.lanes.delete(message.request_id) ? null : "the lane is not open";
      case "StatsReply":
      case "StateVersions":
      case "StatePage":
      case "StateText":
      case "StateLineagePage": {
        const lane = this.lanes.get(message.request_id);
        if (lane?.closedBy !== message.type) return "no open lane is answered by it";
        if (lane.up && !lane.up.isOver) return "the lane has not had all its bytes";
        this.lanes.delete(message.request_id);
        return null;
      }
      case "StateExportBegin":
      case "StateChunk":
      case "StateBytesEnd":
      case "StateCredit":
        return this.moveBytes(message);
      case "StateChanges":
      case "StatsChanges":
        return this.lanes.get(message.request_id)?.isWatch ? null : "no open watch";
      default:
        return null;
    }
  }

  private choiceProblem(requestId: number, choice: number): string | null {
    const lane = this.lanes.get(requestId);
    if (!lane || lane.n === null) return `request id ${requestId} is no open generation`;
    if (choice >= lane.n) return `request id ${requestId} has no choice ${choice}`;
    return lane.ended.has(choice) ? `choice ${choice} has ended` : null;
  }

  private end(message: End | EndOn): string | null {
    const choice = Number(message.choice);
    const problem = this.choiceProblem(message.request_id, choice);
    if (problem !== null) return problem;
    const lane = this.lanes.get(message.request_id)!;
    if (lane.closedBy !== message.type) return `the lane takes ${lane.closedBy}`;
    if (lane.down?.hasBegun && !lane.down.isOver) return "the lane lacks bytes of its state";
    lane.ended.add(choice);
    if (lane.ended.size === lane.n) this.lanes.delete(message.request_id);
    return null;
  }

  private moveBytes(
    message: StateExportBegin | StateChunk | StateBytesEnd | StateCredit,
  ): string | null {
    const lane = this.lanes.get(message.request_id);
    if (!lane) return "the lane is not open";
    if (message.type === "StateCredit" && lane.up) return lane.up.grant(message.n_bytes, true);
    if (!lane.down || message.type === "StateCredit") return "the lane has no place for it";
    if (message.type === "StateExportBegin") return lane.down.begin(Number(message.n_bytes));
    if (message.type === "StateChunk") return lane.down.take(message.data.length);
    if (lane.down.missing) return `the lane lacks ${lane.down.missing} bytes`;
    const problem = lane.down.end();
    if (problem === null && lane.closedBy === "StateBytesEnd") {
      this.lanes.delete(message.request_id);
    }
    return problem;
  }
}

function laneOf(message: AnyMessage): Lane {
  const lane = (closedBy: string, n: number | null, more: Partial<Lane> = {}): Lane => ({
    ...{ closedBy, n, ended: new Set<number>(), up: null, down: null, lacksEmbedding: false },
    isWatch: false,
    ...more,
  });
  switch (message.type) {
    case "Generate":
    case "GenerateConstrained":
      return lane("End", Number(message.sampling.n));
    case "GenerateOn": {
      const nBytes = Number(message.inline_bytes);
      return lane("EndOn", Number(message.sampling.n), {
        up: nBytes ? new Flow(nBytes, 0) : null,
        down: message.want_inline ? new Flow(null, null) : null,
      });
    }
    case "Score":
      return lane("End", 1);
    case "Embed":
      return lane("End", 1, { lacksEmbedding: true });
    case "Stats":
      return lane("StatsReply", null);
    case "Watch":
      return lane("Failed", null, { isWatch: true });
    case "StateExport":
      return lane("StateBytesEnd", null, { down: new Flow(null, Number(message.credit) || null) });
    case "StateImport":
      return lane("StateVersions", null, { up: new Flow(Number(message.n_bytes), 0) });
    default:
      return lane(REPLIES[message.type] ?? "", null);
  }
}
