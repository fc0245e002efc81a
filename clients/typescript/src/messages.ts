// Written by tools/typescript_messages.py from the messages of wkvm_protocol. Not to be edited.

import type { Field } from "./fields.js";

/** A number where it is exact, otherwise a bigint. */
export type Integer = number | bigint;

export const MAX_CHUNK_BYTES = 262144;
export const MAX_FRAME_BYTES = 1048576;
export const MAX_HELLO_FRAME_BYTES = 65536;
export const MAX_LANES = 1024;
export const MAX_LINEAGE = 1024;
export const MAX_LONG_TEXT = 4096;
export const MAX_PAGE = 256;
export const MAX_PARAMETERS = 65536;
export const MAX_REQUEST_ID = 4294967295;
export const MAX_SHORT_TEXT = 256;
export const MAX_STATES = 64;
export const MAX_TAGS = 64;
export const PROTOCOL_VERSION = 1;
export const MAGIC = "wkvm";

/** Codes of Error and Failed, by name. */
export const ERROR_CODES = {
  PROTOCOL_VIOLATION: 100,
  FRAME_TOO_LARGE: 101,
  UNSUPPORTED_VERSION: 102,
  UNAUTHENTICATED: 103,
  AUTH_TIMEOUT: 104,
  FRAME_TIMEOUT: 105,
  IDLE_TIMEOUT: 106,
  SLOW_CONSUMER: 107,
  TOO_MANY_CONNECTIONS: 108,
  INVALID_PARAMETER: 200,
  TOKEN_OUT_OF_RANGE: 201,
  EMPTY_PROMPT: 202,
  PROMPT_TOO_LONG: 203,
  UNSUPPORTED_OPERATION: 204,
  CANCELLED: 205,
  STATE_NOT_FOUND: 210,
  STATE_EXISTS: 211,
  STALE_VERSION: 212,
  STATE_MISMATCH: 213,
  BAD_STATE_FILE: 214,
  STATE_NOT_FINITE: 215,
  KEY_REUSED: 216,
  STATE_MOVED: 217,
  OUT_OF_SLOTS: 300,
  QUEUE_FULL: 301,
  TOO_MANY_LANES: 302,
  DRAINING: 303,
  OVERLOADED: 304,
  RATE_LIMITED: 305,
  STEP_MEMORY: 306,
  QUOTA: 310,
  STORE_FULL: 311,
  HOST_TIER_FULL: 312,
  INTERNAL: 500,
  NON_FINITE: 501,
  STALLED: 502,
  STEP_FAILED: 503,
  ENGINE_FAILED: 504,
  MUTATION_FAILED: 510,
  STATE_DAMAGED: 511,
  STORE_FAILED: 512,
  REQUEST_OVER: 513,
} as const;

/** Why a choice ended. */
export const END_REASONS = {
  STOP: 1,
  LENGTH: 2,
  CANCELLED: 3,
  TIMED_OUT: 4,
  MOVED: 5,
} as const;

/** How ids are chosen. Ranges are those of docs/protocol.md, checked by the server. */
export interface Sampling {
  readonly temperature: number;
  readonly top_k: Integer;
  readonly top_p: number;
  readonly min_p: number;
  readonly repetition_penalty: number;
  readonly presence_penalty: number;
  readonly frequency_penalty: number;
  readonly penalty_decay: number;
  readonly bias_ids: Uint32Array;
  readonly bias_values: Float32Array;
  readonly allowed_ids: Uint32Array | null;
  readonly stop_ids: Uint32Array;
  readonly ignore_eos: boolean;
  readonly min_tokens: Integer;
  readonly max_tokens: Integer;
  readonly logprobs: Integer | null;
  readonly prompt_logprobs: Integer | null;
  readonly seed: Integer | null;
  readonly n: Integer;
}

/** One version of a state, and what is said of its handle now. */
export interface StateInfo {
  readonly name: string;
  readonly version: Integer;
  readonly head: Integer;
  readonly n_versions: Integer;
  readonly ack: string;
  readonly tier: string;
  readonly content_id: string;
  readonly n_bytes: Integer;
  readonly n_computed: Integer;
  readonly n_pending: Integer;
  readonly operation: string;
  readonly parents: readonly string[];
  readonly tags: ReadonlyMap<string, string>;
  readonly created_ms: Integer;
  readonly updated_ms: Integer;
  readonly expires_ms: Integer | null;
  readonly model_digest: string;
  readonly layout_fingerprint: string;
  readonly tokenizer_digest: string;
  readonly tail: Uint32Array;
}

/** One version in a lineage: what it is, and what it was made from. */
export interface LineageEntry {
  readonly name: string;
  readonly version: Integer;
  readonly made_as: string;
  readonly operation: string;
  readonly parents: readonly string[];
  readonly created_ms: Integer;
  readonly n_computed: Integer;
  readonly n_pending: Integer;
  readonly n_bytes: Integer;
  readonly content_id: string;
}

/** Client to server, first: offer versions and features, and authenticate. */
export interface Hello {
  readonly type: "Hello";
  readonly magic: string;
  readonly min_version: Integer;
  readonly max_version: Integer;
  readonly features: readonly string[];
  readonly max_frame_bytes: Integer;
  readonly api_key: string;
  readonly client: string;
}

/** Server to client: the connection is open. What was agreed, and what is served. */
export interface HelloOk {
  readonly type: "HelloOk";
  readonly version: Integer;
  readonly features: readonly string[];
  readonly max_frame_bytes: Integer;
  readonly max_lanes: Integer;
  readonly ping_interval_ms: Integer;
  readonly server: string;
  readonly model: string;
  readonly model_digest: string;
  readonly layout_fingerprint: string;
  readonly tokenizer_digest: string;
  readonly vocab_size: Integer;
  readonly eos_ids: Uint32Array;
  readonly n_slots: Integer;
  readonly max_model_len: Integer;
  readonly tenant: string;
}

/** Either side: answered by a Pong with the same nonce, ahead of anything queued later. */
export interface Ping {
  readonly type: "Ping";
  readonly nonce: Integer;
}

/** Either side: the answer to a Ping. */
export interface Pong {
  readonly type: "Pong";
  readonly nonce: Integer;
}

/** Either side: no new lanes on this connection; open ones go on to their ends. */
export interface GoAway {
  readonly type: "GoAway";
  readonly message: string;
  readonly retry_after_ms: Integer;
}

/** Server to client: the connection is at fault and closes after this message. */
export interface Error {
  readonly type: "Error";
  readonly code: Integer;
  readonly retryable: boolean;
  readonly message: string;
}

/** Client to server: open a lane and complete a prompt. */
export interface Generate {
  readonly type: "Generate";
  readonly request_id: number;
  readonly prompt: Uint32Array;
  readonly sampling: Sampling;
  readonly credit: Integer;
  readonly timeout_ms: Integer;
  readonly priority: Integer;
}

/** Client to server: end a lane. Answered by its End or Failed; unknown lanes are ignored. */
export interface Cancel {
  readonly type: "Cancel";
  readonly request_id: number;
}

/** Client to server: let a lane send `n_tokens` more ids. Unknown lanes are ignored. */
export interface Credit {
  readonly type: "Credit";
  readonly request_id: number;
  readonly n_tokens: number;
}

/** Client to server: as Generate, but the output follows a grammar. */
export interface GenerateConstrained {
  readonly type: "GenerateConstrained";
  readonly request_id: number;
  readonly prompt: Uint32Array;
  readonly grammar_kind: string;
  readonly grammar: string;
  readonly sampling: Sampling;
  readonly credit: Integer;
  readonly timeout_ms: Integer;
  readonly priority: Integer;
}

/** Client to server: open a lane and tell the log probabilities of given ids. */
export interface Score {
  readonly type: "Score";
  readonly request_id: number;
  readonly prompt: Uint32Array;
  readonly path: string;
  readonly n_top: Integer;
  readonly timeout_ms: Integer;
  readonly priority: Integer;
}

/** Client to server: as Generate, but start from a state, or keep the one at the end. */
export interface GenerateOn {
  readonly type: "GenerateOn";
  readonly request_id: number;
  readonly prompt: Uint32Array;
  readonly sampling: Sampling;
  readonly credit: Integer;
  readonly timeout_ms: Integer;
  readonly priority: Integer;
  readonly state: string;
  readonly inline_bytes: Integer;
  readonly save_as: string;
  readonly expected_version: Integer | null;
  readonly on_disconnect: string;
  readonly durability: string;
  readonly want_inline: boolean;
  readonly checkpoint_every: Integer;
  readonly replay: boolean;
  readonly idempotency_key: string;
  readonly received: Integer;
  readonly grammar_kind: string;
  readonly grammar: string;
  readonly tags: ReadonlyMap<string, string> | null;
  readonly expires_in_ms: Integer;
}

/** Client to server: open a lane and tell the embedding of a text. */
export interface Embed {
  readonly type: "Embed";
  readonly request_id: number;
  readonly prompt: Uint32Array;
  readonly pooling: string;
  readonly timeout_ms: Integer;
  readonly priority: Integer;
}

/** Client to server: what is known of the prompt of the request that comes next. */
export interface PromptHint {
  readonly type: "PromptHint";
  readonly request_id: number;
  readonly borders: Uint32Array;
  readonly cache_salt: string;
}

/** Server to client: the ids of one step, for all lanes of the connection. */
export interface Tokens {
  readonly type: "Tokens";
  readonly lanes: Uint32Array;
  readonly ids: Uint32Array;
  readonly choices: Uint32Array;
  readonly counts: Uint32Array;
}

/** Server to client: log probabilities, in nats, of prompt ids or of ids in the next Tokens. */
export interface Logprobs {
  readonly type: "Logprobs";
  readonly request_id: number;
  readonly choice: Integer;
  readonly of_prompt: boolean;
  readonly first: Integer;
  readonly n_top: Integer;
  readonly ids: Uint32Array;
  readonly logprobs: Float32Array;
  readonly ranks: Uint32Array;
  readonly top_ids: Uint32Array;
  readonly top_logprobs: Float32Array;
}

/** Server to client: one choice of a lane is complete. */
export interface End {
  readonly type: "End";
  readonly request_id: number;
  readonly choice: Integer;
  readonly reason: number;
  readonly stop_id: Integer | null;
  readonly n_prompt: Integer;
  readonly n_output: Integer;
  readonly queue_us: Integer;
  readonly first_token_us: Integer;
  readonly total_us: Integer;
}

/** Server to client: the lane is closed without success. Other lanes are unaffected. */
export interface Failed {
  readonly type: "Failed";
  readonly request_id: number;
  readonly code: Integer;
  readonly retryable: boolean;
  readonly message: string;
  readonly field: string;
  readonly retry_after_ms: Integer;
}

/** Server to client: one choice of a GenerateOn is complete. */
export interface EndOn {
  readonly type: "EndOn";
  readonly request_id: number;
  readonly choice: Integer;
  readonly reason: number;
  readonly stop_id: Integer | null;
  readonly n_prompt: Integer;
  readonly n_output: Integer;
  readonly queue_us: Integer;
  readonly first_token_us: Integer;
  readonly total_us: Integer;
  readonly cached_tokens: Integer;
  readonly n_computed: Integer;
  readonly pending: Uint32Array;
  readonly prompt_left: Integer;
  readonly name: string;
  readonly version: Integer;
  readonly ack: string;
  readonly target: string;
}

/** Server to client: the embedding that an Embed asked for, before its End. */
export interface Embedding {
  readonly type: "Embedding";
  readonly request_id: number;
  readonly vector: Float32Array;
}

/** Server to client: so much of the prompt of a choice was not computed for it. */
export interface Reused {
  readonly type: "Reused";
  readonly request_id: number;
  readonly choice: Integer;
  readonly n_tokens: Integer;
}

/** Client to server: absorb exactly these ids and keep the state. Answered by StateVersions. */
export interface StateCreate {
  readonly type: "StateCreate";
  readonly request_id: number;
  readonly name: string;
  readonly prompt: Uint32Array;
  readonly state: string;
  readonly tags: ReadonlyMap<string, string> | null;
  readonly expires_in_ms: Integer;
  readonly expected_version: Integer | null;
  readonly durability: string;
  readonly checkpoint_every: Integer;
  readonly timeout_ms: Integer;
  readonly priority: Integer;
  readonly idempotency_key: string;
}

/** Client to server: tell about one state. Answered by StateVersions. */
export interface StateGet {
  readonly type: "StateGet";
  readonly request_id: number;
  readonly state: string;
}

/** Client to server: tell about handles, or versions of one. Answered by StatePage. */
export interface StateList {
  readonly type: "StateList";
  readonly request_id: number;
  readonly prefix: string;
  readonly tags: ReadonlyMap<string, string> | null;
  readonly versions_of: string;
  readonly cursor: string;
  readonly limit: Integer;
}

/** Client to server: new handles on the bytes of one state. Answered by StateVersions. */
export interface StateFork {
  readonly type: "StateFork";
  readonly request_id: number;
  readonly state: string;
  readonly names: readonly string[];
  readonly tags: ReadonlyMap<string, string> | null;
  readonly expires_in_ms: Integer;
  readonly keep_randomness: boolean;
  readonly durability: string;
  readonly idempotency_key: string;
}

/** Client to server: a new version of a state as it is now. Answered by StateVersions. */
export interface StateSnapshot {
  readonly type: "StateSnapshot";
  readonly request_id: number;
  readonly state: string;
  readonly lane: number | null;
  readonly save_as: string;
  readonly expected_version: Integer | null;
  readonly durability: string;
  readonly idempotency_key: string;
}

/** Client to server: move a state's bytes down and free what it held. StateVersions answers. */
export interface StateHibernate {
  readonly type: "StateHibernate";
  readonly request_id: number;
  readonly state: string;
  readonly tier: string;
}

/** Client to server: bring a state's bytes up, verified. Answered by StateVersions. */
export interface StateResume {
  readonly type: "StateResume";
  readonly request_id: number;
  readonly state: string;
}

/** Client to server: a new head that equals an older point. Answered by StateVersions. */
export interface StateRollback {
  readonly type: "StateRollback";
  readonly request_id: number;
  readonly state: string;
  readonly version: Integer | null;
  readonly position: Integer | null;
  readonly expected_version: Integer | null;
  readonly idempotency_key: string;
}

/** Client to server: change one thing about a handle. Answered by StateVersions. */
export interface StateEdit {
  readonly type: "StateEdit";
  readonly request_id: number;
  readonly state: string;
  readonly rename: string;
  readonly tags: ReadonlyMap<string, string> | null;
  readonly expires_in_ms: Integer | null;
  readonly expected_version: Integer | null;
}

/** Client to server: delete a handle, or one version. Answered by StateVersions, of none. */
export interface StateDelete {
  readonly type: "StateDelete";
  readonly request_id: number;
  readonly state: string;
  readonly expected_version: Integer | null;
}

/** Client to server: change a state other than by tokens. Answered by StateVersions. */
export interface StateMutate {
  readonly type: "StateMutate";
  readonly request_id: number;
  readonly operation: string;
  readonly states: readonly string[];
  readonly save_as: string;
  readonly parameters: string;
  readonly tags: ReadonlyMap<string, string> | null;
  readonly expires_in_ms: Integer;
  readonly expected_version: Integer | null;
  readonly durability: string;
  readonly idempotency_key: string;
}

/** Client to server: how far two states are apart. Answered by StateText. */
export interface StateDiff {
  readonly type: "StateDiff";
  readonly request_id: number;
  readonly state: string;
  readonly other: string;
}

/** Client to server: how a state came to be. Answered by StateText. */
export interface StateLog {
  readonly type: "StateLog";
  readonly request_id: number;
  readonly state: string;
  readonly before: Integer;
  readonly limit: Integer;
}

/** Client to server: do again what made a state, and compare. Answered by StateText. */
export interface StateReplay {
  readonly type: "StateReplay";
  readonly request_id: number;
  readonly state: string;
  readonly timeout_ms: Integer;
}

/** Client to server: send a state. Answered by StateExportBegin, StateChunks, StateBytesEnd. */
export interface StateExport {
  readonly type: "StateExport";
  readonly request_id: number;
  readonly state: string;
  readonly format: string;
  readonly credit: Integer;
}

/** Client to server: keep a state that the client sends. Answered by StateVersions. */
export interface StateImport {
  readonly type: "StateImport";
  readonly request_id: number;
  readonly name: string;
  readonly n_bytes: Integer;
  readonly format: string;
  readonly tags: ReadonlyMap<string, string> | null;
  readonly expires_in_ms: Integer;
  readonly expected_version: Integer | null;
  readonly durability: string;
  readonly idempotency_key: string;
}

/** Either side: the next bytes of a state, as many as were granted at most. */
export interface StateChunk {
  readonly type: "StateChunk";
  readonly request_id: number;
  readonly data: Uint8Array;
}

/** Either side: all bytes were sent. From the server it closes the lane of an export. */
export interface StateBytesEnd {
  readonly type: "StateBytesEnd";
  readonly request_id: number;
  readonly digest: string;
}

/** Client to server: stop a state where it is and commit it, to move it elsewhere. */
export interface MigrateBegin {
  readonly type: "MigrateBegin";
  readonly request_id: number;
  readonly state: string;
  readonly timeout_ms: Integer;
}

/** Client to server: the state has moved, or stays. Answered by StateVersions. */
export interface MigrateEnd {
  readonly type: "MigrateEnd";
  readonly request_id: number;
  readonly state: string;
  readonly committed: boolean;
  readonly target: string;
  readonly target_name: string;
  readonly target_version: Integer;
}

/** Client to server: end a GenerateOn now, and save. Its EndOn answers. */
export interface Interrupt {
  readonly type: "Interrupt";
  readonly request_id: number;
  readonly keep: Integer | null;
}

/** Either side: so many more bytes may be sent on a lane. */
export interface StateCredit {
  readonly type: "StateCredit";
  readonly request_id: number;
  readonly n_bytes: number;
}

/** Client to server: tell of all versions what they came from. Answered by StateLineagePage. */
export interface StateLineage {
  readonly type: "StateLineage";
  readonly request_id: number;
  readonly prefix: string;
  readonly state: string;
  readonly newest: Integer;
  readonly cursor: string;
  readonly limit: Integer;
}

/** Server to client: what an operation made or was asked about. Closes the lane. */
export interface StateVersions {
  readonly type: "StateVersions";
  readonly request_id: number;
  readonly states: readonly StateInfo[];
}

/** Server to client: a page of a list. Closes the lane. */
export interface StatePage {
  readonly type: "StatePage";
  readonly request_id: number;
  readonly states: readonly StateInfo[];
  readonly next: string;
}

/** Server to client: an answer as canonical JSON. Closes the lane. */
export interface StateText {
  readonly type: "StateText";
  readonly request_id: number;
  readonly text: string;
  readonly next: Integer;
}

/** Server to client: so many bytes follow in StateChunks. The lane stays open. */
export interface StateExportBegin {
  readonly type: "StateExportBegin";
  readonly request_id: number;
  readonly n_bytes: Integer;
  readonly state: StateInfo | null;
}

/** Server to client: the lane is closed without success, since the state is elsewhere now. */
export interface StateMoved {
  readonly type: "StateMoved";
  readonly request_id: number;
  readonly message: string;
  readonly target: string;
  readonly state: string;
}

/** Server to client: a page of a lineage, by name and version. Closes the lane. */
export interface StateLineagePage {
  readonly type: "StateLineagePage";
  readonly request_id: number;
  readonly entries: readonly LineageEntry[];
  readonly next: string;
}

/** Client to server: ask for counters. Answered by StatsReply, or by Failed. */
export interface Stats {
  readonly type: "Stats";
  readonly request_id: number;
}

/** Server to client: counters and gauges by name, as listed in docs/protocol.md. */
export interface StatsReply {
  readonly type: "StatsReply";
  readonly request_id: number;
  readonly values: ReadonlyMap<string, Integer>;
}

/** Client to server: tell what there is, and from then on what changes. */
export interface Watch {
  readonly type: "Watch";
  readonly request_id: number;
  readonly wants_states: boolean;
  readonly prefix: string;
  readonly interval_ms: Integer;
  readonly stats_ms: Integer;
  readonly credit: Integer;
}

/** Server to client: how states are now, and which are no more. The lane stays open. */
export interface StateChanges {
  readonly type: "StateChanges";
  readonly request_id: number;
  readonly restarts: boolean;
  readonly is_complete: boolean;
  readonly states: readonly StateInfo[];
  readonly used_s: Uint32Array;
  readonly gone: readonly string[];
}

/** Server to client: those counters and gauges that have changed. The lane stays open. */
export interface StatsChanges {
  readonly type: "StatsChanges";
  readonly request_id: number;
  readonly at_us: Integer;
  readonly values: ReadonlyMap<string, Integer>;
}

/** What a client may send. */
export type ClientMessage =
  | Hello
  | Ping
  | Pong
  | GoAway
  | Generate
  | Cancel
  | Credit
  | GenerateConstrained
  | Score
  | GenerateOn
  | Embed
  | PromptHint
  | StateCreate
  | StateGet
  | StateList
  | StateFork
  | StateSnapshot
  | StateHibernate
  | StateResume
  | StateRollback
  | StateEdit
  | StateDelete
  | StateMutate
  | StateDiff
  | StateLog
  | StateReplay
  | StateExport
  | StateImport
  | StateChunk
  | StateBytesEnd
  | MigrateBegin
  | MigrateEnd
  | Interrupt
  | StateCredit
  | StateLineage
  | Stats
  | Watch;

/** What a server may send. */
export type ServerMessage =
  | HelloOk
  | Ping
  | Pong
  | GoAway
  | Error
  | Tokens
  | Logprobs
  | End
  | Failed
  | EndOn
  | Embedding
  | Reused
  | StateChunk
  | StateBytesEnd
  | StateCredit
  | StateVersions
  | StatePage
  | StateText
  | StateExportBegin
  | StateMoved
  | StateLineagePage
  | StatsReply
  | StateChanges
  | StatsChanges;

export type AnyMessage = ClientMessage | ServerMessage;

/** The features without which messages may not be sent. */
export const FEATURES: Readonly<Record<string, string>> = {
  Embed: "embed",
  Embedding: "embed",
  EndOn: "states",
  GenerateConstrained: "grammar",
  GenerateOn: "states",
  Interrupt: "states",
  MigrateBegin: "states",
  MigrateEnd: "states",
  PromptHint: "prefix",
  Reused: "prefix",
  Score: "score",
  StateBytesEnd: "states",
  StateChanges: "watch",
  StateChunk: "states",
  StateCreate: "states",
  StateCredit: "states",
  StateDelete: "states",
  StateDiff: "states",
  StateEdit: "states",
  StateExport: "states",
  StateExportBegin: "states",
  StateFork: "states",
  StateGet: "states",
  StateHibernate: "states",
  StateImport: "states",
  StateLineage: "watch",
  StateLineagePage: "watch",
  StateList: "states",
  StateLog: "states",
  StateMoved: "states",
  StateMutate: "states",
  StatePage: "states",
  StateReplay: "states",
  StateResume: "states",
  StateRollback: "states",
  StateSnapshot: "states",
  StateText: "states",
  StateVersions: "states",
  StatsChanges: "watch",
  Watch: "watch",
};

/** What closes the lanes of operations that have one reply. */
export const REPLIES: Readonly<Record<string, string>> = {
  StateCreate: "StateVersions",
  StateGet: "StateVersions",
  StateList: "StatePage",
  StateFork: "StateVersions",
  StateSnapshot: "StateVersions",
  StateHibernate: "StateVersions",
  StateResume: "StateVersions",
  StateRollback: "StateVersions",
  StateEdit: "StateVersions",
  StateDelete: "StateVersions",
  StateMutate: "StateVersions",
  StateDiff: "StateText",
  StateLog: "StateText",
  StateReplay: "StateText",
  StateLineage: "StateLineagePage",
  StateExport: "StateBytesEnd",
  StateImport: "StateVersions",
  MigrateBegin: "StateVersions",
  MigrateEnd: "StateVersions",
};

const SAMPLING_FIELDS: readonly Field[] = [
    { name: "temperature", field: {"kind": "float"}, default: () => 1.0 },
    { name: "top_k", field: {"kind": "int"}, default: () => 0 },
    { name: "top_p", field: {"kind": "float"}, default: () => 1.0 },
    { name: "min_p", field: {"kind": "float"}, default: () => 0.0 },
    { name: "repetition_penalty", field: {"kind": "float"}, default: () => 1.0 },
    { name: "presence_penalty", field: {"kind": "float"}, default: () => 0.0 },
    { name: "frequency_penalty", field: {"kind": "float"}, default: () => 0.0 },
    { name: "penalty_decay", field: {"kind": "float"}, default: () => 1.0 },
    { name: "bias_ids", field: {"kind": "ids"}, default: () => new Uint32Array() },
    { name: "bias_values", field: {"kind": "floats"}, default: () => new Float32Array() },
    { name: "allowed_ids", field: {"kind": "nil", "of": {"kind": "ids"}}, default: () => null },
    { name: "stop_ids", field: {"kind": "ids"}, default: () => new Uint32Array() },
    { name: "ignore_eos", field: {"kind": "bool"}, default: () => false },
    { name: "min_tokens", field: {"kind": "int"}, default: () => 0 },
    { name: "max_tokens", field: {"kind": "int"}, default: () => 256 },
    { name: "logprobs", field: {"kind": "nil", "of": {"kind": "int"}}, default: () => null },
    { name: "prompt_logprobs", field: {"kind": "nil", "of": {"kind": "int"}}, default: () => null },
    { name: "seed", field: {"kind": "nil", "of": {"kind": "int"}}, default: () => null },
    { name: "n", field: {"kind": "int"}, default: () => 1 },
];

/** Sampling with all fields at their defaults. */
const SAMPLING = Object.fromEntries(
  SAMPLING_FIELDS.map((one) => [one.name, one.default!()]),
) as unknown as Sampling;

/** The fields of every message in the order in which they travel. */
export const MESSAGES: Readonly<Record<string, MessageTable>> = {
  Sampling: { tag: null, fields: SAMPLING_FIELDS },
  StateInfo: {
    tag: null,
    fields: [
      { name: "name", field: {"kind": "text", "max": 256} },
      { name: "version", field: {"kind": "int", "min": "0", "max": "9223372036854775807"} },
      { name: "head", field: {"kind": "int", "min": "0", "max": "9223372036854775807"} },
      { name: "n_versions", field: {"kind": "int", "min": "0", "max": "9223372036854775807"} },
      { name: "ack", field: {"kind": "text", "max": 256} },
      { name: "tier", field: {"kind": "text", "max": 256} },
      { name: "content_id", field: {"kind": "text", "max": 256} },
      { name: "n_bytes", field: {"kind": "int", "min": "0", "max": "9223372036854775807"} },
      { name: "n_computed", field: {"kind": "int", "min": "0", "max": "9223372036854775807"} },
      { name: "n_pending", field: {"kind": "int", "min": "0", "max": "9223372036854775807"} },
      { name: "operation", field: {"kind": "text", "max": 256} },
      { name: "parents", field: {"kind": "list", "of": {"kind": "text", "max": 256}, "max": 64} },
      { name: "tags", field: {"kind": "map", "key": {"kind": "text", "max": 256}, "of": {"kind": "text", "max": 256}, "max": 64} },
      { name: "created_ms", field: {"kind": "int", "min": "0", "max": "9223372036854775807"} },
      { name: "updated_ms", field: {"kind": "int", "min": "0", "max": "9223372036854775807"} },
      { name: "expires_ms", field: {"kind": "nil", "of": {"kind": "int", "min": "0", "max": "9223372036854775807"}} },
      { name: "model_digest", field: {"kind": "text", "max": 256} },
      { name: "layout_fingerprint", field: {"kind": "text", "max": 256} },
      { name: "tokenizer_digest", field: {"kind": "text", "max": 256} },
      { name: "tail", field: {"kind": "ids"}, default: () => new Uint32Array() },
    ],
  },
  LineageEntry: {
    tag: null,
    fields: [
      { name: "name", field: {"kind": "text", "max": 256} },
      { name: "version", field: {"kind": "int", "min": "0", "max": "9223372036854775807"} },
      { name: "made_as", field: {"kind": "text", "max": 256} },
      { name: "operation", field: {"kind": "text", "max": 256} },
      { name: "parents", field: {"kind": "list", "of": {"kind": "text", "max": 256}, "max": 64} },
      { name: "created_ms", field: {"kind": "int", "min": "0", "max": "9223372036854775807"} },
      { name: "n_computed", field: {"kind": "int", "min": "0", "max": "9223372036854775807"} },
      { name: "n_pending", field: {"kind": "int", "min": "0", "max": "9223372036854775807"} },
      { name: "n_bytes", field: {"kind": "int", "min": "0", "max": "9223372036854775807"} },
      { name: "content_id", field: {"kind": "text", "max": 256} },
    ],
  },
  Hello: {
    tag: 1,
    fields: [
      { name: "magic", field: {"kind": "text", "max": 256} },
      { name: "min_version", field: {"kind": "int", "min": "0", "max": "9223372036854775807"} },
      { name: "max_version", field: {"kind": "int", "min": "0", "max": "9223372036854775807"} },
      { name: "features", field: {"kind": "list", "of": {"kind": "text", "max": 256}, "max": 64}, default: () => [] },
      { name: "max_frame_bytes", field: {"kind": "int", "min": "0", "max": "9223372036854775807"}, default: () => 1048576 },
      { name: "api_key", field: {"kind": "text", "max": 4096}, default: () => "" },
      { name: "client", field: {"kind": "text", "max": 256}, default: () => "" },
    ],
  },
  HelloOk: {
    tag: 2,
    fields: [
      { name: "version", field: {"kind": "int", "min": "0", "max": "9223372036854775807"} },
      { name: "features", field: {"kind": "list", "of": {"kind": "text", "max": 256}, "max": 64} },
      { name: "max_frame_bytes", field: {"kind": "int", "min": "0", "max": "9223372036854775807"} },
      { name: "max_lanes", field: {"kind": "int", "min": "0", "max": "9223372036854775807"} },
      { name: "ping_interval_ms", field: {"kind": "int", "min": "0", "max": "9223372036854775807"} },
      { name: "server", field: {"kind": "text", "max": 256} },
      { name: "model", field: {"kind": "text", "max": 256} },
      { name: "model_digest", field: {"kind": "text", "max": 256} },
      { name: "layout_fingerprint", field: {"kind": "text", "max": 256} },
      { name: "tokenizer_digest", field: {"kind": "text", "max": 256} },
      { name: "vocab_size", field: {"kind": "int", "min": "0", "max": "9223372036854775807"} },
      { name: "eos_ids", field: {"kind": "ids"} },
      { name: "n_slots", field: {"kind": "int", "min": "0", "max": "9223372036854775807"} },
      { name: "max_model_len", field: {"kind": "int", "min": "0", "max": "9223372036854775807"} },
      { name: "tenant", field: {"kind": "text", "max": 256}, default: () => "" },
    ],
  },
  Ping: {
    tag: 3,
    fields: [
      { name: "nonce", field: {"kind": "int", "min": "0", "max": "9223372036854775807"}, default: () => 0 },
    ],
  },
  Pong: {
    tag: 4,
    fields: [
      { name: "nonce", field: {"kind": "int", "min": "0", "max": "9223372036854775807"}, default: () => 0 },
    ],
  },
  GoAway: {
    tag: 5,
    fields: [
      { name: "message", field: {"kind": "text", "max": 4096}, default: () => "" },
      { name: "retry_after_ms", field: {"kind": "int", "min": "0", "max": "9223372036854775807"}, default: () => 0 },
    ],
  },
  Error: {
    tag: 6,
    fields: [
      { name: "code", field: {"kind": "int", "min": "0", "max": "9223372036854775807"} },
      { name: "retryable", field: {"kind": "bool"} },
      { name: "message", field: {"kind": "text", "max": 4096} },
    ],
  },
  Generate: {
    tag: 16,
    fields: [
      { name: "request_id", field: {"kind": "int", "min": "0", "max": "4294967295"} },
      { name: "prompt", field: {"kind": "ids"} },
      { name: "sampling", field: {"kind": "struct", "of": "Sampling"}, default: () => SAMPLING },
      { name: "credit", field: {"kind": "int", "min": "0", "max": "9223372036854775807"}, default: () => 0 },
      { name: "timeout_ms", field: {"kind": "int", "min": "0", "max": "9223372036854775807"}, default: () => 0 },
      { name: "priority", field: {"kind": "int"}, default: () => 0 },
    ],
  },
  Cancel: {
    tag: 17,
    fields: [
      { name: "request_id", field: {"kind": "int", "min": "0", "max": "4294967295"} },
    ],
  },
  Credit: {
    tag: 18,
    fields: [
      { name: "request_id", field: {"kind": "int", "min": "0", "max": "4294967295"} },
      { name: "n_tokens", field: {"kind": "int", "min": "1", "max": "2147483647"} },
    ],
  },
  GenerateConstrained: {
    tag: 19,
    fields: [
      { name: "request_id", field: {"kind": "int", "min": "0", "max": "4294967295"} },
      { name: "prompt", field: {"kind": "ids"} },
      { name: "grammar_kind", field: {"kind": "text", "max": 256} },
      { name: "grammar", field: {"kind": "text"} },
      { name: "sampling", field: {"kind": "struct", "of": "Sampling"}, default: () => SAMPLING },
      { name: "credit", field: {"kind": "int", "min": "0", "max": "9223372036854775807"}, default: () => 0 },
      { name: "timeout_ms", field: {"kind": "int", "min": "0", "max": "9223372036854775807"}, default: () => 0 },
      { name: "priority", field: {"kind": "int"}, default: () => 0 },
    ],
  },
  Score: {
    tag: 20,
    fields: [
      { name: "request_id", field: {"kind": "int", "min": "0", "max": "4294967295"} },
      { name: "prompt", field: {"kind": "ids"} },
      { name: "path", field: {"kind": "text", "max": 256} },
      { name: "n_top", field: {"kind": "int"}, default: () => 0 },
      { name: "timeout_ms", field: {"kind": "int", "min": "0", "max": "9223372036854775807"}, default: () => 0 },
      { name: "priority", field: {"kind": "int"}, default: () => 0 },
    ],
  },
  GenerateOn: {
    tag: 21,
    fields: [
      { name: "request_id", field: {"kind": "int", "min": "0", "max": "4294967295"} },
      { name: "prompt", field: {"kind": "ids"} },
      { name: "sampling", field: {"kind": "struct", "of": "Sampling"}, default: () => SAMPLING },
      { name: "credit", field: {"kind": "int", "min": "0", "max": "9223372036854775807"}, default: () => 0 },
      { name: "timeout_ms", field: {"kind": "int", "min": "0", "max": "9223372036854775807"}, default: () => 0 },
      { name: "priority", field: {"kind": "int"}, default: () => 0 },
      { name: "state", field: {"kind": "text", "max": 256}, default: () => "" },
      { name: "inline_bytes", field: {"kind": "int", "min": "0", "max": "9223372036854775807"}, default: () => 0 },
      { name: "save_as", field: {"kind": "text", "max": 256}, default: () => "" },
      { name: "expected_version", field: {"kind": "nil", "of": {"kind": "int", "min": "0", "max": "9223372036854775807"}}, default: () => null },
      { name: "on_disconnect", field: {"kind": "text", "max": 256}, default: () => "cancel" },
      { name: "durability", field: {"kind": "text", "max": 256}, default: () => "" },
      { name: "want_inline", field: {"kind": "bool"}, default: () => false },
      { name: "checkpoint_every", field: {"kind": "int", "min": "0", "max": "9223372036854775807"}, default: () => 0 },
      { name: "replay", field: {"kind": "bool"}, default: () => false },
      { name: "idempotency_key", field: {"kind": "text", "max": 256}, default: () => "" },
      { name: "received", field: {"kind": "int", "min": "0", "max": "9223372036854775807"}, default: () => 0 },
      { name: "grammar_kind", field: {"kind": "text", "max": 256}, default: () => "" },
      { name: "grammar", field: {"kind": "text"}, default: () => "" },
      { name: "tags", field: {"kind": "nil", "of": {"kind": "map", "key": {"kind": "text", "max": 256}, "of": {"kind": "text", "max": 256}, "max": 64}}, default: () => null },
      { name: "expires_in_ms", field: {"kind": "int", "min": "0", "max": "9223372036854775807"}, default: () => 0 },
    ],
  },
  Embed: {
    tag: 22,
    fields: [
      { name: "request_id", field: {"kind": "int", "min": "0", "max": "4294967295"} },
      { name: "prompt", field: {"kind": "ids"} },
      { name: "pooling", field: {"kind": "text", "max": 256}, default: () => "last" },
      { name: "timeout_ms", field: {"kind": "int", "min": "0", "max": "9223372036854775807"}, default: () => 0 },
      { name: "priority", field: {"kind": "int"}, default: () => 0 },
    ],
  },
  PromptHint: {
    tag: 23,
    fields: [
      { name: "request_id", field: {"kind": "int", "min": "0", "max": "4294967295"} },
      { name: "borders", field: {"kind": "ids"}, default: () => new Uint32Array() },
      { name: "cache_salt", field: {"kind": "text", "max": 256}, default: () => "" },
    ],
  },
  Tokens: {
    tag: 24,
    fields: [
      { name: "lanes", field: {"kind": "ids"} },
      { name: "ids", field: {"kind": "ids"} },
      { name: "choices", field: {"kind": "ids"}, default: () => new Uint32Array() },
      { name: "counts", field: {"kind": "ids"}, default: () => new Uint32Array() },
    ],
  },
  Logprobs: {
    tag: 25,
    fields: [
      { name: "request_id", field: {"kind": "int", "min": "0", "max": "4294967295"} },
      { name: "choice", field: {"kind": "int", "min": "0", "max": "9223372036854775807"} },
      { name: "of_prompt", field: {"kind": "bool"} },
      { name: "first", field: {"kind": "int", "min": "0", "max": "9223372036854775807"} },
      { name: "n_top", field: {"kind": "int", "min": "0", "max": "9223372036854775807"} },
      { name: "ids", field: {"kind": "ids"} },
      { name: "logprobs", field: {"kind": "floats"} },
      { name: "ranks", field: {"kind": "ids"} },
      { name: "top_ids", field: {"kind": "ids"} },
      { name: "top_logprobs", field: {"kind": "floats"} },
    ],
  },
  End: {
    tag: 26,
    fields: [
      { name: "request_id", field: {"kind": "int", "min": "0", "max": "4294967295"} },
      { name: "choice", field: {"kind": "int", "min": "0", "max": "9223372036854775807"} },
      { name: "reason", field: {"kind": "enum", "of": [1, 2, 3, 4, 5]} },
      { name: "stop_id", field: {"kind": "nil", "of": {"kind": "int", "min": "0", "max": "9223372036854775807"}} },
      { name: "n_prompt", field: {"kind": "int", "min": "0", "max": "9223372036854775807"} },
      { name: "n_output", field: {"kind": "int", "min": "0", "max": "9223372036854775807"} },
      { name: "queue_us", field: {"kind": "int", "min": "0", "max": "9223372036854775807"} },
      { name: "first_token_us", field: {"kind": "int", "min": "0", "max": "9223372036854775807"} },
      { name: "total_us", field: {"kind": "int", "min": "0", "max": "9223372036854775807"} },
    ],
  },
  Failed: {
    tag: 27,
    fields: [
      { name: "request_id", field: {"kind": "int", "min": "0", "max": "4294967295"} },
      { name: "code", field: {"kind": "int", "min": "0", "max": "9223372036854775807"} },
      { name: "retryable", field: {"kind": "bool"} },
      { name: "message", field: {"kind": "text", "max": 4096} },
      { name: "field", field: {"kind": "text", "max": 256}, default: () => "" },
      { name: "retry_after_ms", field: {"kind": "int", "min": "0", "max": "9223372036854775807"}, default: () => 0 },
    ],
  },
  EndOn: {
    tag: 28,
    fields: [
      { name: "request_id", field: {"kind": "int", "min": "0", "max": "4294967295"} },
      { name: "choice", field: {"kind": "int", "min": "0", "max": "9223372036854775807"} },
      { name: "reason", field: {"kind": "enum", "of": [1, 2, 3, 4, 5]} },
      { name: "stop_id", field: {"kind": "nil", "of": {"kind": "int", "min": "0", "max": "9223372036854775807"}} },
      { name: "n_prompt", field: {"kind": "int", "min": "0", "max": "9223372036854775807"} },
      { name: "n_output", field: {"kind": "int", "min": "0", "max": "9223372036854775807"} },
      { name: "queue_us", field: {"kind": "int", "min": "0", "max": "9223372036854775807"} },
      { name: "first_token_us", field: {"kind": "int", "min": "0", "max": "9223372036854775807"} },
      { name: "total_us", field: {"kind": "int", "min": "0", "max": "9223372036854775807"} },
      { name: "cached_tokens", field: {"kind": "int", "min": "0", "max": "9223372036854775807"}, default: () => 0 },
      { name: "n_computed", field: {"kind": "int", "min": "0", "max": "9223372036854775807"}, default: () => 0 },
      { name: "pending", field: {"kind": "ids"}, default: () => new Uint32Array() },
      { name: "prompt_left", field: {"kind": "int", "min": "0", "max": "9223372036854775807"}, default: () => 0 },
      { name: "name", field: {"kind": "text", "max": 256}, default: () => "" },
      { name: "version", field: {"kind": "int", "min": "0", "max": "9223372036854775807"}, default: () => 0 },
      { name: "ack", field: {"kind": "text", "max": 256}, default: () => "" },
      { name: "target", field: {"kind": "text", "max": 4096}, default: () => "" },
    ],
  },
  Embedding: {
    tag: 29,
    fields: [
      { name: "request_id", field: {"kind": "int", "min": "0", "max": "4294967295"} },
      { name: "vector", field: {"kind": "floats"} },
    ],
  },
  Reused: {
    tag: 30,
    fields: [
      { name: "request_id", field: {"kind": "int", "min": "0", "max": "4294967295"} },
      { name: "choice", field: {"kind": "int", "min": "0", "max": "9223372036854775807"} },
      { name: "n_tokens", field: {"kind": "int", "min": "0", "max": "9223372036854775807"} },
    ],
  },
  StateCreate: {
    tag: 32,
    fields: [
      { name: "request_id", field: {"kind": "int", "min": "0", "max": "4294967295"} },
      { name: "name", field: {"kind": "text", "max": 256} },
      { name: "prompt", field: {"kind": "ids"} },
      { name: "state", field: {"kind": "text", "max": 256}, default: () => "" },
      { name: "tags", field: {"kind": "nil", "of": {"kind": "map", "key": {"kind": "text", "max": 256}, "of": {"kind": "text", "max": 256}, "max": 64}}, default: () => null },
      { name: "expires_in_ms", field: {"kind": "int", "min": "0", "max": "9223372036854775807"}, default: () => 0 },
      { name: "expected_version", field: {"kind": "nil", "of": {"kind": "int", "min": "0", "max": "9223372036854775807"}}, default: () => null },
      { name: "durability", field: {"kind": "text", "max": 256}, default: () => "" },
      { name: "checkpoint_every", field: {"kind": "int", "min": "0", "max": "9223372036854775807"}, default: () => 0 },
      { name: "timeout_ms", field: {"kind": "int", "min": "0", "max": "9223372036854775807"}, default: () => 0 },
      { name: "priority", field: {"kind": "int"}, default: () => 0 },
      { name: "idempotency_key", field: {"kind": "text", "max": 256}, default: () => "" },
    ],
  },
  StateGet: {
    tag: 33,
    fields: [
      { name: "request_id", field: {"kind": "int", "min": "0", "max": "4294967295"} },
      { name: "state", field: {"kind": "text", "max": 256} },
    ],
  },
  StateList: {
    tag: 34,
    fields: [
      { name: "request_id", field: {"kind": "int", "min": "0", "max": "4294967295"} },
      { name: "prefix", field: {"kind": "text", "max": 256}, default: () => "" },
      { name: "tags", field: {"kind": "nil", "of": {"kind": "map", "key": {"kind": "text", "max": 256}, "of": {"kind": "text", "max": 256}, "max": 64}}, default: () => null },
      { name: "versions_of", field: {"kind": "text", "max": 256}, default: () => "" },
      { name: "cursor", field: {"kind": "text", "max": 256}, default: () => "" },
      { name: "limit", field: {"kind": "int", "min": "0", "max": "9223372036854775807"}, default: () => 100 },
    ],
  },
  StateFork: {
    tag: 35,
    fields: [
      { name: "request_id", field: {"kind": "int", "min": "0", "max": "4294967295"} },
      { name: "state", field: {"kind": "text", "max": 256} },
      { name: "names", field: {"kind": "list", "of": {"kind": "text", "max": 256}, "max": 64} },
      { name: "tags", field: {"kind": "nil", "of": {"kind": "map", "key": {"kind": "text", "max": 256}, "of": {"kind": "text", "max": 256}, "max": 64}}, default: () => null },
      { name: "expires_in_ms", field: {"kind": "int", "min": "0", "max": "9223372036854775807"}, default: () => 0 },
      { name: "keep_randomness", field: {"kind": "bool"}, default: () => false },
      { name: "durability", field: {"kind": "text", "max": 256}, default: () => "" },
      { name: "idempotency_key", field: {"kind": "text", "max": 256}, default: () => "" },
    ],
  },
  StateSnapshot: {
    tag: 36,
    fields: [
      { name: "request_id", field: {"kind": "int", "min": "0", "max": "4294967295"} },
      { name: "state", field: {"kind": "text", "max": 256}, default: () => "" },
      { name: "lane", field: {"kind": "nil", "of": {"kind": "int", "min": "0", "max": "4294967295"}}, default: () => null },
      { name: "save_as", field: {"kind": "text", "max": 256}, default: () => "" },
      { name: "expected_version", field: {"kind": "nil", "of": {"kind": "int", "min": "0", "max": "9223372036854775807"}}, default: () => null },
      { name: "durability", field: {"kind": "text", "max": 256}, default: () => "" },
      { name: "idempotency_key", field: {"kind": "text", "max": 256}, default: () => "" },
    ],
  },
  StateHibernate: {
    tag: 37,
    fields: [
      { name: "request_id", field: {"kind": "int", "min": "0", "max": "4294967295"} },
      { name: "state", field: {"kind": "text", "max": 256} },
      { name: "tier", field: {"kind": "text", "max": 256}, default: () => "disk" },
    ],
  },
  StateResume: {
    tag: 38,
    fields: [
      { name: "request_id", field: {"kind": "int", "min": "0", "max": "4294967295"} },
      { name: "state", field: {"kind": "text", "max": 256} },
    ],
  },
  StateRollback: {
    tag: 39,
    fields: [
      { name: "request_id", field: {"kind": "int", "min": "0", "max": "4294967295"} },
      { name: "state", field: {"kind": "text", "max": 256} },
      { name: "version", field: {"kind": "nil", "of": {"kind": "int", "min": "0", "max": "9223372036854775807"}}, default: () => null },
      { name: "position", field: {"kind": "nil", "of": {"kind": "int", "min": "0", "max": "9223372036854775807"}}, default: () => null },
      { name: "expected_version", field: {"kind": "nil", "of": {"kind": "int", "min": "0", "max": "9223372036854775807"}}, default: () => null },
      { name: "idempotency_key", field: {"kind": "text", "max": 256}, default: () => "" },
    ],
  },
  StateEdit: {
    tag: 40,
    fields: [
      { name: "request_id", field: {"kind": "int", "min": "0", "max": "4294967295"} },
      { name: "state", field: {"kind": "text", "max": 256} },
      { name: "rename", field: {"kind": "text", "max": 256}, default: () => "" },
      { name: "tags", field: {"kind": "nil", "of": {"kind": "map", "key": {"kind": "text", "max": 256}, "of": {"kind": "text", "max": 256}, "max": 64}}, default: () => null },
      { name: "expires_in_ms", field: {"kind": "nil", "of": {"kind": "int", "min": "0", "max": "9223372036854775807"}}, default: () => null },
      { name: "expected_version", field: {"kind": "nil", "of": {"kind": "int", "min": "0", "max": "9223372036854775807"}}, default: () => null },
    ],
  },
  StateDelete: {
    tag: 41,
    fields: [
      { name: "request_id", field: {"kind": "int", "min": "0", "max": "4294967295"} },
      { name: "state", field: {"kind": "text", "max": 256} },
      { name: "expected_version", field: {"kind": "nil", "of": {"kind": "int", "min": "0", "max": "9223372036854775807"}}, default: () => null },
    ],
  },
  StateMutate: {
    tag: 42,
    fields: [
      { name: "request_id", field: {"kind": "int", "min": "0", "max": "4294967295"} },
      { name: "operation", field: {"kind": "text", "max": 256} },
      { name: "states", field: {"kind": "list", "of": {"kind": "text", "max": 256}, "max": 64} },
      { name: "save_as", field: {"kind": "text", "max": 256} },
      { name: "parameters", field: {"kind": "text", "max": 65536}, default: () => "{}" },
      { name: "tags", field: {"kind": "nil", "of": {"kind": "map", "key": {"kind": "text", "max": 256}, "of": {"kind": "text", "max": 256}, "max": 64}}, default: () => null },
      { name: "expires_in_ms", field: {"kind": "int", "min": "0", "max": "9223372036854775807"}, default: () => 0 },
      { name: "expected_version", field: {"kind": "nil", "of": {"kind": "int", "min": "0", "max": "9223372036854775807"}}, default: () => null },
      { name: "durability", field: {"kind": "text", "max": 256}, default: () => "" },
      { name: "idempotency_key", field: {"kind": "text", "max": 256}, default: () => "" },
    ],
  },
  StateDiff: {
    tag: 43,
    fields: [
      { name: "request_id", field: {"kind": "int", "min": "0", "max": "4294967295"} },
      { name: "state", field: {"kind": "text", "max": 256} },
      { name: "other", field: {"kind": "text", "max": 256} },
    ],
  },
  StateLog: {
    tag: 44,
    fields: [
      { name: "request_id", field: {"kind": "int", "min": "0", "max": "4294967295"} },
      { name: "state", field: {"kind": "text", "max": 256} },
      { name: "before", field: {"kind": "int", "min": "0", "max": "9223372036854775807"}, default: () => 0 },
      { name: "limit", field: {"kind": "int", "min": "0", "max": "9223372036854775807"}, default: () => 100 },
    ],
  },
  StateReplay: {
    tag: 45,
    fields: [
      { name: "request_id", field: {"kind": "int", "min": "0", "max": "4294967295"} },
      { name: "state", field: {"kind": "text", "max": 256} },
      { name: "timeout_ms", field: {"kind": "int", "min": "0", "max": "9223372036854775807"}, default: () => 0 },
    ],
  },
  StateExport: {
    tag: 46,
    fields: [
      { name: "request_id", field: {"kind": "int", "min": "0", "max": "4294967295"} },
      { name: "state", field: {"kind": "text", "max": 256} },
      { name: "format", field: {"kind": "text", "max": 256}, default: () => "state" },
      { name: "credit", field: {"kind": "int", "min": "0", "max": "9223372036854775807"}, default: () => 0 },
    ],
  },
  StateImport: {
    tag: 47,
    fields: [
      { name: "request_id", field: {"kind": "int", "min": "0", "max": "4294967295"} },
      { name: "name", field: {"kind": "text", "max": 256} },
      { name: "n_bytes", field: {"kind": "int", "min": "0", "max": "9223372036854775807"} },
      { name: "format", field: {"kind": "text", "max": 256}, default: () => "state" },
      { name: "tags", field: {"kind": "nil", "of": {"kind": "map", "key": {"kind": "text", "max": 256}, "of": {"kind": "text", "max": 256}, "max": 64}}, default: () => null },
      { name: "expires_in_ms", field: {"kind": "int", "min": "0", "max": "9223372036854775807"}, default: () => 0 },
      { name: "expected_version", field: {"kind": "nil", "of": {"kind": "int", "min": "0", "max": "9223372036854775807"}}, default: () => null },
      { name: "durability", field: {"kind": "text", "max": 256}, default: () => "" },
      { name: "idempotency_key", field: {"kind": "text", "max": 256}, default: () => "" },
    ],
  },
  StateChunk: {
    tag: 48,
    fields: [
      { name: "request_id", field: {"kind": "int", "min": "0", "max": "4294967295"} },
      { name: "data", field: {"kind": "bytes", "min": 1, "max": 262144} },
    ],
  },
  StateBytesEnd: {
    tag: 49,
    fields: [
      { name: "request_id", field: {"kind": "int", "min": "0", "max": "4294967295"} },
      { name: "digest", field: {"kind": "text", "max": 256}, default: () => "" },
    ],
  },
  MigrateBegin: {
    tag: 50,
    fields: [
      { name: "request_id", field: {"kind": "int", "min": "0", "max": "4294967295"} },
      { name: "state", field: {"kind": "text", "max": 256} },
      { name: "timeout_ms", field: {"kind": "int", "min": "0", "max": "9223372036854775807"}, default: () => 0 },
    ],
  },
  MigrateEnd: {
    tag: 51,
    fields: [
      { name: "request_id", field: {"kind": "int", "min": "0", "max": "4294967295"} },
      { name: "state", field: {"kind": "text", "max": 256} },
      { name: "committed", field: {"kind": "bool"} },
      { name: "target", field: {"kind": "text", "max": 4096}, default: () => "" },
      { name: "target_name", field: {"kind": "text", "max": 256}, default: () => "" },
      { name: "target_version", field: {"kind": "int", "min": "0", "max": "9223372036854775807"}, default: () => 0 },
    ],
  },
  Interrupt: {
    tag: 52,
    fields: [
      { name: "request_id", field: {"kind": "int", "min": "0", "max": "4294967295"} },
      { name: "keep", field: {"kind": "nil", "of": {"kind": "int", "min": "0", "max": "9223372036854775807"}}, default: () => null },
    ],
  },
  StateCredit: {
    tag: 53,
    fields: [
      { name: "request_id", field: {"kind": "int", "min": "0", "max": "4294967295"} },
      { name: "n_bytes", field: {"kind": "int", "min": "1", "max": "2147483647"} },
    ],
  },
  StateLineage: {
    tag: 54,
    fields: [
      { name: "request_id", field: {"kind": "int", "min": "0", "max": "4294967295"} },
      { name: "prefix", field: {"kind": "text", "max": 256}, default: () => "" },
      { name: "state", field: {"kind": "text", "max": 256}, default: () => "" },
      { name: "newest", field: {"kind": "int", "min": "0", "max": "9223372036854775807"}, default: () => 0 },
      { name: "cursor", field: {"kind": "text", "max": 256}, default: () => "" },
      { name: "limit", field: {"kind": "int", "min": "0", "max": "9223372036854775807"}, default: () => 1024 },
    ],
  },
  StateVersions: {
    tag: 56,
    fields: [
      { name: "request_id", field: {"kind": "int", "min": "0", "max": "4294967295"} },
      { name: "states", field: {"kind": "list", "of": {"kind": "struct", "of": "StateInfo"}, "max": 64} },
    ],
  },
  StatePage: {
    tag: 57,
    fields: [
      { name: "request_id", field: {"kind": "int", "min": "0", "max": "4294967295"} },
      { name: "states", field: {"kind": "list", "of": {"kind": "struct", "of": "StateInfo"}, "max": 256} },
      { name: "next", field: {"kind": "text", "max": 256} },
    ],
  },
  StateText: {
    tag: 58,
    fields: [
      { name: "request_id", field: {"kind": "int", "min": "0", "max": "4294967295"} },
      { name: "text", field: {"kind": "text"} },
      { name: "next", field: {"kind": "int", "min": "0", "max": "9223372036854775807"} },
    ],
  },
  StateExportBegin: {
    tag: 59,
    fields: [
      { name: "request_id", field: {"kind": "int", "min": "0", "max": "4294967295"} },
      { name: "n_bytes", field: {"kind": "int", "min": "0", "max": "9223372036854775807"} },
      { name: "state", field: {"kind": "nil", "of": {"kind": "struct", "of": "StateInfo"}} },
    ],
  },
  StateMoved: {
    tag: 60,
    fields: [
      { name: "request_id", field: {"kind": "int", "min": "0", "max": "4294967295"} },
      { name: "message", field: {"kind": "text", "max": 4096} },
      { name: "target", field: {"kind": "text", "max": 4096} },
      { name: "state", field: {"kind": "text", "max": 256} },
    ],
  },
  StateLineagePage: {
    tag: 61,
    fields: [
      { name: "request_id", field: {"kind": "int", "min": "0", "max": "4294967295"} },
      { name: "entries", field: {"kind": "list", "of": {"kind": "struct", "of": "LineageEntry"}, "max": 1024} },
      { name: "next", field: {"kind": "text", "max": 256} },
    ],
  },
  Stats: {
    tag: 64,
    fields: [
      { name: "request_id", field: {"kind": "int", "min": "0", "max": "4294967295"} },
    ],
  },
  StatsReply: {
    tag: 65,
    fields: [
      { name: "request_id", field: {"kind": "int", "min": "0", "max": "4294967295"} },
      { name: "values", field: {"kind": "map", "key": {"kind": "text", "max": 256}, "of": {"kind": "int"}, "max": 1024} },
    ],
  },
  Watch: {
    tag: 66,
    fields: [
      { name: "request_id", field: {"kind": "int", "min": "0", "max": "4294967295"} },
      { name: "wants_states", field: {"kind": "bool"}, default: () => true },
      { name: "prefix", field: {"kind": "text", "max": 256}, default: () => "" },
      { name: "interval_ms", field: {"kind": "int", "min": "0", "max": "9223372036854775807"}, default: () => 200 },
      { name: "stats_ms", field: {"kind": "int", "min": "0", "max": "9223372036854775807"}, default: () => 0 },
      { name: "credit", field: {"kind": "int", "min": "0", "max": "9223372036854775807"}, default: () => 0 },
    ],
  },
  StateChanges: {
    tag: 67,
    fields: [
      { name: "request_id", field: {"kind": "int", "min": "0", "max": "4294967295"} },
      { name: "restarts", field: {"kind": "bool"} },
      { name: "is_complete", field: {"kind": "bool"} },
      { name: "states", field: {"kind": "list", "of": {"kind": "struct", "of": "StateInfo"}, "max": 256} },
      { name: "used_s", field: {"kind": "ids"} },
      { name: "gone", field: {"kind": "list", "of": {"kind": "text", "max": 256}, "max": 256} },
    ],
  },
  StatsChanges: {
    tag: 68,
    fields: [
      { name: "request_id", field: {"kind": "int", "min": "0", "max": "4294967295"} },
      { name: "at_us", field: {"kind": "int", "min": "0", "max": "9223372036854775807"} },
      { name: "values", field: {"kind": "map", "key": {"kind": "text", "max": 256}, "of": {"kind": "int"}, "max": 1024} },
    ],
  },
};

/** A message's tag, null for parts of messages, and its fields. */
export interface MessageTable {
  readonly tag: number | null;
  readonly fields: readonly Field[];
}

export const FROM_CLIENT: readonly string[] = [
  "Hello",
  "Ping",
  "Pong",
  "GoAway",
  "Generate",
  "Cancel",
  "Credit",
  "GenerateConstrained",
  "Score",
  "GenerateOn",
  "Embed",
  "PromptHint",
  "StateCreate",
  "StateGet",
  "StateList",
  "StateFork",
  "StateSnapshot",
  "StateHibernate",
  "StateResume",
  "StateRollback",
  "StateEdit",
  "StateDelete",
  "StateMutate",
  "StateDiff",
  "StateLog",
  "StateReplay",
  "StateExport",
  "StateImport",
  "StateChunk",
  "StateBytesEnd",
  "MigrateBegin",
  "MigrateEnd",
  "Interrupt",
  "StateCredit",
  "StateLineage",
  "Stats",
  "Watch",
];

export const FROM_SERVER: readonly string[] = [
  "HelloOk",
  "Ping",
  "Pong",
  "GoAway",
  "Error",
  "Tokens",
  "Logprobs",
  "End",
  "Failed",
  "EndOn",
  "Embedding",
  "Reused",
  "StateChunk",
  "StateBytesEnd",
  "StateCredit",
  "StateVersions",
  "StatePage",
  "StateText",
  "StateExportBegin",
  "StateMoved",
  "StateLineagePage",
  "StatsReply",
  "StateChanges",
  "StatsChanges",
];
