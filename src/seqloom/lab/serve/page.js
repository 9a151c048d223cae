"use strict";
const runs = new Map();
let stream = null; // {token, run}

async function call(method, path, body) {
  const start = performance.now();
  const response = await request(method, path, body);
  const answer = await response.json();
  return { ok: response.ok, status: response.status, answer, ms: performance.now() - start };
}

function describe(run) {
  const words = { generate: "continues a text", forecast: "forecasts", classify: "classifies" };
  const columns = run.columns.length > 8 ? run.columns.length + " columns" : run.columns.join(", ");
  return `${run.model}, ${words[run.task] || run.task}; reads ${columns}; checkpoint of step ${run.step}`;
}

function isText(run) { return run.task === "generate"; }

function choose() {
  const run = runs.get(at("run").value);
  if (!run) return;
  const example = isText(run) ? { prompts: [""], max_tokens: 100 } : [run.example];
  at("rows").value = JSON.stringify(example, null, 1);
  at("facts").textContent = describe(run);
  at("send").textContent = isText(run) ? "Generate" : "Predict";
  at("step").hidden = at("reset").hidden = !run.streams || isText(run);
  showCommand();
}

function buildBody() {
  const run = runs.get(at("run").value);
  const written = at("rows").value; // sent as written, so that the server checks it
  return isText(run)
    ? { path: "/v1/generate", body: written.replace("{", `{"run": ${JSON.stringify(run.name)}, `) }
    : { path: "/v1/predict", body: `{"run": ${JSON.stringify(run.name)}, "rows": ${written}}` };
}

function showCommand() {
  const { path, body } = buildBody();
  const token = at("token").value ? " -H 'Authorization: Bearer TOKEN'" : "";
  const quoted = body.replace(/\s+/g, " ").replace(/'/g, "'\\''");
  at("curl").textContent = `curl${token} --json '${quoted}' ${location.origin}${path}`;
}

function write(value) {
  if (Array.isArray(value)) return value.slice(0, 12).map(write).join(" ") + (value.length > 12 ? " ..." : "");
  if (typeof value === "number") return String(Math.round(value * 1e4) / 1e4);
  return value !== null && typeof value === "object" ? JSON.stringify(value) : String(value);
}

function show(result) {
  at("status").textContent = result.ok ? `answered in ${Math.round(result.ms)} ms` : `${result.status}: ${result.answer.error}`;
  at("answer").textContent = JSON.stringify(result.answer, null, 1);
  const rows = (result.ok && result.answer.results) || [];
  const table = document.createElement("table");
  if (rows.length) {
    const names = Object.keys(rows[0]);
    const head = table.createTHead().insertRow();
    for (const name of names) head.appendChild(document.createElement("th")).textContent = name;
    for (const row of rows) {
      const line = table.insertRow();
      for (const name of names) {
        const cell = line.insertCell();
        cell.textContent = write(row[name]);
        if (typeof row[name] === "number") cell.className = "number";
      }
    }
  }
  at("table").replaceChildren(table);
}

async function send(event) {
  event.preventDefault();
  const { path, body } = buildBody();
  show(await call("POST", path, body));
}

async function step() {
  const run = runs.get(at("run").value);
  if (!stream || stream.run !== run.name) {
    const started = await call("POST", "/v1/stream", JSON.stringify({ run: run.name }));
    if (!started.ok) return show(started);
    stream = started.answer;
    at("rows").value = JSON.stringify([run.step_example], null, 1);
  }
  const result = await call("POST", `/v1/stream/${stream.token}/steps`, `{"steps": ${at("rows").value}}`);
  if (result.status === 404) stream = null;
  return show(result);
}

async function reset() {
  if (stream) show(await call("POST", `/v1/stream/${stream.token}/reset`));
}

async function load() {
  const { ok, status, answer } = await call("GET", "/v1/runs");
  at("status").textContent = ok ? "" : `${status}: ${answer.error}`;
  if (!ok) return;
  at("run").replaceChildren();
  for (const run of answer.runs) {
    runs.set(run.name, run);
    at("run").add(new Option(run.name));
  }
  choose();
}

at("form").addEventListener("submit", send);
at("run").addEventListener("change", choose);
at("rows").addEventListener("input", showCommand);
at("token").addEventListener("change", load);
at("step").addEventListener("click", step);
at("reset").addEventListener("click", reset);
load();
