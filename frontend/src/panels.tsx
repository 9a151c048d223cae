/** The views of one input. */
import { useEffect, useMemo, useState } from "preact/hooks";
import { diverging, format, formatOutput, orderUnits, spread, toCsv, type Matrix } from "./arrays";
import { Chart, Legend, type Frame, type Series as ChartSeries } from "./chart";
import { AttentionMap, Heat } from "./heat";
import { Panel } from "./panel";
import { LinePlot } from "./plot";
import type { Source } from "./source";
import type { Clamp, Curve, Explanation, Match, Question, Row, RunInfo } from "./types";
import type { View } from "./view";

type Change = (part: Partial<View>) => void;

const SORTS: [string, string][] = [
  ["worst", "worst first"],
  ["best", "best first"],
  ["surprising", "wrong, but sure"],
  ["order", "as in the data"],
];

function sortRows(rows: Row[], how: string): Row[] {
  const loss = (r: Row) => r.loss ?? -1;
  if (how === "worst") return [...rows].sort((a, b) => loss(b) - loss(a));
  if (how === "best") return [...rows].sort((a, b) => loss(a) - loss(b));
  if (how === "surprising") return rows.filter((r) => r.prediction !== r.truth).sort((a, b) => (b.confidence ?? loss(b)) - (a.confidence ?? loss(a)));
  return rows;
}

export function Input({ source, info, view, change }: { source: Source; info: RunInfo; view: View; change: Change }) {
  const [rows, setRows] = useState<Row[] | null>(null);
  const [error, setError] = useState("");
  const [how, setHow] = useState("order");
  const [search, setSearch] = useState("");
  useEffect(() => {
    let current = true;
    setRows(null);
    setError("");
    source.rows(info.name).then(
      (value) => {
        if (!current) return;
        setRows(value);
        if (view.row === null && !view.input && value.length) change({ row: value[0].row });
      },
      (reason) => current && setError(String(reason.message ?? reason)),
    );
    return () => void (current = false);
  }, [info.name]);
  const sorted = useMemo(() => sortRows(rows ?? [], how).filter((r) => r.text.toLowerCase().includes(search.toLowerCase())), [rows, how, search]);
  const chosen = rows?.find((r) => r.row === view.row);
  const isText = Boolean(info.unit);
  const typed = view.row === null ? view.input : chosen?.text ?? "";
  return (
    <section class="card input" aria-label="Input">
      <label class="wide">
        {isText ? "Input: type or edit, the views follow" : "Input: choose a row below, or type a JSON list of numbers"}
        <textarea rows={2} dir="auto" value={isText || view.row === null ? typed : ""} placeholder={isText ? "" : chosen ? `row ${chosen.row}: ${chosen.text}` : ""}
          onInput={(e) => change({ input: e.currentTarget.value, row: null, output: null, step: null, cursor: null, span: null })} />
      </label>
      <details>
        <summary>{rows ? `${rows.length} held-out rows of ${info.data}` : error ? "Rows of the data" : "Reading the data…"}{chosen?.truth ? <> · true: <bdi>{chosen.truth}</bdi></> : ""}</summary>
        {error && <p class="hint">The rows cannot be listed: {error}. Typed inputs work.</p>}
        {rows && (
          <>
            <div class="row">
              <label>order <select value={how} onChange={(e) => setHow(e.currentTarget.value)}>
                {SORTS.map(([value, text]) => <option key={value} value={value}>{text}</option>)}
              </select></label>
              <label>search <input type="search" value={search} onInput={(e) => setSearch(e.currentTarget.value)} /></label>
            </div>
            <ul class="rows" tabIndex={0} aria-label="Held-out rows">
              {sorted.slice(0, 100).map((r) => (
                <li key={r.row}>
                  <button type="button" class={r.row === view.row ? "current" : ""} dir="auto"
                    onClick={() => change({ row: r.row, input: "", output: null, step: null, cursor: null, span: null })}>
                    {isText ? r.text : `row ${r.row}: ${r.text}`} <small>{r.truth && <>true <bdi>{r.truth}</bdi>, </>}predicted <bdi>{r.prediction}</bdi>{r.loss !== null && `, loss ${format(r.loss, 2)}`}</small>
                  </button>
                </li>
              ))}
            </ul>
          </>
        )}
      </details>
    </section>
  );
}

export function Notes({ notes }: { notes: string[] }) {
  return notes.length ? <ul class="notes">{notes.map((n) => <li key={n}>{n}</li>)}</ul> : null;
}

export function Findings({ shown, change, title }: { shown: Explanation; change: Change; title: string }) {
  const [first, ...others] = shown.findings;
  const go = (f: Explanation["findings"][0]) =>
    change({ cursor: f.step, ...(f.unit ? { layer: f.unit[0], unit: f.unit[1] } : {}) });
  return (
    <section class="card finding" aria-label={title}>
      <h2>{title}</h2>
      {first ? (
        <p class={first.confirmed ? "first" : "first withdrawn"}>
          <button type="button" class="plain" dir="auto" onClick={() => go(first)}>{first.text}</button>
          <small>{first.confirmed ? "✓ checked by " : "withdrawn: "}{first.check}</small>
        </p>
      ) : <p>Nothing stands out.</p>}
      {others.length > 0 && (
        <ul>
          {others.map((f) => (
            <li key={f.text} class={f.confirmed ? "" : "withdrawn"}>
              <button type="button" class="plain" dir="auto" onClick={() => go(f)}>{f.confirmed ? f.text : <s>{f.text}</s>}</button>
              <small>{f.confirmed ? "✓ " : "withdrawn: "}{f.check}</small>
            </li>
          ))}
        </ul>
      )}
    </section>
  );
}

export function Prediction({ shown, view, change, title }: { shown: Explanation; view: View | null; change: Change; title: string }) {
  const { prediction, target, before } = shown;
  const at = target.step ?? 0;
  const values = prediction.outputs.map((o) => o.values[at] ?? 0);
  const most = prediction.is_value ? Math.max(...values.map(Math.abs), 1e-9) : 1;
  const isSequence = prediction.steps.length > 0;
  return (
    <section class="card" aria-label={title}>
      <h2>{title}{prediction.text && <>: <b dir="auto">{prediction.text.length > 200 ? prediction.text.slice(0, 199) + "…" : prediction.text}</b></>}</h2>
      {before !== null && (
        <p class="moved" role="status">
          With the interventions, <bdi>{target.label}</bdi> moves from <b>{format(before)}</b> to <b>{format(prediction.value)}</b>.
        </p>
      )}
      {isSequence && view && (
        <label>output step <select value={String(target.step)} onChange={(e) => change({ step: Number(e.currentTarget.value), output: null })}>
          {prediction.steps.slice(0, 2000).map((s, i) => <option key={i} value={i}>{i}: {shown.kind === "tag" ? `${shown.steps[i] ?? s} → ${prediction.best[i]}` : shown.kind === "forecast" ? s : `${s} (${prediction.best[i]})`}</option>)}
        </select></label>
      )}
      <ul class="outputs">
        {prediction.outputs.map((o, i) => (
          <li key={o.index}>
            <button type="button" disabled={!view} aria-pressed={o.index === target.output} onClick={() => change({ output: o.index, step: target.step })} title="Explain this output">
              <bdi class="name">{o.label}</bdi>
              <span class="bar" aria-hidden="true"><span style={{ width: `${(100 * Math.abs(values[i])) / most}%` }} /></span>
              <span class="number">{formatOutput(values[i], prediction.is_value)}</span>
            </button>
          </li>
        ))}
      </ul>
      {prediction.others > 0 && <p class="help">and {prediction.others.toLocaleString("en")} smaller ones</p>}
    </section>
  );
}

/** The words of an input, with the contribution of each as colour, bar and number. */
const STRIP = 160; // words that are written out at once; the charts show more

export function Strip({ shown, view, change, from: start, to: end }: { shown: Explanation; view: View; change: Change; from: number; to: number }) {
  const middle = view.cursor !== null && view.cursor >= start && view.cursor < end && end - start > STRIP ? view.cursor - STRIP / 2 : start;
  const from = Math.max(start, Math.min(Math.floor(middle / 40) * 40, end - STRIP)); // moves in leaps, so that words stay in place
  const to = Math.min(end, from + STRIP);
  const values = useContributions(shown, view.method);
  const most = useMemo(() => values.reduce((a, v) => Math.max(a, Math.abs(v)), 1e-9), [values]);
  const unknown = useMemo(() => new Set(shown.unknown), [shown]);
  const press = (step: number, extend: boolean) => {
    const anchor = view.span?.[0] ?? view.cursor ?? step;
    change({ cursor: step, span: extend ? [Math.min(anchor, step), Math.max(anchor, step)] : view.span });
  };
  return (
    <section class="card" aria-label="Steps">
      <h2>Steps{to - from < shown.steps.length ? ` ${from} to ${to - 1}` : ""}</h2>
      <p class="help">Bars above the line speak for <bdi>{shown.target.label}</bdi>, bars below against it. Shift + click marks a span.</p>
      <div class="strip" dir="auto">
        {shown.steps.slice(from, to).map((word, i) => {
          const t = from + i;
          const share = values[t] / most;
          const marked = view.span && t >= view.span[0] && t <= view.span[1];
          return (
            <button type="button" key={i} class={`step${t === view.cursor ? " current" : ""}${marked ? " marked" : ""}${unknown.has(t) ? " unknown" : ""}`}
              onClick={(e) => press(t, e.shiftKey)} onMouseEnter={() => change({ cursor: t })}
              aria-label={`step ${t}, ${word}, contribution ${format(values[t])}${unknown.has(t) ? ", not in the vocabulary" : ""}`}>
              <span class="meter" aria-hidden="true"><span class={share < 0 ? "down" : "up"} style={{ height: `${50 * Math.abs(share)}%` }} /></span>
              <bdi>{word.trim() === "" ? "␣" : word}</bdi>
            </button>
          );
        })}
      </div>
    </section>
  );
}

function useContributions(shown: Explanation, method: string): number[] {
  return useMemo(() => {
    const { windows, occlusion, gradients } = shown.contributions;
    if (method === "gradients" && gradients && gradients.length === shown.steps.length) return gradients.map((v) => v ?? 0);
    return spread(windows, occlusion, shown.steps.length);
  }, [shown, method]);
}

interface Loaded {
  matrix: Matrix | null;
  error: string;
  name: string | null; // of the array; the one before until a new one is there
}

export function useMatrix(source: Source, shown: Explanation, name: string | null): Loaded {
  const [state, setState] = useState<Loaded & { of: unknown }>({ matrix: null, error: "", name: null, of: null });
  useEffect(() => {
    if (!name || !(name in shown.arrays)) {
      setState({ matrix: null, error: "", name, of: shown });
      return;
    }
    let current = true;
    source.array(shown, name).then(
      (matrix) => current && setState({ matrix, error: "", name, of: shown }),
      (error) => current && setState({ matrix: null, error: String(error.message ?? error), name, of: shown }),
    );
    return () => void (current = false);
  }, [shown, name]);
  return state.of === shown ? state : { matrix: null, error: "", name };
}

/** Features of a series, and the forecast that follows. */
export function Series({ source, shown, frame }: { source: Source; shown: Explanation; frame: Frame }) {
  const { matrix } = useMatrix(source, shown, "input");
  const [first, setFirst] = useState(0);
  const isForecast = shown.kind === "forecast";
  const names = shown.features.length ? shown.features : ["value"];
  const series: ChartSeries[] = useMemo(() => {
    if (!matrix) return [];
    return names.slice(first, first + 6).map((label, i) => ({
      label, xs: shown.steps.map((_, t) => t), ys: shown.steps.map((_, t) => matrix.get(t, first + i)),
    }));
  }, [matrix, first]);
  const horizon = shown.prediction.steps.map((_, i) => i);
  const line = shown.prediction.outputs.find((o) => o.index === shown.target.output);
  const future: Frame = { ...frame, from: 0, to: Math.max(1, horizon.length), labels: shown.prediction.steps, cursor: shown.target.step, span: null, onCursor: () => undefined };
  return (
    <>
      <Panel title="Input over time (scaled)" name="input" csv={() => toCsv(["step", ...names], shown.steps.map((_, t) => [t, ...names.map((_, d) => matrix?.get(t, d))]))}
        tools={names.length > 6 && <label>features <select value={first} onChange={(e) => setFirst(Number(e.currentTarget.value))}>
          {names.map((n, i) => i % 6 === 0 && <option key={i} value={i}>{n} …</option>)}</select></label>}>
        <Chart frame={frame} series={series} label="Input features over time" height={190} />
        <Legend series={series} cursor={frame.cursor} />
      </Panel>
      {isForecast && line && (
        <Panel title={`Forecast of ${line.label}`} name="forecast" csv={() => toCsv(["step", line.label], horizon.map((s) => [s + 1, line.values[s]]))}>
          <Chart frame={future} series={[{ label: line.label, xs: horizon, ys: line.values, strong: true }]} label={`Forecast of ${line.label}`} height={170} />
        </Panel>
      )}
    </>
  );
}

export function Growth({ shown, other, frame }: { shown: Explanation; other: Explanation | null; frame: Frame }) {
  const growth = shown.growth;
  if (!growth) {
    const { prediction, target } = shown;
    if (!prediction.steps.length || shown.kind === "forecast" || prediction.steps.length !== shown.steps.length) return null;
    const series = prediction.outputs.slice(0, 6).map((o) => ({ label: o.label, xs: shown.steps.map((_, t) => t), ys: o.values, strong: o.index === target.output }));
    return (
      <Panel title="Output at each step" name="outputs" csv={() => toCsv(["step", "token", ...series.map((s) => s.label)], shown.steps.map((w, t) => [t, w, ...series.map((s) => s.ys[t])]))}>
        <Chart frame={frame} series={series} low={prediction.is_value ? undefined : 0} high={prediction.is_value ? undefined : 1} label="Probabilities at each step" />
        <Legend series={series} cursor={frame.cursor} />
      </Panel>
    );
  }
  const lines = [...growth.lines].sort((a, b) => Number(b.index === shown.target.output) - Number(a.index === shown.target.output)).slice(0, 5);
  const series: ChartSeries[] = lines.map((l) => ({ label: l.label, xs: growth.steps, ys: l.values, strong: l.index === shown.target.output }));
  const rival = other?.growth?.lines.find((l) => l.label === shown.target.label);
  if (other && rival) series.push({ label: `${rival.label} by ${other.name}`, xs: other.growth!.steps, ys: rival.values });
  const isValue = shown.prediction.is_value;
  return (
    <Panel title="Prediction as the sequence grows" name="growth"
      csv={() => toCsv(["step", "token", ...series.map((s) => s.label)], growth.steps.map((t, i) => [t, shown.steps[t], ...series.map((s) => s.ys[i])]))}>
      <Chart frame={frame} series={series} low={isValue ? undefined : 0} high={isValue ? undefined : 1} label={`Prediction of ${shown.target.label} after each step`} />
      <Legend series={series} cursor={frame.cursor} />
    </Panel>
  );
}

export function Contributions({ shown, view, change, frame }: { shown: Explanation; view: View; change: Change; frame: Frame }) {
  const { occlusion, windows, gradients, gap, deletes } = shown.contributions;
  const values = useContributions(shown, view.method);
  const fits = gradients && gradients.length === shown.steps.length;
  const xs = useMemo(() => shown.steps.map((_, t) => t), [shown]);
  const help = view.method === "gradients" && fits
    ? `Integrated gradients from a zero input; their sum misses the change of the output by ${format(gap, 4)}.`
    : `The output minus the output ${deletes ? "without the step" : shown.features.length ? "with the step replaced by the average" : "with the step replaced by an unknown token"}.`;
  return (
    <Panel title="Contribution of each step" name="contributions" help={help}
      csv={() => toCsv(["step", "token", "occlusion", "gradients"], xs.map((t) => [t, shown.steps[t], spread(windows, occlusion, shown.steps.length)[t], fits ? gradients[t] : null]))}
      tools={fits && <label>method <select value={view.method} onChange={(e) => change({ method: e.currentTarget.value })}>
        <option value="occlusion">occlusion</option><option value="gradients">integrated gradients</option></select></label>}>
      <Chart frame={frame} series={[{ label: "contribution", xs, ys: values }]} bars label={`Contribution of each step to ${shown.target.label}`} height={130} />
    </Panel>
  );
}

const MEANINGS: Record<string, string> = {
  h: "the state",
  c: "the memory cell",
  effect: "what each unit's change does to the explained output: dL/dh times the change of h",
};

export function Memory({ source, shown, view, change, frame, dark }: { source: Source; shown: Explanation; view: View; change: Change; frame: Frame; dark: boolean }) {
  const layer = shown.layers.find((l) => l.name === view.layer) ?? shown.layers[0];
  const letter = layer?.letters.includes(view.letter) ? view.letter : layer?.letters[0];
  const loaded = useMatrix(source, shown, layer ? `${layer.name}/${letter}` : null);
  const drawn = layer && loaded.name?.startsWith(`${layer.name}/`) ? loaded.name.slice(layer.name.length + 1) : "";
  const { matrix, error } = drawn ? loaded : { matrix: null, error: "" };
  const [hover, setHover] = useState<[number, number] | null>(null);
  const units = matrix?.shape[1] ?? 0;
  const followed = view.unit !== null && view.unit < units ? view.unit : null;
  const xs = useMemo(() => Array.from({ length: matrix?.shape[0] ?? 0 }, (_, t) => t), [matrix]);
  const line = useMemo(() => (matrix && followed !== null ? xs.map((t) => matrix.get(t, followed)) : []), [matrix, followed]);
  const rows = useMemo(() => (layer ? orderUnits(view.order, units, layer.ranking, layer.groups) : []), [layer, units, view.order]);
  if (!layer) return null;
  const steps = matrix?.shape[0] ?? 0;
  const labels = steps === shown.steps.length ? frame.labels : Array.from({ length: steps }, (_, t) => `part ${t}`);
  const inner: Frame = steps === shown.steps.length ? frame : { ...frame, labels, from: 0, to: Math.max(1, steps), onCursor: () => undefined, cursor: null, span: null };
  const unit = followed;
  return (
    <Panel title="Memory" name={`${layer.name}-${drawn || letter}`}
      help={`${layer.cell}: ${MEANINGS[letter!] ?? `${letter} of the equations`}. Click a row to follow a unit.`}
      csv={() => matrix ? toCsv(["step", "token", ...xs.length ? rows.map((u) => `unit ${u}`) : []], xs.map((t) => [t, labels[t], ...rows.map((u) => matrix.get(t, u))])) : ""}
      tools={
        <>
          {shown.layers.length > 1 && <label>layer <select value={layer.name} onChange={(e) => change({ layer: e.currentTarget.value })}>
            {shown.layers.map((l) => <option key={l.name}>{l.name}</option>)}</select></label>}
          <span class="letters" role="group" aria-label="Values">
            {layer.letters.map((l) => <button type="button" key={l} aria-pressed={l === letter} onClick={() => change({ letter: l })}>{l}</button>)}
          </span>
          <label>rows <select value={view.order} onChange={(e) => change({ order: e.currentTarget.value })}>
            <option value="effect">{layer.letters.includes("effect") ? "by effect" : "by change"}</option>{layer.groups.length > 0 && <option value="group">by group (NMF)</option>}<option value="number">by number</option></select></label>
          <label>unit <input type="number" min={0} max={Math.max(0, units - 1)} value={unit ?? ""} placeholder="–"
            onInput={(e) => change({ unit: e.currentTarget.value === "" ? null : Math.max(0, Math.min(units - 1, Math.floor(Number(e.currentTarget.value)))) })} /></label>
        </>
      }>
      {error && <p class="hint">{error}</p>}
      {matrix && (
        <>
          <Heat frame={inner} matrix={matrix} rows={rows} selected={unit} dark={dark} label={`${drawn} of ${layer.name}: ${steps} steps, ${units} units, from ${format(matrix.low)} to ${format(matrix.high)}`}
            onUnit={(u) => change({ unit: u })} onHover={(u, t) => setHover([u, t])} />
          <p class="readout"><Scale matrix={matrix} dark={dark} /> {hover && hover[1] < steps && hover[0] < units ? `unit ${hover[0]}, step ${hover[1]}: ${format(matrix.get(hover[1], hover[0]))}${layer.groups.length ? `, group ${layer.groups[hover[0]] + 1}` : ""}` : ""}</p>
          {unit !== null && (
            <Chart frame={inner} series={[{ label: `${drawn} of unit ${unit}`, xs, ys: line, strong: true }]} height={120} label={`${drawn} of unit ${unit} over time`} />
          )}
        </>
      )}
      <details><summary>Equations of {layer.cell}</summary><pre>{layer.equations || "This cell documents no equations."}</pre></details>
    </Panel>
  );
}

function Scale({ matrix, dark }: { matrix: Matrix; dark: boolean }) {
  const most = Math.max(Math.abs(matrix.low), Math.abs(matrix.high));
  const colours = [-1, -0.5, 0, 0.5, 1].map((t) => `rgb(${diverging(t, dark).join(",")})`);
  if (matrix.low >= 0) return <span class="scale">0 to {matrix.high <= 1 ? 1 : format(matrix.high)}: pale to strong</span>;
  return (
    <span class="scale">
      −{format(most)} <span class="ramp" style={{ background: `linear-gradient(to right, ${colours.join(",")})` }} aria-hidden="true" /> {format(most)}
    </span>
  );
}

export function Attention({ source, shown, frame, dark }: { source: Source; shown: Explanation; frame: Frame; dark: boolean }) {
  const [name, setName] = useState("");
  const [head, setHead] = useState(-1);
  const [hover, setHover] = useState<[number, number] | null>(null);
  const info = shown.attention.find((a) => a.name === name) ?? shown.attention[shown.attention.length - 1];
  const loaded = useMatrix(source, shown, info ? `attention/${info.name}` : null);
  const { matrix, error } = info && loaded.name === `attention/${info.name}` ? loaded : { matrix: null, error: "" };
  if (!info) return null;
  const label = (count: number, isQuery: boolean) => {
    if (isQuery && (info.name === "alignment" || shown.kind === "translate") && count === shown.prediction.steps.length) return shown.prediction.steps;
    return count === shown.steps.length ? shown.steps : Array.from({ length: count }, (_, i) => String(i));
  };
  const [queries, keys] = [label(info.queries, true), label(info.keys, false)];
  const chosen = head < info.heads ? head : -1;
  const value = (q: number, k: number) => {
    if (!matrix) return 0;
    const at = (h: number) => matrix.at((h * info.queries + q) * info.keys + k);
    if (chosen >= 0) return at(chosen);
    let sum = 0;
    for (let h = 0; h < info.heads; h++) sum += at(h);
    return sum / info.heads;
  };
  return (
    <Panel title="Attention" name={`attention-${info.name}`} help="Each line is a query; its weights add up to 1. The marked column is the cursor."
      csv={() => toCsv(["query", ...keys], queries.map((w, q) => [w, ...keys.map((_, k) => value(q, k))]))}
      tools={
        <>
          {shown.attention.length > 1 && <label>module <select value={info.name} onChange={(e) => setName(e.currentTarget.value)}>{shown.attention.map((a) => <option key={a.name}>{a.name}</option>)}</select></label>}
          {info.heads > 1 && <label>head <select value={chosen} onChange={(e) => setHead(Number(e.currentTarget.value))}>
            <option value={-1}>mean of {info.heads}</option>{Array.from({ length: info.heads }, (_, h) => <option key={h} value={h}>{h}</option>)}</select></label>}
        </>
      }>
      {error && <p class="hint">{error}</p>}
      {matrix && <AttentionMap frame={frame} matrix={matrix} head={chosen} queries={queries} keys={keys} dark={dark} label={`Attention of ${info.name}, ${info.queries} queries by ${info.keys} keys`}
        onHover={(q, k) => { setHover([q, k]); if (k < shown.steps.length) frame.onCursor(k); }} />}
      <p class="readout">{hover && hover[0] < queries.length && hover[1] < keys.length ? <>from <bdi>{queries[hover[0]]}</bdi> to <bdi>{keys[hover[1]]}</bdi>: {format(value(...hover))}</> : " "}</p>
    </Panel>
  );
}

export function Flow({ shown, other, frame }: { shown: Explanation; other: Explanation | null; frame: Frame }) {
  const lines = (e: Explanation, suffix: string): ChartSeries[] =>
    e.layers.filter((l) => l.flow && l.flow.length === shown.steps.length).map((l) => ({ label: l.name + suffix, xs: l.flow!.map((_, t) => t), ys: l.flow! }));
  const series = useMemo(() => [...lines(shown, ""), ...(other ? lines(other, ` of ${other.name}`) : [])].slice(0, 6), [shown, other]);
  if (!series.length) return null;
  return (
    <Panel title="Gradient flow |dL/dh_t|" name="gradient-flow" help="How much the explained output depends on the state after each step; L is that output."
      csv={() => toCsv(["step", "token", ...series.map((s) => s.label)], shown.steps.map((w, t) => [t, w, ...series.map((s) => s.ys[t])]))}>
      <Chart frame={frame} series={series} logarithmic label="Norm of the gradient with respect to the state after each step" />
      <Legend series={series} cursor={frame.cursor} />
    </Panel>
  );
}

export function Intervene({ shown, view, change, live }: { shown: Explanation; view: View; change: Change; live: boolean }) {
  const [layer, setLayer] = useState("");
  const [letter, setLetter] = useState("");
  const [units, setUnits] = useState("");
  const [value, setValue] = useState("0");
  const [steps, setSteps] = useState("");
  const [error, setError] = useState("");
  const info = shown.layers.find((l) => l.name === layer) ?? shown.layers.find((l) => l.name === view.layer) ?? shown.layers[0];
  const letters = info?.letters.filter((l) => l !== "effect" && !l.startsWith("a(") && !(info.cell === "attn_rnn" && l === "o")) ?? [];
  const chosen = letters.includes(letter) ? letter : letters[0];
  const attends = shown.attention.length > 0 || shown.layers.some((l) => l.letters.some((name) => name.startsWith("a(")));
  const add = (clamp: Clamp) => change({ clamps: [...view.clamps, clamp], output: shown.target.output, step: shown.target.step });
  const submit = (event: Event) => {
    event.preventDefault();
    const numbers = units.trim() ? units.split(/[ ,]+/).filter(Boolean).map(Number) : [];
    const ends = steps.trim() ? steps.split(/[ ,\-–]+/).filter(Boolean).map(Number) : [];
    if (![...numbers, ...ends].every((n) => Number.isInteger(n) && n >= 0) || ends.length > 2 || !Number.isFinite(Number(value))) {
      setError("Units and steps are whole numbers such as 3, 17 and 4-9; the value is a number.");
      return;
    }
    setError("");
    add({ layer: info!.name, letter: chosen!, value: Number(value), units: numbers, steps: ends.length ? [ends[0], ends[ends.length - 1]] : null });
  };
  if (!live || (!info && !shown.attention.length)) return null;
  return (
    <section class="card" aria-label="Intervene">
      <h2>Intervene</h2>
      <p class="help">Hold a gate or the state at a value and see the prediction move.</p>
      {info && (
        <form onSubmit={submit} class="row">
          {shown.layers.length > 1 && <label>layer <select value={info.name} onChange={(e) => setLayer(e.currentTarget.value)}>{shown.layers.map((l) => <option key={l.name}>{l.name}</option>)}</select></label>}
          <label>letter <select value={chosen} onChange={(e) => setLetter(e.currentTarget.value)}>{letters.map((l) => <option key={l}>{l}</option>)}</select></label>
          <label>units <input size={8} value={units} placeholder="all" onInput={(e) => setUnits(e.currentTarget.value)} /></label>
          <label>value <input size={5} value={value} onInput={(e) => setValue(e.currentTarget.value)} /></label>
          <label>steps <input size={7} value={steps} placeholder="all" onInput={(e) => setSteps(e.currentTarget.value)} /></label>
          <button type="submit">hold</button>
        </form>
      )}
      <div class="row">
        {info && view.cursor !== null && <button type="button" onClick={() => add({ layer: info.name, letter: "h", value: 0, units: [], steps: [view.cursor!, view.cursor!] })}>forget the state at step {view.cursor}</button>}
        {info && view.unit !== null && <button type="button" onClick={() => add({ layer: info.name, letter: "h", value: 0, units: [view.unit!], steps: null })}>silence unit {view.unit}</button>}
        {attends && <label><input type="checkbox" checked={view.uniform} onChange={(e) => change({ uniform: e.currentTarget.checked, output: shown.target.output, step: shown.target.step })} /> uniform attention</label>}
      </div>
      {error && <p class="problem" role="alert">{error}</p>}
      {view.clamps.length > 0 && (
        <ul class="clamps">
          {view.clamps.map((c, i) => (
            <li key={i}>
              {c.letter} of {c.layer} = {c.value}, {c.units.length ? `units ${c.units.join(", ")}` : "all units"}, {c.steps ? `steps ${c.steps[0]} to ${c.steps[1]}` : "all steps"}
              <button type="button" aria-label={`Remove intervention ${i + 1}`} onClick={() => change({ clamps: view.clamps.filter((_, j) => j !== i) })}>remove</button>
            </li>
          ))}
        </ul>
      )}
    </section>
  );
}

export function Similar({ source, shown, view, change, question }: { source: Source; shown: Explanation; view: View; change: Change; question: Question | null }) {
  const [state, setState] = useState<{ units: number[]; matches: Match[]; error: string; busy: boolean } | null>(null);
  useEffect(() => setState(null), [shown]);
  if (!source.canSearch || !shown.layers.length && !shown.attention.length) return null;
  const find = () => {
    setState({ units: [], matches: [], error: "", busy: true });
    source.similar(question!, view.span!, []).then(
      (answer) => setState({ ...answer, error: "", busy: false }),
      (error) => setState({ units: [], matches: [], error: String(error.message ?? error), busy: false }),
    );
  };
  const span = view.span;
  return (
    <section class="card" aria-label="Find similar">
      <h2>Find similar</h2>
      <p class="help">Mark a span (Shift + arrow keys, or Shift + click on the steps): other rows of the data where the same units are active.</p>
      <div class="row">
        {!span && view.cursor !== null && <button type="button" onClick={() => change({ span: [view.cursor!, view.cursor!] })}>mark step {view.cursor}</button>}
        <button type="button" disabled={!span || !question} onClick={find}>{span ? `find moments like steps ${span[0]} to ${span[1]}: ${shown.steps.slice(span[0], span[1] + 1).slice(0, 8).join(" ")}` : "no span is marked"}</button>
      </div>
      {state?.busy && <p role="status">Searching…</p>}
      {state?.error && <p class="hint" role="alert">{state.error}</p>}
      {state && state.matches.length > 0 && (
        <>
          <p class="help">{state.units.length} active units: {state.units.slice(0, 20).join(", ")}{state.units.length > 20 ? " …" : ""}</p>
          <ol class="matches">
            {state.matches.map((m) => (
              <li key={m.row} dir="auto">
                <button type="button" class="plain" onClick={() => change({ row: m.row, input: "", cursor: m.start, span: [m.start, m.end], output: null, step: null })}>
                  {m.steps.length ? (
                    <>{m.steps.slice(Math.max(0, m.start - 8), m.start).join(" ")} <mark>{m.steps.slice(m.start, m.end + 1).join(" ")}</mark> {m.steps.slice(m.end + 1, m.end + 9).join(" ")}</>
                  ) : `row ${m.row}, steps ${m.start} to ${m.end}`}
                </button>
                <small>{Math.round(100 * m.share)} % of the units{m.truth && <>, true <bdi>{m.truth}</bdi></>}</small>
              </li>
            ))}
          </ol>
        </>
      )}
    </section>
  );
}

const REFRESH = 3000; // milliseconds between looks at a training that is running

export function Curves({ source, run }: { source: Source; run: string }) {
  const [state, setState] = useState<{ lines: Curve[]; finished: string | null } | null>(null);
  const [open, setOpen] = useState(false);
  useEffect(() => {
    if (!open) return;
    let timer = 0;
    let current = true;
    const load = () => source.curves(run).then(
      (value) => {
        if (!current) return;
        setState(value);
        if (!value.finished && source.canSearch) timer = window.setTimeout(load, REFRESH);
      },
      () => undefined,
    );
    load();
    return () => {
      current = false;
      clearTimeout(timer);
    };
  }, [run, open]);
  const lines = state?.lines ?? [];
  return (
    <details class="card" onToggle={(e) => setOpen(e.currentTarget.open)}>
      <summary><h2>Learning curves</h2>{state && !state.finished && lines.length > 0 ? " (training)" : ""}</summary>
      {state && !lines.length && <p class="hint">This run has no learning curves.</p>}
      <div class="gallery">
        {lines.map((l) => <CurveChart key={l.name + l.split} curve={l} />)}
      </div>
    </details>
  );
}

function CurveChart({ curve }: { curve: Curve }) {
  const title = `${curve.name} (${curve.split})`;
  const chart = useMemo(() => ({
    title, x_label: "steps", y_label: "", log_x: false, log_y: false, x_names: [], split: null,
    curves: [{ name: title, x: curve.steps, y: curve.values }],
  }), [curve]);
  return (
    <figure>
      <figcaption>{title}</figcaption>
      <LinePlot chart={chart} small />
    </figure>
  );
}
