"use strict";
let count = 0; // of fields with a label

function make(tag, text = "", ...children) {
  const element = document.createElement(tag);
  element.textContent = text;
  element.append(...children);
  return element;
}

function nameType(schema) {
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" or ");
  const either = schema.anyOf || schema.oneOf;
  if (either) return [...new Set(either.map(nameType))].join(" or ");
  if (Array.isArray(schema.type)) return schema.type.map((type) => nameType({ ...schema, type })).join(" or ");
  if (schema.type === "array") {
    const item = schema.items ? nameType(schema.items) : "";
    return !item ? "list" : item.includes(" or ") ? `list of (${item})` : "list of " + item;
  }
  return schema.type || "any";
}

function listLimits(schema) {
  const words = {
    minimum: "at least", exclusiveMinimum: "more than", maximum: "at most", exclusiveMaximum: "less than",
    minLength: "length at least", maxLength: "length at most", minItems: "items at least", maxItems: "items at most",
    default: "default",
  };
  const limits = Object.entries(words).filter(([name]) => schema[name] !== undefined && schema[name] !== null);
  return limits.map(([name, text]) => `${text} ${JSON.stringify(schema[name])}`);
}

// Returns [name, type, is required, text] of each field, those of inner objects with the names of the outer ones.
function listFields(schema, prefix = "") {
  const fields = [];
  for (const [name, inner] of Object.entries(schema.properties || {})) {
    const isRequired = (schema.required || []).includes(name);
    fields.push([prefix + name, nameType(inner), isRequired, [inner.description, ...listLimits(inner)].filter(Boolean).join("; ")]);
    const item = inner.type === "array" ? inner.items || {} : inner;
    const suffix = inner.type === "array" ? "[]." : ".";
    for (const one of item.anyOf || [item]) fields.push(...listFields(one, prefix + name + suffix));
  }
  return fields;
}

function buildTable(names, rows) {
  const table = make("table");
  const head = table.createTHead().insertRow();
  for (const name of names) head.append(make("th", name));
  for (const row of rows) {
    const line = table.insertRow();
    for (const value of row) line.insertCell().textContent = value;
  }
  return table;
}

function addLabelled(form, text, field) {
  field.id = "field-" + ++count;
  const label = make("label", text);
  label.htmlFor = field.id;
  form.append(make("p", "", label, " ", field));
  return field;
}

// Adds a form that sends the request.
function addForm(section, method, path, operation) {
  const form = make("form");
  const places = (operation.parameters || []).filter((one) => one.in !== "header")
    .map((one) => [one, addLabelled(form, one.name, make("input"))]);
  const content = operation.requestBody && operation.requestBody.content["application/json"];
  const examples = content ? Object.entries(content.examples || {}) : [];
  let body = null;
  if (content) {
    body = make("textarea");
    body.rows = 8;
    body.spellcheck = false;
    const choose = (value) => { body.value = JSON.stringify(value, null, 1); };
    choose(examples.length ? examples[0][1].value : {});
    if (examples.length > 1) {
      const choice = addLabelled(form, "Example", make("select"));
      for (const [name] of examples) choice.add(new Option(name));
      choice.addEventListener("change", () => choose(examples[choice.selectedIndex][1].value));
    }
    addLabelled(form, "Body, as JSON", body);
  }
  const answer = make("pre");
  answer.hidden = true;
  form.append(make("p", "", make("button", "Send")));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    let target = path;
    const query = new URLSearchParams();
    for (const [one, field] of places) {
      if (one.in === "path") target = target.replace(`{${one.name}}`, encodeURIComponent(field.value));
      else if (field.value) query.set(one.name, field.value);
    }
    const response = await request(method.toUpperCase(), target + (query.size ? "?" + query : ""), body ? body.value : undefined);
    const text = await response.text();
    let shown = text;
    try { shown = JSON.stringify(JSON.parse(text), null, 1); } catch { /* not JSON: shown as it is */ }
    answer.textContent = `${response.status} ${response.statusText}\n${shown}`;
    answer.hidden = false;
  });
  section.append(form, answer);
}

function buildOperation(method, path, operation) {
  const section = make("details", "", make("summary", "", make("code", `${method.toUpperCase()} ${path}`), " ", operation.summary || ""));
  const content = operation.requestBody && operation.requestBody.content["application/json"];
  for (const schema of content ? content.schema.anyOf || [content.schema] : []) {
    const rows = listFields(schema).map(([name, type, isRequired, text]) => [name, type, isRequired ? "yes" : "no", text]);
    section.append(buildTable(["field", "type", "required", "limits"], rows));
  }
  if (!Object.values(operation.responses).some((one) => "text/event-stream" in (one.content || {})))
    addForm(section, method, path, operation);
  const statuses = Object.entries(operation.responses).map(([status, one]) => [status, one.description]);
  section.append(make("details", "", make("summary", "Statuses"), buildTable(["status", "meaning"], statuses)));
  return section;
}

async function load() {
  const response = await request("GET", "/openapi.json");
  const answer = await response.json();
  at("status").textContent = response.ok ? "" : `${response.status}: ${answer.error}`;
  if (!response.ok) return;
  at("description").textContent = `${answer.info.title} ${answer.info.version}. ${answer.info.description}`;
  at("routes").replaceChildren();
  for (const [path, operations] of Object.entries(answer.paths))
    for (const [method, operation] of Object.entries(operations)) at("routes").append(buildOperation(method, path, operation));
}

at("form").addEventListener("submit", (event) => event.preventDefault());
at("token").addEventListener("change", load);
load();
