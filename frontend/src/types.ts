/** The documents that `seqloom.lab.explore` writes. */

export interface RunInfo {
  name: string;
  problem: string;
  kind?: string;
  data?: string;
  model?: string;
  unit?: string;
  features?: string[];
}

export interface About {
  version: string;
  runs: RunInfo[];
}

export interface Row {
  row: number;
  text: string;
  truth: string;
  prediction: string;
  loss: number | null;
  confidence: number | null;
}

export interface Finding {
  text: string;
  check: string;
  confirmed: boolean;
  step: number | null;
  unit: [string, number] | null;
}

export interface Line {
  index: number;
  label: string;
  values: (number | null)[];
}

export interface LayerInfo {
  name: string;
  cell: string;
  equations: string;
  letters: string[];
  ranking: number[];
  groups: number[];
  flow: (number | null)[] | null;
}

export interface AttentionInfo {
  name: string;
  heads: number;
  queries: number;
  keys: number;
}

export interface ArrayInfo {
  shape: number[];
  low: number;
  high: number;
}

export interface Explanation {
  key: string;
  name: string;
  kind: string;
  parameters: number;
  steps: string[];
  unknown: number[];
  notes: string[];
  findings: Finding[];
  prediction: {
    text: string;
    value: number;
    outputs: Line[];
    others: number;
    steps: string[];
    best: string[];
    is_value: boolean;
  };
  before: number | null;
  target: { output: number; step: number | null; label: string };
  growth: { steps: number[]; lines: Line[] } | null;
  contributions: {
    windows: [number, number][];
    occlusion: (number | null)[];
    deletes: boolean;
    gradients: (number | null)[] | null;
    gap: number | null;
  };
  layers: LayerInfo[];
  attention: AttentionInfo[];
  arrays: Record<string, ArrayInfo>;
  features: string[];
}

export interface Clamp {
  layer: string;
  letter: string;
  value: number;
  units: number[];
  steps: [number, number] | null;
}

export interface Question {
  run: string;
  input?: string;
  row?: number;
  output?: number;
  step?: number;
  clamps?: Clamp[];
  uniform_attention?: boolean;
}

export interface Match {
  row: number;
  start: number;
  end: number;
  share: number;
  steps: string[];
  truth: string;
}

export interface Curve {
  name: string;
  split: string;
  steps: number[];
  values: number[];
}
