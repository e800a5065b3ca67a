"use strict";
// Shows how far the run is, and fetches the page again when an epoch has ended.
const line = document.getElementById("live");
let isFetching = false;

function shown() {
  return document.querySelector("main").dataset.epoch;
}

async function refresh() {
  isFetching = true;
  try {
    const answer = await fetch("/");
    if (!answer.ok) return;
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const open = Array.from(document.querySelectorAll("details"), (one) => one.open);
    for (const part of ["header", "main"]) document.querySelector(part).replaceWith(page.querySelector(part));
    document.querySelectorAll("details").forEach((one, index) => { one.open = Boolean(open[index]); });
  } catch {
    // The next event tries again.
  } finally {
    isFetching = false;
  }
}

const source = new EventSource("/events");
source.onmessage = async (event) => {
  const now = JSON.parse(event.data);
  const word = { starting: "Starting", training: "Training", ended: "Ended" }[now.state];
  line.textContent = `${word}: ${now.epoch} epochs completed, step ${now.step}.`;
  if (now.state === "ended") source.close();
  if (!isFetching && (now.state === "ended" || String(now.epoch) !== shown())) await refresh();
};
source.onerror = () => {
  if (source.readyState !== EventSource.CLOSED) line.textContent = "Nobody answers: the run has ended, or cannot be reached.";
};
