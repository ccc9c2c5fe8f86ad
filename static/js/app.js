// What every page does: dialogs, copying, theme, toasts, fresh times, and no double submit.
// All of it only adds to pages that work without it.

const words = JSON.parse(document.body.dataset.words || "{}");

// Buttons with command/commandfor open dialogs by themselves in newer browsers.
if (!("commandForElement" in HTMLButtonElement.prototype)) {
  document.addEventListener("click", (event) => {
    const button = event.target.closest("button[commandfor]");
    const dialog = button && document.getElementById(button.getAttribute("commandfor"));
    if (!dialog) return;
    if (button.getAttribute("command") === "show-modal") dialog.showModal();
    else dialog.close();
  });
}

document.addEventListener("click", async (event) => {
  const close = event.target.closest("[data-close]");
  if (close) close.parentElement.remove();
  const copy = event.target.closest("[data-copy]");
  if (copy) {
    await navigator.clipboard.writeText(copy.dataset.copy);
    say(words.copied);
    copy.classList.add("text-success");
    setTimeout(() => copy.classList.remove("text-success"), 1500);
  }
});

// A click on the dimmed page behind a dialog closes it.
document.addEventListener("mousedown", (event) => {
  if (event.target instanceof HTMLDialogElement && event.target.open) event.target.close();
});

document.addEventListener("submit", (event) => {
  const form = event.target;
  if (form.matches("[data-appearance]")) return changeTheme(event, form);
  if (!form.matches("[data-once]")) return;
  if (form.dataset.sent) return event.preventDefault();
  form.dataset.sent = "yes";
  // After this turn, so that the pressed button is still part of what is sent.
  setTimeout(() => form.querySelectorAll("[type=submit]").forEach((b) => (b.disabled = true)));
});

// Coming back by the Back button: forms may be sent again.
window.addEventListener("pageshow", (event) => {
  if (!event.persisted) return;
  document.querySelectorAll("form[data-sent]").forEach((form) => {
    delete form.dataset.sent;
    form.querySelectorAll("[type=submit]").forEach((button) => (button.disabled = false));
  });
});

async function changeTheme(event, form) {
  event.preventDefault();
  const theme = event.submitter.value;
  const root = document.documentElement;
  if (theme === "auto") delete root.dataset.bsTheme;
  else root.dataset.bsTheme = theme;
  for (const button of form.querySelectorAll("[name=theme]")) {
    button.setAttribute("aria-pressed", String(button.value === theme));
  }
  document.dispatchEvent(new CustomEvent("corral:theme"));
  const body = new FormData(form, event.submitter);
  await fetch(form.action, { method: "POST", body, redirect: "manual" });
}

// "Type the name to confirm": the button waits for it.
document.addEventListener("input", (event) => {
  const wanted = event.target.dataset?.mustEqual;
  if (wanted === undefined) return;
  event.target.form.querySelector("[type=submit]").disabled = event.target.value !== wanted;
});

// Relative times stay true while the page is open.
const language = document.documentElement.lang;
const ago = new Intl.RelativeTimeFormat(language, { numeric: "auto", style: "long" });
const UNITS = [["day", 86400], ["hour", 3600], ["minute", 60], ["second", 1]];

function freshen() {
  const now = Date.now() - clockOffset();
  for (const element of document.querySelectorAll("time[data-since]")) {
    const seconds = (new Date(element.dateTime) - now) / 1000;
    const [unit, size] = UNITS.find(([, s]) => Math.abs(seconds) >= s) || UNITS[3];
    const count = Math.trunc(seconds / size);
    const text = element.dataset.since === "for"
      ? new Intl.NumberFormat(language, { style: "unit", unit, unitDisplay: "long" }).format(Math.abs(count))
      : ago.format(count, unit);
    if (element.textContent !== text) element.textContent = text;
  }
}

// How far this machine's clock is ahead of the portal's, in milliseconds.
function clockOffset() {
  const [entry] = performance.getEntriesByType("navigation");
  return performance.timeOrigin + (entry?.responseStart || 0) - Number(document.body.dataset.now);
}

function say(text) {
  const announcer = document.getElementById("announcer");
  if (announcer) announcer.textContent = text;
}

freshen();
setInterval(freshen, 1000);
document.addEventListener("htmx:afterSettle", freshen);
