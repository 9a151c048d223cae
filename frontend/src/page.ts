/** The content of a report, as `lab/report/web.py` writes it into the page. */

export type Values = (number | null)[];

export interface Column {
  name: string;
  texts: string[];
  keys: Values | null; // numbers to sort by; null for a column of texts
  values?: unknown[]; // with every digit, where the texts are rounded
}

export interface Curve {
  name: string;
  x: Values;
  y: Values;
  low?: Values | null;
  high?: Values | null;
  inner_low?: Values | null;
  inner_high?: Values | null;
}

interface Block {
  id: string;
  title: string;
  note: string;
}

export interface TableBlock extends Block {
  kind: "table";
  columns: Column[];
}

export interface ChartBlock extends Block {
  kind: "chart";
  x_label: string;
  y_label: string;
  curves: Curve[];
  log_x: boolean;
  log_y: boolean;
  x_names: string[];
  split: number | null; // where a forecast begins
}

export interface Group {
  name: string;
  values: Values;
  interval: [number | null, number | null] | null;
}

export interface DotsBlock extends Block {
  kind: "dots";
  y_label: string;
  groups: Group[];
  lines: [string, number | null][];
  log_y: boolean;
  by_seed: boolean; // otherwise the note says what a dot is
}

export interface GridBlock extends Block {
  kind: "grid";
  rows: string[];
  columns: string[];
  values: Values[];
  by_row: boolean; // values are counts, shown as shares of their row
}

export type Picture = Omit<ChartBlock, "id"> | Omit<GridBlock, "id">;

export interface GalleryBlock extends Block {
  kind: "gallery";
  pictures: Picture[];
}

export interface WordsBlock extends Block {
  kind: "words";
  paragraphs: string[];
}

export type PageBlock = TableBlock | ChartBlock | DotsBlock | GridBlock | GalleryBlock | WordsBlock;

export interface Page {
  title: string;
  verdict: string;
  when: string;
  blocks: PageBlock[];
  command: string;
  facts: [string, [string, string][]][];
}
