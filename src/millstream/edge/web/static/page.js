"use strict";
// The page asks for the state every two seconds and shows it. Text goes into the page as text only, never as markup.
const EVERY_MS = 2000, WINDOW_MS = 10000;
const byId = (id) => document.getElementById(id);
const token = () => sessionStorage.getItem("token") || "";
if (location.hash.length > 1) {
  sessionStorage.setItem("token", location.hash.slice(1));
  history.replaceState(null, "", "/"); // the address may be shown or copied without the token
}
let history_ = [], drawn = null, timer = 0, shownTopics = "", restoring = "";
let policies = { stages: {}, operators: {}, calls: {}, topics: [] };

async function ask(path, body) {
  const options = { headers: { Authorization: `Bearer ${token()}` }, cache: "no-store" };
  if (body !== undefined) Object.assign(options, { method: "POST", body: JSON.stringify(body) });
  const answer = await fetch(path, options);
  if (answer.status === 401) throw new Error("The token is missing or wrong: open the page with the address that `millstream page` prints.");
  if (!answer.ok) throw new Error((await answer.json().catch(() => ({}))).error || `The application answered ${answer.status}.`);
  return answer;
}
function say(text, failed) {
  const message = byId("message");
  if (message.textContent !== text) message.textContent = text;
  message.classList.toggle("error", Boolean(failed));
}
async function look() {
  clearTimeout(timer);
  try {
    take(await (await ask("/api/state")).json());
    if (drawn === null && history_.at(-1).data.status.state !== "starting") await describe();
    colour();
    if (byId("message").classList.contains("error") && !last().status.error) say("");
  } catch (error) {
    byId("state").textContent = "no answer";
    byId("state").className = "state lost";
    say(error instanceof TypeError ? "The application does not answer: it has ended, or cannot be reached." : error.message, true);
  }
  if (!document.hidden) timer = setTimeout(look, EVERY_MS);
}
const last = () => history_.at(-1).data;
function take(data) {
  const at = performance.now();
  history_.push({ at, data });
  while (history_.length > 2 && history_[1].at < at - WINDOW_MS) history_.shift();
  show(data);
}
function numbers(data, name, chosen) {
  return (data.numbers[name] || []).filter(([labels]) => !chosen || chosen(labels)).reduce((sum, [, value]) => sum + value, 0);
}
const now = (name, chosen) => numbers(last(), name, chosen);
function rate(name, chosen) {
  const first = history_[0], end = history_.at(-1);
  const seconds = (end.at - first.at) / 1000;
  return seconds > 0 ? Math.max(0, numbers(end.data, name, chosen) - numbers(first.data, name, chosen)) / seconds : 0;
}
function figure(value) {
  if (value === 0) return "0";
  if (value < 10) return value.toFixed(value < 1 ? 2 : 1);
  return Math.round(value).toLocaleString("en");
}
const bytes = (size) => size < 1e4 ? `${size} B` : size < 1e7 ? `${Math.round(size / 1e3)} kB` : `${Math.round(size / 1e6)} MB`;
const values = (name, place) => [...new Set((last().numbers[name] || []).map(([labels]) => labels[place]))].sort();
const has = (place, value) => (labels) => labels[place] === value;

function show(data) {
  const status = data.status;
  byId("application").textContent = data.application;
  document.title = `${data.application}: ${status.state}`;
  byId("state").textContent = status.state;
  byId("state").className = `state ${status.state}`;
  const lag = Object.values(status.lag).reduce((a, b) => a + b, 0);
  list("figures", [
    ["micro-batch", status.batch < 0 ? "none" : status.batch],
    ["took", status.batch_s === null ? "-" : `${status.batch_s.toFixed(2)} s`],
    ["records/s", figure(status.records_per_s)], ["lag", lag.toLocaleString("en")], ["tasks", status.tasks],
  ]);
  if (status.error) say(status.error, true);
  else if (status.restoring.length) say(restoring = status.restoring.join("\n"));
  else if (restoring && byId("message").textContent === restoring) say(restoring = "");
  topics(status);
  table("stores", values("store_bytes", 1).map((store) => [
    store, bytes(now("store_bytes", has(1, store))), figure(rate("store_changes_total", has(1, store)))]));
  table("drops", values(DROPS, 1).map((reason) => [
    reason, now(DROPS, has(1, reason)).toLocaleString("en"), figure(rate(DROPS, has(1, reason)))]));
  table("calls", values("operator_unfinished_records", 1).map((operator) => [
    operator, now("operator_unfinished_records", has(1, operator)), figure(rate("operator_calls_total", has(1, operator))),
    now("operator_call_retries_total", has(1, operator)), now("operator_dead_letters_total", has(1, operator)),
    policies.calls[operator] || ""]));
  failures();
  splits(status.splits);
  ranges(status.ranges);
  table("tasks", values("task_process_total", 0).map((task) => [
    task, figure(rate("task_process_total", has(0, task))), `${Math.round(100 * rate("task_process_seconds_total", has(0, task)))} %`,
    status.placed[task] || "", status.waiting[task] || ""]));
}
function list(id, pairs) {
  byId(id).replaceChildren(...pairs.map(([name, value]) => {
    const one = document.createElement("div");
    one.append(Object.assign(document.createElement("dt"), { textContent: name }),
      Object.assign(document.createElement("dd"), { textContent: value }));
    return one;
  }));
}
function cell(content) {
  const made = document.createElement("td");
  if (content instanceof Node) made.append(content);
  else made.textContent = content;
  return made;
}
function table(id, rows) {
  const body = byId(id).tBodies[0];
  if (!rows.length) {
    const none = cell("none");
    none.className = "none";
    none.colSpan = byId(id).tHead.rows[0].cells.length;
    rows = [[none]];
  }
  body.replaceChildren(...rows.map((cells) => {
    const row = document.createElement("tr");
    row.append(...cells.map((one) => one instanceof HTMLTableCellElement ? one : cell(one)));
    return row;
  }));
}
function topics(status) {
  const names = Object.keys(status.lag).sort();
  if (names.join("\n") !== shownTopics) { // who types or has the focus on a button is not disturbed by later figures
    shownTopics = names.join("\n");
    table("topics", names.map((topic) => [topic, "", "", limit(topic), pausing(topic)]));
  }
  [...byId("topics").tBodies[0].rows].forEach((row, number) => {
    const topic = names[number];
    if (topic === undefined) return;
    row.cells[1].textContent = status.lag[topic].toLocaleString("en");
    row.cells[2].textContent = figure(rate("topic_records_consumed_total", has(1, topic)));
    const paused = status.paused.includes(topic), button = row.cells[4].firstChild, input = row.cells[3].querySelector("input");
    button.textContent = paused ? "Resume" : "Pause";
    button.setAttribute("aria-label", `${button.textContent} ${topic}`);
    button.dataset.order = paused ? "resume" : "pause";
    if (document.activeElement !== input && !input.dataset.edited) input.value = status.throttled[topic] ?? "";
  });
}
function pausing(topic) {
  const button = Object.assign(document.createElement("button"), { type: "button" });
  button.addEventListener("click", () => order(button.dataset.order, { topics: [topic] }, `${button.dataset.order}: ${topic}`));
  return button;
}
function limit(topic) {
  const form = document.createElement("form");
  const input = Object.assign(document.createElement("input"), { type: "number", min: 1, step: 1, placeholder: "none" });
  input.setAttribute("aria-label", `Most records per second of ${topic}; empty for no limit`);
  input.addEventListener("input", () => { input.dataset.edited = "yes"; });
  form.append(input);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    delete input.dataset.edited;
    const most = input.value === "" ? null : Number(input.value);
    order("throttle", { topic, records_per_second: most }, `${topic}: ${most === null ? "no limit" : `${most} records per second`}`);
  });
  return form;
}
async function order(name, body, done) {
  try {
    take(await (await ask(`/api/${name}`, body)).json());
    say(done);
  } catch (error) {
    say(error.message, true);
  }
}
// The plan is described once, after the start; what is shown here last tells look() that nothing is missing.
async function describe() {
  policies = await (await ask("/api/policies")).json();
  await offerStores();
  await draw();
  failures();
}
function failures() {
  const row = (where, policy, metric, label) => [
    where, policy, now(metric, has(1, label)).toLocaleString("en"), figure(rate(metric, has(1, label)))];
  table("failures", [
    ...Object.entries(policies.stages).map(([stage, policy]) => row(stage, policy, DROPS, `${stage} error`)),
    ...Object.entries(policies.operators).map(([name, policy]) => row(name, policy, "operator_failed_records_total", name)),
  ]);
  table("letters", policies.topics.map((topic) => [
    topic, now(SENT, has(1, topic)).toLocaleString("en"), figure(rate(SENT, has(1, topic)))]));
}
function splits(found) {
  byId("split-partitions").hidden = Object.keys(found).length === 0;
  table("splits", Object.entries(found).map(([partition, split]) => [
    partition, `${split.epoch} of ${split.newest}`, split.ranges, split.position.toLocaleString("en"), split.lag.toLocaleString("en")]));
}
function ranges(found) {
  const hash = (number) => number.toString(16).padStart(8, "0");
  byId("key-ranges").hidden = Object.keys(found).length === 0;
  table("ranges", Object.entries(found).map(([task, range]) => [
    task, `${range.number} of ${range.of}`, `${hash(range.first_hash)}-${hash(range.end_hash - 1)}`,
    Object.entries(range.positions).map(([partition, offset]) => `${partition} ${offset.toLocaleString("en")}`).join(", "),
    range.lag.toLocaleString("en"), figure(range.records_per_s), `${Math.round(100 * range.busy)} %`, bytes(range.state_bytes), range.placed]));
}
async function draw() {
  const text = await (await ask("/api/topology.svg")).text();
  const picture = new DOMParser().parseFromString(text, "image/svg+xml").documentElement;
  byId("picture").replaceChildren(document.importNode(picture, true));
  const boxes = [...byId("picture").querySelectorAll("rect[data-part]")].map(coloured);
  for (const part of boxes.filter((box) => box.node === undefined)) {
    part.topics = boxes.filter((box) => box.part === part.part && box.kind === "source").flatMap((box) => box.topics);
  }
  drawn = boxes;
}
// Figures of a sub-topology stand at its title and those of a node above its box: what is not measured per node is not shown as if it were.
function coloured(box) {
  const heat = box.cloneNode(false), label = document.createElementNS(box.namespaceURI, "text"), node = box.dataset.node;
  const [x, y, width] = ["x", "y", "width"].map((name) => Number(box.getAttribute(name) || 0));
  for (const name of Object.keys(heat.dataset)) delete heat.dataset[name];
  heat.setAttribute("stroke", "none");
  heat.removeAttribute("fill");
  label.setAttribute("class", "figure");
  label.setAttribute("text-anchor", node === undefined ? "end" : "start");
  label.setAttribute("x", node === undefined ? x + width - 8 : x + width / 2 + 8);
  label.setAttribute("y", node === undefined ? y + 16 : y - 4);
  box[node === undefined ? "after" : "before"](heat);
  (node === undefined ? heat : box).after(label);
  return { heat, label, node, part: box.dataset.part, kind: box.dataset.kind, topics: (box.dataset.topics || "").split(" ").filter(Boolean) };
}
const mode = () => document.querySelector("input[name=mode]:checked").value;
const lagOf = (topics) => topics.reduce((sum, topic) => sum + (last().status.lag[topic] || 0), 0);
function ofPart(box) {
  const own = (labels) => labels[0].startsWith(`${box.part}_`);
  switch (mode()) {
    case "rate": return rate("task_process_total", own);
    case "lag": return box.topics.length ? lagOf(box.topics) : null;
    case "time": return rate("task_process_seconds_total", own);
    default: return rate(DROPS, own);
  }
}
function ofNode(box) {
  const own = (labels) => labels[0].startsWith(`${box.part}_`) && box.topics.includes(labels[1]);
  const operator = (labels) => labels[1] === box.node;
  switch (mode()) {
    case "rate":
      if (box.kind === "source" && values("topic_records_consumed_total", 1).some((topic) => box.topics.includes(topic))) {
        return rate("topic_records_consumed_total", own);
      }
      return box.kind === "sink" && box.topics.length ? rate(SENT, own) : null;
    case "lag": return box.kind === "source" && box.topics.some((topic) => topic in last().status.lag) ? lagOf(box.topics) : null;
    case "time": return null;
    default: {
      const failures = FAILURES.filter((name) => values(name, 1).includes(box.node));
      return failures.length ? failures.reduce((sum, name) => sum + rate(name, operator), 0) : null;
    }
  }
}
const DROPS = "task_dropped_records_total", SENT = "topic_records_produced_total";
const FAILURES = ["operator_failed_records_total", "operator_dead_letters_total"];
const UNITS = { rate: "records/s", lag: "records behind", time: "s of work/s", errors: "dropped/s" };
function colour() {
  if (drawn === null) return;
  const found = drawn.map((box) => box.node === undefined ? ofPart(box) : ofNode(box)), most = Math.max(...found.map((one) => one || 0), 0);
  drawn.forEach((box, number) => {
    const one = found[number], strength = box.node === undefined ? 0.3 : 0.6;
    box.heat.setAttribute("class", `heat ${mode()}`);
    box.heat.setAttribute("fill-opacity", one && most ? (0.05 + (strength - 0.05) * Math.log1p(one) / Math.log1p(most)).toFixed(3) : "0");
    box.label.textContent = one === null ? "" : box.node === undefined ? `${figure(one)} ${UNITS[mode()]}` : mode() === "lag" ? figure(one) : `${figure(one)}/s`;
  });
}
byId("pause").addEventListener("click", () => order("pause", {}, "all topics are paused"));
byId("resume").addEventListener("click", () => order("resume", {}, "all topics are read"));
byId("modes").addEventListener("change", colour);
document.addEventListener("keydown", (event) => {
  if (event.target.matches("input:not([type=radio]), select")) return; // who types is not interrupted
  const chosen = document.querySelectorAll("input[name=mode]")["1234".indexOf(event.key)];
  if (!chosen || event.ctrlKey || event.altKey || event.metaKey) return;
  chosen.checked = true;
  colour();
});
document.addEventListener("visibilitychange", () => { if (!document.hidden) look(); });
document.addEventListener("DOMContentLoaded", look); // after all scripts
