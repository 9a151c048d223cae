/** Curves over a numeric, logarithmic or named axis, with intervals, a legend that switches them, and their values on pointing. */
import type { ComponentChildren } from "preact";
import { useMemo, useState } from "preact/hooks";
import { colour, dash, drawMark } from "./looks";
import { formatNumber, isNumber } from "./numbers";
import type { ChartBlock, Curve, Values } from "./page";
import { useWidth } from "./panel";
import { makeNameScale, makeScale, type Scale } from "./scale";

export const LETTER = 7; // pixels, about the width of a letter in pictures
const TOP = 30; // with the label of the vertical axis
const BARE_TOP = 10;
const BOTTOM = 46; // with the label of the lower edge
const BARE_BOTTOM = 26;
const RIGHT = 14;
const MARKED_POINTS = 30; // a curve with more points has a mark only at some of them
const LOG_TICKS = 9; // up to this many distinct x values become the ticks of a logarithmic axis
const LEGEND_ALL = 5; // from more curves on, one button switches them all

export function fit(text: string, width: number): string {
  const most = Math.max(3, Math.floor(width / LETTER));
  const letters = [...text];
  return letters.length <= most ? text : `${letters.slice(0, most - 1).join("")}…`;
}

/** Move a position with the arrow keys, Home and End; Escape and leaving clear it. */
export function useStops(count: number) {
  const [at, setAt] = useState<number | null>(null);
  const onKeyDown = (event: KeyboardEvent) => {
    const from = at ?? -1;
    const moves: Record<string, number> = {
      ArrowRight: from + 1, ArrowDown: from + 1, ArrowLeft: from - 1, ArrowUp: from - 1, Home: 0, End: count - 1,
    };
    if (event.key === "Escape") setAt(null);
    if (!(event.key in moves) || !count) return;
    event.preventDefault();
    event.stopPropagation();
    setAt(Math.max(0, Math.min(count - 1, moves[event.key])));
  };
  return { at: at !== null && at < count ? at : null, setAt, onKeyDown, clear: () => setAt(null) };
}

export interface TipRow {
  look: number;
  name: string;
  text: string;
}

const TIP_ROWS = 12;

/** The values at a position, beside it; also read out by screen readers. */
export function Tip({ x, width, heading, rows }: { x: number; width: number; heading: string; rows: TipRow[] }) {
  const isLeft = x > width / 2;
  return (
    <div class="tip" style={isLeft ? { right: `${width - x + 12}px` } : { left: `${x + 12}px` }}>
      <b>{heading}</b>
      {rows.slice(0, TIP_ROWS).map((row, i) => (
        <div key={i}>
          <i class={colour(row.look)} />
          {row.name && <span><bdi>{row.name}</bdi></span>}
          <em>{row.text}</em>
        </div>
      ))}
      {rows.length > TIP_ROWS && <div>and {rows.length - TIP_ROWS} more</div>}
    </div>
  );
}

export function Swatch({ look }: { look: number }) {
  return (
    <svg class={`swatch ${colour(look)}`} width="28" height="14" viewBox="0 0 28 14" aria-hidden="true">
      <path d="M0,7H28" class={`stroke ${dash(look)}`} />
      <path d={drawMark(look, 14, 7)} class="marks" />
    </svg>
  );
}

/** Buttons that show and hide curves. */
function PlotLegend({ names, looks, hidden, setHidden, setNear }: {
  names: string[];
  looks: number[];
  hidden: Set<number>;
  setHidden: (hidden: Set<number>) => void;
  setNear: (near: number | null) => void;
}) {
  const toggle = (i: number) => {
    const next = new Set(hidden);
    if (!next.delete(i)) next.add(i);
    setNear(null);
    setHidden(next);
  };
  return (
    <ul class="legend keys" aria-label="Curves">
      {names.map((name, i) => (
        <li key={i}>
          <button type="button" aria-pressed={!hidden.has(i)} onClick={() => toggle(i)}
            onPointerEnter={() => !hidden.has(i) && setNear(i)} onPointerLeave={() => setNear(null)}>
            <Swatch look={looks[i]} /><bdi>{name}</bdi>
          </button>
        </li>
      ))}
      {names.length > LEGEND_ALL && (
        <li><button type="button" class="all" onClick={() => setHidden(hidden.size ? new Set() : new Set(names.keys()))}>{hidden.size ? "Show all" : "Hide all"}</button></li>
      )}
    </ul>
  );
}

export interface Box {
  width: number;
  height: number;
  left: number;
  x: (share: number) => number;
  y: (share: number) => number;
}

function makeBox(width: number, height: number, y: Scale, chart: Chart): Box {
  const top = chart.y_label ? TOP : BARE_TOP;
  const bottom = chart.x_label ? BOTTOM : BARE_BOTTOM;
  const left = 16 + LETTER * Math.max(...y.ticks.map((t) => t.text.length), 1);
  return {
    width, height, left,
    x: (share) => left + share * (width - left - RIGHT),
    y: (share) => height - bottom - share * (height - top - bottom),
  };
}

function YAxis({ box, scale, label }: { box: Box; scale: Scale; label: string }) {
  return (
    <g>
      <text x={2} y={14} class="axis label">{fit(label, box.width - 8)}</text>
      {scale.ticks.map((t) => (
        <g key={t.text + t.at}>
          <line x1={box.left} x2={box.x(1)} y1={box.y(t.at)} y2={box.y(t.at)} class="grid" />
          <text x={box.left - 8} y={box.y(t.at) + 4} text-anchor="end" class="axis">{t.text}</text>
        </g>
      ))}
    </g>
  );
}

/** The lower edge with its numbers, without those that would overlap. */
export function XAxis({ box, scale, label }: { box: Box; scale: Scale; label: string }) {
  const floor = box.y(0);
  let free = -1;
  const ticks = [...scale.ticks].sort((a, b) => a.at - b.at).map((t) => {
    const x = box.x(t.at);
    const half = (LETTER * t.text.length) / 2;
    const fits = x - half >= free && x + half <= box.width;
    if (fits) free = x + half + LETTER;
    return { x, text: fits ? t.text : "" };
  });
  return (
    <g>
      <line x1={box.left} x2={box.x(1)} y1={floor} y2={floor} class="edge" />
      {ticks.map((t, i) => (
        <g key={i}>
          <line x1={t.x} x2={t.x} y1={floor} y2={floor + 4} class="edge" />
          {t.text && <text x={t.x} y={floor + 18} text-anchor="middle" class="axis">{t.text}</text>}
        </g>
      ))}
      {label && <text x={(box.left + box.x(1)) / 2} y={floor + 38} text-anchor="middle" class="axis label">{fit(label, box.width - 16)}</text>}
    </g>
  );
}

export type Chart = Omit<ChartBlock, "id" | "kind" | "note" | "title"> & { title: string };

export function makeAxes(chart: Chart, width = 780): [Scale, Scale] {
  const xs = chart.curves.flatMap((c) => c.x);
  const points = chart.curves.flatMap((c) => c.y);
  const ends = chart.curves.flatMap((c) => [...(c.low ?? []), ...(c.high ?? [])]);
  // a band below 0 ends at the edge of a logarithmic axis; only points of a curve need a floor
  const y = makeScale([...points, ...ends.filter((v) => !chart.log_y || (isNumber(v) && v > 0))], chart.log_y, [], width < 420 ? 4 : 6);
  if (chart.x_names.length) return [makeNameScale(chart.x_names, Math.max(2, Math.floor(width / (LETTER * (2 + longest(chart.x_names)))))), y];
  const distinct = [...new Set(xs.filter((v): v is number => isNumber(v) && v > 0))].sort((a, b) => a - b);
  const marks = chart.log_x && distinct.length <= LOG_TICKS ? distinct : [];
  return [makeScale(xs, chart.log_x, marks, width < 420 ? 4 : 6), y];
}

const longest = (texts: string[]) => texts.reduce((a, t) => Math.max(a, t.length), 1);

/** Whether a logarithmic axis has points of 0 or less. */
export function hasHiddenPoints(chart: Chart): boolean {
  return chart.curves.some((c) => c.x.some((x, i) => {
    const y = c.y[i];
    return isNumber(x) && isNumber(y) && ((chart.log_x && x <= 0) || (chart.log_y && y <= 0));
  }));
}

interface Drawn {
  line: string;
  marks: string;
  hollow: string;
  bands: string[];
  whiskers: string[];
}

/** The paths of a curve. A missing value, or one that the axis cannot show, interrupts the line. */
export function drawCurve(curve: Curve, look: number, x: Scale, y: Scale, box: Box, marked = true): Drawn {
  const drawn: Drawn = { line: "", marks: "", hollow: "", bands: [], whiskers: [] };
  const step = curve.x.length <= MARKED_POINTS ? 1 : Math.ceil(curve.x.length / 12);
  let pen = "M";
  curve.x.forEach((a, i) => {
    const b = curve.y[i];
    if (!isNumber(a) || !isNumber(b)) {
      pen = "M";
      return;
    }
    const [px, py] = [box.x(x.at(a)), box.y(y.at(b))];
    if (!x.shows(a) || !y.shows(b)) {
      drawn.hollow += drawMark(look, px, py);
      pen = "M";
      return;
    }
    const next = i + 1 < curve.x.length && x.shows(curve.x[i + 1]) && y.shows(curve.y[i + 1]);
    const isAlone = pen === "M" && !next;
    drawn.line += `${pen}${px.toFixed(1)},${py.toFixed(1)}`;
    pen = "L";
    if ((marked && i % step === 0) || isAlone) drawn.marks += drawMark(look, px, py);
  });
  for (const [low, high] of [[curve.low, curve.high], [curve.inner_low, curve.inner_high]]) {
    if (low && high) drawBand(curve.x, low, high, x, y, box, drawn);
  }
  return drawn;
}

function drawBand(xs: Values, low: Values, high: Values, x: Scale, y: Scale, box: Box, drawn: Drawn): void {
  let run: [number, number, number][] = [];
  const end = () => {
    const at = (px: number, v: number) => `${px.toFixed(1)},${box.y(y.at(v)).toFixed(1)}`;
    if (run.length) {
      const path = `M${[...run.map(([px, a]) => at(px, a)), ...run.reverse().map(([px, , b]) => at(px, b))].join("L")}Z`;
      (run.length > 1 ? drawn.bands : drawn.whiskers).push(path);
    }
    run = [];
  };
  xs.forEach((a, i) => {
    if (x.shows(a) && isNumber(low[i]) && isNumber(high[i])) run.push([box.x(x.at(a)), low[i]!, high[i]!]);
    else end();
  });
  end();
}

interface Stop {
  x: number;
  rows: { curve: number; y: number; text: string }[];
}

function listStops(curves: Curve[]): Stop[] {
  const stops = new Map<number, Stop>();
  curves.forEach((c, k) => c.x.forEach((x, i) => {
    const y = c.y[i];
    if (!isNumber(x) || !isNumber(y)) return;
    if (!stops.has(x)) stops.set(x, { x, rows: [] });
    const [low, high] = [c.low?.[i], c.high?.[i]];
    const interval = isNumber(low) && isNumber(high) ? ` [${formatNumber(low, 3)}, ${formatNumber(high, 3)}]` : "";
    stops.get(x)!.rows.push({ curve: k, y, text: formatNumber(y) + interval });
  }));
  return [...stops.values()].sort((a, b) => a.x - b.x);
}

export function describeChart(chart: Chart): string {
  const names = chart.curves.map((c) => c.name).join(", ");
  return `${chart.title}: ${chart.y_label}${chart.x_label ? ` against ${chart.x_label}` : ""}. Curves: ${names}.`;
}

interface PlotProps {
  chart: Chart;
  looks?: number[];
  height?: number;
  small?: boolean; // without legend, marks and labels of axes: one of many
}

export function LinePlot({ chart, looks: given, height: tall, small }: PlotProps) {
  const [ref, width] = useWidth();
  const [hidden, setHidden] = useState<Set<number>>(new Set());
  const [near, setNear] = useState<number | null>(null);
  const looks = given ?? chart.curves.map((_, i) => i);
  const height = tall ?? (small ? 150 : width < 480 ? 280 : 340);
  const [x, y] = useMemo(() => makeAxes(chart, width), [chart, width]);
  const box = makeBox(width, height, y, chart);
  const drawn = useMemo(() => chart.curves.map((c, i) => drawCurve(c, looks[i], x, y, box, !small)), [chart, width, height]);
  const visible = useMemo(() => {
    const stops = listStops(chart.curves);
    return stops.map((s) => ({ ...s, rows: s.rows.filter((r) => !hidden.has(r.curve)) })).filter((s) => s.rows.length);
  }, [chart, hidden]);
  const stops = useStops(visible.length);
  const stop = stops.at === null ? null : visible[stops.at];
  const point = (event: PointerEvent) => {
    const edge = (event.currentTarget as Element).getBoundingClientRect();
    const at = ((event.clientX - edge.left) / edge.width) * width;
    let best = -1;
    visible.forEach((s, i) => {
      if (best < 0 || Math.abs(box.x(x.at(s.x)) - at) < Math.abs(box.x(x.at(visible[best].x)) - at)) best = i;
    });
    stops.setAt(best < 0 ? null : best);
  };
  const heading = stop && (chart.x_names[stop.x] ?? `${chart.x_label} ${formatNumber(stop.x)}`);
  const rows = stop ? [...stop.rows].sort((a, b) => b.y - a.y).map((r) => ({ look: looks[r.curve], name: chart.curves[r.curve].name, text: r.text })) : [];
  return (
    <div ref={ref} class="plot-box">
      {!small && chart.curves.length > 0 && <PlotLegend names={chart.curves.map((c) => c.name)} looks={looks} hidden={hidden} setHidden={setHidden} setNear={setNear} />}
      <Readable label={`${chart.title}: read the values with the arrow keys`} stops={stops} tip={stop && <Tip x={box.x(x.at(stop.x))} width={width} heading={heading!} rows={rows} />}>
        <svg class="picture" viewBox={`0 0 ${width} ${height}`} width={width} height={height} role="img" aria-label={describeChart(chart)} onPointerMove={point} onPointerLeave={stops.clear}>
          <YAxis box={box} scale={y} label={chart.y_label} />
          <XAxis box={box} scale={x} label={chart.x_label} />
          {isNumber(chart.split) && <line x1={box.x(x.at(chart.split))} x2={box.x(x.at(chart.split))} y1={box.y(1)} y2={box.y(0)} class="split" />}
          {drawn.map((d, i) => !hidden.has(i) && d.bands.length > 0 && (
            <g key={i} class={`bands ${colour(looks[i])} ${near !== null && near !== i ? "dim" : ""}`}>
              {d.bands.map((path, k) => <path key={k} d={path} class="band" />)}
            </g>
          ))}
          {drawn.map((d, i) => !hidden.has(i) && (
            <g key={i} class={`curve ${colour(looks[i])} ${near !== null && near !== i ? "dim" : ""}`}>
              {d.whiskers.map((path, k) => <path key={k} d={path} class="whisker" />)}
              {d.line && <path d={d.line} class={`stroke ${dash(looks[i])}`} />}
              {d.marks && <path d={d.marks} class="marks" />}
              {d.hollow && <path d={d.hollow} class="marks hollow" />}
            </g>
          ))}
          {stop && (
            <g class="pointer">
              <line x1={box.x(x.at(stop.x))} x2={box.x(x.at(stop.x))} y1={box.y(1)} y2={box.y(0)} class="cursor" />
              {stop.rows.map((r, i) => <circle key={i} cx={box.x(x.at(stop.x))} cy={box.y(y.at(r.y))} r={6} class={`spot ${colour(looks[r.curve])}`} />)}
            </g>
          )}
        </svg>
      </Readable>
    </div>
  );
}

/** A picture that the arrow keys read. */
export function Readable({ label, stops, tip, children }: {
  label: string;
  stops: ReturnType<typeof useStops>;
  tip: ComponentChildren;
  children: ComponentChildren;
}) {
  return (
    <div class="plot" role="group" tabIndex={0} aria-label={label} onKeyDown={stops.onKeyDown} onBlur={stops.clear}>
      {children}
      <div role="status" class="tips">{tip}</div>
    </div>
  );
}

/** All numbers of a chart, one row per x value. */
export function tabulateChart(chart: Chart): { header: string[]; rows: (string | number | null)[][] } {
  const places = [...new Set(chart.curves.flatMap((c) => c.x.filter(isNumber)))].sort((a, b) => a - b);
  const parts = chart.curves.flatMap((c) => {
    const lines: [string, Values][] = [[c.name, c.y]];
    if (c.low && c.high) lines.push([`${c.name}, low`, c.low], [`${c.name}, high`, c.high]);
    if (c.inner_low && c.inner_high) lines.push([`${c.name}, inner low`, c.inner_low], [`${c.name}, inner high`, c.inner_high]);
    return lines.map(([name, ys]) => ({ name, at: new Map(c.x.map((x, i) => [x, ys[i]])) }));
  });
  return {
    header: [chart.x_label || "x", ...parts.map((p) => p.name)],
    rows: places.map((x) => [chart.x_names[x] ?? x, ...parts.map((p) => p.at.get(x) ?? null)]),
  };
}
