"use strict";
// Shows how far the run is, and fetches the page again when an epoch has ended or the run went back.
const line = document.getElementById("live");
let fetched = Promise.resolve();

function shown() {
  return document.querySelector("main").dataset.revision;
}

async function refresh() {
  try {
    const answer = await fetch("/");
    if (!answer.ok) return;
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const open = Array.from(document.querySelectorAll("details"), (one) => one.open);
    for (const part of ["header", "main"]) document.querySelector(part).replaceWith(page.querySelector(part));
    document.querySelectorAll("details").forEach((one, index) => { one.open = Boolean(open[index]); });
  } catch {
    // The next event tries again.
  }
}

const source = new EventSource("/events");
source.onmessage = (event) => {
  const now = JSON.parse(event.data);
  const word = { starting: "Starting", training: "Training", ended: "Ended" }[now.state];
  line.textContent = `${word}: ${now.epoch} epochs completed, step ${now.step}.`;
  if (now.state === "ended") source.close();
  // One after the other, so that the page of the end is fetched also where another fetch is under way.
  fetched = fetched.then(() => { if (now.state === "ended" || String(now.revision) !== shown()) return refresh(); });
};
source.onerror = () => {
  if (source.readyState !== EventSource.CLOSED) line.textContent = "Nobody answers: the run has ended, or cannot be reached.";
};
