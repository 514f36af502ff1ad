"use strict";
// The form that asks a question about a store. Its methods and arguments are those of the application's answer to /api/methods.
let methods = {}, asking = false;

async function offerStores() {
  methods = await (await ask("/api/methods")).json();
  choices("store", Object.keys(methods).sort());
  byId("queries").hidden = byId("store").options.length === 0;
  if (!byId("queries").hidden) offerMethods();
}
function choices(id, names) {
  const select = byId(id), chosen = select.value;
  select.replaceChildren(...names.map((name) => new Option(name)));
  if (names.includes(chosen)) select.value = chosen;
}
function offerMethods() {
  choices("method", Object.keys(methods[byId("store").value]));
  offerArguments();
}
const chosenMethod = () => methods[byId("store").value][byId("method").value];
const argumentInputs = () => [...byId("arguments").querySelectorAll("input")];

function offerArguments() {
  const method = chosenMethod(), typed = Object.fromEntries(argumentInputs().map((input) => [input.name, input.value]));
  const names = [...method.keys, ...method.times], required = names.length - method.optional;
  byId("arguments").replaceChildren(...names.map((name, index) => {
    const unbounded = method.unbounded && method.keys.includes(name);
    const hint = unbounded ? "no bound" : index < required ? "" : "optional";
    return argumentField(name, hint, typed[name] ?? "");
  }));
  byId("limit").parentElement.hidden = isSingle(byId("method").value);
}
function argumentField(name, hint, value) {
  const label = document.createElement("label"), input = document.createElement("input");
  // Keys are data of the user, which a browser must neither remember nor send to a spelling service.
  Object.assign(input, { name, value, placeholder: hint, autocomplete: "off", spellcheck: false });
  label.append(`${name.replaceAll("_", " ")} `, input);
  return label;
}
const isSingle = (name) => ["get", "fetch_session", "approximate_count", "info"].includes(name);

function question() {
  const method = chosenMethod(), keys = method.keys.length, name = byId("method").value;
  const given = argumentInputs().map((input, index) => input.value === "" && method.unbounded && index < keys ? null : input.value);
  if (method.times.length && method.optional && given.at(-1) === "") given.pop();
  const asked = { store: byId("store").value, method: name, arguments: given };
  if (!isSingle(name) && byId("limit").value !== "") asked.limit = Number(byId("limit").value);
  return asked;
}
async function query(event) {
  event.preventDefault();
  if (asking) return;
  asking = true;
  const asked = question();
  showAnswer(asked, "asking …");
  try {
    const answer = exact(await (await ask("/api/store", asked)).text()), found = entries(asked, answer.value);
    showAnswer(asked, `${counted(asked, found.length)} ${position(answer)}`, found);
  } catch (error) {
    showAnswer(asked, error instanceof TypeError ? "The application does not answer." : error.message, [], true);
  } finally {
    asking = false;
  }
}
// A number that JavaScript would round keeps its text, in browsers that give it to us.
const exact = (text) => JSON.parse(text, (name, value, context) =>
  typeof value === "number" && !Number.isSafeInteger(value) && JSON.rawJSON ? JSON.rawJSON(context.source) : value);
const shown = (value) => typeof value === "string" ? value : JSON.stringify(value);

function entries(asked, value) {
  if (asked.method === "info") return Object.entries(value);
  const several = Array.isArray(value) && !isSingle(asked.method) && !isOneWindow(asked);
  if (several) return value;
  return value === null ? [] : [[asked.arguments[0] ?? asked.method, value]];
}
const isOneWindow = (asked) => asked.method === "fetch" && asked.arguments.length === 2;

function counted(asked, count) {
  if (asked.method === "info" || asked.method === "approximate_count") return "";
  const more = count > 0 && count === asked.limit ? ", perhaps more:" : ":";
  return `${count === 1 ? "1 entry" : `${count.toLocaleString("en")} entries`}${more}`;
}
function position(answer) {
  const offsets = Object.entries(answer.offsets).sort().flatMap(([topic, partitions]) =>
    Object.entries(partitions).map(([partition, offset]) => `${topic}/${partition}: ${offset}`));
  return `micro-batch ${answer.batch}, offsets ${offsets.join(", ") || "none"}, lag ${answer.lag}`;
}
function showAnswer(asked, text, found = [], failed = false) {
  byId("asked").textContent = text;
  byId("asked").classList.toggle("error", failed);
  byId("answer").hidden = found.length === 0;
  const first = asked.method === "info" ? "property" : /^(reverse_)?fetch$/.test(asked.method) && asked.arguments.length === 3 ? "start" : "key";
  byId("answers").tHead.rows[0].cells[0].textContent = first;
  table("answers", found.map((entry) => entry.map(shown)));
}
byId("store").addEventListener("change", offerMethods);
byId("method").addEventListener("change", offerArguments);
byId("query").addEventListener("submit", query);
