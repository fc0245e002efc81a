import { useSignal } from "@preact/signals";
import { useEffect, useLayoutEffect, useRef } from "preact/hooks";
import { useConsole } from "../app/context.ts";
import { hashOf } from "../app/routes.ts";
import { many, partsOf } from "../app/words.ts";
import { isNarrow } from "../ui/media.ts";
import { kindOf, TierDot } from "../ui/signs.tsx";
import type { Dot, Line, Picture } from "./layout.ts";

const ROW = 30;
const COLUMN = 42;
const PILL = 18;
const N_SPARE = 6;

interface GraphProps {
  readonly picture: Picture;
  /** `NAME` or `NAME@VERSION`. */
  readonly current: string | null;
  onOpen: (reference: string, replace: boolean) => void;
}

/** The part of a picture that is in sight: handles as rows, versions from left to right. */
export function Graph({ picture, current, onOpen }: GraphProps) {
  const { feed } = useConsole();
  const names = isNarrow.value ? 130 : 220;
  const body = useRef<HTMLDivElement>(null);
  const view = useSignal({ left: 0, top: 0, width: 1000, height: 600 });
  const look = (): void => {
    // An observer may call once more after the last look.
    if (!body.current) return;
    const { scrollLeft: left, scrollTop: top, clientWidth: width, clientHeight: height } = body.current;
    view.value = { left, top, width, height };
  };
  useEffect(() => {
    const observer = new ResizeObserver(look);
    observer.observe(body.current!);
    return () => observer.disconnect();
  }, []);
  const chosen = current === null ? undefined : dotOf(picture, current);
  useLayoutEffect(() => {
    if (chosen) reveal(body.current!, chosen, names);
  }, [chosen?.ref, chosen?.row, chosen?.column]);
  const { left, top, width, height } = view.value;
  const firstRow = Math.max(0, Math.floor(top / ROW) - N_SPARE);
  const lastRow = Math.min(picture.rows.length, Math.ceil((top + height) / ROW) + N_SPARE);
  const firstColumn = Math.max(0, Math.floor(left / COLUMN) - N_SPARE);
  const lastColumn = Math.min(picture.nColumns, Math.ceil((left + width) / COLUMN) + N_SPARE);
  const inSight = { firstRow, lastRow, firstColumn, lastColumn };
  const rows = picture.rows.slice(firstRow, lastRow);
  const lines = picture.lines.filter((line) => crosses(line, inSight));
  const x = firstColumn * COLUMN;
  const y = firstRow * ROW;
  return (
    <div
      ref={body}
      class="graph"
      role="group"
      aria-label="Versions, by handle"
      tabIndex={0}
      onScroll={look}
      onKeyDown={(event) => onKey(event, picture, chosen, (dot) => onOpen(dot.ref, true))}
    >
      <div
        class="graph-space"
        style={{
          width: `${names + picture.nColumns * COLUMN + COLUMN}px`,
          height: `${picture.rows.length * ROW}px`,
        }}
      >
        <ul class="graph-names" style={{ width: `${names}px` }}>
          {rows.map((row, offset) => (
            <li
              key={row.name}
              class={row.name === chosen?.made.name ? "current" : ""}
              style={{ transform: `translateY(${(firstRow + offset) * ROW}px)`, height: `${ROW}px` }}
              onClick={() => onOpen(row.name, false)}
            >
              <span style={{ width: `${Math.min(row.depth, 5) * 8}px` }} />
              <TierDot tier={feed.states.value.get(row.name)?.info.tier ?? "disk"} />
              <span class="mono clip" title={row.name}>
                {row.name}
              </span>
            </li>
          ))}
        </ul>
        <svg
          class="graph-picture"
          style={{
            left: `${names}px`,
            transform: `translate(${x}px, ${y}px)`,
            width: `${(lastColumn - firstColumn + 1) * COLUMN}px`,
            height: `${(lastRow - firstRow) * ROW}px`,
          }}
        >
          <g transform={`translate(${-x}, ${-y})`}>
            {rows.map(({ name, dots }, offset) => {
              const at = (firstRow + offset + 0.5) * ROW;
              return (
                <line key={name} class="graph-track" x1={xOf(dots[0]!)} x2={xOf(dots.at(-1)!)} y1={at} y2={at} />
              );
            })}
            {lines.map((line) => (
              <path
                key={`${line.from.ref} ${line.to.ref}`}
                class={`graph-line line-${kindOf(line.to.made.operation)}${line.isSide ? " side" : ""}`}
                d={pathOf(line)}
              />
            ))}
            {rows.map(({ dots }) =>
              dots
                .filter((dot) => dot.column >= firstColumn && dot.column <= lastColumn)
                .map((dot) => <Pill key={dot.ref} dot={dot} isChosen={dot === chosen} onOpen={onOpen} />),
            )}
          </g>
        </svg>
      </div>
    </div>
  );
}

interface PillProps {
  dot: Dot;
  isChosen: boolean;
  onOpen: (reference: string, replace: boolean) => void;
}

function Pill({ dot, isChosen, onOpen }: PillProps) {
  const { made, ref } = dot;
  const text = made.version > 9999 ? "…" : String(made.version);
  const width = Math.max(PILL, 8 + 7 * text.length);
  const says = `version ${made.version} of ${made.name}: ${made.operation}, ${many(made.tokens, "token")}`;
  return (
    <g transform={`translate(${xOf(dot)}, ${yOf(dot)})`}>
      <title>{says}</title>
      <a
        href={hashOf("lineage", [ref])}
        tabIndex={-1}
        aria-label={says}
        aria-current={isChosen ? "true" : undefined}
        class={`graph-dot dot-${kindOf(made.operation)}${isChosen ? " chosen" : ""}`}
        onClick={(event) => {
          event.preventDefault();
          onOpen(ref, false);
        }}
      >
        <rect x={-width / 2} y={-PILL / 2} width={width} height={PILL} rx={PILL / 2} />
        <text text-anchor="middle" dy="0.34em">
          {text}
        </text>
      </a>
    </g>
  );
}

function xOf(dot: Dot): number {
  return (dot.column + 0.5) * COLUMN;
}

function yOf(dot: Dot): number {
  return (dot.row + 0.5) * ROW;
}

/** Down from the parent, and then along the row of the child. */
function pathOf({ from, to }: Line): string {
  const [x1, y1, x2, y2] = [xOf(from), yOf(from), xOf(to), yOf(to)];
  if (from.row === to.row) return `M${x1} ${y1}H${x2}`;
  const bend = Math.min(10, (x2 - x1) / 2);
  const above = y2 - Math.sign(y2 - y1) * bend;
  return `M${x1} ${y1}V${above}Q${x1} ${y2} ${x1 + bend} ${y2}H${x2}`;
}

interface Sight {
  firstRow: number;
  lastRow: number;
  firstColumn: number;
  lastColumn: number;
}

function crosses({ from, to }: Line, sight: Sight): boolean {
  return (
    Math.min(from.row, to.row) <= sight.lastRow &&
    Math.max(from.row, to.row) >= sight.firstRow &&
    from.column <= sight.lastColumn &&
    to.column >= sight.firstColumn
  );
}

/** The version, or the newest one of the handle. */
function dotOf(picture: Picture, reference: string): Dot | undefined {
  const { name, version } = partsOf(reference);
  if (version !== null) return picture.dots.get(reference);
  return picture.rows.find((row) => row.name === name)?.dots.at(-1);
}

function onKey(event: KeyboardEvent, picture: Picture, chosen: Dot | undefined, open: (dot: Dot) => void): void {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const next = step(event.key, picture, chosen);
  if (!next) return;
  event.preventDefault();
  open(next);
}

function step(key: string, picture: Picture, chosen: Dot | undefined): Dot | undefined {
  if (!/^(Arrow|Home|End)/.test(key)) return undefined;
  if (!chosen) return picture.rows[0]?.dots.at(-1);
  const own = picture.rows[chosen.row]!.dots;
  const at = own.indexOf(chosen);
  const nearest = (row: number): Dot | undefined =>
    picture.rows[row]?.dots.reduce((best, dot) =>
      Math.abs(dot.column - chosen.column) < Math.abs(best.column - chosen.column) ? dot : best,
    );
  switch (key) {
    case "ArrowLeft":
      return own[at - 1];
    case "ArrowRight":
      return own[at + 1];
    case "ArrowUp":
      return nearest(chosen.row - 1);
    case "ArrowDown":
      return nearest(chosen.row + 1);
    case "Home":
      return own[0];
    default:
      return own.at(-1);
  }
}

function reveal(body: HTMLElement, dot: Dot, names: number): void {
  const x = xOf(dot);
  const y = yOf(dot);
  const room = body.clientWidth - names;
  if (x - COLUMN < body.scrollLeft) body.scrollLeft = x - COLUMN;
  if (x + COLUMN > body.scrollLeft + room) body.scrollLeft = x + COLUMN - room;
  if (y - ROW < body.scrollTop) body.scrollTop = y - ROW;
  if (y + ROW > body.scrollTop + body.clientHeight) body.scrollTop = y + ROW - body.clientHeight;
}
