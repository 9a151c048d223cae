/** Line and bar charts over steps, as SVG. */
import { format, ticks } from "./arrays";

export const LEFT = 52; // pixels for the labels of the vertical axis
export const RIGHT = 12;
const BOTTOM = 24;
const TOP = 8;

export interface Series {
  label: string;
  xs: number[];
  ys: (number | null)[];
  strong?: boolean;
}

export interface Frame {
  width: number;
  from: number;
  to: number; // exclusive
  labels: string[];
  cursor: number | null;
  span: [number, number] | null;
  onCursor: (step: number) => void;
}

/** The middle of a step in pixels. */
export function place(frame: Frame, step: number): number {
  const inner = frame.width - LEFT - RIGHT;
  return LEFT + ((step - frame.from + 0.5) * inner) / (frame.to - frame.from);
}

/** The step at a position in pixels. */
export function stepAt(frame: Frame, x: number): number {
  const inner = frame.width - LEFT - RIGHT;
  const step = frame.from + Math.floor(((x - LEFT) * (frame.to - frame.from)) / inner);
  return Math.max(frame.from, Math.min(frame.to - 1, step));
}

export function shorten(text: string, most = 10): string {
  const letters = [...(text.trim() === "" ? text.replace(/\s/g, "␣") : text)];
  return letters.length > most ? letters.slice(0, most - 1).join("") + "…" : letters.join("");
}

const lengths = new WeakMap<string[], number>(); // of the longest label, which all pictures of a page share

function findLongest(labels: string[]): number {
  let most = lengths.get(labels);
  if (most === undefined) lengths.set(labels, (most = labels.reduce((a, l) => Math.max(a, [...l].length), 1)));
  return most;
}

/** Labels of steps below a picture, as many as fit. */
export function StepAxis({ frame, y }: { frame: Frame; y: number }) {
  const width = (frame.width - LEFT - RIGHT) / (frame.to - frame.from);
  const longest = Math.min(10, findLongest(frame.labels));
  const every = Math.max(1, Math.ceil((longest * 7 + 10) / width));
  const marks = [];
  for (let t = frame.from; t < frame.to; t += every) {
    marks.push(
      <text key={marks.length} x={place(frame, t)} y={y} text-anchor="middle" class="axis">
        {shorten(frame.labels[t] ?? String(t))}
      </text>,
    );
  }
  return <g aria-hidden="true">{marks}</g>;
}

export function Cursor({ frame, height }: { frame: Frame; height: number }) {
  const half = (frame.width - LEFT - RIGHT) / (frame.to - frame.from) / 2;
  const { cursor, span } = frame;
  return (
    <g aria-hidden="true">
      {span && (
        <rect x={place(frame, span[0]) - half} y={0} class="span" height={height}
          width={Math.max(1, place(frame, span[1]) - place(frame, span[0]) + 2 * half)} />
      )}
      {cursor !== null && cursor >= frame.from && cursor < frame.to && (
        <line x1={place(frame, cursor)} x2={place(frame, cursor)} y1={0} y2={height} class="cursor" />
      )}
    </g>
  );
}

interface ChartProps {
  frame: Frame;
  series: Series[];
  height?: number;
  low?: number;
  high?: number;
  label: string;
  bars?: boolean;
  logarithmic?: boolean;
}

const LOG_FLOOR = 1e-8;

/** Whether values span two powers of ten or more, so that a logarithmic axis shows more. */
function isWide(series: Series[]): boolean {
  const sizes = series.flatMap((s) => s.ys.filter((v): v is number => v !== null && v > LOG_FLOOR));
  return sizes.length > 0 && Math.max(...sizes) / Math.min(...sizes) >= 100;
}

/** The part of a line inside the window, with one point on each side of it; xs are sorted. */
function cut(series: Series, frame: Frame): Series {
  const { xs, ys } = series;
  const find = (x: number) => {
    let [low, high] = [0, xs.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (xs[middle] < x) low = middle + 1;
      else high = middle;
    }
    return low;
  };
  const [from, to] = [Math.max(0, find(frame.from) - 1), Math.min(xs.length, find(frame.to) + 1)];
  return from === 0 && to === xs.length ? series : { ...series, xs: xs.slice(from, to), ys: ys.slice(from, to) };
}

export function Chart({ frame, series: all, height = 150, low, high, label, bars, logarithmic: wanted }: ChartProps) {
  const series = all.map((s) => cut(s, frame));
  const logarithmic = wanted && isWide(series);
  const scale = (v: number) => (logarithmic ? Math.log10(Math.max(v, LOG_FLOOR)) : v);
  const inside = series.flatMap((s) => s.ys.filter((v): v is number => v !== null).map(scale));
  let bottom = low ?? Math.min(...inside, bars ? 0 : Infinity);
  let top = high ?? Math.max(...inside, bars ? 0 : -Infinity);
  if (!inside.length) [bottom, top] = [0, 1];
  if (top - bottom < 1e-12) [bottom, top] = [bottom - 0.5, top + 0.5];
  const body = height - TOP - BOTTOM;
  const y = (v: number) => TOP + ((top - v) * body) / (top - bottom);
  const step = (frame.width - LEFT - RIGHT) / (frame.to - frame.from);
  const move = (event: MouseEvent) => {
    const box = (event.currentTarget as Element).getBoundingClientRect();
    frame.onCursor(stepAt(frame, event.clientX - box.left));
  };
  return (
    <svg width={frame.width} height={height} role="img" aria-label={label} onMouseMove={move} onClick={move} class="chart">
      {ticks(bottom, top).map((v) => (
        <g key={v}>
          <line x1={LEFT} x2={frame.width - RIGHT} y1={y(v)} y2={y(v)} class={v === 0 ? "zero" : "grid"} />
          <text x={LEFT - 6} y={y(v) + 4} text-anchor="end" class="axis">
            {logarithmic ? `1e${v.toFixed(Number.isInteger(v) ? 0 : 1)}` : format(v, top - bottom < 0.1 ? 3 : 2)}
          </text>
        </g>
      ))}
      <Cursor frame={frame} height={TOP + body} />
      {series.map((s, i) =>
        bars ? (
          <g key={s.label + i}>
            <path class="positive" d={drawBars(s, frame, y, step, (v) => v >= 0)} />
            <path class="negative" d={drawBars(s, frame, y, step, (v) => v < 0)} />
          </g>
        ) : (
          <path key={s.label + i} class={`line line${i % 6} ${s.strong ? "strong" : ""}`} d={trace(s, frame, (v) => y(scale(v)))} />
        ),
      )}
      {!bars && series.map((s, i) =>
        s.xs.length === 1 && s.ys[0] !== null && s.xs[0] >= frame.from && s.xs[0] < frame.to && (
          <circle key={s.label + i} cx={place(frame, s.xs[0])} cy={y(scale(s.ys[0]))} r={3.5} class={`dot line${i % 6}`} />
        ),
      )}
      {frame.cursor !== null && !bars && series.map((s, i) => <Dot key={s.label + i} series={s} index={i} frame={frame} y={(v) => y(scale(v))} />)}
      <StepAxis frame={frame} y={height - BOTTOM + 16} />
    </svg>
  );
}

/** All bars of one sign as one path, so that a long sequence stays fast. */
function drawBars(series: Series, frame: Frame, y: (v: number) => number, step: number, has: (v: number) => boolean): string {
  let path = "";
  const width = Math.max(0.6, step * 0.8);
  series.xs.forEach((x, i) => {
    const v = series.ys[i];
    if (v === null || x < frame.from || x >= frame.to || !has(v)) return;
    const height = Math.max(0.5, Math.abs(y(v) - y(0)));
    path += `M${(place(frame, x) - width / 2).toFixed(1)},${Math.min(y(0), y(v)).toFixed(1)}h${width.toFixed(1)}v${height.toFixed(1)}h${(-width).toFixed(1)}z`;
  });
  return path;
}

/** A line inside the window; a piece that crosses an edge is cut there. */
function trace(series: Series, frame: Frame, y: (v: number) => number): string {
  const { xs, ys } = series;
  const [low, high] = [frame.from - 0.5, frame.to - 0.5];
  let path = "";
  let pen = "M";
  xs.forEach((x, i) => {
    const v = ys[i];
    if (v === null) {
      pen = "M";
      return;
    }
    const at = Math.max(low, Math.min(high, x));
    const near = at === x ? i : x < low ? i + 1 : i - 1; // the other end of the piece that crosses the edge
    const other = ys[near];
    if (other === null || other === undefined) return;
    const height = near === i ? v : v + ((other - v) * (at - x)) / (xs[near] - x);
    path += `${pen}${place(frame, at).toFixed(1)},${y(height).toFixed(1)}`;
    pen = "L";
  });
  return path;
}

function Dot({ series, index, frame, y }: { series: Series; index: number; frame: Frame; y: (v: number) => number }) {
  const at = series.xs.indexOf(frame.cursor!);
  const v = at < 0 ? null : series.ys[at];
  if (v === null || v === undefined || frame.cursor! < frame.from || frame.cursor! >= frame.to) return null;
  return <circle cx={place(frame, frame.cursor!)} cy={y(v)} r={3.5} class={`dot line${index % 6}`} />;
}

/** The names of lines with their values at the cursor. */
export function Legend({ series, cursor }: { series: Series[]; cursor: number | null }) {
  return (
    <ul class="legend">
      {series.map((s, i) => {
        const at = cursor === null ? -1 : s.xs.indexOf(cursor);
        return (
          <li key={s.label + i}>
            <svg width="26" height="10" aria-hidden="true">
              <line x1="0" x2="26" y1="5" y2="5" class={`line line${i % 6} ${s.strong ? "strong" : ""}`} />
            </svg>
            <bdi>{s.label}</bdi> {at >= 0 && <b>{format(s.ys[at])}</b>}
          </li>
        );
      })}
    </ul>
  );
}
