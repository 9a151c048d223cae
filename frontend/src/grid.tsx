/** A matrix as shades with its numbers: a confusion matrix, or where a decoder looks. */
import { useState } from "preact/hooks";
import { sequential } from "./arrays";
import { formatNumber, formatPercent, isNumber } from "./numbers";
import type { GridBlock, Values } from "./page";
import { useWidth } from "./panel";
import { fit, LETTER } from "./plot";

const MAX_CELL = 64;
const MIN_CELL = 9;
const NUMBER_CELL = 30; // pixels from which on a cell has room for its number
const FAINT = 0.005; // a share of the range below which a fraction is not worth its digits
const LIGHT_TEXT = { light: 0.74, dark: 0.51 }; // shades above which the letters change between dark and light

export type GridData = Pick<GridBlock, "title" | "rows" | "columns" | "values" | "by_row">;

/** Each value as a share of its row; a row without any stays 0. */
export function normaliseRows(values: Values[]): Values[] {
  return values.map((row) => {
    const sum = row.reduce<number>((a, v) => a + (v ?? 0), 0);
    return row.map((v) => (v === null ? null : sum > 0 ? v / sum : 0));
  });
}

/** A colour for both schemes; the browser resolves it, also for a saved picture and on paper. */
function shade(share: number): { fill: string } {
  return { fill: `light-dark(rgb(${sequential(share, false)}), rgb(${sequential(share, true)}))` };
}

function ink(share: number): { fill: string } {
  return { fill: `light-dark(${share > LIGHT_TEXT.light ? "#fff" : "#000"}, ${share > LIGHT_TEXT.dark ? "#000" : "#fff"})` };
}

export function GridPlot({ grid }: { grid: GridData }) {
  const [ref, width] = useWidth();
  const [counts, setCounts] = useState(false);
  const [at, setAt] = useState<[number, number] | null>(null);
  const shares = grid.by_row ? normaliseRows(grid.values) : null;
  const numbers = grid.values.flat().filter(isNumber);
  const [low, high] = [Math.min(0, ...numbers), Math.max(...numbers)];
  const strength = (i: number, j: number): number | null => {
    if (shares) return shares[i][j];
    const v = grid.values[i][j];
    return isNumber(v) ? (high > low ? (v - low) / (high - low) : 0) : null;
  };
  const write = (i: number, j: number): string => {
    const v = grid.values[i][j];
    if (!isNumber(v)) return "–";
    if (shares && !counts) return formatPercent(shares[i][j]!);
    return !Number.isInteger(v) && strength(i, j)! < FAINT ? "" : formatNumber(v, 3);
  };
  const longest = (names: string[]) => Math.max(...names.map((n) => [...n].length), 1);
  const left = Math.min(0.34 * width, 14 + LETTER * longest(grid.rows));
  const cell = Math.max(MIN_CELL, Math.min(MAX_CELL, (width - left - 8) / grid.columns.length));
  const tall = Math.min(cell, 40);
  const isTurned = LETTER * longest(grid.columns) + 6 > cell;
  const top = isTurned ? Math.min(130, 14 + LETTER * longest(grid.columns)) : 24;
  const size = { width: Math.max(width, left + cell * grid.columns.length + 8), height: top + tall * grid.rows.length + 8 };
  const hasNumbers = cell >= NUMBER_CELL && tall >= 18;
  const say = ([i, j]: [number, number]) => {
    const count = formatNumber(grid.values[i][j], 3);
    const names = `${grid.rows[i]}, ${grid.columns[j]}`;
    return shares ? `true ${grid.rows[i]}, predicted ${grid.columns[j]}: ${count}, ${formatPercent(shares[i][j] ?? 0)} % of its row` : `${names}: ${count}`;
  };
  const point = (event: PointerEvent) => {
    const edge = (event.currentTarget as Element).getBoundingClientRect();
    const scale = size.width / edge.width;
    const j = Math.floor(((event.clientX - edge.left) * scale - left) / cell);
    const i = Math.floor(((event.clientY - edge.top) * scale - top) / tall);
    setAt(i >= 0 && j >= 0 && i < grid.rows.length && j < grid.columns.length ? [i, j] : null);
  };
  const key = (event: KeyboardEvent) => {
    const moves: Record<string, [number, number]> = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] };
    if (event.key === "Escape") setAt(null);
    if (!(event.key in moves)) return;
    event.preventDefault();
    const [i, j] = at ?? [0, 0];
    const move = at ? moves[event.key] : [0, 0];
    setAt([Math.max(0, Math.min(grid.rows.length - 1, i + move[0])), Math.max(0, Math.min(grid.columns.length - 1, j + move[1]))]);
  };
  return (
    <div ref={ref} class="plot-box">
      {shares && (
        <div class="letters choice" role="group" aria-label="Numbers">
          <button type="button" aria-pressed={!counts} onClick={() => setCounts(false)}>percent of the row</button>
          <button type="button" aria-pressed={counts} onClick={() => setCounts(true)}>counts</button>
        </div>
      )}
      <div class="plot wide-picture" role="group" tabIndex={0} aria-label={`${grid.title}: read the values with the arrow keys`} onKeyDown={key} onBlur={() => setAt(null)}>
        <svg class="picture shades" viewBox={`0 0 ${size.width} ${size.height}`} width={size.width} height={size.height} role="img" aria-label={describeGrid(grid)} onPointerMove={point} onPointerLeave={() => setAt(null)}>
          {grid.columns.map((name, j) => {
            const x = left + (j + 0.5) * cell;
            return isTurned
              ? <text key={j} x={x + 4} y={top - 6} transform={`rotate(-90 ${x + 4} ${top - 6})`} class="axis name">{fit(name, top - 8)}</text>
              : <text key={j} x={x} y={top - 8} text-anchor="middle" class="axis name">{name}</text>;
          })}
          {grid.rows.map((name, i) => (
            <g key={i}>
              <text x={left - 8} y={top + (i + 0.5) * tall + 4} text-anchor="end" class="axis name">{tall >= 11 || i % 2 === 0 ? fit(name, left - 10) : ""}</text>
              {grid.columns.map((_, j) => {
                const s = strength(i, j);
                return <rect key={j} class="cell" x={left + j * cell} y={top + i * tall} width={cell} height={tall} style={shade(s ?? 0)} />;
              })}
              {hasNumbers && grid.columns.map((_, j) => (
                <text key={j} x={left + (j + 0.5) * cell} y={top + (i + 0.5) * tall + 4} text-anchor="middle" class="axis number" style={ink(strength(i, j) ?? 0)}>{write(i, j)}</text>
              ))}
            </g>
          ))}
          {at && <rect x={left + at[1] * cell} y={top + at[0] * tall} width={cell} height={tall} class="selected" />}
        </svg>
      </div>
      <p class="readout" role="status">{at ? say(at) : ""}</p>
    </div>
  );
}

const LEVELS = 12; // shades of a small picture
const SMALL_HEIGHT = 150;
const SMALL_CELL = 16;

/** All cells of one shade as one path, so that a page of pictures stays light. */
export function paintLevels(grid: GridData, width: number, height: number): { share: number; d: string }[] {
  const numbers = grid.values.flat().filter(isNumber);
  const [low, high] = [Math.min(...numbers), Math.max(...numbers)];
  const paths = new Map<number, string>();
  const round = (v: number) => Math.round(v * 100) / 100;
  grid.values.forEach((line, i) => line.forEach((v, j) => {
    if (!isNumber(v)) return;
    const level = high > low ? Math.round(((v - low) / (high - low)) * LEVELS) : 0;
    paths.set(level, `${paths.get(level) ?? ""}M${round(j * width)},${round(i * height)}h${round(width)}v${round(height)}h${-round(width)}z`);
  }));
  return [...paths].sort(([a], [b]) => a - b).map(([level, d]) => ({ share: level / LEVELS, d }));
}

/** A matrix as shades alone: one of many. */
export function Shades({ grid }: { grid: GridData }) {
  const [ref, inner] = useWidth();
  const width = Math.min(SMALL_CELL, inner / grid.columns.length);
  const height = Math.min(SMALL_CELL, SMALL_HEIGHT / grid.rows.length);
  const size = [width * grid.columns.length, height * grid.rows.length];
  return (
    <div ref={ref} class="plot-box">
      <svg class="picture" viewBox={`0 0 ${size[0]} ${size[1]}`} width={size[0]} height={size[1]} role="img" aria-label={describeGrid(grid)}>
        {paintLevels(grid, width, height).map((p) => <path key={p.share} d={p.d} style={shade(p.share)} shape-rendering="crispEdges" />)}
      </svg>
    </div>
  );
}

/** The matrix in words: the diagonal of a confusion matrix, or its size and range. */
export function describeGrid(grid: GridData): string {
  const numbers = grid.values.flat().filter(isNumber);
  if (!grid.by_row) return `${grid.title}: ${grid.rows.length} rows, ${grid.columns.length} columns, from ${formatNumber(Math.min(...numbers))} to ${formatNumber(Math.max(...numbers))}.`;
  const shares = normaliseRows(grid.values);
  return `${grid.title}. Right: ${grid.rows.map((name, i) => `${name} ${formatPercent(shares[i][i] ?? 0)} %`).join(", ")}.`;
}
