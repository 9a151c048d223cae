/** A table that sorts by its headings and searches its texts. */
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { formatNumber, typeset } from "./numbers";
import type { Column } from "./page";

const SEARCHED_ROWS = 8; // from more rows on, there is a field to search
const LONG_CELL = 30; // letters; longer cells wrap and get more room

export type Order = { column: number; sign: 1 | -1 } | null;

/** Row numbers that contain the words, in order; rows without a number come last. */
export function arrangeRows(columns: Column[], order: Order, search: string): number[] {
  const words = search.toLowerCase().split(/\s+/).filter(Boolean);
  const count = columns[0]?.texts.length ?? 0;
  const rows = Array.from({ length: count }, (_, i) => i).filter((i) => {
    const text = columns.map((c) => c.texts[i]).join("\n").toLowerCase();
    return words.every((word) => text.includes(word));
  });
  if (!order) return rows;
  const { keys, texts } = columns[order.column];
  return rows.sort((a, b) => {
    if (!keys) return order.sign * texts[a].localeCompare(texts[b], "en", { numeric: true }) || a - b;
    const [x, y] = [keys[a], keys[b]];
    if (x === null || y === null) return Number(x === null) - Number(y === null) || a - b;
    return order.sign * (x - y) || a - b;
  });
}

/** After both directions, the first order again. */
export function nextOrder(order: Order, column: number, isNumber: boolean): Order {
  const first = isNumber ? -1 : 1;
  if (order?.column !== column) return { column, sign: first };
  return order.sign === first ? { column, sign: first === 1 ? -1 : 1 } : null;
}

/** Columns of a table from plain rows. */
export function makeColumns(header: string[], rows: unknown[][]): Column[] {
  return header.map((name, k) => {
    const values = rows.map((row) => row[k]);
    const isNumber = values.some((v) => typeof v === "number") && values.every((v) => v === null || typeof v === "number");
    return {
      name, values,
      texts: values.map((v) => (v === null || typeof v === "number" ? formatNumber(v as number | null) : String(v))),
      keys: isNumber ? (values as (number | null)[]) : null,
    };
  });
}

/** Header and rows of a CSV file, with every digit. */
export function listValues(columns: Column[]): { header: string[]; rows: unknown[][] } {
  const count = columns[0]?.texts.length ?? 0;
  return {
    header: columns.map((c) => c.name),
    rows: Array.from({ length: count }, (_, i) => columns.map((c) => (c.values ?? c.texts)[i])),
  };
}

export function DataTable({ columns, label }: { columns: Column[]; label: string }) {
  const [order, setOrder] = useState<Order>(null);
  const [search, setSearch] = useState("");
  const total = columns[0]?.texts.length ?? 0;
  const rows = useMemo(() => arrangeRows(columns, order, search), [columns, order, search]);
  const [box, scrolls] = useScrolls();
  if (!total) return <p class="hint">The table is empty.</p>;
  const kind = (c: Column, i: number) => (c.keys ? "n" : c.texts[i].length > LONG_CELL ? "long" : undefined);
  return (
    <>
      {total > SEARCHED_ROWS && (
        <div class="row tools">
          <label>search <input type="search" value={search} onInput={(e) => setSearch(e.currentTarget.value)} aria-label={`Search ${label}`} /></label>
          <span class="hint" role="status">{search ? `${rows.length} of ${total} rows` : `${total} rows`}</span>
        </div>
      )}
      <div ref={box} class="scroll" role="region" aria-label={`Table: ${label}`} tabIndex={scrolls ? 0 : undefined}>
        <table>
          <thead>
            <tr>
              {columns.map((c, k) => (
                <th key={k} scope="col" class={c.keys ? "n" : undefined} aria-sort={order?.column === k ? (order.sign > 0 ? "ascending" : "descending") : undefined}>
                  <button type="button" dir="auto" onClick={() => setOrder(nextOrder(order, k, c.keys !== null))}>{c.name || "name"}</button>
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {rows.map((i) => (
              <tr key={i}>
                {columns.map((c, k) => k === 0
                  ? <th key={k} scope="row" class={kind(c, i)}><bdi>{typeset(c.texts[i])}</bdi></th>
                  : <td key={k} class={kind(c, i)}><bdi>{typeset(c.texts[i])}</bdi></td>)}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </>
  );
}

/** Whether a box scrolls: only then it is a stop of the tab key. */
function useScrolls() {
  const ref = useRef<HTMLDivElement>(null);
  const [scrolls, setScrolls] = useState(false);
  useEffect(() => {
    const box = ref.current;
    if (!box) return;
    const observer = new ResizeObserver(() => setScrolls(box.scrollWidth > box.clientWidth || box.scrollHeight > box.clientHeight + 1));
    observer.observe(box);
    return () => observer.disconnect();
  }, []);
  return [ref, scrolls] as const;
}
