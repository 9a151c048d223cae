/** Heat maps over steps and units, or over queries and keys, on a canvas. */
import { useLayoutEffect, useMemo, useRef } from "preact/hooks";
import { diverging, sequential, type Matrix } from "./arrays";
import { Cursor, LEFT, RIGHT, StepAxis, place, shorten, stepAt, type Frame } from "./chart";

const MAX_HEIGHT = 420;
const AXIS = 22;
const BLOCK = 32; // steps that are painted together, so that their values stay in the processor's cache
const MAX_PIXELS = 16_000_000; // of the picture behind the canvas; browsers refuse larger ones

/** Paint rows of a (steps, units) matrix into a picture of one pixel per value, once. */
function paint(matrix: Matrix, rows: number[], dark: boolean): HTMLCanvasElement {
  const steps = matrix.shape[0];
  const skip = Math.max(1, Math.ceil((steps * rows.length) / MAX_PIXELS));
  const width = Math.ceil(steps / skip);
  const canvas = document.createElement("canvas");
  canvas.width = Math.max(1, width);
  canvas.height = Math.max(1, rows.length);
  const context = canvas.getContext("2d")!;
  const image = context.createImageData(canvas.width, canvas.height);
  const isGate = matrix.low >= 0;
  const most = Math.max(Math.abs(matrix.low), Math.abs(matrix.high), 1e-12);
  const high = isGate ? (matrix.high <= 1 ? 1 : most) : most;
  const table = new Uint32Array(65536);
  const bytes = new Uint8Array(4);
  const word = new Uint32Array(bytes.buffer);
  for (let q = 0; q < 65536; q += 16) {
    const v = (matrix.low + q * matrix.scale) / high;
    const [r, g, b] = isGate ? sequential(v, dark) : diverging(v, dark);
    bytes.set([r, g, b, 255]);
    table.fill(word[0], q, q + 16);
  }
  const pixels = new Uint32Array(image.data.buffer);
  const units = matrix.shape[1];
  for (let start = 0; start < width; start += BLOCK) {
    const end = Math.min(width, start + BLOCK);
    for (let y = 0; y < rows.length; y++) {
      const unit = rows[y];
      for (let x = start; x < end; x++) pixels[y * canvas.width + x] = table[matrix.data[x * skip * units + unit]];
    }
  }
  context.putImageData(image, 0, 0);
  return canvas;
}

interface HeatProps {
  frame: Frame;
  matrix: Matrix;
  rows: number[];
  names?: (row: number) => string;
  selected: number | null;
  dark: boolean;
  label: string;
  onUnit: (unit: number) => void;
  onHover?: (unit: number, step: number) => void;
}

export function Heat({ frame, matrix, rows, names, selected, dark, label, onUnit, onHover }: HeatProps) {
  const ref = useRef<HTMLCanvasElement>(null);
  const rowHeight = Math.max(1, Math.min(14, Math.floor(MAX_HEIGHT / rows.length)));
  const height = Math.min(MAX_HEIGHT, Math.max(24, rowHeight * rows.length));
  const picture = useMemo(() => paint(matrix, rows, dark), [matrix, rows, dark]);
  const inner = Math.max(1, frame.width - LEFT - RIGHT);
  useLayoutEffect(() => {
    const canvas = ref.current!;
    const ratio = window.devicePixelRatio || 1;
    const [width, tall] = [Math.round(inner * ratio), Math.round(height * ratio)];
    if (canvas.width !== width || canvas.height !== tall) Object.assign(canvas, { width, height: tall }); // also clears it
    const context = canvas.getContext("2d")!;
    const shrink = picture.width / matrix.shape[0];
    const [from, count] = [frame.from * shrink, (frame.to - frame.from) * shrink];
    context.imageSmoothingEnabled = count > canvas.width || rows.length > canvas.height;
    context.drawImage(picture, from, 0, count, rows.length, 0, 0, canvas.width, canvas.height);
  }, [picture, frame.from, frame.to, inner, height]);
  const locate = (event: MouseEvent): [number, number] => {
    const box = (event.currentTarget as Element).getBoundingClientRect();
    const y = Math.floor(((event.clientY - box.top) / height) * rows.length);
    return [stepAt(frame, event.clientX - box.left), rows[Math.max(0, Math.min(rows.length - 1, y))]];
  };
  const move = (event: MouseEvent) => {
    const [step, unit] = locate(event);
    frame.onCursor(step);
    onHover?.(unit, step);
  };
  const at = selected === null ? -1 : rows.indexOf(selected);
  const size = height / rows.length;
  const every = Math.max(1, Math.ceil(14 / size));
  return (
    <div class="heat" style={{ width: frame.width, height: height + AXIS }}>
      <canvas ref={ref} style={{ left: LEFT, top: 0, width: inner, height }} role="img" aria-label={label} />
      <svg width={frame.width} height={height + AXIS} aria-hidden="true" onMouseMove={move} onClick={(e) => onUnit(locate(e)[1])}>
        {rows.map((unit, y) => y % every === 0 && (
          <text key={unit} x={LEFT - 6} y={(y + 0.5) * size + 4} text-anchor="end" class="axis">
            {names ? shorten(names(unit), 7) : unit}
          </text>
        ))}
        {at >= 0 && <rect x={LEFT} width={inner} y={at * size} height={Math.max(size, 2)} class="selected" />}
        <Cursor frame={frame} height={height} />
        <StepAxis frame={frame} y={height + 16} />
      </svg>
    </div>
  );
}

interface AttentionProps {
  frame: Frame;
  matrix: Matrix; // (heads, queries, keys)
  head: number; // -1 for the mean
  queries: string[];
  keys: string[];
  dark: boolean;
  label: string;
  onHover: (query: number, key: number) => void;
}

/** One head: queries down, keys across. */
export function AttentionMap({ frame, matrix, head, queries, keys, dark, label, onHover }: AttentionProps) {
  const ref = useRef<HTMLCanvasElement>(null);
  const [heads, nq, nk] = matrix.shape;
  const left = 84;
  const width = Math.min(frame.width - left - RIGHT, Math.max(180, nk * 26));
  const height = Math.min(520, Math.max(40, nq * Math.min(24, Math.max(1, 520 / nq))));
  useLayoutEffect(() => {
    const small = document.createElement("canvas");
    small.width = nk;
    small.height = nq;
    const context = small.getContext("2d")!;
    const image = context.createImageData(nk, nq);
    for (let i = 0; i < nq * nk; i++) {
      let v = 0;
      if (head >= 0) v = matrix.at(head * nq * nk + i);
      else for (let h = 0; h < heads; h++) v += matrix.at(h * nq * nk + i) / heads;
      image.data.set([...sequential(Math.sqrt(Math.max(0, v)), dark), 255], 4 * i);
    }
    context.putImageData(image, 0, 0);
    const canvas = ref.current!;
    const ratio = window.devicePixelRatio || 1;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    const target = canvas.getContext("2d")!;
    target.imageSmoothingEnabled = nk > canvas.width;
    target.drawImage(small, 0, 0, canvas.width, canvas.height);
  }, [matrix, head, dark, width, height]);
  const size = height / nq;
  const column = width / nk;
  const everyRow = Math.max(1, Math.ceil(14 / size));
  const everyColumn = Math.max(1, Math.ceil(46 / column));
  const hover = (event: MouseEvent) => {
    const box = (event.currentTarget as Element).getBoundingClientRect();
    const key = Math.floor((event.clientX - box.left - left) / column);
    const query = Math.floor((event.clientY - box.top) / size);
    if (key >= 0 && key < nk && query >= 0 && query < nq) onHover(query, key);
  };
  const cursor = frame.cursor;
  return (
    <div class="heat" style={{ width: left + width + RIGHT, height: height + AXIS }}>
      <canvas ref={ref} style={{ left, top: 0, width, height }} role="img" aria-label={label} />
      <svg width={left + width + RIGHT} height={height + AXIS} aria-hidden="true" onMouseMove={hover}>
        {queries.map((name, q) => q % everyRow === 0 && (
          <text key={q} x={left - 6} y={(q + 0.5) * size + 4} text-anchor="end" class="axis">{shorten(name)}</text>
        ))}
        {keys.map((name, k) => k % everyColumn === 0 && (
          <text key={k} x={left + (k + 0.5) * column} y={height + 16} text-anchor="middle" class="axis">{shorten(name, 7)}</text>
        ))}
        {cursor !== null && cursor < nk && (
          <rect x={left + cursor * column} y={0} width={Math.max(1, column)} height={height} class="selected" />
        )}
      </svg>
    </div>
  );
}

export { place };
