// Charts: history from a JSON address, then live samples. A missing sample is a gap, never 0.
/* global uPlot */

const words = JSON.parse(document.body.dataset.words || "{}");
const GIB = 2 ** 30;
const GAP_S = 5; // a longer silence breaks the line
const READ = {
  util: (s) => s.util,
  mem: (s) => (s.mem_used == null ? null : s.mem_used / GIB),
  power: (s) => (s.power_mw == null ? null : s.power_mw / 1000),
  temp: (s) => s.temp_c,
};
const FLOOR_TOP = { util: 100, mem: 1, power: 50, temp: 60 };
const language = document.documentElement.lang;
const histories = new Map(); // address -> promise of its JSON: four charts ask once

class Chart {
  constructor(element) {
    this.element = element;
    this.metric = element.dataset.chart;
    this.gpus = element.dataset.gpus.split(/\s+/).filter(Boolean);
    this.windowSeconds = 900;
    this.data = [[], ...this.gpus.map(() => [])];
    this.pending = [];
    this.load();
  }

  async load() {
    try {
      const history = await fetchHistory(this.element.dataset.source);
      this.windowSeconds = history.seconds;
      this.data = withoutHiccups([
        history.at.map((ms) => ms / 1000),
        ...this.gpus.map((uuid) => history.gpus[uuid]?.[this.metric] ?? history.at.map(() => null)),
      ]);
    } catch {
      // Without history the chart begins now.
    }
    this.loaded = true;
    for (const sample of this.pending.splice(0)) this.append(sample);
    this.draw();
  }

  append({ at, gpus }) {
    if (!this.loaded) return this.pending.push({ at, gpus });
    if (!this.gpus.some((uuid) => uuid in gpus)) return;
    const [times] = this.data;
    const second = Math.round(at / 1000);
    const last = times.at(-1) ?? 0;
    if (second < last) return; // late: the history has it after a reload
    if (second > last) {
      if (times.length && second - last > GAP_S) this.push(last + 1, () => null);
      this.push(second, (uuid) => (uuid in gpus ? READ[this.metric](gpus[uuid]) ?? null : null));
    } else {
      this.gpus.forEach((uuid, i) => {
        if (uuid in gpus) this.data[i + 1][times.length - 1] = READ[this.metric](gpus[uuid]) ?? null;
      });
    }
    const stale = times.findIndex((time) => time >= second - this.windowSeconds);
    if (stale > 0) this.data.forEach((column) => column.splice(0, stale));
  }

  push(second, value) {
    this.data[0].push(second);
    this.gpus.forEach((uuid, i) => this.data[i + 1].push(value(uuid)));
  }

  draw() {
    if (!this.loaded || document.hidden) return;
    if (!this.data[0].length) return this.say(words.noData);
    this.say("");
    if (this.plot) this.plot.setData(this.data);
    else this.plot = new uPlot(this.options(), this.data, this.element);
  }

  say(text) {
    this.note ??= Object.assign(document.createElement("p"), { className: "none" });
    this.note.textContent = text;
    if (text) this.element.append(this.note);
    else this.note.remove();
  }

  options() {
    const colour = resolve(`--series-${this.element.dataset.series}`);
    const soft = resolve("--ink-soft");
    const line = resolve("--line");
    const axis = { stroke: soft, grid: { stroke: line, width: 1 }, ticks: { show: false }, font: "11px Geist, sans-serif" };
    const top = FLOOR_TOP[this.metric];
    return {
      width: this.element.clientWidth,
      height: 176,
      padding: [8, 14, 0, 0],
      legend: { show: false },
      cursor: { points: { size: 6 }, drag: { x: false, y: false } },
      scales: { x: { time: true }, y: { range: (_u, _min, max) => [0, Math.max(top, (max ?? 0) * (this.metric === "util" ? 1 : 1.1))] } },
      axes: [
        { ...axis, size: 26, space: 72, values: (_u, ticks) => ticks.map(clockFor(ticks)) },
        { ...axis, size: 40 },
      ],
      series: [{}, ...this.gpus.map((uuid, i) => ({
        label: uuid,
        stroke: colour,
        alpha: i === 0 ? 1 : Math.max(0.35, 1 - i * 0.1),
        width: 1.5,
        fill: this.gpus.length === 1 ? faded(colour) : undefined,
        spanGaps: false,
        points: { show: false },
      }))],
      hooks: { setCursor: [(plot) => this.read(plot)] },
    };
  }

  read(plot) {
    const i = plot.cursor.idx;
    if (i == null) return this.element.removeAttribute("title");
    const values = this.data.slice(1).map((column) => column[i]).map((v) => (v == null ? "--" : v.toFixed(v < 10 ? 1 : 0)));
    const when = new Date(this.data[0][i] * 1000).toLocaleTimeString(language);
    this.element.title = `${when}: ${values.join(", ")} ${this.element.dataset.unit}`;
  }

  restyle() {
    this.plot?.destroy();
    this.plot = null;
    this.draw();
  }
}

// A second without a sample, as clocks drift, is no gap; a silence is.
function withoutHiccups(data) {
  const [times, ...columns] = data;
  const isEmpty = (i) => columns.every((column) => column[i] == null);
  const keep = [];
  for (let i = 0; i < times.length; ) {
    let end = i;
    while (end < times.length && isEmpty(end)) end += 1;
    const isGap = end === times.length || i === 0 || times[end] - times[i - 1] > GAP_S;
    if (end === i) keep.push(i++);
    else {
      if (isGap) for (let j = i; j < end; j += 1) keep.push(j);
      i = end;
    }
  }
  return data.map((column) => keep.map((i) => column[i]));
}

function fetchHistory(address) {
  if (!histories.has(address)) {
    const answer = fetch(address, { headers: { Accept: "application/json" } }).then((response) => {
      if (!response.ok) throw new Error(String(response.status));
      return response.json();
    });
    histories.set(address, answer);
    setTimeout(() => histories.delete(address), 2000);
  }
  return histories.get(address);
}

// A canvas cannot read CSS variables: let an element work the colour out.
function resolve(variable) {
  const probe = document.createElement("span");
  probe.style.color = `var(${variable})`;
  document.body.append(probe);
  const colour = getComputedStyle(probe).color;
  probe.remove();
  return colour;
}

// Ticks closer than a minute need their seconds.
function clockFor(ticks) {
  const fine = ticks.length > 1 && ticks[1] - ticks[0] < 60;
  const format = new Intl.DateTimeFormat(language, {
    hour: "2-digit", minute: "2-digit", second: fine ? "2-digit" : undefined, hourCycle: "h23",
  });
  return (second) => format.format(second * 1000);
}

function faded(colour) {
  return colour.startsWith("oklch") ? colour.replace(/\s*(\/[^)]*)?\)$/, " / 0.12)") : colour;
}

const charts = new Map();

function find() {
  for (const [element, chart] of charts) {
    if (element.isConnected && element.dataset.gpus === chart.gpus.join(" ")) continue;
    chart.plot?.destroy();
    charts.delete(element);
  }
  for (const element of document.querySelectorAll("[data-chart]")) {
    if (!charts.has(element)) charts.set(element, new Chart(element));
  }
}

document.addEventListener("corral:samples", ({ detail }) => {
  for (const chart of charts.values()) {
    chart.append(detail);
    chart.draw();
  }
});
document.addEventListener("corral:resync", () => {
  for (const chart of charts.values()) chart.load();
});
document.addEventListener("corral:theme", () => {
  for (const chart of charts.values()) chart.restyle();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  for (const chart of charts.values()) chart.restyle();
});
document.addEventListener("htmx:afterSettle", find);
new ResizeObserver(() => {
  for (const [element, chart] of charts) chart.plot?.setSize({ width: element.clientWidth, height: 176 });
}).observe(document.getElementById("content"));
find();
