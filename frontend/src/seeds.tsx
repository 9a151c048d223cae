/** One dot per seed in rows, the mean of each row with its interval, and reference lines across them. */
import { useMemo } from "preact/hooks";
import { colour, drawMark } from "./looks";
import { formatNumber, isNumber, mean, MISSING } from "./numbers";
import type { DotsBlock, Group } from "./page";
import { useWidth } from "./panel";
import { fit, LETTER, Readable, Tip, useStops, XAxis, type Box } from "./plot";
import { makeScale, type Scale } from "./scale";

const [ROW, HIGH_ROW] = [34, 52]; // pixels of a group, and if there are few
const FEW_GROUPS = 4;
const TOP = 8;
const BOTTOM = 46;
const DASHES = 4; // .r0 .. .r3 in plots.css

export type Dots = Pick<DotsBlock, "title" | "y_label" | "groups" | "lines" | "log_y" | "by_seed">;

export function describeMean(group: Group): string {
  const present = group.values.filter(isNumber);
  const missing = group.values.length - present.length;
  const [low, high] = group.interval ?? [null, null];
  const interval = isNumber(low) && isNumber(high) ? ` [${formatNumber(low)}, ${formatNumber(high)}]` : "";
  const value = present.length ? formatNumber(mean(present)) : MISSING;
  return `mean ${value}${interval} of ${present.length}${missing ? ` (${missing} missing)` : ""}`;
}

function makeAxis(dots: Dots, width: number): Scale {
  const ends = dots.groups.flatMap((g) => g.interval ?? []).filter((v) => !dots.log_y || (isNumber(v) && v > 0));
  const values = dots.groups.flatMap((g) => g.values);
  return makeScale([...values, ...ends, ...dots.lines.map(([, v]) => v)], dots.log_y, [], width < 480 ? 4 : 7);
}

export function SeedPlot({ dots, looks }: { dots: Dots; looks: number[] }) {
  const [ref, width] = useWidth();
  const scale = useMemo(() => makeAxis(dots, width), [dots, width]);
  const stops = useStops(dots.groups.length);
  const longest = Math.max(...dots.groups.map((g) => [...g.name].length), 1);
  const left = Math.min(0.4 * width, 14 + LETTER * longest);
  const tall = dots.groups.length > FEW_GROUPS ? ROW : HIGH_ROW;
  const height = TOP + tall * dots.groups.length + BOTTOM;
  const box: Box = {
    width, height, left,
    x: (share) => left + share * (width - left - 14),
    y: (share) => height - BOTTOM - share * (height - TOP - BOTTOM),
  };
  const middle = (i: number) => TOP + (i + 0.5) * tall;
  const point = (event: PointerEvent) => {
    const edge = (event.currentTarget as Element).getBoundingClientRect();
    const row = Math.floor((((event.clientY - edge.top) / edge.height) * height - TOP) / tall);
    stops.setAt(row >= 0 && row < dots.groups.length ? row : null);
  };
  const chosen = stops.at === null ? null : dots.groups[stops.at];
  const tip = chosen && (
    <Tip x={left} width={width} heading={`${chosen.name}: ${describeMean(chosen)}`}
      rows={chosen.values.map((v, k) => ({ look: looks[stops.at!], name: `${k + 1}`, text: formatNumber(v) }))} />
  );
  const lines = dots.lines.filter((line): line is [string, number] => isNumber(line[1]));
  return (
    <div ref={ref} class="plot-box">
      {lines.length > 0 && (
        <ul class="legend" aria-label="Lines">
          {lines.map(([name, value], i) => (
            <li key={i} class="key">
              <svg class="swatch" width="28" height="14" viewBox="0 0 28 14" aria-hidden="true"><line x1="0" x2="28" y1="7" y2="7" class={`across r${i % DASHES}`} /></svg>
              <bdi>{name}</bdi> {formatNumber(value)}
            </li>
          ))}
        </ul>
      )}
      <Readable label={`${dots.title}: read the values with the arrow keys`} stops={stops} tip={tip}>
        <svg class="picture" viewBox={`0 0 ${width} ${height}`} width={width} height={height} role="img" onPointerMove={point} onPointerLeave={stops.clear}
          aria-label={`${dots.title}: ${dots.y_label}${dots.by_seed ? ", one dot per seed" : ""}. ${dots.groups.map((g) => `${g.name}: ${describeMean(g)}`).join("; ")}.`}>
          {scale.ticks.map((t) => <line key={t.at} x1={box.x(t.at)} x2={box.x(t.at)} y1={TOP} y2={box.y(0)} class="grid" />)}
          {stops.at !== null && <rect x={0} width={width} y={TOP + stops.at * tall} height={tall} class="span" />}
          <XAxis box={box} scale={scale} label={dots.y_label} />
          {lines.map(([name, value], i) => <line key={name} x1={box.x(scale.at(value))} x2={box.x(scale.at(value))} y1={TOP} y2={box.y(0)} class={`across r${i % DASHES}`} />)}
          {dots.groups.map((g, i) => <Row key={i} group={g} look={looks[i]} y={middle(i)} tall={tall} box={box} scale={scale} />)}
        </svg>
      </Readable>
    </div>
  );
}

/** The seeds of a group in order from top to bottom, so that the third dots of two groups belong together. */
function Row({ group, look, y, tall, box, scale }: { group: Group; look: number; y: number; tall: number; box: Box; scale: Scale }) {
  const present = group.values.filter(isNumber);
  const average = mean(present);
  const apart = Math.min(8, (tall - 14) / Math.max(1, group.values.length - 1));
  const marks = group.values.map((v, k) => (isNumber(v) ? drawMark(look, box.x(scale.at(v)), y + apart * (k - (group.values.length - 1) / 2)) : "")).join("");
  const [low, high] = group.interval ?? [null, null];
  return (
    <g class={`seeds ${colour(look)}`}>
      <text x={box.left - 8} y={y + 4} text-anchor="end" class="axis name">{fit(group.name, box.left - 10)}</text>
      {isNumber(low) && isNumber(high) && (
        <g class="interval">
          <line x1={box.x(scale.at(low))} x2={box.x(scale.at(high))} y1={y} y2={y} class="whisker" />
          {[low, high].map((end, k) => scale.shows(end) && <line key={k} x1={box.x(scale.at(end))} x2={box.x(scale.at(end))} y1={y - 5} y2={y + 5} class="whisker" />)}
        </g>
      )}
      {marks && <path d={marks} class="marks dot-marks" />}
      {average !== null && <line x1={box.x(scale.at(average))} x2={box.x(scale.at(average))} y1={y - 11} y2={y + 11} class="mean" />}
    </g>
  );
}
