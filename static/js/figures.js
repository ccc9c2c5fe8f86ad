// Live figures and the heat map: the newest sample of each GPU, greyed with its age when it is old.
// What could not be measured is "--", never 0.

const words = JSON.parse(document.body.dataset.words || "{}");
const OLD_MS = 5000;
const GIB = 2 ** 30;
const language = document.documentElement.lang;
const latest = new Map(); // GPU UUID -> {at, values}

const round = (value, digits = 0) =>
  new Intl.NumberFormat(language, { maximumFractionDigits: digits }).format(value);

// How each metric is read from a sample, and put together over several GPUs.
const METRICS = {
  util: { read: (s) => s.util, join: mean, write: (v) => round(v) },
  mem: { read: (s) => (s.mem_used == null ? null : s.mem_used / GIB), join: sum, write: (v) => round(v, v < 10 ? 1 : 0) },
  power: { read: (s) => (s.power_mw == null ? null : s.power_mw / 1000), join: sum, write: (v) => round(v) },
  temp: { read: (s) => s.temp_c, join: (all) => Math.max(...all), write: (v) => round(v) },
  clock: { read: (s) => s.sm_mhz, join: mean, write: (v) => round(v) },
};

function sum(all) {
  return all.reduce((a, b) => a + b, 0);
}

function mean(all) {
  return sum(all) / all.length;
}

function clockOffset() {
  const [entry] = performance.getEntriesByType("navigation");
  return performance.timeOrigin + (entry?.responseStart || 0) - Number(document.body.dataset.now);
}

function ageOf(uuids) {
  const times = uuids.map((uuid) => latest.get(uuid)?.at).filter((at) => at !== undefined);
  // One silent GPU makes a figure over several old: a sum without it would be wrong.
  return times.length === uuids.length && uuids.length
    ? Date.now() - clockOffset() - Math.min(...times)
    : Infinity;
}

function agePhrase(ms) {
  if (!Number.isFinite(ms)) return "";
  const seconds = Math.round(ms / 1000);
  const [unit, count] = seconds < 90 ? ["second", seconds] : seconds < 5400 ? ["minute", Math.round(seconds / 60)] : ["hour", Math.round(seconds / 3600)];
  const text = new Intl.NumberFormat(language, { style: "unit", unit, unitDisplay: "short" }).format(count);
  return words.age.replace("{age}", text);
}

function draw() {
  for (const element of document.querySelectorAll("[data-figure]")) {
    const uuids = element.dataset.gpus.split(/\s+/).filter(Boolean);
    const metric = METRICS[element.dataset.figure];
    const values = uuids.map((uuid) => latest.get(uuid)).map((s) => (s ? metric.read(s.values) : null));
    const known = values.length > 0 && values.every((value) => value != null);
    put(element.querySelector("[data-value]"), known ? metric.write(metric.join(values)) : "--");
    const age = ageOf(uuids);
    element.classList.toggle("old", known && age > OLD_MS);
    put(element.querySelector("[data-age]"), known && age > OLD_MS ? agePhrase(age) : "");
  }
  for (const cell of document.querySelectorAll("[data-gpu]")) drawCell(cell);
}

function drawCell(cell) {
  const sample = latest.get(cell.dataset.gpu);
  const util = sample?.values.util;
  cell.dataset.heat = util == null ? "" : String(Math.round(util / 10));
  cell.classList.toggle("old", util != null && ageOf([cell.dataset.gpu]) > OLD_MS);
  const value = cell.querySelector("[data-gpu-value]");
  if (value) put(value, util == null ? "--" : `${round(util)}%`);
}

function put(element, text) {
  if (element && element.textContent !== text) element.textContent = text;
}

document.addEventListener("corral:samples", ({ detail }) => {
  for (const [uuid, values] of Object.entries(detail.gpus)) {
    const at = values.at ?? detail.at;
    if ((latest.get(uuid)?.at ?? 0) <= at) latest.set(uuid, { at, values });
  }
  draw();
});
document.addEventListener("htmx:afterSettle", draw);
setInterval(draw, 1000);
