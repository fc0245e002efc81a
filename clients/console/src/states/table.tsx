import type { Signal } from "@preact/signals";
import { useSignal } from "@preact/signals";
import { useEffect, useLayoutEffect, useRef } from "preact/hooks";
import type { ComponentChildren } from "preact";
import type { Row } from "../app/feed.ts";
import { ageOf, bytesOf, countOf } from "../app/words.ts";
import { clock, isNarrow } from "../ui/media.ts";
import { OriginSign, TierSign } from "../ui/signs.tsx";
import { TITLES, tokensOf, type Order, type Query } from "./query.ts";
import "./table.css";

interface Column {
  readonly order: Order | null;
  readonly title: string;
  readonly class: string;
  readonly cell: (row: Row, tenant: string, now: number) => ComponentChildren;
}

const COLUMNS: readonly Column[] = [
  {
    order: "name", title: TITLES.name, class: "col-name",
    cell: ({ info }) => (
      <>
        <span class="mono clip" title={info.name}>
          {info.name}
        </span>
        {[...info.tags].slice(0, 2).map(([key, value]) => (
          <span key={key} class="badge clip" title={`${key}=${value}`}>
            {value || key}
          </span>
        ))}
      </>
    ),
  },
  {
    order: "version", title: TITLES.version, class: "col-number",
    cell: ({ info }) => countOf(info.version),
  },
  { order: "tier", title: TITLES.tier, class: "col-sign", cell: ({ info }) => <TierSign tier={info.tier} /> },
  {
    order: "tokens", title: TITLES.tokens, class: "col-number",
    cell: ({ info }) => countOf(tokensOf(info)),
  },
  {
    order: "bytes", title: TITLES.bytes, class: "col-number",
    cell: ({ info }) => bytesOf(info.n_bytes),
  },
  {
    order: "origin", title: TITLES.origin, class: "col-sign",
    cell: ({ info }) => <OriginSign operation={info.operation} />,
  },
  {
    order: "used", title: TITLES.used, class: "col-number",
    cell: ({ usedMs }, _, now) => (
      <time dateTime={new Date(usedMs).toISOString()} title={new Date(usedMs).toLocaleString()}>
        {ageOf(now - usedMs)}
      </time>
    ),
  },
  { order: null, title: "Tenant", class: "col-tenant", cell: (_, tenant) => <span class="clip">{tenant}</span> },
];

const WIDE_PX = 30;
const NARROW_PX = 54;
/** Rows that are drawn above and below what is seen, so that scrolling shows no gaps. */
const N_SPARE = 8;

export interface TableProps {
  readonly rows: readonly Row[];
  readonly query: Query;
  readonly tenant: string;
  /** The name of the row that is open, if any. */
  readonly current: string | null;
  readonly marked: Signal<ReadonlySet<string>>;
  /** The row was moved to by a key. */
  onMove: (name: string) => void;
  /** The row is to be shown: by a click, or Enter. */
  onOpen: (name: string) => void;
  onSort: (order: Order) => void;
}

/** All rows, of which only those in sight are drawn: thousands cost no more than a page of them. */
export function Table(props: TableProps) {
  const { rows, query, tenant, current, marked, onSort } = props;
  const height = isNarrow.value ? NARROW_PX : WIDE_PX;
  const body = useRef<HTMLDivElement>(null);
  const top = useSignal(0);
  const seen = useSignal(600);
  const at = rows.findIndex((row) => row.info.name === current);
  useEffect(() => {
    const element = body.current!;
    const observer = new ResizeObserver(() => (seen.value = element.clientHeight));
    observer.observe(element);
    return () => observer.disconnect();
  }, []);
  useLayoutEffect(() => {
    if (at >= 0) bringIntoSight(body.current!, at * height, height);
  }, [current, height]);
  const first = Math.max(0, Math.floor(top.value / height) - N_SPARE);
  const last = Math.min(rows.length, Math.ceil((top.value + seen.value) / height) + N_SPARE);
  const drawn = rows.slice(first, last);
  return (
    <div
      ref={body}
      class="table"
      role="grid"
      aria-label="States"
      aria-rowcount={rows.length + 1}
      aria-multiselectable
      aria-activedescendant={at >= first && at < last ? idOf(rows[at]!) : undefined}
      tabIndex={0}
      onScroll={(event) => (top.value = event.currentTarget.scrollTop)}
      onKeyDown={(event) => onKey(event, props, at, Math.max(1, Math.floor(seen.value / height) - 2))}
    >
      <div class="table-head" role="row" aria-rowindex={1}>
        <span class="col-mark" role="columnheader">
          <MarkAll rows={rows} marked={marked} />
        </span>
        {COLUMNS.map(({ order, title, class: name }) => (
          <span
            key={title}
            class={name}
            role="columnheader"
            aria-sort={query.order !== order ? "none" : query.isDescending ? "descending" : "ascending"}
          >
            {order ? (
              <button type="button" tabIndex={-1} onClick={() => onSort(order)}>
                {title}
                <span aria-hidden="true">{query.order === order && (query.isDescending ? " ↓" : " ↑")}</span>
              </button>
            ) : (
              title
            )}
          </span>
        ))}
      </div>
      <div class="table-rows" role="presentation" style={{ height: `${rows.length * height}px` }}>
        {drawn.map((row, offset) => (
          <RowOf
            key={row.info.name}
            row={row}
            tenant={tenant}
            index={first + offset}
            height={height}
            isCurrent={row.info.name === current}
            isMarked={marked.value.has(row.info.name)}
            onOpen={() => props.onOpen(row.info.name)}
            onMark={() => (marked.value = toggled(marked.value, row.info.name))}
          />
        ))}
      </div>
    </div>
  );
}

interface RowProps {
  row: Row;
  tenant: string;
  index: number;
  height: number;
  isCurrent: boolean;
  isMarked: boolean;
  onOpen: () => void;
  onMark: () => void;
}

function RowOf({ row, tenant, index, height, isCurrent, isMarked, onOpen, onMark }: RowProps) {
  return (
    <div
      id={idOf(row)}
      class={`table-row${isCurrent ? " current" : ""}`}
      role="row"
      aria-rowindex={index + 2}
      aria-selected={isCurrent}
      style={{ transform: `translateY(${index * height}px)`, height: `${height}px` }}
      onClick={onOpen}
    >
      <span class="col-mark" role="gridcell" onClick={(event) => event.stopPropagation()}>
        <input
          type="checkbox"
          tabIndex={-1}
          aria-label={`Mark ${row.info.name}`}
          checked={isMarked}
          onChange={onMark}
        />
      </span>
      {COLUMNS.map((column) => (
        <span key={column.title} class={column.class} role="gridcell" data-title={column.title}>
          {column.cell(row, tenant, clock.value)}
        </span>
      ))}
    </div>
  );
}

function MarkAll({ rows, marked }: { rows: readonly Row[]; marked: Signal<ReadonlySet<string>> }) {
  const isAll = rows.length > 0 && rows.every((row) => marked.value.has(row.info.name));
  return (
    <input
      type="checkbox"
      tabIndex={-1}
      aria-label="Mark all that are shown"
      checked={isAll}
      disabled={!rows.length}
      onChange={() => (marked.value = new Set(isAll ? [] : rows.map((row) => row.info.name)))}
    />
  );
}

function onKey(event: KeyboardEvent, props: TableProps, at: number, page: number): void {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const { rows, marked, onMove, onOpen } = props;
  const to: Readonly<Record<string, number>> = {
    ArrowDown: at + 1,
    j: at + 1,
    ArrowUp: Math.max(at, 1) - 1,
    k: Math.max(at, 1) - 1,
    PageDown: at + page,
    PageUp: at - page,
    Home: 0,
    End: rows.length - 1,
  };
  const next = to[event.key];
  const here = rows[at]?.info.name;
  if (next !== undefined && rows.length) {
    onMove(rows[Math.min(rows.length - 1, Math.max(0, next))]!.info.name);
  } else if (event.key === "Enter" && here) {
    onOpen(here);
  } else if (event.key === " " && here) {
    marked.value = toggled(marked.value, here);
  } else return;
  event.preventDefault();
}

function toggled(set: ReadonlySet<string>, name: string): ReadonlySet<string> {
  const next = new Set(set);
  if (!next.delete(name)) next.add(name);
  return next;
}

/** The head of the table covers its first row's height of what is seen. */
function bringIntoSight(body: HTMLElement, top: number, height: number): void {
  const head = body.querySelector<HTMLElement>(".table-head")?.offsetHeight ?? 0;
  if (top < body.scrollTop) body.scrollTop = top;
  const bottom = top + height + head;
  if (bottom > body.scrollTop + body.clientHeight) body.scrollTop = bottom - body.clientHeight;
}

function idOf(row: Row): string {
  return `state-${row.info.name}`;
}
