/* global htmx, Idiomorph */
// One socket per page. It says what changed; the page fetches it anew, so a lost message costs a
// delay and never shows anything false. Samples go on to figures.js and chart.js as an event.

const words = JSON.parse(document.body.dataset.words || "{}");
const QUIET_MS = 12000; // the portal pings every 5 s; this long without a word is a dead line
const BANNER_MS = 3000;
const RESYNC_MS = 30000;
const DEBOUNCE_MS = 250;

let socket = null;
let subscribed = new Set();
let attempts = 0;
let heardAt = 0;
let bannerTimer = 0;
let wasDown = false;
let over = false;
const waiting = new Map(); // fragment -> timer

function topicsHere() {
  const topics = new Set();
  for (const element of document.querySelectorAll("[data-live-topics]")) {
    for (const topic of element.dataset.liveTopics.split(/\s+/)) if (topic) topics.add(topic);
  }
  return topics;
}

function open() {
  if (socket || over || document.hidden || topicsHere().size === 0) return;
  const scheme = location.protocol === "https:" ? "wss" : "ws";
  const mine = (socket = new WebSocket(`${scheme}://${location.host}/live/ws`));
  heardAt = Date.now();
  mine.onmessage = (event) => socket === mine && hear(JSON.parse(event.data));
  mine.onclose = (event) => socket === mine && lost(event.code);
}

function hear(message) {
  heardAt = Date.now();
  if (message.t === "hello") greeted();
  else if (message.t === "changed") changed(message);
  else if (message.t === "samples") {
    document.dispatchEvent(new CustomEvent("corral:samples", { detail: message }));
  }
}

function greeted() {
  attempts = 0;
  subscribed = new Set();
  subscribe();
  clearTimeout(bannerTimer);
  bannerTimer = 0;
  banner("");
  if (wasDown) say(words.live);
  wasDown = false;
  // What changed since the page was drawn, or while the line was down, was not heard.
  resync();
}

function subscribe() {
  if (socket?.readyState !== WebSocket.OPEN) return open();
  const wanted = topicsHere();
  const added = [...wanted].filter((topic) => !subscribed.has(topic));
  const gone = [...subscribed].filter((topic) => !wanted.has(topic));
  if (added.length) socket.send(JSON.stringify({ subscribe: added }));
  if (gone.length) socket.send(JSON.stringify({ unsubscribe: gone }));
  subscribed = wanted;
}

function lost(code) {
  socket = null;
  if (code === 4401 || code === 4403) {
    over = true;
    return banner(words.sessionOver);
  }
  if (document.hidden) return;
  wasDown = true;
  if (!bannerTimer) bannerTimer = setTimeout(showDown, BANNER_MS);
  const wait = Math.min(500 * 2 ** attempts, 15000) * (0.7 + Math.random() * 0.6);
  attempts += 1;
  setTimeout(open, wait);
}

function showDown() {
  banner(navigator.onLine ? words.reconnecting : words.offline);
}

function drop() {
  if (!socket) return;
  const old = socket;
  socket = null;
  old.onclose = null;
  old.close();
}

function banner(text) {
  const element = document.getElementById("connection");
  if (!element) return;
  element.textContent = text;
  element.hidden = !text;
}

// data-live="instance:<id> quota" listens to that instance and to any quota.
function changed({ kind, id }) {
  for (const element of document.querySelectorAll("[data-live]")) {
    const wants = element.dataset.live.split(/\s+/);
    if (wants.includes(kind) || wants.includes(`${kind}:${id}`)) refresh(element);
  }
  // Rights may have changed: what this page may hear is asked anew.
  if (kind === "member") resync();
}

function refresh(element) {
  if (document.hidden || waiting.has(element)) return;
  waiting.set(element, setTimeout(() => {
    waiting.delete(element);
    if (element.isConnected && !element.matches(":has(:focus):is([data-live-pause])")) {
      htmx.trigger(element, "live");
    }
  }, DEBOUNCE_MS));
}

function resync() {
  for (const element of document.querySelectorAll("[data-live]")) refresh(element);
  document.dispatchEvent(new CustomEvent("corral:resync"));
}

function say(text) {
  const announcer = document.getElementById("announcer");
  if (announcer) announcer.textContent = text;
}

// A state that changes is told, in words, to those who cannot see it change.
let spoken = new Map();
function tellStates() {
  for (const element of document.querySelectorAll("[data-say]")) {
    const before = spoken.get(element.id);
    if (before !== undefined && before !== element.dataset.say) say(element.dataset.say);
    spoken.set(element.id, element.dataset.say);
  }
}

document.addEventListener("visibilitychange", () => {
  if (document.hidden) return drop();
  attempts = 0;
  open();
  resync();
});
document.addEventListener("htmx:afterSettle", () => {
  subscribe();
  tellStates();
});
window.addEventListener("online", open);
window.addEventListener("pagehide", drop);
setInterval(() => document.hidden || resync(), RESYNC_MS);
setInterval(() => {
  if (socket && Date.now() - heardAt > QUIET_MS) {
    drop();
    lost(0);
  }
}, 1000);

// What scripts have drawn stays when a fragment is fetched anew: charts, and figures of the same GPUs.
Idiomorph.defaults.callbacks.beforeNodeMorphed = (before, after) =>
  !(before instanceof HTMLElement && before.matches("[data-chart], [data-figure]")
    && before.dataset.gpus === after.dataset?.gpus);

tellStates();
open();
