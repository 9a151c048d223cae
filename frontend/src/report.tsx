/** The report of a comparison or a study: the answer first, then tables and pictures. */
import type { ComponentChildren } from "preact";
import { useEffect, useMemo, useState } from "preact/hooks";
import { toCsv } from "./arrays";
import { GridPlot, Shades } from "./grid";
import { chooseLooks } from "./looks";
import { isNumber, typeset } from "./numbers";
import type { Page, PageBlock, Picture } from "./page";
import { CopyButton, Panel } from "./panel";
import { hasHiddenPoints, LinePlot, Swatch, tabulateChart } from "./plot";
import { SeedPlot } from "./seeds";
import { DataTable, listValues, makeColumns } from "./table";

const WIDE_COLUMNS = 5; // a table with more columns takes the whole width
const WIDE_TEXT = 40; // letters of a cell of such a table
const WIDE_GRID = 12;
const LONG_FACT = 60; // letters
const FACTS = "how-this-was-made";
const SEEDS = "Each dot is one seed, in the same order in every row; the upright bar is the mean.";
const INTERVALS = "The line through it is the mean's 95% interval.";
const INTERVAL_OF_DOT = "The line through it is its 95% interval.";
const BELOW = "Hollow marks on the edge are values of 0 or less, which a logarithmic axis cannot show.";

/** A sentence; text between `backticks` becomes code. */
export function Prose({ text }: { text: string }) {
  const parts = text.split(/`([^`\n]+)`/);
  return <>{parts.map((part, i) => (i % 2 ? <code key={i}>{part}</code> : typeset(part)))}</>;
}

function Note({ texts }: { texts: string[] }) {
  const text = texts.filter(Boolean).join(" ");
  return text ? <p class="note"><Prose text={text} /></p> : null;
}

/** The numbers behind a picture, made when they are asked for. */
function Numbers({ title, table }: { title: string; table: () => { header: string[]; rows: unknown[][] } }) {
  const [open, setOpen] = useState(false);
  return (
    <details onToggle={(e) => setOpen(e.currentTarget.open)}>
      <summary>The numbers</summary>
      {open && <Loaded title={title} table={table} />}
    </details>
  );
}

function Loaded({ title, table }: { title: string; table: () => { header: string[]; rows: unknown[][] } }) {
  const columns = useMemo(() => {
    const { header, rows } = table();
    return makeColumns(header, rows);
  }, []);
  return <DataTable columns={columns} label={`${title}, the numbers`} />;
}

type Looks = Map<PageBlock, number[]>;

/** A name looks the same in all pictures of the page. */
function assignLooks(blocks: PageBlock[]): Looks {
  const before = new Map<string, number>();
  const looks: Looks = new Map();
  for (const block of blocks) {
    if (block.kind === "chart") looks.set(block, chooseLooks(block.curves.map((c) => c.name), before));
    if (block.kind === "dots") looks.set(block, chooseLooks(block.groups.map((g) => g.name), before));
    if (block.kind === "gallery") looks.set(block, chooseLooks(listNames(block.pictures), before));
  }
  return looks;
}

function listNames(pictures: Picture[]): string[] {
  return [...new Set(pictures.flatMap((p) => (p.kind === "chart" ? p.curves.map((c) => c.name) : [])))];
}

/** The values of small pictures: title, curve or row, place, value. */
function listPicture(picture: Picture): unknown[][] {
  if (picture.kind === "grid") return picture.rows.flatMap((row, i) => picture.columns.map((column, j) => [picture.title, row, column, picture.values[i][j]]));
  return picture.curves.flatMap((c) => c.x.map((x, i) => [picture.title, c.name, isNumber(x) ? (picture.x_names[x] ?? x) : null, c.y[i]]));
}

function isWide(block: PageBlock): boolean {
  if (block.kind === "table") return block.columns.length > WIDE_COLUMNS || block.columns.some((c) => c.texts.some((t) => t.length > WIDE_TEXT));
  if (block.kind === "grid") return block.columns.length > WIDE_GRID;
  return block.kind === "gallery";
}

/** Wide blocks alone, others side by side where the page has room. */
export function groupBlocks(blocks: PageBlock[]): PageBlock[][] {
  const groups: PageBlock[][] = [];
  let open = false;
  for (const block of blocks) {
    if (open && !isWide(block)) groups[groups.length - 1].push(block);
    else groups.push([block]);
    open = !isWide(block);
  }
  return groups;
}

function Part({ block, looks }: { block: PageBlock; looks: number[] }) {
  const title = block.title || "Untitled";
  const frame = { id: block.id, title };
  switch (block.kind) {
    case "words":
      return <Panel {...frame}><div class="words">{block.paragraphs.map((text, i) => <p key={i}><Prose text={text} /></p>)}</div></Panel>;
    case "table": {
      const csv = () => toCsv(...asPair(listValues(block.columns)));
      return <Panel {...frame} name={block.id} csv={block.columns.length ? csv : undefined} pictures={false}><DataTable columns={block.columns} label={title} /><Note texts={[block.note]} /></Panel>;
    }
    case "chart": {
      if (!block.curves.length) return <Panel {...frame}><p class="hint">The chart has no curves.</p></Panel>;
      const table = () => tabulateChart(block);
      return (
        <Panel {...frame} name={block.id} csv={() => toCsv(...asPair(table()))} below={<><Note texts={[block.note, hasHiddenPoints(block) ? BELOW : ""]} /><Numbers title={title} table={table} /></>}>
          <LinePlot chart={block} looks={looks} />
        </Panel>
      );
    }
    case "dots": {
      if (!block.groups.length) return <Panel {...frame}><p class="hint">There are no groups to show.</p></Panel>;
      const table = () => ({
        header: ["group", block.by_seed ? "seed" : "dot", "value", "low", "high"],
        rows: [
          ...block.groups.flatMap((g) => g.values.map((v, k) => [g.name, k + 1, v, g.interval?.[0] ?? null, g.interval?.[1] ?? null])),
          ...block.lines.map(([name, v]) => [name, null, v, null, null]),
        ],
      });
      const hasIntervals = block.groups.some((g) => g.interval?.every(isNumber));
      return (
        <Panel {...frame} name={block.id} csv={() => toCsv(...asPair(table()))} below={<><Note texts={[block.note, block.by_seed ? SEEDS : "", hasIntervals ? (block.by_seed ? INTERVALS : INTERVAL_OF_DOT) : ""]} /><Numbers title={title} table={table} /></>}>
          <SeedPlot dots={block} looks={looks} />
        </Panel>
      );
    }
    case "grid": {
      if (!block.values.flat().some(isNumber)) return <Panel {...frame}><p class="hint">The grid is empty.</p></Panel>;
      const table = () => ({ header: ["", ...block.columns], rows: block.rows.map((name, i) => [name, ...block.values[i]]) });
      return (
        <Panel {...frame} name={block.id} csv={() => toCsv(...asPair(table()))} below={<><Note texts={[block.note]} /><Numbers title={title} table={table} /></>}>
          <GridPlot grid={block} />
        </Panel>
      );
    }
    case "gallery": {
      const names = listNames(block.pictures);
      const look = (name: string) => looks[names.indexOf(name)];
      const table = () => ({ header: ["picture", names.length ? "curve" : "row", names.length ? "x" : "column", "value"], rows: block.pictures.flatMap(listPicture) });
      return (
        <Panel {...frame} name={block.id} csv={() => toCsv(...asPair(table()))} below={<Note texts={[block.note]} />}>
          {names.length > 0 && <ul class="legend" aria-label="Curves">{names.map((name) => <li key={name} class="key"><Swatch look={look(name)} /><bdi>{name}</bdi></li>)}</ul>}
          <div class="gallery">
            {block.pictures.map((picture, i) => (
              <figure key={i}>
                <figcaption dir="auto">{picture.title}</figcaption>
                {picture.kind === "grid" ? <Shades grid={picture} /> : <LinePlot chart={picture} looks={picture.curves.map((c) => look(c.name))} small />}
              </figure>
            ))}
          </div>
        </Panel>
      );
    }
  }
}

const asPair = ({ header, rows }: { header: string[]; rows: unknown[][] }): [string[], unknown[][]] => [header, rows];

/** The colours of the system, or the others. */
function SchemeButton() {
  const query = useMemo(() => matchMedia("(prefers-color-scheme: dark)"), []);
  const [dark, setDark] = useState(query.matches);
  useEffect(() => {
    const change = () => !document.documentElement.dataset.scheme && setDark(query.matches);
    query.addEventListener("change", change);
    return () => query.removeEventListener("change", change);
  }, [query]);
  const flip = () => {
    document.documentElement.dataset.scheme = dark ? "light" : "dark";
    setDark(!dark);
  };
  return <button type="button" id="scheme" aria-label={dark ? "Light colours" : "Dark colours"} onClick={flip}>{dark ? "Light" : "Dark"}</button>;
}

function Facts({ page }: { page: Page }) {
  return (
    <section class="card" id={FACTS} aria-label="How this was made">
      <h2>How this was made</h2>
      {page.command && <div class="run"><pre tabIndex={0}><code>{page.command}</code></pre><CopyButton text={page.command} label="copy" title="Copy the command" /></div>}
      {page.facts.map(([name, pairs]) => (
        <div class="fact" key={name}>
          <h3>{name}</h3>
          <dl>{pairs.map(([key, text], i) => <div key={i} class={text.length > LONG_FACT ? "whole" : undefined}>{key ? <dt>{key}</dt> : <dt class="spoken">{name}</dt>}<dd><Prose text={text} /></dd></div>)}</dl>
        </div>
      ))}
      {!page.command && !page.facts.length && <p class="hint">No details were recorded.</p>}
    </section>
  );
}

function Contents({ page }: { page: Page }): ComponentChildren {
  const links = [...page.blocks.map((b) => [b.id, b.title || "Untitled"]), [FACTS, "How this was made"]];
  if (links.length < 4) return null;
  return <nav aria-label="On this page"><ol>{links.map(([id, title]) => <li key={id}><a href={`#${id}`}>{title}</a></li>)}</ol></nav>;
}

export function Report({ page }: { page: Page }) {
  const looks = useMemo(() => assignLooks(page.blocks), [page]);
  useEffect(() => {
    const id = decodeURIComponent(location.hash.slice(1));
    if (id) document.getElementById(id)?.scrollIntoView();
  }, []);
  return (
    <>
      <a class="skip" href="#verdict">To the verdict</a>
      <header><span class="brand">seqloom</span><SchemeButton /></header>
      <main>
        <h1>{page.title}</h1>
        {page.when && <p class="when">{page.when}</p>}
        <p class="verdict" id="verdict"><Prose text={page.verdict} /></p>
        <Contents page={page} />
        {groupBlocks(page.blocks).map((group) => (
          <div key={group[0].id} class={isWide(group[0]) ? "alone" : "pairs"}>
            {group.map((block) => <Part key={block.id} block={block} looks={looks.get(block) ?? []} />)}
          </div>
        ))}
        <Facts page={page} />
      </main>
      <footer><p>Made by seqloom. Everything on this page is in study.json beside it.</p></footer>
    </>
  );
}
